"""Writes to parts that slices select, sums of parts, and checks of index arrays before writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from symdnn.gpu.codegen.cuda_source import print_problem
from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import (
    ERROR_WORD,
    NODE,
    WORKSPACE,
    CudaKernel,
    GuardableKernel,
    KernelLaunch,
    Pointer,
    View,
    Views,
    alignment_of,
    blocks_for,
)
from symdnn.gpu.codegen.placed_source import THREADS, Placed, placed_source
from symdnn.gpu.kernels.copy import copies, fill, view_by_op
from symdnn.gpu.kernels.elementwise import elementwise
from symdnn.gpu.kernels.totals import merge
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import TensorType
from symdnn.ops.array.advanced_index import InBounds
from symdnn.ops.array.index import IncSubtensor
from symdnn.ops.array.reduce import Sum
from symdnn.ops.core.scalar import ScalarProgram
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.ops.elementwise.complex_meaning import part_dtypes
from symdnn.ops.elementwise.scalar_meaning import meaning
from symdnn.ops.lowered.gathered import FusedPlacedSums, PlacedSums

_THREADS = THREADS
#: Fewer blocks where each adds up totals in the end: as many as run at the same time.
_MAX_BLOCKS, _MAX_TOTAL_BLOCKS = 1 << 20, 132 * 8
#: Lanes of a long row's piece, and the elements of each of them.
_LANES, _EACH = 32, 4
_INDEX_DTYPES = frozenset(
    {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
)


class PartKernel(GuardableKernel[IncSubtensor]):
    """A set of, or an increment to, a part selected by ints and slices."""

    name = "cuda.part"

    def refuses(self, call: Call[IncSubtensor]) -> str | None:
        """Increments of dtypes that it has no code to add."""
        dtype = _part_dtype(call.outputs[0].dtype)
        if call.op.set_instead_of_inc or dtype in CTYPES:
            return None
        return f"it has no code to add {dtype}"

    def launches(
        self, call: Call[IncSubtensor], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """A copy unless in place, then the part."""
        op, guarded = call.op, self.guarded
        (x, y, *bounds), (out,) = inputs, outputs
        before = [] if out.alias_of == x.slot else copies(x, out, guarded)
        if out.size == 0:
            return before
        part = view_by_op(op.getter(), out, (), bounds)
        assert part is not None
        if op.set_instead_of_inc:
            return before + copies(y, part, guarded)
        dtype = _part_dtype(out.dtype)
        program = meaning(Add(), (dtype, dtype))
        assert program is not None
        part, y = _as_parts(part), _as_parts(y)
        return before + elementwise(program, [part, y], [part], guarded)

    def writes_updates(self, call: Call[IncSubtensor]) -> bool:
        """Whether the part is the same in all calls, so that it can't be out of range."""
        return not call.op.host_inputs


def _part_dtype(dtype: str) -> str:
    """The dtype of the parts of complex numbers, or of other numbers."""
    return part_dtypes(dtype)[0] if TensorType(dtype).is_complex else dtype


