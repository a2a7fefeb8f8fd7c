"""LLVM IR of random numbers: Philox4x32-10, whose blocks of four words are vectorised.

The numbers are those of :mod:`symdnn.ops.random.rng_philox`. A kernel's block of words: threads, 1,
the number of elements, then array objects: the state, the next state, the values, the parameter.
Elements are made in chunks. The random words of a chunk go to a buffer first, from the Philox block
of the chunk's first element on; then its values are computed from them.
"""

from __future__ import annotations

from collections.abc import Iterator

from symdnn.cpu.ir.builder import ROWS
from symdnn.cpu.ir.loops_ir import METADATA, THREADS, data_of, word
from symdnn.cpu.ir.math_ir import declarations
from symdnn.cpu.ir.scalar_ir import VALUES, literal, load_as, store_as
from symdnn.cpu.math.math_double_ir import HELPERS, horner, number
from symdnn.cpu.math.math_inverse_trig_ir import COS, SIN

__all__ = ["MULTIPLIERS", "ROUNDS", "WEYL", "draw_ir"]

#: Philox blocks of a chunk, and elements made from them: up to three words of the first block
#: belong to the previous chunk.
_CHUNK_BLOCKS = 64
_CHUNK_ELEMENTS = 4 * _CHUNK_BLOCKS - 4
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
_OBJECTS = ("state", "next", "y", "p")


def draw_ir(kind: str, dtype: str, parameter: str = "") -> str:
    """The module of ``kernel`` for a kind of random numbers.

    Kinds are ``uniform`` and ``normal``, of float32, ``bernoulli``, whose parameter is the
    probability of 1, and ``mask``, whose parameter is the probability of 0. ``parameter`` is that
    dtype.
    """
    objects = _OBJECTS[: 4 if parameter else 3]
    lines = [
        *sorted(declarations({"sin"})),
        *(HELPERS["d_log"] if kind == "normal" else []),
        *(line.replace("@kernel(", "@parts(") for line in THREADS),
        ROWS,
        "entry:",
        f"%buffer = alloca [{4 * _CHUNK_BLOCKS} x i32], align 64",
        f"%values = alloca [{4 * _CHUNK_BLOCKS} x float], align 64",
        *(line for at, name in enumerate(objects, 3) for line in data_of(f"%{name}", at)),
        *_key_and_counter(),
        *(_threshold(kind, parameter) if parameter else []),
        "br label %chunk",
        "chunk:",
        "%i = phi i64 [%i0, %entry], [%i_next, %chunk_end]",
        *_words(),
        *(_normal() if kind == "normal" else []),
        *_values(kind, dtype),
        "chunk_end:",
        f"%i_next = add i64 %i, {_CHUNK_ELEMENTS}",
        "%more = icmp slt i64 %i_next, %i1",
        "br i1 %more, label %chunk, label %done",
        "done:",
        "ret void",
        "}",
        *_kernel(),
        *METADATA,
    ]
    return "\n".join(lines) + "\n"


def _key_and_counter() -> Iterator[str]:
    """Lines for the key of each round, and the counter."""
    yield "%key = load i64, ptr %state"
    yield "%counter_at = getelementptr i64, ptr %state, i64 1"
    yield "%counter = load i64, ptr %counter_at"
    yield "%k0_0 = trunc i64 %key to i32"
    yield "%key_high = lshr i64 %key, 32"
    yield "%k1_0 = trunc i64 %key_high to i32"
    for r in range(1, ROUNDS):
        for half, weyl in enumerate(WEYL):
            yield f"%k{half}_{r} = add i32 %k{half}_{r - 1}, {weyl}"


def _threshold(kind: str, parameter: str) -> Iterator[str]:
    """Lines for ``%limit``: words below it give 1."""
    yield from load_as(parameter, "%p0", "%p")
    wide = "%p0"
    if VALUES[parameter] != "double":
        yield f"%p1 = fpext {VALUES[parameter]} %p0 to double"
        wide = "%p1"
    if kind == "mask":
        yield f"%p2 = fsub double {number(1.0)}, {wide}"
        wide = "%p2"
    yield f"%limit = fmul double {wide}, {number(2.0**32)}"


