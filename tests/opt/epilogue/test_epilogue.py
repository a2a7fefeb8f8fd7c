"""Activation functions of several ops in the epilogues of oneDNN: where they join, and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.cpu.onednn import library
from symdnn.graph.op import Op
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.ops.vendor.onednn import OneDnnConv, OneDnnMatmul
from tests.seeded import new_rng

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(bool(library.problem()), reason="oneDNN is not there"),
]

#: (the library's word, the function as a user writes it)
FORMULAS: dict[str, tuple[str, Any]] = {
    "relu6": ("clip", lambda x: T.nnet.clipped_relu(x, 6)),
    "relu6 by clip": ("clip", lambda x: T.clip(x, 0, 6)),
    "relu6 by extremes": ("clip", lambda x: T.maximum(0, T.minimum(x, 6))),
    "hardsigmoid": ("hardsigmoid", nn.HardSigmoid()),
    "hardswish": ("hardswish", nn.HardSwish()),
    "swish": ("swish", nn.SiLU()),
}
NEAR_MISSES: dict[str, Any] = {
    "another ceiling": lambda x: T.nnet.clipped_relu(x, 5),
    "another floor": lambda x: T.clip(x, -1, 6),
    "another slope": T.nnet.hard_sigmoid,
    "two arguments": lambda x: x * nn.HardSigmoid()(x + 1),
    "oneDNN has no right digit of its tail": nn.GELU(),
    "oneDNN has a negative one": T.nnet.softplus,
}


def convolved(x: Any, w: Any, b: Any) -> Any:
    y = T.nnet.conv2d(x, w, border_mode=(1, 1), filter_flip=False)
    return y + b.dimshuffle("x", 0, "x", "x")


def drawn() -> tuple[np.ndarray, ...]:
    rng = new_rng()
    shapes = ((2, 8, 9, 9), (16, 8, 3, 3), (16,))
    return tuple(rng.normal(size=s).astype("float32") for s in shapes)


def ops(f: Any, kind: type[Op]) -> list[Any]:
    return [n.op for n in f.fgraph.toposort() if isinstance(n.op, kind)]


def compiled(build: Any, excluding: str = "") -> Any:
    x, w, b = T.tensor4("x"), T.tensor4("w"), T.vector("b")
    y = build(convolved(x, w, b))
    mode = symdnn.Mode().excluding(excluding) if excluding else None
    return symdnn.function([x, w, b], y, mode=mode)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_is_the_epilogue_and_gives_its_values(name: str) -> None:
    word, build = FORMULAS[name]
    f, plain = compiled(build), compiled(build, "epilogue")
    assert [op.activation for op in ops(f, OneDnnConv)] == [word]
    assert not ops(f, FusedElemwise)
    assert ops(plain, OneDnnConv)[0].is_plain
    given = drawn()
    np.testing.assert_allclose(f(*given), plain(*given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_another_function_stays_behind(name: str) -> None:
    f, given = compiled(NEAR_MISSES[name]), drawn()
    taken = {word for word, _ in FORMULAS.values()}
    assert not {op.activation for op in ops(f, OneDnnConv)} & taken
    wanted = compiled(NEAR_MISSES[name], "epilogue")(*given)
    np.testing.assert_allclose(f(*given), wanted, rtol=1e-5, atol=1e-5)


def test_what_others_read_is_not_swallowed() -> None:
    f, plain = (compiled(lambda y: [y, nn.HardSwish()(y)], word) for word in ("", "epilogue"))
    assert [op.activation for op in ops(f, OneDnnConv)] == [""]
    given = drawn()
    for a, b in zip(f(*given), plain(*given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_factors_of_planes_are_two_convolutions_and_a_product() -> None:
    x = T.tensor("float32", (2, 16, 5, 5), name="x")
    f = symdnn.function([x], nn.SqueezeExcitation(16, 8)(x))
    assert [op.activation for op in ops(f, OneDnnConv)] == ["relu", "logistic"]
    assert not ops(f, FusedElemwise)


def test_a_dense_layer_of_more_dimensions_adds_its_bias_and_activates() -> None:
    layer, x = nn.Linear(8, 16), T.tensor3("x")
    y = T.nnet.gelu(layer(x), approximate="tanh")
    f = symdnn.function([x], y)
    assert [(op.bias, op.activation) for op in ops(f, OneDnnMatmul)] == [(True, "gelu_tanh")]
    value = new_rng().normal(size=(2, 5, 8)).astype("float32")
    plain = symdnn.function([x], y, mode=symdnn.Mode().excluding("epilogue"))
    np.testing.assert_allclose(f(value), plain(value), rtol=1e-5, atol=1e-5)


def test_what_is_read_in_parts_keeps_its_epilogue() -> None:
    """Queries, keys and values of one product; halves of one convolution's channels."""
    layer, x = nn.Linear(8, 48), T.tensor("float32", (2, 5, 8), name="x")
    q, k, v = (T.nnet.relu(layer(x))[:, :, n : n + 16] for n in (0, 16, 32))
    f = symdnn.function([x], T.batched_dot(q, k.transpose(0, 2, 1)) @ v)
    assert [(op.bias, op.activation) for op in ops(f, OneDnnMatmul) if op.bias] == [(True, "relu")]
    image = T.tensor("float32", (2, 8, 9, 9), name="image")
    y = nn.HardSwish()(nn.Conv2d(8, 16, 3)(image))
    g = symdnn.function([image], T.concatenate([y[:, :8].sum(axis=1), y[:, 8:].max(axis=1)]))
    assert [op.activation for op in ops(g, OneDnnConv)] == ["hardswish"]


@pytest.mark.parametrize("activate", [T.nnet.relu, T.tanh, T.nnet.gelu, nn.HardSwish()])
@pytest.mark.parametrize("product", [convolved, lambda x, w, b: T.dot(x, w[:9, 0, 0]) + b[:3]])
def test_a_nan_stays_one(activate: Any, product: Any) -> None:
    """oneDNN's own relu gives 0 for it."""
    x, w, b = T.tensor4("x"), T.tensor4("w"), T.vector("b")
    y = activate(product(x, w, b))
    f, plain = (
        symdnn.function([x, w, b], y, mode=mode)
        for mode in (None, symdnn.Mode().excluding("epilogue"))
    )
    given = drawn()
    given[0][1, 2, 3, 4] = np.nan
    found, wanted = f(*given), plain(*given)
    assert np.isnan(wanted).any()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    if activate is T.nnet.relu:
        assert not np.signbit(found).any()


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
@pytest.mark.parametrize(
    "build",
    [lambda p: T.exp(T.cast(p, "complex64")), lambda p: T.arcsin(T.complex(p, p)), T.angle],
    ids=["exp", "arcsin", "angle"],
)
def test_complex_functions_stay_behind_products(build: Any, target: str) -> None:
    """Fusion computes a complex number as two results; no library has such an epilogue."""
    rng = new_rng()
    values = [rng.normal(size=s).astype("float32") for s in ((5, 7), (7, 6))]
    x, w = T.matrix("x"), T.matrix("w")
    f = symdnn.function([x, w], build(x @ w), mode=symdnn.Mode(target=target))
    if target == "cpu":
        reference = symdnn.function([x, w], build(x @ w), mode=symdnn.Mode(optimizer=None))
        np.testing.assert_allclose(f(*values), reference(*values), rtol=2e-5, atol=2e-5)
