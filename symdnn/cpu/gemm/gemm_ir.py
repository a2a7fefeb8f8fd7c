"""Products of float32 matrices as LLVM IR: functions that other modules of IR call.

``c = a b + from``, a has m rows and k terms, b k terms and n columns. A generator puts the lines of
:func:`declared` and :func:`functions` into its module, once, and calls these two (addresses and
strides are in bytes, counts in elements; none of them needs to be aligned beyond a float)::

    @gemm_block(ptr a, i64 a_row, i64 a_term, ptr b, i64 b_panel, i64 b_term, ptr c, i64 c_row,
                ptr from, i64 from_row, i64 m, i64 n, i64 k, i64 relu)
    @gemm_pack(ptr b, i64 b_term, i64 b_column, ptr to, i64 to_panel, i64 to_term, i64 n, i64 k)

``a`` may lie in any way: the number of row i and term t is at ``a + i * a_row + t * a_term``. The
columns of ``b``, ``c`` and ``from`` are dense. ``from`` is added (null: nothing is; a stride of 0
makes it a bias; it may be ``c`` itself, so that sums go on). ``relu`` is 1 where the result's
negative numbers become 0. No term (k = 0) gives what is added.

``b`` is read in panels of :attr:`Shape.columns` columns: term t of panel p is at ``b + p * b_panel
+ t * b_term``. A matrix in C order is read as it lies with ``b_panel = 4 * columns``; where more
than some 30 rows are multiplied it pays to copy it before (``gemm_pack``), so that its terms follow
one another: ``b_term = 4 * columns``, ``b_panel = b_term * k``, :func:`packed_floats` in all.
``gemm_pack`` takes columns that are ``b_column`` bytes apart, so it also turns a transposed matrix.

The first cache keeps a few rows of ``a``, the second the panels: for both, k is best at most
:data:`BEST_TERMS`, and n times k so that the panels take at most half of the second cache. The sum
of an element is made in the order of the terms, whatever the sizes: results do not depend on how
a product is cut into blocks of rows and columns. Attribute group ``#0`` is the module's to define
(:func:`attributes`), or that of :data:`~symdnn.cpu.ir.loops_ir.METADATA`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from symdnn.cpu.gemm.gemm_pack_ir import Pack
from symdnn.cpu.gemm.gemm_tile_ir import GIVEN, Shape, Tile

__all__ = [
    "BEST_TERMS",
    "Shape",
    "attributes",
    "declared",
    "functions",
    "packed_floats",
    "shape_of",
]

#: Terms of a block: rows of the first operand by so many stay in the first cache.
BEST_TERMS = 512


def shape_of(width: int) -> Shape:
    """The tile for vectors of so many float32 (:func:`~symdnn.cpu.compiler.jit.vector_width`).

    With 32 registers of AVX-512 24 sums, 3 vectors and a spread number; with 16 12, 2 and 1.
    """
    return {16: Shape(16, 8, 3), 8: Shape(8, 6, 2)}.get(width) or Shape(width, 4, 2)


def packed_floats(shape: Shape, n: int, k: int) -> int:
    """Floats of panels for k terms of n columns."""
    return -(-n // shape.columns) * shape.columns * k


def declared(shape: Shape) -> list[str]:
    """Declarations of what the functions call."""
    w, v, m = shape.width, f"<{shape.width} x float>", f"<{shape.width} x i1>"
    return [
        f"declare {v} @llvm.masked.load.v{w}f32.p0(ptr, i32, {m}, {v})",
        f"declare void @llvm.masked.store.v{w}f32.p0({v}, ptr, i32, {m})",
        f"declare {v} @llvm.fmuladd.v{w}f32({v}, {v}, {v})",
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
    ]


def attributes(shape: Shape) -> str:
    """The group ``#0``: vectors as wide as they are written."""
    bits = 32 * shape.width
    return f'attributes #0 = {{ "prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}" }}'


def functions(shape: Shape, keeps: bool = False) -> list[str]:
    """``gemm_block``, ``gemm_pack``, and the tiles that they call; ``gemm_keep`` where asked for.

    That is ``gemm_block`` for :attr:`Shape.rows` rows, with two more parameters, ``ptr keep, i64
    keep_panel``: it copies ``b`` into panels on its way.
    """
    wide = range(1, shape.vectors + 1)
    tiles = [line for h in shape.heights for v in wide for line in Tile(shape, h, v).source()]
    found = [*tiles, *_block(shape), *Pack(shape).source()]
    if keeps:
        found += [line for v in wide for line in Tile(shape, shape.rows, v, True).source()]
        found += _block(shape, True)
    return found


# -- a block --------------------------------------------------------------------------------------

_GIVEN = """
(ptr %a_0, i64 %a_row, i64 %a_term, ptr %b_0, i64 %b_panel, i64 %b_term, ptr %c_0, i64 %c_row,
  ptr %from_0, i64 %from_row, i64 %m, i64 %n, i64 %k, i64 %relu
""".strip()

_LOOPS = """
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

_PANEL = """
br label %panel
panel:
%j = phi i64 [0, %row], [%j_next, %panel_end]
%p = phi i64 [0, %row], [%p_next, %panel_end]
%b_at = mul i64 %p, %b_panel
%b = getelementptr i8, ptr %b_0, i64 %b_at
%cols = sub i64 %n, %j
%c = getelementptr float, ptr %c_1, i64 %j
%from_2 = getelementptr float, ptr %from_1, i64 %j
%from = select i1 %adds, ptr %from_2, ptr null
""".strip().splitlines()


def _block(shape: Shape, keeps: bool = False) -> list[str]:
    """Rows of tiles, and in each all panels."""
    head, heights = f"@gemm_block{_GIVEN})", shape.heights
    call, kept = f"call void @gemm_tile_{{}}x{{}}({GIVEN})", list[str]()
    if keeps:
        head, heights = f"@gemm_keep{_GIVEN}, ptr %keep_0, i64 %keep_panel)", heights[:1]
        call = f"call void @gemm_keep_{{}}x{{}}({GIVEN}, ptr %keep)"
        kept.append("%keep_j = mul i64 %p, %keep_panel")
        kept.append("%keep = getelementptr i8, ptr %keep_0, i64 %keep_j")
    lines = [f"define internal void {head} #0 {{", *_LOOPS]
    lines += [*_height(heights), *_PANEL, *kept, *_chosen(shape, heights, call.format)]
    return [
        *lines,
        "panel_end:",
        f"%j_next = add i64 %j, {shape.columns}",
        "%p_next = add i64 %p, 1",
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


def _height(heights: Sequence[int]) -> list[str]:
    """The rows of the next tiles: as many as there is code for and are left."""
    lines = [f"%h{heights[-1]} = add i64 0, {heights[-1]}"]
    for lower, h in zip(heights[:0:-1], heights[-2::-1]):
        lines.append(f"%has{h} = icmp sge i64 %rows, {h}")
        lines.append(f"%h{h} = select i1 %has{h}, i64 {h}, i64 %h{lower}")
    return [*lines, f"%height = add i64 0, %h{heights[0]}"]


def _chosen(shape: Shape, heights: Sequence[int], line: Callable[[int, int], str]) -> list[str]:
    """Lines that run the one of the tile of ``%height`` rows that has all of ``%cols``."""
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
