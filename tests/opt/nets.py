"""Small nets of known kinds, for tests of rewrites that look at whole programs."""

from __future__ import annotations

from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T

Net = tuple[Any, list[Any]]  # the class probabilities' logits, the parameters


class Maker:
    """Layers with parameters drawn from a seed."""

    def __init__(self, dtype: str = "float32", seed: int = 0) -> None:
        self.dtype, self.rng = dtype, np.random.default_rng(seed)
        self.parameters: list[Any] = []

    def shared(self, *shape: int, scale: float = 0.3, offset: float = 0.0) -> Any:
        value = self.rng.standard_normal(shape) * scale + offset
        v = symdnn.shared(value.astype(symdnn.graph.type.numpy_dtype(self.dtype)))
        self.parameters.append(v)
        return v

    def conv(self, x: Any, fan_in: int, fan_out: int, k: int, **more: Any) -> Any:
        w = self.shared(fan_out, fan_in, k, k)
        return T.nnet.conv2d(x, w, **more)

    def bias(self, x: Any, n: int) -> Any:
        return x + self.shared(n).dimshuffle("x", 0, "x", "x")

    def norm(self, x: Any, n: int) -> Any:
        gamma, beta = self.shared(n, offset=1.0), self.shared(n)
        return T.nnet.bn.batch_normalization_train(x, gamma, beta, axes="spatial")[0]

    def dense(self, x: Any, fan_in: int, fan_out: int) -> Any:
        return T.dot(x, self.shared(fan_in, fan_out)) + self.shared(fan_out)


def pool(x: Any, mode: str = "max") -> Any:
    return T.signal.pool.pool_2d(x, (2, 2), ignore_border=True, mode=mode)


def lenet(x: Any, dtype: str = "float32") -> Net:
    """Images of 1 channel, 16 x 16."""
    m = Maker(dtype)
    h = pool(T.tanh(m.bias(m.conv(x, 1, 4, 5), 4)))
    h = pool(T.tanh(m.bias(m.conv(h, 4, 6, 3), 6)))
    h = T.tanh(m.dense(h.flatten(2), 6 * 2 * 2, 10))
    return m.dense(h, 10, 5), m.parameters


def vgg(x: Any, dtype: str = "float32") -> Net:
    """Images of 3 channels, 8 x 8."""
    m = Maker(dtype)
    h = x
    for fan_in, fan_out in ((3, 4), (4, 6)):
        h = T.nnet.relu(m.bias(m.conv(h, fan_in, fan_out, 3, border_mode="half"), fan_out))
        h = T.nnet.relu(m.bias(m.conv(h, fan_out, fan_out, 3, border_mode="half"), fan_out))
        h = pool(h)
    return m.dense(T.nnet.relu(m.dense(h.flatten(2), 6 * 2 * 2, 7)), 7, 5), m.parameters


def resnet(x: Any, dtype: str = "float32", blocks: int = 2) -> Net:
    """Images of 3 channels of any size: residual blocks with batch normalisation."""
    m = Maker(dtype)
    h = T.nnet.relu(m.norm(m.conv(x, 3, 4, 3, border_mode="half"), 4))
    width = 4
    for i in range(blocks):
        wide, step = (width, 1) if i == 0 else (2 * width, 2)
        r = m.conv(h, width, wide, 3, border_mode="half", subsample=(step, step))
        r = m.norm(m.conv(T.nnet.relu(m.norm(r, wide)), wide, wide, 3, border_mode="half"), wide)
        if step > 1:
            h = m.norm(m.conv(h, width, wide, 1, subsample=(step, step)), wide)
        h, width = T.nnet.relu(r + h), wide
    return m.dense(h.mean((2, 3)), width, 5), m.parameters


NETS = {"lenet": lenet, "vgg": vgg, "resnet": resnet}
IMAGES = {"lenet": (3, 1, 16, 16), "vgg": (3, 3, 8, 8), "resnet": (3, 3, 8, 8)}


def loss_of(logits: Any, labels: Any) -> Any:
    return T.nnet.categorical_crossentropy(T.nnet.softmax(logits), labels).mean()


def training(name: str, dtype: str = "float32") -> tuple[list[Any], list[Any], list[Any]]:
    """Inputs, outputs (the loss, and the next value of each parameter), parameters."""
    x, t = T.TensorType(dtype, (None,) * 4)("x"), T.ivector("t")
    logits, parameters = NETS[name](x, dtype)
    loss = loss_of(logits, t)
    step = np.asarray(0.1, symdnn.graph.type.numpy_dtype(dtype))
    nexts = [p - step * g for p, g in zip(parameters, T.grad(loss, parameters))]
    return [x, t], [loss, *nexts], parameters


def arguments(name: str, dtype: str = "float32", seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = IMAGES[name]
    images = rng.standard_normal(shape).astype(symdnn.graph.type.numpy_dtype(dtype))
    return [images, rng.integers(0, 5, shape[0]).astype("int32")]
