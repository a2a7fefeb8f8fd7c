"""Lines of LLVM IR for loops over vectors of 16 numbers of float32, some lanes masked."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from symdnn.cpu.jit import AS_WRITTEN
from symdnn.cpu.loops_ir import METADATA, THREADS

__all__ = ["MASK", "ROWS", "VECTOR", "WIDTH", "VectorSource", "first_lanes", "vector_module"]

#: Lanes of a vector, and its type and that of a mask.
WIDTH = 16
VECTOR = f"<{WIDTH} x float>"
MASK = f"<{WIDTH} x i1>"
#: The head of the function that runs a part of the tasks.
ROWS = "define internal void @rows(ptr %w, i64 %r0, i64 %r1, i64 %i0, i64 %i1) #0 {"


def _number(value: float) -> str:
    (narrow,) = struct.unpack("<f", struct.pack("<f", value))
    (bits,) = struct.unpack("<Q", struct.pack("<d", narrow))
    return f"0x{bits:016X}"


def _splat(value: float) -> str:
    return f"<{', '.join([f'float {_number(value)}'] * WIDTH)}>"


def first_lanes(count: int) -> str:
    """A mask of the first lanes."""
    return f"<{', '.join(f'i1 {int(i < count)}' for i in range(WIDTH))}>"


class VectorSource:
    """Lines of a function; vectors are of :data:`WIDTH` floats."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.block = "entry"
        self._count = 0

    def new(self, text: str) -> str:
        """A register with this value."""
        self._count += 1
        self.lines.append(f"%v{self._count} = {text}")
        return f"%v{self._count}"

    def label(self, name: str) -> None:
        """Begin a block."""
        self.lines.append(f"{name}:")
        self.block = name

    def loop(
        self, name: str, high: str, body: Callable[[str, list[str]], list[str]],
        carried: Sequence[str] = (),
    ) -> list[str]:  # fmt: skip
        """``body(i, values)`` for each number below ``high``, which is not 0.

        It is given vectors that it gives on to the next; ``carried`` are the first, and the last
        are returned.
        """
        before, i = self.block, f"%i_{name}"
        self.lines.append(f"br label %{name}")
        self.label(name)
        at = len(self.lines)
        self.lines += [""] * (1 + len(carried))
        held = [f"%c{n}_{name}" for n in range(len(carried))]
        after = body(i, held)
        following = self.new(f"add nuw nsw i64 {i}, 1")
        more = self.new(f"icmp slt i64 {following}, {high}")
        self.lines[at] = f"{i} = phi i64 [0, %{before}], [{following}, %{self.block}]"
        for n, (first, last) in enumerate(zip(carried, after, strict=True)):
            self.lines[at + 1 + n] = (
                f"{held[n]} = phi {VECTOR} [{first}, %{before}], [{last}, %{self.block}]"
            )
        self.lines.append(f"br i1 {more}, label %{name}, label %{name}_end")
        self.label(f"{name}_end")
        return after

    def choose(self, name: str, condition: str, body: Callable[[bool, str], None]) -> None:
        """``body(whether it holds, a name)`` in each branch."""
        self.lines.append(f"br i1 {condition}, label %{name}_yes, label %{name}_no")
        for word_, holds in (("yes", True), ("no", False)):
            self.label(f"{name}_{word_}")
            body(holds, f"{name}_{word_}")
            self.lines.append(f"br label %{name}_done")
        self.label(f"{name}_done")

    def affine(self, i: str, factor: int, offset: int = 0) -> str:
        """``factor * i + offset``"""
        if factor != 1:
            i = self.new(f"mul nsw i64 {i}, {factor}")
        return self.new(f"add nsw i64 {i}, {offset}") if offset else i

    def at(self, base: str, *offsets: str | int) -> str:
        """The address some floats behind another."""
        for offset in offsets:
            base = self.new(f"getelementptr float, ptr {base}, i64 {offset}") if offset else base
        return base

    # -- vectors --------------------------------------------------------------------------------

    def load(self, pointer: str, mask: str = "") -> str:
        """A vector; 0 in lanes that the mask has not."""
        if not mask:
            return self.new(f"load {VECTOR}, ptr {pointer}, align 4")
        return self.new(
            f"call {VECTOR} @llvm.masked.load.v16f32.p0(ptr {pointer}, i32 4, {MASK} {mask}, "
            f"{VECTOR} zeroinitializer)"
        )

    def store(self, value: str, pointer: str, mask: str = "") -> None:
        """Write a vector, or those lanes that the mask has."""
        if not mask:
            self.lines.append(f"store {VECTOR} {value}, ptr {pointer}, align 4")
            return
        self.lines.append(
            f"call void @llvm.masked.store.v16f32.p0({VECTOR} {value}, ptr {pointer}, i32 4, "
            f"{MASK} {mask})"
        )

    def lanes_below(self, first: str, high: int) -> str:
        """The mask of the lanes below ``high`` of a vector that begins at ``first``."""
        left = self.new(f"trunc i64 {self.new(f'sub i64 {high}, {first}')} to i32")
        kind = f"<{WIDTH} x i32>"
        begun = self.new(f"insertelement {kind} poison, i32 {left}, i64 0")
        every = self.new(f"shufflevector {kind} {begun}, {kind} poison, {kind} zeroinitializer")
        steps = ", ".join(f"i32 {i}" for i in range(WIDTH))
        return self.new(f"icmp slt {kind} <{steps}>, {every}")

    def add(self, a: str, b: str) -> str:
        """a + b"""
        return self.new(f"fadd {VECTOR} {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        """a - b"""
        return self.new(f"fsub {VECTOR} {a}, {b}")

    def scaled(self, a: str, factor: float) -> str:
        """factor * a"""
        return a if factor == 1 else self.new(f"fmul {VECTOR} {a}, {_splat(factor)}")

    def fma(self, factor: float, a: str, b: str) -> str:
        """factor * a + b"""
        return self.product(_splat(factor), a, b)

    def product(self, a: str, b: str, c: str) -> str:
        """a * b + c"""
        return self.new(f"call {VECTOR} @llvm.fma.v16f32({VECTOR} {a}, {VECTOR} {b}, {VECTOR} {c})")

    def spread(self, pointer: str) -> str:
        """The number there in every lane."""
        one = self.new(f"load float, ptr {pointer}, align 4")
        begun = self.new(f"insertelement {VECTOR} poison, float {one}, i64 0")
        zeros = f"<{WIDTH} x i32> zeroinitializer"
        return self.new(f"shufflevector {VECTOR} {begun}, {VECTOR} poison, {zeros}")


_DECLARED = [
    f"declare {VECTOR} @llvm.fma.v16f32({VECTOR}, {VECTOR}, {VECTOR})",
    f"declare {VECTOR} @llvm.masked.load.v16f32.p0(ptr, i32, {MASK}, {VECTOR})",
    f"declare void @llvm.masked.store.v16f32.p0({VECTOR}, ptr, i32, {MASK})",
    f"declare {VECTOR} @llvm.masked.gather.v16f32.v16p0(<{WIDTH} x ptr>, i32, {MASK}, {VECTOR})",
    f"declare void @llvm.masked.scatter.v16f32.v16p0({VECTOR}, <{WIDTH} x ptr>, i32, {MASK})",
    "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
]


def vector_module(source: VectorSource) -> str:
    """The module of ``kernel`` whose function ``rows`` these lines are."""
    return AS_WRITTEN + "\n".join([*_DECLARED, *THREADS, *source.lines, *METADATA]) + "\n"
