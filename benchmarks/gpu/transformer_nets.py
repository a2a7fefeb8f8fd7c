"""Networks of the record that ``nn.models`` has not: an encoder-decoder like T5, a diffusion U-Net.

Each is written as a user would, with the names of its peer's parameters: Hugging Face's
``T5ForConditionalGeneration`` (Raffel et al. 2020), and a U-Net with attention (Ho et al. 2020),
whose peer in PyTorch stands beside it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn import nn

__all__ = ["T5", "DiffusionUNet", "torch_unet"]

_BUCKETS, _MAX_DISTANCE = 32, 128


# -- T5 -------------------------------------------------------------------------------------------


def _linear(inputs: int, outputs: int, scale: float = 1.0) -> nn.Linear:
    drawn = nn.init.normal(scale * inputs**-0.5)
    return nn.Linear(inputs, outputs, bias=False, weight_init=drawn)


def buckets(length: int, both_sides: bool) -> np.ndarray:
    """(queries, keys) -> the bucket of their distance: exact when near, logarithmic beyond."""
    distance = np.arange(length)[None] - np.arange(length)[:, None]
    count, found = _BUCKETS, np.zeros_like(distance)
    if both_sides:
        count //= 2
        found += (distance > 0) * count
    far = abs(distance) if both_sides else np.maximum(-distance, 0)
    exact = count // 2
    steps = np.log(np.maximum(far, 1) / exact) / math.log(_MAX_DISTANCE / exact)
    large = np.minimum(exact + (steps * (count - exact)).astype(np.int64), count - 1)
    return found + np.where(far < exact, far, large)


class _Attention(nn.Module):
    """Scores are not divided by anything, so that queries are drawn the smaller (Raffel 2020)."""

    def __init__(self, width: int, heads: int, with_bias: bool) -> None:
        self.heads = heads
        self.q = _linear(width, width, (width // heads) ** -0.5)
        self.k, self.v, self.o = (_linear(width, width) for _ in range(3))
        if with_bias:
            drawn = nn.init.normal(width**-0.5)
            self.relative_attention_bias = nn.Embedding(_BUCKETS, heads, weight_init=drawn)

    def bias(self, length: int, both_sides: bool) -> Any:
        table = self.relative_attention_bias(T.constant(buckets(length, both_sides)))
        found = table.dimshuffle("x", 2, 0, 1)
        if not both_sides:
            future = np.triu(np.full((length, length), -np.inf, np.float32), 1)
            found = found + T.constant(future[None, None]).astype(found.dtype)
        return found

    def forward(self, x: Any, memory: Any, bias: Any) -> Any:
        def split(y: Any) -> Any:
            return y.reshape((*y.shape[:2], self.heads, -1)).dimshuffle(0, 2, 1, 3)

        q, k, v = split(self.q(x)), split(self.k(memory)), split(self.v(memory))
        y = T.nnet.scaled_dot_product_attention(q, k, v, bias, scale=1.0)
        return self.o(y.dimshuffle(0, 2, 1, 3).reshape(x.shape, ndim=3))


class _Named(nn.Module):
    """A module whose parts have these names."""

    def __init__(self, **parts: Any) -> None:
        for name, part in parts.items():
            setattr(self, name, part)


class _Block(nn.Module):
    def __init__(self, width: int, hidden: int, heads: int, decodes: bool, first: bool) -> None:
        def norm() -> nn.RMSNorm:
            return nn.RMSNorm(width, eps=1e-6)

        layers = [_Named(SelfAttention=_Attention(width, heads, first), layer_norm=norm())]
        if decodes:
            cross = _Attention(width, heads, False)
            layers.append(_Named(EncDecAttention=cross, layer_norm=norm()))
        dense = _Named(wi=_linear(width, hidden), wo=_linear(hidden, width))
        layers.append(_Named(DenseReluDense=dense, layer_norm=norm()))
        self.layer = nn.ModuleList(layers)

    def forward(self, x: Any, bias: Any, memory: Any = None) -> Any:
        first, *cross, last = self.layer
        h = first.layer_norm(x)
        x = x + first.SelfAttention(h, h, bias)
        for layer in cross:
            x = x + layer.EncDecAttention(layer.layer_norm(x), memory, None)
        dense = last.DenseReluDense
        return x + dense.wo(T.nnet.relu(dense.wi(last.layer_norm(x))))


class _Stack(nn.Module):
    def __init__(self, width: int, hidden: int, layers: int, heads: int, decodes: bool) -> None:
        self.decodes = decodes
        self.block = nn.ModuleList(
            [_Block(width, hidden, heads, decodes, i == 0) for i in range(layers)]
        )
        self.final_layer_norm = nn.RMSNorm(width, eps=1e-6)

    def forward(self, x: Any, memory: Any = None) -> Any:
        first = self.block[0].layer[0].SelfAttention
        bias = first.bias(x.type.shape[1], not self.decodes)
        for block in self.block:
            x = block(x, bias, memory)
        return self.final_layer_norm(x)


class T5(nn.Module):
    """Scores of the words behind each position, with the same text as input of both stacks."""

    def __init__(
        self, words: int = 32128, width: int = 512, hidden: int = 2048, layers: int = 6,
        heads: int = 8,
    ) -> None:  # fmt: skip
        self.shared = nn.Embedding(words, width)
        self.encoder = _Stack(width, hidden, layers, heads, False)
        self.decoder = _Stack(width, hidden, layers, heads, True)
        self.width = width

    def forward(self, ids: Any) -> Any:
        x = self.shared(ids)
        y = self.decoder(x, self.encoder(x))
        return T.dot(y * self.width**-0.5, self.shared.weight.T)


# -- a U-Net of diffusion -------------------------------------------------------------------------


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        self.norm1, self.norm2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x: Any, t: Any) -> Any:
        h = self.conv1(T.nnet.silu(self.norm1(x)))
        h = h + self.time(T.nnet.silu(t)).dimshuffle(0, 1, "x", "x")
        h = self.conv2(T.nnet.silu(self.norm2(h)))
        return h + (x if self.skip is None else self.skip(x))


class _Look(nn.Module):
    def __init__(self, width: int) -> None:
        self.norm = nn.GroupNorm(8, width)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Any) -> Any:
        n, c, *_ = x.shape
        qkv = self.qkv(self.norm(x)).reshape((n, 3, 4, c // 4, -1))
        q, k, v = (qkv[:, i].dimshuffle(0, 1, 3, 2) for i in range(3))
        y = T.nnet.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.dimshuffle(0, 1, 3, 2).reshape(x.shape, ndim=4))


class DiffusionUNet(nn.Module):
    """The noise in images (batch, 3, size, size), image i after i diffusion steps."""

    def __init__(self, width: int = 128) -> None:
        time = 4 * width
        self.width = width
        self.time1, self.time2 = nn.Linear(width, time), nn.Linear(time, time)
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down1 = _Residual(width, width, time)
        self.smaller = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.down2, self.look2 = _Residual(width, 2 * width, time), _Look(2 * width)
        self.middle1, self.look = _Residual(2 * width, 2 * width, time), _Look(2 * width)
        self.middle2 = _Residual(2 * width, 2 * width, time)
        self.up2, self.look3 = _Residual(4 * width, 2 * width, time), _Look(2 * width)
        self.double = nn.Upsample(scale_factor=2)
        self.after = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up1 = _Residual(3 * width, width, time)
        self.norm, self.leave = nn.GroupNorm(8, width), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Any) -> Any:
        n = x.type.shape[0]
        t = T.constant(waves(n, self.width)).astype(x.type.dtype)
        t = self.time2(T.nnet.silu(self.time1(t)))
        one = self.down1(self.enter(x), t)
        two = self.look2(self.down2(self.smaller(one), t))
        h = self.middle2(self.look(self.middle1(two, t)), t)
        h = self.look3(self.up2(T.concatenate([h, two], axis=1), t))
        h = self.after(self.double(h))
        h = self.up1(T.concatenate([h, one], axis=1), t)
        return self.leave(T.nnet.silu(self.norm(h)))


def waves(count: int, width: int) -> np.ndarray:
    """Sines and cosines of the numbers 0 to ``count`` (Vaswani et al. 2017)."""
    rates = np.exp(-math.log(10000) * np.arange(width // 2) / (width // 2))
    angles = np.arange(count)[:, None] * rates
    return np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)


def torch_unet(width: int = 128) -> Any:
    """:class:`DiffusionUNet` in PyTorch."""
    import torch
    from torch import nn as tnn
    from torch.nn import functional as F

    class Residual(tnn.Module):  # type: ignore[misc]
        def __init__(self, inputs: int, outputs: int, time: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = tnn.GroupNorm(8, inputs), tnn.GroupNorm(8, outputs)
            self.conv1 = tnn.Conv2d(inputs, outputs, 3, padding=1)
            self.conv2 = tnn.Conv2d(outputs, outputs, 3, padding=1)
            self.time = tnn.Linear(time, outputs)
            self.skip = tnn.Conv2d(inputs, outputs, 1) if inputs != outputs else None

        def forward(self, x: Any, t: Any) -> Any:
            h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
            h = self.conv2(F.silu(self.norm2(h)))
            return h + (x if self.skip is None else self.skip(x))

    class Look(tnn.Module):  # type: ignore[misc]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = tnn.GroupNorm(8, width)
            self.qkv, self.out = tnn.Conv2d(width, 3 * width, 1), tnn.Conv2d(width, width, 1)

        def forward(self, x: Any) -> Any:
            n, c, *_ = x.shape
            q, k, v = self.qkv(self.norm(x)).reshape(n, 3, 4, c // 4, -1).transpose(3, 4).unbind(1)
            y = F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(x.shape)
            return x + self.out(y)

    class UNet(tnn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            time = 4 * width
            self.time1, self.time2 = tnn.Linear(width, time), tnn.Linear(time, time)
            self.enter = tnn.Conv2d(3, width, 3, padding=1)
            self.down1 = Residual(width, width, time)
            self.smaller = tnn.Conv2d(width, width, 3, stride=2, padding=1)
            self.down2, self.look2 = Residual(width, 2 * width, time), Look(2 * width)
            self.middle1, self.look = Residual(2 * width, 2 * width, time), Look(2 * width)
            self.middle2 = Residual(2 * width, 2 * width, time)
            self.up2, self.look3 = Residual(4 * width, 2 * width, time), Look(2 * width)
            self.after = tnn.Conv2d(2 * width, 2 * width, 3, padding=1)
            self.up1 = Residual(3 * width, width, time)
            self.norm, self.leave = tnn.GroupNorm(8, width), tnn.Conv2d(width, 3, 3, padding=1)

        def forward(self, x: Any) -> Any:
            t = torch.from_numpy(waves(len(x), width)).to(x.device, self.time1.weight.dtype)
            t = self.time2(F.silu(self.time1(t)))
            one = self.down1(self.enter(x), t)
            two = self.look2(self.down2(self.smaller(one), t))
            h = self.middle2(self.look(self.middle1(two, t)), t)
            h = self.look3(self.up2(torch.cat([h, two], 1), t))
            h = self.after(F.interpolate(h, scale_factor=2.0))
            return self.leave(F.silu(self.norm(self.up1(torch.cat([h, one], 1), t))))

    return UNet()
