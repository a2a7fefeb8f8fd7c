"""Ops that change the gradient, and checks on the way."""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.autodiff import grad
from symdnn.errors import AssertionFailed, DisconnectedInput, NonDifferentiable
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType
from symdnn.ops.core import gradient_control as G

VALUE = np.array([-2.0, 0.5, 3.0])


def gradient(build, **options):
    x = TensorType("float64", (None,))("x")
    return evaluate([grad((build(x) * x).sum(), x, **options)], {x: VALUE})[0]


def test_disconnected_grad_is_a_constant_for_gradients() -> None:
    np.testing.assert_allclose(gradient(G.disconnected_grad), VALUE)


def test_disconnected_grad_alone_disconnects() -> None:
    x = TensorType("float64", (None,))("x")
    with pytest.raises(DisconnectedInput, match="does not depend on x"):
        grad(G.disconnected_grad(x).sum(), x)
    with pytest.raises(DisconnectedInput, match="nothing that has a gradient depends on x"):
        grad(None, x, known_grads={TensorType("float64", ())("y"): 1.0})


def test_zero_grad_connects_with_zero() -> None:
    x = TensorType("float64", (None,))("x")
    found = evaluate([grad(G.zero_grad(x).sum(), x)], {x: VALUE})[0]
    np.testing.assert_array_equal(found, np.zeros(3))


def test_undefined_grad_raises_when_asked() -> None:
    with pytest.raises(NonDifferentiable, match="declared undefined"):
        gradient(G.undefined_grad)


def test_grad_clip_clips_what_flows_back() -> None:
    np.testing.assert_allclose(
        gradient(lambda x: G.grad_clip(x, -1, 1)), np.clip(VALUE, -1, 1) + VALUE
    )


def test_grad_scale_can_reverse() -> None:
    np.testing.assert_allclose(gradient(lambda x: G.grad_scale(x, -1)), np.zeros(3))


def test_grad_clip_refuses_crossed_bounds() -> None:
    with pytest.raises(ValueError, match="lower_bound 1 is above 0"):
        G.grad_clip(TensorType("float64", ())("x"), 1, 0)


def test_assert_names_its_message_and_the_users_line() -> None:
    x = TensorType("float64", (None,))("x")
    y = G.assert_(x, x > 0, message="x must be positive")
    with pytest.raises(AssertionFailed, match="x must be positive") as caught:
        evaluate([y], {x: VALUE})
    assert "test_gradient_control.py" in "".join(caught.value.__notes__)


def test_print_prints_attributes(capsys: pytest.CaptureFixture[str]) -> None:
    x = TensorType("float64", (None,))("x")
    evaluate([G.Print("x is", attrs=["shape", "__str__"])(x)], {x: VALUE})
    assert capsys.readouterr().out == "x is shape = (3,)\nx is __str__ = [-2.   0.5  3. ]\n"
