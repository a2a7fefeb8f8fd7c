"""Scatters by index arrays: the gradient of an embedding, elements along an axis.

All indices are checked first. Then elements are added or set in the order of the indices. Threads
divide the axis of the first index, so results do not depend on the number of threads.
"""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from symdnn.cpu.elementwise.copies import copy_of, copy_refusal, same_memory
from symdnn.cpu.elementwise.counted import counted_block
from symdnn.cpu.elementwise.counts_ir import MOST_COUNTS
from symdnn.cpu.elementwise.gather import PlainIndex, indexed_block, unfit
from symdnn.cpu.ir.scalar_ir import COMPLEX, VALUES
from symdnn.cpu.launch.contiguous_launch import compile_refusal
from symdnn.cpu.launch.fastcall import FastCallSeries
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.series_launch import Part, SeriesLaunch, Viewed
from symdnn.cpu.launch.strided_launch import StridedBlock, StridedLaunch
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS, NUMPY
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.scatter_reduce import ScatterReduce
from symdnn.ops.array.take import OneHot
from symdnn.ops.core.dtype import is_narrow_float

#: With fewer elements NumPy is faster than compiling.
_MIN_ELEMENTS_TO_COMPILE = 1 << 12
#: Elements of a vector's sums, on average, of which tables are worth their beginning and end.
_MIN_TO_EACH_COUNT = 8


class ScatterKernel(Kernel[AdvancedIncSubtensor | ScatterReduce]):
    """``x[i, :, j] += y`` or ``= y`` for integer arrays along any axes, the others whole; so are
    maxima, minima and products."""

    name = "llvm.scatter"
    traits = LLVM_ASKS_THREADS

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
        changed = _changed_shape(call)
        counts = _counts(call, prod(changed))
        return (_CountsLaunch if counts else _ScatterLaunch)(call.op, call.inputs[0], changed)


def _changed_shape(call: Call[AdvancedIncSubtensor | ScatterReduce]) -> tuple[int, ...]:
    """The shape of the updated elements, to which ``y`` broadcasts."""
    x, _, *arrays = call.inputs
    get = call.op.getter()
    view = PlainIndex.of(get).part(np.broadcast_to(False, x.shape))
    kept = [n for d, n in enumerate(view.shape) if d not in get.arrays]
    at = get.arrays[0] if get.side_by_side else 0
    common = np.broadcast_shapes(*(a.shape for a in arrays))
    return (*kept[:at], *common, *kept[at:])


class _ScatterLaunch(CpuLaunch):
    """``launch(inputs, outputs)``; an index out of range is an error, before any write."""

    #: Whether indices are looked at before elements are changed.
    _looks = True

    def __init__(
        self, op: AdvancedIncSubtensor | ScatterReduce, x: TensorType, shape: tuple[int, ...]
    ) -> None:
        self._get, self._shape, self._some = op.getter(), shape, prod(shape) > 0
        self._plain = PlainIndex.of(self._get, x.dtype in COMPLEX)
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
            if self._looks:
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
        looked = Part(self._check, (Viewed(0, view), *index, values), ())
        change = Part(self._change, (Viewed(result, view), *index, values), ())
        return SeriesLaunch([looked] * self._looks + [*copied, change]).native(inputs, outputs)

    def _values(self, y: Array) -> Array:
        wide = y if y.shape == self._shape else np.broadcast_to(y, self._shape)
        return self._plain.parts(wide)


