"""Attention of the known transformers: heads split and joined, dropout, and a cache."""

from __future__ import annotations

from typing import Any

from symdnn.graph.variable import Variable
from symdnn.nn import init
from symdnn.nn.modules.module import Module
from symdnn.nn.transformers.cache import KeyValueCache
from symdnn.ops.attention.attention import scaled_dot_product_attention
from symdnn.ops.core.shape import dims_of
from symdnn.ops.random.random_stream import RandomStream

__all__ = ["Heads"]


class Heads(Module):
    """The base of attention in ``heads`` heads, whose probabilities are dropped in training."""

    def __init__(self, heads: int, dropout: float) -> None:
        self.heads, self.dropout = heads, dropout
        self.seed = int(init.generator().integers(2**62))
        self.calls = 0

    @staticmethod
    def split(x: Variable, heads: int) -> Variable:
        """(batch, time, width) to (batch, heads, time, width / heads)."""
        batch, time, width = dims_of(x)
        parts: Variable = x.reshape((batch, time, heads, width // heads))
        return parts.dimshuffle(0, 2, 1, 3)

    def attend(
        self, q: Variable, k: Variable, v: Variable, causal: bool = False, mask: Any = None,
        cache: KeyValueCache | None = None,
    ) -> Variable:  # fmt: skip
        """The result of all heads, (batch, time, width).

        A ``cache`` has keys and values of earlier positions, which are seen as well.
        """
        rate = self.dropout if self.training else 0.0
        stream = None
        if rate:
            stream = RandomStream((self.seed, self.calls))
            self.calls += 1
        if cache is not None:
            y = cache.attend(self, q, k, v, dropout_p=rate, stream=stream)
        else:
            y = scaled_dot_product_attention(
                q, k, v, mask, rate, causal, enable_gqa=True, stream=stream
            )
        batch, heads, time, size = dims_of(y)
        return y.dimshuffle(0, 2, 1, 3).reshape((batch, time, heads * size))
