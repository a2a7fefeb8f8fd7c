"""Geometry of a depthwise convolution: what its code depends on, its blocks and tasks."""

from __future__ import annotations

from dataclasses import dataclass

#: Limits of the rows of a block, and of unrolled products of a vector of columns.
_MAX_BLOCK_ROWS, _MAX_UNROLLED_PRODUCTS = 8, 256


@dataclass(frozen=True)
class Depth:
    """What a volume has beside its planes: their number in x and in y, and the filter's."""

    size: int
    out: int
    kernel: int
    stride: int
    dilation: int
    pad: int


@dataclass(frozen=True)
class DepthwisePlan:
    """One kernel, of one of these kinds:

    * ``forward``: (x, w) to y;
    * ``grad_input``: (w, dy) to dx;
    * ``grad_filter``: (x, dy) to dw.

    Pairs are (rows, columns): ``size`` of x, ``out`` of y, the ``kernel`` (filter size),
    ``stride``, ``dilation``, ``pad`` before the first. Each of the ``channels`` of x has
    ``multiplier`` channels in y. ``flip``: filters are mirrored. ``bias``, ``residual`` and
    ``activation``, one of ``ACTIVATIONS`` or empty, are the epilogue of the forward pass.
    ``narrow``: a vector takes two registers, and there are half as many registers. ``depth`` is of
    volumes, whose planes are sums over several planes of the input; not for ``grad_filter``.
    """

    kind: str
    size: tuple[int, int]
    out: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pad: tuple[int, int]
    channels: int
    multiplier: int
    flip: bool = False
    bias: bool = False
    residual: bool = False
    activation: str = ""
    narrow: bool = False
    depth: Depth | None = None

    @property
    def filter_size(self) -> int:
        """Weights of a filter."""
        return self.kernel[0] * self.kernel[1] * (self.depth.kernel if self.depth else 1)

    @property
    def planes(self) -> tuple[int, int]:
        """Planes of a channel of the input and of the result, 1 where there is no depth."""
        if self.depth is None:
            return 1, 1
        found = self.depth.size, self.depth.out
        return found[::-1] if self.kind == "grad_input" else found

    @property
    def block_extent(self) -> tuple[int, int]:
        """Rows and columns that blocks divide: of the result, or of dy for ``grad_filter``."""
        return self.size if self.kind == "grad_input" else self.out

    @property
    def input_extent(self) -> tuple[int, int]:
        """Rows and columns of the planes that filters move over."""
        return self.out if self.kind == "grad_input" else self.size

    @property
    def block(self) -> int:
        """Rows of a block, such that few are left over; a multiple of the stride in a gradient."""
        unit = self.stride[0] if self.kind == "grad_input" else 1
        area = self.filter_size
        most = (
            4
            if self.kind == "grad_filter"
            else max(1, min(_MAX_BLOCK_ROWS, _MAX_UNROLLED_PRODUCTS // area))
        )
        rows = self.block_extent[0]
        fits = [n for n in range(most, most // 2, -1) if n % unit == 0]
        whole = [n for n in fits if rows % n == 0]
        return min((whole or fits or [unit])[0], -(-rows // unit) * unit)

    @property
    def blocks(self) -> int:
        """Blocks of a plane."""
        return -(-self.block_extent[0] // self.block)

    def tasks(self, samples: int) -> int:
        """The number of tasks for so many samples."""
        if self.kind == "grad_filter":
            return self.channels * self.multiplier
        planes = samples * self.channels * (self.multiplier if self.kind == "forward" else 1)
        return planes * self.planes[1] * self.blocks

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the operands whose array objects are the words after the third, result last."""
        names = {
            "forward": ("x", "weights"),
            "grad_input": ("weights", "dy"),
            "grad_filter": ("x", "dy"),
        }[self.kind]
        more = [n for n, on in (("z", self.residual), ("bias", self.bias)) if on]
        return (*names, *more, "out")
