"""GEMM by oneDNN. Transposed operands are passed by their strides, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.cpu.compiler.object_cache import cached
from symdnn.cpu.launch.fastcall import FastCall
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.scratch import address, aligned, as_contiguous
from symdnn.cpu.onednn import library
from symdnn.cpu.onednn.conv import post_ops, with_activation
from symdnn.cpu.onednn.kernel import (
    OnednnKernel,
    PlannedPrimitive,
    PrimitiveOperand,
    contiguous,
    version_of,
)
from symdnn.cpu.onednn.objects import (
    Attributes,
    BoundPrimitive,
    Layout,
    Primitive,
    packed,
    primitive,
)
from symdnn.cpu.threads import thread_pools
from symdnn.graph.kernel import Call, Row
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.vendor.onednn import OneDnnMatmul


class MatmulKernel(OnednnKernel):
    """GEMM of matrices, and of stacks of them (``dnnl_matmul``)."""

    name = "onednn.matmul"

    takes_bfloat16 = True

    def refuses(self, call: Call) -> str | None:
        """Why oneDNN cannot run this call: it has no implementation, or nothing to do."""
        reason = self.refuses_types(call)
        types = (*call.inputs, *call.outputs)
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
        """The most scratch memory of all combinations of transposed operands."""
        primitives = _MatmulPrimitives(call)
        pairs = [(a, b) for a in (False, True) for b in (False, True)]
        return max(primitives.primitive(a, b).scratch_bytes for a, b in pairs)

    def bind(self, call: Call) -> Any:
        """A launch that picks the primitive by the strides of its operands."""
        return with_activation(_MatmulLaunch(_MatmulPrimitives(call)), call)

    def details(self, call: Call) -> str:
        """oneDNN's implementation for contiguous operands."""
        return _MatmulPrimitives(call).primitive(False, False).implementation


class _MatmulPrimitives:
    """The primitives of a call for transposed and contiguous operands."""

    def __init__(self, call: Call) -> None:
        types = (*call.inputs[:2], *call.outputs)
        op: Any = call.op
        self.residual, self.has_bias = bool(op.residual), op.bias
        self.after = post_ops(call)
        self.a, self.b, self.out = (Layout(tuple(t.shape), t.dtype) for t in types)
        self.bias: Layout | None = None
        if op.bias:
            t = call.inputs[-1]
            self.bias = Layout(tuple(t.shape), t.dtype)

    def primitive(self, transposed_a: bool, transposed_b: bool) -> Primitive:
        """The primitive for operands of which these are transposed."""
        a = _transposed(self.a) if transposed_a else self.a
        b = _transposed(self.b) if transposed_b else self.b
        return _primitive(a, b, self.bias, self.out, self.after, thread_pools.set_threads())


def _transposed(x: Layout) -> Layout:
    """The layout with transposed strides: column-major matrices."""
    *steps, _, _ = packed(x.shape)
    return Layout(x.shape, x.dtype, (*steps, 1, x.shape[-2]))


@cached(64 << 10)
def _primitive(
    a: Layout, b: Layout, bias: Layout | None, out: Layout, after: Any, threads: int
) -> Primitive:
    return primitive("matmul", a, b, bias, out, options={"attributes": Attributes(*after)})


