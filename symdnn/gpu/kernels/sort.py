"""Sorting, ranking, top-k, binary search, and which of sorted boxes stay."""

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
    Views,
    blocks_for,
    scratch,
)
from symdnn.gpu.kernels.copy import fill
from symdnn.gpu.kernels.scan import count_type, lines_of
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.values.strides import merged
from symdnn.ops.array.boxes import KeptBoxes
from symdnn.ops.array.sort import ArgSort, SearchSorted, Sort, TopK
from symdnn.ops.core.dtype import work_dtype

_THREADS, _TILE_ELEMENTS = 256, 1024
#: The longest line that threads of a block hold, and the elements of each.
_MOST_HELD, _HELD_EACH = 4096, 8
#: Radix sort: values of a digit; elements and bytes of a thread's keys in a tile, at most; tiles
#: that one looks back at together; blocks that count digits; bits of a float below its exponent.
_DIGITS, _RADIX_ITEMS, _RADIX_BYTES, _TILES_AHEAD, _COUNT_BLOCKS = 256, 16, 64, 8, 1056
_MANTISSA_BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
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
#: Boxes: threads of a block; most blocks, each of which goes through several examples.
_BOX_THREADS, _MAX_BOX_BLOCKS = 512, 1 << 16


def _padded(nbytes: int) -> int:
    return -(-nbytes // 16) * 16


def sort_bytes(elements: int, dtype: str) -> int:
    """Workspace of a sort: keys and their indices, each twice, and counts of digits."""
    size = numpy_dtype(work_dtype(dtype)).itemsize
    # Lines that radix passes sort are longer than a tile of the merge sort for each two passes.
    counts = 2 * 8 * _DIGITS * (elements // _TILE_ELEMENTS + 1) + 4 * size + 8
    return 2 * _padded(elements * size) + 2 * _padded(elements * 4) + _padded(counts)


class _Lines:
    """The lines of ``x`` along ``axis``, and where their first elements are written in order."""

    def __init__(self, x: View, axis: int, values: View | None, indices: View | None) -> None:
        given = (x, values, indices)
        found = [v for v in given if v is not None]
        self.x = x
        self.length, self.kept = x.shape[axis], found[1].shape[axis]
        self.is_empty = x.size == 0 or found[1].size == 0
        self.sizes, steps = lines_of(found, axis)
        self.count = prod(self.sizes)
        rest = iter(steps)
        nowhere = (0,) * len(self.sizes)
        #: Steps of the three arrays between lines.
        self.outer = [next(rest) if v is not None else nowhere for v in given]
        #: The first parameters of each kernel, and the last ones.
        self.pointers = tuple(v.pointer if v is not None else 0 for v in given)
        along = (v.steps[axis] if v is not None else 0 for v in given)
        self.strides = (*along, *self.sizes, *(s for steps in self.outer for s in steps))
        #: Macros of each kernel.
        self.macros = {
            "T": CTYPES[x.dtype], "I": CTYPES[indices.dtype] if indices is not None else "i64",
            "D": len(self.sizes), "COUNT": count_type([x]),
        }  # fmt: skip

    @property
    def in_pairs(self) -> bool:
        """Whether an element's number goes with its key."""
        return bool(self.pointers[2] != 0)

    def keys_as_numbers(self, largest: bool) -> dict[str, object]:
        """Macros of keys.cu."""
        dtype = self.x.dtype
        return {
            "U": f"u{8 * self.x.itemsize}", "LARGEST": int(largest), "PAIRS": int(self.in_pairs),
            "FLOATING": int(TensorType(dtype).is_float), "SIGNED": int(dtype.startswith("int")),
            "MANTISSA": _MANTISSA_BITS.get(dtype, 0),
        }  # fmt: skip

    def keys(self, dtype: str, at: int, flipped: bool) -> tuple[Pointer, ...]:
        """Addresses of keys, other keys, indices, other indices, from byte ``at`` on."""
        nbytes = _padded(self.x.size * numpy_dtype(dtype).itemsize), _padded(self.x.size * 4)
        first = (at, at + nbytes[0])
        second = tuple(place + sum(nbytes) for place in first)
        near, far = (second, first) if flipped else (first, second)
        return tuple(Pointer(WORKSPACE, place) for pair in zip(near, far) for place in pair)


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
    lines = _Lines(x, axis, values, indices)
    if lines.is_empty:
        return []
    if lines.length <= _MOST_HELD and x.itemsize <= (4 if lines.in_pairs else 8):
        return _held(lines, largest)
    merges = (-(-lines.length // _TILE_ELEMENTS) - 1).bit_length()
    if merges * _MERGE_BYTES >= x.itemsize and x.size >= _MIN_RADIX_ELEMENTS:
        return _by_digits(lines, largest, at)
    return _by_merges(lines, largest, at)


def _held(lines: _Lines, largest: bool) -> list[KernelLaunch]:
    """A sort of lines that threads hold, which reads them once and writes the results."""
    tile = max(_HELD_EACH, 1 << max(lines.length - 1, 0).bit_length())
    threads = max(_THREADS, tile // _HELD_EACH)
    source = specialised(
        "lines.cuh", "keys.cu", "sort_rows.cu", TILE=tile, EACH=_HELD_EACH, THREADS=threads,
        WORD="u64" if lines.in_pairs or lines.x.itemsize == 8 else "u32",
        **lines.keys_as_numbers(largest), **lines.macros,
    )  # fmt: skip
    parameters = (*lines.pointers, lines.count, lines.length, lines.kept, *lines.strides)
    grid = (-(-lines.count * tile // (threads * _HELD_EACH)),)
    return [KernelLaunch(source, "sort_rows", grid, (threads,), parameters)]


def _by_digits(lines: _Lines, largest: bool, at: int) -> list[KernelLaunch]:
    """A radix sort, which passes over the elements for each byte of one."""
    x, count, passes = lines.x, lines.count, lines.x.itemsize
    items = max(1, min(_RADIX_ITEMS, _RADIX_BYTES // passes))
    tiles = -(-lines.length // (_THREADS * items))
    groups = min(tiles, max(1, _COUNT_BLOCKS // count))
    source = specialised(
        "lines.cuh", "keys.cu", "radix.cu", ITEMS=items, AHEAD=_TILES_AHEAD,
        **lines.keys_as_numbers(largest), **lines.macros,
    )  # fmt: skip
    states = at + 2 * _padded(x.size * passes) + 2 * _padded(x.size * 4)
    digits = states + 8 * _DIGITS * count * tiles
    tickets = digits + 4 * _DIGITS * count * passes
    counts = (tickets - states + 4 * passes + 7) // 8

    def launch(name: str, grid: int, number: int) -> KernelLaunch:
        parameters = (
            *lines.pointers, *lines.keys(f"uint{8 * passes}", at, flipped=bool(number % 2)),
            *(Pointer(WORKSPACE, place) for place in (states, digits, tickets)), count,
            lines.length, lines.kept, tiles, groups, number, *lines.strides,
        )  # fmt: skip
        return KernelLaunch(source, name, (grid,), (_THREADS,), parameters)

    scatters = [launch("scatter", count * tiles, number) for number in range(passes)]
    cleared = fill(scratch(states, "uint64", (counts,)), 0)
    return [*cleared, launch("count_digits", count * groups, 0), *scatters]


def _by_merges(lines: _Lines, largest: bool, at: int) -> list[KernelLaunch]:
    """A sort of tiles, and merges of runs of twice the length each time."""
    x, length = lines.x, lines.length
    key = work_dtype(x.dtype)
    tile = max(2, min(_TILE_ELEMENTS, 1 << max(length - 1, 0).bit_length()))
    source = specialised(
        "lines.cuh", "sort.cu", K=CTYPES[key], TILE=tile, LARGEST=int(largest), **lines.macros
    )

    def launch(name: str, grid: int, run: int, flipped: bool) -> KernelLaunch:
        parameters = (
            *lines.pointers, *lines.keys(key, at, flipped), lines.count, length, lines.kept, run,
            *lines.strides,
        )  # fmt: skip
        return KernelLaunch(source, name, (grid,), (_THREADS,), parameters)

    pieces = lines.count * -(-length // tile)
    found = [launch("sort_tiles", -(-pieces * tile // _TILE_ELEMENTS), 0, False)]
    run, flipped = tile, False
    while run < length:
        found.append(launch("merge_runs", blocks_for(x.size, _THREADS), run, flipped))
        run, flipped = 2 * run, not flipped
    return [*found, launch("leave", blocks_for(lines.count * lines.kept, _THREADS), 0, flipped)]


def _best(x: View, axis: int, values: View, indices: View, largest: bool) -> list[KernelLaunch]:
    """The first elements of a sort along ``axis``, without one: lines are read once."""
    lines = _Lines(x, axis, values, indices)
    length, kept, count = lines.length, lines.kept, lines.count
    vec = max(1, min(_ACCESS_BYTES // x.itemsize, _MAX_ACCESS_ELEMENTS))
    apart = [s for s, n in zip(lines.outer[0], lines.sizes) if n > 1]
    near = lines.strides[0] == 1 and length % vec == 0 and x.aligned_to(vec * x.itemsize)
    if not near or any(s % vec for s in apart):
        vec = 1
    deep = max(2, _BEST_ELEMENTS // vec) if vec > 1 else _BEST_ELEMENTS
    tile = _THREADS * vec * min(deep, 4)
    chunks = max(1, min(_TARGET_BLOCKS // count, length // (_CHUNK_TILES * tile)))
    part = -(-length // (chunks * tile)) * tile
    chunks = -(-length // part)
    source = specialised(
        "lines.cuh", "top_k.cu", VEC=vec, KEY="u64" if x.itemsize == 8 else "u32",
        THREADS=_THREADS, DEEP=min(deep, 4), LARGEST=int(largest), **lines.macros,
    )  # fmt: skip
    keys = Pointer(WORKSPACE, 0)
    order = Pointer(WORKSPACE, _padded(count * chunks * kept * (8 if x.itemsize == 8 else 4)))
    parameters = (
        *lines.pointers, keys, order, count, length, kept, chunks, part, *lines.strides
    )  # fmt: skip
    found = [KernelLaunch(source, "top_k", (count * chunks,), (_THREADS,), parameters)]
    if chunks > 1:
        found.append(KernelLaunch(source, "second", (count,), (_THREADS,), parameters))
    return found


class SortKernel(CudaKernel[Sort | ArgSort | TopK]):
    """A radix or a merge sort; top-k of a few of many elements needs none."""

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
        self, call: Call[Sort | ArgSort | TopK], inputs: Sequence[Any], outputs: Views
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


class SearchKernel(CudaKernel[SearchSorted]):
    """Binary search, one thread per element."""

    name = "cuda.search"
    dtypes = frozenset(CTYPES)

    def launches(
        self, call: Call[SearchSorted], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel."""
        table, x = inputs
        (y,) = outputs
        if y.size == 0:
            return []
        sizes, (steps,) = merged(x.shape, [x.steps])
        source = specialised(
            "lines.cuh", "search.cu", T=CTYPES[x.dtype], K=CTYPES[work_dtype(x.dtype)],
            D=len(sizes), RIGHT=int(call.op.side == "right"), COUNT=count_type([x]),
        )  # fmt: skip
        parameters = (
            table.pointer, x.pointer, y.pointer, table.shape[0], table.steps[0], y.size,
            *sizes, *steps,
        )  # fmt: skip
        grid = (blocks_for(y.size, _THREADS),)
        return [KernelLaunch(source, "search", grid, (_THREADS,), parameters)]


class KeptBoxesKernel(CudaKernel[KeptBoxes]):
    """A block for each example, which takes one box after the other."""

    name = "cuda.kept_boxes"
    dtypes = frozenset(["bool", "float16", "bfloat16", "float32", "float64"])
    contiguous_inputs = True

    def launches(self, call: Call[KeptBoxes], inputs: Views, outputs: Views) -> list[KernelLaunch]:
        """One launch; none without boxes."""
        x, y = *inputs, *outputs
        if y.size == 0:
            return []
        boxes = y.shape[-1]
        examples = y.size // boxes
        work = work_dtype(x.dtype)
        macros = {"X": CTYPES[x.dtype], "T": CTYPES[work], "THREADS": _BOX_THREADS}
        source = specialised("scalar.cuh", "boxes.cu", **macros)
        grid = (min(examples, _MAX_BOX_BLOCKS),)
        parameters = (x.pointer, y.pointer, examples, boxes, call.op.overlap)
        return [KernelLaunch(source, "kept_boxes", grid, (_BOX_THREADS,), parameters)]


KERNELS: tuple[Row, ...] = (
    ((Sort, ArgSort, TopK), (SortKernel(),)),
    ((SearchSorted,), (SearchKernel(),)),
    ((KeptBoxes,), (KeptBoxesKernel(),)),
)
