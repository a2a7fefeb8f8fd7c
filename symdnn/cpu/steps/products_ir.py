"""Products of small matrices as LLVM IR: tiles of rows by vectors, sums in registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from symdnn.cpu.ir.builder import Builder
from symdnn.cpu.ir.program_ir import LoopBuilder

#: Vectors of sums at most, so that they and the factors stay in 16 registers.
_SUMS = 12
_MOST_VECTORS = 8


@dataclass(frozen=True)
class Tiles:
    """Products of (m, k) and (k, n), whose steps are in bytes; those of ``y`` along n are dense."""

    m: int
    k: int
    n: int
    x_row: int
    x_step: int
    y_row: int
    out_row: int


class ProductBuilder(LoopBuilder, Builder):
    """A builder of loops that has vectors of any width, too."""

    def matrices(self, dtype: str, lanes: int, t: Tiles, x: str, y: str, out: str) -> None:
        """Write the product of the matrices at ``x`` and ``y`` to ``out``."""
        vectors = max(1, min(-(-t.n // lanes), 3 if t.m > 1 else _MOST_VECTORS))
        rows = max(1, min(t.m, _SUMS // vectors, 6))
        whole, rest = divmod(t.m, rows)
        if whole > 1:
            with self.each(self.tag(), 0, str(whole)) as i:
                own = [self.bytes_at(b, (i, rows * step))
                       for b, step in ((x, t.x_row), (out, t.out_row))]  # fmt: skip
                self._columns(dtype, lanes, vectors, rows, t, own[0], y, own[1])
        elif whole:
            self._columns(dtype, lanes, vectors, rows, t, x, y, out)
        if rest:
            below = whole * rows
            at = self.bytes_at(x, below * t.x_row), self.bytes_at(out, below * t.out_row)
            self._columns(dtype, lanes, vectors, rest, t, at[0], y, at[1])

    def _columns(
        self, dtype: str, lanes: int, vectors: int, rows: int, t: Tiles, x: str, y: str, out: str
    ) -> None:
        block, size = lanes * vectors, 4 if dtype == "float32" else 8
        whole = t.n // block
        if whole > 1:
            with self.each(self.tag(), 0, str(whole)) as j:
                far = self.times(j, block * size)
                there = self.bytes_at(y, far), self.bytes_at(out, far)
                self._tile(dtype, lanes, vectors, rows, t, x, *there)
        elif whole:
            self._tile(dtype, lanes, vectors, rows, t, x, y, out)
        at = whole * block
        for width, count in _pieces(t.n - at, lanes):
            there = self.bytes_at(y, at * size), self.bytes_at(out, at * size)
            self._tile(dtype, width, count, rows, t, x, *there)
            at += width * count

    def _tile(
        self, dtype: str, width: int, vectors: int, rows: int, t: Tiles, x: str, y: str, out: str
    ) -> None:
        """The sums of ``rows`` rows by ``vectors`` vectors of ``width``."""
        self.shape_vectors(width, dtype)
        size = 4 if dtype == "float32" else 8
        zero = ["zeroinitializer"] * (rows * vectors)

        def step(i: str, sums: list[str]) -> list[str]:
            row = self.bytes_at(y, (i, t.y_row))
            factors = [self.load(self.bytes_at(row, v * width * size)) for v in range(vectors)]
            at = self.bytes_at(x, (i, t.x_step))
            found = []
            for r in range(rows):
                a = self.broadcast(self.bytes_at(at, r * t.x_row))
                for v in range(vectors):
                    found.append(self.multiply_add(a, factors[v], sums[r * vectors + v]))
            return found

        sums = self.counted(self.tag(), 0, str(t.k), step, zero, self.vector)
        for r in range(rows):
            for v in range(vectors):
                place = self.bytes_at(out, r * t.out_row + v * width * size)
                self.store(sums[r * vectors + v], place)

    def shape_vectors(self, width: int, dtype: str) -> None:
        """Have vectors of this width and dtype from here on."""
        kept = self.lines, self.declared, self.block, self._count
        Builder.__init__(self, width, dtype, self.block)
        self.lines, self.declared, self.block, self._count = kept


def _pieces(n: int, lanes: int) -> Iterator[tuple[int, int]]:
    """(width, how many) of the vectors that ``n`` elements have, the widest first."""
    width = lanes
    while n:
        if n >= width:
            yield width, n // width
            n %= width
        width //= 2
