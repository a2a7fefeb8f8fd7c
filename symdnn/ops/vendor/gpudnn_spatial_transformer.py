"""cuDNN's spatial transformer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from symdnn.graph.op import Op
from symdnn.graph.variable import Variable
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

    neutral_type: ClassVar[type[Op]] = TransformerGrid
    static: tuple[int | None, int | None] = field(default=(None, None), kw_only=True)

    def with_arguments(self, *arguments: Any) -> tuple[Any, Sequence[Any]]:
        """(theta, H, W), or as in Theano (theta, out_dims)."""
        theta, *size = arguments
        if len(size) == 1:
            dims = size[0]
            size = [dims[2], dims[3]] if isinstance(dims, Variable) else list(dims)[2:]
        height, width = (as_dim(d) for d in size)
        op = replace(self, static=(static_dim(height), static_dim(width)))
        return op, [theta, height, width]


class GpuDnnTransformerSampler(DnnBase):
    """``img`` (N, C, H, W) sampled at ``grid``. (``cudnnSpatialTfSamplerForward``)"""

    neutral_type: ClassVar[type[Op]] = TransformerSampler


class GpuDnnTransformerGradI(DnnBase):
    """(dimg, dgrid) of (img, grid, dy). (``cudnnSpatialTfSamplerBackward``)"""

    neutral_type: ClassVar[type[Op]] = TransformerSamplerGrad


class GpuDnnTransformerGradT(DnnBase):
    """dtheta of dgrid. (``cudnnSpatialTfGridGeneratorBackward``)"""

    neutral_type: ClassVar[type[Op]] = TransformerGridGrad
