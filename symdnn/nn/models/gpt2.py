"""GPT-2 (Radford et al. 2019), with the names of Hugging Face's ``GPT2LMHeadModel``."""

from __future__ import annotations

import math

from symdnn.graph.variable import Shared, Variable
from symdnn.nn import init
from symdnn.nn.layers.activation import GELU
from symdnn.nn.layers.dropout import Dropout
from symdnn.nn.layers.linear import Linear, LookupTable
from symdnn.nn.layers.norm import LayerNorm
from symdnn.nn.models.heads import Heads
from symdnn.nn.modules.lists import ModuleList
from symdnn.nn.modules.module import Module
from symdnn.nn.transformers.cache import KeyValueCache
from symdnn.ops.array.create import arange
from symdnn.ops.attention.attention import attention_weights
from symdnn.ops.core.shape import dims_of
from symdnn.ops.linalg.dot import dot

__all__ = ["GPT2", "gpt2", "gpt2_large", "gpt2_medium", "gpt2_xl"]

#: The standard deviation of initial weights.
WEIGHT_STD = 0.02


class Conv1D(Module):
    """A linear layer with ``weight`` (inputs, outputs), the transpose of :class:`Linear`'s."""

    weight: Shared
    bias: Shared

    def __init__(self, inputs: int, outputs: int, std: float) -> None:
        self.parameter("weight", (inputs, outputs), init.normal(std))
        self.parameter("bias", (outputs,), init.zeros)

    def forward(self, x: Variable) -> Variable:
        return dot(x, self.weight) + self.bias


class _Attention(Heads):
    """Causal attention: ``c_attn`` makes queries, keys and values, ``c_proj`` joins the heads."""

    def __init__(self, width: int, heads: int, dropout: float, last_std: float) -> None:
        super().__init__(heads, dropout)
        self.c_attn = Conv1D(width, 3 * width, WEIGHT_STD)
        self.c_proj = Conv1D(width, width, last_std)
        self.resid_dropout = Dropout(dropout)

    def _heads(self, x: Variable) -> list[Variable]:
        """Query, key and value, (batch, heads, time, features)."""
        y = self.c_attn(x)
        width = self.c_proj.weight.type.shape[0]
        assert width is not None
        return [self.split(y[..., i * width : (i + 1) * width], self.heads) for i in range(3)]

    def forward(self, x: Variable, cache: KeyValueCache | None = None) -> Variable:
        q, k, v = self._heads(x)
        found: Variable = self.resid_dropout(
            self.c_proj(self.attend(q, k, v, causal=True, cache=cache))
        )
        return found

    def weights(self, x: Variable) -> Variable:
        """The weights of the values, (batch, heads, time, time)."""
        q, k, _ = self._heads(x)
        return attention_weights(q, k, causal=True)


class _MLP(Module):
    """``c_fc``, GELU by tanh, ``c_proj``."""

    def __init__(self, width: int, dropout: float, last_std: float) -> None:
        self.c_fc = Conv1D(width, 4 * width, WEIGHT_STD)
        self.c_proj = Conv1D(4 * width, width, last_std)
        self.act = GELU("tanh")
        self.dropout = Dropout(dropout)

    def forward(self, x: Variable) -> Variable:
        y: Variable = self.dropout(self.c_proj(self.act(self.c_fc(x))))
        return y


class _Block(Module):
    """Attention and a network for each position, both on normalised values, beside the values."""

    def __init__(self, width: int, heads: int, dropout: float, last_std: float) -> None:
        self.ln_1, self.ln_2 = LayerNorm(width), LayerNorm(width)
        self.attn = _Attention(width, heads, dropout, last_std)
        self.mlp = _MLP(width, dropout, last_std)

    def forward(self, x: Variable, cache: KeyValueCache | None = None) -> Variable:
        x = x + self.attn(self.ln_1(x), cache=cache)
        y: Variable = x + self.mlp(self.ln_2(x))
        return y


class _Transformer(Module):
    """Embeddings of tokens and positions, the blocks, and the last normalisation."""

    def __init__(
        self, words: int, context: int, width: int, layers: int, heads: int, dropout: float
    ) -> None:
        near = init.normal(WEIGHT_STD)
        last_std = WEIGHT_STD / math.sqrt(2 * layers)
        self.wte = LookupTable(words, width, weight_init=near)
        self.wpe = LookupTable(context, width, weight_init=near)
        self.drop = Dropout(dropout)
        self.h = ModuleList(_Block(width, heads, dropout, last_std) for _ in range(layers))
        self.ln_f = LayerNorm(width)

    def forward(self, tokens: Variable, cache: KeyValueCache | None = None) -> Variable:
        x = self.embedded(tokens, cache)
        for block in self.h:
            x = block(x, cache=cache)
        y: Variable = self.ln_f(x)
        return y

    def embedded(self, tokens: Variable, cache: KeyValueCache | None = None) -> Variable:
        """What the first block reads: the sum of both embeddings."""
        count = dims_of(tokens)[1]
        at = arange(count) if cache is None else cache.positions(count)
        x: Variable = self.drop(self.wte(tokens) + self.wpe(at).dimshuffle("x", 0, 1))
        return x


class GPT2(Module):
    """See :func:`gpt2`. ``lm_head`` uses the rows of the tokens' embedding."""

    weight: Shared

    def __init__(
        self, words: int, context: int, width: int, layers: int, heads: int, dropout: float
    ) -> None:
        self.transformer = _Transformer(words, context, width, layers, heads, dropout)
        self.lm_head = Linear(width, words, bias=False, weight_init=init.zeros)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, tokens: Variable, cache: KeyValueCache | None = None) -> Variable:
        """Scores of the next token at every position, (batch, time, words).

        With a ``cache`` the tokens follow those that it holds
        (:class:`~symdnn.nn.KeyValueCache`).
        """
        scores: Variable = self.lm_head(self.transformer(tokens, cache=cache))
        return scores

    def attention_maps(self, tokens: Variable) -> list[Variable]:
        """For each layer the weights of its attention, (batch, heads, time, time).

        A row has those of one position: 0 for later ones, and in sum 1.
        """
        maps, x = [], self.transformer.embedded(tokens)
        for block in self.transformer.h:
            maps.append(block.attn.weights(block.ln_1(x)))
            x = block(x)
        return maps


def gpt2(
    words: int = 50257,
    context: int = 1024,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    dropout: float = 0.1,
) -> GPT2:
    """The language model GPT-2: 124,439,808 parameters as it stands (Radford et al. 2019).

    Tokens are integers (batch, time) below ``words``, at most ``context`` of a text; the result is
    scores of the next token (batch, time, words). Names and shapes of weights are those of Hugging
    Face's ``GPT2LMHeadModel``, whose ``Conv1D`` keeps weights as (inputs, outputs); the embedding
    of tokens and ``lm_head`` are one parameter.
    """
    return GPT2(words, context, width, layers, heads, dropout)


def gpt2_medium(dropout: float = 0.1) -> GPT2:
    """:func:`gpt2` of 24 layers, 1024 wide: 354,823,168 parameters."""
    return gpt2(width=1024, layers=24, heads=16, dropout=dropout)


def gpt2_large(dropout: float = 0.1) -> GPT2:
    """:func:`gpt2` of 36 layers, 1280 wide: 774,030,080 parameters."""
    return gpt2(width=1280, layers=36, heads=20, dropout=dropout)


def gpt2_xl(dropout: float = 0.1) -> GPT2:
    """:func:`gpt2` of 48 layers, 1600 wide: 1,557,611,200 parameters."""
    return gpt2(width=1600, layers=48, heads=25, dropout=dropout)
