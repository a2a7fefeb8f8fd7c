"""Rotary position embeddings: pairs of features turned by an angle that grows with the position."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.nn.modules.arguments import positive, tensor_input
from symdnn.nn.modules.module import Module
from symdnn.ops.array.create import arange
from symdnn.ops.array.join import concatenate, stack
from symdnn.ops.core.dtype import wide_float
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.math import cos, sin

__all__ = ["RotaryEmbedding"]


class RotaryEmbedding(Module):
    """Pairs of features turned by ``position * base ** (-2 i / features)`` (Su et al. 2021).

    ``rotary(x[, positions])`` of (..., time, features'): the first ``features`` are turned, the
    others (a partial embedding) pass. ``positions`` are integers (time,), by default 0, 1, ..., or
    (batch, time) for (batch, heads, time, features').

    Pair ``i`` is features ``i`` and ``i + features / 2``, as in Llama's weights of Hugging Face and
    GPT-NeoX; with ``interleaved`` features ``2 i`` and ``2 i + 1``, as in the paper, GPT-J and
    Meta's own Llama. Weights of one are no weights of the other: rows of the query's and key's
    projections stand in another order. ``frequencies`` (features / 2,) replace those of ``base``,
    for scaled embeddings. Angles are float32 at least.

    >>> RotaryEmbedding(64)
    nn.RotaryEmbedding(64)
    """

    def __init__(
        self, features: int, base: float = 10000.0, interleaved: bool = False, *,
        frequencies: Any = None,
    ) -> None:  # fmt: skip
        positive("RotaryEmbedding: features", features)
        if features % 2 or not base > 0:
            raise InputError(
                f"RotaryEmbedding: features={features}, base={base}; wanted an even number and a "
                "positive one"
            )
        self.features, self.base, self.interleaved = int(features), float(base), bool(interleaved)
        usual = self.base ** (-np.arange(0, self.features, 2) / self.features)
        given = np.asarray(usual if frequencies is None else frequencies)
        if given.shape != (self.features // 2,) or given.dtype.kind not in "iuf":
            raise InputError(
                f"RotaryEmbedding: frequencies {given.dtype}{given.shape}; wanted numbers "
                f"{(self.features // 2,)}"
            )
        self.frequencies = given.astype("float64")

    def forward(self, x: Variable, positions: Any = None) -> Variable:
        size, n = (
            x.type.shape[-1] if isinstance(x, Variable) and x.type.ndim else None,
            self.features,
        )
        wanted = f"a float tensor (..., time, {n} features or more)"
        tensor_input(self, x, wanted)
        if x.type.ndim < 2 or (size is not None and size < n):
            raise TypeMismatch("RotaryEmbedding", wanted, x.type)
        angles = self._angles(x, positions)
        turned = x if size == n else x[..., :n]
        y = self._turned(turned, cast(cos(angles), x.type.dtype), cast(sin(angles), x.type.dtype))
        return y if size == n else concatenate([y, x[..., n:]], axis=x.type.ndim - 1)

    def _angles(self, x: Variable, positions: Any) -> Variable:
        """(time, features / 2), or (batch, 1, time, features / 2)."""
        dtype = wide_float(x.type.dtype)
        at = arange(dims_of(x)[-2], dtype="int32") if positions is None else as_variable(positions)
        batched = at.type.ndim == 2 and x.type.ndim == 4
        if not at.type.is_integer or not (at.type.ndim == 1 or batched):
            raise TypeMismatch(
                "RotaryEmbedding", "integer positions (time,), or (batch, time) of 4 dimensions",
                at.type,
            )  # fmt: skip
        column = at.dimshuffle(0, "x", 1, "x") if batched else at.dimshuffle(0, "x")
        return cast(column, dtype) * constant(self.frequencies.astype(dtype))

    def _turned(self, x: Variable, c: Variable, s: Variable) -> Variable:
        if self.interleaved:
            a, b = x[..., ::2], x[..., 1::2]
            pairs = stack([a * c - b * s, a * s + b * c], axis=x.type.ndim)
            return pairs.reshape(dims_of(x))
        half = self.features // 2
        a, b = x[..., :half], x[..., half:]
        return concatenate([a * c - b * s, b * c + a * s], axis=x.type.ndim - 1)

    def describe(self) -> str:
        more = ", interleaved" if self.interleaved else ""
        return f"({self.features}{more})"
