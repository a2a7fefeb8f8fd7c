"""Constants far from 1 are gathered only where nothing overflows or vanishes by it."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.graph.evaluate import evaluate

#: Programs of two constants and two values; in float32 each of their steps is a normal number.
PROGRAMS = {
    "gravity": lambda c, d, x, y: (c * x) * y,
    "ratio": lambda c, d, x, y: (c * x) / (d * y),
    "product": lambda c, d, x, y: (x * c) * d,
    "product of a quotient": lambda c, d, x, y: (c / x) * d,
    "quotients": lambda c, d, x, y: (x / c) / d,
    "quotient of a product": lambda c, d, x, y: c / (x * d),
    "quotient of a quotient": lambda c, d, x, y: c / (d / x),
    "terms": lambda c, d, x, y: (c + x) + d,
    "multiples": lambda c, d, x, y: c * x + d * x,
    "square": lambda c, d, x, y: (c * x) ** 2,
    "cube": lambda c, d, x, y: (x / c) ** 3,
    "sum": lambda c, d, x, y: (c * x).sum() * d,
    "mean": lambda c, d, x, y: (x / c).mean(),
    "one element": lambda c, d, x, y: c * (d * (y[:1].reshape((1, 1)) * x)),
    "scalar": lambda c, d, x, y: c * (y[0] * x),
    "signs": lambda c, d, x, y: -((c * x) * -y) / d,
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_finite_on_the_way_stays_finite(name, dtype, rng):
    program, kind = PROGRAMS[name], np.dtype(dtype).type
    span = 36 if dtype == "float32" else 300
    limits, tried = np.finfo(dtype), 0
    while tried < 12:
        sizes = 10.0 ** rng.uniform(-span, span, 4)
        c, d = sizes[:2].astype(dtype)
        x, y = (kind(s) * rng.uniform(1, 2, 4).astype(dtype) for s in sizes[2:])
        if not _ordinary(program, (c, d, x, y), limits):
            continue
        tried += 1
        with np.errstate(all="ignore"):
            wanted = program(c, d, x, y)
        u, v = T.vector("u", dtype=dtype), T.vector("v", dtype=dtype)
        f = symdnn.function([u, v], program(c, d, u, v), on_unused_input="ignore")
        np.testing.assert_allclose(f(x, y), wanted, 1e-5 if dtype == "float32" else 1e-13)


class _Watched(np.ndarray):
    """An array whose class notes the size of each result."""

    sizes: list = []

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        plain = [i.view(np.ndarray) if isinstance(i, _Watched) else i for i in inputs]
        made = np.asarray(getattr(ufunc, method)(*plain, **kwargs))
        self.sizes.append(np.abs(made))
        return made.view(_Watched)


def _ordinary(program, values, limits):
    """Whether each step of the program by NumPy has a normal number, far from both limits: by
    two constants of 24 bits, which rules leave out on the way."""
    _Watched.sizes = []
    with np.errstate(all="ignore"):
        program(*(np.asarray(v).view(_Watched) for v in values))
    return all(
        np.all((s > 2.0**49 * limits.smallest_normal) & (s < 2.0**-49 * limits.max))
        for s in _Watched.sizes
    )


def test_constants_of_usual_size_are_gathered():
    x = T.vector("x")
    for made in (2.5 * (1e-9 * x), 3.0 * (x / 7e4), 1e-7 * (x * 1e4) * 2):
        f = symdnn.function([x], made, mode="FAST_COMPILE")
        assert len(f.fgraph.apply_nodes) == 1


_X, _V, _W = T.dmatrix("x"), T.dvector("v"), T.dvector("w")
_HUBER = T.switch(abs(_X + _V) < 1, 0.5 * (_X + _V) ** 2, abs(_X + _V) - 0.5)

#: Programs that divide by a number of rows and add up what is divided.
MEANS = {
    "bias of a mean": T.grad((_X + _V).mean(), _V),
    "bias of a mean of squares": T.grad(((_X + _V) ** 2).mean(), _V),
    "bias of rows": T.grad(((_X + _V) ** 2).sum(1).mean(), _V),
    "weights": T.grad((_X @ _V - _W).mean(), _V),
    "one bias": T.grad((_X + _V[0]).mean(), _V),
    "factor": T.grad(((_X * _V) ** 2).mean(), _V),
    "robust": T.grad(_HUBER.mean(), _V),
    "labels": T.grad(T.logsumexp(_X + _V, axis=1).mean(), _V),
    "mean of means": (_X / _X.shape[0]).sum(0),
    "multiple": (_X * (1 / _X.shape[0])).sum(),
    "second": T.grad((T.grad(((_X + _V) ** 2).mean(), _V) ** 2).sum(), _V),
}


@pytest.mark.parametrize("rows", [0, 1, 4])
@pytest.mark.parametrize("name", MEANS)
def test_quotients_by_no_elements_that_are_added_up_are_0(name, rows, rng):
    out, values = MEANS[name], [rng.standard_normal(s) for s in ((rows, 3), 3, rows)]
    f = symdnn.function([_X, _V, _W], out, on_unused_input="ignore")
    expected = evaluate([out], dict(zip([_X, _V, _W], values)))[0]
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(f(*values), expected, 1e-12, 1e-12)
