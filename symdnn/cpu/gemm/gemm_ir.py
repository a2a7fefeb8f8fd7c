"""GEMM of float32 matrices as LLVM IR: functions that other generated modules call.

They compute ``c = a b + from``, where ``a`` has m rows and k terms and ``b`` k terms and n columns.
A generator puts the lines of :func:`declared` and :func:`functions` into its module, once, and
calls these two. Strides are in bytes, counts in elements; addresses need the alignment of a float
only::

    @gemm_block(ptr a, i64 a_row, i64 a_term, ptr b, i64 b_panel, i64 b_term, ptr c, i64 c_row,
                ptr from, i64 from_row, i64 m, i64 n, i64 k, i64 relu)
    @gemm_pack(ptr b, i64 b_term, i64 b_column, ptr to, i64 to_panel, i64 to_term, i64 n, i64 k)

``a`` may have any strides: the element of row i and term t is at ``a + i * a_row + t * a_term``.
Columns of ``b``, ``c`` and ``from`` are contiguous. ``from`` is added: null for nothing, a row
stride of 0 for a bias, ``c`` itself to accumulate. ``relu`` is 1 if negative results become 0. With
k = 0 the result is ``from``.

``b`` is read in panels of :attr:`TileShape.columns` columns: term t of panel p is at
``b + p * b_panel + t * b_term``. A contiguous matrix is read in place with ``b_panel = 4 *
columns``. With more than some 30 rows it pays to pack it first (``gemm_pack``), so that its terms
are contiguous: ``b_term = 4 * columns``, ``b_panel = b_term * k``.
``gemm_pack`` takes any stride ``b_column`` of columns, so it also transposes.

The L1 cache holds a few rows of ``a``, the L2 cache the panels. So k is best at most
:func:`max_block_terms`, and n times k such that panels take at most half of the L2 cache. Terms of
an element are added in order, whatever the sizes: results do not depend on the division into blocks
of rows and columns. The module defines the attribute group ``#0`` (:func:`attributes`), or has that
of :data:`~symdnn.cpu.ir.loops_ir.METADATA`.
"""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.gemm.gemm_pack_ir import Pack
from symdnn.cpu.gemm.gemm_tile_ir import ROW_PANELS, Tile, TileShape
from symdnn.cpu.ir.builder import FunctionBuilder

__all__ = [
    "TileShape",
    "attributes",
    "declared",
    "functions",
    "max_block_terms",
    "shape_of",
]


def max_block_terms(width: int) -> int:
    """Terms of a block, such that a tile's rows of the first operand stay in the L1 cache.

    On one core of Zen 3 (AVX2) 128 rows and 768 x 3072 take 10.3 ms in blocks of 512, and 8.9 in
    blocks of up to 1024.
    """
    return 1024 if width == 8 else 512


def shape_of(width: int) -> TileShape:
    """The tile for vectors of ``width`` float32 (:func:`~symdnn.cpu.compiler.jit.vector_width`).

    The 32 registers of AVX-512 hold 24 sums, 3 vectors of ``b`` and a broadcast element of ``a``;
    16 registers hold 12, 2 and 1.
    """
    return {16: TileShape(16, 8, 3), 8: TileShape(8, 6, 2)}.get(width) or TileShape(width, 4, 2)


def declared(shape: TileShape) -> list[str]:
    """Declarations of the intrinsics that the functions call."""
    w, v, m = shape.width, f"<{shape.width} x float>", f"<{shape.width} x i1>"
    return [
        f"declare {v} @llvm.masked.load.v{w}f32.p0(ptr, i32, {m}, {v})",
        f"declare void @llvm.masked.store.v{w}f32.p0({v}, ptr, i32, {m})",
        f"declare {v} @llvm.fmuladd.v{w}f32({v}, {v}, {v})",
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
    ]


def attributes(shape: TileShape) -> str:
    """The attribute group ``#0``, which keeps vectors as wide as they are written."""
    bits = 32 * shape.width
    return f'attributes #0 = {{ "prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}" }}'


def functions(shape: TileShape, keeps: bool = False) -> list[str]:
    """``gemm_block``, ``gemm_pack`` and the tiles that they call; with ``keeps``, ``gemm_keep``.

    ``gemm_keep`` is ``gemm_block`` for :attr:`TileShape.rows` rows with two more parameters, ``ptr
    keep, i64 keep_panel``: it also packs ``b`` into panels there.
    """
    wide = range(1, shape.vectors + 1)
    tiles = [line for h in shape.heights for v in wide for line in Tile(shape, h, v).source()]
    tiles += Tile(shape, 1, ROW_PANELS * shape.vectors).source()
    found = [*tiles, *_Block(shape).source(), *Pack(shape).source()]
    if keeps:
        found += [line for v in wide for line in Tile(shape, shape.rows, v, True).source()]
        found += _Block(shape, keeps=True).source()
    return found


