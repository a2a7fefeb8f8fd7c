"""Copies: fill, join, split, pad, shift, change a part of an array, views.

NumPy's references write into memory of their own. These kernels write into the plan's buffers, and
large copies are compiled and use several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.elementwise.elementwise import PermutedInputs, elementwise_launch
from symdnn.cpu.elementwise.moves import Piece, moves_block, pieces_block
from symdnn.cpu.ir.scalar_ir import VALUES
from symdnn.cpu.launch.contiguous_launch import ContiguousLaunch, compile_refusal
from symdnn.cpu.launch.fastcall import FastCall
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.scratch import address
from symdnn.cpu.launch.strided_launch import StridedBlock
from symdnn.cpu.launch.traits import LLVM, LLVM_ASKS_THREADS, NUMPY
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.typing import Array
from symdnn.ops.array.cumulative import Shift
from symdnn.ops.array.index import IncSubtensor, Subtensor
from symdnn.ops.array.join import Join, Roll, Split
from symdnn.ops.array.pad import Pad
from symdnn.ops.array.slices import symbolic_count
from symdnn.ops.array.view import Copy
from symdnn.ops.core.scalar import Builder, ScalarProgram, identity_program
from symdnn.ops.core.shape import Alloc, DimShuffle, Reshape

__all__ = [
    "CopyPiecesKernel",
    "CopyViewKernel",
    "CopyingLaunch",
    "FillKernel",
    "KERNELS",
    "PadKernel",
    "RollKernel",
    "ShiftKernel",
]

#: With fewer elements NumPy's copies are as fast.
_MIN_ELEMENTS_TO_COMPILE = 1 << 14
#: Shifts of a roll whose copies are kept.
_MAX_SHIFTS = 16


def _refusal(types: Sequence[Any], min_work: int = _MIN_ELEMENTS_TO_COMPILE) -> str | None:
    """Why no code is compiled; the work is the number of elements of the first type."""
    if any(t.dtype not in VALUES for t in types):
        return "there is no code for the dtype"
    return compile_refusal(types[:1], lambda: prod(types[0].shape), min_work)


class FillKernel(Kernel):
    """``Alloc``: one pass over the result, by NumPy or, for large results, by a compiled loop."""

    def __init__(self, compiled: bool) -> None:
        self.name, self._compiled = ("llvm.fill" if compiled else "numpy.fill"), compiled
        self.traits = LLVM_ASKS_THREADS if compiled else NUMPY

    def refuses(self, call: Call) -> str | None:
        """The compiled kernel refuses small results."""
        return _refusal(call.outputs) if self._compiled else None

    def bind(self, call: Call) -> Launch[Array]:
        """A launch that copies the broadcast input."""
        if not self._compiled:
            return _fill
        y = call.outputs[0]
        return PermutedInputs(elementwise_launch(identity_program(y.dtype), tuple(y.shape)), (0,))


def _fill(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    np.copyto(outputs[0], inputs[0])


# -- parts ----------------------------------------------------------------------------------------


class CopyPiecesKernel(Kernel[Join | Split | IncSubtensor]):
    """``Join``, ``Split`` and ``IncSubtensor``: pieces of arrays, each copied once."""

    def __init__(self, compiled: bool) -> None:
        self.name, self._compiled = ("llvm.move" if compiled else "numpy.move"), compiled
        self.traits = LLVM if compiled else NUMPY

    def refuses(self, call: Call[Join | Split | IncSubtensor]) -> str | None:
        """The compiled kernel refuses small arrays."""
        if not self._compiled:
            return None
        whole = call.inputs if isinstance(call.op, Split) else call.outputs
        return _refusal(whole[:1])

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
        if little or not self._compiled or target.dtype.name not in VALUES:
            np.copyto(target, source)
        else:
            run = self._launch(identity_program, source, target)
            run([source], [target])

    def add(self, source: Array, target: Array) -> None:
        """``target += source``"""
        if self._compiled and target.size:
            run = self._launch(_sum, source, target)
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
def _sum(dtype: str) -> ScalarProgram:
    b = Builder([dtype, dtype])
    if dtype not in ("float16", "bfloat16"):
        return b.program([b.input(0) + b.input(1)])
    wide = b.cast(b.input(0), "float32") + b.cast(b.input(1), "float32")
    return b.program([b.cast(wide, dtype)])


class _JoinSplitLaunch(CpuLaunch):
    """``launch(inputs, outputs)`` of a join or a split."""

    def __init__(self, axis: int, compiled: bool, split: bool = False) -> None:
        self._axis, self._split, self._compiled = axis, split, compiled
        self._copies = _CopyLaunches(compiled)
        self._blocks: dict[Any, StridedBlock | None] = {}

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
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

    def _read(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """The arrays among the inputs; a split has sizes too."""
        return inputs[:1] if self._split else inputs

    def prepare(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Queue the compilation of the code for operands with these strides."""
        if self._compiled:
            self._block(self._read(inputs), outputs)

    def native(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> FastCall | None:
        """For operands with these strides, if one loop moves all pieces."""
        reads = self._read(inputs)
        block = self._block(reads, outputs) if self._compiled else None
        return None if block is None else block.native(len(reads), len(inputs) - len(reads))

    def _block(self, reads: Sequence[Array], outputs: Sequence[Array]) -> StridedBlock | None:
        key = tuple([a.strides for a in (*reads, *outputs)])
        if key not in self._blocks:
            whole, pieces = (reads[0], outputs) if self._split else (outputs[0], reads)
            self._blocks[key] = pieces_block(whole, pieces, self._axis, self._split)
        return self._blocks[key]


def _parts(whole: Any, pieces: Sequence[Any], axis: int) -> Iterator[Any]:
    """Views of the pieces' slices of the whole."""
    before, at = (slice(None),) * axis, 0
    for p in pieces:
        yield whole[(*before, slice(at, at + p.shape[axis]))]
        at += p.shape[axis]


class _IncSubtensorLaunch:
    """``launch(inputs, outputs)`` of ``IncSubtensor``, which adds to a part or sets it."""

    def __init__(self, op: IncSubtensor, compiled: bool) -> None:
        self._part, self._sets = Subtensor(op.index), op.set_instead_of_inc
        self._copies = _CopyLaunches(compiled)

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Copy ``x`` unless the result shares its memory, then change the part."""
        (x, y, *bounds), (out,) = inputs, outputs
        self._part.reference(x, *bounds)  # an index out of range is an error before any write
        if not same_memory(x, out):
            self._copies.copy(x, out)
        part = self._part.reference(out, *bounds)
        (self._copies.copy if self._sets else self._copies.add)(y, part)


class PadKernel(Kernel[Pad]):
    """``Pad``: strips of the value around a copy."""

    name = "llvm.pad"
    traits = LLVM

    def refuses(self, call: Call[Pad]) -> str | None:
        """Refuses small results."""
        return _refusal(call.outputs)

    def bind(self, call: Call[Pad]) -> Launch[Array]:
        """A launch that writes every element once."""
        return _PadLaunch(call.op)


class _PadLaunch:
    """``launch(inputs, outputs)`` of ``Pad``."""

    def __init__(self, op: Pad) -> None:
        self._op, self._copies = op, _CopyLaunches(True)
        self._rows: dict[Any, StridedBlock | None] = {}

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Fill what is before and after along each dimension; copy what is between."""
        (x, value, *widths), (inside,) = inputs, outputs
        for d, n in enumerate(x.shape):
            low = int(widths[2 * d])
            if d == x.ndim - 1 and self._pad_rows(x, value, low, inside):
                return
            before, after = (slice(None),) * d, slice(low + n, None)
            for part in (inside[(*before, slice(low))], inside[(*before, after)]):
                self._copies.copy(value, part)
            inside = inside[(*before, slice(low, low + n))]
        self._copies.copy(x, inside)

    def _pad_rows(self, x: Any, value: Any, low: int, out: Any) -> bool:
        """Write whole rows in one loop; whether that can be done."""
        key = low, x.strides, out.strides
        if key not in self._rows:
            n, size = x.shape[-1], x.itemsize
            high = out.shape[-1] - low - n
            pieces: list[Piece] = [
                (1, 2, low, 0, 0, True), (0, 2, n, 0, low * size, False),
                (1, 2, high, 0, (low + n) * size, True),
            ]  # fmt: skip
            steps = [x.strides[:-1], (0,) * (x.ndim - 1), out.strides[:-1]]
            dense = all(a.shape[-1] < 2 or a.strides[-1] == size for a in (x, out))
            made = moves_block(x.shape[:-1], steps, size, pieces) if dense else None
            self._rows[key] = made
        block = self._rows[key]
        if block is not None:
            block.run([x, np.asarray(value), out])
        return block is not None


class ShiftKernel(Kernel[Shift]):
    """``Shift``: a copy of all elements of a line but one, and a 0 at its end."""

    def __init__(self, compiled: bool) -> None:
        self.name, self._compiled = ("llvm.shift" if compiled else "numpy.shift"), compiled
        self.traits = LLVM if compiled else NUMPY

    def refuses(self, call: Call[Shift]) -> str | None:
        """The compiled kernel refuses small arrays."""
        return _refusal(call.outputs) if self._compiled else None

    def bind(self, call: Call[Shift]) -> Launch[Array]:
        """A launch that writes every element once."""
        copies, lead = _CopyLaunches(self._compiled), [slice(None)] * call.op.axis
        early, late = (*lead, slice(None, -1)), (*lead, slice(1, None))
        first, last = (*lead, slice(None, 1)), (*lead, slice(-1, None))
        source, target, empty = (late, early, last) if call.op.reverse else (early, late, first)

        def launch(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            copies.copy(inputs[0][source], outputs[0][target])
            outputs[0][empty] = 0

        return launch


class RollKernel(Kernel[Roll]):
    """``Roll``: the end of each line and what is before it, joined."""

    name = "llvm.roll"
    traits = LLVM

    def refuses(self, call: Call[Roll]) -> str | None:
        """Refuses small arrays."""
        return _refusal(call.outputs)

    def bind(self, call: Call[Roll]) -> Launch[Array]:
        """A launch that writes every element once."""
        before = (slice(None),) * call.op.axis
        joins: dict[int, _JoinSplitLaunch] = {}

        def launch(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            x, shift = inputs
            n = x.shape[call.op.axis]
            k = n - int(shift) % max(n, 1)
            if k not in joins:
                if len(joins) > _MAX_SHIFTS:
                    joins.clear()
                joins[k] = _JoinSplitLaunch(call.op.axis, True)
            joins[k]([x[(*before, slice(k, None))], x[(*before, slice(k))]], outputs)

        return launch


def same_memory(a: Any, b: Any) -> bool:
    """Whether two arrays of one shape and dtype are the same elements of memory."""
    return bool(a.strides == b.strides and address(a) == address(b))


# -- views ----------------------------------------------------------------------------------------


class CopyViewKernel(Kernel[DimShuffle | Reshape | Subtensor | Copy]):
    """Copies a view where the result must not be one: reordered, reshaped, or an output."""

    name = "llvm.copy"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[DimShuffle | Reshape | Subtensor | Copy]) -> str | None:
        """Refuses small results."""
        return _refusal(call.outputs)

    def bind(self, call: Call[DimShuffle | Reshape | Subtensor | Copy]) -> Launch[Array]:
        """A launch that copies the view, or for a reshape to a view of the result."""
        return _CopyViewLaunch(call.op)


class _CopyViewLaunch(CpuLaunch):
    """``launch(inputs, outputs)``: copies the op's view, for a reshape to a view of the result."""

    def __init__(self, op: DimShuffle | Reshape | Subtensor | Copy) -> None:
        self._op, self._copies = op, _CopyLaunches(True)

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Copy every element."""
        self._copies.copy(*self._views(inputs, outputs[0]))

    def _views(self, inputs: Sequence[Array], out: Array) -> tuple[Any, Any]:
        """What is copied, and where: views of the input and of the result, of one shape."""
        x = np.asarray(inputs[0])
        if isinstance(self._op, Copy):
            return x, out
        if isinstance(self._op, Reshape) and out.flags.c_contiguous:
            return x, out.reshape(x.shape)
        # Of an array without dimensions NumPy may give a scalar.
        return np.asarray(self._op.reference(*inputs)), out

    def native(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> FastCall | None:
        """For operands with these strides, unless the view depends on numbers."""
        x, (out,) = inputs[0], outputs
        if not out.size or out.dtype.name not in VALUES:
            return None
        if isinstance(self._op, Subtensor) and symbolic_count(self._op.index):
            return None
        source, target = self._views(inputs, out)
        skipped = address(source) - address(x)
        if address(target) != address(out):
            return None
        copy = elementwise_launch(identity_program(out.dtype.name), target.shape)
        found: FastCall = copy.native([source], [target])
        at = (found.at[0], *[-1] * (len(inputs) - 1), found.at[1])
        return replace(found, at=at, skipped={0: skipped})


KERNELS: tuple[Row, ...] = (
    ((Alloc,), (FillKernel(True), FillKernel(False))),
    ((Join, Split, IncSubtensor), (CopyPiecesKernel(True), CopyPiecesKernel(False))),
    ((DimShuffle, Reshape, Subtensor, Copy), (CopyViewKernel(),)),
    ((Pad,), (PadKernel(),)),
    ((Shift,), (ShiftKernel(True), ShiftKernel(False))),
    ((Roll,), (RollKernel(),)),
)
