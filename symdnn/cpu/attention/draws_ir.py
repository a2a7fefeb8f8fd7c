"""The factors of dropout for rows of scores, as LLVM IR: Philox4x32-10 in vectors of blocks.

The words are those of :mod:`symdnn.ops.random.rng_philox`, one for each element.
"""

from __future__ import annotations

from collections.abc import Iterator

from symdnn.cpu.attention.plan import MAX_KEYS
from symdnn.cpu.elementwise.random_draws_ir import MULTIPLIERS, ROUNDS, WEYL
from symdnn.cpu.ir.builder import WIDTH
from symdnn.cpu.math.math_double_ir import number

__all__ = ["draw_rows"]

#: Philox blocks of a vector, and words of the buffer: the last vectors may be incomplete.
_BLOCKS = 8
_BUFFER_WORDS = MAX_KEYS + 4 * _BLOCKS + WIDTH
_LONG, _INT = f"<{_BLOCKS} x i64>", f"<{_BLOCKS} x i32>"
_WORD, _FLOAT = f"<{WIDTH} x i32>", f"<{WIDTH} x float>"
_LOW = 0xFFFFFFFF


def draw_rows() -> list[str]:
    """``draw_rows(state, rate, first, step, to, to_row, rows, n)``

    Element i of row r is number ``first + r * step + i`` of the draw: 1 / (1 - rate) where it is
    kept, else 0. Up to 15 numbers are written beyond the end of a row.
    """
    given = "ptr %state, ptr %rate, i64 %first, i64 %step, ptr %to, i64 %to_row, i64 %rows, i64 %n"
    return [
        f"define internal void @draw_rows({given}) #0 {{", "entry:",
        f"%buffer = alloca [{_BUFFER_WORDS} x i32], align 64", *_keys(), *_limit(),
        "br label %row", "row:", "%r = phi i64 [0, %entry], [%r_next, %row_end]",
        "%r_first = mul i64 %r, %step", "%e0 = add i64 %first, %r_first",
        # The number of a Philox block is computed so that it does not wrap where an element's does.
        "%lane0 = and i64 %counter, 3", "%blocks0 = lshr i64 %counter, 2",
        "%j = add i64 %lane0, %e0", "%ahead = lshr i64 %j, 2", "%skip = and i64 %j, 3",
        "%block0 = add i64 %blocks0, %ahead", "%words = add i64 %skip, %n", "br label %block",
        "block:", "%b = phi i64 [0, %row], [%b_next, %block]", "%b_first = lshr i64 %b, 2",
        "%b_number = add i64 %block0, %b_first", *_splat("%b_all", _LONG, "i64", "%b_number"),
        f"%number = add {_LONG} %b_all, <{', '.join(f'i64 {i}' for i in range(_BLOCKS))}>",
        *_rounds(), f"%b_next = add i64 %b, {4 * _BLOCKS}",
        "%b_more = icmp slt i64 %b_next, %words",
        "br i1 %b_more, label %block, label %made", "made:", "%to_at = mul i64 %r, %to_row",
        "%to_r = getelementptr i8, ptr %to, i64 %to_at",
        "%from = getelementptr i32, ptr %buffer, i64 %skip", "br label %some", "some:",
        "%i = phi i64 [0, %made], [%i_next, %some]",
        "%from_i = getelementptr i32, ptr %from, i64 %i",
        f"%word = load {_WORD}, ptr %from_i, align 4", f"%kept = icmp ule {_WORD} %word, %lasts",
        f"%x = select <{WIDTH} x i1> %kept, {_FLOAT} %factors, {_FLOAT} zeroinitializer",
        "%to_i = getelementptr float, ptr %to_r, i64 %i", f"store {_FLOAT} %x, ptr %to_i, align 4",
        f"%i_next = add i64 %i, {WIDTH}", "%i_more = icmp slt i64 %i_next, %n",
        "br i1 %i_more, label %some, label %row_end", "row_end:", "%r_next = add i64 %r, 1",
        "%r_more = icmp slt i64 %r_next, %rows", "br i1 %r_more, label %row, label %done", "done:",
        "ret void", "}",
    ]  # fmt: skip


