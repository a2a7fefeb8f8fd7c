"""Copies: fill, join, split, pad, shift, change a part of an array, views.

NumPy's references write into memory of their own. These kernels write into the plan's buffers, and
large copies are compiled and use several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from operator import itemgetter
from typing import Any

import numpy as np

from symdnn.cpu.elementwise.elementwise import PermutedInputs, elementwise_launch
from symdnn.cpu.elementwise.moves import pieces_block, rolled_block
from symdnn.cpu.ir.scalar_ir import has_code
from symdnn.cpu.launch.contiguous_launch import ContiguousLaunch, compile_refusal
from symdnn.cpu.launch.fastcall import FastCall, FastCallSeries
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.scratch import address
from symdnn.cpu.launch.series_launch import Part, SeriesLaunch, Viewed
from symdnn.cpu.launch.strided_launch import StridedBlock
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS, NUMPY
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.array.create import Diagonal
from symdnn.ops.array.cumulative import Shift
from symdnn.ops.array.index import IncSubtensor, Subtensor
from symdnn.ops.array.join import Join, Roll, Split
from symdnn.ops.array.slices import part_function, symbolic_count
from symdnn.ops.array.view import Copy
from symdnn.ops.core.make_vector import MakeVector
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.core.shape import Alloc, DimShuffle, Reshape
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.ops.elementwise.complex_meaning import complex_copy, complex_meaning

_View = DimShuffle | Reshape | Subtensor | Copy | Diagonal

#: With fewer elements NumPy's copies are as fast.
_MIN_ELEMENTS_TO_COMPILE = 1 << 14
#: Shifts of a roll whose copies are kept.
_MAX_SHIFTS = 16


def copy_refusal(types: Sequence[Any], min_work: int = _MIN_ELEMENTS_TO_COMPILE) -> str | None:
    """Why no code is compiled; the work is the number of elements of the first type."""
    if not all(has_code(t.dtype) for t in types):
        return "there is no code for the dtype"
    return compile_refusal(types[:1], lambda: prod(types[0].shape), min_work)


class FillKernel(Kernel):
    """``Alloc``: one pass over the result, by NumPy or, for large results, by a compiled loop."""

    def __init__(self, compiled: bool) -> None:
        self.name, self._compiled = ("llvm.fill" if compiled else "numpy.fill"), compiled
        self.traits = LLVM_ASKS_THREADS if compiled else NUMPY

    def refuses(self, call: Call) -> str | None:
        """The compiled kernel refuses small results."""
        return copy_refusal(call.outputs) if self._compiled else None

    def bind(self, call: Call) -> Launch[Array]:
        """A launch that copies the broadcast input."""
        if not self._compiled:
            return _fill
        y = call.outputs[0]
        return PermutedInputs(elementwise_launch(complex_copy(y.dtype), tuple(y.shape)), (0,))


def _fill(inputs: Arrays, outputs: Arrays) -> None:
    np.copyto(outputs[0], inputs[0])


# -- parts ----------------------------------------------------------------------------------------


class CopyPiecesKernel(Kernel[Join | Split | IncSubtensor]):
    """``Join``, ``Split`` and ``IncSubtensor``: pieces of arrays, each copied once."""

    def __init__(self, compiled: bool) -> None:
        self.name, self._compiled = ("llvm.move" if compiled else "numpy.move"), compiled
        self.traits = LLVM_ASKS_THREADS if compiled else NUMPY

    def refuses(self, call: Call[Join | Split | IncSubtensor]) -> str | None:
        """The compiled kernel refuses small arrays."""
        if not self._compiled:
            return None
        whole = call.inputs if isinstance(call.op, Split) else call.outputs
        return copy_refusal(whole[:1])

    def bind(self, call: Call[Join | Split | IncSubtensor]) -> Launch[Array]:
        """A launch that copies the pieces."""
        op = call.op
        if isinstance(op, Join):
            return _JoinSplitLaunch(op.axis, self._compiled)
        if isinstance(op, Split):
            return _JoinSplitLaunch(op.axis, self._compiled, split=True)
        return _IncSubtensorLaunch(op, self._compiled)


class _CopyLaunches:
    """Copies and additions in place, by NumPy or by compiled launches, cached by shape."""

    def __init__(self, compiled: bool) -> None:
        self._compiled = compiled
        self._launches: dict[Any, Any] = {}

    def copy(self, source: Array, target: Array) -> None:
        """``target[...] = source``, broadcast; by NumPy where it is little or there is no code."""
        little = target.size < _MIN_ELEMENTS_TO_COMPILE
        if little or not self._compiled or not has_code(target.dtype.name):
            np.copyto(target, source)
        else:
            run = self._launch(complex_copy, source, target)
            run([source], [target])

    def add(self, source: Array, target: Array) -> None:
        """``target += source``"""
        if self._compiled and target.size:
            run = self._launch(sum_program, source, target)
            run([target, source], [target])
        else:
            np.add(target, source, out=target)

    def _launch(self, make: Callable[[str], ScalarProgram], source: Array, target: Array) -> Any:
        key = make, target.dtype, source.shape, target.shape
        if key not in self._launches:
            program = make(target.dtype.name)
            self._launches[key] = elementwise_launch(program, target.shape)
        return self._launches[key]


class CopyingLaunch(ContiguousLaunch):
    """A launch of a kernel for contiguous operands; copies of others are compiled."""

    def __init__(
        self, run: Any, head: Sequence[int], reads: int, writes: int = 1, status: int = -1
    ) -> None:
        super().__init__(run, head, reads, writes, status)
        self._copies = _CopyLaunches(True)

    def dense(self, operand: Array) -> Array:
        """A contiguous copy of an operand."""
        made = np.empty(operand.shape, operand.dtype)
        self.put(operand, made)
        return made

    def put(self, whole: Array, out: Array) -> None:
        """``out[...] = whole``"""
        self._copies.copy(whole, out)


@cache
def sum_program(dtype: str) -> ScalarProgram:
    """The sum of two numbers; 16-bit floats are added in float32."""
    if (found := complex_meaning(Add(), (dtype, dtype))) is not None:
        return found
    b = Builder([dtype, dtype])
    if dtype not in ("float16", "bfloat16"):
        return b.program([b.input(0) + b.input(1)])
    wide = b.cast(b.input(0), "float32") + b.cast(b.input(1), "float32")
    return b.program([b.cast(wide, dtype)])


class VectorKernel(Kernel[MakeVector]):
    """``MakeVector``: a join of pieces of one element, in groups of compiled steps."""

    name, traits = "llvm.move", LLVM_ASKS_THREADS

    def refuses(self, call: Call[MakeVector]) -> str | None:
        """Refuses small vectors until a plan is called often."""
        return copy_refusal(call.outputs)

    def bind(self, call: Call[MakeVector]) -> Launch[Array]:
        """A launch that copies the numbers."""
        return _VectorLaunch()


class _JoinSplitLaunch(CpuLaunch):
    """``launch(inputs, outputs)`` of a join or a split."""

    def __init__(self, axis: int, compiled: bool, split: bool = False) -> None:
        self._axis, self._split, self._compiled = axis, split, compiled
        self._copies = _CopyLaunches(compiled)
        self._blocks: dict[Any, StridedBlock | None] = {}

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        """Copy every piece."""
        reads = self._read(inputs)
        if self._compiled and (block := self._block(reads, outputs)) is not None:
            block.run([*reads, *outputs])
            return
        whole, pieces = (reads[0], outputs) if self._split else (outputs[0], reads)
        for piece, part in zip(pieces, _parts(whole, pieces, self._axis)):
            if self._split:
                self._copies.copy(part, piece)
            else:
                self._copies.copy(piece, part)

    def _read(self, inputs: Arrays) -> Arrays:
        """The arrays among the inputs; a split has sizes too."""
        return inputs[:1] if self._split else inputs

    def prepare(self, inputs: Arrays, outputs: Arrays) -> None:
        """Queue the compilation of the code for operands with these strides."""
        if self._compiled:
            self._block(self._read(inputs), outputs)

    def native(self, inputs: Arrays, outputs: Arrays) -> FastCall | FastCallSeries | None:
        """For operands with these strides: one loop, or a copy of each piece."""
        if not self._compiled:
            return None
        reads = self._read(inputs)
        if (block := self._block(reads, outputs)) is not None:
            return block.native(len(reads), len(inputs) - len(reads))
        whole, pieces = (reads[0], outputs) if self._split else (outputs[0], reads)
        at, first = (0, len(inputs)) if self._split else (len(inputs), 0)
        parts = list[Part]()
        for k, (piece, place) in enumerate(zip(pieces, _places(pieces, self._axis)), first):
            if piece.size:
                part = Viewed(at, itemgetter(place))
                ends = (part, k) if self._split else (k, part)
                parts.append(Part(copy_of(whole.dtype.name, piece.shape), ends[:1], ends[1:]))
        return SeriesLaunch(parts).native(inputs, outputs)

    def _block(self, reads: Arrays, outputs: Arrays) -> StridedBlock | None:
        key = tuple([a.strides for a in (*reads, *outputs)])
        if key not in self._blocks:
            whole, pieces = (reads[0], outputs) if self._split else (outputs[0], reads)
            self._blocks[key] = pieces_block(whole, pieces, self._axis, self._split)
        return self._blocks[key]


class _VectorLaunch(_JoinSplitLaunch):
    """``launch(inputs, outputs)`` of a vector of numbers."""

    def __init__(self) -> None:
        super().__init__(0, True)

    def _read(self, inputs: Arrays) -> Arrays:
        return [a.reshape(1) for a in inputs]


def _parts(whole: Any, pieces: Sequence[Any], axis: int) -> Iterator[Any]:
    """Views of the pieces' slices of the whole."""
    return (whole[place] for place in _places(pieces, axis))


