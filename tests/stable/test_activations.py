"""GELU as users write it becomes the op; what is near it does not."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.ops.elementwise.activations import Gelu, GeluTanh
from tests.seeded import new_rng

RULE = "gelu_written_out"
SCALE = sqrt(2 / pi)

BY_ERF = {
    "a half before": lambda x: 0.5 * x * (1 + T.erf(x / sqrt(2))),
    "a half behind": lambda x: x * (1 + T.erf(x * sqrt(0.5))) * 0.5,
    "divided by 2": lambda x: x * (T.erf(x / 2**0.5) + 1) / 2,
    "the distribution": lambda x: x * (0.5 * (1 + T.erf(x / np.sqrt(2.0).astype("float32")))),
    "erfc": lambda x: x / 2 * T.erfc(-x / sqrt(2)),
    "erfc of a multiple": lambda x: x * 0.5 * T.erfc(x * -sqrt(0.5)),
}
BY_TANH = {
    "GPT-2": lambda x: 0.5 * x * (1 + T.tanh(SCALE * (x + 0.044715 * x**3))),
    "pow": lambda x: 0.5 * x * (1 + T.tanh(SCALE * (x + 0.044715 * T.pow(x, 3.0)))),
    "factored": lambda x: x * 0.5 * (1 + T.tanh(0.79788456080 * x * (1 + 0.044715 * x * x))),
    "squares": lambda x: x * (1 + T.tanh(SCALE * x + SCALE * 0.044715 * x * T.sqr(x))) / 2,
    "sigmoid": lambda x: x * T.nnet.sigmoid(2 * SCALE * (x + 0.044715 * x**3)),
}
OTHERS = {
    "another slope": lambda x: 0.5 * x * (1 + T.erf(x / 1.414)),
    "a shift": lambda x: 0.5 * x * (1 + T.erf((x + 0.1) / sqrt(2))),
    "twice": lambda x: x * (1 + T.erf(x / sqrt(2))),
    "another argument": lambda x: 0.5 * x * (1 + T.erf(T.sqr(x) / sqrt(2))),
    "another cube": lambda x: 0.5 * x * (1 + T.tanh(SCALE * (x + 0.0447 * x**3))),
    "quick": lambda x: x * T.nnet.sigmoid(1.702 * x),
    "a row": lambda x: 0.5 * x * (1 + T.erf(x[:1] / sqrt(2))),
}


def compiled(build: Any, without: bool = False, dtype: str = "float32") -> tuple[Any, set[Any]]:
    """The function of the value and its gradient, and the kinds of its ops."""
    x = T.tensor(dtype, (None, None), name="x")
    with symdnn.config.change_flags(optimizer_excluding=RULE if without else ""):
        y = build(x)
        mode = symdnn.Mode(target="cpu").excluding("fuse", *([RULE] if without else []))
        f = symdnn.function([x], [y, symdnn.grad(y.sum(), x)], mode=mode)
    return f, {type(n.op) for n in f.stages.fgraph.toposort()}


def drawn(dtype: str = "float32") -> Any:
    x = np.concatenate([new_rng().normal(size=50) * 3, [0, -0.0, 30, -30, 1e-20, 100]])
    return x.astype(dtype).reshape(2, -1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("op", "name"), [(Gelu, n) for n in BY_ERF] + [(GeluTanh, n) for n in BY_TANH]
)
def test_spellings(op: type, name: str, dtype: str) -> None:
    build = (BY_ERF if op is Gelu else BY_TANH)[name]
    if dtype == "float64" and name in ("the distribution", "factored"):
        pytest.skip("its constant has the digits of float32")
    (f, ops), (plain, others) = (compiled(build, w, dtype) for w in (False, True))
    assert op in ops
    assert not {Gelu, GeluTanh} & others
    x = drawn(dtype)
    # 1 + tanh(u) has the digits of 1 in its tail, as in the formula
    rtol, atol = (1e-4, 3e-6) if dtype == "float32" else (1e-9, 1e-12)
    for got, want in zip(f(x), plain(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions_stay(name: str) -> None:
    (f, ops), (plain, _) = (compiled(OTHERS[name], w) for w in (False, True))
    assert not {Gelu, GeluTanh} & ops
    x = drawn()
    for got, want in zip(f(x), plain(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_a_slope_needs_one_exponential(target: str) -> None:
    """GPT-2's by one sigmoid, of whose tails both are the same exponential, and by no tanh."""
    x = T.tensor("float32", (64, 64), name="x")
    slope = symdnn.grad(T.nnet.gelu(x, approximate=True).sum(), x)
    f = symdnn.function([x], slope, mode=symdnn.Mode(target=target))
    text = " ".join(str(node.op) for node in f.stages.fgraph.toposort())
    assert (text.count("exp("), text.count("tanh(")) == (1, 0)
