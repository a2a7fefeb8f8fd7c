"""The cases in JAX: one jitted function a case; a call waits for its result."""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.cpu import spec
from benchmarks.cpu.jobs import Job, rotating
from benchmarks.workloads import pspec

_wait = jax.block_until_ready


def facts() -> dict[str, Any]:
    """Version and devices."""
    return {"jax": jax.__version__, "jax_device": str(jax.devices()[0])}


def drop() -> None:
    """Forget what was compiled."""
    jax.clear_caches()


def prepare(case: spec.Case, variant: str) -> Job:
    """The case's job; there is one variant."""
    if case.family == "net":
        return _network(case)
    given = {k: jnp.asarray(_border(case, k, v)) for k, v in spec.inputs(case).items()}
    if case.family == "rnn":
        return _recurrent(case, given)
    if case.family == "adam":
        return _adam(given)
    if case.family == "call":
        return _call(case, given)
    if case.family == "conv":
        function, names, result = _conv(case)
        return _job(case, jax.jit(function), [given[n] for n in names.split()], result)
    make, names = _FORWARD[case.family]
    args = [given[n] for n in names.split()]
    if case.backward or case.family == "xent":
        return _with_gradients(case, make(case), args, names, given)
    return _job(case, jax.jit(make(case)), args, "y")


def _border(case: spec.Case, name: str, v: Any) -> Any:
    """Images in the case's order; a convolution's weights stay OIHW."""
    images = case.channels_last and v.ndim == 4 and name != "w"
    return v.transpose(0, 2, 3, 1) if images else v


def _job(case: spec.Case, function: Any, args: list[Any], names: str) -> Job:
    return Job(lambda: _wait(function(*args)), partial(_numpy, case, names))


def _numpy(case: spec.Case, names: str, out: Any) -> dict[str, Any]:
    values = out if isinstance(out, tuple) else (out,)
    found = {n: np.asarray(v) for n, v in zip(names.split(), values, strict=True)}
    if case.channels_last:
        found = {
            n: v.transpose(0, 3, 1, 2) if v.ndim == 4 and n != "dw" else v for n, v in found.items()
        }
    return found


# -- operations ------------------------------------------------------------------------------------


def _conv(case: spec.Case) -> tuple[Callable[..., Any], str, str]:
    s = case.sizes
    order = ("NHWC", "OIHW", "NHWC") if case.channels_last else ("NCHW", "OIHW", "NCHW")

    def forward(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, (s["stride"],) * 2, [(s["pad"],) * 2] * 2, dimension_numbers=order,
            feature_group_count=s["groups"],
        )  # fmt: skip

    if s["pass"] == "fwd":
        return forward, "x w", "y"
    if s["pass"] == "bwd_d":
        # x gives a shape only: what is computed from it is dead code.
        return lambda dy, x, w: jax.vjp(lambda a: forward(a, w), x)[1](dy)[0], "dy x w", "dx"
    return lambda dy, x, w: jax.vjp(lambda a: forward(x, a), w)[1](dy)[0], "dy x w", "dw"


def _pool(case: spec.Case) -> Callable[..., Any]:
    window = (1, 2, 2, 1) if case.channels_last else (1, 1, 2, 2)
    if case.sizes["kind"] == "max":
        return lambda x: lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")
    return lambda x: lax.reduce_window(x, 0.0, lax.add, window, window, "VALID") / 4


def _norm(
    x: Any, g: Any, b: Any, axes: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[Any, Any, Any]:
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    y = (x - mean) * lax.rsqrt(var + 1e-5) * g.reshape(shape) + b.reshape(shape)
    return y, mean, var


def _batch_norm(case: spec.Case) -> Callable[..., Any]:
    axes, shape = ((0, 1, 2), (1, 1, 1, -1)) if case.channels_last else ((0, 2, 3), (1, -1, 1, 1))
    return lambda x, g, b: _norm(x, g, b, axes, shape)[0]


def _chain(x: Any) -> Any:
    e = pspec.EW
    gate = jax.nn.sigmoid(e["c"] * x)
    return jnp.tanh(e["a"] * x + e["b"]) * gate + jax.nn.relu(x - e["d"])


def _attention(case: spec.Case) -> Callable[..., Any]:
    """JAX's function has heads after the time."""

    def attend(*qkv: Any) -> Any:
        turned = [x.astype(case.sizes["dtype"]).swapaxes(1, 2) for x in qkv]
        y = jax.nn.dot_product_attention(*turned, is_causal=case.sizes["causal"])
        return y.swapaxes(1, 2).astype("float32")

    return attend


def _cross_entropy(scores: Any, labels: Any) -> Any:
    chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], 1)
    return -chosen.mean()


