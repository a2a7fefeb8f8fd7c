"""LLVM IR that moves the chosen lanes of a vector to its first ones, by a table of their numbers.

A vector has 8 lanes of 32 bits or 4 of 64. The chosen ones are the bits of a number, for which the
table has their order. AVX2's permutation takes that; stores of chosen lanes that AVX-512 has take
many times as long on some processors.
"""

from __future__ import annotations

from symdnn.cpu.compiler import jit
from symdnn.cpu.ir.builder import FunctionBuilder

#: Lanes of the vectors of indices, and bytes of a vector.
LANES, _BYTES = 8, 32
_PERMUTE = "@llvm.x86.avx2.permd"


def _table(name: str, lanes: int, words: int) -> str:
    """A row of bytes for each set of lanes: the chosen ones' words of 32 bits, in order."""
    rows = []
    for bits in range(1 << lanes):
        chosen = [k for k in range(lanes) if bits >> k & 1]
        order = [words * k + j for k in chosen for j in range(words)]
        rows.append(f"i64 {int.from_bytes(bytes(order).ljust(8, bytes(1)), 'little', signed=True)}")
    return f"@{name} = internal constant [{len(rows)} x i64] [{', '.join(rows)}], align 64"


#: What a module with these vectors declares.
CHOSEN = [
    f"declare <8 x i32> {_PERMUTE}(<8 x i32>, <8 x i32>)",
    "declare i64 @llvm.ctpop.i64(i64)",
    _table("chosen8", 8, 1), _table("chosen4", 4, 2),
]  # fmt: skip


def in_vectors(bits: int) -> bool:
    """Whether there are such vectors of lanes of so many bits."""
    return bits in (32, 64) and jit.has("avx2")


def lanes_of(bits: int) -> int:
    """Lanes of a vector."""
    return 8 * _BYTES // bits


def chosen_bits(b: FunctionBuilder, mask: str, lanes: int) -> str:
    """A mask's lanes as the bits of an ``i64``."""
    word = b.new(f"bitcast <{lanes} x i1> {mask} to i{lanes}")
    return b.new(f"zext i{lanes} {word} to i64")


def count_of(b: FunctionBuilder, bits: str) -> str:
    """How many bits of an ``i64`` are set."""
    return b.new(f"call i64 @llvm.ctpop.i64(i64 {bits})")


def _order(b: FunctionBuilder, bits: str, lanes: int, element: str) -> str:
    table = f"[{1 << lanes} x i64], ptr @chosen{lanes}"
    row = b.new(f"getelementptr {table}, i64 0, i64 {bits}")
    order = b.new(f"load <8 x i8>, ptr {row}, align 8")
    return b.new(f"zext <8 x i8> {order} to <8 x {element}>")


def chosen_first(b: FunctionBuilder, vector: str, kind: str, bits: str) -> str:
    """A vector of ``kind`` whose first lanes are the chosen ones; others have any number."""
    lanes = int(kind[1:].partition(" ")[0])
    order = _order(b, bits, lanes, "i32")
    words = b.new(f"bitcast {kind} {vector} to <8 x i32>")
    moved = b.new(f"call <8 x i32> {_PERMUTE}(<8 x i32> {words}, <8 x i32> {order})")
    return b.new(f"bitcast <8 x i32> {moved} to {kind}")


def chosen_numbers(b: FunctionBuilder, first: str, bits: str) -> str:
    """Eight ``i64``: the numbers of the chosen of 8 lanes, from ``first``, are the first ones."""
    order = _order(b, bits, LANES, "i64")
    begun = b.new(f"insertelement <8 x i64> poison, i64 {first}, i64 0")
    zeros = "<8 x i32> zeroinitializer"
    every = b.new(f"shufflevector <8 x i64> {begun}, <8 x i64> poison, {zeros}")
    return b.new(f"add <8 x i64> {order}, {every}")
