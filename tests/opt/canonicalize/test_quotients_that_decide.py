"""Quotients by a constant that decide a whole number or a truth are those of NumPy, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.ops.elementwise.arithmetic import TrueDiv

#: What reads the quotient: by symdnn and by NumPy.
DECISIONS = {
    "floor": (T.floor, np.floor),
    "ceil": (T.ceil, np.ceil),
    "round": (lambda q: T.round(q + 0.5), lambda q: np.round(q + q.dtype.type(0.5))),
    "cast": (lambda q: q.astype("int32"), lambda q: q.astype("int32")),
    "equal": (lambda q: T.eq(q, 1), lambda q: q == 1),
    "at least": (lambda q: q >= 1, lambda q: q >= 1),
    "rest": (lambda q: q % 1, lambda q: q % 1),
    "clipped": (lambda q: T.floor(T.clip(q, 0, 50)), lambda q: np.floor(np.clip(q, 0, 50))),
    "halves": (lambda q: T.floor(q * 2), lambda q: np.floor(q * 2)),
    "shape": (lambda q: T.floor(q.reshape((2, -1))[:, ::2]),
              lambda q: np.floor(q.reshape((2, -1))[:, ::2])),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", DECISIONS)
@pytest.mark.parametrize("divisor", [49.0, 41.0, 7.0, 0.1])
def test_whole_numbers_and_truths(name, dtype, divisor):
    ours, theirs = DECISIONS[name]
    x, by = T.vector("x", dtype=dtype), np.dtype(dtype).type(divisor)
    data = (np.arange(1, 401) * by).astype(dtype)
    found = symdnn.function([x], ours(x / by))(data)
    np.testing.assert_array_equal(found, theirs(data / by))


def test_other_quotients_are_products():
    x = T.matrix("x")
    for y in (x / 49, T.floor(x / 4), T.nnet.relu(x / 3), T.exp(x / 49) > 0.5):
        f = symdnn.function([x], [y, T.grad(y.sum(), x)] if y.dtype != "bool" else [y])
        assert not any(isinstance(n.op, TrueDiv) for n in f.fgraph.apply_nodes)
