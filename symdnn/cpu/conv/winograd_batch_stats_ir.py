"""Sums of results and of their squares for each channel, while Winograd's kernels store them."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.conv.winograd_plan import padded
from symdnn.cpu.ir.builder import MASK, VECTOR, WIDTH, Builder

__all__ = ["ResultSums"]

_HALF_WIDTH = WIDTH // 2
_DOUBLE_VECTOR = f"<{_HALF_WIDTH} x double>"


class ResultSums:
    """This thread's sums in float64 at ``base``: of all channels, then of their squares.

    Between :meth:`begin` and :meth:`end` the sums of a vector of channels are in registers.
    """

    def __init__(self, s: Builder, base: str, channels: int) -> None:
        self.s, self.base, self.squares = s, base, padded(channels)
        self.places: list[str] = []
        self.sums: list[str] = []

    def begin(self, first: str | int) -> None:
        """Load the sums of the vector of channels from ``first`` on."""
        s, channel = self.s, _doubles_on(self.s, self.base, first)
        offsets = [kind + half for kind in (0, self.squares) for half in (0, _HALF_WIDTH)]
        self.places = [_doubles_on(s, channel, offset) for offset in offsets]
        self.sums = [s.new(f"load {_DOUBLE_VECTOR}, ptr {p}, align 8") for p in self.places]

    def add(self, value: str, mask: str) -> None:
        """Add one vector of results; lanes outside of the mask do not exist."""
        s = self.s
        if mask:
            value = s.new(f"select {MASK} {mask}, {VECTOR} {value}, {VECTOR} zeroinitializer")
        for half in (0, 1):
            wide = self._wide(value, range(half * _HALF_WIDTH, (half + 1) * _HALF_WIDTH))
            self.sums[half] = s.new(f"fadd {_DOUBLE_VECTOR} {self.sums[half]}, {wide}")
            self.sums[2 + half] = s.new(
                f"call {_DOUBLE_VECTOR} @llvm.fma.v8f64("
                f"{_DOUBLE_VECTOR} {wide}, {_DOUBLE_VECTOR} {wide}, "
                f"{_DOUBLE_VECTOR} {self.sums[2 + half]})"
            )

    def _wide(self, value: str, lanes: Sequence[int]) -> str:
        picked = ", ".join(f"i32 {lane}" for lane in lanes)
        half = self.s.new(
            f"shufflevector {VECTOR} {value}, {VECTOR} poison, <{_HALF_WIDTH} x i32> <{picked}>"
        )
        return self.s.new(f"fpext <{_HALF_WIDTH} x float> {half} to {_DOUBLE_VECTOR}")

    def end(self) -> None:
        """Store the sums."""
        for place, value in zip(self.places, self.sums):
            self.s.lines.append(f"store {_DOUBLE_VECTOR} {value}, ptr {place}, align 8")


def _doubles_on(s: Builder, base: str, offset: str | int) -> str:
    """The address ``base`` plus an offset in float64 elements."""
    return s.new(f"getelementptr double, ptr {base}, i64 {offset}") if offset else base
