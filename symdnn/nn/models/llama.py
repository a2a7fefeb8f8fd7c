"""Decoders like Llama (Touvron et al. 2023), with the names of ``LlamaForCausalLM``."""

from __future__ import annotations

from symdnn.graph.variable import Variable
from symdnn.nn import init
from symdnn.nn.layers.activation import SiLU
from symdnn.nn.layers.linear import Linear, LookupTable
from symdnn.nn.layers.torch_layers import RMSNorm
from symdnn.nn.models.heads import Heads
from symdnn.nn.modules.lists import ModuleList
from symdnn.nn.modules.module import Module
from symdnn.nn.transformers.cache import KeyValueCache
from symdnn.nn.transformers.rotary import RotaryEmbedding
from symdnn.ops.core.shape import dims_of

__all__ = ["Llama", "llama", "llama2_7b", "tinyllama"]

#: The standard deviation of initial weights.
WEIGHT_STD = 0.02


def _linear(inputs: int, outputs: int) -> Linear:
    return Linear(inputs, outputs, bias=False, weight_init=init.normal(WEIGHT_STD))


class _Attention(Heads):
    """Causal attention with rotary positions; groups of heads share keys and values."""

    def __init__(self, width: int, heads: int, groups: int, base: float) -> None:
        super().__init__(heads, 0.0)
        size = width // heads
        self.groups = groups
        self.q_proj, self.k_proj = _linear(width, width), _linear(width, groups * size)
        self.v_proj, self.o_proj = _linear(width, groups * size), _linear(width, width)
        self.rotary = RotaryEmbedding(size, base)

    def forward(self, x: Variable, cache: KeyValueCache | None = None) -> Variable:
        q = self.split(self.q_proj(x), self.heads)
        k, v = (self.split(p(x), self.groups) for p in (self.k_proj, self.v_proj))
        at = [] if cache is None else [cache.positions(dims_of(x)[1])]
        y: Variable = self.o_proj(
            self.attend(self.rotary(q, *at), self.rotary(k, *at), v, causal=True, cache=cache)
        )
        return y


class _MLP(Module):
    """SwiGLU: ``down_proj(silu(gate_proj(x)) * up_proj(x))`` (Shazeer 2020)."""

    def __init__(self, width: int, hidden: int) -> None:
        self.gate_proj, self.up_proj = _linear(width, hidden), _linear(width, hidden)
        self.down_proj = _linear(hidden, width)
        self.act_fn = SiLU()

    def forward(self, x: Variable) -> Variable:
        y: Variable = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return y


class _Layer(Module):
    """Attention and a network for each position, both on normalised values, beside the values."""

    def __init__(
        self, width: int, heads: int, groups: int, hidden: int, base: float, eps: float
    ) -> None:
        self.self_attn = _Attention(width, heads, groups, base)
        self.mlp = _MLP(width, hidden)
        self.input_layernorm = RMSNorm(width, eps)
        self.post_attention_layernorm = RMSNorm(width, eps)

    def forward(self, x: Variable, cache: KeyValueCache | None = None) -> Variable:
        x = x + self.self_attn(self.input_layernorm(x), cache=cache)
        y: Variable = x + self.mlp(self.post_attention_layernorm(x))
        return y


class _Decoder(Module):
    """The embedding of tokens, the layers, and the last normalisation."""

    def __init__(
        self, words: int, width: int, layers: int, heads: int, groups: int, hidden: int,
        base: float, eps: float,
    ) -> None:  # fmt: skip
        self.embed_tokens = LookupTable(words, width, weight_init=init.normal(WEIGHT_STD))
        self.layers = ModuleList(
            _Layer(width, heads, groups, hidden, base, eps) for _ in range(layers)
        )
        self.norm = RMSNorm(width, eps)

    def forward(self, tokens: Variable, cache: KeyValueCache | None = None) -> Variable:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cache=cache)
        y: Variable = self.norm(x)
        return y


class Llama(Module):
    """See :func:`llama`."""

    def __init__(
        self, words: int, width: int, layers: int, heads: int, groups: int, hidden: int,
        base: float, eps: float, tied: bool,
    ) -> None:  # fmt: skip
        self.model = _Decoder(words, width, layers, heads, groups, hidden, base, eps)
        self.lm_head = _linear(width, words)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens: Variable, cache: KeyValueCache | None = None) -> Variable:
        """Scores of the next token at every position, (batch, time, words).

        With a ``cache`` the tokens follow those that it holds
        (:class:`~symdnn.nn.KeyValueCache`).
        """
        scores: Variable = self.lm_head(self.model(tokens, cache=cache))
        return scores


def llama(
    words: int = 32000,
    width: int = 2048,
    layers: int = 22,
    heads: int = 32,
    groups: int = 4,
    hidden: int = 5632,
    base: float = 10000.0,
    eps: float = 1e-5,
    tied: bool = False,
) -> Llama:
    """A decoder like Llama: RMSNorm, rotary positions, SwiGLU, grouped heads.

    As it stands it has the sizes of TinyLlama: 1,100,048,384 parameters. Tokens are integers
    (batch, time) below ``words``; the result is scores of the next token (batch, time, words).
    ``groups`` is the number of heads of keys and values, ``base`` that of the rotary angles;
    ``tied`` uses the embedding's rows as the last layer's weights. Names and shapes are those of
    Hugging Face's ``LlamaForCausalLM``, whose rotary pairs are halves of a head.
    """
    return Llama(words, width, layers, heads, groups, hidden, base, eps, tied)


def tinyllama() -> Llama:
    """TinyLlama (Zhang et al. 2024): 1,100,048,384 parameters."""
    return llama()


def llama2_7b() -> Llama:
    """Llama 2 of 6,738,415,616 parameters (Touvron et al. 2023)."""
    return llama(width=4096, layers=32, groups=32, hidden=11008)
