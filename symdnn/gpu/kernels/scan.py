"""Running sums, products and extremes, shifts, linear recurrences and filters along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import isqrt, prod
from typing import Any

from symdnn.gpu.codegen.cuda_source import CTYPES, scalar_function
from symdnn.gpu.codegen.device_source import specialised, text_of
from symdnn.gpu.codegen.launches import (
    WORKSPACE,
    CudaKernel,
    KernelLaunch,
    Pointer,
    View,
    Views,
    blocks_for,
)
from symdnn.gpu.codegen.monoid_source import monoid_struct
from symdnn.gpu.kernels.copy import copies, fill
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import TensorType
from symdnn.graph.values.strides import merged
from symdnn.ops.array.cumulative import Shift
from symdnn.ops.array.filters import LinearFilter
from symdnn.ops.nest.complex_folds import whole_scan_fold
from symdnn.ops.nest.nest import Fold
from symdnn.ops.nest.of_ops import CUMULATIVE, Cumulative, scan_fold

_THREADS = 256
#: Bytes of an access; elements of a thread in a tile, by whether they come in vectors.
_ACCESS_BYTES, _THREAD_ELEMENTS, _THREAD_SCALARS = 16, 16, 8
#: Along the lines of a block: threads with vectors of lines, and with a line each.
_VECTOR_LANES, _SCALAR_LANES = 8, 32
#: A thread's neighbours along the axis where lines are neighbours in memory.
_DEEP = 4
#: Shorter lines are not worth a block each. Blocks that keep a large device busy, and those that
#: have several lots of short lines.
_SHORT_LINE, _TARGET_BLOCKS, _MANY_BLOCKS = 256, 528, 2112
#: Elements of an operand that is worth a kernel of its own to turn it.
_LEAST_TURNED = 1 << 16
#: Tiles of a chunk, at least; the largest struct of a fold.
_MIN_CHUNK_TILES, _MAX_FOLD_BYTES = 2, 32
#: Filters: the most coefficients in registers; threads of a block, few so that few lines have many
#: blocks; lines that need no chunks, and the least elements of a chunk.
_MAX_COEFFICIENTS, _FILTER_THREADS, _ENOUGH_LINES, _MIN_FILTER_PART = 12, 64, 8192, 64


def lines_of(views: Views, axis: int) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Sizes of the dimensions other than ``axis`` and each view's strides of them, merged."""
    others = [d for d in range(len(views[0].shape)) if d != axis]
    sizes = [views[0].shape[d] for d in others]
    return merged(sizes, [[v.steps[d] for d in others] for v in views])


def count_type(views: Views) -> str:
    """The C type of an element's index."""
    return "u32" if max(v.size for v in views) < 2**31 else "u64"


