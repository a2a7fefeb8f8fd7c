"""Sizes of arrays and scratch memory of Winograd's kernels (:mod:`symdnn.cpu.conv.winograd_ir`)."""

from __future__ import annotations

from dataclasses import dataclass

from symdnn.cpu.ir.builder import WIDTH

#: Pixels of a tile in each direction; values of a transformed tile.
TILE, TAPS = 6, 36
#: Number of vectors of results -> rows of tiles multiplied at once: 24 accumulators of 512 bits, or
#: 12 of 256.
_UNROLL_ROWS, _UNROLL_ROWS_HALF = {1: 24, 2: 12, 3: 8, 4: 6}, {2: 6}
#: A common multiple of these.
_ROW_MULTIPLE = 24
#: Floats between matrices: a cache line, so that they do not map to the same sets of the cache.
_MATRIX_GAP_FLOATS = 16


def padded(channels: int) -> int:
    """A number of channels rounded up to whole vectors."""
    return -(-channels // WIDTH) * WIDTH


def _floats(rows: int, columns: int) -> int:
    """Floats from a matrix to the next."""
    return rows * padded(columns) + _MATRIX_GAP_FLOATS


@dataclass(frozen=True)
class WinogradPlan:
    """One kernel: sizes of input and result, channels of both, tiles of a block, the epilogue."""

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
    #: Whether to add up results and their squares for each channel.
    sums: bool = False
    #: Whether vectors have 256 bits, and filters are in panels of :data:`WIDTH` outputs.
    half: bool = False

    @property
    def lanes(self) -> int:
        """Floats of a vector."""
        return WIDTH // 2 if self.half else WIDTH

    @property
    def unroll_rows(self) -> dict[int, int]:
        """Number of vectors of results -> rows of tiles multiplied at once."""
        return _UNROLL_ROWS_HALF if self.half else _UNROLL_ROWS

    @property
    def m(self) -> int:
        """Results of a tile in each direction."""
        return TILE + 1 - self.r

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles along the rows and columns of a sample."""
        return -(-self.out[0] // self.m), -(-self.out[1] // self.m)

    @property
    def filter_step(self) -> int:
        """Floats from one matrix of transformed filters to the next."""
        return _floats(self.channels, self.outputs)

    @property
    def sum_step(self) -> int:
        """Floats from one matrix of sums over tiles to the next."""
        return _floats(padded(self.channels), self.outputs)

    @property
    def tile_steps(self) -> tuple[int, int]:
        """Floats from one matrix of tiles to the next, before and after the multiplication."""
        rows = -(-self.block // _ROW_MULTIPLE) * _ROW_MULTIPLE
        return _floats(rows, self.channels), _floats(rows, self.outputs)

    @property
    def thread_floats(self) -> int:
        """Scratch memory of a thread, in floats."""
        return TAPS * sum(self.tile_steps)


@dataclass(frozen=True)
class FilterPlan:
    """The transformation of filters (outputs, channels, r, r).

    ``swapped``: their shape is (channels, outputs, r, r). ``mirrored``: rows and columns are
    reversed. ``panels``: a matrix is (panel of outputs, channel, output), not (channel, output).
    """

    channels: int
    outputs: int
    r: int
    swapped: bool
    mirrored: bool
    panels: bool = False

    @property
    def step(self) -> int:
        """Floats from one matrix to the next."""
        return _floats(self.channels, self.outputs)


@dataclass(frozen=True)
class FilterGradPlan:
    """The transformation of the sums of all threads to filters (outputs, channels, r, r)."""

    channels: int
    outputs: int
    r: int
    threads: int
    mirrored: bool

    @property
    def step(self) -> int:
        """Floats from one matrix of sums to the next."""
        return _floats(padded(self.channels), self.outputs)
