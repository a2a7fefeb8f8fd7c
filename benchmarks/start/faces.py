"""The words that programs are written in, for each framework, and how it runs a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.start.programs import Program

__all__ = ["FACES"]

_RATE = np.float32(0.01)


class Symdnn:
    """symdnn: shared variables and one compiled function; sizes of data are unknown."""

    def __init__(self) -> None:
        import symdnn
        import symdnn.tensor as T

        self.s, self.T = symdnn, T
        self.relu, self.gelu, self.softmax = T.nnet.relu, T.nnet.gelu, T.nnet.softmax
        self.tanh, self.sigmoid, self.take = T.tanh, T.sigmoid, self._take
        self.join = lambda xs, axis: T.concatenate(xs, axis)
        self.reshape = lambda x, shape: x.reshape(shape)

    def _take(self, x: Any, i: Any) -> Any:
        return x[i]

    def dot(self, a: Any, b: Any) -> Any:
        return self.T.matmul(a, b) if a.ndim > 2 and b.ndim > 2 else self.T.dot(a, b)

    def conv(self, x: Any, w: Any, stride: int = 1, pad: int = 0) -> Any:
        return self.T.nnet.conv2d(
            x, w, border_mode=pad, subsample=(stride, stride), filter_flip=False
        )

    def max_pool(self, x: Any, n: int) -> Any:
        return self.T.signal.pool.pool_2d(x, (n, n), ignore_border=True)

    def double(self, x: Any) -> Any:
        return self.T.repeat(self.T.repeat(x, 2, 2), 2, 3)

    def channels(self, b: Any) -> Any:
        return b.dimshuffle("x", 0, "x", "x")

    def mean(self, x: Any, axes: Any, keep: bool = True) -> Any:
        return x.mean(axis=axes, keepdims=keep)

    def rsqrt(self, x: Any) -> Any:
        return 1 / self.T.sqrt(x)

    def transpose(self, x: Any) -> Any:
        return x.dimshuffle(0, 2, 1, 3)

    def swap(self, x: Any) -> Any:
        return x.swapaxes(-1, -2)

    def constant(self, x: Any) -> Any:
        return self.T.constant(x)

    def cross_entropy(self, scores: Any, y: Any) -> Any:
        return self.T.nnet.softmax_crossentropy(scores, y).mean()

    def scan(self, step: Any, x: Any, states: Any, given: Any) -> Any:
        out, _ = self.s.scan(step, x, states, given, return_list=True)
        return [o[-1] for o in out]

    def prepare(self, program: Program, train: bool) -> Callable[[], Any]:
        """The compiled function on the program's data."""
        s, T = self.s, self.T
        p = {k: s.shared(v, k) for k, v in program.weights.items()}
        given = [T.tensor(str(v.dtype), (None,) * v.ndim) for v in program.data]
        out, updates = program.run(self, p, *given), []
        if train:
            grads = s.grad(out, list(p.values()))
            updates = [(w, w - _RATE * g) for w, g in zip(p.values(), grads, strict=True)]
        f = s.function(given, out, updates=updates)
        self.f = f
        return lambda: f(*program.data)


