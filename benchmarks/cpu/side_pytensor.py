"""The cases in PyTensor that it has ops for: it has no convolution and no pooling."""

# ruff: noqa: E402  (the environment comes before the libraries)

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

warnings.filterwarnings("ignore")

import pytensor
import pytensor.tensor as pt

from benchmarks.cpu import spec
from benchmarks.cpu.jobs import Job, rotating
from benchmarks.workloads import pspec

pytensor.config.floatX = "float32"


def facts() -> dict[str, Any]:
    """Version and mode."""
    return {"pytensor": pytensor.__version__, "pytensor_linker": str(pytensor.config.linker)}


def drop() -> None:
    """Nothing is kept."""


def prepare(case: spec.Case, variant: str) -> Job:
    """The case's job; there is one variant, the default mode."""
    if case.family == "net":
        return _network(case)
    given = spec.inputs(case)
    if case.family == "adam":
        return _adam(given)
    if case.family == "call":
        return _call(case, given)
    names = {"matmul": "a b", "bias_relu": "x b"}.get(case.family, "x").split()
    symbols = [pt.tensor(n, dtype="float32", shape=(None,) * given[n].ndim) for n in names]
    y = _FORWARD[case.family](*symbols)
    function = pytensor.function([pytensor.In(v, borrow=True) for v in symbols],
                                 pytensor.Out(y, borrow=True))  # fmt: skip
    return Job(partial(function, *(given[n] for n in names)), lambda y: {"y": y})


def _relu(x: Any) -> Any:
    return pt.maximum(x, np.float32(0))


def _chain(x: Any) -> Any:
    a, b, c, d = (np.float32(pspec.EW[k]) for k in "abcd")
    return pt.tanh(a * x + b) * pt.sigmoid(c * x) + _relu(x - d)


def _gelu(x: Any) -> Any:
    return np.float32(0.5) * x * (1 + pt.erf(x * np.float32(0.5**0.5)))


_FORWARD: dict[str, Any] = {
    "matmul": pt.matmul,
    "chain": _chain,
    "gelu": _gelu,
    "sumsq": lambda x: (x * x).sum(),
    "sum_rows": lambda x: x.sum(axis=1),
    "sum_columns": lambda x: x.sum(axis=0),
    "max_channels": lambda x: x.max(axis=(0, 2, 3)),
    "bias_relu": lambda x, b: _relu(x + b),
}


def _adam(given: dict[str, Any]) -> Job:
    p, m, v = (pytensor.shared(given[k].copy(), borrow=True) for k in "pmv")
    g = pt.vector("g", dtype="float32")
    one, two, rate, eps = (np.float32(c) for c in (0.9, 0.999, 1e-3, 1e-8))
    new_m = one * m + np.float32(0.1) * g
    new_v = two * v + np.float32(0.001) * g * g
    updates = [(m, new_m), (v, new_v), (p, p - rate * new_m / (pt.sqrt(new_v) + eps))]
    function = pytensor.function([pytensor.In(g, borrow=True)], [], updates=updates)
    return Job(
        partial(function, given["g"]),
        lambda _: {"p": p.get_value(), "m": m.get_value(), "v": v.get_value()},
    )


def _call(case: spec.Case, given: dict[str, Any]) -> Job:
    what = case.sizes["what"]
    x = pt.matrix("x", dtype="float32") if what == "mm100" else pt.vector("x", dtype="float32")
    w = pytensor.shared(given["w"]) if what == "mm100" else None
    y: Any = x + np.float32(1) if what == "x+1" else x
    for i in range(0 if what == "x+1" else 100):
        y = y @ w if what == "mm100" else pt.tanh(y) if i % 2 == 0 else y * np.float32(1.01)
    function = pytensor.function([pytensor.In(x, borrow=True)], pytensor.Out(y, borrow=True))
    function.trust_input = case.sizes["border"] == "own"
    return Job(partial(function, given["x"]), lambda y: {"y": y})


def _network(case: spec.Case) -> Job:
    net = spec.networks()[case.sizes["net"]]()
    p = {k: pytensor.shared(v.copy(), name=k, borrow=True) for k, v in net.init().items()}
    x, labels = pt.matrix("x", dtype="float32"), pt.ivector("labels")
    h: Any = x
    for name in ("f1", "f2"):
        h = _relu(h @ p[f"{name}.w"] + p[f"{name}.b"])
    scores = h @ p["f3.w"] + p["f3.b"]
    chosen = pt.special.log_softmax(scores, axis=1)[pt.arange(labels.shape[0]), labels]
    loss = -chosen.mean(dtype="float32")
    updates = []
    for k, g in zip(p, pytensor.grad(loss, list(p.values())), strict=True):
        v = pytensor.shared(np.zeros_like(p[k].get_value()))
        step = np.float32(0.9) * v + g
        updates += [(v, step), (p[k], p[k] - np.float32(net.lr) * step)]
    function = pytensor.function([x, labels], loss, updates=updates)
    batches = [(a, b.astype("int32")) for a, b in spec.ring(net, case.sizes["batch"])]
    step_ = rotating([partial(function, *b) for b in batches])
    return Job(
        step_, lambda first: {"losses": [float(v) for v in (first, step_(), step_(), step_())]}
    )