def _as_parts(x: View) -> View:
    """Complex numbers as real ones with one more axis, of their two parts."""
    dtype = _part_dtype(x.dtype)
    if dtype == x.dtype:
        return x
    return replace(x, dtype=dtype, shape=(*x.shape, 2), strides=(*x.strides, x.itemsize // 2))


class InBoundsKernel(CudaKernel[InBounds]):
    """Copies indices, and reports one that is out of range."""

    name = "cuda.in_bounds"
    dtypes = _INDEX_DTYPES

    def launches(
        self, call: Call[InBounds], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel; of a strided operand a copy, and a look at that."""
        (x, size), (y,) = inputs, outputs
        if y.size == 0:
            return []
        before = [] if x.contiguous else copies(x, y)
        x = y if before else x
        vector_bytes = min(16, alignment_of(x, y))
        vec = max(1, vector_bytes // x.itemsize)
        source = specialised(
            "in_bounds.cu", T=CTYPES[x.dtype], VEC=vec, WRITES=int(not before)
        )  # fmt: skip
        parameters = (
            x.pointer, y.pointer, y.size, size, Pointer(ERROR_WORD), Pointer(NODE),
        )  # fmt: skip
        grid = (blocks_for(-(-y.size // vec), _THREADS),)
        return [*before, KernelLaunch(source, "in_bounds", grid, (_THREADS,), parameters)]


# -- sums of parts ---------------------------------------------------------------------------------

_Sums = PlacedSums | FusedPlacedSums


@dataclass
class _Axis:
    """An axis of the result: its size and stride in elements.

    ``places`` are where each part begins, how many elements it has, and every how many-th;
    ``steps`` the strides of its operands.
    """

    size: int
    step: int
    places: list[tuple[int, int, int]]
    steps: list[list[int]]

    def is_whole(self) -> bool:
        """Whether all parts have all of it."""
        return all(place == (0, self.size, 1) for place in self.places)

    def joins(self, inner: _Axis) -> bool:
        """Whether it and the next one are one axis."""
        pairs = [
            (a, b) for own, other in zip(self.steps, inner.steps) for a, b in zip(own, other)
        ]  # fmt: skip
        dense = all(a == inner.size * b for a, b in [(self.step, inner.step), *pairs])
        return dense and inner.is_whole() and all(step == 1 for _, _, step in self.places)

    def joined(self, inner: _Axis) -> _Axis:
        """Both as one."""
        n = inner.size
        places = [(at * n, count * n, 1) for at, count, _ in self.places]
        return _Axis(self.size * n, inner.step, places, inner.steps)


class PlacedKernel(CudaKernel[_Sums]):
    """``PlacedSums`` and ``FusedPlacedSums``: each element finds the parts that it is in."""

    name = "cuda.placed"
    dtypes = frozenset(CTYPES)
    writes_any_layout = True

    def refuses(self, call: Call[_Sums]) -> str | None:
        """Programs that cannot be printed as CUDA C."""
        folds = [p for _, p, _ in _totals(call)]
        problems = map(print_problem, (*_programs(call), *folds))
        return super().refuses(call) or next(filter(None, problems), None)

    def workspace_bytes(self, call: Call[_Sums]) -> int:
        """A number for each total and block."""
        return 8 * _MAX_TOTAL_BLOCKS * len(_totals(call))

    def writes(self, call: Call[_Sums], index: int, array: Any) -> bool:
        """The sums of parts in any layout; totals are in one piece."""
        return index == 0 or bool(array.contiguous)

    def launches(
        self, call: Call[_Sums], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel, and one that adds up what its blocks have of totals."""
        (out, *results), op = outputs, call.op
        if out.size == 0:
            return [launch for y in results for launch in fill(y, 0)]
        if isinstance(op, FusedPlacedSums):
            sums, operands = op.sums(), op.apart(inputs)[:-1]
        else:
            sums, operands = op, [[y] for y in inputs[: len(op.parts)]]
        placed = [_placed(*pair, out.shape) for pair in zip(sums.places(), operands, strict=True)]
        there = [k for k, part in enumerate(placed) if part is not None]
        found = [(_programs(call)[k], *part) for k, part in enumerate(placed) if part is not None]
        totals, merged, none = list[tuple[int, ScalarProgram, str]](), list[View](), list[View]()
        for (k, program, fold), y in zip(_totals(call), results, strict=True):
            (merged if k in there else none).append(y)
            if k in there:
                totals.append((there.index(k), program, fold.acc_dtype))
        launch = _launch(out, found, tuple(totals))
        after = [merge(launch.grid[0], merged)] if merged else []
        return [launch, *after, *(zero for y in none for zero in fill(y, 0))]


def _totals(call: Call[_Sums]) -> Sequence[tuple[int, ScalarProgram, Sum]]:
    return call.op.totals if isinstance(call.op, FusedPlacedSums) else ()


def _programs(call: Call[_Sums]) -> Sequence[ScalarProgram]:
    op = call.op
    return op.programs if isinstance(op, FusedPlacedSums) else op.programs(call.outputs[0].dtype)


_Places = list[tuple[int, int, int]]


def _placed(
    place: Sequence[slice], operands: Views, shape: Sequence[int]
) -> tuple[_Places, list[View]] | None:
    """Where a part begins along each axis, its size and step, upwards; None if it is empty."""
    places, turns = _Places(), list[slice]()
    for part, n in zip(place, shape):
        numbers = range(n)[part]
        down = numbers.step < 0
        numbers = numbers[::-1] if down else numbers
        places.append((numbers.start, len(numbers), numbers.step if len(numbers) > 1 else 1))
        turns.append(slice(None, None, -1 if down else None))
    counts = [count for _, count, _ in places]
    if 0 in counts:
        return None
    return places, [v.broadcast_to(counts)[tuple(turns)] for v in operands]


def _launch(
    out: View,
    found: Sequence[tuple[ScalarProgram, _Places, list[View]]],
    totals: tuple[tuple[int, ScalarProgram, str], ...] = (),
) -> KernelLaunch:
    axes = list[_Axis]()
    for d in sorted(range(len(out.shape)), key=lambda d: -abs(out.steps[d])):
        places = [part[d] for _, part, _ in found]
        steps = [[v.steps[d] for v in views] for _, _, views in found]
        axis = _Axis(out.shape[d], out.steps[d], places, steps)
        if axis.size == 1:
            continue
        if axes and axes[-1].joins(axis):
            axes[-1] = axes[-1].joined(axis)
        else:
            axes.append(axis)
    if not axes:
        axes = [_Axis(1, 1, [(0, 1, 1) for _ in found], [[0 for _ in v] for _, _, v in found])]
    row = axes[-1].size
    lanes = min(_LANES, 1 << (row - 1).bit_length())
    each = min(_EACH, -(-row // lanes))
    chunks = -(-row // (lanes * each))
    tasks = out.size // row * chunks
    reach = [sum(a.size * abs(a.step) for a in axes), tasks * lanes * each]
    reach += [
        sum(a.size * abs(a.steps[k][j]) for a in axes)
        for k, (_, _, views) in enumerate(found) for j in range(len(views))
    ]  # fmt: skip
    parts = tuple(
        (program, tuple(0 if a.places[k] == (0, a.size, 1) else a.places[k][2] for a in axes))
        for k, (program, _, _) in enumerate(found)
    )
    wide = max(reach) >= 2**31 - 2**24
    source = placed_source(Placed(out.dtype, parts, len(axes), lanes, each, wide, totals))
    parameters: list[Any] = [out.pointer, tasks, chunks]
    parameters += [a.size for a in axes] + [a.step for a in axes]
    for k, (_, _, views) in enumerate(found):
        parameters += [a.places[k][0] for a in axes] + [a.places[k][1] for a in axes]
        for j, view in enumerate(views):
            parameters += [view.pointer, *(a.steps[k][j] for a in axes)]
    parameters += [Pointer(WORKSPACE)] * bool(totals)
    most = _MAX_TOTAL_BLOCKS if totals else _MAX_BLOCKS
    grid = (blocks_for(tasks * lanes, _THREADS, most),)
    return KernelLaunch(source, "placed", grid, (_THREADS,), tuple(parameters))


KERNELS: tuple[Row, ...] = (
    ((IncSubtensor,), (PartKernel(),)),
    ((InBounds,), (InBoundsKernel(),)),
    ((PlacedSums, FusedPlacedSums), (PlacedKernel(),)),
)
