"""How a reduction is divided among the threads of blocks, and into chunks."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from symdnn.gpu.codegen.reduce_form import BLOCK_THREADS, Sweep

#: Blocks that keep a large device busy, and the fewest elements per thread, without vectors.
_SCALAR_BLOCKS, _THREAD_ELEMENTS = 512, 16
#: With vectors: blocks that run at the same time, vectors per thread, elements of a vector, and of
#: one whose bytes are not looked at one by one.
_VECTOR_BLOCKS, _THREAD_VECTORS, MAX_VECTOR_ELEMENTS, MAX_VECTOR_BYTES = 528, 8, 8, 16
#: With vectors along kept dimensions: blocks for each one that a multiprocessor holds, and partial
#: results per thread of the last block, which merges them.
_ACROSS_BLOCKS, _THREAD_PARTIALS = 132, 16
_WARP = 32
#: The size of the largest struct in reduce.cuh.
_MAX_STATE_BYTES = 16
#: Fewest threads of a row, and vectors of each, where there are rows enough; threads that read
#: neighbours, if that leaves each of them so many vectors. Rows of so few single elements are read
#: by one thread each.
_OWN_ELEMENTS = 4
_LEAST_LANES, _LANE_VECTORS, _NEAR_LANES, _NEAR_VECTORS = 2, 8, 4, 4


@dataclass(frozen=True)
class Lines:
    """Sizes of the kept and of the reduced dimensions after merging, and all operands' steps."""

    kept: tuple[int, ...]
    kept_steps: list[tuple[int, ...]]
    reduced: tuple[int, ...]
    reduced_steps: list[tuple[int, ...]]


@dataclass(frozen=True)
class Plan:
    """The division of the work: threads of a block, groups of outputs per block, chunks.

    In a sweep in vectors, elements and the outputs of a group are counted in vectors.
    """

    outputs: int
    groups: int
    elements: int
    block: tuple[int, int]
    groups_per_block: int
    chunks: int

    def in_warps(self, sweep: Sweep) -> bool:
        """Whether the threads of a row are in one warp, and rows are not cut."""
        return sweep.rows and self.block[0] <= _WARP and self.chunks == 1


def plan_of(lines: Lines, sweep: Sweep) -> Plan:
    """The division of the work for these sizes."""
    outputs, elements = prod(lines.kept), prod(lines.reduced)
    if sweep.across:
        return _across_plan(outputs, elements, lines.kept[-1], sweep)
    vectors = bool(sweep.sources)
    count = -(-elements // sweep.width)
    if sweep.edges:
        count = -(-(elements + sweep.width - 1) // sweep.width)
    if sweep.rows:
        lanes = min(_power_of_two(count), BLOCK_THREADS)
        few = min(_WARP, max(_LEAST_LANES, _power_of_two(count // _LANE_VECTORS + 1) // 2))
        few = max(few, min(_NEAR_LANES, _power_of_two(count // _NEAR_VECTORS)))
        few = 1 if not vectors and count <= _OWN_ELEMENTS else few
        while lanes > few and outputs * lanes >= 2 * _VECTOR_BLOCKS * BLOCK_THREADS:
            lanes //= 2
    else:
        columns = min(_power_of_two(outputs), 32 if count >= 32 else BLOCK_THREADS)
        lanes = BLOCK_THREADS // columns
    per_block = BLOCK_THREADS // lanes
    tiles = -(-outputs // per_block)
    wanted, least = (
        (_VECTOR_BLOCKS, _THREAD_VECTORS) if vectors else (_SCALAR_BLOCKS, _THREAD_ELEMENTS)
    )
    chunks = max(1, min(wanted // tiles, count // (lanes * least)))
    block = (lanes, per_block) if sweep.rows else (per_block, lanes)
    return Plan(outputs, outputs, count, block, per_block, chunks)


def _across_plan(outputs: int, elements: int, run: int, sweep: Sweep) -> Plan:
    """The plan for vectors of lines of ``run`` outputs: 32 of them per block, fewer if the merge
    would be long."""
    groups = outputs // run * -(-run // sweep.width)
    columns = min(_power_of_two(groups), 32 if elements >= 32 else BLOCK_THREADS)
    while True:
        lanes = BLOCK_THREADS // columns
        tiles = -(-groups // columns)
        wanted = _ACROSS_BLOCKS * sweep.resident // tiles
        chunks = max(1, min(wanted, elements // (lanes * _THREAD_VECTORS)))
        if columns <= 8 or chunks * columns * sweep.width <= _THREAD_PARTIALS * BLOCK_THREADS:
            return Plan(outputs, groups, elements, (columns, lanes), columns, chunks)
        columns //= 2


def _power_of_two(n: int) -> int:
    """The smallest power of two >= ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def scratch_bytes(outputs: int, elements: int, states: int) -> int:
    """Bytes for partial results with any strides; ``states`` of at most 16 bytes each."""
    if elements < 2 * _THREAD_VECTORS:
        return 0
    blocks = max(_SCALAR_BLOCKS, _VECTOR_BLOCKS)
    chunks = min(blocks, elements // _THREAD_VECTORS)
    most = blocks * BLOCK_THREADS * MAX_VECTOR_ELEMENTS
    return _MAX_STATE_BYTES * states * min((2 * outputs + outputs // 2) * chunks, most)
