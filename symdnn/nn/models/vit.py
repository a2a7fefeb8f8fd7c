"""The vision transformer (Dosovitskiy et al. 2020), with torchvision's names."""

from __future__ import annotations

from symdnn.errors import InputError
from symdnn.graph.variable import Shared, Variable
from symdnn.nn import init
from symdnn.nn.layers.activation import GELU
from symdnn.nn.layers.containers import Sequential
from symdnn.nn.layers.dropout import Dropout
from symdnn.nn.layers.linear import Linear
from symdnn.nn.layers.norm import LayerNorm
from symdnn.nn.models.parts import Stages, as_torchvision, conv
from symdnn.nn.modules.module import Module
from symdnn.nn.transformers.attention import MultiheadAttention
from symdnn.ops.array.join import concatenate
from symdnn.ops.core.shape import alloc, dims_of

__all__ = ["VisionTransformer", "vit_b_16"]

#: What is added to variances.
EPS = 1e-6


class _Block(Module):
    """Attention and a network for each patch, both on normalised values, beside the values."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        self.ln_1, self.ln_2 = LayerNorm(width, EPS), LayerNorm(width, EPS)
        self.self_attention = MultiheadAttention(width, heads, dropout, batch_first=True)
        self.dropout = Dropout(dropout)
        near = init.normal(1e-6)
        self.mlp = Sequential(
            Linear(width, hidden, weight_init=init.glorot_uniform, bias_init=near), GELU(),
            Dropout(dropout),
            Linear(hidden, width, weight_init=init.glorot_uniform, bias_init=near),
            Dropout(dropout),
        )  # fmt: skip

    def forward(self, x: Variable) -> Variable:
        y = self.ln_1(x)
        x = x + self.dropout(self.self_attention(y, y, y, need_weights=False)[0])
        found: Variable = x + self.mlp(self.ln_2(x))
        return found


class _Encoder(Module):
    pos_embedding: Shared

    def __init__(
        self, patches: int, width: int, layers: int, heads: int, hidden: int, dropout: float
    ) -> None:
        self.parameter("pos_embedding", (1, patches, width), init.normal(0.02))
        self.dropout = Dropout(dropout)
        blocks = {
            f"encoder_layer_{i}": _Block(width, heads, hidden, dropout) for i in range(layers)
        }
        self.layers = Stages(**blocks)
        self.ln = LayerNorm(width, EPS)

    def forward(self, x: Variable) -> Variable:
        y: Variable = self.ln(self.layers(self.dropout(x + self.pos_embedding)))
        return y


class VisionTransformer(Module):
    """See :func:`vit_b_16`."""

    class_token: Shared

    def __init__(
        self, classes: int, image: int, patch: int, width: int, layers: int, heads: int,
        hidden: int, dropout: float,
    ) -> None:  # fmt: skip
        if image % patch:
            raise InputError(f"vit: image={image} is no multiple of patch={patch}")
        self.parameter("class_token", (1, 1, width), init.zeros)
        self.conv_proj = conv(3, width, patch, patch, bias=True, initial=init.torch_uniform)
        patches = (image // patch) ** 2 + 1
        self.encoder = _Encoder(patches, width, layers, heads, hidden, dropout)
        self.heads = Stages(
            head=Linear(width, classes, weight_init=init.zeros, bias_init=init.zeros)
        )

    def forward(self, x: Variable) -> Variable:
        """Scores (N, classes) of images (N, 3, image, image)."""
        y = self.conv_proj(x)
        batch, width, rows, columns = dims_of(y)
        patches = y.reshape((batch, width, rows * columns)).dimshuffle(0, 2, 1)
        first = alloc(self.class_token, batch, 1, width)
        states = self.encoder(concatenate([first, patches], axis=1))
        found: Variable = self.heads(states[:, 0])
        return found


@as_torchvision
def vit_b_16(
    classes: int = 1000,
    image: int = 224,
    patch: int = 16,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    hidden: int = 3072,
    dropout: float = 0.0,
) -> VisionTransformer:
    """The vision transformer ViT-B/16: 86,567,656 parameters (Dosovitskiy et al. 2020).

    Images are (N, 3, ``image``, ``image``); the result is scores (N, classes). Names and shapes are
    those of torchvision's ``vit_b_16``.
    """
    return VisionTransformer(classes, image, patch, width, layers, heads, hidden, dropout)
