"""Elementwise ops, single and fused, by compiled loops (:mod:`symdnn.cpu.ir.elementwise_ir`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.elementwise.moves import moves_block
from symdnn.cpu.elementwise.tiles_ir import tile_words, tiled, tiles_ir
from symdnn.cpu.ir.elementwise_ir import PIXELS, ROWS, SAME, SPREAD, elementwise_ir
from symdnn.cpu.ir.loops_ir import MIN_COST_TO_INTERLEAVE, LoopOperand, inner
from symdnn.cpu.ir.scalar_ir import VALUES, has_code, refusal
from symdnn.cpu.launch.fastcall import FastCall
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.strided_launch import StridedBlock, StridedLaunch
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.reference.programs import ProgramKernel
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Row
from symdnn.graph.op import Op
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.typing import Arrays
from symdnn.graph.values.strides import merged
from symdnn.ops.core.scalar import ScalarProgram, identity_program
from symdnn.ops.elementwise.complex_meaning import (
    complex_copy,
    complex_meaning,
    part_dtypes,
)
from symdnn.ops.elementwise.complexes import Real
from symdnn.ops.elementwise.scalar_meaning import meaning
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.fused import FusedComplex, FusedElemwise

#: With less work in all, counted in additions, NumPy is faster than compiling.
_MIN_ADDITIONS_TO_COMPILE = 1 << 14
#: What a choice costs NumPy, in additions: it has a branch for each element.
_CHOICE_IN_NUMPY = 10
#: Rows of up to this many elements have a loop of constant length.
_MAX_SHORT = 32
#: So have rows of copies of up to this many bytes: LLVM makes a few loads and stores of them.
_MAX_COPIED_BYTES = 512
#: Elements of rows, at least and at most, that are one row, though some operands are the same in
#: each; those where the program is long. An iteration of tiles has fewer. Bytes of such operands.
_SPREAD, _SPREAD_IF_LONG, _WIDEST_SPREAD = (5, 32), (5, 63), 8
#: The most elements of a row that is one iteration, and the fewest such rows.
_MOST_IN_PIXEL, _LEAST_PIXELS = 4, 16
#: Bytes of a row that is a vector without others.
_BYTES_OF_A_VECTOR = 32
#: Elements of rows with gaps between them that are one row where the program is long, at most.
_MOST_IN_GAPS = 15
#: Work for which waking up another thread pays, in additions.
_ADDITIONS_PER_THREAD = 1 << 16

_Op = Elemwise | FusedElemwise | FusedComplex


class ElementwiseKernel(Kernel[_Op]):
    """An elementwise op by its scalar program, compiled by LLVM."""

    name = "llvm.elementwise"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[_Op]) -> str | None:
        """Needs a scalar program that can be compiled, and enough work."""
        types = (*call.inputs, *call.outputs)
        if not all(isinstance(t, TensorType) and has_code(t.dtype) for t in types):
            return "there is no code for these dtypes"
        program = self.program(call)
        if program is None:
            return f"{call.op} has no scalar program for these dtypes"
        if program.output_dtypes != tuple(d for t in call.outputs for d in part_dtypes(t.dtype)):
            return "flags that dtypes depend on have changed since the node was made"
        mode = str(config.cpu.compile)
        if mode == "never":
            return "cpu.compile=never"
        if mode == "auto" and all(t.is_static for t in types):
            choice = isinstance(call.op, Elemwise) and call.op.chooses
            each = _CHOICE_IN_NUMPY if choice else max(program.cost, 1)
            work = prod(call.outputs[0].shape) * each
            if work < _MIN_ADDITIONS_TO_COMPILE:
                return "there is too little work to compile for"
        return refusal(program) or jit.problem() or threads.problem() or None

    def fuses(self, op: Op) -> bool:
        """Whether ``opt`` may fuse elementwise ops into this one."""
        compiles = str(config.cpu.compile) != "never" and jit.installed()
        if not compiles or not isinstance(op, FusedElemwise | FusedComplex):
            return False
        return refusal(op.program) is None

    def program(self, call: Call[_Op]) -> ScalarProgram | None:
        """The op's scalar program for the operands' dtypes, or of the parts of complex ones."""
        if isinstance(call.op, FusedElemwise | FusedComplex):
            return call.op.program
        dtypes = tuple(t.dtype for t in call.inputs)
        return meaning(call.op, dtypes) or complex_meaning(call.op, dtypes)

    def writes_updates(self, call: Call[_Op]) -> bool:
        """Whether it can write a shared variable: always, since a compiled loop cannot fail."""
        return True

    def bind(self, call: Call[_Op]) -> Any:
        """A launch that compiles a loop for each set of strides when it first occurs."""
        program, shape = self.program(call), tuple(call.outputs[0].shape)
        assert program is not None
        if isinstance(call.op, Real):
            return StridedLaunch(partial(_first_parts, shape))
        return elementwise_launch(program, shape)


def _first_parts(shape: tuple[int, ...], inputs: Arrays, outputs: Arrays) -> StridedBlock:
    """The block that copies real parts: every second number."""
    own = identity_program(outputs[0].dtype.name)
    return _block(own, shape, [inputs[0].real], outputs)


def elementwise_launch(program: ScalarProgram, shape: tuple[int, ...]) -> Any:
    """A launch that applies a program to every element, for results of this shape."""
    return StridedLaunch(partial(_block, program, shape))


class PermutedInputs(CpuLaunch):
    """An :func:`elementwise_launch` whose input ``k`` is input ``order[k]`` of the call."""

    def __init__(self, launch: Any, order: Sequence[int]) -> None:
        self._launch, self._order = launch, tuple(order)

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        """Compute every element."""
        self._launch([inputs[k] for k in self._order], outputs)

    def prepare(self, inputs: Arrays, outputs: Arrays) -> None:
        """Queue the compilation of the loop for operands with these strides."""
        self._launch.prepare([inputs[k] for k in self._order], outputs)

    def native(self, inputs: Arrays, outputs: Arrays) -> FastCall:
        """For operands with these strides; inputs that are not read get no word of the block."""
        found: FastCall = self._launch.native([inputs[k] for k in self._order], outputs)
        at = [-1] * len(inputs)
        for place, k in zip(found.at, self._order):
            at[k] = place
        return replace(found, at=(*at, *found.at[len(self._order) :]))


def _block(
    program: ScalarProgram,
    shape: tuple[int, ...],
    inputs: Arrays,
    outputs: Arrays,
) -> StridedBlock:
    """The compiled loop and its block of words, for operands with these strides.

    The innermost axis is the one along which the first result is dense.
    """
    copied = not program.body and [a.dtype for a in (*inputs, *outputs)] == [np.complex64] * 2
    if copied and program == complex_copy("complex64"):
        program = identity_program("float64")  # both parts at once: as many bytes
        inputs, outputs = ([a.view("float64") for a in own] for own in (inputs, outputs))
    order = sorted(range(len(shape)), key=lambda d: -abs(outputs[0].strides[d]))
    read = [np.broadcast_to(a, shape).transpose(order) for a in inputs]
    arrays = [*read, *(y.transpose(order) for y in outputs)]
    sizes, steps = merged([shape[d] for d in order], [a.strides for a in arrays])
    count = threads.threads(prod(sizes) * max(program.cost, 2), _ADDITIONS_PER_THREAD)
    if (repeated := _repeated(program, sizes, steps, [a.itemsize for a in arrays])) is not None:
        return repeated
    operands = [
        LoopOperand(a.dtype.name, inner(s[-1], a.itemsize, i >= len(read)))
        for i, (a, s) in enumerate(zip(arrays, steps))
    ]
    if (pixels := _pixels(program, sizes, steps, operands, len(outputs))) is not None:
        run = threads.kernel(
            elementwise_ir, program, (0,) * (len(sizes) - 1), pixels[: len(read)],
            pixels[len(read) :], sizes[-1],
        )  # fmt: skip
        return _launched(run, count, sizes[:-1], [(*s[:-2], s[-2]) for s in steps])
    spread = _spread(program, sizes, steps, operands, len(outputs))
    if spread is not None:
        sizes, steps, operands = spread
    elif tile := tiled(program, sizes, [(a.dtype.name, s) for a, s in zip(arrays, steps)]):
        plan, words = tile
        names = tile_words(plan)
        values = [count if n == "threads" else words.get(n, 0) for n in names]
        run = threads.kernel(tiles_ir, plan)
        return StridedBlock(run, values, [names.index(n) for n, _ in plan.named])
    reads, writes = tuple(operands[: len(read)]), tuple(operands[len(read) :])
    rows = prod(sizes[:-1])
    dense = not program.body and {o.inner for o in operands} == {"dense"} and rows > 1
    if dense and sizes[-1] * arrays[0].itemsize <= _MAX_COPIED_BYTES:
        constant = (*_constant(sizes, rows)[:-1], sizes[-1])
    else:
        constant = _constant(sizes, rows)
    run = threads.kernel(elementwise_ir, program, constant, reads, writes)
    return _launched(run, count, sizes, steps)


def _launched(
    run: Any, count: int, sizes: Sequence[int], steps: Sequence[Sequence[int]]
) -> StridedBlock:
    """The block of a kernel of :func:`elementwise_ir`."""
    values = [count, prod(sizes[:-1]), sizes[-1], *sizes[1:-1]]
    at = []
    for step in steps:
        at.append(len(values))
        values += [0, step[-1], *step[:-1]]
    return StridedBlock(run, values, at)


def _pixels(
    program: ScalarProgram, sizes: Sequence[int], steps: Sequence[Sequence[int]],
    operands: Sequence[LoopOperand], writes: int,
) -> tuple[LoopOperand, ...] | None:  # fmt: skip
    """Operands of a loop over rows of a few elements, such as colours: an iteration has a row."""
    if len(sizes) < 2 or not 1 < sizes[-1] <= _MOST_IN_PIXEL or sizes[-2] < _LEAST_PIXELS:
        return None
    n, found = sizes[-1], list[LoopOperand]()
    for k, (o, s) in enumerate(zip(operands, steps, strict=True)):
        size = numpy_dtype(o.dtype).itemsize
        row, own = s[-2] // size, s[-1] // size
        if s[-2] % size or s[-1] % size or o.dtype not in VALUES:
            return None
        if k >= len(operands) - writes:
            kind = f"{PIXELS}{n} 1" if (row, own) == (n, 1) else ""
        elif own == 0:
            kind = {0: "one", 1: "dense"}.get(row, "")
        elif row == 0:
            kind = f"{SAME}{own}"
        else:
            near = n <= abs(row) <= _MOST_IN_PIXEL and abs(own) == 1
            kind = f"{PIXELS}{row} {own}" if near else ""
        if not kind:
            return None
        found.append(LoopOperand(o.dtype, kind))
    if program.cost >= MIN_COST_TO_INTERLEAVE:
        return tuple(found)
    # A row of 32 bytes is a vector of its own, unless one number of each row has to be repeated.
    # Where rows lie one behind the other, tiles repeat it.
    spread = any(o.inner == "dense" for o in found)
    whole = ("one", "dense", f"{PIXELS}{n} 1")
    turned = any(o.inner not in whole for o in found)
    wide = n * max(o.bits for o in operands) >= 8 * _BYTES_OF_A_VECTOR
    return tuple(found) if turned and (spread or not wide) else None


def _spread(
    program: ScalarProgram, sizes: tuple[int, ...], steps: list[tuple[int, ...]],
    operands: list[LoopOperand], writes: int = 1,
) -> tuple[tuple[int, ...], list[tuple[int, ...]], list[LoopOperand]] | None:  # fmt: skip
    """Sizes, strides and operands with short rows as one, where some operands are the same in each
    row, whose numbers are then repeated, or have gaps between rows; None where rows stay."""
    n, long = sizes[-1], program.cost >= MIN_COST_TO_INTERLEAVE
    least, most = _SPREAD_IF_LONG if long else _SPREAD
    if len(sizes) < 2 or n > most:
        return None
    kinds, found = [], []
    for k, (o, s) in enumerate(zip(operands, steps, strict=True)):
        whole = o.inner in ("one", "dense") and s[-2] == n * s[-1]
        once = o.inner == "one" and s[-2] != 0 and n >= least
        gaps = long and o.inner == "dense" and n <= _MOST_IN_GAPS and k < len(operands) - writes
        if not whole:
            if not (once or gaps) or numpy_dtype(o.dtype).itemsize > _WIDEST_SPREAD:
                return None
            o = LoopOperand(o.dtype, f"{SPREAD if once else ROWS}{n}")
        kinds.append(o)
        found.append((*s[:-2], s[-1] if whole else s[-2]))
    return (*sizes[:-2], sizes[-2] * n), found, kinds


def _repeated(
    program: ScalarProgram, sizes: Sequence[int], steps: Sequence[Sequence[int]],
    itemsizes: Sequence[int],
) -> StridedBlock | None:  # fmt: skip
    """The block of a copy whose short rows come in small groups, which are written together."""
    if program.body or len(steps) != 2 or len(sizes) < 3 or sizes[-1] > _MAX_SHORT:
        return None
    size, (source, target) = itemsizes[0], steps
    if source[-1] != size or target[-1] != size:
        return None
    pieces = [
        (0, 1, sizes[-1], i * source[-2], i * target[-2], False) for i in range(sizes[-2])
    ]  # fmt: skip
    return moves_block(sizes[:-2], [s[:-2] for s in steps], size, pieces)


def _constant(sizes: Sequence[int], rows: int) -> tuple[int, ...]:
    """The sizes that are part of the code, others as 0: small ones, where rows are short."""
    if rows == 1 or sizes[-1] > _MAX_SHORT:
        return (0,) * len(sizes)
    return tuple(n if n <= _MAX_SHORT else 0 for n in sizes)


KERNELS: tuple[Row, ...] = (
    ((Elemwise,), (ElementwiseKernel(),)),
    ((FusedElemwise,), (ElementwiseKernel(), ProgramKernel())),
    ((FusedComplex,), (ElementwiseKernel(),)),
)
