"""Sums of results and of their squares, channel by channel, while Winograd's kernels write them."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.conv.winograd_plan import padded
from symdnn.cpu.ir.vector_ir import MASK, VECTOR, WIDTH, VectorSource

__all__ = ["ResultSums"]

_HALF = WIDTH // 2
_DOUBLES = f"<{_HALF} x double>"


class ResultSums:
    """Sums in float64 at ``base``, of this thread: all channels' sums, then those of squares.

    Between :meth:`begin` and :meth:`end` those of a vector of channels are in registers.
    """

    def __init__(self, s: VectorSource, base: str, channels: int) -> None:
        self.s, self.base, self.squares = s, base, padded(channels)
        self.places: list[str] = []
        self.sums: list[str] = []

    def begin(self, first: str | int) -> None:
        """For the vector of channels from ``first`` on."""
        s, channel = self.s, _doubles_on(self.s, self.base, first)
        offsets = [kind + half for kind in (0, self.squares) for half in (0, _HALF)]
        self.places = [_doubles_on(s, channel, offset) for offset in offsets]
        self.sums = [s.new(f"load {_DOUBLES}, ptr {p}, align 8") for p in self.places]

    def add(self, value: str, mask: str) -> None:
        """One vector of results, of which those outside of the mask do not exist."""
        s = self.s
        if mask:
            value = s.new(f"select {MASK} {mask}, {VECTOR} {value}, {VECTOR} zeroinitializer")
        for half in (0, 1):
            wide = self._wide(value, range(half * _HALF, (half + 1) * _HALF))
            self.sums[half] = s.new(f"fadd {_DOUBLES} {self.sums[half]}, {wide}")
            self.sums[2 + half] = s.new(
                f"call {_DOUBLES} @llvm.fma.v8f64({_DOUBLES} {wide}, {_DOUBLES} {wide}, "
                f"{_DOUBLES} {self.sums[2 + half]})"
            )

    def _wide(self, value: str, lanes: Sequence[int]) -> str:
        picked = ", ".join(f"i32 {lane}" for lane in lanes)
        half = self.s.new(
            f"shufflevector {VECTOR} {value}, {VECTOR} poison, <{_HALF} x i32> <{picked}>"
        )
        return self.s.new(f"fpext <{_HALF} x float> {half} to {_DOUBLES}")

    def end(self) -> None:
        """Back to memory."""
        for place, value in zip(self.places, self.sums):
            self.s.lines.append(f"store {_DOUBLES} {value}, ptr {place}, align 8")


def _doubles_on(s: VectorSource, base: str, offset: str | int) -> str:
    """The address so many numbers of float64 behind another."""
    return s.new(f"getelementptr double, ptr {base}, i64 {offset}") if offset else base
