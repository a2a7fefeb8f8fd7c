"""Sorting, ranking, top-k and binary search."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import (
    WORKSPACE,
    CudaKernel,
    KernelLaunch,
    Pointer,
    View,
    blocks_for,
)
from symdnn.gpu.kernels.scan import count_type, lines_of
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.values.strides import merged
from symdnn.ops.array.sort import ArgSort, SearchSorted, Sort, TopK
from symdnn.ops.core.dtype import is_narrow_float

__all__ = ["SortKernel", "KERNELS", "sort_bytes", "sorted_lines"]

_THREADS, _TILE_ELEMENTS = 256, 1024
#: Radix sort: values of a digit; elements and bytes of a thread's keys in a tile, at most; tiles
#: whose counts one block adds up.
_DIGITS, _RADIX_ITEMS, _RADIX_BYTES, _TILE_GROUP = 256, 16, 64, 64
#: Bytes of an element for which radix passes take as long as a merge, which looks for each place in
#: several steps; elements for which launches take less than the work.
_MERGE_BYTES, _MIN_RADIX_ELEMENTS = 2, 1 << 17
#: Top-k: bytes and elements of an access, elements of a thread in a tile, tiles of a chunk at
#: least, blocks that keep a large device busy.
_ACCESS_BYTES, _MAX_ACCESS_ELEMENTS, _BEST_ELEMENTS, _CHUNK_TILES, _TARGET_BLOCKS = (
    16,
    8,
    16,
    2,
    528,
)


def key_dtype(dtype: str) -> str:
    """The dtype of comparisons."""
    return "float32" if is_narrow_float(dtype) else dtype


def _padded(nbytes: int) -> int:
    return -(-nbytes // 16) * 16


def sort_bytes(elements: int, dtype: str) -> int:
    """Workspace of a sort: keys and their indices, each twice, and counts of digits."""
    size = numpy_dtype(key_dtype(dtype)).itemsize
    counts = _DIGITS * 4 * (2 * elements // (_THREADS * _RADIX_BYTES // 8) + 1)
    return 2 * _padded(elements * size) + 2 * _padded(elements * 4) + 2 * _padded(counts)


def sorted_lines(
    x: View,
    axis: int,
    values: View | None,
    indices: View | None,
    *,
    largest: bool = False,
    at: int = 0,
) -> list[KernelLaunch]:
    """Sort along ``axis`` and write the first elements, as many as ``values`` or ``indices`` hold.

    It uses :func:`sort_bytes` of the workspace from byte ``at`` on.
    """
    outputs = [v for v in (values, indices) if v is not None]
    if x.size == 0 or outputs[0].size == 0:
        return []
    merges = (-(-x.shape[axis] // _TILE_ELEMENTS) - 1).bit_length()
    if merges * _MERGE_BYTES >= x.itemsize and x.size >= _MIN_RADIX_ELEMENTS:
        return _by_digits(x, axis, values, indices, largest, at)
    return _by_merges(x, axis, values, indices, largest, at)


def _by_digits(
    x: View, axis: int, values: View | None, indices: View | None, largest: bool, at: int
) -> list[KernelLaunch]:
    """A radix sort, which passes over the elements for each byte of one."""
    outputs = [v for v in (values, indices) if v is not None]
    length, kept = x.shape[axis], outputs[0].shape[axis]
    sizes, steps = lines_of([x, *outputs], axis)
    lines = prod(sizes)
    nowhere = (0, (0,) * len(sizes))
    along = {id(v): (v.steps[axis], s) for v, s in zip([x, *outputs], steps)}
    (x_step, x_line), *written = (along.get(id(v), nowhere) for v in (x, values, indices))
    items = max(1, min(_RADIX_ITEMS, _RADIX_BYTES // x.itemsize))
    tiles = -(-length // (_THREADS * items))
    groups = -(-tiles // _TILE_GROUP)
    kind = TensorType(x.dtype)
    source = specialised(
        "lines.cuh", "radix.cu", T=CTYPES[x.dtype], U=f"u{8 * x.itemsize}", ITEMS=items,
        I=CTYPES[indices.dtype] if indices is not None else "i64", LARGEST=int(largest),
        FLOATING=int(kind.is_float), SIGNED=int(x.dtype.startswith("int")), D=len(sizes),
        COUNT=count_type([x]), GROUP=_TILE_GROUP,
    )  # fmt: skip
    buffers = _buffers(x.size, f"uint{8 * x.itemsize}", at)
    counts = _padded(4 * _DIGITS * lines * tiles)
    after = at + 2 * _padded(x.size * x.itemsize) + 2 * _padded(x.size * 4)

    def launch(name: str, grid: int, number: int) -> KernelLaunch:
        keys = buffers[2:4] + buffers[:2] if number % 2 else buffers
        parameters = (
            x.pointer, *(v.pointer if v is not None else 0 for v in (values, indices)),
            keys[0], keys[2], keys[1], keys[3], Pointer(WORKSPACE, after),
            Pointer(WORKSPACE, after + counts), lines, length, kept, tiles, groups, 8 * number,
            x_step, *(step for step, _ in written), *sizes, *x_line,
            *(n for _, line in written for n in line),
        )  # fmt: skip
        return KernelLaunch(source, name, (grid,), (_THREADS,), parameters)

    found = []
    for number in range(x.itemsize):
        found.append(launch("histogram", lines * tiles, number))
        found.append(launch("add_up", lines * groups, number))
        found.append(launch("add_groups", lines, number))
        found.append(launch("scatter", lines * tiles, number))
    return [*found, launch("leave", blocks_for(lines * kept, _THREADS), x.itemsize)]


def _by_merges(
    x: View, axis: int, values: View | None, indices: View | None, largest: bool, at: int
) -> list[KernelLaunch]:
    """A sort of tiles, and merges of runs of twice the length each time."""
    outputs = [v for v in (values, indices) if v is not None]
    length, kept = x.shape[axis], outputs[0].shape[axis]
    sizes, steps = lines_of([x, *outputs], axis)
    lines = prod(sizes)
    along = {id(v): (v.steps[axis], s) for v, s in zip([x, *outputs], steps)}
    nowhere = (0, (0,) * len(sizes))
    x_step, x_line = along[id(x)]
    values_step, values_line = along.get(id(values), nowhere)
    indices_step, indices_line = along.get(id(indices), nowhere)
    key = key_dtype(x.dtype)
    tile = max(2, min(_TILE_ELEMENTS, 1 << max(length - 1, 0).bit_length()))
    source = specialised(
        "lines.cuh", "sort.cu", T=CTYPES[x.dtype], K=CTYPES[key], TILE=tile, D=len(sizes),
        I=CTYPES[indices.dtype] if indices is not None else "i64", LARGEST=int(largest),
        COUNT=count_type([x]),
    )  # fmt: skip
    buffers = _buffers(x.size, key, at)

    def launch(name: str, grid: int, run: int, flipped: bool) -> KernelLaunch:
        keys = buffers[2:4] + buffers[:2] if flipped else buffers
        parameters = (
            x.pointer,
            values.pointer if values is not None else 0,
            indices.pointer if indices is not None else 0,
            keys[0], keys[2], keys[1], keys[3], lines, length, kept, run,
            x_step, values_step, indices_step, *sizes, *x_line, *values_line, *indices_line,
        )  # fmt: skip
        return KernelLaunch(source, name, (grid,), (_THREADS,), parameters)

    pieces = lines * -(-length // tile)
    found = [launch("sort_tiles", -(-pieces * tile // _TILE_ELEMENTS), 0, False)]
    run, flipped = tile, False
    while run < length:
        found.append(launch("merge_runs", blocks_for(x.size, _THREADS), run, flipped))
        run, flipped = 2 * run, not flipped
    return [*found, launch("leave", blocks_for(lines * kept, _THREADS), 0, flipped)]


def _buffers(elements: int, key: str, at: int) -> tuple[Pointer, ...]:
    """Addresses of (keys, indices, other keys, other indices)."""
    sizes = [_padded(elements * numpy_dtype(key).itemsize), _padded(elements * 4)]
    places = [at, at + sizes[0], at + sum(sizes), at + 2 * sizes[0] + sizes[1]]
    return tuple(Pointer(WORKSPACE, place) for place in places)


def _best(x: View, axis: int, values: View, indices: View, largest: bool) -> list[KernelLaunch]:
    """The first elements of a sort along ``axis``, without one: lines are read once."""
    length, kept = x.shape[axis], values.shape[axis]
    sizes, steps = lines_of([x, values, indices], axis)
    lines = prod(sizes)
    vec = max(1, min(_ACCESS_BYTES // x.itemsize, _MAX_ACCESS_ELEMENTS))
    apart = [s for s, n in zip(steps[0], sizes) if n > 1]
    near = x.steps[axis] == 1 and length % vec == 0 and x.aligned_to(vec * x.itemsize)
    if not near or any(s % vec for s in apart):
        vec = 1
    deep = max(2, _BEST_ELEMENTS // vec) if vec > 1 else _BEST_ELEMENTS
    tile = _THREADS * vec * min(deep, 4)
    chunks = max(1, min(_TARGET_BLOCKS // lines, length // (_CHUNK_TILES * tile)))
    part = -(-length // (chunks * tile)) * tile
    chunks = -(-length // part)
    source = specialised(
        "lines.cuh", "top_k.cu", T=CTYPES[x.dtype], I=CTYPES[indices.dtype], VEC=vec,
        KEY="u64" if x.itemsize == 8 else "u32", THREADS=_THREADS, DEEP=min(deep, 4), D=len(sizes),
        LARGEST=int(largest), COUNT=count_type([x]),
    )  # fmt: skip
    keys = Pointer(WORKSPACE, 0)
    order = Pointer(WORKSPACE, _padded(lines * chunks * kept * (8 if x.itemsize == 8 else 4)))
    parameters = (
        x.pointer, values.pointer, indices.pointer, keys, order, lines, length, kept, chunks, part,
        x.steps[axis], values.steps[axis], indices.steps[axis], *sizes, *steps[0], *steps[1],
        *steps[2],
    )  # fmt: skip
    found = [KernelLaunch(source, "top_k", (lines * chunks,), (_THREADS,), parameters)]
    if chunks > 1:
        found.append(KernelLaunch(source, "second", (lines,), (_THREADS,), parameters))
    return found


class SortKernel(CudaKernel[Sort | ArgSort | TopK]):
    """A merge sort; top-k of a few of many elements needs none."""

    name = "cuda.sort"
    dtypes = frozenset(CTYPES)

    def refuses(self, call: Call[Sort | ArgSort | TopK]) -> str | None:
        """Axes that are too long for 32-bit indices."""
        if reason := super().refuses(call):
            return reason
        axis: int = call.op.axis
        if (call.inputs[0].shape[axis] or 0) >= 2**32 - 1:
            return "more elements along the axis than 32 bits number"
        return None

    def workspace_bytes(self, call: Call[Sort | ArgSort | TopK]) -> int:
        """Keys and indices, each twice."""
        x = call.inputs[0]
        return sort_bytes(prod(x.shape), x.dtype)

    def launches(
        self, call: Call[Sort | ArgSort | TopK], inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """Sorted tiles, merges, and the output."""
        op = call.op
        x = inputs[0]
        if isinstance(op, TopK):
            values, indices = outputs
            length, kept = x.shape[op.axis], values.shape[op.axis]
            if length > _TILE_ELEMENTS and kept <= _THREADS and values.size:
                return _best(x, op.axis, values, indices, inputs[1] > 0)
            return sorted_lines(x, op.axis, values, indices, largest=inputs[1] > 0)
        if isinstance(op, Sort):
            return sorted_lines(x, op.axis, outputs[0], None)
        return sorted_lines(x, op.axis, None, outputs[0])


class SearchKernel(CudaKernel):
    """Binary search, one thread per element."""

    name = "cuda.search"
    dtypes = frozenset(CTYPES)

    def launches(
        self, call: Call, inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """One kernel."""
        table, x = inputs
        (y,) = outputs
        if y.size == 0:
            return []
        sizes, (steps,) = merged(x.shape, [x.steps])
        source = specialised(
            "lines.cuh", "search.cu", T=CTYPES[x.dtype], K=CTYPES[key_dtype(x.dtype)],
            D=len(sizes), RIGHT=int(call.op.side == "right"), COUNT=count_type([x]),  # type: ignore[attr-defined]
        )  # fmt: skip
        parameters = (
            table.pointer, x.pointer, y.pointer, table.shape[0], table.steps[0], y.size,
            *sizes, *steps,
        )  # fmt: skip
        grid = (blocks_for(y.size, _THREADS),)
        return [KernelLaunch(source, "search", grid, (_THREADS,), parameters)]


KERNELS: tuple[Row, ...] = (
    ((Sort, ArgSort, TopK), (SortKernel(),)),
    ((SearchSorted,), (SearchKernel(),)),
)
