"""Products with few results and long sums by a kernel of ours: blocks share the terms of a sum.

The gradient of a small layer's weights over many rows is one. cuBLASLt divides such sums into
too few parts, or not at all, and most multiprocessors of a large card have nothing to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.gemm.parts import Adding, launched
from symdnn.gpu.gemm.plan import GemmSignature, Matrix, Pointers
from symdnn.graph.type import numpy_dtype

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

#: Blocks that run at a time on a large card.
_BLOCKS = 264
#: Terms from which a sum is long, and the most tiles of few results, by the operands' dtype: tensor
#: cores multiply 16 bits so fast that only the smallest results are ours.
_LEAST_TERMS = 4096
_MOST_TILES = {"float32": 32, "float64": 32, "float16": 4, "bfloat16": 4}
#: Stages of a part at least; a thread's side of a tile, and the numbers of a stage, by the sums'
#: dtype.
_LEAST_STAGES, _SIDE, _STAGED = 4, {"float32": 8, "float64": 4}, {"float32": 4096, "float64": 2048}
_TILES = (16, 32, 64)
_THREADS, _VECTOR, _ALIGNMENT_BYTES = 256, 4, 256
#: The dtypes of sums, and which operand an epilogue adds up.
_SUMS = {"float32": "float32", "float64": "float64", "float16": "float32", "bfloat16": "float32"}
_SUMMED = {"": 0, "bgrada": 1, "bgradb": 2}


def has_few_results(s: GemmSignature) -> bool:
    """Whether a product has few results and long sums."""
    if s.dtype not in _SUMS or s.result not in (s.dtype, _SUMS[s.dtype]):
        return False
    tiles = s.batch
    for size in (s.d.rows, s.d.columns):
        tiles *= -(-size // _TILES[-1])
    return tiles <= _MOST_TILES[s.dtype] and s.k >= _LEAST_TERMS


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
        self.signature, self.sums = s, _SUMS[s.dtype]
        self.tile = _tile(s.d.rows), _tile(s.d.columns)
        staged = _STAGED[self.sums] // sum(self.tile)
        self.stage = 1 << staged.bit_length() - 1
        self.tiles = -(-s.d.rows // self.tile[0]) * -(-s.d.columns // self.tile[1])
        most = -(-s.k // (_LEAST_STAGES * self.stage))
        wanted = parts or max(1, min(_BLOCKS // (self.tiles * s.batch), most))
        stages = -(-s.k // self.stage)
        #: Terms of a part.
        self.length = -(-stages // wanted) * self.stage
        self.parts = -(-s.k // self.length)
        #: Results of the sums over an operand.
        self.totals = (0, s.d.rows, s.d.columns)[_SUMMED[s.epilogue]]
        item = numpy_dtype(self.sums).itemsize
        self.result_bytes = self.parts * s.batch * s.d.rows * s.d.columns * item
        own = self.result_bytes + self.parts * self.totals * item
        self.workspace_bytes = own + _ALIGNMENT_BYTES

    @property
    def arithmetic(self) -> str:
        """How it multiplies, for reports."""
        return self.sums

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
        item = numpy_dtype(s.dtype).itemsize
        wholes = (_is_whole(m, at, item) for m, at in zip((s.a, s.b), s.alignment))
        return specialised(
            "long_sums.cu", TYPE=CTYPES[s.dtype], SUM=CTYPES[self.sums], SIDE=_SIDE[self.sums],
            TILE_ROWS=self.tile[0], TILE_COLUMNS=self.tile[1], TERMS=self.stage,
            SUMMED=_SUMMED[s.epilogue],
            **{f"{n}_ALONG": int(along) for n, along in zip("AB", alongs)},
            **{f"{n}_WHOLE": int(whole) for n, whole in zip("AB", wholes)},
        )  # fmt: skip

    @property
    def adding(self) -> Adding:
        """The addition of the parts."""
        s = self.signature
        return Adding(self.parts, s.batch, s.d, s.c or s.d, s.result, self.sums)

    def enqueue(self, env: LaunchEnv, at: Pointers, factors: Sequence[float]) -> None:
        """Enqueue the kernel of the parts, and the one that adds them."""
        s = self.signature
        sums = -(-env.workspace // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        sizes = s.d.rows, s.d.columns, s.k, s.a.ld, s.b.ld, s.a.batch_offset, s.b.batch_offset
        totals = sums + self.result_bytes
        parameters = (at.a, at.b, sums, totals, *sizes, self.length, s.batch)
        grid = self.parts, self.tiles, s.batch
        launched(env, self.source, "long_sums", grid, (_THREADS,), parameters)
        self.adding.enqueue(env, (sums, at.d, at.c or at.d), factors)
        if self.totals:
            line = Matrix(self.totals, 1, self.totals)
            adding = Adding(self.parts, 1, line, line, s.result, self.sums)
            adding.enqueue(env, (totals, at.bias, at.bias), (1.0, 0.0))


def _tile(size: int) -> int:
    """The smallest tile that has all of a side, or the largest."""
    return next((t for t in _TILES if t >= size), _TILES[-1])


def _is_whole(m: Matrix, alignment: int, itemsize: int) -> bool:
    """Whether an operand is read in vectors."""
    aligned = alignment % min(16, _VECTOR * itemsize) == 0
    return aligned and m.ld % _VECTOR == 0 and m.batch_offset % _VECTOR == 0