_FORWARD: dict[str, tuple[Callable[[spec.Case], Callable[..., Any]], str]] = {
    "pool": (_pool, "x"),
    "bn": (_batch_norm, "x g b"),
    "softmax": (lambda _: lambda x: jax.nn.softmax(x, 1), "x"),
    "logsoftmax": (lambda _: lambda x: jax.nn.log_softmax(x, 1), "x"),
    "layernorm": (lambda _: lambda x, g, b: _norm(x, g, b, (1,), (1, -1))[0], "x g b"),
    "matmul": (lambda _: jnp.matmul, "a b"),
    "attention": (_attention, "q k v"),
    "chain": (lambda _: _chain, "x"),
    "gelu": (lambda _: partial(jax.nn.gelu, approximate=False), "x"),
    "sumsq": (lambda _: lambda x: (x * x).sum(), "x"),
    "sum_rows": (lambda _: lambda x: x.sum(1), "x"),
    "sum_columns": (lambda _: lambda x: x.sum(0), "x"),
    "max_channels": (lambda _: lambda x: x.max((0, 2, 3)), "x"),
    "bias_relu": (lambda _: lambda x, b: jax.nn.relu(x + b), "x b"),
    "xent": (lambda _: _cross_entropy, "x labels"),
}


def _with_gradients(
    case: spec.Case, function: Any, args: list[Any], names: str, given: dict[str, Any]
) -> Job:
    floats = [n for n in names.split() if n != "labels"]

    def both(dy: Any, *args: Any) -> Any:
        y, back = jax.vjp(lambda *f: function(*f, *args[len(floats) :]), *args[: len(floats)])
        return y, *back(dy)

    dy = jnp.float32(1) if case.family == "xent" else given["dy"]
    return _job(case, jax.jit(both), [dy, *args], " ".join(["y", *(f"d{n}" for n in floats)]))


def _adam(given: dict[str, Any]) -> Job:
    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def update(p: Any, m: Any, v: Any, g: Any) -> Any:
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v

    state = [given[k] for k in "pmv"]

    def step() -> Any:
        state[:] = _wait(update(*state, given["g"]))
        return tuple(state)

    return Job(step, lambda out: {k: np.asarray(a) for k, a in zip("pmv", out, strict=True)})


def _call(case: spec.Case, given: dict[str, Any]) -> Job:
    what, x, w = case.sizes["what"], given["x"], given.get("w")

    @jax.jit
    def small(x: Any) -> Any:
        if what == "x+1":
            return x + 1
        for i in range(100):
            x = x @ w if what == "mm100" else jnp.tanh(x) if i % 2 == 0 else x * 1.01
        return x

    array = np.asarray(x)
    if case.sizes["border"] == "own":
        return Job(lambda: _wait(small(x)), lambda y: {"y": np.asarray(y)})
    return Job(lambda: np.asarray(small(array)), lambda y: {"y": y})


# -- recurrent nets --------------------------------------------------------------------------------


