"""Softmax and its logarithm over an image, over its planes, or along one axis.

``SoftMax`` and ``LogSoftMax`` normalise over each whole example (cuDNN's instance mode),
the spatial and volumetric ones over the planes at each position (its channel mode).
"""

from __future__ import annotations

from typing import ClassVar

from symdnn.errors import TypeMismatch
from symdnn.graph.origin import current_hints
from symdnn.graph.variable import Variable
from symdnn.nn.modules.arguments import as_batch, tensor_input
from symdnn.nn.modules.module import Module
from symdnn.ops.core.shape import dims_of
from symdnn.ops.nn.softmax import logsoftmax, softmax
from symdnn.ops.vendor.gpudnn import GpuDnnSoftmax

__all__ = [
    "LogSoftMax", "SoftMax", "SoftMin", "SpatialLogSoftMax", "SpatialSoftMax",
    "VolumetricLogSoftMax", "VolumetricSoftMax",
]  # fmt: skip


#: In the place of ``dim``: PyTorch's choice where none is given, :func:`dim_of_rank`.
BY_RANK = "by_rank"


def dim_of_rank(ndim: int) -> int:
    """The axis that PyTorch's softmax without ``dim`` is along, of so many dimensions."""
    return 0 if ndim in (0, 1, 3) else 1


class _Normalised(Module):
    """Softmax, or its logarithm, along an axis.

    ``fastMode`` allows cuDNN's FAST algorithm, which does not subtract the largest and may
    overflow; it is taken where the module's backend is "cudnn".
    """

    log: ClassVar[bool] = False
    fastMode: bool = False

    def __init__(self, fastMode: bool = False) -> None:
        self.fastMode = bool(fastMode)

    def along(self, x: Variable, axis: int) -> Variable:
        """The result along an axis of ``x``."""
        if self.log:
            return logsoftmax(x, axis)
        if self.fastMode and current_hints().backend == "cudnn" and x.type.ndim >= 2:
            return GpuDnnSoftmax("fast", "channel", axis=axis)(x)
        return softmax(x, axis)


class SoftMax(_Normalised):
    """``exp(x) / sum(exp(x))`` over each example, all of its planes and positions.

    Examples are the rows of a matrix, the images of (N, C, H, W) and the volumes of (N, C, T, H,
    W); a vector, and (C, H, W), is one example. ``dim`` names one axis instead, as in PyTorch.
    (cudnn.SoftMax.)
    """

    def __init__(self, fastMode: bool = False, *, dim: int | None = None) -> None:
        super().__init__(fastMode)
        self.dim: int | str | None = dim

    def forward(self, x: Variable) -> Variable:
        name = type(self).__name__
        tensor_input(self, x, "a float tensor")
        ndim = x.type.ndim
        if self.dim is not None:
            dim = dim_of_rank(ndim) if isinstance(self.dim, str) else self.dim
            if not -ndim <= dim < ndim:
                raise TypeMismatch(name, f"a float tensor with an axis {dim}", x.type)
            return self.along(x, dim % ndim)
        if not 1 <= ndim <= 5:
            raise TypeMismatch(name, "a float tensor of 1 to 5 dimensions", x.type, "Give dim=")
        return self._over_examples(x)

    def _over_examples(self, x: Variable) -> Variable:
        ndim, dims = x.type.ndim, dims_of(x)
        if ndim <= 2:
            return self.along(x, ndim - 1)
        rows = x.dimshuffle("x", *range(ndim)).flatten(2) if ndim == 3 else x.flatten(2)
        return self.along(rows, 1).reshape(dims, ndim=ndim)


class LogSoftMax(SoftMax):
    """The logarithm of :class:`SoftMax`, computed stably. (cudnn.LogSoftMax.)"""

    log = True

    def __init__(self, *, dim: int | None = None) -> None:
        super().__init__(dim=dim)


class SoftMin(SoftMax):
    """:class:`SoftMax` of ``-x``."""

    def along(self, x: Variable, axis: int) -> Variable:
        """The softmax of ``-x`` along an axis."""
        return super().along(-x, axis)


class _OverPlanes(_Normalised):
    ndim: ClassVar[int]

    def forward(self, x: Variable) -> Variable:
        positions = ("height, width", "time, height, width")[self.ndim - 2]
        wanted = f"(batch, planes, {positions}) or (planes, {positions})"
        batch, restore = as_batch(self, x, self.ndim + 2, wanted)
        return restore(self.along(batch, 1))


class SpatialSoftMax(_OverPlanes):
    """Softmax over the planes of (N, C, H, W) at each position. (cudnn.SpatialSoftMax.)"""

    ndim = 2


class VolumetricSoftMax(_OverPlanes):
    """Softmax over the planes of (N, C, T, H, W) at each position. (cudnn.VolumetricSoftMax.)"""

    ndim = 3


class SpatialLogSoftMax(_OverPlanes):
    """The logarithm of :class:`SpatialSoftMax`. (cudnn.SpatialLogSoftMax.)"""

    ndim, log = 2, True

    def __init__(self) -> None:
        super().__init__()


class VolumetricLogSoftMax(_OverPlanes):
    """The logarithm of :class:`VolumetricSoftMax`. (cudnn.VolumetricLogSoftMax.)"""

    ndim, log = 3, True

    def __init__(self) -> None:
        super().__init__()