def _places(pieces: Sequence[Any], axis: int) -> Iterator[tuple[slice, ...]]:
    """Where the pieces are in the whole."""
    before, at = (slice(None),) * axis, 0
    for p in pieces:
        yield (*before, slice(at, at + p.shape[axis]))
        at += p.shape[axis]


class _IncSubtensorLaunch(CpuLaunch):
    """``launch(inputs, outputs)`` of ``IncSubtensor``, which adds to a part or sets it."""

    def __init__(self, op: IncSubtensor, compiled: bool) -> None:
        self._op, self._sets = Subtensor(op.index), op.set_instead_of_inc
        self._part = part_function(op.index, self._op.reference)
        self._compiled, self._copies = compiled, _CopyLaunches(compiled)

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        """Copy ``x`` unless the result shares its memory, then change the part."""
        (x, y, *bounds), (out,) = inputs, outputs
        part = self._part(x, *bounds)  # an index out of range is an error before any write
        if not same_memory(x, out):
            self._copies.copy(x, out)
            part = self._part(out, *bounds)
        (self._copies.copy if self._sets else self._copies.add)(y, part)

    def native(self, inputs: Arrays, outputs: Arrays) -> FastCallSeries | None:
        """For operands with these strides, unless the part depends on numbers."""
        x, (out,) = inputs[0], outputs
        if not self._compiled or not out.size or symbolic_count(self._op.index):
            return None
        written = Viewed(len(inputs), lambda out: np.asarray(self._part(out)))
        shape, dtype = written.view(out).shape, out.dtype.name
        parts = (
            [] if same_memory(x, out) else [Part(copy_of(dtype, out.shape), (0,), (len(inputs),))]
        )
        if prod(shape) and self._sets:
            parts.append(Part(copy_of(dtype, shape), (1,), (written,)))
        elif prod(shape):
            parts.append(
                Part(elementwise_launch(sum_program(dtype), shape), (written, 1), (written,))
            )
        return SeriesLaunch(parts).native(inputs, outputs)


