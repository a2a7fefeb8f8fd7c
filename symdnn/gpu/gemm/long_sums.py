"""float32 products with few results and long sums by a kernel of ours: blocks share a sum's terms.

The gradient of a narrow layer's weights over many rows is one. On an H200 it takes 0.4 to 0.95 of
cuBLASLt's time for results of one or two tiles, and 0.08 for a stack of eight, of which cuBLASLt
divides no sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from symdnn.gpu.codegen.device_source import specialised
from symdnn.gpu.gemm.parts import Adding, launched
from symdnn.gpu.gemm.plan import ALIGNMENT_BYTES, GemmSignature, Matrix, Pointers, aligned

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

#: Blocks that run at a time on a large card.
_BLOCKS = 264
#: Terms from which a sum is long, and the most tiles of the results: of a matrix, of which cuBLASLt
#: divides the sums, and of a stack, of which it divides none.
_LEAST_TERMS, _MOST_TILES, _MOST_STACKED = 4096, 2, 64
#: A side of which cuBLASLt's tiles are mostly empty, and multiplications from which a result with
#: longer sides is cuBLASLt's: 64x262144x64 takes 84 us, and 70 by cuBLASLt.
_NARROW, _MANY = 32, 1 << 28
#: Stages of a part at least, and those from which a multiprocessor has two parts of a sum.
_LEAST_STAGES, _MANY_STAGES = 2, 6
_STAGED, _TILES = 4096, (16, 32, 64)
_THREADS, _VECTOR, _ITEM_BYTES = 256, 4, 4
#: Which operand an epilogue adds up.
_SUMMED = {"": 0, "bgrada": 1, "bgradb": 2}


def has_few_results(s: GemmSignature) -> bool:
    """Whether a product has few results and long sums."""
    tiles = s.batch
    for size in (s.d.rows, s.d.columns):
        tiles *= -(-size // _TILES[-1])
    few = tiles <= (_MOST_TILES if s.batch == 1 else _MOST_STACKED)
    many = s.d.rows * s.d.columns * s.k > _MANY
    if s.batch == 1 and many and min(s.d.rows, s.d.columns) > _NARROW:
        return False
    return s.dtype == s.result == "float32" and few and s.k >= _LEAST_TERMS


def long_sums_ways(s: GemmSignature) -> list[LongSums]:
    """The kernel, where a product has few results and long sums."""
    if s.epilogue not in _SUMMED or s.scaled or s.dtype_b or not has_few_results(s):
        return []
    found = LongSums(s)
    return [found] if found.workspace_bytes <= s.workspace_limit else []


class LongSums:
    """A way to run a GEMM, as :class:`~symdnn.gpu.gemm.plan.GemmAlgorithm` is one.

    ``parts`` is the number of blocks that share a sum, by default as many as a card runs.
    """

    number = "long_sums"

    def __init__(self, s: GemmSignature, parts: int = 0) -> None:
        self.signature = s
        self.tile = _tile(s.d.rows), _tile(s.d.columns)
        #: Terms of a stage.
        self.stage = 1 << (_STAGED // sum(self.tile)).bit_length() - 1
        self.tiles = -(-s.d.rows // self.tile[0]) * -(-s.d.columns // self.tile[1])
        stages = -(-s.k // self.stage)
        wanted = parts or _parts(stages, self.tiles * s.batch)
        #: Terms of a part.
        self.length = -(-stages // wanted) * self.stage
        self.parts = -(-s.k // self.length)
        #: Results of the sums over an operand.
        self.totals = (0, s.d.rows, s.d.columns)[_SUMMED[s.epilogue]]
        self.result_bytes = self.parts * s.batch * s.d.rows * s.d.columns * _ITEM_BYTES
        own = self.result_bytes + self.parts * self.totals * _ITEM_BYTES
        self.workspace_bytes = own + ALIGNMENT_BYTES

    @property
    def arithmetic(self) -> str:
        """How it multiplies, for reports."""
        return "float32"

    @property
    def words(self) -> dict[str, Any]:
        """JSON values that identify it, for records."""
        return {"name": self.number, "algorithm": [self.number, *self.tile, self.parts],
                "workspace_bytes": self.workspace_bytes}  # fmt: skip

    def __str__(self) -> str:
        rows, columns = self.tile
        return (
            f"own kernel of long sums, tile {rows}x{columns}, sums in {self.parts} parts, "
            f"workspace {self.workspace_bytes} bytes"
        )

    @cached_property
    def source(self) -> str:
        """The kernel of the parts."""
        s = self.signature
        alongs = s.a.transposed, not s.b.transposed  # the terms of a sum are neighbours
        wholes = (_is_whole(m, at) for m, at in zip((s.a, s.b), s.alignment))
        return specialised(
            "long_sums.cu", TILE_ROWS=self.tile[0], TILE_COLUMNS=self.tile[1],
            TERMS=self.stage, SUMMED=_SUMMED[s.epilogue],
            **{f"{n}_ALONG": int(along) for n, along in zip("AB", alongs)},
            **{f"{n}_WHOLE": int(whole) for n, whole in zip("AB", wholes)},
        )  # fmt: skip

    @property
    def adding(self) -> Adding:
        """The addition of the parts."""
        s = self.signature
        return Adding(self.parts, s.batch, s.d, s.c or s.d)

    def enqueue(self, env: LaunchEnv, at: Pointers, factors: Sequence[float]) -> None:
        """Enqueue the kernel of the parts, and the one that adds them."""
        s = self.signature
        sums = aligned(env.workspace)
        sizes = s.d.rows, s.d.columns, s.k, s.a.ld, s.b.ld, s.a.batch_offset, s.b.batch_offset
        totals = sums + self.result_bytes
        parameters = (at.a, at.b, sums, totals, *sizes, self.length, s.batch)
        grid = self.parts, self.tiles, s.batch
        launched(env, self.source, "long_sums", grid, (_THREADS,), parameters)
        self.adding.enqueue(env, (sums, at.d, at.c or at.d), factors)
        if self.totals:
            line = Matrix(self.totals, 1, self.totals)
            adding = Adding(self.parts, 1, line, line)
            adding.enqueue(env, (totals, at.bias, at.bias), (1.0, 0.0))


def _parts(stages: int, tiles: int) -> int:
    """The number of blocks that share a sum: adding the parts of short ones takes longer."""
    wanted = _BLOCKS if stages * tiles >= _MANY_STAGES * _BLOCKS else _BLOCKS // 2
    return max(1, min(wanted // tiles, stages // _LEAST_STAGES))


def _tile(size: int) -> int:
    """The smallest tile that has all of a side, or the largest."""
    return next((t for t in _TILES if t >= size), _TILES[-1])


def _is_whole(m: Matrix, alignment: int) -> bool:
    """Whether an operand is read in vectors."""
    aligned = alignment % (_VECTOR * _ITEM_BYTES) == 0
    return aligned and m.ld % _VECTOR == 0 and m.batch_offset % _VECTOR == 0