def _counts(call: Call[AdvancedIncSubtensor | ScatterReduce], elements: int) -> bool:
    """Whether integers are added to a short vector, several to each of its elements."""
    x, _, index, *_ = call.inputs
    if not x.is_integer or x.ndim != 1 or index.ndim != 1 or _what(call.op) != "add":
        return False
    if not PlainIndex.of(call.op.getter()).is_all:
        return False
    return 0 < x.shape[0] <= min(MOST_COUNTS, elements // _MIN_TO_EACH_COUNT)


class _CountsLaunch(_ScatterLaunch):
    """``launch(inputs, outputs)`` of sums of integers in a short vector."""

    _looks = False

    def __init__(
        self, op: AdvancedIncSubtensor | ScatterReduce, x: TensorType, shape: tuple[int, ...]
    ) -> None:
        super().__init__(op, x, shape)
        self._change = StridedLaunch(lambda arrays, _: counted_block("count", *arrays))

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        """Copy ``x`` unless the result shares its memory, then add."""
        x, y, *arrays = inputs
        (out,) = outputs
        if not same_memory(x, out):
            np.copyto(out, x)
        if self._change.reports([out, *arrays, self._values(y)]):
            self._get.numpy_index(x.shape, arrays)


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

    def __init__(self, compiled: bool) -> None:
        self.name, self._compiled = ("llvm" if compiled else "numpy") + ".one_hot", compiled
        self.traits = LLVM_ASKS_THREADS if compiled else NUMPY

    def refuses(self, call: Call[OneHot]) -> str | None:
        """The compiled kernel refuses small results."""
        if not self._compiled:
            return None
        if any(t.dtype not in VALUES for t in (call.inputs[0], call.outputs[0])):
            return "there is no code for the dtypes"
        return copy_refusal(call.outputs, _MIN_ELEMENTS_TO_COMPILE)

    def bind(self, call: Call[OneHot]) -> Launch[Array]:
        """The writes."""
        if self._compiled:
            return _OneHotLaunch(call.op)
        return lambda inputs, outputs: call.op.write(outputs[0], inputs[0])


class _OneHotLaunch(CpuLaunch):
    """``launch(inputs, outputs)``; a label out of range is an error, before any write."""

    _GET = AdvancedSubtensor(("a", "a"))

    def __init__(self, op: OneHot) -> None:
        self._op = op
        self._check, self._set = (
            StridedLaunch(partial(_change_block, self._GET, what)) for what in ("check", "set")
        )

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        """Look at the labels, write zeros, then the ones."""
        labels, (out,) = inputs[0], outputs
        if not (out.size and labels.flags.c_contiguous and out.flags.c_contiguous):
            self._op.write(out, labels)
            return
        operands = [_rows_of(out), np.arange(labels.size), _places(labels), _ones(labels, out)]
        if self._check.reports(operands):
            self._op.write(out, labels)  # raises the error
        copy_of(out.dtype.name, out.shape)([np.zeros((), out.dtype)], outputs)
        self._set(operands, [])

    def native(self, inputs: Arrays, outputs: Arrays) -> FastCallSeries | None:
        """For contiguous operands."""
        labels, (out,) = inputs[0], outputs
        if not (out.size and labels.flags.c_contiguous and out.flags.c_contiguous):
            return None
        rows, numbers = Viewed(len(inputs), _rows_of), np.arange(labels.size)
        operands = rows, numbers, Viewed(0, _places), _ones(labels, out)
        zeros = Part(copy_of(out.dtype.name, out.shape), (np.zeros((), out.dtype),), (len(inputs),))
        parts = [Part(self._check, operands, ()), zeros, Part(self._set, operands, ())]
        return SeriesLaunch(parts).native(inputs, outputs)


def _rows_of(out: Array) -> Array:
    """A contiguous array as a matrix."""
    return out.reshape(-1, out.shape[-1])


def _ones(labels: Array, out: Array) -> Array:
    """A one for each label."""
    return np.broadcast_to(np.ones((), out.dtype), labels.size)


def _places(labels: Array) -> Array:
    """Contiguous labels as a vector of unsigned numbers, of which negative ones are the largest."""
    return labels.reshape(-1).view(f"u{labels.itemsize}")


def _change_block(get: AdvancedSubtensor, what: str, arrays: Arrays, _: Arrays) -> StridedBlock:
    x, *index, y = arrays
    return indexed_block(get, what, x, index, y)


KERNELS: tuple[Row, ...] = (
    ((AdvancedIncSubtensor,), (ScatterKernel(), InPlaceKernel())),
    ((ScatterReduce,), (ScatterKernel(),)),
    ((OneHot,), (OneHotKernel(True), OneHotKernel(False))),
)
