"""BERT (Devlin et al. 2018), with the names of Hugging Face's ``BertModel``."""

from __future__ import annotations

from typing import Any

from symdnn.graph.variable import Variable
from symdnn.nn import init
from symdnn.nn.layers.activation import GELU, Tanh
from symdnn.nn.layers.dropout import Dropout
from symdnn.nn.layers.linear import Linear, LookupTable
from symdnn.nn.layers.norm import LayerNorm
from symdnn.nn.models.heads import Heads
from symdnn.nn.modules.lists import ModuleList
from symdnn.nn.modules.module import Module
from symdnn.ops.array.create import arange
from symdnn.ops.core.shape import dims_of, zeros_like
from symdnn.ops.elementwise.comparison import neq

__all__ = ["Bert", "bert_base", "bert_large"]

#: The standard deviation of initial weights, and what is added to variances.
WEIGHT_STD, EPS = 0.02, 1e-12


def _linear(inputs: int, outputs: int) -> Linear:
    return Linear(inputs, outputs, weight_init=init.normal(WEIGHT_STD), bias_init=init.zeros)


class _Embeddings(Module):
    """The sum of embeddings of words, positions and segments, normalised."""

    def __init__(self, words: int, context: int, width: int, dropout: float) -> None:
        near = init.normal(WEIGHT_STD)
        self.word_embeddings = LookupTable(words, width, 0, weight_init=near)
        self.position_embeddings = LookupTable(context, width, weight_init=near)
        self.token_type_embeddings = LookupTable(2, width, weight_init=near)
        self.LayerNorm = LayerNorm(width, EPS)
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Variable, segments: Any = None) -> Variable:
        kinds = zeros_like(tokens) if segments is None else segments
        at = self.position_embeddings(arange(dims_of(tokens)[1])).dimshuffle("x", 0, 1)
        whole = self.word_embeddings(tokens) + self.token_type_embeddings(kinds) + at
        y: Variable = self.dropout(self.LayerNorm(whole))
        return y


class _SelfAttention(Heads):
    """Attention of all tokens that ``mask`` shows."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__(heads, dropout)
        self.query, self.key = _linear(width, width), _linear(width, width)
        self.value = _linear(width, width)

    def forward(self, x: Variable, mask: Any = None) -> Variable:
        q, k, v = (self.split(p(x), self.heads) for p in (self.query, self.key, self.value))
        return self.attend(q, k, v, mask=mask)


class _Output(Module):
    """``LayerNorm(dropout(dense(x)) + residual)``."""

    def __init__(self, inputs: int, width: int, dropout: float) -> None:
        self.dense = _linear(inputs, width)
        self.LayerNorm = LayerNorm(width, EPS)
        self.dropout = Dropout(dropout)

    def forward(self, x: Variable, residual: Variable) -> Variable:
        y: Variable = self.LayerNorm(self.dropout(self.dense(x)) + residual)
        return y


class _Attention(Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        self.self = _SelfAttention(width, heads, dropout)
        self.output = _Output(width, width, dropout)

    def forward(self, x: Variable, mask: Any = None) -> Variable:
        y: Variable = self.output(self.self(x, mask), x)
        return y


class _Intermediate(Module):
    def __init__(self, width: int, hidden: int) -> None:
        self.dense = _linear(width, hidden)
        self.act = GELU()

    def forward(self, x: Variable) -> Variable:
        y: Variable = self.act(self.dense(x))
        return y


class _Layer(Module):
    """Attention and a network for each position; what follows each is normalised."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        self.attention = _Attention(width, heads, dropout)
        self.intermediate = _Intermediate(width, hidden)
        self.output = _Output(hidden, width, dropout)

    def forward(self, x: Variable, mask: Any = None) -> Variable:
        x = self.attention(x, mask)
        y: Variable = self.output(self.intermediate(x), x)
        return y


class _Encoder(Module):
    def __init__(self, width: int, layers: int, heads: int, hidden: int, dropout: float) -> None:
        self.layer = ModuleList(_Layer(width, heads, hidden, dropout) for _ in range(layers))

    def forward(self, x: Variable, mask: Any = None) -> Variable:
        for layer in self.layer:
            x = layer(x, mask)
        return x


class _Pooler(Module):
    """``tanh(dense(x))`` of the first token."""

    def __init__(self, width: int) -> None:
        self.dense, self.act = _linear(width, width), Tanh()

    def forward(self, x: Variable) -> Variable:
        y: Variable = self.act(self.dense(x[:, 0]))
        return y


class Bert(Module):
    """See :func:`bert_base`."""

    def __init__(
        self, words: int, context: int, width: int, layers: int, heads: int, hidden: int,
        dropout: float,
    ) -> None:  # fmt: skip
        self.embeddings = _Embeddings(words, context, width, dropout)
        self.encoder = _Encoder(width, layers, heads, hidden, dropout)
        self.pooler = _Pooler(width)

    def forward(self, tokens: Variable, attention_mask: Any = None, segments: Any = None) -> Any:
        """``[states, pooled]``: (batch, time, width) and (batch, width).

        ``attention_mask`` (batch, time) is 0 (or False) at padding, ``segments`` (batch, time) is 0
        or 1.
        """
        mask = None
        if attention_mask is not None:
            mask = neq(attention_mask, 0).dimshuffle(0, "x", "x", 1)
        states = self.encoder(self.embeddings(tokens, segments), mask)
        return [states, self.pooler(states)]


def bert_base(
    words: int = 30522,
    context: int = 512,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    hidden: int = 3072,
    dropout: float = 0.1,
) -> Bert:
    """The encoder BERT: 109,482,240 parameters as it stands (Devlin et al. 2018).

    Tokens are integers (batch, time) below ``words``, at most ``context`` of a text. The results
    are ``[states, pooled]``, the last layer's values and a value for the text. Names and shapes are
    those of Hugging Face's ``BertModel``.
    """
    return Bert(words, context, width, layers, heads, hidden, dropout)


def bert_large(dropout: float = 0.1) -> Bert:
    """:func:`bert_base` of 24 layers, 1024 wide: 335,141,888 parameters."""
    return bert_base(width=1024, layers=24, heads=16, hidden=4096, dropout=dropout)
