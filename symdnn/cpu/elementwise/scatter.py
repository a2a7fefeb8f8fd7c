"""Scatters by index arrays: the gradient of an embedding, elements along an axis.

All indices are checked first. Then elements are added or set in the order of the indices. Threads
divide the axis of the first index, so results do not depend on the number of threads.
"""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from symdnn.cpu.elementwise.copies import copy_of, same_memory
from symdnn.cpu.elementwise.gather import PlainIndex, indexed_block, unfit
from symdnn.cpu.launch.contiguous_launch import compile_refusal
from symdnn.cpu.launch.fastcall import FastCallSeries
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.series_launch import Part, SeriesLaunch, Viewed
from symdnn.cpu.launch.strided_launch import StridedBlock, StridedLaunch
from symdnn.cpu.launch.traits import LLVM, NUMPY
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.scatter_reduce import ScatterReduce
from symdnn.ops.array.take import OneHot
from symdnn.ops.core.dtype import is_narrow_float

__all__ = ["KERNELS", "ScatterKernel"]

#: With fewer elements NumPy is faster than compiling.
_MIN_ELEMENTS_TO_COMPILE = 1 << 12


class ScatterKernel(Kernel[AdvancedIncSubtensor | ScatterReduce]):
    """``x[i, :, j] += y`` or ``= y`` for integer arrays along any axes, the others whole; so are
    maxima, minima and products."""

    name = "llvm.scatter"
    traits = LLVM

    def refuses(self, call: Call[AdvancedIncSubtensor | ScatterReduce]) -> str | None:
        """Needs slices of known bounds, and wide numbers."""
        op = call.op
        x, _, *arrays = call.inputs
        if reason := unfit(op.getter(), x.dtype, [t.dtype for t in arrays]):
            return reason
        what = _what(op)
        if (what == "add" and x.dtype == "bool") or (what != "set" and is_narrow_float(x.dtype)):
            return f"it does not {what} {x.dtype}"
        # Without anything to add, x is still copied.
        return compile_refusal(
            (x, *arrays), lambda: max(1, prod(_changed_shape(call))), _MIN_ELEMENTS_TO_COMPILE
        )

    def writes_updates(self, call: Call[AdvancedIncSubtensor | ScatterReduce]) -> bool:
        """Whether the indices are known to be in range, so that no check can fail."""
        return isinstance(call.op, AdvancedIncSubtensor) and call.op.in_bounds

    def bind(self, call: Call[AdvancedIncSubtensor | ScatterReduce]) -> Launch[Array]:
        """A launch for any strides."""
        return _ScatterLaunch(call.op, call.inputs[0], _changed_shape(call))


def _changed_shape(call: Call[AdvancedIncSubtensor | ScatterReduce]) -> tuple[int, ...]:
    """The shape of the updated elements, to which ``y`` broadcasts."""
    x, _, *arrays = call.inputs
    get = call.op.getter()
    view = PlainIndex.of(get, x.dtype).part(np.broadcast_to(False, x.shape))
    kept = [n for d, n in enumerate(view.shape) if d not in get.arrays]
    at = get.arrays[0] if get.side_by_side else 0
    common = np.broadcast_shapes(*(a.shape for a in arrays))
    return (*kept[:at], *common, *kept[at:])


class _ScatterLaunch(CpuLaunch):
    """``launch(inputs, outputs)``; an index out of range is an error, before any write."""

    def __init__(
        self, op: AdvancedIncSubtensor | ScatterReduce, x: TensorType, shape: tuple[int, ...]
    ) -> None:
        self._get, self._shape, self._some = op.getter(), shape, prod(shape) > 0
        self._plain = PlainIndex.of(self._get, x.dtype)
        self._check, self._change = (
            StridedLaunch(partial(_change_block, self._plain.op, what))
            for what in ("check", _what(op))
        )

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        """Look at the indices, copy ``x`` unless the result shares its memory, then change it."""
        x, y, *arrays = inputs
        (out,) = outputs
        values, view = self._values(y), self._plain.view
        if not self._some or self._check.reports([view(x), *arrays, values]):
            self._get.numpy_index(x.shape, arrays)
        if not same_memory(x, out):
            np.copyto(out, x)
        if self._some:
            self._change([view(out), *arrays, values], [])

    def prepare(self, inputs: Arrays, outputs: Arrays) -> None:
        """Queue the compilation of the code for operands with these strides."""
        x, y, *arrays = inputs
        if self._some:
            values, view = self._values(y), self._plain.view
            self._check.prepare([view(x), *arrays, values], [])
            self._change.prepare([view(outputs[0]), *arrays, values], [])

    def native(self, inputs: Arrays, outputs: Arrays) -> FastCallSeries | None:
        """For operands with these strides."""
        x, (out,) = inputs[0], outputs
        if not self._some or not out.size:
            return None
        result, view = len(inputs), self._plain.view
        index, values = range(2, result), Viewed(1, self._values)
        copied = (
            [] if same_memory(x, out) else [Part(copy_of(x.dtype.name, x.shape), (0,), (result,))]
        )
        return SeriesLaunch([
            Part(self._check, (Viewed(0, view), *index, values), ()), *copied,
            Part(self._change, (Viewed(result, view), *index, values), ()),
        ]).native(inputs, outputs)  # fmt: skip

    def _values(self, y: Array) -> Array:
        wide = y if y.shape == self._shape else np.broadcast_to(y, self._shape)
        return self._plain.parts(wide)


def _what(op: AdvancedIncSubtensor | ScatterReduce) -> str:
    """The update of an element."""
    if isinstance(op, ScatterReduce):
        return op.reduce
    return "set" if op.set_instead_of_inc else "add"


class InPlaceKernel(Kernel[AdvancedIncSubtensor]):
    """NumPy's write to the elements of an array, which is not copied where it is updated."""

    name = "numpy.scatter"
    traits = NUMPY

    def refuses(self, call: Call[AdvancedIncSubtensor]) -> str | None:
        """Indices that may be out of range: an error would come behind a write."""
        return None if call.op.in_bounds else "the indices may be out of range"

    def writes_updates(self, call: Call[AdvancedIncSubtensor]) -> bool:
        """True: it cannot fail."""
        return True

    def bind(self, call: Call[AdvancedIncSubtensor]) -> Launch[Array]:
        """The write, after a copy unless the result shares the memory."""

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            x, *rest = inputs
            (out,) = outputs
            if not same_memory(x, out):
                np.copyto(out, x)
            call.op.write(out, *rest)

        return launch


class OneHotKernel(Kernel[OneHot]):
    """Zeros, and ones by index, in the memory of the result."""

    name = "numpy.one_hot"
    traits = NUMPY

    def refuses(self, call: Call[OneHot]) -> str | None:
        """Nothing."""
        return None

    def bind(self, call: Call[OneHot]) -> Launch[Array]:
        """The writes."""
        return lambda inputs, outputs: call.op.write(outputs[0], inputs[0])


def _change_block(get: AdvancedSubtensor, what: str, arrays: Arrays, _: Arrays) -> StridedBlock:
    x, *index, y = arrays
    return indexed_block(get, what, x, index, y)


KERNELS: tuple[Row, ...] = (
    ((AdvancedIncSubtensor,), (ScatterKernel(), InPlaceKernel())),
    ((ScatterReduce,), (ScatterKernel(),)),
    ((OneHot,), (OneHotKernel(),)),
)
