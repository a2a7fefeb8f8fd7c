"""``T.slinalg`` and ``T.nlinalg``: Theano's names, classes and conventions."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

import symdnn
import symdnn.tensor as T
from symdnn import Mode
from symdnn.errors import OptionError
from symdnn.tensor import nlinalg, slinalg

A, B, V = T.dmatrix("A"), T.dmatrix("B"), T.dvector("V")


def value(build, *arrays):
    found = build(*(A, B)[: len(arrays)])
    many = isinstance(found, list | tuple)
    f = symdnn.function([A, B][: len(arrays)], list(found) if many else found,
                        mode=Mode(target="cpu"))  # fmt: skip
    return f(*arrays)


@pytest.fixture
def a(rng):
    return rng.standard_normal((4, 4)) + np.diag(np.arange(1.0, 5))


@pytest.fixture
def p(a):
    return a @ a.T + np.eye(4)


def test_classes_are_made_and_asked_for_as_in_theano(a, p):
    cases = [
        (slinalg.Cholesky(lower=True, on_error="raise"), slinalg.Cholesky, (p,)),
        (slinalg.Solve(A_structure="symmetric", lower=False), slinalg.Solve, (p, a)),
        (slinalg.Solve(), slinalg.Solve, (a, p)),
        (slinalg.Expm(), slinalg.Expm, (a / 9,)),
        (slinalg.Eigvalsh(lower=True), slinalg.Eigvalsh, (p,)),
        (nlinalg.MatrixInverse(), nlinalg.MatrixInverse, (a,)),
        (nlinalg.MatrixPinv(), nlinalg.MatrixPinv, (a,)),
        (nlinalg.Det(), nlinalg.Det, (a,)),
        (nlinalg.ExtractDiag(), nlinalg.ExtractDiag, (a,)),
    ]
    wanted = [
        np.linalg.cholesky(p), np.linalg.solve(p, a), np.linalg.solve(a, p),
        scipy.linalg.expm(a / 9), np.linalg.eigvalsh(p), np.linalg.inv(a), np.linalg.pinv(a),
        np.linalg.det(a), np.diag(a),
    ]  # fmt: skip
    for (op, kind, arrays), want in zip(cases, wanted, strict=True):
        made = op(*(A, B)[: len(arrays)])
        assert isinstance(made.owner.op, kind), kind
        np.testing.assert_allclose(value(op, *arrays), want, rtol=1e-7, atol=1e-9)
    assert not isinstance(T.exp(A).owner.op, slinalg.Solve)


def test_ops_of_several_results(a, p):
    w, v = value(nlinalg.Eigh(UPLO="L"), p)
    np.testing.assert_allclose(v @ np.diag(w) @ v.T, p, atol=1e-9)
    w, v = value(nlinalg.eig, p)
    assert w.dtype == "float64"
    np.testing.assert_allclose(p @ v, v * w, atol=1e-9)
    w, v = value(nlinalg.Eig(), p)
    np.testing.assert_allclose(sorted(w), np.linalg.eigvalsh(p), rtol=1e-9)
    u, s, vh = value(nlinalg.SVD(full_matrices=True, compute_uv=True), a)
    np.testing.assert_allclose(u @ np.diag(s) @ vh, a, atol=1e-9)
    np.testing.assert_allclose(value(lambda x: nlinalg.svd(x, 1, 0), a), s, rtol=1e-9)
    for build in (nlinalg.qr, nlinalg.QRFull("reduced"), lambda x: nlinalg.qr(x, "full")):
        q, r = value(build, a)
        np.testing.assert_allclose(q @ r, a, atol=1e-9)
    np.testing.assert_allclose(value(nlinalg.QRIncomplete("r"), a), r, atol=1e-9)
    x, residuals, rank, s = value(lambda m, b: nlinalg.lstsq()(m, b, -1), a, p)
    np.testing.assert_allclose(x, np.linalg.solve(a, p), rtol=1e-7)
    assert (rank, residuals.shape, s.shape) == (4, (4,), (4,))


def test_functions(a, p):
    low, up = slinalg.solve_lower_triangular, slinalg.solve_upper_triangular
    np.testing.assert_allclose(value(low, a, p), np.linalg.solve(np.tril(a), p), rtol=1e-7)
    np.testing.assert_allclose(value(up, a, p), np.linalg.solve(np.triu(a), p), rtol=1e-7)
    found = value(slinalg.eigvalsh, a + a.T, p)
    np.testing.assert_allclose(found, scipy.linalg.eigvalsh(a + a.T, p), rtol=1e-7)
    found = value(lambda m: slinalg.eigvalsh(m, None, lower=False), a)
    np.testing.assert_allclose(found, np.linalg.eigvalsh(a, "U"), rtol=1e-7)
    np.testing.assert_allclose(value(nlinalg.matrix_inverse, a), np.linalg.inv(a), rtol=1e-7)
    np.testing.assert_allclose(value(nlinalg.trace, a), np.trace(a))
    np.testing.assert_allclose(value(nlinalg.TensorInv(1), a), np.linalg.inv(a), rtol=1e-7)
    for word, order in (("inf", np.inf), ("-inf", -np.inf), ("fro", "fro"), (1, 1), (None, None)):
        found = value(lambda m, w=word: nlinalg.norm(m, w), a)
        np.testing.assert_allclose(found, np.linalg.norm(a, order))
    np.testing.assert_allclose(value(lambda m: nlinalg.matrix_power(m, 3), a), a @ a @ a)


def test_the_solution_of_a_vector_is_a_vector(a):
    f = symdnn.function([A, V], slinalg.Solve()(A, V), mode=Mode(target="cpu"))
    np.testing.assert_allclose(f(a, a[0]), np.linalg.solve(a, a[0]), rtol=1e-7)


def test_a_structure_that_theano_does_not_have_is_refused():
    with pytest.raises(OptionError, match="A_structure is one of general"):
        slinalg.Solve(A_structure="banded")
