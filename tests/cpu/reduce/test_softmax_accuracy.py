"""Digits of compiled softmaxes and their logarithms, of rows of all lengths."""

import numpy as np
import pytest
import scipy.special as sp

import symdnn
import symdnn.tensor as T

UNIT = 2.0**-24


@pytest.mark.parametrize("shape", [(1, 10), (11, 5), (3, 100), (16, 1000), (2000, 100), (7, 1)])
@pytest.mark.parametrize("scale", [0.1, 1, 3, 10])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("excluded", "units"), [(("onednn",), 8), ((), 40)])
def test_units_of_float32(rng, shape, scale, known, excluded, units):
    """What rounding ``x - max(x)`` explains, and a few units more; oneDNN's needs up to 34.

    A softmax beside its logarithm is the exponential of that, which is rounded first.
    """
    x = T.tensor("float32", shape if known else (None, None))
    a = (rng.normal(size=shape) * scale).astype("float32")
    wide = a.astype("float64")
    down = wide.max(1, keepdims=True) - wide
    mode = symdnn.Mode().excluding(*excluded)
    outputs = [T.nnet.logsoftmax(x), T.nnet.softmax(x)]
    logs, beside = symdnn.function([x], outputs, mode=mode)(a)
    values = symdnn.function([x], outputs[1], mode=mode)(a)
    error = np.abs(logs - sp.log_softmax(wide, 1))
    assert (error <= UNIT * (down + np.abs(logs) + 8)).all(), error.max() / UNIT
    want = sp.softmax(wide, 1)
    for found, bound in ((values, down), (beside, down + np.abs(logs))):
        error = np.abs(found - want) / want
        assert (error <= UNIT * (bound + units)).all(), error.max() / UNIT
