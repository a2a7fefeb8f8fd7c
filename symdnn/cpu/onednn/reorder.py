"""Arrays in another order of their dimensions by oneDNN: what a change of the layout costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.compiler.object_cache import kept
from symdnn.cpu.elementwise.elementwise import launcher
from symdnn.cpu.launch.fastcall import Native
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.traits import ONEDNN
from symdnn.cpu.onednn import library
from symdnn.cpu.onednn.kernel import address, lies_densely
from symdnn.cpu.onednn.objects import Bound, Layout, Primitive, describe, packed, reorder
from symdnn.cpu.threads import thread_pools
from symdnn.graph.kernel import Call, Kernel, Row
from symdnn.ops.core.scalar import identity_program
from symdnn.ops.nn.channels_last import Reorder

__all__ = ["ReorderKernel", "KERNELS"]

_MOST_DIMS = 6
_OPERANDS = ("src", "dst")


class ReorderKernel(Kernel):
    """``dnnl_reorder``"""

    name = "onednn.reorder"
    traits = ONEDNN

    def refuses(self, call: Call) -> str | None:
        """float32 and bfloat16 of a few dimensions, not empty."""
        x: Any = call.inputs[0]
        if x.dtype not in ("float32", "bfloat16") or x.ndim > _MOST_DIMS:
            return f"it is for float32 and bfloat16 of at most {_MOST_DIMS} dimensions"
        if x.is_static and 0 in x.shape:
            return "it is empty"
        return library.problem().partition("\n")[0] or None

    def bind(self, call: Call) -> Any:
        """A launch passes two pointers; where memory stays as it is, it copies."""
        op: Any = call.op
        x: Any = call.inputs[0]
        moved = [d for d in op.order if x.shape[d] != 1]
        if moved == sorted(moved) and not jit.problem() and str(config.cpu.compile) != "never":
            return _Straight(x, op.order)
        return _Turned(_reorder(tuple(x.shape), x.dtype, op.order, thread_pools.settle()))


class _Turned(CpuLaunch):
    """``launch(inputs, outputs)`` of a primitive."""

    def __init__(self, primitive: Primitive) -> None:
        self._primitive, self._bound = primitive, Bound(primitive, _OPERANDS)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Copy in the other order."""
        source = lies_densely(inputs[0])
        self._bound(address(source), address(outputs[0]))

    def native(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Native | None:
        """For operands in C order."""
        if not all(a.flags.c_contiguous for a in (*inputs, *outputs)):
            return None
        return Bound(self._primitive, _OPERANDS).native({}, _OPERANDS, None)


class _Straight(CpuLaunch):
    """``launch(inputs, outputs)`` where only dimensions of size 1 change their places: a copy."""

    def __init__(self, x: Any, order: tuple[int, ...]) -> None:
        self._order = order
        shape = tuple(x.shape[d] for d in order)
        self._launch = launcher(identity_program(x.dtype), shape)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Copy."""
        self._launch([inputs[0].transpose(self._order)], outputs)

    def native(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Native:
        """For operands that lie as these do: the view begins where the array does."""
        found: Native = self._launch.native([inputs[0].transpose(self._order)], outputs)
        return found


@kept(32 << 10)
def _reorder(shape: tuple[int, ...], dtype: str, order: tuple[int, ...], threads: int) -> Primitive:
    """From C order into the array of which dimension ``i`` is dimension ``order[i]`` of ours."""
    steps = packed([shape[d] for d in order])
    strides = tuple(steps[order.index(d)] for d in range(len(shape)))
    target = Layout(shape, dtype, strides)
    return reorder(describe(Layout(shape, dtype)), describe(target))


KERNELS: tuple[Row, ...] = (((Reorder,), (ReorderKernel(),)),)
