"""Normalisation: by the batch, by layer, group and instance, and across channels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from symdnn.config import config
from symdnn.distributed.batch_norm import batch_norm_of_ranks
from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Shared, Variable
from symdnn.nn import init
from symdnn.nn.modules.arguments import Restore, as_batch, positive, tensor_input
from symdnn.nn.modules.checked import checked
from symdnn.nn.modules.module import Module
from symdnn.nn.modules.torch_keywords import torch_keywords
from symdnn.ops.array import moments
from symdnn.ops.collective.functions import group_of
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.nn.batchnorm import parameter_dtype
from symdnn.ops.nn.lrn import local_response_normalization
from symdnn.ops.nn.normalization import (
    batch_normalization_test,
    batch_normalization_train,
    group_norm,
    instance_norm,
    layer_norm,
)
from symdnn.world.group import Group

__all__ = [
    "BatchNormalization", "GroupNorm", "InstanceNorm", "LRN", "LayerNorm", "LocalResponseNorm",
    "SpatialBatchNormalization", "SpatialCrossMapLRN", "VolumetricBatchNormalization",
    "moved_by_instances", "sync_batch_norm",
]  # fmt: skip


class _Affine(Module):
    """A learnt scale (``weight``, 1 at first) and shift (``bias``, 0), or neither.

    Their dtype is float32 where that of the layer has 16 bits.
    """

    weight: Shared | None
    bias: Shared | None

    def _make(
        self, shape: Sequence[int], affine: bool, dtype: str | None, shift: bool = True
    ) -> str:
        name = parameter_dtype(dtype or str(config.floatX))
        self.weight = self.bias = None
        if affine:
            self.parameter("weight", shape, init.ones, name)
        if affine and shift:
            self.parameter("bias", shape, init.zeros, name)
        return name

    def _shift(self) -> Any:
        """``bias``, or zeros where there is a scale alone."""
        if self.weight is None or self.bias is not None:
            return self.bias
        return np.zeros(self.weight.type.shape, self.weight.type.dtype)

    def convert_dtype(self, dtype: str) -> str:
        """Parameters and statistics never have 16 bits."""
        return parameter_dtype(dtype)


@torch_keywords(num_features="nFeature")
class BatchNormalization(_Affine):
    """Normalisation of each feature by mean and variance of the batch (Ioffe and Szegedy 2015).

    (N, nFeature) or (N, nFeature, L). In training the statistics are the batch's, and
    ``running_mean`` and ``running_var`` move towards them: ``(1 - momentum) old + momentum new``,
    the variance unbiased; the optimisers of :mod:`symdnn.nn.optim` carry that out, or
    :func:`symdnn.nn.state_updates`. In evaluation the running ones normalise, and gradients are
    those of that. ``momentum=None`` keeps no running statistics: the batch's always serve.
    ``cumulative=True`` makes them the plain average of all batches so far, which
    ``num_batches_tracked`` counts (PyTorch's ``momentum=None``).
    ``affine=False`` leaves ``weight`` and ``bias`` out, ``bias=False`` the latter.
    (cudnn.BatchNormalization; BatchNorm1d.)

    >>> SpatialBatchNormalization(64)
    nn.SpatialBatchNormalization (4D) (64)
    """

    #: Numbers of dimensions of a batch, the usual one first.
    ndims: ClassVar[tuple[int, ...]] = (2, 3)
    wanted: ClassVar[str] = "(batch, features) or (batch, features, positions)"
    running_mean: Shared
    running_var: Shared
    num_batches_tracked: Shared
    #: The ranks whose samples are one batch; None: those of this process alone.
    group: Group | None = None

    def __init__(
        self, nFeature: int, eps: float = 1e-5, momentum: float | None = 0.1,
        affine: bool = True, *, bias: bool = True, cumulative: bool = False,
        dtype: str | None = None,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        positive(f"{name}: nFeature", nFeature)
        momentum = 1.0 if cumulative else momentum
        if not eps > 0 or (momentum is not None and not 0 <= momentum <= 1):
            raise InputError(
                f"{name}: wanted eps above 0 and momentum of 0 to 1, got eps={eps!r}, "
                f"momentum={momentum!r}"
            )
        self.nFeature, self.eps, self.momentum = int(nFeature), float(eps), momentum
        chosen = self._make((self.nFeature,), affine, dtype, bias)
        if momentum is not None:
            self.buffer("running_mean", np.zeros(self.nFeature, chosen))
            self.buffer("running_var", np.ones(self.nFeature, chosen))
        self.cumulative = bool(cumulative)
        if cumulative:
            self.buffer("num_batches_tracked", np.int64(0))

    def forward(self, x: Variable) -> Variable:
        batch, restore = self._batch(x)
        if batch.type.shape[1] not in (None, self.nFeature):
            wanted = f"{self.nFeature} features in {self.wanted}"
            raise TypeMismatch(type(self).__name__, wanted, x.type)
        gamma, beta = self._scale()
        if self.training or self.momentum is None:
            return restore(self._by_batch(batch, gamma, beta))
        mean, var = self.running_mean, self.running_var
        out = batch_normalization_test(batch, gamma, beta, mean, var, "spatial", self.eps)
        return restore(out)

    def _batch(self, x: Variable) -> tuple[Variable, Restore]:
        tensor_input(self, x, f"a float tensor {self.wanted}", *self.ndims)
        return x, lambda y: y

    def _scale(self) -> tuple[Any, Any]:
        if self.weight is not None:
            return self.weight, self._shift()
        shape, dtype = (self.nFeature,), parameter_dtype(str(config.floatX))
        if self.momentum is not None:
            dtype = self.running_mean.type.dtype
        return np.ones(shape, dtype), np.zeros(shape, dtype)

    def _by_batch(self, x: Variable, gamma: TensorLike, beta: TensorLike) -> Variable:
        if self.group is not None and self.group.size > 1:
            return self._by_batch_of_ranks(x, gamma, beta, self.group)
        if self.momentum is None:
            return batch_normalization_train(x, gamma, beta, "spatial", self.eps)[0]
        running = (self.running_mean, self.running_var)
        out = batch_normalization_train(
            x, gamma, beta, "spatial", self.eps, self.momentum, *running
        )
        if self.training:
            share = 1 - self.momentum
            out[0].tag.state_updates = [(v, new, share) for v, new in zip(running, out[3:])]
            if self.cumulative:
                out[0].tag.state_updates = self._averaged(zip(running, out[3:], strict=True))
        return out[0]

    def _averaged(self, pairs: Iterable[tuple[Shared, Variable]]) -> list[tuple[Any, ...]]:
        """Updates to the averages over one batch more; ``pairs`` have the batch's statistics."""
        count = self.num_batches_tracked + 1
        updates: list[tuple[Any, ...]] = [(self.num_batches_tracked, count)]
        for v, new in pairs:
            updates.append((v, v + (cast(new, v.type.dtype) - v) / cast(count, v.type.dtype)))
        return updates

    def _by_batch_of_ranks(
        self, x: Variable, gamma: TensorLike, beta: TensorLike, group: Group
    ) -> Variable:
        out, mean, unbiased = batch_norm_of_ranks(x, gamma, beta, self.eps, group)
        if self.training and self.momentum is not None:
            share = 1 - self.momentum
            pairs = ((self.running_mean, mean), (self.running_var, unbiased))
            if self.cumulative:
                out.tag.state_updates = self._averaged(pairs)
                return out
            out.tag.state_updates = [
                (v, share * v + self.momentum * cast(new, v.type.dtype), share) for v, new in pairs
            ]
        return out

    def describe(self) -> str:
        return f" ({self.ndims[0]}D) ({self.nFeature})"


class SpatialBatchNormalization(BatchNormalization):
    """:class:`BatchNormalization` of the planes of (N, nFeature, H, W), or one image alone."""

    ndims = (4,)
    wanted = "(batch, planes, height, width) or (planes, height, width)"

    def _batch(self, x: Variable) -> tuple[Variable, Restore]:
        return as_batch(self, x, self.ndims[0], self.wanted)


class VolumetricBatchNormalization(SpatialBatchNormalization):
    """:class:`BatchNormalization` of the planes of (N, nFeature, T, H, W), or one volume alone."""

    ndims = (5,)
    wanted = "(batch, planes, time, height, width) or (planes, time, height, width)"


@checked
def sync_batch_norm(net: Module, group: Group | None = None) -> Module:
    """Let all batch normalisation in ``net`` take the samples of all ranks of ``group`` (all) as
    one batch in training; returns ``net``.

    Means and variances, and their gradients, are summed over the ranks, so that a step equals that
    of one process with the whole batch. (PyTorch's ``SyncBatchNorm.convert_sync_batchnorm``.)

    >>> sync_batch_norm(SpatialBatchNormalization(8)).group.size
    1
    """
    for _, module in net.named_modules():
        if isinstance(module, BatchNormalization):
            module.group = group_of(group)
    return net


@torch_keywords(elementwise_affine="affine")
class LayerNorm(_Affine):
    """Normalisation of each example over its last axes, those of ``normalized_shape``.

    ``weight`` and ``bias`` have that shape; with ``affine=False`` there is neither, with
    ``bias=False`` no bias. (Ba, Kiros and Hinton 2016; PyTorch's LayerNorm.)

    >>> LayerNorm(64)
    nn.LayerNorm(64)
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, affine: bool = True,
        bias: bool = True, *, dtype: str | None = None,
    ) -> None:  # fmt: skip
        given = [normalized_shape] if np.ndim(normalized_shape) == 0 else normalized_shape
        shape: list[Any] = list(given)  # type: ignore[arg-type]
        positive("LayerNorm: normalized_shape", *shape)
        if not shape:
            raise InputError("LayerNorm: normalized_shape is empty; wanted one axis or more")
        self.normalized_shape, self.eps = tuple(int(n) for n in shape), float(eps)
        self.affine = bool(affine)
        self._make(self.normalized_shape, affine, dtype, bias)

    def forward(self, x: Variable) -> Variable:
        wanted = f"a float tensor (..., {', '.join(map(str, self.normalized_shape))})"
        tensor_input(self, x, wanted)
        n = len(self.normalized_shape)
        last = x.type.shape[-n:]
        pairs = zip(last, self.normalized_shape, strict=False)
        if len(last) < n or any(a not in (None, b) for a, b in pairs):
            raise TypeMismatch("LayerNorm", wanted, x.type)
        return layer_norm(x, self.weight, self._shift(), tuple(range(-n, 0)), self.eps)

    def describe(self) -> str:
        return f"({'x'.join(map(str, self.normalized_shape))})"


class GroupNorm(_Affine):
    """Normalisation of each of ``num_groups`` groups of the planes of (N, num_channels, ...).

    With ``channels_last`` inputs are (N, ..., num_channels). (Wu and He 2018; PyTorch's GroupNorm.)
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, *,
        channels_last: bool = False, bias: bool = True, dtype: str | None = None,
    ) -> None:  # fmt: skip
        positive("GroupNorm: num_groups, num_channels", num_groups, num_channels)
        if num_channels % num_groups:
            raise InputError(f"GroupNorm: {num_groups} groups do not divide {num_channels} planes")
        self.num_groups, self.num_channels = int(num_groups), int(num_channels)
        self.eps, self.channels_last = float(eps), bool(channels_last)
        self._make((self.num_channels,), affine, dtype, bias)

    def forward(self, x: Variable) -> Variable:
        order = ("...", self.num_channels) if self.channels_last else (self.num_channels, "...")
        wanted = f"a float tensor (batch, {order[0]}, {order[1]})"
        tensor_input(self, x, wanted, 2, 3, 4, 5)
        if x.type.shape[-1 if self.channels_last else 1] not in (None, self.num_channels):
            raise TypeMismatch("GroupNorm", wanted, x.type)
        last = x.type.ndim - 1
        planes = x.dimshuffle(0, last, *range(1, last)) if self.channels_last else x
        y = group_norm(planes, self.num_groups, self.weight, self._shift(), self.eps)
        return y.dimshuffle(0, *range(2, last + 1), 1) if self.channels_last else y

    def describe(self) -> str:
        last = ", channels last" if self.channels_last else ""
        return f"({self.num_groups}, {self.num_channels}{last})"


@torch_keywords(num_features="nFeature")
class InstanceNorm(_Affine):
    """Normalisation of each plane of each example of (N, nFeature, positions...).

    With ``positions``, their number of axes, an input of one dimension less is a single example.
    With ``track_running_stats`` the means over the examples of their means and unbiased variances
    move ``running_mean`` and ``running_var``, which normalise in evaluation; ``momentum`` is that
    of :class:`BatchNormalization`.
    (Ulyanov et al. 2016; PyTorch's InstanceNorm1d to 3d, which are ``affine=False`` unless told.)
    """

    running_mean: Shared
    running_var: Shared
    _shown = "{0.nFeature}"

    def __init__(
        self, nFeature: int, eps: float = 1e-5, affine: bool = False, *,
        positions: int | None = None, bias: bool = True, momentum: float = 0.1,
        track_running_stats: bool = False, dtype: str | None = None,
    ) -> None:  # fmt: skip
        positive("InstanceNorm: nFeature", nFeature)
        if not isinstance(momentum, int | float) or not 0 <= momentum <= 1:
            raise InputError(f"InstanceNorm: momentum={momentum!r}; wanted a number, 0 to 1")
        self.nFeature, self.eps, self.positions = int(nFeature), float(eps), positions
        self.momentum, self.track_running_stats = float(momentum), bool(track_running_stats)
        chosen = self._make((self.nFeature,), affine, dtype, bias)
        if track_running_stats:
            self.buffer("running_mean", np.zeros(self.nFeature, chosen))
            self.buffer("running_var", np.ones(self.nFeature, chosen))

    def forward(self, x: Variable) -> Variable:
        wanted = f"(batch, {self.nFeature}, positions...)"
        if self.positions is not None:
            batch, restore = as_batch(self, x, self.positions + 2, wanted)
        else:
            tensor_input(self, x, f"a float tensor {wanted}", 3, 4, 5)
            batch, restore = x, lambda y: y
        if batch.type.shape[1] not in (None, self.nFeature):
            raise TypeMismatch("InstanceNorm", f"a float tensor {wanted}", x.type)
        if self.track_running_stats and not self.training:
            return restore(self._by_running(batch))
        out = instance_norm(batch, self.weight, self._shift(), self.eps)
        if self.track_running_stats:
            kept = self.running_mean, self.running_var
            out.tag.state_updates = moved_by_instances(batch, *kept, self.momentum)
        return restore(out)

    def _by_running(self, x: Variable) -> Variable:
        mean, var = self.running_mean, self.running_var
        shape, dtype = (self.nFeature,), mean.type.dtype
        gamma = np.ones(shape, dtype) if self.weight is None else self.weight
        beta = np.zeros(shape, dtype) if self.weight is None else self._shift()
        return batch_normalization_test(x, gamma, beta, mean, var, "spatial", self.eps)


def moved_by_instances(
    x: Variable, running_mean: Shared, running_var: Shared, momentum: float
) -> list[tuple[Any, ...]]:
    """The updates of running statistics by those of the instances of ``x``."""
    dtype, axes = running_mean.type.dtype, tuple(range(2, x.type.ndim))
    v = cast(x, dtype)
    found = (moments.mean(v, axes), moments.var(v, axes, ddof=1))
    pairs = zip((running_mean, running_var), [moments.mean(s, 0) for s in found])
    share = 1 - momentum
    return [(old, share * old + momentum * new, share) for old, new in pairs]


class SpatialCrossMapLRN(Module):
    """``x * (k + alpha / size * sum of squares) ** -beta`` over ``size`` neighbouring planes.

    (N, planes, H, W) or one image. (cudnn.SpatialCrossMapLRN; PyTorch's LocalResponseNorm.)

    >>> SpatialCrossMapLRN(5, 0.0001, 0.75)
    nn.SpatialCrossMapLRN(5)
    """

    _shown = "{0.size}"

    def __init__(
        self, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
    ) -> None:
        positive(f"{type(self).__name__}: size", size)
        self.size, self.alpha, self.beta, self.k = int(size), float(alpha), float(beta), float(k)

    def forward(self, x: Variable) -> Variable:
        wanted = "(batch, planes, height, width) or (planes, height, width)"
        batch, restore = as_batch(self, x, 4, wanted)
        return restore(
            local_response_normalization(batch, self.size, self.alpha, self.beta, self.k)
        )


LRN = SpatialCrossMapLRN


class LocalResponseNorm(SpatialCrossMapLRN):
    """PyTorch's: across the channels of (N, C, positions...), a batch of any number of axes.

    A window of even ``size`` reaches one channel further back than forward; that of
    :class:`SpatialCrossMapLRN`, as cuDNN's, one further forward.
    """

    def forward(self, x: Variable) -> Variable:
        tensor_input(self, x, "a float tensor (batch, channels, positions...)", 3, 4, 5)
        batch = x if x.type.ndim == 4 else x.flatten(3).dimshuffle(0, 1, 2, "x")
        turned = slice(None, None, -1 if self.size % 2 == 0 else None)
        found = super().forward(batch[:, turned])[:, turned]
        return found if x.type.ndim == 4 else found.reshape(x.shape)
