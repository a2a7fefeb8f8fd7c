"""Ops that move elements, and those of small matrices, in loops that are one compiled function."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.cpu.execution import whole_loop
from symdnn.cpu.steps.steps_ir import is_across
from symdnn.errors import IndexOutOfRange
from symdnn.ops.steps.statements import Folding
from tests.cpu.steps.test_whole_loops import agree, both, ran

__all__ = ["ran"]
L = T.linalg
PLACES, ROWS = np.array([2, 0, 2, -1]), np.array([[1, 0], [3, 3]])


def near_identity(v):
    """A matrix that needs exchanges of rows, and is far from singular."""
    return v + np.eye(4)[[2, 0, 3, 1]] * 3


def definite(v):
    return v @ v.mT + np.eye(4)


#: Steps of a loop that carries a matrix of 4 rows and columns.
STEPS = {
    "roll": lambda i, v: T.roll(v, 1, 0) + 0.5 * T.roll(v, -3, 1) - T.roll(v, (1, 2), (0, 1)) / 4,
    "pad": lambda i, v: T.pad(v[1:3, 1:-1], ((1, 1), (0, 2)), constant_values=0.5) - v / 2,
    "diagonal": lambda i, v: T.diag(T.tanh(T.diag(v))) + T.diag(v[0, :3], 1) + T.diag(v[1, 1:], -1),
    "gather": lambda i, v: T.tanh(v[PLACES] + v[:, PLACES] * 0.5),
    "gather of two": lambda i, v: T.tanh(v[PLACES, ROWS[:, :1]].sum(0) + v),
    "gather of places": lambda i, v: T.tanh(v[T.argmax(v, axis=1)] + v),
    "scatter": lambda i, v: T.tanh(v.at[PLACES].add(0.1 * v[:4] + i)),
    "scatter of two": lambda i, v: T.tanh(v.at[ROWS, ROWS.T].add(v[:2, 1:3]).at[:, PLACES].set(v)),
    "contractions": lambda i, v: T.tanh(
        T.einsum("kn,kni,knj->kij", v, v[..., None], T.stack([v, v], 2)).sum((1, 2)) + v
    ),
    "searchsorted": lambda i, v: T.tanh(
        v * T.searchsorted(T.cumsum(abs(v[0])), v, side="right")
        - T.searchsorted(T.cumsum(abs(v[1])), v)
    ),
    "sort": lambda i, v: T.tanh(T.sort(v, 0) + T.sort(T.round(v), 1) * 0.5 + i),
    "argsort": lambda i, v: T.tanh(v + T.argsort(v, 0) - 0.5 * T.argsort(T.round(2 * v), 1)),
    "top-k": lambda i, v: T.tanh(v - T.topk(v, 2, 1).sum() + T.argtopk(T.round(v), -3, 0)[:1]),
    "sort of NaN": lambda i, v: T.nan_to_num(T.sort(T.log(v), 1), nan=-1.0) + T.sort(v, 0)[::-1],
    "cholesky": lambda i, v: T.tanh(L.cholesky(definite(v)) + L.cholesky(definite(v.T), False)),
    "solve": lambda i, v: T.tanh(L.solve(near_identity(v), v.T)),
    "solve of a definite one": lambda i, v: T.tanh(L.solve(definite(v), v[:, :2], "pos") @ v[:2]),
    "solve of a symmetric one": lambda i, v: T.tanh(
        L.solve(near_identity(v), v, "sym") + L.solve(near_identity(v), v, "sym", lower=True)
    ),
    "triangular": lambda i, v: T.tanh(
        L.solve_triangular(near_identity(v) + 2 * np.eye(4), v, lower=True)
        + L.solve_triangular(v.T * 0.3, v, "T", unit_diagonal=True)
    ),
    "inverse": lambda i, v: T.tanh(L.inv(near_identity(v))),
    "a stack": lambda i, v: T.tanh(L.inv(T.stack([near_identity(v), definite(v)])).sum(0)),
    "determinants": lambda i, v: T.tanh(
        v * L.det(near_identity(v)) / 80 + L.slogdet(near_identity(-v))[1] * 0.1
        + L.slogdet(near_identity(v))[0]
    ),
}  # fmt: skip
#: Those whose gradients are loops of other rules.
WITH_GRADIENTS = {"roll", "pad", "diagonal", "gather", "scatter of two", "triangular"}


@pytest.mark.parametrize("name", STEPS)
def test_values_and_gradients_are_those_of_single_steps(name, rng, ran):
    start, step = rng.normal(size=(4, 4)), STEPS[name]

    def make():
        def last(v):
            return control.fori_loop(0, 6, lambda i, v: step(i * 0.1, v), v)

        grad = symdnn.grad(lambda v: (last(v) * np.arange(16).reshape(4, 4)).sum())
        return lambda v: (last(v), grad(v) if name in WITH_GRADIENTS else 0.0)

    agree(make, start, tolerance=1e-8)
    assert ran["fori_loop"], ran
    assert not any("refused" in k for k in ran), ran


def test_factors_are_those_of_lapack(rng, ran):
    """Pivots and signs are the same, also of singular matrices and at ties."""
    singular = np.ones((3, 4, 4))
    singular[1] = np.tril(np.ones((4, 4)), -1)
    singular[2, 0, 0] = 0

    def make():
        def step(k, a):
            found = [*L.lu_factor(a), *L.slogdet(a), L.det(a)]
            return k + 1, found

        return lambda a: control.scan(step, 0, a)[1]

    agree(make, np.concatenate([rng.normal(size=(4, 4, 4)), singular]))
    assert ran["scan"], ran


@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
@pytest.mark.parametrize("shape", [(4, 4), (6, 3), (3, 5), (1, 4), (5, 1), (2, 5, 4)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_orthonormal_columns_are_those_of_lapack(mode, shape, dtype, rng, ran):
    """Signs, too, also of columns that are zero, or that need no reflection."""
    given = rng.normal(size=(4, *shape)).astype(dtype)
    given[1] = np.triu(given[1])
    given[2, ..., 0] = 0
    given[3] = -np.abs(given[3])

    def make():
        def step(k, a):
            found = T.linalg.qr(a, mode=mode)
            return k + 1, found

        return lambda a: control.scan(step, 0, a)[1]

    agree(make, given, tolerance=1e-11 if dtype == "float64" else 1e-4)
    assert ran["scan"], ran


@pytest.mark.parametrize(
    ("step", "start"),
    [
        (lambda v: L.inv(v), np.ones((2, 2))),
        (lambda v: L.cholesky(v - 1), np.eye(2)),
        (lambda v: L.solve(v, v), np.zeros((2, 2))),
    ],
)
def test_matrices_without_a_result_are_errors(step, start, ran):
    with pytest.raises(L.LinAlgError, match="matri"):
        both(lambda: lambda v: control.fori_loop(0, 3, lambda i, w: step(w), v), start)
    quiet = symdnn.jit(lambda v: control.fori_loop(0, 2, lambda i, w: L.inv(w, check=False), v))
    assert np.isnan(quiet(np.ones((2, 2)))).all()


def test_places_out_of_range_are_errors(ran):
    def make():
        def step(i, v):
            return v.at[T.stack([i, i + 3])].add(1.0)

        return lambda v: control.fori_loop(0, 3, step, v)

    with pytest.raises(IndexOutOfRange):
        both(make, np.zeros(4))


FOLDS = {
    "sum": lambda v, a: v.sum(axis=a),
    "max": lambda v, a: v.max(axis=a),
    "prod": lambda v, a: (v * 0.1 + 1).prod(axis=a),
    "logsumexp": lambda v, a: T.logsumexp(v, axis=a),
    "argmin": lambda v, a: T.cast(T.argmin(v, axis=a), v.type.dtype),
    "any": lambda v, a: T.cast(T.any(v > 1, axis=a), v.type.dtype),
    "several": lambda v, a: v.sum(axis=a) * T.min(v, axis=a) + FOLDS["argmin"](v, a),
}


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_folds_whose_results_are_neighbours(name, dtype, ran, monkeypatch):
    """Rows shorter than a vector, of a vector and a rest, longer than what is kept at once."""
    taken = []
    known = whole_loop.lowered_loop

    def lowered(*args):
        program, code = known(*args)
        taken.extend(is_across(s) for s in program.statements() if isinstance(s, Folding))
        return program, code

    monkeypatch.setattr(whole_loop, "lowered_loop", lowered)
    rng = np.random.default_rng(0)
    for shape, axis in (((5, 3), 0), ((4, 21), 0), ((3, 2, 19), (0, 1)), ((2, 5, 16), 1),
                        ((3, 1100), 0), ((2, 3, 4, 5), (0, 2)), ((1, 7), 0)):  # fmt: skip
        x = rng.normal(size=(8, *shape)).astype(dtype)
        kept = [n for d, n in enumerate(shape) if d not in np.atleast_1d(axis)]

        def make(axis=axis, kept=kept):
            def loop(xs):
                def step(c, v):
                    wide = v + T.expand_dims(c, axis)
                    new = T.tanh(FOLDS[name](wide, axis))
                    return new, new

                return control.scan(step, T.zeros(kept, dtype), xs)

            return loop

        agree(make, x, tolerance=1e-11 if dtype == "float64" else 3e-4)
    assert ran["scan"] == 7
    assert True in taken
    assert False in taken


def turned(rng, *shape):
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


COMPLEX = {
    "recurrence": lambda c, v: c * v * 0.3 + T.conj(v),
    "quotient": lambda c, v: c / (v + 3) - v / (c * T.conj(c) + 1),
    "parts": lambda c, v: T.complex(T.real(c) * 0.5, T.imag(v)) + T.abs(c) * 1j,
    "square": lambda c, v: T.sqr(c) / (1 + T.abs(c) ** 2) - v,
    "exp": lambda c, v: T.exp(-T.abs(c) * 0.1 + v * 1j) - c / 4,
    "choice": lambda c, v: T.switch(T.real(v) > 0, -c / 2, v),
    "sum": lambda c, v: c - c.sum(axis=0, keepdims=True) / 5 + v,
    "place": lambda c, v: T.inc_subtensor(T.set_subtensor((c / 2)[0], v[1])[1:], v[:-1]),
    "taken": lambda c, v: T.inc_subtensor((c / 2)[np.array([0, 2, 0])], v[:3]),
    "cast": lambda c, v: T.cast(T.cast(c, "complex64"), "complex128") * 0.5 + T.real(v),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers(name, ran):
    rng = np.random.default_rng(0)

    def loop(c, vs):
        def step(c, v):
            new = COMPLEX[name](c, v)
            return new, (new, T.abs(new))

        return control.scan(step, c, vs)

    agree(lambda: loop, turned(rng, 5, 3), turned(rng, 9, 5, 3), tolerance=1e-7)
    assert ran["scan"] == 1, ran


def test_gradients_of_complex_loops(ran):
    rng = np.random.default_rng(0)

    def loss(x):
        def step(c, v):
            new = c * T.exp(1j * v) / (2 + c * T.conj(c)) + v
            return new, None

        return (T.abs(control.scan(step, x[0] * (1 + 1j), x)[0]) ** 2).sum()

    agree(lambda: symdnn.grad(loss), rng.normal(size=(20, 6)))
    assert ran["grad_of_scan"], ran


def test_odd_complex_numbers(ran):
    """Infinities, zeros and numbers whose squares overflow are NumPy's."""
    odd = np.array([0, 1, -2.5, 1e200, 3e-200, np.inf, -np.inf, np.nan])
    x = np.empty(64, "complex128")
    x.real, x.imag = np.repeat(odd, 8), np.tile(odd, 8)

    def loop(x):
        def step(c, v):
            return c, (T.abs(x), x / v, -x, T.conj(x) + v)

        return control.scan(step, 0.0, x)[1]

    with np.errstate(all="ignore"):
        agree(lambda: loop, x)
