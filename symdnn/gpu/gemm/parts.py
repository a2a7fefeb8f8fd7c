"""GEMMs with few results and long sums: parts of the sums are a stack of products, which are added.

The gradient of a small layer's weights over many rows is one: a card's blocks are many more than
the tiles of the result. cuBLASLt divides some such sums itself, into fewer parts than there are
multiprocessors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from symdnn.gpu.binding.libcublaslt import CublasError
from symdnn.gpu.gemm.plan import (
    GemmAlgorithm,
    GemmPlan,
    GemmSignature,
    Matrix,
    Pointers,
    alignment_of,
)
from symdnn.gpu.gemm.split import add_parts

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

__all__ = ["PartsGemm", "parts_ways"]

#: Sides of a tile, the most tiles of a result, and multiprocessors of a large card.
_TILE, _MOST_TILES, _BLOCKS = 128, 16, 132
#: Waves of blocks that are tried, terms of a part at least, and what their number is a multiple of.
_WAVES, _LEAST_TERMS, _MULTIPLE = (1, 2, 4), 256, 32
_ALIGNMENT_BYTES, _ITEM_BYTES = 256, 4
#: Algorithms of cuBLASLt's heuristics that are measured.
_RANKS = 2


def parts_ways(plan: GemmPlan) -> list[PartsGemm]:
    """The ways to divide the sums of a GEMM with few results."""
    s = plan.signature
    tiles = -(-s.d.rows // _TILE) * -(-s.d.columns // _TILE)
    plain = s.batch == 1 and s.c is None and not s.epilogue and s.result == "float32"
    if not plain or s.dtype != "float32" or s.compute not in ("float32", "tf32"):
        return []
    found: list[PartsGemm] = []
    counts = [waves * _BLOCKS // tiles for waves in _WAVES] if tiles <= _MOST_TILES else []
    for count in counts:
        for rank in range(_RANKS):
            if s.k < count * _LEAST_TERMS:
                break
            try:
                way = PartsGemm(s, count, rank)
                way.prepare(plan.handle.value or 0)
            except CublasError:
                break
            found.append(way)
    return found


class PartsGemm:
    """A way to run a GEMM, as :class:`GemmAlgorithm` is one, in ``count`` parts of equal lengths.

    What is left of the sums is one more product. Raises :class:`CublasError` where the workspace is
    too small.
    """

    number = "parts"

    def __init__(self, s: GemmSignature, count: int, rank: int = 0) -> None:
        self.signature, self.count, self.rank = s, count, rank
        self.length = s.k // count // _MULTIPLE * _MULTIPLE
        self.left = s.k - count * self.length
        self.parts = count + (self.left > 0)
        size = self.parts * s.d.rows * s.d.columns * _ITEM_BYTES
        #: Bytes of the parts' results, in front of cuBLASLt's own workspace.
        self.result_bytes = -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        if self.result_bytes > s.workspace_limit:
            raise CublasError(f"parts take {self.result_bytes} bytes of {s.workspace_limit}")
        self.workspace_bytes = s.workspace_limit
        self._plans: dict[int, list[tuple[GemmPlan, GemmAlgorithm]]] = {}

    @property
    def arithmetic(self) -> str:
        """How it multiplies, for reports."""
        return self.signature.compute

    @property
    def words(self) -> dict[str, Any]:
        """JSON values that identify it, for records."""
        return {"name": self.number, "algorithm": [self.number, self.count, self.rank],
                "workspace_bytes": self.workspace_bytes}  # fmt: skip

    def __str__(self) -> str:
        rank = f", algorithm {self.rank}" if self.rank else ""
        return (
            f"cuBLASLt in {self.parts} parts of the sums{rank}, "
            f"workspace {self.workspace_bytes} bytes"
        )

    def prepare(self, handle: int) -> list[tuple[GemmPlan, GemmAlgorithm]]:
        """The product of the equal parts, and that of the rest, with their algorithms.

        Raises :class:`CublasError` where cuBLASLt has no (or no other) algorithm.
        """
        if handle not in self._plans:
            lengths = [(self.length, self.count), *[(self.left, 1)] * (self.left > 0)]
            plans = [GemmPlan(handle, self._inner(*each)) for each in lengths]
            found = [plan.algorithms(self.rank + 1) for plan in plans]
            if len(found[0]) <= self.rank:
                raise CublasError(f"cuBLASLt has no {self.rank + 1} algorithms")
            self._plans[handle] = [(p, f[-1]) for p, f in zip(plans, found, strict=True)]
        return self._plans[handle]

    def _inner(self, length: int, count: int) -> GemmSignature:
        s = self.signature
        a = _part(s.a, s.a.transposed, length)
        b = _part(s.b, not s.b.transposed, length)
        d = Matrix(s.d.rows, s.d.columns, s.d.rows, False, s.d.rows * s.d.columns)
        most, made = _MULTIPLE * _ITEM_BYTES, alignment_of(d.batch_offset * _ITEM_BYTES)
        at = min(s.alignment[0], most), min(s.alignment[1], most), made, made
        left = s.workspace_limit - self.result_bytes
        return replace(s, a=a, b=b, d=d, batch=count, alignment=at, workspace_limit=left)

    def enqueue(self, env: LaunchEnv, at: Pointers, factors: Sequence[float]) -> None:
        """Enqueue the products, and the kernel that adds their results in order."""
        sums = -(-env.workspace // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        s, own = self.signature, sums + self.result_bytes
        after = [_step(s.a, s.a.transposed), _step(s.b, not s.b.transposed)]
        size = s.d.rows * s.d.columns * _ITEM_BYTES
        for i, (plan, algorithm) in enumerate(self.prepare(env.cublaslt)):
            done = i * self.count  # parts, of which each operand has gone this far
            a, b = (p + done * self.length * n * _ITEM_BYTES for p, n in zip((at.a, at.b), after))
            inner = Pointers(a, b, sums + done * size)
            plan.run(algorithm, inner, (factors[0], 0.0), own, env.stream)
        add_parts(env, sums, at.d, self.parts, s.d, 1, float(factors[1]))


def _part(m: Matrix, along: bool, length: int) -> Matrix:
    """A part of ``length`` terms of an operand whose stored columns run along them, or do not."""
    offset = length * _step(m, along)
    if along:
        return replace(m, rows=length, batch_offset=offset)
    return replace(m, columns=length, batch_offset=offset)


def _step(m: Matrix, along: bool) -> int:
    """Elements from one term to the next."""
    return 1 if along else m.ld
