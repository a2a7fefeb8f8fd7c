"""Layers of ``symdnn.nn`` beside PyTorch's of the same name and arguments: values and gradients.

The text of a layer is evaluated in both packages. Where PyTorch is not installed, there is nothing
to compare with; the tests keep its numbers in ``tests/nn/torch_layers.npz``. PyTorch computes in
double precision; how far its float32 is from that, with inputs that are off by a unit, says how far
ours may be.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn import nn
from tests.fuzz.areas import Area, Context, Failure
from tests.fuzz.growth import FACTOR
from tests.fuzz.values import unit

POINTWISE = ["ReLU()", "Sigmoid()", "Tanh()", "SELU()", "GELU()", "SiLU()", "Softsign()",
             "Hardtanh()", "Hardswish()", "Hardsigmoid()", "Tanhshrink()", "LogSigmoid()",
             "Softshrink(0.3)", "Hardshrink(0.4)", "ReLU6()"]  # fmt: skip


Move = Callable[[np.ndarray], np.ndarray]
RUNS = 6


@dataclass(frozen=True)
class Layer:
    """A layer as text for both packages, the shape of its input, and the mode."""

    text: str
    shape: tuple[int, ...]
    training: bool = True
    labels: int = 0


class Draw:
    """Random layers."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def of(self, choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def sizes(self, d: int, low: int, high: int) -> tuple[int, ...]:
        return tuple(int(n) for n in self.rng.integers(low, high + 1, d))

    def layer(self) -> Layer:
        """Any of the kinds."""
        kinds = [self.convolution, self.convolution, self.transposed, self.pooling, self.norm,
                 self.pointwise, self.linear, self.padding, self.adaptive,
                 self.softmax]  # fmt: skip
        return self.of(kinds)()  # type: ignore[no-any-return]

    def convolution(self) -> Layer:
        d = self.of([1, 2, 2, 3])
        groups = self.of([1, 1, 1, 2, 3])
        planes_in, planes_out = groups * self.of([1, 2, 3]), groups * self.of([1, 2])
        kernel, stride, dilation = self.sizes(d, 1, 3), self.sizes(d, 1, 3), self.sizes(d, 1, 2)
        padding = self.sizes(d, 0, 2)
        size = [(k - 1) * e + 1 + int(self.rng.integers(0, 4)) for k, e in zip(kernel, dilation)]
        bias = self.of([True, False])
        text = (f"Conv{d}d({planes_in}, {planes_out}, {kernel}, {stride}, {padding}, {dilation}, "
                f"{groups}, {bias})")  # fmt: skip
        return Layer(text, (self.of([1, 2, 3]), planes_in, *size))

    def transposed(self) -> Layer:
        d = self.of([1, 2, 3])
        groups = self.of([1, 1, 2])
        planes_in, planes_out = groups * self.of([1, 2]), groups * self.of([1, 2])
        kernel, stride, dilation = self.sizes(d, 2, 3), self.sizes(d, 1, 3), self.sizes(d, 1, 2)
        padding = self.sizes(d, 0, 1)
        extra = tuple(int(self.rng.integers(0, s)) for s in stride)
        text = (f"ConvTranspose{d}d({planes_in}, {planes_out}, {kernel}, {stride}, {padding}, "
                f"{extra}, {groups}, {self.of([True, False])}, {dilation})")  # fmt: skip
        return Layer(text, (2, planes_in, *self.sizes(d, 2, 4)))

    def pooling(self) -> Layer:
        d = self.of([1, 2, 2, 3])
        kernel, stride = self.sizes(d, 1, 3), self.sizes(d, 1, 3)
        padding = tuple(int(self.rng.integers(0, k // 2 + 1)) for k in kernel)
        size = [k + int(self.rng.integers(0, 5)) for k in kernel]
        ceil = self.of([False, True])
        if self.rng.random() < 0.5:
            text = f"MaxPool{d}d({kernel}, {stride}, {padding}, ceil_mode={ceil})"
        else:
            counted = self.of([True, False])
            text = f"AvgPool{d}d({kernel}, {stride}, {padding}, {ceil}, {counted})"
        return Layer(text, (2, 3, *size))

    def norm(self) -> Layer:
        d = self.of([1, 2, 3])
        planes = self.of([2, 4, 6])
        shape = (self.of([2, 5]), planes, *self.sizes(d, 2, 5))
        training = bool(self.rng.random() < 0.7)
        which = self.of(["batch", "batch", "group", "instance", "layer", "lrn"])
        if which == "batch":
            return Layer(
                f"BatchNorm{d}d({planes}, momentum={self.of([0.1, 0.5])})", shape, training
            )
        if which == "group":
            return Layer(f"GroupNorm({self.of([1, 2, planes])}, {planes})", shape)
        if which == "instance":
            return Layer(f"InstanceNorm{d}d({planes}, affine={self.of([True, False])})", shape)
        if which == "layer":
            return Layer(f"LayerNorm({shape[-1]})", shape)
        return Layer(f"LocalResponseNorm({self.of([1, 3, 5])})", (2, planes, 4, 3))

    def pointwise(self) -> Layer:
        return Layer(self.of(POINTWISE), self.sizes(self.of([1, 2, 3, 4]), 1, 5))

    def linear(self) -> Layer:
        n, m = self.sizes(2, 1, 7)
        shape = self.of([(3, n), (1, n), (2, 3, n)])
        return Layer(f"Linear({n}, {m})", shape)

    def padding(self) -> Layer:
        name = self.of(["ZeroPad2d", "ReflectionPad2d", "ReplicationPad2d"])
        return Layer(f"{name}({self.sizes(4, 0, 2)})", (2, 2, 4, 5))

    def adaptive(self) -> Layer:
        d = self.of([1, 2, 3])
        kind = self.of(["Avg", "Max"])
        out = self.sizes(d, 1, 4)
        return Layer(f"Adaptive{kind}Pool{d}d({out if d > 1 else out[0]})",
                     (2, 2, *self.sizes(d, 4, 7)))  # fmt: skip

    def softmax(self) -> Layer:
        shape = self.sizes(self.of([2, 3, 4]), 1, 5)
        name = self.of(["Softmax", "LogSoftmax", "Softmin"])
        return Layer(f"{name}(dim={int(self.rng.integers(len(shape)))})", shape)


# -- the two sides --------------------------------------------------------------------------------


def ours(layer: Layer, x: np.ndarray, seed: int) -> tuple[Any, list[Any]]:
    """The layer, and what it gives: the output, gradients, statistics afterwards."""
    net = eval(layer.text, {n: getattr(nn, n) for n in dir(nn)})
    with_seed = np.random.default_rng(seed)
    for p in net.parameters():
        p.set_value(with_seed.uniform(0.3, 1, p.get_value().shape).astype("f4"))
    net.train() if layer.training else net.eval()
    v = T.TensorType("float32", (None,) * x.ndim)("x")
    y = net(v)
    weights = np.random.default_rng(5).uniform(0.5, 1.5, _shape(y, v, x)).astype("f4")
    wrt = [v, *net.parameters()]
    grads = T.grad((y * T.constant(weights)).sum(), wrt, disconnected_inputs="ignore")
    f = symdnn.function([v], [y, *grads])
    return net, f(x)


def _shape(y: Any, v: Any, x: np.ndarray) -> tuple[int, ...]:
    from symdnn.graph.evaluate import evaluate

    return np.shape(evaluate([y], {v: x})[0])  # type: ignore[no-any-return]


def theirs(layer: Layer, net: Any, x: np.ndarray, move: Move) -> list[np.ndarray]:
    """What PyTorch gives with the same parameters, in the dtype that ``move`` makes of arrays."""
    import torch

    module = eval(layer.text, {n: getattr(torch.nn, n) for n in dir(torch.nn)})
    module.to(torch.tensor(move(x)).dtype)
    module.train(layer.training)
    state = nn.to_torch(net)
    named = dict(module.named_parameters())
    with torch.no_grad():
        for name, p in named.items():
            p.copy_(torch.tensor(move(np.asarray(state[name]))))
    v = torch.tensor(move(x), requires_grad=True)
    y = module(v)
    weights = np.random.default_rng(5).uniform(0.5, 1.5, tuple(y.shape)).astype("f4")
    (y * torch.tensor(move(weights))).sum().backward()
    order = [n for n in state if n in named]
    found = [y, v.grad, *(named[n].grad for n in order)]
    return [t.detach().double().numpy() for t in found]


def tolerances(layer: Layer, net: Any, x: np.ndarray, want: list[np.ndarray]) -> list[Any]:
    """Eight times what PyTorch's float32 is off, after what goes in was rounded, and some units."""
    rng, u = np.random.default_rng(6), unit("float32")

    def moved(a: np.ndarray) -> np.ndarray:
        e = rng.uniform(0.4, 1, a.shape) * rng.choice([-1.0, 1.0], a.shape)
        return np.asarray(a * (1 + 2 * u * e), "f4")

    noise = [np.zeros(w.shape) for w in want]
    for _ in range(RUNS):
        runs = theirs(layer, net, x, moved)
        noise = [np.maximum(n, np.abs(r - w)) for n, r, w in zip(noise, runs, want)]
    # rounding may spare an element in all runs by chance: no less than the mean of its tensor
    noise = [np.maximum(n, n.mean() if n.size else 0) for n in noise]
    return [FACTOR * n + 4 * u * np.abs(w) for n, w in zip(noise, want)]


def wrong(layer: Layer, seed: int = 0) -> str:
    """What is wrong with a layer, or ``""``; ``"refused"`` where PyTorch has no such layer."""
    x = np.random.default_rng(seed).standard_normal(layer.shape).astype("f4")
    net, got = ours(layer, x, seed)
    try:
        want = theirs(layer, net, x, lambda a: np.asarray(a, "f8"))
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        return f"refused: {error}"
    allowed = tolerances(layer, net, x, want)
    for k, (a, b, tolerance) in enumerate(zip(got, want, allowed, strict=True)):
        name = ["the output", "the gradient of the input"][k] if k < 2 else f"gradient {k - 2}"
        if a.shape != b.shape:
            return f"{name}: shape {a.shape}, PyTorch has {b.shape}"
        off = np.abs(a - b)
        if not (off <= tolerance).all():
            at = np.unravel_index(int(np.argmax(off - tolerance)), off.shape)
            return f"{name} is {a[at]}, PyTorch has {b[at]} +- {tolerance[at]:.2g}"
    return ""


def check(ctx: Context) -> list[Failure]:
    """One layer."""
    layer = Draw(ctx.rng).layer()
    name = re.split(r"\W", layer.text)[0]
    if not hasattr(nn, name):
        return []
    try:
        said = wrong(layer, ctx.index)
    except Exception as error:
        said = f"raises {type(error).__name__}: {str(error).splitlines()[0]}"
    if said.startswith("refused"):
        ctx.count("refused by PyTorch")
        return []
    ctx.count("layers")
    lines = ["from tests.fuzz.layers import Layer, wrong", f"print(wrong({layer!r}, {ctx.index}))"]
    return [ctx.fail(f"{layer.text} of {layer.shape}: {said}", "\n".join(lines))] if said else []


AREA = Area("layers", "layers", check, in_tests=40, needs="torch")
