"""Matrix products by oneDNN. Transposed operands are passed as they lie, never copied."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from symdnn.cpu import libdnnl
from symdnn.cpu.dnnl import Bound, Layout, Primitive, packed, primitive
from symdnn.cpu.onednn_kernel import OnednnKernel, address
from symdnn.graph.kernel import Call, register_kernel
from symdnn.ops.dot import BatchedDot, Dot

__all__ = ["MatmulKernel", "register"]


class MatmulKernel(OnednnKernel):
    """Products of matrices, and of stacks of them. (``dnnl_matmul``)"""

    name = "onednn.matmul"

    def refuses_types(self, call: Call) -> str | None:
        """Vectors, which are no work for it."""
        if any(t.ndim < 2 for t in call.inputs):  # type: ignore[attr-defined]
            return "a product with a vector is bound by memory"
        return super().refuses_types(call)

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
        except libdnnl.OnednnError as error:
            return str(error)
        return None

    def workspace_bytes(self, call: Call) -> int:
        """The most that it needs, however the operands lie."""
        a, b, out = _types(call)
        return max(
            _product(x, y, out).scratch_bytes for x in (a, _turned(a)) for y in (b, _turned(b))
        )

    def bind(self, call: Call) -> Any:
        """A launch picks the primitive for how its operands lie."""
        return _Launcher(*_types(call))

    def details(self, call: Call) -> str:
        """The implementation."""
        return _product(*_types(call)).implementation


def _types(call: Call) -> tuple[Layout, Layout, Layout]:
    types: Any = (*call.inputs, *call.outputs)
    a, b, out = (Layout(tuple(t.shape), t.dtype) for t in types)
    return a, b, out


def _turned(x: Layout) -> Layout:
    """The same matrices, the rows of each lying where columns would."""
    *steps, _, _ = packed(x.shape)
    return Layout(x.shape, x.dtype, (*steps, 1, x.shape[-2]))


@lru_cache(maxsize=4096)
def _product(a: Layout, b: Layout, out: Layout) -> Primitive:
    return primitive("matmul", a, b, None, out)


class _Launcher:
    """Products of one shape: ``launch(inputs, outputs, workspace)``."""

    def __init__(self, a: Layout, b: Layout, out: Layout) -> None:
        self._plain, self._turned = (a, b), (_turned(a), _turned(b))
        self._out = out
        self._bound: dict[tuple[bool, bool], Bound] = {}

    def __call__(
        self, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any = None
    ) -> None:
        """Multiply."""
        (a, turn_a), (b, turn_b) = _as_it_lies(inputs[0]), _as_it_lies(inputs[1])
        bound = self._bound.get((turn_a, turn_b)) or self._make(turn_a, turn_b)
        scratch = 0 if workspace is None else address(workspace)
        bound(address(a), address(b), address(outputs[0]), scratch)

    def _make(self, turn_a: bool, turn_b: bool) -> Bound:
        a = self._turned[0] if turn_a else self._plain[0]
        b = self._turned[1] if turn_b else self._plain[1]
        names = ("src", "weights", "dst", "scratchpad")
        made = self._bound[turn_a, turn_b] = Bound(_product(a, b, self._out), names)
        return made


def _as_it_lies(x: Any) -> tuple[Any, bool]:
    """``x`` and whether each matrix is transposed; a copy where it lies in neither way."""
    if x.flags.c_contiguous:
        return x, False
    if x.swapaxes(-1, -2).flags.c_contiguous:
        return x, True
    return np.ascontiguousarray(x), False


def register() -> None:
    """Enter the kernel into the table."""
    for op in (Dot, BatchedDot):
        register_kernel(op, "cpu", MatmulKernel())
