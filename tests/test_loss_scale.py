"""Scaling of the loss: exact where nothing overflows, steps left out where something does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.program.capabilities import all_capabilities
from symdnn.config import config
from symdnn.errors import TypeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.opt.optimise import optimise
from tests.opt.lowering import ALL, GPU


def model() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    x = T.fmatrix("x")
    w = symdnn.shared(rng.standard_normal((4, 3)).astype("float32"), name="w")
    return x, w, T.sqr(T.tanh(T.dot(x, w))).mean()


def step(scale: symdnn.LossScale) -> tuple[Any, Any]:
    x, w, loss = model()
    (g,) = scale.grad(loss, [w])
    updates = scale.updates([(w, w - np.float32(0.5) * g)], [g])
    return symdnn.function([x], [loss, g], updates=updates), w


IMAGES = np.random.default_rng(1).standard_normal((5, 4)).astype("float32")


def test_a_power_of_two_changes_no_bit() -> None:
    x, w, loss = model()
    want = symdnn.function([x], T.grad(loss, w))(IMAGES)
    for start in (1.0, 2.0**10, 2.0**20):
        f, v = step(symdnn.LossScale(start))
        before = v.get_value()
        _, got = f(IMAGES)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(v.get_value(), before - np.float32(0.5) * want)


def test_a_step_with_an_infinity_is_left_out() -> None:
    scale = symdnn.LossScale(2.0**12)
    f, w = step(scale)
    before = w.get_value()
    for bad in (np.inf, np.nan):
        f(np.where(IMAGES.max() == IMAGES, np.float32(bad), IMAGES))
    np.testing.assert_array_equal(w.get_value(), before)
    assert scale.value.get_value() == 2.0**10
    f(IMAGES)
    assert scale.value.get_value() == 2.0**10
    assert (w.get_value() != before).any()


def test_it_grows_after_good_steps_only() -> None:
    scale = symdnn.LossScale(8, interval=3)
    f, _ = step(scale)
    bad = np.full_like(IMAGES, np.inf)
    found = []
    for value in (IMAGES, IMAGES, bad, IMAGES, IMAGES, IMAGES, IMAGES):
        f(value)
        found.append(float(scale.value.get_value()))
    assert found == [8, 8, 4, 4, 4, 8, 8]


def test_it_has_a_least_and_a_largest_value() -> None:
    scale = symdnn.LossScale(2.0**24, interval=1)
    f, _ = step(scale)
    f(IMAGES)
    assert scale.value.get_value() == 2.0**24
    small = symdnn.LossScale(1)
    g, _ = step(small)
    g(np.full_like(IMAGES, np.nan))
    assert small.value.get_value() == 1


def test_the_flag_and_fixed_factors() -> None:
    assert symdnn.LossScale().value.get_value() == 2.0**15
    with config.change_flags(amp_loss_scale=64):
        by_flag, own = symdnn.LossScale(), symdnn.LossScale(4)
    assert (by_flag.fixed, own.fixed) == (True, False)
    f, w = step(by_flag)
    before = w.get_value()
    f(np.full_like(IMAGES, np.inf))
    assert by_flag.value.get_value() == 64
    np.testing.assert_array_equal(w.get_value(), before)
    assert symdnn.LossScale(2, fixed=True).fixed


@pytest.mark.parametrize(
    "words", [{"initial": 0}, {"growth": 0.5}, {"backoff": 2}, {"backoff": 0}, {"interval": 0}]
)
def test_what_is_refused(words: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="wanted initial > 0"):
        symdnn.LossScale(**words)


def test_only_a_scalar_is_a_loss() -> None:
    x, w, _ = model()
    with pytest.raises(TypeMismatch, match="a scalar loss"):
        symdnn.LossScale().grad(T.dot(x, w), w)
    with pytest.raises(ValueError, match="at least one gradient"):
        symdnn.LossScale().finite([])


def in_float16(outputs: list[Any], x: Any) -> list[Any]:
    """Values as a GPU's program in float16 computes them."""
    with config.change_flags(amp="fp16"):
        fgraph = FunctionGraph([x], outputs)
        optimise(fgraph, GPU, ALL, all_capabilities())
    return evaluate(fgraph.outputs, {fgraph.inputs[0]: IMAGES})


LOSSES = {
    "squares": lambda y: T.sqr(y).sum(),
    "mean of squares": lambda y: T.sqr(y).mean() * 3,
    "entropy": lambda y: T.nnet.categorical_crossentropy(
        T.nnet.softmax(y), np.array([0, 1, 2, 0, 1], "int32")).mean(),
    "of hyperbolic tangents": lambda y: T.tanh(y).sum() / 7,
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_small_gradients_survive_float16(name: str) -> None:
    """Also after every rewrite: the factor is not cancelled before it has done its work."""
    x = T.fmatrix("x")
    rng = np.random.default_rng(0)
    w, v = (symdnn.shared(rng.standard_normal(s).astype("float32")) for s in ((4, 6), (6, 3)))
    loss = LOSSES[name](T.dot(T.tanh(T.dot(x, w)), v)) * np.float32(1e-9)
    want = evaluate(T.grad(loss, [w, v]), {x: IMAGES})
    scaled = in_float16(symdnn.LossScale(2.0**24).grad(loss, [w, v]), x)
    for a, b in zip(scaled, want, strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, atol=3e-2 * np.abs(b).max())
    plain = in_float16(T.grad(loss, [w, v]), x)
    assert any(np.abs(a - b).max() > 0.3 * np.abs(b).max() for a, b in zip(plain, want))
