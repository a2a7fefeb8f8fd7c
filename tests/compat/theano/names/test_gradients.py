"""``theano.gradient`` where symdnn's own functions mean something else."""

from __future__ import annotations

import numpy as np
import pytest


def test_a_known_gradient_is_the_whole_gradient(theano, T):
    """What the cost itself adds to it is not added, as in Theano."""
    x = T.dvector("x")
    y = x * 3
    cost = (y**2).sum() + x.sum()
    points = np.array([1.0, 2.0])
    both = T.grad(cost, [x, y], known_grads={y: y * 0 + 10})
    for found, wanted in zip(theano.function([x], both)(points), ([31.0, 31.0], [10.0, 10.0])):
        np.testing.assert_allclose(found, wanted)
    itself = T.grad(cost, x, known_grads={x: x * 5})
    np.testing.assert_allclose(theano.function([x], itself)(points), [5.0, 10.0])


def test_known_gradients_of_which_one_reads_another(theano, T):
    x = T.dscalar("x")
    y = x * 2
    z = y * y
    known = {y: T.constant(7.0), z: T.constant(100.0)}
    assert theano.function([x], T.grad(None, x, known_grads=known))(3.0) == 14
    apart = {z: T.constant(100.0)}
    assert theano.function([x], T.grad(None, x, known_grads=apart))(3.0) == 100 * 12 * 2
    other = T.dscalar("other")
    with pytest.raises(theano.gradient.DisconnectedInputError):
        T.grad(None, other, known_grads=known)
    zero = T.grad(None, other, known_grads=known, disconnected_inputs="ignore")
    assert theano.function([other, x], zero, on_unused_input="ignore")(1.0, 1.0) == 0


@pytest.mark.parametrize("made", ["undefined", "not_implemented"])
def test_null_gradients_are_returned(theano, T, made):
    class Sorted(theano.Op):
        __props__ = ()

        def make_node(self, x):
            return theano.Apply(self, [x], [x.type()])

        def perform(self, node, inputs, outputs):
            outputs[0][0] = np.sort(inputs[0])

        def grad(self, inputs, grads):
            return [getattr(theano.gradient, f"grad_{made}")(self, 0, inputs[0], "no reason")]

    x, y = T.dvectors("x", "y")
    cost = (Sorted()(x) * y).sum()
    with pytest.raises(theano.gradient.NullTypeGradError, match="no reason"):
        T.grad(cost, x)
    null, plain = T.grad(cost, [x, y], null_gradients="return")
    assert isinstance(null.type, theano.gof.null_type.NullType)
    assert "no reason" in null.type.why_null
    found = theano.function([x, y], plain)([2.0, 1.0], [0.0, 0.0])
    np.testing.assert_array_equal(found, [1.0, 2.0])
    with pytest.raises(TypeError, match="scalar"):
        T.grad(x, x, null_gradients="return")
    with pytest.raises(ValueError, match="null_gradients"):
        T.grad(cost, y, null_gradients="maybe")
