"""The builder of LLVM IR for loops over vectors of 16 float32, with masked loads and stores."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from symdnn.cpu.compiler.jit import SKIP_PASSES
from symdnn.cpu.ir.loops_ir import METADATA, THREADS
from symdnn.cpu.ir.source_ir import ROWS, Source

__all__ = [
    "DECLARED", "MASK", "ROWS", "VECTOR", "WIDTH", "VectorSource", "first_lanes", "splat",
    "vector_module",
]  # fmt: skip

#: Lanes of a vector; the types of a vector and of a mask.
WIDTH = 16
VECTOR = f"<{WIDTH} x float>"
MASK = f"<{WIDTH} x i1>"


def _number(value: float) -> str:
    (narrow,) = struct.unpack("<f", struct.pack("<f", value))
    (bits,) = struct.unpack("<Q", struct.pack("<d", narrow))
    return f"0x{bits:016X}"


def splat(value: float) -> str:
    """A constant vector with this number in all lanes."""
    return f"<{', '.join([f'float {_number(value)}'] * WIDTH)}>"


def first_lanes(count: int) -> str:
    """A constant mask of the first ``count`` lanes."""
    return f"<{', '.join(f'i1 {int(i < count)}' for i in range(WIDTH))}>"


class VectorSource(Source):
    """A builder with arithmetic on vectors of :data:`WIDTH` float32."""

    def loop(
        self, name: str, high: str, body: Callable[[str, list[str]], list[str]],
        carried: Sequence[str] = (),
    ) -> list[str]:  # fmt: skip
        """A loop over ``i`` from 0 to below ``high``, at least 1, with loop-carried vectors.

        See :meth:`Source.counted`.
        """
        return self.counted(name, 0, high, body, carried, VECTOR)

    def choose(self, name: str, condition: str, body: Callable[[bool, str], None]) -> None:
        """A branch: ``body(True, name)`` where the condition holds, else ``body(False, name)``."""
        self.lines.append(f"br i1 {condition}, label %{name}_yes, label %{name}_no")
        for word_, holds in (("yes", True), ("no", False)):
            self.label(f"{name}_{word_}")
            body(holds, f"{name}_{word_}")
            self.lines.append(f"br label %{name}_done")
        self.label(f"{name}_done")

    def at(self, base: str, *offsets: str | int) -> str:
        """The address ``base`` plus these offsets, in elements."""
        for offset in offsets:
            base = self.new(f"getelementptr float, ptr {base}, i64 {offset}") if offset else base
        return base

    # -- vectors --------------------------------------------------------------------------------

    def load(self, pointer: str, mask: str = "") -> str:
        """Load a vector; lanes outside of the mask are 0."""
        if not mask:
            return self.new(f"load {VECTOR}, ptr {pointer}, align 4")
        return self.new(
            f"call {VECTOR} @llvm.masked.load.v16f32.p0(ptr {pointer}, i32 4, {MASK} {mask}, "
            f"{VECTOR} zeroinitializer)"
        )

    def store(self, value: str, pointer: str, mask: str = "") -> None:
        """Store a vector, or its lanes in the mask."""
        if not mask:
            self.lines.append(f"store {VECTOR} {value}, ptr {pointer}, align 4")
            return
        self.lines.append(
            f"call void @llvm.masked.store.v16f32.p0({VECTOR} {value}, ptr {pointer}, i32 4, "
            f"{MASK} {mask})"
        )

    def lanes_below(self, first: str, high: int | str) -> str:
        """The mask of the elements below ``high`` in a vector whose first element is ``first``."""
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
        return a if factor == 1 else self.new(f"fmul {VECTOR} {a}, {splat(factor)}")

    def scale_add(self, factor: float, a: str, b: str) -> str:
        """factor * a + b"""
        return self.multiply_add(splat(factor), a, b)

    def multiply_add(self, a: str, b: str, c: str) -> str:
        """a * b + c"""
        return self.new(f"call {VECTOR} @llvm.fma.v16f32({VECTOR} {a}, {VECTOR} {b}, {VECTOR} {c})")

    def broadcast(self, pointer: str) -> str:
        """Load a number and broadcast it to all lanes."""
        one = self.new(f"load float, ptr {pointer}, align 4")
        begun = self.new(f"insertelement {VECTOR} poison, float {one}, i64 0")
        zeros = f"<{WIDTH} x i32> zeroinitializer"
        return self.new(f"shufflevector {VECTOR} {begun}, {VECTOR} poison, {zeros}")


#: Declarations of the intrinsics that the builder calls.
DECLARED = [
    f"declare {VECTOR} @llvm.fma.v16f32({VECTOR}, {VECTOR}, {VECTOR})",
    "declare <8 x double> @llvm.fma.v8f64(<8 x double>, <8 x double>, <8 x double>)",
    f"declare {VECTOR} @llvm.masked.load.v16f32.p0(ptr, i32, {MASK}, {VECTOR})",
    f"declare void @llvm.masked.store.v16f32.p0({VECTOR}, ptr, i32, {MASK})",
    f"declare {VECTOR} @llvm.masked.gather.v16f32.v16p0(<{WIDTH} x ptr>, i32, {MASK}, {VECTOR})",
    f"declare void @llvm.masked.scatter.v16f32.v16p0({VECTOR}, <{WIDTH} x ptr>, i32, {MASK})",
    "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
]


def vector_module(source: VectorSource) -> str:
    """The module of ``kernel`` around this function ``rows``."""
    return SKIP_PASSES + "\n".join([*DECLARED, *THREADS, *source.lines, *METADATA]) + "\n"
