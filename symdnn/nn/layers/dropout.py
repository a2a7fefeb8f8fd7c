"""Dropout of elements, and of whole feature maps."""

from __future__ import annotations

from typing import Any, ClassVar

from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.variable import Variable
from symdnn.nn import init
from symdnn.nn.modules.arguments import tensor_input
from symdnn.nn.modules.module import Module
from symdnn.nn.modules.torch_keywords import torch_keywords
from symdnn.ops.core.shape import ones_like
from symdnn.ops.elementwise.comparison import switch
from symdnn.ops.elemwise import like
from symdnn.ops.nn.dropout import dropout
from symdnn.ops.random.random_stream import RandomStream

__all__ = [
    "AlphaDropout", "Dropout", "Dropout1d", "FeatureAlphaDropout", "SpatialDropout",
    "VolumetricDropout",
]  # fmt: skip


@torch_keywords()
class Dropout(Module):
    """In training each element is 0 with probability ``p``, the others are divided by ``1 - p``.

    In evaluation the input is the output. ``v1=True`` scales by ``1 - p`` in evaluation instead, as
    Torch7's first version did. The numbers come from ``seed``, else from
    :func:`symdnn.nn.init.generator`; each call of the module has a stream of its own, whose state a
    compiled function advances. (Srivastava et al. 2014.)

    >>> Dropout(0.5)
    nn.Dropout(0.500000)
    """

    by_position: ClassVar[tuple[int, str]] = (
        1, "is v1 in Torch7 and inplace in PyTorch; write v1= or inplace=",
    )  # fmt: skip
    wanted: ClassVar[str] = "a float tensor"
    ndims: ClassVar[tuple[int, ...]] = ()
    _shown = "{0.p:f}"

    def __init__(
        self, p: float = 0.5, v1: bool = False, inplace: bool = False, *, seed: int | None = None
    ) -> None:
        if not 0 <= p <= 1:
            raise InputError(f"{type(self).__name__}: wanted a probability, 0 to 1, got {p!r}")
        self.p, self.v1, self.inplace = float(p), bool(v1), bool(inplace)
        self.seed = int(init.generator().integers(2**62)) if seed is None else int(seed)
        self.calls = 0

    def forward(self, x: Any) -> Variable:
        tensor_input(self, x, self.wanted, *self.ndims)
        if not self.training or not self.p:
            scaled = self.v1 and not self.training
            kept: Variable = x * x.type.numpy.type(1 - self.p) if scaled else x
            return kept
        stream = RandomStream((self.seed, self.calls))
        self.calls += 1
        scale = not self.v1
        made: Variable = dropout(x, self.p, stream, scale=scale, shared=self._shared_axes(x))
        return made

    def _shared_axes(self, x: Variable) -> tuple[int, ...]:
        return ()


class SpatialDropout(Dropout):
    """:class:`Dropout` of whole planes of (N, planes, H, W), or of one image (planes, H, W)."""

    positions: ClassVar[int] = 2
    ndims = (3, 4)
    wanted = "a float tensor (batch, planes, height, width) or (planes, height, width)"

    def _shared_axes(self, x: Variable) -> tuple[int, ...]:
        if x.type.ndim < self.positions:
            raise TypeMismatch(type(self).__name__, self.wanted, x.type)
        return tuple(range(x.type.ndim - self.positions, x.type.ndim))


class Dropout1d(SpatialDropout):
    """:class:`Dropout` of whole channels of (N, C, L), or of one sequence (C, L)."""

    positions = 1
    ndims = (2, 3)
    wanted = "a float tensor (batch, channels, positions) or (channels, positions)"


class VolumetricDropout(SpatialDropout):
    """:class:`Dropout` of whole planes of (N, planes, T, H, W), or of one volume."""

    positions = 3
    ndims = (4, 5)
    wanted = "a float tensor (batch, planes, time, height, width) or one dimension less"


class AlphaDropout(Dropout):
    """:class:`Dropout` that keeps mean and variance, for SELU (Klambauer et al. 2017).

    A dropped element is SELU's limit at minus infinity, and all are scaled and shifted.
    """

    def forward(self, x: Any) -> Variable:
        tensor_input(self, x, self.wanted, *self.ndims)
        if not self.training or not self.p:
            return x  # type: ignore[no-any-return]
        stream = RandomStream((self.seed, self.calls))
        self.calls += 1
        one = ones_like(x)
        kept = dropout(one, self.p, stream, scale=False, shared=self._shared_axes(x))
        low, keep = -1.7580993408473766, 1 - self.p
        scale = (keep * (1 + self.p * low**2)) ** -0.5 if keep else 0.0
        y = switch(kept > 0, x, like(low, x))
        return y * like(scale, x) + like(-scale * low * self.p, x)


class FeatureAlphaDropout(AlphaDropout):
    """:class:`AlphaDropout` of whole channels of (N, C, ...)."""

    def _shared_axes(self, x: Variable) -> tuple[int, ...]:
        return tuple(range(2, x.type.ndim))