def _splat(name: str, vector: str, kind: str, value: str) -> list[str]:
    """Lines for a number in all lanes."""
    zeros = f"<{vector[1:].partition(' ')[0]} x i32> zeroinitializer"
    return [
        f"{name}_0 = insertelement {vector} poison, {kind} {value}, i64 0",
        f"{name} = shufflevector {vector} {name}_0, {vector} poison, {zeros}",
    ]


def _every(value: int) -> str:
    return f"<{', '.join([f'i64 {value}'] * _BLOCKS)}>"


def _keys() -> Iterator[str]:
    """Lines for the counter, and the keys of each round in all lanes."""
    yield "%key = load i64, ptr %state"
    yield "%counter_at = getelementptr i64, ptr %state, i64 1"
    yield "%counter = load i64, ptr %counter_at"
    yield "%key1 = lshr i64 %key, 32"
    for r in range(ROUNDS):
        for half, (key, weyl) in enumerate(zip(("%key", "%key1"), WEYL)):
            yield f"%k{half}_{r}s = add i64 {key}, {weyl * r & _LOW}"
            yield f"%k{half}_{r}m = and i64 %k{half}_{r}s, {_LOW}"
            yield from _splat(f"%k{half}_{r}", _LONG, "i64", f"%k{half}_{r}m")


def _limit() -> Iterator[str]:
    """Lines for ``%lasts``, the last word that is kept, and ``%factors``; 0 if none is kept."""
    yield "%rate0 = load float, ptr %rate"
    yield "%rate1 = fpext float %rate0 to double"
    yield f"%share = fsub double {number(1.0)}, %rate1"
    yield f"%limit = fmul double %share, {number(2.0**32)}"
    yield "%floor = fptoui double %limit to i64"
    yield "%floor_d = uitofp i64 %floor to double"
    yield "%exact = fcmp oeq double %floor_d, %limit"
    yield "%less = sext i1 %exact to i64"
    yield "%last = add i64 %floor, %less"
    yield "%none = icmp slt i64 %last, 0"
    yield "%last32 = trunc i64 %last to i32"
    yield from _splat("%lasts", _WORD, "i32", "%last32")
    yield "%keep = fsub float 1.0, %rate0"
    yield "%inverse = fdiv float 1.0, %keep"
    yield "%factor = select i1 %none, float 0.0, float %inverse"
    yield from _splat("%factors", _FLOAT, "float", "%factor")


def _rounds() -> Iterator[str]:
    """Lines that store the four words of each block ``%number``."""
    yield f"%c0 = and {_LONG} %number, {_every(_LOW)}"
    yield f"%c1 = lshr {_LONG} %number, {_every(32)}"
    now = ["%c0", "%c1", _every(1), "zeroinitializer"]
    for r in range(ROUNDS):
        for half, at in ((0, 0), (1, 2)):
            yield f"%p{half}_{r} = mul {_LONG} {now[at]}, {_every(MULTIPLIERS[half])}"
            yield f"%h{half}_{r} = lshr {_LONG} %p{half}_{r}, {_every(32)}"
            yield f"%l{half}_{r} = and {_LONG} %p{half}_{r}, {_every(_LOW)}"
        for half, other, at in ((0, 1, 1), (1, 0, 3)):
            yield f"%x{half}_{r} = xor {_LONG} %h{other}_{r}, {now[at]}"
            yield f"%y{half}_{r} = xor {_LONG} %x{half}_{r}, %k{half}_{r}"
        now = [f"%y0_{r}", f"%l1_{r}", f"%y1_{r}", f"%l0_{r}"]
    for lane, value in enumerate(now):
        yield f"%w{lane} = trunc {_LONG} {value} to {_INT}"
    pairs, all_ = f"<{2 * _BLOCKS} x i32>", f"<{4 * _BLOCKS} x i32>"
    joined = ", ".join(f"i32 {i}" for i in range(2 * _BLOCKS))
    yield f"%w01 = shufflevector {_INT} %w0, {_INT} %w1, {pairs} <{joined}>"
    yield f"%w23 = shufflevector {_INT} %w2, {_INT} %w3, {pairs} <{joined}>"
    turned = ", ".join(f"i32 {_BLOCKS * w + b}" for b in range(_BLOCKS) for w in range(4))
    yield f"%w = shufflevector {pairs} %w01, {pairs} %w23, {all_} <{turned}>"
    yield "%b_to = getelementptr i32, ptr %buffer, i64 %b"
    yield f"store {all_} %w, ptr %b_to, align 4"
