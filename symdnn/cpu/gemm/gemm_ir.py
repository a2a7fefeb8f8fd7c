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

from collections.abc import Callable, Sequence

from symdnn.cpu.gemm.gemm_pack_ir import Pack
from symdnn.cpu.gemm.gemm_tile_ir import ROW_PANELS, TILE_PARAMETERS, Tile, TileShape

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
    found = [*tiles, *_block(shape), *Pack(shape).source()]
    if keeps:
        found += [line for v in wide for line in Tile(shape, shape.rows, v, True).source()]
        found += _block(shape, True)
    return found


# -- a block --------------------------------------------------------------------------------------

_BLOCK_PARAMETERS = """
(ptr %a_0, i64 %a_row, i64 %a_term, ptr %b_0, i64 %b_panel, i64 %b_term, ptr %c_0, i64 %c_row,
  ptr %from_0, i64 %from_row, i64 %m, i64 %n, i64 %k, i64 %relu
""".strip()

_BLOCK_LOOPS = """
entry:
%adds = icmp ne ptr %from_0, null
%any_m = icmp sgt i64 %m, 0
%any_n = icmp sgt i64 %n, 0
%any = and i1 %any_m, %any_n
br i1 %any, label %row, label %done
row:
%i = phi i64 [0, %entry], [%i_next, %row_end]
%rows = sub i64 %m, %i
%a_i = mul i64 %i, %a_row
%a = getelementptr i8, ptr %a_0, i64 %a_i
%c_i = mul i64 %i, %c_row
%c_1 = getelementptr i8, ptr %c_0, i64 %c_i
%from_i = mul i64 %i, %from_row
%from_1 = getelementptr i8, ptr %from_0, i64 %from_i
""".strip().splitlines()

_PANEL_LOOP = """
br label %panel
panel:
%j = phi i64 [0, %row], [%j_next, %panels_end]
%p = phi i64 [0, %row], [%p_next, %panels_end]
%b_at = mul i64 %p, %b_panel
%b = getelementptr i8, ptr %b_0, i64 %b_at
%cols = sub i64 %n, %j
%c = getelementptr float, ptr %c_1, i64 %j
%from_2 = getelementptr float, ptr %from_1, i64 %j
%from = select i1 %adds, ptr %from_2, ptr null
""".strip().splitlines()


def _block(shape: TileShape, keeps: bool = False) -> list[str]:
    """The function ``gemm_block`` (or ``gemm_keep``): a loop over rows of tiles and over panels."""
    head, heights = f"@gemm_block{_BLOCK_PARAMETERS})", shape.heights
    call, kept = f"call void @gemm_tile_{{}}x{{}}({TILE_PARAMETERS})", list[str]()
    if keeps:
        head, heights = f"@gemm_keep{_BLOCK_PARAMETERS}, ptr %keep_0, i64 %keep_panel)", heights[:1]
        call = f"call void @gemm_keep_{{}}x{{}}({TILE_PARAMETERS}, ptr %keep)"
        kept.append("%keep_j = mul i64 %p, %keep_panel")
        kept.append("%keep = getelementptr i8, ptr %keep_0, i64 %keep_j")
    lines = [f"define internal void {head} #0 {{", *_BLOCK_LOOPS]
    lines += [*_height(heights), *_PANEL_LOOP, *kept]
    if not keeps:
        lines += _row_of_panels(shape)
    return [
        *lines,
        *_chosen(shape, heights, call.format),
        "panel_end:",
        "br label %panels_end",
        "panels_end:",
        f"%taken = phi i64 [1, %panel_end]{'' if keeps else f', [{ROW_PANELS}, %do_row]'}",
        f"%columns = mul i64 %taken, {shape.columns}",
        "%j_next = add i64 %j, %columns",
        "%p_next = add i64 %p, %taken",
        "%j_more = icmp slt i64 %j_next, %n",
        "br i1 %j_more, label %panel, label %row_end",
        "row_end:",
        "%i_next = add i64 %i, %height",
        "%i_more = icmp slt i64 %i_next, %m",
        "br i1 %i_more, label %row, label %done",
        "done:",
        "ret void",
        "}",
    ]


def _row_of_panels(shape: TileShape) -> list[str]:
    """Lines that run a tile of one row and several panels, where there are so many whole ones."""
    return [
        "%is_row = icmp eq i64 %height, 1",
        f"%are_many = icmp sge i64 %cols, {ROW_PANELS * shape.columns}",
        "%is_of_panels = and i1 %is_row, %are_many",
        "br i1 %is_of_panels, label %do_row, label %one_panel",
        "do_row:",
        f"call void @gemm_row({TILE_PARAMETERS}, i64 %b_panel)",
        "br label %panels_end",
        "one_panel:",
    ]


def _height(heights: Sequence[int]) -> list[str]:
    """Lines for ``%height``, the rows of the next tiles: the most that there is code for."""
    lines = [f"%h{heights[-1]} = add i64 0, {heights[-1]}"]
    for lower, h in zip(heights[:0:-1], heights[-2::-1]):
        lines.append(f"%has{h} = icmp sge i64 %rows, {h}")
        lines.append(f"%h{h} = select i1 %has{h}, i64 {h}, i64 %h{lower}")
    return [*lines, f"%height = add i64 0, %h{heights[0]}"]


def _chosen(shape: TileShape, heights: Sequence[int], line: Callable[[int, int], str]) -> list[str]:
    """Lines that run the tile of ``%height`` rows whose vectors cover ``%cols`` columns."""
    wide = range(1, shape.vectors + 1)
    cases = [(h, v) for h in heights for v in wide]
    lines = ["%vectors1 = add i64 0, 1"]
    for v in wide[1:]:
        lines.append(f"%is_wide{v} = icmp sgt i64 %cols, {(v - 1) * shape.width}")
        lines.append(f"%vectors{v} = select i1 %is_wide{v}, i64 {v}, i64 %vectors{v - 1}")
    lines.append("%tile_h = mul i64 %height, 8")
    lines.append(f"%tile = add i64 %tile_h, %vectors{shape.vectors}")
    arms = " ".join(f"i64 {8 * h + v}, label %do{h}x{v}" for h, v in cases[1:])
    lines.append(f"switch i64 %tile, label %do{cases[0][0]}x{cases[0][1]} [{arms}]")
    for h, v in cases:
        lines += [f"do{h}x{v}:", line(h, v), "br label %panel_end"]
    return lines
