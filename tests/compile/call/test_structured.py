"""Sparse matrices as inputs, outputs, updates and givens of functions."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp

import symdnn
import symdnn.sparse as S
import symdnn.tensor as T
from symdnn.errors import InputError, TypeMismatch, UnusedInputError

RNG = np.random.default_rng(1)
A = sp.random_array((4, 6), density=0.5, format="csr", dtype="float32", rng=RNG)
X = RNG.standard_normal((6, 2)).astype("float32")


def product():
    a, x = S.csr_array("a"), T.fmatrix("x")
    return symdnn.function([a, x], {"y": S.dot(a, x), "twice": a * 2.0})


def test_arguments_by_position_and_name_in_any_format():
    f = product()
    for given in (A, A.tocsc(), A.tocoo(), sp.csr_matrix(A), sp.lil_array(A)):
        for found in (f(given, X), f(a=given, x=X), f(given, x=X), f(x=X, a=given)):
            np.testing.assert_allclose(found["y"], A @ X, rtol=1e-6)
            assert isinstance(found["twice"], sp.csr_array)
            np.testing.assert_allclose(found["twice"].toarray(), 2 * A.toarray())


def test_elements_that_are_given_twice_are_added_up():
    a = S.coo_array("a")
    f = symdnn.function([a], [S.structured_exp(a), a])
    twice = sp.coo_array((np.float32([1, 2, 3]), ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    found, same = f(twice)
    np.testing.assert_allclose(found.toarray(), [[0, np.exp(3)], [np.exp(3), 0]], rtol=1e-6)
    assert isinstance(same, sp.coo_array)
    assert twice.nnz == 3, "the user's array was changed"


def test_results_are_what_users_gave():
    for make, kind in (
        (S.csr_matrix, sp.csr_matrix), (S.csc_matrix, sp.csc_matrix), (S.csr_array, sp.csr_array),
        (S.csc_array, sp.csc_array), (S.coo_matrix, sp.coo_matrix),
    ):  # fmt: skip
        a = make()
        out = symdnn.function([a], a.astype("float64"))(A)
        assert type(out) is kind
        assert out.dtype == "float64"
    a = S.csr_matrix()
    assert isinstance(symdnn.function([a], a.T)(A), sp.csc_matrix)


def test_wrong_arguments_are_named():
    f = product()
    with pytest.raises(InputError, match=r"input 0 \(a\): wanted a sparse array"):
        f(A.toarray(), X)
    with pytest.raises(InputError, match="several values"):
        f(A, X, a=A)
    with pytest.raises(InputError, match="a.data"):
        f(A.astype("float64"), X)
    with pytest.raises(InputError, match="no value"):
        f(x=X)
    fixed = S.csr_array("b", shape=(4, 5))
    with pytest.raises(InputError, match=r"wanted a sparse array of shape \(4, 5\), got \(4, 6\)"):
        symdnn.function([fixed], fixed.sum())(A)


def test_an_input_is_unused_if_none_of_its_parts_is_used():
    a, x = S.csr_array("a"), T.fmatrix("x")
    symdnn.function([a], a.data.sum())
    with pytest.raises(UnusedInputError, match="a.data"):
        symdnn.function([a, x], x)
    symdnn.function([a, x], x, on_unused_input="ignore")(A, X)


def test_a_shared_matrix_is_read_updated_and_set():
    w, x = symdnn.shared(A, "w"), T.fmatrix("x")
    assert isinstance(w, S.SharedSparse)
    cost = (S.dot(x, w) ** 2).sum()
    slope = symdnn.grad(cost, w)
    f = symdnn.function([x], cost, updates=[(w, w - slope * 0.01)])
    data = RNG.standard_normal((3, 4)).astype("float32")
    costs = [float(f(data)) for _ in range(5)]
    assert costs == sorted(costs, reverse=True)
    assert w.get_value().nnz == A.nnz
    assert isinstance(w.get_value(), sp.csr_array)
    w.set_value(A)
    np.testing.assert_allclose(f(data), costs[0], rtol=1e-6)
    fewer = A.copy()
    fewer.data[:3] = 0
    fewer.eliminate_zeros()
    w.set_value(fewer)
    np.testing.assert_allclose(f(data), ((data @ fewer) ** 2).sum(), rtol=1e-5)
    with pytest.raises(InputError, match=r"wanted a sparse array of shape \(4, 6\)"):
        w.set_value(A.T)


def test_an_update_may_change_the_places():
    w, b = S.shared(A, "w"), S.csr_array("b")
    symdnn.function([b], updates={w: S.remove0(S.in_format(w + b, "csr"))})
    b = S.csr_array("b", shape=(4, 6))
    f = symdnn.function([b], w.sum(), updates={w: w + b})
    other = sp.random_array((4, 6), density=0.3, format="csr", dtype="float32", rng=RNG)
    f(other)
    np.testing.assert_allclose(w.get_value().toarray(), (A + other).toarray())
    with pytest.raises(TypeMismatch, match="csr"):
        symdnn.function([], updates={w: T.fmatrix()})
    with pytest.raises(TypeMismatch, match="csc"):
        symdnn.function([], updates={w: w.T})


def test_givens_replace_all_parts():
    a, x = S.csr_array("a", shape=(4, 6)), T.fmatrix("x")
    y = S.dot(a, x)
    w = symdnn.shared(A)
    f = symdnn.function([x], y, givens={a: w})
    np.testing.assert_allclose(f(X), A @ X, rtol=1e-6)
    g = symdnn.function([x], y, givens=[(a, A * 2.0)])
    np.testing.assert_allclose(g(X), 2 * (A @ X), rtol=1e-6)


def test_copies_and_pickles_take_sparse_arguments():
    f = product()
    for other in (pickle.loads(pickle.dumps(f)), f.copy(), copy.deepcopy(f)):
        found = other(A, x=X)
        np.testing.assert_allclose(found["y"], A @ X, rtol=1e-6)
        np.testing.assert_allclose(found["twice"].toarray(), 2 * A.toarray())


def test_saved_functions_take_sparse_arguments(tmp_path):
    w, x = symdnn.shared(A, "w"), T.fmatrix("x")
    a = S.csc_matrix("a")
    step = symdnn.function(
        [a, x], {"y": S.dot(a.T, x), "w": w + a}, updates=[(w, w * 2.0)], name="step"
    )
    alone = symdnn.function([a], S.structured_exp(a))
    given = sp.csc_matrix(A)
    wide = np.ones((4, 3), "float32")
    for f, arguments in ((step, (given, wide)), (alone, (given,))):
        path = tmp_path / "function.sym"
        symdnn.save(f, path)
        loaded = symdnn.load(path)
        wanted, found = f(*arguments), loaded(*arguments)
        pairs = wanted.items() if f is step else [(None, wanted)]
        for key, value in pairs:
            other = found if key is None else found[key]
            assert type(other) is type(value)
            value, other = (v.toarray() if sp.issparse(v) else v for v in (value, other))
            np.testing.assert_allclose(other, value, rtol=1e-6)
    with pytest.raises(InputError, match=r"step: input 0 \(a\): wanted a sparse"):
        symdnn.load(saved(step, tmp_path))(wide, wide)


def saved(f, folder):
    path = folder / "again.sym"
    symdnn.save(f, path)
    return path


def test_values_of_expressions():
    a = S.csr_array("a")
    np.testing.assert_allclose((a * 3.0).eval({a: A}).toarray(), 3 * A.toarray())
    assert S.constant(A).sum().eval() == pytest.approx(A.sum(), rel=1e-6)
    assert "a: csr(float32, (?, ?))" in repr(a)


def test_matrices_of_other_sizes_and_without_elements():
    f = product()
    for shape in ((1, 6), (9, 6), (4, 6)):
        given = sp.csr_array(shape, dtype="float32")
        found = f(given, X)
        assert np.array_equal(found["y"], np.zeros((shape[0], 2)))
        assert found["twice"].shape == shape
