"""How a nest runs on a CPU: what are lanes of vectors, tasks of threads, and chunks of a fold.

Five shapes of loops:

- ``columns``: the lanes are neighbours along a kept axis. A task is a band of them, whose states
  are in memory, in the first cache; it goes along the folded axes, the last of which is the one of
  rows. Operands that are dense along the rows are turned into a tile first, but for an axis of a
  few numbers, all of which one iteration has: LLVM makes interleaved loads. Such a nest may have
  its lanes along a folded axis: in the end they meet. Of an axis between both a chunk has one
  number, so that a lane's elements are in order.
- ``rows``: a part of a row after the other, in registers. LLVM makes the vectors, since it may
  reorder the sums, products or extremes of a part: those of floats are in float64. Where an
  extreme is, is looked for in a part that has a better one than all before.
- ``bundles``: :data:`BUNDLE` rows at a time, of each of which some neighbours are lanes, in
  registers. For sums and products of rows, also of few columns beside each other.
- ``lanes``: the lanes are neighbours along the last folded axis; each folds every so many-th
  element, and in the end they meet in pairs. For reductions. Few columns ``beside`` each other
  that are one run of memory with the rows are such a line: each has its lanes.
- ``lines``: along neighbours in memory, for scans and short reductions: some lines at a time, one
  element of each after the other, states in registers.

All follows from sizes and strides, nothing from the processor or the number of threads, so neither
do the bits of a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from symdnn.cpu.ir.loops_ir import LoopOperand, inner
from symdnn.cpu.ir.pack_ir import is_packed
from symdnn.cpu.ir.turn_ir import TURN_BLOCK
from symdnn.cpu.ir.vector_printer_ir import has_vectors
from symdnn.ops.nest.monoid import BRIEF
from symdnn.ops.nest.nest import Access, Nest

#: Rows of a bundle.
BUNDLE = 4
#: The beginning of the kinds of operands that are packed; their steps follow.
PACKED = "packed "

#: The most and the fewest columns of a band: wide ones are read in long runs, several threads need
#: several. No column depends on others, so neither do bits on the width.
_MAX_BAND, _MIN_BAND = 1024, 64
#: Lanes along a folded axis, by its least length; an axis has the first that it is long enough for.
_LANES = ((4096, 256), (256, 64), (0, 16))
#: Columns up to which they are part of a line, of so many lanes or fewer, if that is so long.
_MAX_BESIDE, _LANES_BESIDE, _MIN_BESIDE = 48, 256, 1024
#: The same for simple monoids of 2, 4, 8 and so on columns.
_SIMPLE_LANES, _MIN_SIMPLE = 32, 256
#: Lines that are run together, since each addition waits for the one before.
_LINES = 4
#: Monoids whose rows are bundled.
_BUNDLED = frozenset({"sum", "prod"})
#: Lanes of a row of a bundle, and how many columns may be beside each other in it. A row has at
#: most so many elements in all; one of up to twice so many is added in one part.
_LANES_OF_BUNDLE, _BESIDE_IN_BUNDLE = 8, (1, 2, 4)
_MAX_IN_BUNDLE, _PART_OF_BUNDLE = 1 << 15, 1 << 10
#: Columns that fill a vector; short folded axes, along which lanes are not worth it; columns beside
#: a short axis that are worth turning.
_MIN_COLUMNS, _SHORT_AXIS, _MIN_TURNED = 4, 128, 16
#: Lines of up to so many elements whose lanes meet once where the monoids are simple: vectors of
#: longer ones may meet at the end of each. How many there are at least, and follow one another.
_SHORT_LINE, _MIN_LINES, _MIN_IN_TURN = 512, 16, 8
#: Lanes of a tile of turned operands, and bytes of all tiles, which stay in the first cache.
_TILE_LANES, _TILE_BYTES = 64, 1 << 14
#: Lanes of a tile of operands that are packed only, and elements of a line that are packed at once.
_PACKED_LANES, PACKED_PART = 512, 1024
#: Bytes of a page, and of operands that are mostly outside of the caches.
_PAGE_BYTES, _UNCACHED_BYTES = 1 << 12, 1 << 23
#: Elements of rows, at least, whose parts are added in fewer bits, not in bundles.
_MIN_BRIEF = 128
#: Elements of rows, at least, of which the next ones are fetched.
_MIN_FETCHED = 512
#: Elements that are looked at together for an extreme: no line is shorter that is searched.
SOUGHT = 64
#: Numbers of an axis that one iteration has.
_MAX_UNROLLED = 6
#: Monoids whose elements LLVM may take in any order, which it does well for more than a few.
_SIMPLE, _FEW = frozenset({"sum", "prod", "max", "min", "any", "all"}), 12
#: Words that indices are divided by, unless they are 1.
_COUNTS = ("C", "S", "JB", "F")
#: Rows of a part where nothing is turned.
_PART_ROWS = 64
#: Elements of rows that are long for eight vectors at a time and what is left of these.
_MIN_LONG = 256
#: Elements of a part of a folded axis: chunks have whole parts. Rows of up to two are one part.
_PART_ELEMENTS = BRIEF // 2
#: The length of rows of extremes up to this is a constant of the code: LLVM combines the lanes of
#: vectors once, and not again for what is left of them. Of sums it would make worse code so.
_MAX_CONSTANT_LENGTH = 256
#: A reduction of few results is cut into chunks: up to so many tasks, of at least so many elements.
_WANTED_TASKS, _MIN_TASK_ELEMENTS = 64, 1 << 14


@dataclass(frozen=True)
class Schedule:
    """What the text depends on: the shape of loops, how many axes are outside of the lanes.

    ``reads`` and ``writes`` are strides along the lanes (along the folded axis for lines);
    a read is ``turned`` if it is dense along the rows of columns, of which a tile has ``rows``,
    and ``packed every 2`` if it has every second number along the lanes, which a tile has too, or
    a buffer for a part of a line.
    ``meet``: the lanes of columns are along a folded axis. ``simple``: the monoids are of
    :data:`_SIMPLE`. ``constants`` are words that the text has. ``length`` is that of short rows,
    else 0; columns have all of it in one iteration.
    ``beside`` is the number of columns that a line of lanes has. ``in_turn``: rows of columns, or
    runs of lanes, go one after the other, not some together. ``fetches``: the rows of the next
    bundle are fetched meanwhile. ``long``: rows fill eight vectors
    several times, or lanes are along another axis.
    """

    shape: str
    lanes: int
    kept: int
    along: int
    reads: tuple[LoopOperand, ...]
    writes: tuple[LoopOperand, ...]
    rows: int = 0
    meet: bool = False
    simple: bool = False
    constants: tuple[tuple[str, int], ...] = ()
    length: int = 0
    beside: int = 1
    in_turn: bool = False
    fetches: bool = False
    long: bool = False

    @property
    def chunked(self) -> bool:
        """Whether several tasks have parts of one fold, which are combined in the end."""
        return ("F", 1) not in self.constants


def word_names(schedule: Schedule) -> list[str]:
    """Names of the words of the block of parameters, in order.

    ``threads``, ``tasks``, ``one``: the head of every kernel's block. A task has one of ``C``
    chunks of a fold, with ``Q`` parts of ``QT`` in all; a part is one of ``S`` parts of an axis of
    ``n`` elements, ``seg`` long. There are ``m`` columns in ``JB`` bands of ``W``, or ``m`` lines.
    ``F`` tasks have parts of a fold. ``NR`` and ``NK`` are elements from one number of the folded
    axes outside to the next, and from one row to the next.
    """
    names = ["threads", "tasks", "one", "C", "Q", "QT", "S", "seg", "n", "m", "W", "JB"]
    names += ["F", "NR", "NK"]
    names += [f"kn{d}" for d in range(1, schedule.kept)]
    names += [f"an{d}" for d in range(1, schedule.along)]
    operands = [f"x{i}" for i in range(len(schedule.reads))]
    operands += [f"y{i}" for i in range(len(schedule.writes))]
    for name in operands:
        names += [name, f"{name}.o", f"{name}.i", f"{name}.s"]
        names += [f"{name}.k{d}" for d in range(schedule.kept)]
        names += [f"{name}.a{d}" for d in range(schedule.along)]
    return [*names, "partial"]


@dataclass(frozen=True)
class _Axes:
    """A shape of loops, and the axes of its lanes and of the rows of columns."""

    shape: str
    lane: int
    row: int
    unrolled: bool = False
    #: Whether operands may be read from tiles: scans write as they go.
    tiles: bool = True

    def turned(self, a: Access) -> bool:
        """Whether an operand that is read is dense along rows, and not along lanes."""
        lane, row = a.steps[self.lane], a.steps[self.row]
        crossed = row == a.itemsize and lane not in (0, a.itemsize)
        return self.tiles and self.shape == "columns" and crossed and not self.unrolled

    def packed(self, a: Access) -> bool:
        """Whether every second (third, fourth) number along the lanes is read."""
        few = is_packed(inner(a.steps[self.lane], a.itemsize), a.itemsize)
        return self.tiles and self.shape != "lines" and few and not self.unrolled


def scheduled(nest: Nest, threads: int) -> tuple[Schedule, dict[str, int]]:
    """The schedule of a merged nest, and the words that do not depend on addresses."""
    apart = [a.steps[nest.kept[-1]] for a in nest.writes]
    nest, beside = _with_columns(nest)
    axes = _axes(nest) if beside == 1 else _axes_of_columns(nest, beside)
    axes = replace(axes, tiles=not nest.fold.scan)
    shape, length = axes.shape, nest.sizes[axes.row]
    kept = [d for d in nest.kept if d != axes.lane]
    along = [d for d in nest.along if d not in (axes.lane, axes.row)]
    meet = shape == "columns" and axes.lane in nest.along
    outer = prod(nest.sizes[d] for d in kept)
    tiles = [a for a in nest.reads if axes.turned(a) or axes.packed(a)]
    lanes, rows, seg = _extent(nest, axes, outer, tiles, beside)

    def operand(a: Access, written: bool) -> LoopOperand:
        if not written and axes.turned(a):
            return LoopOperand(a.dtype, "turned")
        kind = inner(a.steps[axes.lane], a.itemsize, written)
        return LoopOperand(a.dtype, f"{PACKED}{kind}" if not written and axes.packed(a) else kind)

    in_turn = not tiles and _in_turn(nest, axes)
    fetches = in_turn and shape == "bundles" and _fetches(nest)
    found = Schedule(
        shape, lanes, len(kept), len(along),
        tuple(operand(a, False) for a in nest.reads), tuple(operand(a, True) for a in nest.writes),
        rows, meet, _simple(nest), beside=beside, in_turn=in_turn and not fetches,
        fetches=fetches, long=shape != "rows" or length >= _MIN_LONG,
    )  # fmt: skip
    columns = nest.sizes[axes.lane] if shape == "columns" else outer
    band = BUNDLE if shape == "bundles" else lanes
    if shape == "columns" and not tiles and not meet:
        band = _band(outer * columns, threads)
    bands = -(-columns // band) if shape in ("columns", "lines", "bundles") else 1
    parts_of_row = -(-length // seg)
    parts = prod(nest.sizes[d] for d in along) * parts_of_row
    groups = bands if shape in ("lines", "bundles") else outer * bands
    chunks, chunk = _chunks(nest, axes, outer, lanes if tiles else _MAX_BAND, parts)
    between = prod(nest.sizes[d] for d in along if d > axes.row) if meet else 1
    if between > 1:
        chunks, chunk = parts // parts_of_row, parts_of_row
    words = {
        "tasks": groups * chunks, "one": 1, "C": chunks, "Q": chunk, "QT": parts,
        "S": parts_of_row, "seg": seg, "n": length, "m": columns, "W": band, "JB": bands,
        "F": chunks * bands if meet else chunks,
        "NR": (length if between == 1 else 1) * (columns if meet else 1),
        "NK": between * columns if meet else 1,
    }  # fmt: skip
    for mark, dims in (("k", kept), ("a", along)):
        words |= {f"{mark}n{i}": nest.sizes[d] for i, d in enumerate(dims) if i}
    for kind, operands in (("x", nest.reads), ("y", nest.writes)):
        for j, a in enumerate(operands):
            words |= {f"{kind}{j}.o": a.offset, f"{kind}{j}.i": a.steps[axes.lane]}
            words |= {f"{kind}{j}.s": a.steps[axes.row]}
            words |= {f"{kind}{j}.k{i}": a.steps[d] for i, d in enumerate(kept)}
            words |= {f"{kind}{j}.a{i}": a.steps[d] for i, d in enumerate(along)}
    if beside > 1:
        words |= {f"y{j}.i": step for j, step in enumerate(apart)}
    return _with_constants(found, nest, axes, words), words


def _with_constants(found: Schedule, nest: Nest, axes: _Axes, words: dict[str, int]) -> Schedule:
    """The schedule with the words that its text has, and the length of short rows."""
    known, length = [name for name in _COUNTS if words[name] == 1], words["n"]
    if axes.unrolled:
        known += [n for n in words if n[0] in "xy" and n.endswith((".i", ".s"))]
    extremes = all(m.name in ("max", "min") or m.sought for m in nest.fold.monoids)
    alone = found.shape == "rows" and extremes and not found.along
    short = alone and length <= _MAX_CONSTANT_LENGTH
    constants = tuple((name, words[name]) for name in known)
    return replace(found, constants=constants, length=length if short or axes.unrolled else 0)


def _with_columns(nest: Nest) -> tuple[Nest, int]:
    """The nest whose rows have its columns too, and their number: 1 where they stay an axis."""
    column, row = nest.kept[-1], nest.along[-1]
    count, length = nest.sizes[column], nest.sizes[row]
    ordered = nest.fold.scan or any(m.ordered for m in nest.fold.monoids)
    dense = all(a.steps[row] == count * a.steps[column] for a in nest.reads)
    if ordered or not 1 < count <= _MAX_BESIDE or not dense:
        return nest, 1

    def flat(a: Access, read: bool) -> Access:
        steps = list(a.steps)
        steps[row], steps[column] = steps[column] if read else 0, 0
        return replace(a, steps=tuple(steps))

    sizes = list(nest.sizes)
    sizes[row], sizes[column] = count * length, 1
    reads, writes = (tuple(flat(a, a in nest.reads) for a in g) for g in (nest.reads, nest.writes))
    found = replace(nest, sizes=tuple(sizes), reads=reads, writes=writes)
    least = _MIN_SIMPLE if _few_lanes(nest, count) else _MIN_BESIDE
    fits = count * length >= least or _in_bundles(found, count)
    return (found, count) if fits else (nest, 1)


def _axes_of_columns(nest: Nest, beside: int) -> _Axes:
    """The shape of lines that have ``beside`` columns."""
    shape = "bundles" if _in_bundles(nest, beside) else "lanes"
    return _Axes(shape, nest.along[-1], nest.along[-1])


def _in_bundles(nest: Nest, beside: int) -> bool:
    """Whether rows, or lines of so many columns, are summed some together."""
    row, rows = nest.along[-1], prod(nest.sizes[d] for d in nest.kept)
    dense = all(a.steps[row] in (0, a.itemsize) for a in nest.reads)
    fits = nest.sizes[row] >= _LANES_OF_BUNDLE and rows >= BUNDLE and beside in _BESIDE_IN_BUNDLE
    few = prod(nest.sizes[d] for d in nest.along) <= _MAX_IN_BUNDLE
    monoids = nest.fold.monoids
    known = not nest.fold.scan and all(m.name in _BUNDLED for m in monoids)
    known = known and not (nest.sizes[row] >= _MIN_BRIEF and all(m.brief for m in monoids))
    programs = (nest.fold.program, *(m.leave for m in monoids))
    return fits and few and dense and known and all(map(has_vectors, programs))


def _few_lanes(nest: Nest, beside: int) -> bool:
    """Whether lines of so many columns have few lanes: whole vectors, which stay in registers."""
    return _simple(nest) and beside & (beside - 1) == 0


def _extent(
    nest: Nest, axes: _Axes, outer: int, tiles: Sequence[Access], beside: int
) -> tuple[int, int, int]:
    """(lanes, rows of a tile, elements of a part)"""
    length = nest.sizes[axes.row]
    if axes.shape == "bundles":
        whole = length <= 2 * _PART_OF_BUNDLE
        return _LANES_OF_BUNDLE, 0, length if whole else _PART_OF_BUNDLE
    if beside > 1:
        lanes = beside << (_LANES_BESIDE // beside).bit_length() - 1
        if _few_lanes(nest, beside):
            lanes = max(beside, _SIMPLE_LANES)
        most = PACKED_PART if tiles else _PART_ELEMENTS
        return lanes, 0, max(1, most // lanes) * lanes
    if axes.shape == "lines":
        return (_LINES if outer >= _LINES else 1), 0, length
    if axes.shape != "columns":
        lanes = next(count for least, count in _LANES if length >= least)
        lanes = _LANES_OF_BUNDLE if axes.shape == "rows" else lanes  # of quarters of a row
        if tiles:
            return lanes, 0, min(length, PACKED_PART)
        return lanes, 0, length if length <= 2 * _PART_ELEMENTS else _PART_ELEMENTS
    if tiles:
        size = sum(a.itemsize for a in tiles)
        if not any(map(axes.turned, tiles)):
            rows = max(1, min(_TILE_BYTES // (_PACKED_LANES * size), _PART_ROWS))
            return _PACKED_LANES, rows, rows
        lanes = _TILE_LANES
        rows = _TILE_BYTES // (lanes * size)
        # Whole blocks: a tile has no room beyond them.
        rows = max(TURN_BLOCK, min(rows, _PART_ROWS) // TURN_BLOCK * TURN_BLOCK)
        return lanes, rows, rows
    lanes = _MAX_BAND
    if axes.lane in nest.along:  # all of which meet
        lanes = min(lanes, 1 << (nest.sizes[axes.lane] - 1).bit_length())
    return lanes, 0, length if nest.fold.scan else min(length, _PART_ROWS)


def _band(columns: int, threads: int) -> int:
    """Columns of a band: a few bands for each thread, if there are enough columns."""
    share = -(-columns // (2 * threads)) if threads > 1 else columns
    return max(_MIN_BAND, min(_MAX_BAND, -(-share // _MIN_BAND) * _MIN_BAND))


def _simple(nest: Nest) -> bool:
    return not nest.fold.scan and all(m.name in _SIMPLE for m in nest.fold.monoids)


def _seeks(nest: Nest) -> bool:
    """Whether extremes of parts of lines are found first, and then where they are."""
    fold, row = nest.fold, nest.along[-1]
    known = all(m.sought or m.name in _SIMPLE for m in fold.monoids)
    alone = known and not fold.scan and not fold.program.body and len(nest.reads) == 1
    return (
        alone and nest.sizes[row] >= SOUGHT and nest.reads[0].steps[row] == nest.reads[0].itemsize
    )


def _in_turn(nest: Nest, axes: _Axes) -> bool:
    """Whether rows are best read one after the other: memory is then read in order.

    So it is where one is outside of the caches whose rows share pages: what prefetches follows
    one run of addresses in each page.
    """

    def follows(a: Access) -> bool:
        bytes_of_all = a.itemsize * prod(n for n, s in zip(nest.sizes, a.steps, strict=True) if s)
        near = a.steps[axes.lane] == a.itemsize and 0 < abs(a.steps[axes.row]) < _PAGE_BYTES
        return near and bytes_of_all >= _UNCACHED_BYTES

    in_memory = axes.shape == "columns" or (axes.shape == "lanes" and not _simple(nest))
    in_memory = in_memory and not any(m.few for m in nest.fold.monoids)
    return (in_memory or axes.shape == "bundles") and any(map(follows, nest.reads))


def _fetches(nest: Nest) -> bool:
    """Whether rows of a bundle take so long that the next ones are best fetched meanwhile: one row
    has one sum for each lane, and each addition waits for the one before. (Sums of 20 MB of float32
    in rows of 2500: in turn 760 us, so 450; in rows of 256: 570 and 790.)"""
    narrow = all(a.itemsize < 8 for a in nest.reads)
    return narrow and nest.sizes[nest.along[-1]] >= _MIN_FETCHED


def _most_of_line(nest: Nest) -> int:
    """The length up to which lines of a simple fold have lanes that meet once: 0 for few lines, and
    for numbers of 8 bytes, beside which states are as much to read."""
    lines = [nest.sizes[d] for d in nest.along[:-1]]
    many = prod(lines) >= _MIN_LINES and lines[-1] >= _MIN_IN_TURN
    return _SHORT_LINE if many and all(a.itemsize < 8 for a in nest.reads) else 0


def _longest_short_axis(nest: Nest) -> int:
    """The length up to which the rows of folds that are not simple are columns, where those that
    are searched need no tiles: floats of 16 bits are converted twice then."""
    if not _seeks(nest):
        return _SHORT_AXIS
    return _SHORT_AXIS - 1 if nest.reads[0].dtype in ("float16", "bfloat16") else _FEW


def _axes(nest: Nest) -> _Axes:
    column, row = nest.kept[-1], nest.along[-1]
    columns, length = nest.sizes[column], nest.sizes[row]

    def dense(d: int, other: int) -> bool:
        """Whether an operand is contiguous along an axis, and it has the other one too."""
        return nest.sizes[d] > 1 and any(
            a.steps[d] == a.itemsize and a.steps[other] for a in nest.reads
        )

    def crossed(d: int) -> bool:
        return nest.sizes[d] >= _MIN_COLUMNS and dense(d, row) and dense(row, d)

    if _in_bundles(nest, 1):
        return _Axes("bundles", row, row)
    ordered = any(m.ordered for m in nest.fold.monoids)
    simple = _simple(nest)
    packed = [a for a in nest.reads if a.steps[row] == a.itemsize]
    whole = all(a.steps[column] == length * a.itemsize for a in (packed or nest.reads))
    if 1 < length <= _MAX_UNROLLED and columns >= _MIN_TURNED and len(nest.along) == 1 and whole:
        return _Axes("columns", column, row, unrolled=True)
    if not nest.fold.scan:
        across = [d for d in nest.kept if crossed(d)]
        short_axis = _FEW if simple else _longest_short_axis(nest)
        if across or (length <= short_axis and columns >= _MIN_TURNED and dense(row, column)):
            return _Axes("columns", across[-1] if across else column, row)
        if len(nest.along) > 1 and not ordered:
            # Few numbers of a line: lanes along it that go over several lines meet once.
            few = _MIN_TURNED <= length <= (_most_of_line(nest) if simple else _SHORT_AXIS)
            few = few and all(a.steps[row] in (0, a.itemsize) for a in nest.reads)
            ahead = nest.along[-2]
            if few or crossed(ahead) or (dense(ahead, row) and length >= _MIN_TURNED):
                return _Axes("columns", row, ahead)
            if len(nest.along) == 3 and dense(nest.along[0], row) and length >= _MIN_TURNED:
                return _Axes("columns", row, nest.along[0])
    beside, ahead = (
        sum(abs(a.steps[d]) for a in nest.reads if nest.sizes[d] > 1) for d in (column, row)
    )
    neighbours = columns >= _MIN_COLUMNS and (beside < ahead or length == 1)
    if neighbours or (ordered and len(nest.along) > 1 and not nest.fold.scan):
        return _Axes("columns", column, row)
    if simple or _seeks(nest):
        return _Axes("rows", row, row)
    short = length <= _SHORT_AXIS and len(nest.along) == 1
    return _Axes("lines" if ordered or short or nest.fold.scan else "lanes", row, row)


def _chunks(nest: Nest, axes: _Axes, outer: int, band: int, parts: int) -> tuple[int, int]:
    """(the number of chunks of each fold, parts of a chunk): not by the number of threads."""
    if nest.fold.scan or axes.shape in ("lines", "bundles"):
        return 1, parts
    groups = outer
    if axes.shape == "columns":
        groups *= -(-nest.sizes[axes.lane] // band)
    each = prod(nest.sizes) // max(groups, 1)
    wanted = max(1, min(-(-_WANTED_TASKS // groups), each // _MIN_TASK_ELEMENTS))
    chunk = -(-parts // wanted)
    return -(-parts // chunk), chunk
