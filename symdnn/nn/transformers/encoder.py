"""PyTorch's TransformerEncoderLayer and TransformerEncoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from symdnn.errors import UnknownWord
from symdnn.graph.variable import Variable
from symdnn.nn import init
from symdnn.nn.layers.dropout import Dropout
from symdnn.nn.layers.linear import Linear
from symdnn.nn.layers.norm import LayerNorm
from symdnn.nn.modules.arguments import positive
from symdnn.nn.modules.module import Module
from symdnn.nn.transformers.attention import MultiheadAttention
from symdnn.nn.transformers.cache import KeyValueCache
from symdnn.ops.elementwise.activations import gelu, relu

__all__ = ["TransformerEncoder", "TransformerEncoderLayer"]

_ACTIVATIONS: dict[str, Callable[[Variable], Variable]] = {"relu": relu, "gelu": gelu}


class TransformerLayer(Module):
    """Base of encoder and decoder layers: self-attention, dense layers, norms and dropout.

    ``norm_first`` normalises the input of each block, and not the sum behind it. ``activation`` is
    "relu", "gelu" or a function of variables.
    """

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: str | Callable[..., Any] = "relu", layer_norm_eps: float = 1e-5,
        batch_first: bool = False, norm_first: bool = False, bias: bool = True, *,
        dtype: str | None = None,
    ) -> None:  # fmt: skip
        if isinstance(activation, str) and activation not in _ACTIVATIONS:
            raise UnknownWord(
                f"{type(self).__name__}: activation={activation!r}; wanted 'relu', 'gelu' or a "
                "function"
            )
        self.d_model, self.norm_first = d_model, bool(norm_first)
        self.activation = _ACTIVATIONS[activation] if isinstance(activation, str) else activation
        self._options = (dropout, layer_norm_eps, batch_first, bias, dtype)
        self.self_attn = self._attention(nhead)
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype=dtype)
        self.norm1, self.norm2 = self._norm(), self._norm()
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)

    def _attention(self, heads: int) -> MultiheadAttention:
        rate, _, batch_first, bias, dtype = self._options
        return MultiheadAttention(
            self.d_model, heads, rate, bias, batch_first=batch_first, dtype=dtype
        )

    def _norm(self) -> LayerNorm:
        _, eps, _, bias, dtype = self._options
        return LayerNorm(self.d_model, eps, True, bias, dtype=dtype)

    def _added(self, x: Variable, block: Callable[[Variable], Variable], norm: Module) -> Variable:
        """``x`` with the result of a block added, and normalised before or after."""
        if self.norm_first:
            return x + block(norm(x))
        made: Variable = norm(x + block(x))
        return made

    def _dense(self, x: Variable) -> Any:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))

    def describe(self) -> str:
        order = ", norm first" if self.norm_first else ""
        return f"({self.d_model}, {self.self_attn.num_heads} heads{order})"


class TransformerEncoderLayer(TransformerLayer):
    """Self-attention and two dense layers, each with a sum around it (Vaswani et al. 2017).

    Arguments, weights and the form of inputs are PyTorch's: ``layer(src)`` of
    (time, batch, d_model), with ``batch_first`` (batch, time, d_model), or (time, d_model).
    ``src_mask``, ``src_key_padding_mask`` and ``is_causal`` are the attention's (True is left out;
    see :class:`MultiheadAttention`), ``cache`` too.

    >>> layer = TransformerEncoderLayer(64, 8, 128)
    >>> sum(p.get_value().size for p in layer.parameters())
    33472
    """

    def forward(
        self, src: Variable, src_mask: Any = None, src_key_padding_mask: Any = None,
        is_causal: bool = False, cache: KeyValueCache | None = None,
    ) -> Variable:  # fmt: skip
        def attend(x: Variable) -> Any:
            found = self.self_attn(
                x, x, x, key_padding_mask=src_key_padding_mask, attn_mask=src_mask,
                is_causal=is_causal, need_weights=False, cache=cache,
            )  # fmt: skip
            return self.dropout1(found[0])

        x = self._added(src, attend, self.norm1)
        return self._added(x, lambda y: self.dropout2(self._dense(y)), self.norm2)


def copies(layer: Module, count: int) -> list[Module]:
    """Copies of a layer with its values, which drop other elements than it."""
    made = [layer.clone() for _ in range(count)]
    for copy in made:
        for _, module in copy.named_modules():
            if isinstance(module, Dropout | MultiheadAttention):
                module.seed = int(init.generator().integers(2**62))
    return made


class TransformerEncoder(Module):
    """``num_layers`` copies of a layer, one after the other, and ``norm`` behind them, if any.

    As PyTorch's, which copies the layer with its values. ``enable_nested_tensor`` and
    ``mask_check`` are taken and mean nothing.
    """

    def __init__(
        self, encoder_layer: Module, num_layers: int, norm: Module | None = None,
        enable_nested_tensor: bool = True, mask_check: bool = True,
    ) -> None:  # fmt: skip
        positive("TransformerEncoder: num_layers", num_layers)
        self.layers = copies(encoder_layer, num_layers)
        self.norm = norm

    def forward(
        self, src: Variable, mask: Any = None, src_key_padding_mask: Any = None,
        is_causal: bool | None = None, cache: KeyValueCache | None = None,
    ) -> Variable:  # fmt: skip
        for layer in self.layers:
            src = layer(
                src, src_mask=mask, src_key_padding_mask=src_key_padding_mask,
                is_causal=bool(is_causal), cache=cache,
            )  # fmt: skip
        return src if self.norm is None else self.norm(src)