@dataclass(frozen=True)
class _Form:
    """How a scan runs: along ``rows`` of neighbours or across lines, ``vec`` elements an access.

    ``lines`` of a block, elements of a ``tile`` along the axis. ``loose`` rows begin anywhere in
    memory, alike in all operands. A ``group`` of threads, where it is not 0, has a short row.
    """

    rows: bool
    vec: int
    threads: int
    deep: int
    lanes: int
    loose: bool = False
    group: int = 0

    @property
    def lines(self) -> int:
        """Lines of a block."""
        if self.group:
            return self.threads // self.group
        return 1 if self.rows else self.lanes * self.vec

    @property
    def tile(self) -> int:
        """Elements of each line that a block has at a time."""
        threads = self.threads if self.rows else self.threads // self.lanes
        return threads * self.deep * (self.vec if self.rows else 1)

    def blocks(self, lines: int) -> int:
        """Blocks for so many whole lines."""
        blocks = -(-lines // self.lines)
        return min(blocks, _MANY_BLOCKS) if self.group else blocks

    def part(self, lines: int, length: int) -> int:
        """The length of a chunk: whole tiles, or all of a line."""
        wanted = _TARGET_BLOCKS // max(self.blocks(lines), 1)
        chunks = min(wanted, length // (_MIN_CHUNK_TILES * self.tile))
        if self.group or chunks < 2:
            return max(length, 1)
        return -(-length // (chunks * self.tile)) * self.tile


def _form(axis: int, views: Views, sizes: Sequence[int], lines: Sequence[Sequence[int]]) -> _Form:
    """The form for operands whose merged steps over other axes are ``lines``."""
    length = views[0].shape[axis]
    along = {v.steps[axis] for v in views}
    several = [n > 1 for n in sizes]
    vec = max(1, _ACCESS_BYTES // max(v.itemsize for v in views))
    across = all(s[-1] == 1 for s in lines) and sizes[-1] % vec == 0
    apart = [v.steps[axis] for v in views if length > 1]
    apart += [s for own in lines for s, some in zip(own[:-1], several) if some]
    if across and _in_vectors(views, vec, apart):
        return _Form(False, vec, _THREADS, _DEEP, _VECTOR_LANES)
    near = along in ({1}, {-1})
    many = abs(next(iter(along))) != 1 and prod(sizes) >= _SCALAR_LANES
    if many or (length < _SHORT_LINE and not near):
        return _Form(False, 1, _THREADS, _DEEP, _SCALAR_LANES)
    apart = [s for own in lines for s, some in zip(own, several) if some]
    first = [v[(*[slice(None)] * axis, slice(None, None, -1))] if -1 in along else v for v in views]
    loose = near and not (length % vec == 0 and _in_vectors(first, vec, apart))
    if length < _SHORT_LINE:
        vec = 1 if loose else vec
        group = min(1 << (-(-length // vec) - 1).bit_length(), 32)
        return _Form(True, vec, _THREADS, -(-length // (group * vec)), 32, False, group)
    alike = len({tuple(s % vec for s in own) for own in lines}) == 1
    if not near or (loose and not (alike and _in_vectors(first, vec, ()))):
        vec, loose = 1, False
    deep = max(1, _THREAD_ELEMENTS // vec) if vec > 1 else _THREAD_SCALARS
    threads = _THREADS
    while threads > 32 and threads * deep * vec >= 2 * length:
        threads //= 2
    return _Form(True, vec, threads, min(deep, 4) if vec > 1 else deep, 32, loose)


def _in_vectors(views: Views, vec: int, steps: Sequence[int]) -> bool:
    """Whether vectors are aligned, wherever these steps lead."""
    aligned = all(v.aligned_to(vec * v.itemsize) for v in views)
    return vec > 1 and aligned and all(s % vec == 0 for s in steps)


class ScanKernel(CudaKernel[Cumulative]):
    """Cumulative ops: nests whose states are all results; a few blocks for each long line."""

    name = "cuda.scan"
    dtypes = frozenset(CTYPES)

    def refuses(self, call: Call[Cumulative]) -> str | None:
        """Extremes of complex numbers, which have no order."""
        if reason := super().refuses(call):
            return reason
        return None if _fold(call.op, call.inputs[0].dtype) else "complex numbers have no order"

    def workspace_bytes(self, call: Call[Cumulative]) -> int:
        """The totals of the chunks of each line, in any form."""
        shape = call.inputs[0].shape
        length = shape[call.op.axis]
        lines = prod(shape) // max(length, 1)
        vectors = ((1, _THREAD_SCALARS), (2, 4), (4, 4), (8, 2), (16, 1))
        forms = [_Form(False, 1, _THREADS, _DEEP, _SCALAR_LANES)]
        forms += [_Form(False, vec, _THREADS, _DEEP, _VECTOR_LANES) for vec, _ in vectors]
        forms += [_Form(True, vec, _THREADS, deep, 32) for vec, deep in vectors]
        chunks = max(-(-length // f.part(lines, length)) for f in forms)
        return _MAX_FOLD_BYTES * lines * chunks if chunks > 1 else 0

    def launches(
        self,
        call: Call[Cumulative],
        inputs: Sequence[Any],
        outputs: Views,
    ) -> Sequence[KernelLaunch]:
        """One kernel, or three for lines of several chunks."""
        op = call.op
        if outputs[0].size == 0:
            return []
        operands, before = [*inputs, *outputs], list[KernelLaunch]()
        if len(inputs) == 1 and _lies_across(inputs[0], outputs[0], op.axis):
            before, operands = copies(inputs[0], outputs[0]), [outputs[0], outputs[0]]
        if op.reverse:
            backwards = (*[slice(None)] * op.axis, slice(None, None, -1))
            operands = [v[backwards] for v in operands]
        x0, x1, y = operands[0], operands[-2], operands[-1]
        length = y.shape[op.axis]
        sizes, steps = lines_of((x0, x1, y), op.axis)
        lines = prod(sizes)
        form = _form(op.axis, (x0, x1, y), sizes, steps)
        part = form.part(lines, length)
        chunks = -(-length // part)
        parameters = (
            x0.pointer, x1.pointer, y.pointer, Pointer(WORKSPACE), lines, length, chunks, part,
            x0.steps[op.axis], x1.steps[op.axis], y.steps[op.axis],
            *sizes, *steps[0], *steps[1], *steps[2],
        )  # fmt: skip
        fold = _fold(op, x0.dtype)
        assert fold is not None
        count = count_type(operands)
        source = _source(fold, x0.dtype, y.dtype, form, len(sizes), y.steps[op.axis] < 0, count)

        def launch(name: str, grid: int, block: int) -> KernelLaunch:
            return KernelLaunch(source, name, (grid,), (block,), parameters)

        results = launch("results", form.blocks(lines) * chunks, form.threads)
        if chunks == 1:
            return [*before, results]
        return [
            *before,
            launch("totals", form.blocks(lines) * chunks, form.threads),
            launch("starts", blocks_for(lines, _THREADS), _THREADS),
            results,
        ]


def _lies_across(x: View, y: View, axis: int) -> bool:
    """Whether neighbours along the axis are neighbours in one of two arrays alone, so that a scan
    would read or write single elements: the operand is turned first, into the result's memory."""
    steps = [[abs(s) for s in v.steps] for v in (x, y)]
    across = (steps[0][axis] == 1) != (steps[1][axis] == 1) and all(1 in s for s in steps)
    return across and x.dtype == y.dtype and x.size >= _LEAST_TURNED


def _fold(op: Cumulative, dtype: str) -> Fold | None:
    is_complex = TensorType(dtype).is_complex
    return whole_scan_fold(op, dtype) if is_complex else scan_fold(op, dtype, False)


@cache
def _source(
    fold: Fold, dtype: str, out: str, form: _Form, axes: int, backwards: bool, count: str
) -> str:
    """The CUDA C of a scan."""
    (monoid,) = fold.monoids
    kinds = {f"E{i}": CTYPES[d] for i, d in enumerate(monoid.elements)}
    libraries = ["scalar.cuh", *["complex.cuh"] * TensorType(dtype).is_complex, "lines.cuh"]
    macros = specialised(
        *libraries, X=CTYPES[dtype], Y=CTYPES[out], INPUTS=len(fold.program.inputs),
        ROWS=int(form.rows), VEC=form.vec, THREADS=form.threads, DEEP=form.deep, LANES=form.lanes,
        LOOSE=int(form.loose), GROUP=form.group,
        EXCLUSIVE=int(fold.scan == "exclusive"), BACKWARDS=int(backwards), D=axes, COUNT=count,
        **kinds,
    )  # fmt: skip
    printed = scalar_function(fold.program, "element") + monoid_struct(monoid, "Fold")
    return macros + printed + text_of("scan.cu")


class ShiftKernel(CudaKernel[Shift]):
    """A shift of each line by one element: a copy, and a 0 at the end."""

    name = "cuda.copy"

    def launches(
        self, call: Call[Shift], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """The copy of all elements but one, and the 0."""
        op = call.op
        lead = [slice(None)] * op.axis
        early, late = (*lead, slice(None, -1)), (*lead, slice(1, None))
        first, last = (*lead, slice(None, 1)), (*lead, slice(-1, None))
        source, target, empty = (late, early, last) if op.reverse else (early, late, first)
        return copies(inputs[0][source], outputs[0][target]) + fill(outputs[0][empty], 0)


class LinearFilterKernel(CudaKernel[LinearFilter]):
    """A recursive filter; a thread for each chunk of a line.

    What is before a chunk follows from what the chunks before it make of zeros and of ones.
    """

    name = "cuda.linear_filter"
    dtypes = frozenset(["float16", "bfloat16", "float32", "float64"])

    def workspace_bytes(self, call: Call[LinearFilter]) -> int:
        """States before the chunks and what they become, or results in float64."""
        x, b, a = call.inputs
        (nb,), (na,) = b.shape, a.shape
        length = x.shape[call.op.axis]
        lines = prod(x.shape) // max(length, 1)
        part = _filter_part(lines, length, nb, na)
        if not _is_held(nb, na):
            return 8 * prod(x.shape) if na else 0
        return 8 * na * (lines * -(-length // part) + na) if 0 < part < length else 0

    def launches(
        self, call: Call[LinearFilter], inputs: Views, outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One launch, or three for lines of several chunks; none without elements."""
        (x, b, a), (y,), axis = inputs, outputs, call.op.axis
        if y.size == 0 or b.size == 0:
            return fill(y, 0)
        if call.op.reverse:
            backwards = (*[slice(None)] * axis, slice(None, None, -1))
            x, y = x[backwards], y[backwards]
        sizes, (x_line, y_line) = lines_of((x, y), axis)
        length, lines = y.shape[axis], y.size // y.shape[axis]
        part = _filter_part(lines, length, b.size, a.size)
        chunks, held = -(-length // part), _is_held(b.size, a.size)
        source = specialised(
            "scalar.cuh", "lines.cuh", "filter.cu", X=CTYPES[x.dtype], D=len(sizes),
            HELD=int(held), NB=b.size if held else 0, NA=a.size if held else 0,
            THREADS=_FILTER_THREADS, COUNT=count_type((x, y)),
        )  # fmt: skip
        of_ones = Pointer(WORKSPACE, 8 * a.size * lines * chunks)
        parameters = (
            x.pointer, b.pointer, a.pointer, y.pointer, Pointer(WORKSPACE), of_ones,
            Pointer(WORKSPACE), lines, length, chunks, part, b.size, a.size,
            x.steps[axis], b.steps[0], a.steps[0], y.steps[axis], *sizes, *x_line, *y_line,
        )  # fmt: skip

        def launch(name: str, threads: int) -> KernelLaunch:
            grid = (blocks_for(threads, _FILTER_THREADS),)
            return KernelLaunch(source, name, grid, (_FILTER_THREADS,), parameters)

        results = launch("linear_filter", lines * chunks)
        if chunks == 1 or a.size == 0:
            return [results]
        return [
            launch("ends", lines * chunks + a.size),
            launch("starts", lines * _FILTER_THREADS),
            results,
        ]


def _is_held(nb: int, na: int) -> bool:
    """Whether registers hold the coefficients."""
    return nb + na <= _MAX_COEFFICIENTS


def _filter_part(lines: int, length: int, nb: int, na: int) -> int:
    """The length of a chunk. With the square root as many chunks as elements come one by one."""
    if lines >= _ENOUGH_LINES or (na and not _is_held(nb, na)):
        return max(length, 1)
    return min(max(length, 1), max(_MIN_FILTER_PART, isqrt(length)))


KERNELS: tuple[Row, ...] = (
    (CUMULATIVE, (ScanKernel(),)),
    ((Shift,), (ShiftKernel(),)),
    ((LinearFilter,), (LinearFilterKernel(),)),
)
