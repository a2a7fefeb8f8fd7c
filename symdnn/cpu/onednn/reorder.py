"""Reorders by oneDNN: copies of arrays into another layout."""

from __future__ import annotations

from typing import Any

from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.compiler.object_cache import cached
from symdnn.cpu.elementwise.elementwise import elementwise_launch
from symdnn.cpu.launch.fastcall import FastCall
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.scratch import address, as_contiguous
from symdnn.cpu.launch.traits import ONEDNN
from symdnn.cpu.onednn import library
from symdnn.cpu.onednn.objects import BoundPrimitive, Layout, Primitive, describe, packed, reorder
from symdnn.cpu.threads import thread_pools
from symdnn.graph.kernel import Call, Kernel, Row
from symdnn.graph.typing import Arrays
from symdnn.ops.core.scalar import identity_program
from symdnn.ops.nn.channels_last import Reorder

_MAX_DIMS = 6
_DTYPES = ("float32", "bfloat16", "int8", "uint8")
_OPERANDS = ("src", "dst")


class ReorderKernel(Kernel[Reorder]):
    """A copy with permuted dimensions (``dnnl_reorder``)."""

    name = "onednn.reorder"
    traits = ONEDNN

    def refuses(self, call: Call[Reorder]) -> str | None:
        """Needs float32, bfloat16 or 8 bits, few dimensions, and elements."""
        x = call.inputs[0]
        if x.dtype not in _DTYPES or x.ndim > _MAX_DIMS:
            return f"it is for {', '.join(_DTYPES)} of at most {_MAX_DIMS} dimensions"
        if x.is_static and 0 in x.shape:
            return "it is empty"
        return library.problem().partition("\n")[0] or None

    def bind(self, call: Call[Reorder]) -> Any:
        """A launch of the primitive, or a plain copy if the memory order stays the same."""
        op = call.op
        x = call.inputs[0]
        moved = [d for d in op.order if x.shape[d] != 1]
        if moved == sorted(moved) and not jit.problem() and str(config.cpu.compile) != "never":
            return _CopyLaunch(x, op.order)
        return _ReorderLaunch(
            _reorder(tuple(x.shape), x.dtype, op.order, thread_pools.set_threads())
        )


class _ReorderLaunch(CpuLaunch):
    """``launch(inputs, outputs)`` of a reorder primitive."""

    def __init__(self, primitive: Primitive) -> None:
        self._primitive, self._bound = primitive, BoundPrimitive(primitive, _OPERANDS)

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        """Copy into the other layout."""
        source = as_contiguous(inputs[0])
        self._bound(address(source), address(outputs[0]))

    def native(self, inputs: Arrays, outputs: Arrays) -> FastCall | None:
        """For contiguous operands."""
        if not all(a.flags.c_contiguous for a in (*inputs, *outputs)):
            return None
        return BoundPrimitive(self._primitive, _OPERANDS).native({}, _OPERANDS, None)


class _CopyLaunch(CpuLaunch):
    """``launch(inputs, outputs)`` of a copy, where only dimensions of size 1 are moved."""

    def __init__(self, x: Any, order: tuple[int, ...]) -> None:
        self._order = order
        shape = tuple(x.shape[d] for d in order)
        self._launch = elementwise_launch(identity_program(x.dtype), shape)

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        """Copy every element."""
        self._launch([inputs[0].transpose(self._order)], outputs)

    def native(self, inputs: Arrays, outputs: Arrays) -> FastCall:
        """For operands with these strides; the transposed view has the array's data pointer."""
        return self._launch.native([inputs[0].transpose(self._order)], outputs)


@cached(32 << 10)
def _reorder(shape: tuple[int, ...], dtype: str, order: tuple[int, ...], threads: int) -> Primitive:
    """The primitive from a contiguous array to one whose dimension ``i`` is its ``order[i]``."""
    steps = packed([shape[d] for d in order])
    strides = tuple(steps[order.index(d)] for d in range(len(shape)))
    target = Layout(shape, dtype, strides)
    return reorder(describe(Layout(shape, dtype)), describe(target))


KERNELS: tuple[Row, ...] = (((Reorder,), (ReorderKernel(),)),)
