"""cuDNN's spatial transformer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from symdnn.graph.op import Op
from symdnn.graph.origin import Hints
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.shape import as_dim, static_dim
from symdnn.ops.nn.spatial_transformer import (
    TransformerGrid,
    TransformerGridGrad,
    TransformerSampler,
    TransformerSamplerGrad,
)
from symdnn.ops.vendor.gpudnn_base import DnnBase

__all__ = [
    "GpuDnnTransformerGradI", "GpuDnnTransformerGradT", "GpuDnnTransformerGrid",
    "GpuDnnTransformerSampler",
]  # fmt: skip


@dataclass(frozen=True)
class GpuDnnTransformerGrid(DnnBase):
    """The sampling grid (N, H, W, 2) of (theta, H, W).

    As in Theano: ``GpuDnnTransformerGrid()(theta, out_dims)`` with ``out_dims`` (N, C, H, W).
    (``cudnnSpatialTfGridGeneratorForward``)
    """

    static: tuple[int | None, int | None] = field(default=(None, None), kw_only=True)

    @property
    def unlowered(self) -> Op:
        return TransformerGrid(self.static)

    def __call__(self, *inputs: Any, hints: Hints | None = None, name: str | None = None) -> Any:
        """Apply to (theta, H, W), or as in Theano to (theta, out_dims)."""
        theta, *size = inputs
        if len(size) == 1:
            dims = size[0]
            size = [dims[2], dims[3]] if isinstance(dims, Variable) else list(dims)[2:]
        height, width = (as_dim(d) for d in size)
        op = replace(self, static=(static_dim(height), static_dim(width)))
        return DnnBase.__call__(op, as_variable(theta), height, width, hints=hints, name=name)


@dataclass(frozen=True)
class GpuDnnTransformerSampler(DnnBase):
    """``img`` (N, C, H, W) sampled at ``grid``. (``cudnnSpatialTfSamplerForward``)"""

    @property
    def unlowered(self) -> Op:
        return TransformerSampler()


@dataclass(frozen=True)
class GpuDnnTransformerGradI(DnnBase):
    """(dimg, dgrid) of (img, grid, dy). (``cudnnSpatialTfSamplerBackward``)"""

    @property
    def unlowered(self) -> Op:
        return TransformerSamplerGrad()


@dataclass(frozen=True)
class GpuDnnTransformerGradT(DnnBase):
    """dtheta of dgrid. (``cudnnSpatialTfGridGeneratorBackward``)"""

    @property
    def unlowered(self) -> Op:
        return TransformerGridGrad()