class _MatmulLaunch(CpuLaunch):
    """``launch(inputs, outputs, workspace)`` for matrices of one shape."""

    def __init__(self, primitives: _MatmulPrimitives) -> None:
        self._primitives = primitives
        self._bound: dict[tuple[bool, bool], BoundPrimitive] = {}
        self._own: Any = None

    def __call__(self, inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> None:
        """Multiply, then run the epilogue."""
        primitives = self._primitives
        (a, transposed_a), (b, transposed_b) = _without_copy(inputs[0]), _without_copy(inputs[1])
        bound = self._bound.get((transposed_a, transposed_b)) or self._make(
            transposed_a, transposed_b
        )
        out = outputs[0]
        if primitives.residual and address(inputs[2]) != address(out):
            np.copyto(out, inputs[2])
        more = []
        if primitives.has_bias:
            bias = as_contiguous(inputs[-1])
            more.append(address(bias))
        bound(address(a), address(b), address(out), self._scratch(bound, workspace), *more)

    def native(
        self, inputs: Arrays, outputs: Arrays, workspace: Array | None = None
    ) -> FastCall | None:
        """For operands of which none has to be copied."""
        primitives = self._primitives
        transposed = [_is_transposed(a) for a in inputs[:2]]
        dense = all(a.flags.c_contiguous for a in (*inputs[2:], *outputs))
        if None in transposed or not dense:
            return None
        bound = self._make(*transposed)  # type: ignore[arg-type]
        self._bound.clear()  # from now on the compiled code alone sets its pointers
        bias = ["bias"] if primitives.has_bias else []
        names = ["src", "weights", *([""] if primitives.residual else []), *bias, "dst"]
        copied = (outputs[0].nbytes, 2, len(inputs)) if primitives.residual else None
        places = {}
        if wanted := bound.primitive.scratch_bytes:
            if workspace is not None and workspace.nbytes >= wanted:
                names.append("scratchpad")
            else:
                own = np.empty(wanted + 64, np.uint8)
                places["scratchpad"] = id(own), -address(own) % 64
                return bound.native(places, names, own, copied)
        return bound.native(places, [*names, ""], None, copied)

    def _scratch(self, bound: BoundPrimitive, workspace: Array | None) -> int:
        """Its address: memory of its own where the plan's is too small, for other threads."""
        wanted = bound.primitive.scratch_bytes
        if workspace is not None and workspace.nbytes >= wanted:
            return address(workspace)
        if not wanted:
            return 0
        if self._own is None or self._own.nbytes < wanted + 64:
            self._own = np.empty(wanted + 64, np.uint8)
        return aligned(address(self._own))

    def _make(self, transposed_a: bool, transposed_b: bool) -> BoundPrimitive:
        bias = ["bias"] if self._primitives.bias is not None else []
        names = ("src", "weights", "dst", "scratchpad", *bias)
        made = BoundPrimitive(self._primitives.primitive(transposed_a, transposed_b), names)
        self._bound[transposed_a, transposed_b] = made
        return made


def _without_copy(x: Any) -> tuple[Any, bool]:
    """(``x``, whether its matrices are transposed); a copy for other strides."""
    transposed = _is_transposed(x)
    return (np.ascontiguousarray(x), False) if transposed is None else (x, transposed)


def _is_transposed(x: Any) -> bool | None:
    """Whether each matrix is transposed (column-major); None for strides of neither kind."""
    if x.flags.c_contiguous:
        return False
    return True if x.swapaxes(-1, -2).flags.c_contiguous else None


class PackedMatmulKernel(OnednnKernel):
    """A product with a parameter in bfloat16, which is kept in oneDNN's blocks.

    oneDNN pairs the terms of bfloat16 operands. 128 rows and a parameter of 768 by 3072 take 3.1 ms
    where it does so in each call.
    """

    name = "onednn.packed_matmul"
    takes_bfloat16 = True
    keeps = (1,)

    def refuses_types(self, call: Call) -> str | None:
        """Other operands: in float32 compiled kernels keep panels."""
        if call.inputs[1].dtype != "bfloat16" or any(t.ndim != 2 for t in call.inputs[:2]):
            return "it packs matrices of bfloat16"
        if version_of(call, 1) is None:
            return "the second operand is no parameter"
        return super().refuses_types(call)

    def bind(self, call: Call) -> Any:
        """A launch; an activation function that loses NaN runs apart, or after a look."""
        return with_activation(super().bind(call), call)

    def planned(self, call: Call) -> PlannedPrimitive:
        """The primitive, whose second operand has the layout of its choice."""
        op: Any = call.op
        a, b, out = map(contiguous, (*call.inputs[:2], *call.outputs))
        bias = contiguous(call.inputs[-1]) if op.bias else None
        attributes = Attributes(*post_ops(call))
        made = primitive("matmul", a, b.any, bias, out, options={"attributes": attributes})
        adds = 2 if op.residual else -1
        operands = [PrimitiveOperand("src", a, 0), PrimitiveOperand("weights", b, 1),
                    PrimitiveOperand("dst", out, 0, True, adds=adds)]  # fmt: skip
        if bias is not None:
            operands.append(PrimitiveOperand("bias", bias, len(call.inputs) - 1))
        return PlannedPrimitive(made, operands)


KERNELS: tuple[Row, ...] = (((OneDnnMatmul,), (PackedMatmulKernel(), MatmulKernel())),)
