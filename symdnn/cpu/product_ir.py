"""Small matrix products as LLVM IR: tiles of rows times vectors of columns, kept in registers.

A kernel's block of 64-bit words: 0, then the sizes of the stack, rows, columns and terms; the array
objects of both operands, the result and the bias; strides in bytes: of the stacks of the three, of
the first operand's rows and terms, of the second's terms, of the result's rows. Columns are dense
in the second operand and in the result; the first may lie in any way.
"""

from __future__ import annotations

from collections.abc import Iterator

from symdnn.cpu.loops_ir import data_of, word

__all__ = ["WORDS", "product_ir", "tile_shape"]

#: The words in their order.
WORDS = (
    "none", "batch", "m", "n", "k", "a", "b", "c", "bias", "a_batch", "b_batch", "c_batch",
    "a_row", "a_term", "b_term", "c_row",
)  # fmt: skip
_OBJECTS = ("a", "b", "c", "bias")
#: Vectors of columns in a tile.
_VECTORS = 2


def tile_shape(width: int) -> tuple[int, int, int]:
    """(rows of a tile where there are many, where there are few, columns) with such vectors.

    Sums of a tile, the vectors that are added and one more have to fit into the registers: 32 of
    AVX-512, else 16.
    """
    return (8 if width >= 16 else 4), 2, width * _VECTORS


def product_ir(width: int, biased: bool) -> str:
    """The module of ``kernel`` with vectors of ``width`` float32."""
    v = f"<{width} x float>"
    lines = [
        f"declare {v} @llvm.masked.load.v{width}f32.p0(ptr, i32, <{width} x i1>, {v})",
        f"declare void @llvm.masked.store.v{width}f32.p0({v}, ptr, i32, <{width} x i1>)",
        f"declare {v} @llvm.fmuladd.v{width}f32({v}, {v}, {v})",
    ]
    for rows in tile_shape(width)[:2]:
        lines += _tile(rows, width, biased)
    lines += _kernel(width, biased)
    attributes = f'"prefer-vector-width"="{32 * width}" "min-legal-vector-width"="{32 * width}"'
    return "\n".join([*lines, f"attributes #0 = {{ {attributes} }}", ""])


_GIVEN = (
    "ptr %a, ptr %b, ptr %c, ptr %bias, i64 %rows, i64 %cols, i64 %k, i64 %a_row, i64 %a_term, "
    "i64 %b_term, i64 %c_row"
)


def _tile(rows: int, width: int, biased: bool) -> list[str]:
    """The function of one tile: at most ``rows`` rows, of which ``%rows`` are written."""
    return [
        f"define internal void @tile{rows}({_GIVEN}) #0 {{",
        "entry:",
        *_masks(width),
        *_first_rows(rows),
        *_begin(width, biased),
        "br label %term",
        *_terms(rows, width, biased),
        *_stores(rows, width),
        "ret void",
        "}",
    ]


def _masks(width: int) -> Iterator[str]:
    lanes = f"<{width} x i64>"
    for j in range(_VECTORS):
        numbers = ", ".join(f"i64 {j * width + i}" for i in range(width))
        if j == 0:
            yield f"%one = insertelement {lanes} poison, i64 %cols, i64 0"
            zeros = f"<{width} x i32> zeroinitializer"
            yield f"%all = shufflevector {lanes} %one, {lanes} poison, {zeros}"
        yield f"%mask{j} = icmp slt {lanes} <{numbers}>, %all"


def _first_rows(rows: int) -> Iterator[str]:
    """Where each row begins; rows that are not there are the last one again."""
    yield "%last = sub i64 %rows, 1"
    for i in range(rows):
        yield f"%in{i} = icmp slt i64 {i}, %rows"
        yield f"%i{i} = select i1 %in{i}, i64 {i}, i64 %last"
        yield f"%a_at{i} = mul i64 %i{i}, %a_row"
        yield f"%a{i} = getelementptr i8, ptr %a, i64 %a_at{i}"


def _begin(width: int, biased: bool) -> Iterator[str]:
    for j in range(_VECTORS):
        if biased:
            yield f"%bias{j} = getelementptr float, ptr %bias, i64 {j * width}"
            yield f"%first{j} = {_load(width, f'%bias{j}', j)}"


def _load(width: int, pointer: str, j: int) -> str:
    v = f"<{width} x float>"
    given = f"ptr {pointer}, i32 4, <{width} x i1> %mask{j}, {v} zeroinitializer"
    return f"call {v} @llvm.masked.load.v{width}f32.p0({given})"