def copy_of(dtype: str, shape: tuple[int, ...]) -> Any:
    """The launch of a copy to an array of this shape, to which its operand broadcasts."""
    return elementwise_launch(complex_copy(dtype), shape)


class ShiftKernel(Kernel[Shift]):
    """``Shift``: a copy of all elements of a line but one, and a 0 at its end."""

    def __init__(self, compiled: bool) -> None:
        self.name, self._compiled = ("llvm.shift" if compiled else "numpy.shift"), compiled
        self.traits = LLVM_ASKS_THREADS if compiled else NUMPY

    def refuses(self, call: Call[Shift]) -> str | None:
        """The compiled kernel refuses small arrays."""
        return copy_refusal(call.outputs) if self._compiled else None

    def bind(self, call: Call[Shift]) -> Launch[Array]:
        """A launch that writes every element once."""
        copies, lead = _CopyLaunches(self._compiled), [slice(None)] * call.op.axis
        early, late = (*lead, slice(None, -1)), (*lead, slice(1, None))
        first, last = (*lead, slice(None, 1)), (*lead, slice(-1, None))
        source, target, empty = (late, early, last) if call.op.reverse else (early, late, first)

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            copies.copy(inputs[0][source], outputs[0][target])
            outputs[0][empty] = 0

        return launch


class RollKernel(Kernel[Roll]):
    """``Roll``: the end of each line and what is before it, joined."""

    name = "llvm.roll"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[Roll]) -> str | None:
        """Refuses small arrays."""
        return copy_refusal(call.outputs)

    def bind(self, call: Call[Roll]) -> Launch[Array]:
        """A launch that writes every element once."""
        return _RollLaunch(call.op.axis)