def _lstm(gates: Any, h: Any, c: Any, w: Any, b: Any) -> tuple[Any, Any]:
    i, f, g, o = jnp.split(gates + h @ w.T + b, 4, axis=1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _gru(gates: Any, h: Any, c: Any, w: Any, b: Any) -> tuple[Any, Any]:
    r, z, n = jnp.split(gates, 3, axis=1)
    hr, hz, hn = jnp.split(h @ w.T + b, 3, axis=1)
    r, z = jax.nn.sigmoid(r + hr), jax.nn.sigmoid(z + hz)
    n = jnp.tanh(n + r * hn)
    return (1 - z) * n + z * h, c


def _recurrent(case: spec.Case, given: dict[str, Any]) -> Job:
    """``lax.scan`` over time; the inputs' products for all times are made before."""
    s = case.sizes
    cell = _lstm if s["kind"] == "lstm" else _gru
    parameters = [given[f"{n}_l0"] for n in ("w_ih", "w_hh", "b_ih", "b_hh")]

    def forward(x: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Any:
        zero = jnp.zeros((s["B"], s["hid"]), x.dtype)

        def body(state: Any, gates: Any) -> Any:
            h, c = cell(gates, *state, w_hh, b_hh)
            return (h, c), h

        return lax.scan(body, (zero, zero), x @ w_ih.T + b_ih)[1]

    if not case.backward:
        return _job(case, jax.jit(forward), [given["x"], *parameters], "y")

    @jax.jit
    def both(dy: Any, *args: Any) -> Any:
        y, back = jax.vjp(forward, *args)
        dx, *dws = back(dy)
        return y, dx, dws

    def results(out: Any) -> dict[str, Any]:
        dw = np.concatenate([np.asarray(d).ravel() for d in out[2]])
        return {"y": np.asarray(out[0]), "dx": np.asarray(out[1]), "dw": dw}

    return Job(lambda: _wait(both(given["dy"], given["x"], *parameters)), results)


# -- networks --------------------------------------------------------------------------------------


class _Net:
    """Scores of a network of ``pspec``; ``fresh`` gathers the new running statistics."""

    def __init__(self, net: pspec.Net, p: Any, running: Any, training: bool) -> None:
        self.net, self.p, self.running, self.training = net, p, running, training
        self.fresh: dict[str, Any] = {}
        self.geometry = {c[0]: (c[4], c[5]) for c in net.convs}

    def conv(self, x: Any, name: str) -> Any:
        stride, pad = self.geometry[name]
        y = lax.conv_general_dilated(
            x, self.p[f"{name}.w"], (stride, stride), [(pad, pad)] * 2,
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
        )  # fmt: skip
        bias = self.p.get(f"{name}.b")
        return y if bias is None else y + bias[:, None, None]

    def norm(self, x: Any, name: str) -> Any:
        g, b = self.p[f"{name}.g"], self.p[f"{name}.b"]
        mean, var = self.running[f"{name}.mean"], self.running[f"{name}.var"]
        if not self.training:
            scale = g * lax.rsqrt(var + 1e-5)
            return x * scale[:, None, None] + (b - mean * scale)[:, None, None]
        y, m, v = _norm(x, g, b, (0, 2, 3), (1, -1, 1, 1))
        count = x.size // x.shape[1]
        self.fresh[f"{name}.mean"] = 0.9 * mean + 0.1 * m.ravel()
        self.fresh[f"{name}.var"] = 0.9 * var + 0.1 * v.ravel() * (count / (count - 1))
        return y

    def dense(self, x: Any, name: str) -> Any:
        return x @ self.p[f"{name}.w"] + self.p[f"{name}.b"]

    def scores(self, x: Any) -> Any:
        relu = jax.nn.relu
        if self.net.name == "mlp":
            return self.dense(relu(self.dense(relu(self.dense(x, "f1")), "f2")), "f3")
        if self.net.name == "lenet5":
            pool = _FORWARD["pool"][0](spec.find("pool/max2x2_64x20x24x24/fwd/nchw"))
            x = jnp.tanh(pool(self.conv(x, "c1")))
            x = jnp.tanh(pool(self.conv(x, "c2")))
            return self.dense(jnp.tanh(self.dense(x.reshape(len(x), -1), "f1")), "f2")
        x = relu(self.norm(self.conv(x, "conv1"), "bn1"))
        for stage in range(3):
            for block in range(3):
                x = self.block(x, f"l{stage + 1}_{block}_")
        return self.dense(x.mean((2, 3)), "fc")

    def block(self, x: Any, at: str) -> Any:
        y = jax.nn.relu(self.norm(self.conv(x, f"{at}conv1"), f"{at}bn1"))
        y = self.norm(self.conv(y, f"{at}conv2"), f"{at}bn2")
        if f"{at}dconv" in self.geometry:
            x = self.norm(self.conv(x, f"{at}dconv"), f"{at}dbn")
        return jax.nn.relu(y + x)


def _network(case: spec.Case) -> Job:
    net = spec.networks()[case.sizes["net"]]()
    p = {k: jnp.asarray(v) for k, v in net.init().items()}
    running = {
        f"{n}.{k}": f(c, jnp.float32)
        for n, c in net.bn
        for k, f in (("mean", jnp.zeros), ("var", jnp.ones))
    }
    batches = [(jnp.asarray(x), jnp.asarray(y)) for x, y in spec.ring(net, case.sizes["batch"])]
    if case.sizes["mode"] == "infer":
        infer = jax.jit(lambda p, r, x: _Net(net, p, r, False).scores(x))
        calls = [partial(lambda x: _wait(infer(p, running, x)), x) for x, _ in batches]
        return Job(rotating(calls), lambda y: {"scores": np.asarray(y)})

    def loss_of(p: Any, running: Any, x: Any, y: Any) -> Any:
        built = _Net(net, p, running, True)
        return _cross_entropy(built.scores(x), y), built.fresh

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def train(p: Any, v: Any, running: Any, x: Any, y: Any) -> Any:
        (loss, fresh), g = jax.value_and_grad(loss_of, has_aux=True)(p, running, x, y)
        v = {k: 0.9 * v[k] + g[k] for k in v}
        return {k: p[k] - net.lr * v[k] for k in p}, v, fresh, loss

    state: list[Any] = [p, {k: jnp.zeros_like(a) for k, a in p.items()}, running]

    def call(x: Any, y: Any) -> float:
        *state[:], loss = _wait(train(*state, x, y))
        return float(loss)

    step = rotating([partial(call, *b) for b in batches])
    return Job(step, lambda first: {"losses": [first, step(), step(), step()]})