def _terms(rows: int, width: int, biased: bool) -> Iterator[str]:
    """The loop over terms: a row of the second operand times a number of each row of the first."""
    v = f"<{width} x float>"
    yield "term:"
    yield "%t = phi i64 [0, %entry], [%t_next, %term]"
    for i in range(rows):
        for j in range(_VECTORS):
            first = f"%first{j}" if biased else "zeroinitializer"
            yield f"%s{i}_{j} = phi {v} [{first}, %entry], [%n{i}_{j}, %term]"
    yield "%b_at = mul i64 %t, %b_term"
    yield "%a_at = mul i64 %t, %a_term"
    yield "%b_row = getelementptr i8, ptr %b, i64 %b_at"
    for j in range(_VECTORS):
        yield f"%b_p{j} = getelementptr float, ptr %b_row, i64 {j * width}"
        yield f"%b{j} = {_load(width, f'%b_p{j}', j)}"
    for i in range(rows):
        yield f"%x_p{i} = getelementptr i8, ptr %a{i}, i64 %a_at"
        yield f"%x{i} = load float, ptr %x_p{i}"
        yield f"%x_one{i} = insertelement {v} poison, float %x{i}, i64 0"
        zeros = f"<{width} x i32> zeroinitializer"
        yield f"%x_all{i} = shufflevector {v} %x_one{i}, {v} poison, {zeros}"
        for j in range(_VECTORS):
            given = f"{v} %x_all{i}, {v} %b{j}, {v} %s{i}_{j}"
            yield f"%n{i}_{j} = call {v} @llvm.fmuladd.v{width}f32({given})"
    yield "%t_next = add i64 %t, 1"
    yield "%t_more = icmp slt i64 %t_next, %k"
    yield "br i1 %t_more, label %term, label %store0"


def _stores(rows: int, width: int) -> Iterator[str]:
    v = f"<{width} x float>"
    for i in range(rows):
        yield f"store{i}:"
        yield f"%c_at{i} = mul i64 {i}, %c_row"
        yield f"%c{i} = getelementptr i8, ptr %c, i64 %c_at{i}"
        for j in range(_VECTORS):
            yield f"%c_p{i}_{j} = getelementptr float, ptr %c{i}, i64 {j * width}"
            given = f"{v} %n{i}_{j}, ptr %c_p{i}_{j}, i32 4, <{width} x i1> %mask{j}"
            yield f"call void @llvm.masked.store.v{width}f32.p0({given})"
        if i + 1 < rows:
            yield f"br i1 %in{i + 1}, label %store{i + 1}, label %done"
    yield "br label %done"
    yield "done:"


def _kernel(width: int, biased: bool) -> Iterator[str]:
    """Loops over the stack, and over tiles of columns and rows."""
    many, few, tile = tile_shape(width)
    yield "define void @kernel(ptr %w) #0 {"
    yield "entry:"
    for at, name in enumerate(WORDS):
        if name in _OBJECTS:
            if name != "bias" or biased:
                yield from data_of(f"%{name}_0", at)
        elif name != "none":
            yield from word(f"%{name}", at)
    yield from _loops(biased)
    yield f"%is_few = icmp sle i64 %left, {few}"
    yield "br i1 %is_few, label %few, label %many"
    bias = "%bias_2" if biased else "null"
    for name, rows in (("few", few), ("many", many)):
        given = (
            f"ptr %a_3, ptr %b_2, ptr %c_3, ptr {bias}, i64 %left, i64 %cols, i64 %k, "
            "i64 %a_row, i64 %a_term, i64 %b_term, i64 %c_row"
        )
        yield f"{name}:"
        yield f"call void @tile{rows}({given})"
        yield "br label %rows_end"
    yield from (
        "rows_end:",
        f"%i_next = add i64 %i, {many}",
        "%i_more = icmp slt i64 %i_next, %m",
        "br i1 %i_more, label %rows, label %columns_end",
        "columns_end:",
        f"%j_next = add i64 %j, {tile}",
        "%j_more = icmp slt i64 %j_next, %n",
        "br i1 %j_more, label %columns, label %stack_end",
        "stack_end:",
        "%s_next = add i64 %s, 1",
        "%s_more = icmp slt i64 %s_next, %batch",
        "br i1 %s_more, label %stack, label %done",
        "done:",
        "ret void",
        "}",
    )


def _loops(biased: bool) -> Iterator[str]:
    """The beginnings of the loops over the stack, columns and rows."""
    yield "br label %stack"
    yield "stack:"
    yield "%s = phi i64 [0, %entry], [%s_next, %stack_end]"
    for name in ("a", "b", "c"):
        yield f"%{name}_s = mul i64 %s, %{name}_batch"
        yield f"%{name}_1 = getelementptr i8, ptr %{name}_0, i64 %{name}_s"
    yield "br label %columns"
    yield "columns:"
    yield "%j = phi i64 [0, %stack], [%j_next, %columns_end]"
    yield "%cols = sub i64 %n, %j"
    yield "%b_2 = getelementptr float, ptr %b_1, i64 %j"
    yield "%c_2 = getelementptr float, ptr %c_1, i64 %j"
    if biased:
        yield "%bias_2 = getelementptr float, ptr %bias_0, i64 %j"
    yield "br label %rows"
    yield "rows:"
    yield "%i = phi i64 [0, %columns], [%i_next, %rows_end]"
    yield "%left = sub i64 %m, %i"
    yield "%a_i = mul i64 %i, %a_row"
    yield "%a_3 = getelementptr i8, ptr %a_1, i64 %a_i"
    yield "%c_i = mul i64 %i, %c_row"
    yield "%c_3 = getelementptr i8, ptr %c_2, i64 %c_i"
