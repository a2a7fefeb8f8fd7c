"""Matrix products by oneDNN. Transposed operands are passed as they lie, never copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.cpu.compiler.object_cache import kept
from symdnn.cpu.launch.fastcall import Native
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.onednn import library
from symdnn.cpu.onednn.conv import post_ops
from symdnn.cpu.onednn.kernel import OnednnKernel, address, aligned, lies_densely
from symdnn.cpu.onednn.objects import Attributes, Bound, Layout, Primitive, packed, primitive
from symdnn.cpu.threads import thread_pools
from symdnn.graph.kernel import Call, Row
from symdnn.ops.vendor.onednn import OneDnnMatmul

__all__ = ["MatmulKernel", "KERNELS"]


class MatmulKernel(OnednnKernel):
    """Products of matrices, and of stacks of them. (``dnnl_matmul``)"""

    name = "onednn.matmul"

    @property
    def more_dtypes(self) -> frozenset[str]:  # type: ignore[override]
        """bfloat16, where the CPU computes in it."""
        return frozenset({"bfloat16"} if library.has_bfloat16() else ())

    def refuses(self, call: Call) -> str | None:
        """What oneDNN has no implementation for."""
        reason = self.refuses_types(call)
        types: Any = (*call.inputs, *call.outputs)
        if reason or not all(t.is_static for t in types):
            return reason
        if any(0 in t.shape for t in types):
            return "it is empty"
        try:
            self.workspace_bytes(call)
        except library.OnednnError as error:
            return str(error)
        return None

    def workspace_bytes(self, call: Call) -> int:
        """The most that it needs, however the operands lie."""
        product = _Product(call)
        turns = [(x, y) for x in (False, True) for y in (False, True)]
        return max(product.primitive(*turn).scratch_bytes for turn in turns)

    def bind(self, call: Call) -> Any:
        """A launch picks the primitive for how its operands lie."""
        return _Launcher(_Product(call))

    def details(self, call: Call) -> str:
        """The implementation."""
        return _Product(call).primitive(False, False).implementation


class _Product:
    """The primitives of a call, by whether its operands are transposed."""

    def __init__(self, call: Call) -> None:
        types: Any = (*call.inputs[:2], *call.outputs)
        op: Any = call.op
        self.residual, self.has_bias = bool(op.residual), op.bias
        self.after = post_ops(op)
        self.a, self.b, self.out = (Layout(tuple(t.shape), t.dtype) for t in types)
        self.bias: Layout | None = None
        if op.bias:
            t: Any = call.inputs[-1]
            self.bias = Layout(tuple(t.shape), t.dtype)

    def primitive(self, turn_a: bool, turn_b: bool) -> Primitive:
        """The one for operands that lie so."""
        a = _turned(self.a) if turn_a else self.a
        b = _turned(self.b) if turn_b else self.b
        return _product(a, b, self.bias, self.out, self.after, thread_pools.settle())


def _turned(x: Layout) -> Layout:
    """The same matrices, the rows of each lying where columns would."""
    *steps, _, _ = packed(x.shape)
    return Layout(x.shape, x.dtype, (*steps, 1, x.shape[-2]))


@kept(64 << 10)
def _product(
    a: Layout, b: Layout, bias: Layout | None, out: Layout, after: Any, threads: int
) -> Primitive:
    return primitive("matmul", a, b, bias, out, options={"attributes": Attributes(*after)})


class _Launcher(CpuLaunch):
    """Products of one shape: ``launch(inputs, outputs, workspace)``."""

    def __init__(self, product: _Product) -> None:
        self._product = product
        self._bound: dict[tuple[bool, bool], Bound] = {}
        self._own: Any = None

    def __call__(
        self, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any = None
    ) -> None:
        """Multiply, then add and activate."""
        product = self._product
        (a, turn_a), (b, turn_b) = _as_it_lies(inputs[0]), _as_it_lies(inputs[1])
        bound = self._bound.get((turn_a, turn_b)) or self._make(turn_a, turn_b)
        out = outputs[0]
        if product.residual and address(inputs[2]) != address(out):
            np.copyto(out, inputs[2])
        more = []
        if product.has_bias:
            bias = lies_densely(inputs[-1])
            more.append(address(bias))
        bound(address(a), address(b), address(out), self._scratch(bound, workspace), *more)

    def native(
        self, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any = None
    ) -> Native | None:
        """For operands that lie so that none has to be copied."""
        product = self._product
        turns = [_turn(a) for a in inputs[:2]]
        dense = all(a.flags.c_contiguous for a in (*inputs[2:], *outputs))
        if None in turns or not dense or product.residual:
            return None
        bound = self._make(*turns)  # type: ignore[arg-type]
        self._bound.clear()  # it is the compiled code's now
        names = ["src", "weights", *(["bias"] if product.has_bias else []), "dst"]
        places = {}
        if wanted := bound.primitive.scratch_bytes:
            if workspace is not None and workspace.nbytes >= wanted:
                names.append("scratchpad")
            else:
                own = np.empty(wanted + 64, np.uint8)
                places["scratchpad"] = id(own), -address(own) % 64
                return bound.native(places, names, own)
        return bound.native(places, [*names, ""], None)

    def _scratch(self, bound: Bound, workspace: Any) -> int:
        wanted = bound.primitive.scratch_bytes if workspace is None else 0
        if workspace is not None:
            return address(workspace)
        if not wanted:
            return 0
        if self._own is None or self._own.nbytes < wanted + 64:
            self._own = np.empty(wanted + 64, np.uint8)
        return aligned(address(self._own))

    def _make(self, turn_a: bool, turn_b: bool) -> Bound:
        bias = ["bias"] if self._product.bias is not None else []
        names = ("src", "weights", "dst", "scratchpad", *bias)
        made = Bound(self._product.primitive(turn_a, turn_b), names)
        self._bound[turn_a, turn_b] = made
        return made


def _as_it_lies(x: Any) -> tuple[Any, bool]:
    """``x`` and whether each matrix is transposed; a copy where it lies in neither way."""
    turn = _turn(x)
    return (np.ascontiguousarray(x), False) if turn is None else (x, turn)


def _turn(x: Any) -> bool | None:
    """Whether each matrix is transposed; None where it lies in neither way."""
    if x.flags.c_contiguous:
        return False
    return True if x.swapaxes(-1, -2).flags.c_contiguous else None


KERNELS: tuple[Row, ...] = (((OneDnnMatmul,), (MatmulKernel(),)),)