class _RollLaunch(CpuLaunch):
    """``launch(inputs, outputs)`` of ``Roll``."""

    def __init__(self, axis: int) -> None:
        self._axis, self._blocks = axis, dict[Any, StridedBlock | None]()
        self._join = _JoinSplitLaunch(axis, True)

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        """Copy both parts of each line."""
        x, shift = inputs
        if (block := self._block(x, int(shift), outputs[0])) is not None:
            block.run([x, *outputs])
            return
        first = np.split(x, [self._first(x, int(shift))], self._axis)
        self._join(first[::-1], outputs)

    def native(self, inputs: Arrays, outputs: Arrays) -> FastCall | FastCallSeries | None:
        """For operands with these strides, and a shift that is the same in every run."""
        x, shift = inputs
        if shift is None or not x.size:
            return None
        if (block := self._block(x, int(shift), outputs[0])) is not None:
            return block.native(1, 1)
        before, first, n = (slice(None),) * self._axis, self._first(x, int(shift)), x.shape
        parts = list[Part]()
        for low, high, to in ((first, n[self._axis], 0), (0, first, n[self._axis] - first)):
            if high > low:
                source, target = slice(low, high), slice(to, to + high - low)
                shape = (*n[: self._axis], high - low, *n[self._axis + 1 :])
                ends = [Viewed(at, itemgetter((*before, part)))
                        for at, part in ((0, source), (2, target))]  # fmt: skip
                parts.append(Part(copy_of(x.dtype.name, shape), ends[:1], ends[1:]))
        return SeriesLaunch(parts).native(inputs, outputs)

    def _first(self, x: Any, shift: int) -> int:
        """How many elements of a line come behind the others."""
        n = x.shape[self._axis]
        return int(n - shift % max(n, 1))

    def _block(self, x: Any, shift: int, out: Any) -> StridedBlock | None:
        key = self._first(x, shift), x.strides, out.strides
        if key not in self._blocks:
            if len(self._blocks) > _MAX_SHIFTS:
                self._blocks.clear()
            self._blocks[key] = rolled_block(x, key[0], out, self._axis)
        return self._blocks[key]


def same_memory(a: Any, b: Any) -> bool:
    """Whether two arrays of one shape and dtype are the same elements of memory."""
    return bool(a.strides == b.strides and address(a) == address(b))


# -- views ----------------------------------------------------------------------------------------


class CopyViewKernel(Kernel[_View]):
    """Copies a view where the result must not be one: reordered, reshaped, or an output."""

    name = "llvm.copy"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[_View]) -> str | None:
        """Refuses small results."""
        return copy_refusal(call.outputs)

    def bind(self, call: Call[_View]) -> Launch[Array]:
        """A launch that copies the view, or for a reshape to a view of the result."""
        return _CopyViewLaunch(call.op)


class _CopyViewLaunch(CpuLaunch):
    """``launch(inputs, outputs)``: copies the op's view, for a reshape to a view of the result."""

    def __init__(self, op: _View) -> None:
        self._op, self._copies = op, _CopyLaunches(True)
        self._view: Callable[..., Any] = op.reference
        if isinstance(op, Subtensor):
            self._view = part_function(op.index, op.reference)

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        """Copy every element."""
        self._copies.copy(*self._views(inputs, outputs[0]))

    def _views(self, inputs: Arrays, out: Array) -> tuple[Any, Any]:
        """What is copied, and where: views of the input and of the result, of one shape."""
        x = np.asarray(inputs[0])
        if isinstance(self._op, Copy):
            return x, out
        if isinstance(self._op, Reshape) and out.flags.c_contiguous:
            return x, out.reshape(x.shape)
        # Of an array without dimensions NumPy may give a scalar.
        return np.asarray(self._view(*inputs)), out

    def native(self, inputs: Arrays, outputs: Arrays) -> FastCall | None:
        """For operands with these strides, unless the view depends on numbers."""
        x, (out,) = inputs[0], outputs
        if not out.size or not has_code(out.dtype.name):
            return None
        if isinstance(self._op, Subtensor) and symbolic_count(self._op.index):
            return None
        source, target = self._views(inputs, out)
        skipped = address(source) - address(x)
        if address(target) != address(out):
            return None
        copy = elementwise_launch(complex_copy(out.dtype.name), target.shape)
        found: FastCall = copy.native([source], [target])
        at = (found.at[0], *[-1] * (len(inputs) - 1), found.at[1])
        return replace(found, at=at, skipped={0: skipped})


KERNELS: tuple[Row, ...] = (
    ((Alloc,), (FillKernel(True), FillKernel(False))),
    ((Join, Split, IncSubtensor), (CopyPiecesKernel(True), CopyPiecesKernel(False))),
    ((MakeVector,), (VectorKernel(),)),
    ((DimShuffle, Reshape, Subtensor, Copy, Diagonal), (CopyViewKernel(),)),
    ((Shift,), (ShiftKernel(True), ShiftKernel(False))),
    ((Roll,), (RollKernel(),)),
)