class Jax:
    """JAX: one jitted function of weights and data, weights are donated."""

    def __init__(self) -> None:
        import os

        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax
        import jax.numpy as jnp

        self.j, self.n, nn = jax, jnp, jax.nn
        self.relu, self.gelu, self.softmax = nn.relu, lambda x: nn.gelu(x, False), nn.softmax
        self.tanh, self.sigmoid, self.rsqrt = jnp.tanh, nn.sigmoid, jax.lax.rsqrt
        self.reshape, self.constant, self.dot = jnp.reshape, jnp.asarray, jnp.matmul
        self.take, self.join = lambda x, i: x[i], jnp.concatenate

    def conv(self, x: Any, w: Any, stride: int = 1, pad: int = 0) -> Any:
        return (
            self.j.lax.conv(x, w, (stride, stride), [(pad, pad)] * 2)
            if not pad
            else (self.j.lax.conv_general_dilated(x, w, (stride, stride), [(pad, pad)] * 2))
        )

    def max_pool(self, x: Any, n: int) -> Any:
        w = (1, 1, n, n)
        return self.j.lax.reduce_window(x, -self.n.inf, self.j.lax.max, w, w, "VALID")

    def double(self, x: Any) -> Any:
        return self.n.repeat(self.n.repeat(x, 2, 2), 2, 3)

    def channels(self, b: Any) -> Any:
        return b.reshape(1, -1, 1, 1)

    def mean(self, x: Any, axes: Any, keep: bool = True) -> Any:
        return x.mean(axes, keepdims=keep)

    def transpose(self, x: Any) -> Any:
        return x.transpose(0, 2, 1, 3)

    def swap(self, x: Any) -> Any:
        return x.swapaxes(-1, -2)

    def cross_entropy(self, scores: Any, y: Any) -> Any:
        chosen = self.n.take_along_axis(self.j.nn.log_softmax(scores), y[:, None], 1)
        return -chosen.mean()

    def scan(self, step: Any, x: Any, states: Any, given: Any) -> Any:
        last, _ = self.j.lax.scan(
            lambda old, x: (tuple(step(x, *old, *given)), None), tuple(states), x
        )
        return last

    def prepare(self, program: Program, train: bool) -> Callable[[], Any]:
        """The jitted function on the program's data."""
        jax = self.j
        p = {k: self.n.asarray(v) for k, v in program.weights.items()}
        data = [self.n.asarray(v) for v in program.data]
        if not train:
            forward = jax.jit(lambda p, *data: program.run(self, p, *data))
            return lambda: np.asarray(forward(p, *data))

        def step(p: Any, *data: Any) -> Any:
            loss, grads = jax.value_and_grad(lambda p: program.run(self, p, *data))(p)
            return loss, {k: w - _RATE * grads[k] for k, w in p.items()}

        jitted, state = jax.jit(step, donate_argnums=0), [p]

        def call() -> Any:
            loss, state[0] = jitted(state[0], *data)
            jax.block_until_ready(state[0])
            return np.asarray(loss)

        return call


class Torch:
    """PyTorch without a compiler."""

    compiles = False

    def __init__(self) -> None:
        import torch
        import torch.nn.functional as F

        self.t, self.F = torch, F
        self.relu, self.gelu, self.softmax = F.relu, F.gelu, lambda x: F.softmax(x, -1)
        self.tanh, self.sigmoid, self.rsqrt = torch.tanh, torch.sigmoid, torch.rsqrt
        self.reshape, self.constant, self.dot = torch.reshape, torch.tensor, torch.matmul
        self.take, self.join = lambda x, i: x[i], torch.cat
        self.cross_entropy, self.max_pool = F.cross_entropy, F.max_pool2d

    def conv(self, x: Any, w: Any, stride: int = 1, pad: int = 0) -> Any:
        return self.F.conv2d(x, w, None, stride, pad)

    def double(self, x: Any) -> Any:
        return x.repeat_interleave(2, 2).repeat_interleave(2, 3)

    def channels(self, b: Any) -> Any:
        return b.reshape(1, -1, 1, 1)

    def mean(self, x: Any, axes: Any, keep: bool = True) -> Any:
        return x.mean(axes, keepdim=keep)

    def transpose(self, x: Any) -> Any:
        return x.transpose(1, 2)

    def swap(self, x: Any) -> Any:
        return x.transpose(-1, -2)

    def scan(self, step: Any, x: Any, states: Any, given: Any) -> Any:
        for entry in x:
            states = step(entry, *states, *given)
        return states

    def prepare(self, program: Program, train: bool) -> Callable[[], Any]:
        """A step on the program's data."""
        torch = self.t
        p = {k: torch.tensor(v).requires_grad_(train) for k, v in program.weights.items()}
        data = [torch.tensor(v) for v in program.data]
        data = [d.long() if train and not d.is_floating_point() else d for d in data]

        def run(p: Any, *data: Any) -> Any:
            return program.run(self, p, *data)

        forward = torch.compile(run) if self.compiles else run
        if not train:
            return lambda: torch.no_grad()(forward)(p, *data).numpy()

        def step() -> Any:
            loss = forward(p, *data)
            loss.backward()
            with torch.no_grad():
                for w in p.values():
                    w -= float(_RATE) * w.grad
                    w.grad = None
            return loss.detach().numpy()

        return step


class TorchCompile(Torch):
    """``torch.compile`` of the loss, inductor's code for the CPU."""

    compiles = True


FACES: dict[str, type[Any]] = {
    "symdnn": Symdnn, "jax": Jax, "torch": Torch, "torch.compile": TorchCompile,
}  # fmt: skip
