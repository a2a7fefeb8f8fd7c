"""Sums of results and of their squares for each channel, while Winograd's kernels store them."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.conv.winograd_plan import padded
from symdnn.cpu.ir.builder import Builder


class ResultSums:
    """This thread's sums in float64 at ``base``: of all channels, then of their squares.

    Between :meth:`begin` and :meth:`end` the sums of a vector of channels are in registers.
    """

    def __init__(self, s: Builder, base: str, channels: int) -> None:
        self.s, self.base, self.squares = s, base, padded(channels)
        self.half = s.width // 2
        self.wide = f"<{self.half} x double>"
        self.fma = f"@llvm.fma.v{self.half}f64"
        s.declared.add(f"declare {self.wide} {self.fma}({', '.join([self.wide] * 3)})")
        self.places: list[str] = []
        self.sums: list[str] = []

    def begin(self, first: str | int) -> None:
        """Load the sums of the vector of channels from ``first`` on."""
        s, channel = self.s, _doubles_on(self.s, self.base, first)
        offsets = [kind + half for kind in (0, self.squares) for half in (0, self.half)]
        self.places = [_doubles_on(s, channel, offset) for offset in offsets]
        self.sums = [s.new(f"load {self.wide}, ptr {p}, align 8") for p in self.places]

    def add(self, value: str, exists: str, lanes: str) -> None:
        """Add one vector of results, if there is one; lanes outside of the mask do not exist."""
        s = self.s
        for kind, given in (("i1", exists), (s.mask, lanes)):
            if given:
                both = f"{s.vector} {value}, {s.vector} zeroinitializer"
                value = s.new(f"select {kind} {given}, {both}")
        for half in (0, 1):
            wide = self._wide(value, range(half * self.half, (half + 1) * self.half))
            self.sums[half] = s.new(f"fadd {self.wide} {self.sums[half]}, {wide}")
            self.sums[2 + half] = s.new(
                f"call {self.wide} {self.fma}({self.wide} {wide}, {self.wide} {wide}, "
                f"{self.wide} {self.sums[2 + half]})"
            )

    def _wide(self, value: str, lanes: Sequence[int]) -> str:
        s = self.s
        picked = ", ".join(f"i32 {lane}" for lane in lanes)
        half = s.new(
            f"shufflevector {s.vector} {value}, {s.vector} poison, <{self.half} x i32> <{picked}>"
        )
        return s.new(f"fpext <{self.half} x float> {half} to {self.wide}")

    def end(self) -> None:
        """Store the sums."""
        for place, value in zip(self.places, self.sums):
            self.s.lines.append(f"store {self.wide} {value}, ptr {place}, align 8")


def _doubles_on(s: Builder, base: str, offset: str | int) -> str:
    """The address ``base`` plus an offset in float64 elements."""
    return s.new(f"getelementptr double, ptr {base}, i64 {offset}") if offset else base
