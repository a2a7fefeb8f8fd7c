"""How the work of a :class:`FusedRows` is divided: vectors, threads of a row, where it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from symdnn.gpu.codegen.launches import View, Views
from symdnn.gpu.codegen.reduce_plan import Lines
from symdnn.gpu.codegen.rows_source import RowOperand, tile_places
from symdnn.gpu.device.context import most_cluster_blocks, most_shared_bytes
from symdnn.graph.type import numpy_dtype
from symdnn.graph.values.strides import merged
from symdnn.ops.lowered.fused_rows import FusedRows

__all__ = [
    "MAX_THREADS", "MOST_COLUMN_BLOCKS", "MULTIPROCESSORS", "Division", "Share", "divided",
    "lines_of", "share_of", "whole_of",
]  # fmt: skip

MAX_THREADS, _MIN_BLOCK = 1024, 128
#: 32-bit registers of a thread for the values of a row: where more threads can share the row, and
#: at most.
_WORDS, _MAX_WORDS = 32, 32
MULTIPROCESSORS = 132
#: Likewise for values and sums over rows; these in blocks of so many threads, and so many threads.
#: There is room for more of these small blocks than there are: a collective's blocks may hold some
#: multiprocessors, and what waited for those would take as long again.
_COLUMN_WORDS, _COLUMN_BLOCK, _COLUMN_THREADS = 64, 128, MULTIPROCESSORS * 512
#: Threads of a row whose sums over rows are in registers.
_MAX_COLUMN_THREADS = 512
#: As many registers as sums alone and what they read may take, for more blocks: three quarters of
#: those that fit.
_SUMS_ALONE_WORDS = 36
#: The most blocks of sums alone, and beside stages.
MOST_COLUMN_BLOCKS = MULTIPROCESSORS * 6, _COLUMN_THREADS // _COLUMN_BLOCK
#: Threads of rows in registers that should fit on a multiprocessor: their reads hide others' work.
#: Fewer where late operands take registers, too.
_RESIDENT_THREADS = 1024, 768
#: Threads that fill a device: with fewer rows, more threads share one.
_FILLING_THREADS = MULTIPROCESSORS * 512
_MAX_VECTOR_ELEMENTS, _LINE_BYTES = 8, 128
#: Vectors that a row has at least whose elements begin anywhere in memory.
_LEAST_LOOSE_VECTORS = 4
#: Bytes of shared memory for results of warps.
_MEETING_BYTES = 4 << 10
#: Elements of a short row, threads of its tile in shared memory, and bytes of all operands' tiles.
_MAX_TILE_LENGTH, _TILE_THREADS, _MAX_TILE_BYTES = 40, 128, 48 << 10
#: Registers of such a thread for values of its row, at most, for a late operand, and for all else.
_TILE_WORDS, _TILE_LATE, _TILE_OTHERS = 42, 10, 20
#: Blocks of tiles on a multiprocessor, at most: while some copy, others compute. Softmax of rows of
#: 21 bfloat16 numbers takes 0.154 ms with 8 and 0.140 with 12, of rows of 5 0.219 and 0.254.
_TILE_BLOCKS, _SHORT_TILE_BLOCKS, _SHORTER_THAN = 12, 8, 16
#: Threads of a row in registers, where another has room beside it.
_MAX_ROW_THREADS = 512
#: Rows of a block that reads the next one while it computes one.
_ROWS_AHEAD = 4
#: Where the blocks of a multiprocessor read more bytes at a time, those hide that they come late.
_BYTES_AHEAD = 80 << 10


@dataclass(frozen=True)
class Share:
    """Threads of a row, vectors of each, threads of a block, number of blocks.

    ``resident`` blocks should fit on a multiprocessor; ``columns`` says where sums over rows are;
    ``shared_bytes`` of a block keep its row, or its next one where it reads ``ahead``: then each of
    the ``early`` blocks has ``ahead`` rows for its threads, each of the others one. The blocks of a
    ``cluster`` share a row. Rows of ``tiled`` elements are copied through shared memory.
    """

    lanes: int
    per: int
    block: int
    blocks: int
    resident: int = 1
    columns: int = 0
    shared_bytes: int = 0
    ahead: int = 0
    early: int = 0
    cluster: int = 1
    tiled: int = 0


def lines_of(views: Views, axes: Sequence[int]) -> Lines:
    """Sizes and strides along the rows, and from row to row, merged where possible."""
    shape = views[0].shape
    others = [d for d in range(len(shape)) if d not in axes]
    found = [
        merged([shape[a] for a in some], [[v.steps[a] for a in some] for v in views])
        for some in (others, axes)
    ]
    return Lines(*found[0], *found[1])


def _width(views: Views, lines: Lines) -> int:
    """Elements of a vector: up to 16 bytes of the narrowest operand, as all operands allow."""
    moving = [i for i, s in enumerate(lines.reduced_steps) if s[-1] == 1]
    if not moving or any(s[-1] not in (0, 1) for s in lines.reduced_steps):
        return 1
    width = min(_MAX_VECTOR_ELEMENTS, 16 // min(views[i].itemsize for i in moving))
    while width > 1 and not (
        lines.reduced[-1] % width == 0
        and all(views[i].aligned_to(min(16, width * views[i].itemsize)) for i in moving)
        and all(
            step % width == 0
            for i in moving
            for step, n in zip(
                (*lines.reduced_steps[i][:-1], *lines.kept_steps[i]),
                (*lines.reduced[:-1], *lines.kept),
            )
            if n > 1
        )
    ):
        width //= 2
    return width


def _loose_width(op: FusedRows, views: Views, lines: Lines, width: int) -> int:
    """Elements of a vector of rows that begin anywhere in memory, alike in all operands but those
    that all rows share, where aligned ones have ``width``; 0: none.
    """
    if op.sums is not None or len(lines.reduced) != 1 or width * _least(views, lines) >= 8:
        return 0
    steps = list(zip(views, lines.kept_steps, lines.reduced_steps, strict=True))
    whole = [(v, k) for v, k, r in steps if r[-1] == 1 and any(k)]
    loose = 16 // max((v.itemsize for v, _ in whole), default=16)
    alike = len({tuple(s % loose for s in k) for _, k in whole}) == 1 and all(
        v.aligned_to(loose * v.itemsize) and min(k) >= 0 for v, k in whole
    )
    plain = all(r[-1] in (0, 1) for r in lines.reduced_steps)
    written = [k for _, k, r in steps[len(op.input_dtypes) :] if r[-1] == 1 and any(k)]
    plain &= len(written) == len(views) - len(op.input_dtypes)
    long = lines.reduced[0] >= _LEAST_LOOSE_VECTORS * loose
    return loose if loose > width and alike and plain and long else 0


def _least(views: Views, lines: Lines) -> int:
    """Bytes of the narrowest operand along the rows."""
    return min((v.itemsize for v, r in zip(views, lines.reduced_steps) if r[-1] == 1), default=8)


def _registers(dtypes: Sequence[str]) -> int:
    """32-bit registers for values of these dtypes."""
    return sum(max(1, numpy_dtype(d).itemsize // 4) for d in dtypes)


def _lanes(rows: int, vectors: int, per: int, nbytes: int) -> int:
    """Threads of a row: enough for ``per`` vectors of ``nbytes`` each, and to fill the device; of
    those of a warp that read a line of the cache as many as have the fewest vectors that do not
    exist.
    """
    lanes = 1
    while lanes < 32 and lanes < vectors:
        lanes *= 2
    while lanes < MAX_THREADS and (
        lanes * per < vectors
        or (rows * lanes < _FILLING_THREADS and lanes * 2 <= vectors and lanes < 256)
    ):
        lanes *= 2
    least = max(-(-vectors // per), -(-_FILLING_THREADS // max(rows, 1)))
    fewer = [n for n in (16, 8) if n >= least and n * nbytes >= _LINE_BYTES]
    return min([lanes, *fewer], key=lambda n: n * -(-vectors // n)) if lanes == 32 else lanes


def share_of(op: FusedRows, rows: int, vectors: int, width: int) -> Share:
    """The division of the work."""
    held = width * _registers(op.before.output_dtypes)
    sums = 0 if op.sums is None else width * _registers(op.sums.output_dtypes)
    words = _COLUMN_WORDS if op.stages else _SUMS_ALONE_WORDS
    per = max(1, words // (held + sums) if sums else _WORDS // held)
    narrow = min(numpy_dtype(d).itemsize for d in op.input_dtypes)
    lanes = _lanes(rows, vectors, per, 0 if sums else width * narrow)
    if sums and lanes <= _MAX_COLUMN_THREADS:
        block, per = max(lanes, _COLUMN_BLOCK), -(-vectors // lanes)
        # Nothing waits for a row's sums, but loads are hidden by other threads alone.
        many = 2 if not op.stages and per * (held + sums) <= _SUMS_ALONE_WORDS else 1
        resident = 65536 * many // (128 * block)
        most = MULTIPROCESSORS * (resident - resident // 4) if many > 1 else 0
        return Share(lanes, per, block, _column_blocks(rows, lanes, block, most), resident)
    per = -(-vectors // lanes)
    per = per if per * held <= _MAX_WORDS else 0
    if not sums:
        block = max(lanes, _MIN_BLOCK)
        late = width * _registers(op.input_dtypes[op.early :])
        threads = _RESIDENT_THREADS[per * held + late > _WORDS] if per else 1
        blocks = max(1, min(-(-rows * lanes // block), 2**30))
        return Share(lanes, per, block, blocks, max(1, threads // block))
    shared = vectors * sums * 4 + _MEETING_BYTES <= most_shared_bytes()
    blocks = _column_blocks(rows, lanes, lanes)
    return Share(lanes, per, lanes, blocks, columns=1 if shared else 2)


def _best_share(
    op: FusedRows, rows: int, elements: int, width: int, views: Views
) -> tuple[Share, int]:
    """The division of the work, and elements of a vector: half of ``width`` if they fit better."""
    share = share_of(op, rows, elements // width, width)
    half = width // 2
    if half * max(v.itemsize for v in views) < 8 or share.per == 0:
        return share, width
    other = share_of(op, rows, elements // half, half)
    smaller = 0 < other.lanes * other.per * half < share.lanes * share.per * width
    return (other, half) if smaller else (share, width)


def _staged(share: Share, vectors: int, vector_bytes: int, rows: int) -> Share:
    """Rows that take all registers, or do not fit, in shared memory, if there is room: of two
    blocks, of one, or of a cluster.
    """
    if share.columns or (share.per and share.lanes <= _MAX_ROW_THREADS):
        return share
    most, clusters = most_shared_bytes(), [n for n in (2, 4, 8) if n <= most_cluster_blocks()]
    places = [(2, 1), (1, 1), *((2, n) for n in clusters), *((1, n) for n in clusters[-1:])]
    for resident, cluster in places:
        lanes = MAX_THREADS // resident
        nbytes = -(-vectors // (lanes * cluster)) * lanes * vector_bytes
        if 0 < nbytes + _MEETING_BYTES <= most // resident:
            blocks = min(rows * cluster, 2**30)
            return Share(lanes, 0, lanes, blocks, resident, shared_bytes=nbytes, cluster=cluster)
    return share


def _ahead(share: Share, vectors: int, vector_bytes: int, rows: int) -> Share:
    """Rows of several warps, as many as they need, that wait for each other several times: the next
    row is read in the meantime. The last blocks have a row each, as many as there is room for.
    """
    if share.lanes <= 32 or not share.per:
        return share
    lanes = -(-vectors // (32 * share.per)) * 32
    block = max(lanes, _MIN_BLOCK // lanes * lanes)
    resident = max(1, share.resident * share.block // block)
    nbytes, tiles = share.per * block * vector_bytes, -(-rows * lanes // block)
    room = MULTIPROCESSORS * resident
    early = (tiles - room) // _ROWS_AHEAD
    fits = resident * (nbytes + _MEETING_BYTES) <= most_shared_bytes()
    few = 0 < resident * nbytes <= _BYTES_AHEAD
    if not (few and fits and early >= room // _ROWS_AHEAD):
        return share
    blocks = early + tiles - early * _ROWS_AHEAD
    return Share(
        lanes, share.per, block, blocks, resident, shared_bytes=nbytes, ahead=_ROWS_AHEAD,
        early=early,
    )  # fmt: skip


def _vector_bytes(given: Sequence[RowOperand], width: int) -> int:
    """Bytes of a thread's vectors of all operands; 0 if they are not all contiguous."""
    moving = [a for a in given if a.kind != "fixed"]
    if any(a.kind != "dense" for a in moving):
        return 0
    sizes = [width * numpy_dtype(a.dtype).itemsize for a in moving]
    return 16 * sum(-(-n // 16) for n in sizes)


def _column_blocks(rows: int, lanes: int, block: int, most: int = 0) -> int:
    """Blocks that add sums over rows: all of them run at once."""
    most = most or max(_COLUMN_THREADS // block, MULTIPROCESSORS)
    return max(1, min(-(-rows * lanes // block), most))


def _kind(step: int, steps: Sequence[int], written: bool) -> str:
    if not any(steps) and not written:
        return "fixed"
    return {0: "one", 1: "dense"}.get(step, "strided") if not (written and step == 0) else "strided"


@dataclass(frozen=True)
class Division:
    """How a kernel goes over its operands, which are broadcast to one shape.

    ``vectors`` of ``width`` elements are read of a row, at most.
    """

    views: list[View]
    operands: list[RowOperand]
    lines: Lines
    share: Share
    width: int
    vectors: int
    loose: bool


def divided(op: FusedRows, inputs: Views, results: Views) -> Division:
    """How one kernel goes over these operands."""
    shape = whole_of(inputs)
    if 0 in shape:
        raise AssertionError("rows of no elements")
    views = [v.broadcast_to(shape) for v in (*inputs, *results)]
    lines = lines_of(views, op.axes)
    rows, elements = prod(lines.kept), prod(lines.reduced)
    width = _width(views, lines)
    tiled = _tiled(op, views, lines, width)
    loose = 0 if tiled else _loose_width(op, views, lines, width)
    share, width = _best_share(op, rows, elements, width, views)
    vectors = elements // width
    if loose:
        vectors, width = elements // loose, loose
        share = share_of(op, rows, vectors, loose)
    if tiled:
        vectors, width, share = elements, 1, tiled
    operands = []
    for i, (v, k, r) in enumerate(zip(views, lines.kept_steps, lines.reduced_steps)):
        kind = _kind(r[-1], r, i >= len(inputs))
        if kind == "dense" and (loose or tiled) and any(k) != bool(loose):
            kind = "tiled" if tiled else "any"
        operands.append(RowOperand(v.dtype, kind))
    if not tiled:
        nbytes = _vector_bytes(operands[: op.early], width)
        share = _staged(share, vectors, nbytes, rows)
        if loose and len(op.stages) > 1:
            share = _ahead(share, vectors, nbytes, rows)
    return Division(views, operands, lines, share, width, vectors, bool(loose))


def _tiled(op: FusedRows, views: Views, lines: Lines, width: int) -> Share | None:
    """The division of short rows that are copied through shared memory."""
    if op.sums is not None or len(lines.reduced) > 1 or len(lines.kept) > 1:
        return None
    (rows,), (elements,) = lines.kept, lines.reduced
    held = max(_registers(op.before.output_dtypes), 1)
    steps = list(zip(views, lines.kept_steps, lines.reduced_steps, strict=True))
    whole = [any(r) and any(k) for _, k, r in steps]
    dense = all(
        (*k, *r) == (elements, 1) and v.aligned_to(16) for v, k, r in steps if any(r) and any(k)
    )
    lanes = 1
    while -(-elements // lanes) * held > _TILE_WORDS and lanes < 32:
        lanes *= 2
    kinds = [RowOperand(v.dtype, "tiled" if w else "one") for v, w in zip(views, whole)]
    count, tile = len(op.input_dtypes), _TILE_THREADS // lanes
    nbytes = tile_places(kinds[:count], kinds[count:], op.early, tile * elements)[1]
    per = -(-elements // lanes)
    fits = elements <= _MAX_TILE_LENGTH and nbytes <= _MAX_TILE_BYTES
    fits &= per * held <= _TILE_WORDS
    fits &= all(tile * v.itemsize % 16 == 0 for v, w in zip(views, whole) if w)
    if not (dense and fits and elements > 1 and width * _least(views, lines) < 16):
        return None
    registers = per * held + _TILE_OTHERS + _TILE_LATE * (len(op.input_dtypes) - op.early)
    most = _SHORT_TILE_BLOCKS if elements < _SHORTER_THAN else _TILE_BLOCKS
    resident = max(1, min(most, 65536 // (_TILE_THREADS * registers)))
    blocks = min(-(-rows // tile), 2**30)
    return Share(
        lanes, per, _TILE_THREADS, blocks, resident, shared_bytes=nbytes, tiled=elements
    )  # fmt: skip


def whole_of(views: Views) -> tuple[int, ...]:
    """The common shape of operands that broadcast."""
    return tuple(next((n for n in dims if n != 1), 1) for dims in zip(*(v.shape for v in views)))