# -- a block --------------------------------------------------------------------------------------

_BLOCK_PARAMETERS = (
    "ptr %a_0, i64 %a_row, i64 %a_term, ptr %b_0, i64 %b_panel, i64 %b_term, ptr %c_0, i64 %c_row, "
    "ptr %from_0, i64 %from_row, i64 %m, i64 %n, i64 %k, i64 %relu"
)


class _Block(FunctionBuilder):
    """The function ``gemm_block`` (or ``gemm_keep``): a loop over rows of tiles and over panels."""

    def __init__(self, shape: TileShape, keeps: bool = False) -> None:
        super().__init__()
        self.shape, self.keeps = shape, keeps
        self.heights = shape.heights[:1] if keeps else shape.heights

    def source(self) -> list[str]:
        """The lines of the function."""
        name, more = ("keep", ", ptr %keep_0, i64 %keep_panel") if self.keeps else ("block", "")
        with self.function(f"gemm_{name}", _BLOCK_PARAMETERS + more):
            self.adds = self.new("icmp ne ptr %from_0, null")
            up = self.plus("%n", self.shape.columns - 1)
            self.panels = self.new(f"udiv i64 {up}, {self.shape.columns}")
            self.upto("row", 0, "%m", self._rows)
        return self.lines

    def _rows(self, i: str) -> int | str:
        """Append a row of tiles, of the most rows that there is code for; returns their number."""
        rows, height = self.minus("%m", i), str(self.heights[-1])
        for h in self.heights[-2::-1]:
            height = self.new(
                f"select i1 {self.new(f'icmp sge i64 {rows}, {h}')}, i64 {h}, i64 {height}"
            )
        pairs = ("a", "c", "from")
        a, c, begun = (self.bytes_at(f"%{x}_0", (i, f"%{x}_row")) for x in pairs)
        self.upto("panel", 0, self.panels, lambda p: self._panel(p, height, a, (c, begun)))
        return height

    def _panel(self, p: str, height: str, a: str, rows: Sequence[str]) -> int | str:
        """Append a tile, or one of a row and several panels; returns the number of panels."""
        columns = self.shape.columns
        j = self.times(p, columns)
        b, cols = self.bytes_at("%b_0", (p, "%b_panel")), self.minus("%n", j)
        c, begun = (self.bytes_at(x, (j, 4)) for x in rows)
        begun = self.new(f"select i1 {self.adds}, ptr {begun}, ptr null")
        given = [
            f"ptr {a}", "i64 %a_row", "i64 %a_term", f"ptr {b}", "i64 %b_term", f"ptr {c}",
            "i64 %c_row", f"ptr {begun}", "i64 %from_row", f"i64 {cols}", "i64 %k", "i64 %relu",
        ]  # fmt: skip
        if self.keeps:
            given.append(f"ptr {self.bytes_at('%keep_0', (p, '%keep_panel'))}")
            self._tile(height, cols, given)
            return 1
        is_row = self.new(f"icmp eq i64 {height}, 1")
        many = self.new(f"icmp sge i64 {cols}, {ROW_PANELS * columns}")
        of_panels = self.new(f"and i1 {is_row}, {many}")

        def run(panels: bool, _: str) -> None:
            if panels:
                self.call("gemm_row", *given, "i64 %b_panel")
            else:
                self._tile(height, cols, given)

        self.choose("of_panels", of_panels, run)
        return self.new(f"select i1 {of_panels}, i64 {ROW_PANELS}, i64 1")

    def _tile(self, height: str, cols: str, given: Sequence[str]) -> None:
        """Append the call of the tile of ``height`` rows whose vectors cover ``cols`` columns."""
        wide = range(1, self.shape.vectors + 1)
        cases = [(h, v) for h in self.heights for v in wide]
        vectors = "1"
        for v in wide[1:]:
            more = self.new(f"icmp sgt i64 {cols}, {(v - 1) * self.shape.width}")
            vectors = self.new(f"select i1 {more}, i64 {v}, i64 {vectors}")
        tile = self.plus(self.times(height, 8), vectors)
        arms = " ".join(f"i64 {8 * h + v}, label %do{h}x{v}" for h, v in cases[1:])
        self.put(f"switch i64 {tile}, label %do{cases[0][0]}x{cases[0][1]} [{arms}]")
        for h, v in cases:
            self.label(f"do{h}x{v}")
            self.call(f"gemm_{'keep' if self.keeps else 'tile'}_{h}x{v}", *given)
            self.put("br label %tile_done")
        self.label("tile_done")