def _words() -> Iterator[str]:
    """Lines for the random words of a chunk, and for ``%skip``, the index of its first word."""
    # The number of a Philox block is computed so that it does not wrap where an element's does.
    yield "%counter_block = lshr i64 %counter, 2"
    yield "%counter_lane = and i64 %counter, 3"
    yield "%j = add i64 %counter_lane, %i"
    yield "%ahead = lshr i64 %j, 2"
    yield "%first = add i64 %counter_block, %ahead"
    yield "%skip = and i64 %j, 3"
    yield "%left = sub i64 %i1, %i"
    yield f"%whole = icmp sgt i64 %left, {_CHUNK_ELEMENTS}"
    yield f"%count = select i1 %whole, i64 {_CHUNK_ELEMENTS}, i64 %left"
    yield "br label %block"
    yield "block:"
    yield "%b = phi i64 [0, %chunk], [%b_next, %block]"
    yield "%number = add i64 %first, %b"
    yield "%c0_0 = trunc i64 %number to i32"
    yield "%high = lshr i64 %number, 32"
    yield "%c1_0 = trunc i64 %high to i32"
    now = ["%c0_0", "%c1_0", "1", "0"]
    for r in range(ROUNDS):
        for half, at in ((0, 0), (1, 2)):
            yield f"%z{half}_{r} = zext i32 {now[at]} to i64"
            yield f"%m{half}_{r} = mul nuw i64 %z{half}_{r}, {MULTIPLIERS[half]}"
            yield f"%l{half}_{r} = trunc i64 %m{half}_{r} to i32"
            yield f"%s{half}_{r} = lshr i64 %m{half}_{r}, 32"
            yield f"%h{half}_{r} = trunc i64 %s{half}_{r} to i32"
        yield f"%x0_{r} = xor i32 %h1_{r}, {now[1]}"
        yield f"%y0_{r} = xor i32 %x0_{r}, %k0_{r}"
        yield f"%x2_{r} = xor i32 %h0_{r}, {now[3]}"
        yield f"%y2_{r} = xor i32 %x2_{r}, %k1_{r}"
        now = [f"%y0_{r}", f"%l1_{r}", f"%y2_{r}", f"%l0_{r}"]
    yield "%to = shl i64 %b, 2"
    for lane, name in enumerate(now):
        yield f"%to{lane} = add i64 %to, {lane}"
        yield f"%to_p{lane} = getelementptr i32, ptr %buffer, i64 %to{lane}"
        yield f"store i32 {name}, ptr %to_p{lane}, align 4, !llvm.access.group !0"
    yield "%b_next = add nuw nsw i64 %b, 1"
    yield f"%b_more = icmp slt i64 %b_next, {_CHUNK_BLOCKS}"
    yield "br i1 %b_more, label %block, label %made, !llvm.loop !1"
    yield "made:"


def _normal() -> Iterator[str]:
    """Lines that turn pairs (u, v) of the buffer into normal numbers, by Box and Muller in float64.

    The angle is 4 v quarter turns, reduced by the nearest integer.
    """
    access = ", !llvm.access.group !0"
    yield "br label %pair"
    yield "pair:"
    yield "%k = phi i64 [0, %made], [%k_next, %pair]"
    yield "%k2 = shl i64 %k, 1"
    yield "%k3 = or i64 %k2, 1"
    for name, at in (("u", "%k2"), ("v", "%k3")):
        yield f"%{name}_p = getelementptr i32, ptr %buffer, i64 {at}"
        yield f"%{name}_w = load i32, ptr %{name}_p, align 4{access}"
        yield f"%{name}_f = uitofp i32 %{name}_w to float"
        yield f"%{name}_s = fmul float %{name}_f, {number(2.0**-32)}"
        yield f"%{name}_h = fadd float %{name}_s, {number(2.0**-33)}"
        yield f"%{name} = fpext float %{name}_h to double"
    yield "%log = call double @d_log(double %u)"
    yield f"%twice = fmul double %log, {number(-2.0)}"
    yield "%radius = call double @llvm.sqrt.f64(double %twice)"
    yield f"%turns = fmul double %v, {number(4.0)}"
    yield f"%q_k = fadd double %turns, {number(float(3 << 51))}"
    yield f"%q_f = fsub double %q_k, {number(float(3 << 51))}"
    yield "%q = bitcast double %q_k to i64"
    yield "%rest = fsub double %turns, %q_f"
    yield f"%r = fmul double %rest, {number(1.5707963267948966)}"
    yield "%z = fmul double %r, %r"
    yield from horner(SIN, "%z", "sn")
    yield from horner(COS, "%z", "cs")
    yield "%rz = fmul double %r, %z"
    last = len(SIN) - 2
    yield f"%sin = call double @llvm.fmuladd.f64(double %rz, double %sn{last}, double %r)"
    one = number(1.0)
    yield f"%cos = call double @llvm.fmuladd.f64(double %z, double %cs{last}, double {one})"
    yield "%odd0 = and i64 %q, 1"
    yield "%odd = icmp ne i64 %odd0, 0"
    yield "%a0 = select i1 %odd, double %sin, double %cos"
    yield "%b0 = select i1 %odd, double %cos, double %sin"
    # The cosine is negative in quarters 1 and 2, the sine in 2 and 3.
    yield "%q1 = add i64 %q, 1"
    for name, source, at in (("a", "%q1", "%k2"), ("b", "%q", "%k3")):
        yield f"%{name}_half0 = and i64 {source}, 2"
        yield f"%{name}_half = icmp ne i64 %{name}_half0, 0"
        yield f"%{name}_minus = fneg double %{name}0"
        yield f"%{name}1 = select i1 %{name}_half, double %{name}_minus, double %{name}0"
        yield f"%{name}2 = fmul double %{name}1, %radius"
        yield f"%{name}3 = fptrunc double %{name}2 to float"
        yield f"%{name}_to = getelementptr float, ptr %values, i64 {at}"
        yield f"store float %{name}3, ptr %{name}_to, align 4{access}"
    yield "%k_next = add nuw nsw i64 %k, 1"
    yield f"%k_more = icmp slt i64 %k_next, {2 * _CHUNK_BLOCKS}"
    yield "br i1 %k_more, label %pair, label %paired, !llvm.loop !1"
    yield "paired:"


