"""PyTorch's TransformerDecoderLayer, TransformerDecoder and Transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from symdnn.graph.variable import Variable
from symdnn.nn import init
from symdnn.nn.layers.dropout import Dropout
from symdnn.nn.layers.norm import LayerNorm
from symdnn.nn.modules.arguments import positive
from symdnn.nn.modules.module import Module
from symdnn.nn.transformers.cache import KeyValueCache
from symdnn.nn.transformers.encoder import (
    TransformerEncoder,
    TransformerEncoderLayer,
    TransformerLayer,
    copies,
)

__all__ = ["Transformer", "TransformerDecoder", "TransformerDecoderLayer"]


class TransformerDecoderLayer(TransformerLayer):
    """Self-attention, attention to ``memory`` and two dense layers (Vaswani et al. 2017).

    Arguments, weights and the form of inputs are PyTorch's: ``layer(tgt, memory)`` of
    (time, batch, d_model), with ``batch_first`` (batch, time, d_model), or (time, d_model). In
    masks True is left out (see :class:`MultiheadAttention`). ``cache`` is that of the
    self-attention; keys and values of ``memory`` are computed in each call.
    """

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: str | Callable[..., Any] = "relu", layer_norm_eps: float = 1e-5,
        batch_first: bool = False, norm_first: bool = False, bias: bool = True, *,
        dtype: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first,
            norm_first, bias, dtype=dtype,
        )  # fmt: skip
        self.multihead_attn = self._attention(nhead)
        self.norm3, self.dropout3 = self._norm(), Dropout(dropout)

    def forward(
        self, tgt: Variable, memory: Any, tgt_mask: Any = None, memory_mask: Any = None,
        tgt_key_padding_mask: Any = None, memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False, memory_is_causal: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Variable:  # fmt: skip
        def attend(x: Variable) -> Any:
            found = self.self_attn(
                x, x, x, key_padding_mask=tgt_key_padding_mask, attn_mask=tgt_mask,
                is_causal=tgt_is_causal, need_weights=False, cache=cache,
            )  # fmt: skip
            return self.dropout1(found[0])

        def look(x: Variable) -> Any:
            found = self.multihead_attn(
                x, memory, memory, key_padding_mask=memory_key_padding_mask,
                attn_mask=memory_mask, is_causal=memory_is_causal, need_weights=False,
            )  # fmt: skip
            return self.dropout2(found[0])

        x = self._added(tgt, attend, self.norm1)
        x = self._added(x, look, self.norm2)
        return self._added(x, lambda y: self.dropout3(self._dense(y)), self.norm3)


class TransformerDecoder(Module):
    """``num_layers`` copies of a decoder layer, and ``norm`` behind them, if any (PyTorch's)."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        positive("TransformerDecoder: num_layers", num_layers)
        self.layers = copies(decoder_layer, num_layers)
        self.norm = norm

    def forward(
        self, tgt: Variable, memory: Any, tgt_mask: Any = None, memory_mask: Any = None,
        tgt_key_padding_mask: Any = None, memory_key_padding_mask: Any = None,
        tgt_is_causal: bool | None = None, memory_is_causal: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Variable:  # fmt: skip
        for layer in self.layers:
            tgt = layer(
                tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
                tgt_is_causal=bool(tgt_is_causal), memory_is_causal=memory_is_causal, cache=cache,
            )  # fmt: skip
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """Encoder and decoder as in Vaswani et al. 2017, with PyTorch's arguments and weights.

    ``net(src, tgt)`` is the decoder's output for ``tgt``. Matrices begin as Glorot's uniform ones.
    """

    def __init__(
        self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6,
        num_decoder_layers: int = 6, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: str | Callable[..., Any] = "relu", custom_encoder: Module | None = None,
        custom_decoder: Module | None = None, layer_norm_eps: float = 1e-5,
        batch_first: bool = False, norm_first: bool = False, bias: bool = True, *,
        dtype: str | None = None,
    ) -> None:  # fmt: skip
        shape = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps)
        rest: Any = (batch_first, norm_first, bias)

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, True, bias, dtype=dtype)

        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*shape, *rest, dtype=dtype), num_encoder_layers, norm()
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*shape, *rest, dtype=dtype), num_decoder_layers, norm()
        )
        for p in self.parameters():
            if p.type.ndim > 1:
                value: Any = p.get_value(borrow=True)
                p.set_value(init.first_value(init.glorot_uniform, value.shape, value.dtype.name))

    def forward(
        self, src: Variable, tgt: Any, src_mask: Any = None, tgt_mask: Any = None,
        memory_mask: Any = None, src_key_padding_mask: Any = None,
        tgt_key_padding_mask: Any = None, memory_key_padding_mask: Any = None,
        src_is_causal: bool | None = None, tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Variable:  # fmt: skip
        memory = self.encoder(
            src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal
        )
        return self.decoder(  # type: ignore[no-any-return]
            tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )  # fmt: skip

    @staticmethod
    def generate_square_subsequent_mask(size: int) -> Any:
        """A float mask (size, size): -inf above the diagonal, 0 elsewhere."""
        return np.triu(np.full((size, size), -np.inf, "float32"), 1)
