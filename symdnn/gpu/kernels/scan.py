"""Running sums, products and extremes, shifts, linear recurrences and filters along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from symdnn.gpu.codegen.cuda_source import scalar_function
from symdnn.gpu.codegen.device_source import CTYPES, specialised, text_of
from symdnn.gpu.codegen.launches import (
    WORKSPACE,
    CudaKernel,
    KernelLaunch,
    Pointer,
    Views,
    blocks_for,
)
from symdnn.gpu.codegen.monoid_source import monoid_struct
from symdnn.gpu.kernels.copy import copies, fill
from symdnn.graph.kernel import Call, Row
from symdnn.graph.values.strides import merged
from symdnn.ops.array.cumulative import Shift
from symdnn.ops.array.filters import LinearFilter
from symdnn.ops.nest.nest import Fold
from symdnn.ops.nest.of_ops import CUMULATIVE, Cumulative, scan_fold

__all__ = ["ScanKernel", "lines_of", "KERNELS"]

_THREADS = 256
#: Bytes of an access; elements of a thread in a tile, by whether they come in vectors.
_ACCESS_BYTES, _THREAD_ELEMENTS, _THREAD_SCALARS = 16, 16, 8
#: Along the lines of a block: threads with vectors of lines, and with a line each.
_VECTOR_LANES, _SCALAR_LANES = 8, 32
#: A thread's neighbours along the axis where lines are neighbours in memory.
_DEEP = 4
#: Shorter lines are not worth a block each. Blocks that keep a large device busy.
_SHORT_LINE, _TARGET_BLOCKS = 256, 528
#: Tiles of a chunk, at least; the largest struct of a fold.
_MIN_CHUNK_TILES, _MAX_FOLD_BYTES = 2, 16
#: Filters: the most coefficients, and threads of a block, few so that few lines have many blocks.
_MAX_COEFFICIENTS, _FILTER_THREADS = 12, 64


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

    ``lines`` of a block, elements of a ``tile`` along the axis.
    """

    rows: bool
    vec: int
    threads: int
    deep: int
    lanes: int

    @property
    def lines(self) -> int:
        """Lines of a block."""
        return 1 if self.rows else self.lanes * self.vec

    @property
    def tile(self) -> int:
        """Elements of each line that a block has at a time."""
        threads = self.threads if self.rows else self.threads // self.lanes
        return threads * self.deep * (self.vec if self.rows else 1)

    def blocks(self, lines: int) -> int:
        """Blocks for so many whole lines."""
        return -(-lines // self.lines)

    def part(self, lines: int, length: int) -> int:
        """The length of a chunk: whole tiles, or all of a line."""
        wanted = _TARGET_BLOCKS // max(self.blocks(lines), 1)
        chunks = min(wanted, length // (_MIN_CHUNK_TILES * self.tile))
        if chunks < 2:
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
    if length < _SHORT_LINE or (abs(next(iter(along))) != 1 and prod(sizes) >= _SCALAR_LANES):
        return _Form(False, 1, _THREADS, _DEEP, _SCALAR_LANES)
    apart = [s for own in lines for s, some in zip(own, several) if some]
    near = along in ({1}, {-1}) and length % vec == 0
    first = [v[(*[slice(None)] * axis, slice(None, None, -1))] if -1 in along else v for v in views]
    if not (near and _in_vectors(first, vec, apart)):
        vec = 1
    deep = max(1, _THREAD_ELEMENTS // vec) if vec > 1 else _THREAD_SCALARS
    threads = _THREADS
    while threads > 32 and threads * deep * vec >= 2 * length:
        threads //= 2
    return _Form(True, vec, threads, min(deep, 4) if vec > 1 else deep, 32)


def _in_vectors(views: Views, vec: int, steps: Sequence[int]) -> bool:
    """Whether vectors are aligned, wherever these steps lead."""
    aligned = all(v.aligned_to(vec * v.itemsize) for v in views)
    return vec > 1 and aligned and all(s % vec == 0 for s in steps)


class ScanKernel(CudaKernel[Cumulative]):
    """Cumulative ops: nests whose states are all results; a few blocks for each long line."""

    name = "cuda.scan"
    dtypes = frozenset(CTYPES)

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
        operands = [*inputs, *outputs]
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
        fold = scan_fold(op, x0.dtype, False)
        count = count_type(operands)
        source = _source(fold, x0.dtype, y.dtype, form, len(sizes), y.steps[op.axis] < 0, count)

        def launch(name: str, grid: int, block: int) -> KernelLaunch:
            return KernelLaunch(source, name, (grid,), (block,), parameters)

        results = launch("results", form.blocks(lines) * chunks, form.threads)
        if chunks == 1:
            return [results]
        return [
            launch("totals", form.blocks(lines) * chunks, form.threads),
            launch("starts", blocks_for(lines, _THREADS), _THREADS),
            results,
        ]


@cache
def _source(
    fold: Fold, dtype: str, out: str, form: _Form, axes: int, backwards: bool, count: str
) -> str:
    """The CUDA C of a scan."""
    (monoid,) = fold.monoids
    kinds = {f"E{i}": CTYPES[d] for i, d in enumerate(monoid.elements)}
    macros = specialised(
        "scalar.cuh", "lines.cuh", X=CTYPES[dtype], Y=CTYPES[out], INPUTS=len(fold.program.inputs),
        ROWS=int(form.rows), VEC=form.vec, THREADS=form.threads, DEEP=form.deep, LANES=form.lanes,
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
    """A recursive filter of few coefficients; a thread for each line."""

    name = "cuda.linear_filter"
    dtypes = frozenset(["float16", "bfloat16", "float32", "float64"])

    def refuses(self, call: Call[LinearFilter]) -> str | None:
        """Other dtypes, and more coefficients than registers hold, or a number not known before."""
        sizes = [t.shape[0] for t in call.inputs[1:]]
        if None in sizes or not sizes[0] or sum(sizes) > _MAX_COEFFICIENTS:
            return f"it takes 1 to {_MAX_COEFFICIENTS} coefficients, as many as the types say"
        return super().refuses(call)

    def launches(
        self, call: Call[LinearFilter], inputs: Views, outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One launch; none without elements."""
        (x, b, a), (y,), axis = inputs, outputs, call.op.axis
        if y.size == 0:
            return []
        if call.op.reverse:
            backwards = (*[slice(None)] * axis, slice(None, None, -1))
            x, y = x[backwards], y[backwards]
        sizes, (x_line, y_line) = lines_of((x, y), axis)
        length, lines = y.shape[axis], y.size // y.shape[axis]
        source = specialised(
            "scalar.cuh", "lines.cuh", "filter.cu", X=CTYPES[x.dtype], D=len(sizes), NB=b.size,
            NA=a.size, THREADS=_FILTER_THREADS, COUNT=count_type((x, y)),
        )  # fmt: skip
        parameters = (
            x.pointer, b.pointer, a.pointer, y.pointer, lines, length,
            x.steps[axis], b.steps[0], a.steps[0], y.steps[axis], *sizes, *x_line, *y_line,
        )  # fmt: skip
        grid = (blocks_for(lines, _FILTER_THREADS),)
        return [KernelLaunch(source, "linear_filter", grid, (_FILTER_THREADS,), parameters)]


KERNELS: tuple[Row, ...] = (
    (CUMULATIVE, (ScanKernel(),)),
    ((Shift,), (ShiftKernel(),)),
    ((LinearFilter,), (LinearFilterKernel(),)),
)