def _values(kind: str, dtype: str) -> Iterator[str]:
    """Lines that store the elements of a chunk."""
    access = ", !llvm.access.group !0"
    before = "paired" if kind == "normal" else "made"
    yield "br label %element"
    yield "element:"
    yield f"%e = phi i64 [0, %{before}], [%e_next, %element]"
    yield "%from = add nuw nsw i64 %skip, %e"
    if kind == "normal":
        yield "%from_p = getelementptr float, ptr %values, i64 %from"
        yield f"%value = load float, ptr %from_p, align 4{access}"
    else:
        yield "%from_p = getelementptr i32, ptr %buffer, i64 %from"
        yield f"%word = load i32, ptr %from_p, align 4{access}"
        yield from (_uniform() if kind == "uniform" else _below(dtype))
    yield "%place = add nuw nsw i64 %i, %e"
    memory = "i8" if dtype == "bool" else VALUES[dtype]
    yield f"%y_p = getelementptr {memory}, ptr %y, i64 %place"
    yield from store_as(dtype, "%value", "%y_p", access)
    yield "%e_next = add nuw nsw i64 %e, 1"
    yield "%e_more = icmp slt i64 %e_next, %count"
    yield "br i1 %e_more, label %element, label %chunk_end, !llvm.loop !1"


def _uniform() -> Iterator[str]:
    """Lines for ``%value``: the midpoint of one of 2^23 equal cells of (0, 1)."""
    yield "%cell = lshr i32 %word, 9"
    yield "%cell_f = uitofp i32 %cell to float"
    yield f"%cell_2 = fmul float %cell_f, {number(2.0)}"
    yield f"%cell_1 = fadd float %cell_2, {number(1.0)}"
    yield f"%value = fmul float %cell_1, {number(2.0**-24)}"


def _below(dtype: str) -> Iterator[str]:
    """Lines for ``%value``: whether the word is below the limit."""
    yield "%word_d = uitofp i32 %word to double"
    t = VALUES[dtype]
    if dtype == "bool":
        yield "%value = fcmp olt double %word_d, %limit"
        return
    yield "%below = fcmp olt double %word_d, %limit"
    zero, one = (literal(text, dtype) for text in ("0", "1"))
    yield f"%value = select i1 %below, {t} {one}, {t} {zero}"


def _kernel() -> Iterator[str]:
    """The function ``kernel``: all elements, then the next state, which may overwrite the state."""
    yield "define void @kernel(ptr %w) #0 {"
    yield "entry:"
    yield "call void @parts(ptr %w)"
    yield from word("%n", 2)
    yield from data_of("%state", 3)
    yield from data_of("%next", 4)
    yield "%key = load i64, ptr %state"
    yield "%counter_at = getelementptr i64, ptr %state, i64 1"
    yield "%counter = load i64, ptr %counter_at"
    yield "%after = add i64 %counter, %n"
    yield "%after_at = getelementptr i64, ptr %next, i64 1"
    yield "store i64 %key, ptr %next"
    yield "store i64 %after, ptr %after_at"
    yield "ret void"
    yield "}"
