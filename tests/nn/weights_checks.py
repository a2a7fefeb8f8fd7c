"""Helpers for tests of other programs' weights: values to store, and a network's output."""

import numpy as np

import symdnn
import symdnn.tensor as T


def drawing(seed):
    """A function of a shape: normal values of its own stream, in float32."""
    rng = np.random.default_rng(seed)
    return lambda *shape: rng.normal(size=shape).astype("float32") / 2


def output(net, value):
    """The output of a network in evaluation."""
    x = T.TensorType(value.dtype.name, (None,) * value.ndim)("x")
    return symdnn.function([x], net.evaluate()(x))(value)


def close(got, wanted):
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
