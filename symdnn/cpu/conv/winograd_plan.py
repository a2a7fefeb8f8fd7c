"""Sizes of what Winograd's kernels read and write (:mod:`symdnn.cpu.conv.winograd_ir`)."""

from __future__ import annotations

from dataclasses import dataclass

from symdnn.cpu.ir.vector_ir import WIDTH

__all__ = ["ROWS_AT_ONCE", "TAPS", "TILE", "KernelPlan", "SumPlan", "WinogradPlan", "padded"]

#: Pixels of a tile in each direction, transformed values of one.
TILE, TAPS = 6, 36
#: Rows of tiles that are multiplied at once, by how many vectors of results: 24 accumulators.
ROWS_AT_ONCE = {1: 24, 2: 12, 3: 8, 4: 6}
#: A multiple of all of these.
_MOST_ROWS = 24
#: Floats between matrices: a cache line, so that they do not all meet in the same sets.
_APART = 16


def padded(channels: int) -> int:
    """Channels in whole vectors."""
    return -(-channels // WIDTH) * WIDTH


def _floats(rows: int, columns: int) -> int:
    """Of a matrix, up to the next."""
    return rows * padded(columns) + _APART


@dataclass(frozen=True)
class WinogradPlan:
    """One kernel: sizes of images and results, channels of both, what follows, tiles of a block."""

    size: tuple[int, int]
    out: tuple[int, int]
    channels: int
    outputs: int
    r: int
    pad: tuple[int, int]
    block: int
    bias: bool = False
    residual: bool = False
    relu: bool = False
    #: Whether results and their squares are summed up for each channel.
    sums: bool = False

    @property
    def m(self) -> int:
        """Results of a tile in each direction."""
        return TILE + 1 - self.r

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles along the rows and columns of an image."""
        return -(-self.out[0] // self.m), -(-self.out[1] // self.m)

    @property
    def kernel_step(self) -> int:
        """Floats from one matrix of transformed kernels to the next."""
        return _floats(self.channels, self.outputs)

    @property
    def sum_step(self) -> int:
        """Likewise of sums of products over tiles."""
        return _floats(padded(self.channels), self.outputs)

    @property
    def tile_steps(self) -> tuple[int, int]:
        """Likewise of tiles before and after the products."""
        rows = -(-self.block // _MOST_ROWS) * _MOST_ROWS
        return _floats(rows, self.channels), _floats(rows, self.outputs)

    @property
    def thread_floats(self) -> int:
        """Scratch memory of a thread."""
        return TAPS * sum(self.tile_steps)


@dataclass(frozen=True)
class KernelPlan:
    """The transformation of kernels (outputs, channels, r, r).

    ``swapped``: they lie as (channels, outputs, r, r); ``mirrored``: rows and columns are reversed.
    """

    channels: int
    outputs: int
    r: int
    swapped: bool
    mirrored: bool

    @property
    def step(self) -> int:
        """Floats from one matrix to the next."""
        return _floats(self.channels, self.outputs)


@dataclass(frozen=True)
class SumPlan:
    """How sums of so many threads become kernels (outputs, channels, r, r)."""

    channels: int
    outputs: int
    r: int
    threads: int
    mirrored: bool

    @property
    def step(self) -> int:
        """Floats from one matrix of sums to the next."""
        return _floats(padded(self.channels), self.outputs)
