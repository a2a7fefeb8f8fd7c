"""Functions of sparse matrices against SciPy, in both formats; their gradients against finite
differences; errors."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import symdnn
import symdnn.sparse as S
import symdnn.tensor as T
from symdnn.autodiff import verify_grad
from symdnn.errors import (
    AxisError,
    InputError,
    NdimMismatch,
    OptionError,
    ShapeMismatch,
    TypeMismatch,
)
from symdnn.ops.control.batching import Operand, batch_graph

RNG = np.random.default_rng(12)
ROWS, COLUMNS = 5, 7
SPARSE = sp.random_array((ROWS, COLUMNS), density=0.4, format="csr", rng=RNG)
OTHER = sp.random_array((ROWS, COLUMNS), density=0.4, format="csc", rng=RNG)
DENSE = RNG.standard_normal((ROWS, COLUMNS))
FORMATS = ("csr", "csc")


def dense(x):
    return x.toarray() if sp.issparse(x) else np.asarray(x)


def in_both_formats(build, *arrays):
    """What ``build`` gives for sparse operands in all formats; SciPy's arrays are operands."""
    found = []
    for format in FORMATS:
        vs = [
            S.sparse_variable(format, dtype="float64") if sp.issparse(a) else T.TensorType(
                a.dtype.name, (None,) * a.ndim)()
            for a in arrays
        ]  # fmt: skip
        out = build(*vs)
        f = symdnn.function(vs, out, on_unused_input="ignore")
        found.append(f(*arrays))
    return found


def check(build, wanted, *arrays):
    for found in in_both_formats(build, *arrays):
        np.testing.assert_allclose(dense(found), dense(wanted), rtol=1e-12, atol=1e-12)


def test_products_of_all_kinds():
    x, v = RNG.standard_normal((COLUMNS, 3)), RNG.standard_normal(COLUMNS)
    check(lambda a, x: S.dot(a, x), SPARSE @ x, SPARSE, x)
    check(lambda a, x: a @ x, SPARSE @ v, SPARSE, v)
    check(lambda x, a: S.dot(x, a), x.T @ OTHER.T, x.T.copy(), OTHER.T.tocsr())
    check(lambda x, a: S.structured_dot(x, a), v @ SPARSE.T, v, SPARSE.T.tocsr())
    check(lambda a, x: a.T.dot(x), SPARSE.T @ DENSE, SPARSE, DENSE)
    check(lambda a, b: S.true_dot(a, b.T), SPARSE @ OTHER.T, SPARSE, OTHER)
    check(lambda a, b: (a.T @ b).T, (SPARSE.T @ OTHER).T, SPARSE, OTHER)
    check(lambda a, x, z: S.usmm(0.5, a, x, z), 0.5 * (SPARSE @ x) + 1, SPARSE, x, np.ones((5, 3)))
    mixed = symdnn.function([], S.dot(S.constant(SPARSE), S.constant(OTHER.T.tocsc())))()
    np.testing.assert_allclose(dense(mixed), dense(SPARSE @ OTHER.T), rtol=1e-12)
    plain = symdnn.function([], S.dot(np.eye(2), np.ones((2, 1))))()
    assert np.array_equal(plain, np.ones((2, 1)))


def test_a_sampled_product():
    x, y = RNG.standard_normal((ROWS, 3)), RNG.standard_normal((COLUMNS, 3))
    wanted = SPARSE.multiply(x @ y.T)
    check(lambda x, y, p: S.sampling_dot(x, y, p), wanted, x, y, SPARSE)


def test_sums_and_products_of_elements():
    check(lambda a, b: a + b, SPARSE + OTHER, SPARSE, OTHER)
    check(lambda a, b: a - b, SPARSE - OTHER, SPARSE, OTHER)
    check(lambda a, b: S.sub(a, a), SPARSE * 0, SPARSE, OTHER)
    check(lambda a, b: a * b, SPARSE.multiply(OTHER), SPARSE, OTHER)
    check(lambda a, b: a * a, SPARSE.multiply(SPARSE), SPARSE, OTHER)
    check(lambda a, x: a + x, dense(SPARSE) + DENSE, SPARSE, DENSE)
    check(lambda a, x: x + a, dense(SPARSE) + DENSE, SPARSE, DENSE)
    check(lambda a, x: x * a, SPARSE.multiply(DENSE), SPARSE, DENSE)
    check(lambda a, x: x.T @ a, DENSE.T @ SPARSE, SPARSE, DENSE)
    check(lambda a, x: x - a, DENSE - dense(SPARSE), SPARSE, DENSE)
    check(lambda a, x: S.mul(x, a), SPARSE.multiply(DENSE), SPARSE, DENSE)
    check(lambda a, v: a * v, SPARSE.multiply(DENSE[0]), SPARSE, DENSE[0])
    check(lambda a: -a * 2.0 / 4.0, SPARSE * -0.5, SPARSE)
    check(lambda a, v: S.col_scale(a, v), SPARSE.multiply(DENSE[0]), SPARSE, DENSE[0])
    column = DENSE[:, 0].copy()
    check(lambda a, v: S.row_scale(a, v), SPARSE.multiply(column[:, None]), SPARSE, column)
    check(lambda a, v: S.structured_add_s_v(a, v) - a,
          SPARSE.astype(bool).multiply(DENSE[0]), SPARSE, DENSE[0])  # fmt: skip
    check(S.sp_ones_like, SPARSE.astype(bool).astype(float), SPARSE)
    check(S.sp_zeros_like, SPARSE * 0, SPARSE)
    numpys = symdnn.function([], S.dense_from_sparse(np.float64(2.0) * S.constant(SPARSE)))()
    np.testing.assert_allclose(numpys, 2 * dense(SPARSE))


def test_sums_diagonals_and_other_forms():
    for axis in (None, 0, 1, -1, -2):
        check(lambda a, axis=axis: S.sp_sum(a, axis), SPARSE.sum(axis), SPARSE)
    check(lambda a: a.sum(0), SPARSE.sum(0), SPARSE)
    check(S.diag, SPARSE.diagonal(), SPARSE)
    check(lambda a: S.diag(a.T), SPARSE.diagonal(), SPARSE)
    check(S.square_diagonal, np.diag(DENSE[0]), DENSE[0])
    check(S.dense_from_sparse, SPARSE, SPARSE)
    check(lambda x: S.csr_from_dense(x), DENSE * (DENSE > 0), DENSE * (DENSE > 0))
    check(lambda x: S.csc_from_dense(x), DENSE * (DENSE > 0), DENSE * (DENSE > 0))
    check(S.transpose, SPARSE.T, SPARSE)
    for format in FORMATS:
        check(lambda a, format=format: S.in_format(a, format), SPARSE, SPARSE)
    check(lambda a: S.cast(a, "float32"), SPARSE.astype("float32"), SPARSE)


def test_parts():
    check(lambda a: a[1:4], SPARSE[1:4], SPARSE)
    check(lambda a: a[::-2, 1:], SPARSE[::-2, 1:], SPARSE)
    check(lambda a: a[[3, 0, 3, -1]], SPARSE[[3, 0, 3, -1]], SPARSE)
    check(lambda a: a[2], SPARSE[[2]], SPARSE)
    check(lambda a: a[:, -2], SPARSE[:, [-2]], SPARSE)
    check(lambda a: a[0:0], SPARSE[0:0], SPARSE)
    check(lambda a: S.get_item_list(a, np.array([4, 0])), SPARSE[[4, 0]], SPARSE)
    for i, j in ((0, 0), (2, 3), (-1, -2)):
        check(lambda a, i=i, j=j: a[i, j], SPARSE[i, j], SPARSE)
    a, i = S.csr_array("a", "float64"), T.lscalar("i")
    f = symdnn.function([a, i], a[i : i + 2, i])
    np.testing.assert_allclose(dense(f(SPARSE, 2)), dense(SPARSE)[2:4, 2:3])


@pytest.mark.parametrize("format", FORMATS)
def test_an_index_out_of_range_is_an_error(format):
    a, i, j = S.sparse_variable(format, dtype="float64"), T.lscalar("i"), T.lscalar("j")
    element = symdnn.function([a, i, j], a[i, j])
    for k in (ROWS, -ROWS - 1, 10**12):
        for build in (lambda a, i: a[i], lambda a, i: a[T.stack([i])]):
            with pytest.raises(IndexError, match="out of range"):
                symdnn.function([a, i], build(a, i))(SPARSE, k)
        with pytest.raises(IndexError, match="out of range"):
            element(SPARSE, k, 0)
    for k in (COLUMNS, -COLUMNS - 1):
        with pytest.raises(IndexError, match="out of range"):
            element(SPARSE, 1, k)


def test_stacks():
    check(lambda a, b: S.vstack([a, b, a]), sp.vstack([SPARSE, OTHER, SPARSE]), SPARSE, OTHER)
    check(lambda a, b: S.hstack([a, b]), sp.hstack([SPARSE, OTHER]), SPARSE, OTHER)
    made = in_both_formats(lambda a: S.hstack([a, a], format="csc", dtype="float32"), SPARSE)
    assert [(m.format, m.dtype) for m in made] == [("csc", "float32")] * 2


def test_theanos_further_names():
    check(lambda a: S.fcast(a), SPARSE.astype("float32"), SPARSE)
    check(S.ensure_sorted_indices, SPARSE, SPARSE)
    check(lambda a: S.get_item_2d(a, (slice(1, 3), slice(None, 4))), SPARSE[1:3, :4], SPARSE)
    check(lambda a: S.get_item_scalar(a, (1, 2)), SPARSE[1, 2], SPARSE)
    check(lambda a, b: S.add_s_s(a, b), SPARSE + OTHER, SPARSE, OTHER)
    check(lambda a, x: S.mul_s_d(a, x), SPARSE.multiply(DENSE), SPARSE, DENSE)
    wanted = np.zeros((ROWS, COLUMNS))
    wanted[[3, 0]] = DENSE[:2]
    check(lambda x, v: S.construct_sparse_from_list(x, v, T.constant(np.array([3, 0]))),
          wanted, DENSE, DENSE[:2])  # fmt: skip


def test_lanes_of_a_dense_operand_are_columns_of_one_product():
    a, x, lanes = S.csr_array("a", "float64"), T.dmatrix("x"), T.dtensor3("lanes")
    for transposed in (False, True):
        out = S.dot(a.T if transposed else a, x)
        (found,) = batch_graph([out], {x: Operand(lanes, True)})
        f = symdnn.function([a, lanes], found.value)
        data = RNG.standard_normal((3, ROWS if transposed else COLUMNS, 2))
        wanted = [dense(SPARSE.T if transposed else SPARSE) @ d for d in data]
        np.testing.assert_allclose(f(SPARSE, data), wanted, rtol=1e-12)
        assert not f.lowering_report().loops


def test_zeros_are_removed():
    with_zeros = SPARSE.copy()
    with_zeros.data[::2] = 0
    for made in in_both_formats(S.remove0, with_zeros):
        assert made.nnz == np.count_nonzero(dense(with_zeros))
        np.testing.assert_allclose(dense(made), dense(with_zeros))


def test_structured_functions_leave_zeros():
    for name, function in (
        ("structured_exp", np.exp), ("structured_sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        ("structured_log", np.log), ("sqrt", np.sqrt), ("expm1", np.expm1), ("sgn", np.sign),
        ("rint", np.rint), ("neg", np.negative), ("tanh", np.tanh),
    ):  # fmt: skip
        wanted = SPARSE.copy()
        wanted.data = function(wanted.data)
        check(getattr(S, name), wanted, SPARSE)
    for name, function in (("structured_pow", np.power), ("structured_maximum", np.maximum)):
        wanted = SPARSE.copy()
        wanted.data = function(wanted.data, 0.5)
        check(lambda a, name=name: getattr(S, name)(a, 0.5), wanted, SPARSE)


def test_of_vectors_and_back():
    data, indices, indptr = T.dvector(), T.ivector(), T.ivector()
    made = S.CSR(data, indices, indptr, (ROWS, COLUMNS))
    f = symdnn.function([data, indices, indptr], [made, *S.csm_properties(made)])
    found, *parts = f(SPARSE.data, SPARSE.indices, SPARSE.indptr)
    assert np.array_equal(dense(found), dense(SPARSE))
    assert parts[3].tolist() == [ROWS, COLUMNS]
    assert made.shape == (ROWS, COLUMNS)
    sizes = T.lvector()
    by_columns = S.CSC(data, indices, indptr, sizes)
    g = symdnn.function([data, indices, indptr, sizes], by_columns)
    arrays = SPARSE.data, SPARSE.indices, SPARSE.indptr
    assert np.array_equal(dense(g(*arrays, [COLUMNS, ROWS])), dense(SPARSE).T)
    with pytest.raises(ShapeMismatch):
        g(*arrays, [COLUMNS, ROWS + 1])


GRADIENTS = {
    "dot": lambda a, b, x: S.dot(a, x.T),
    "dot_transposed": lambda a, b, x: S.dot(a.T, x),
    "left": lambda a, b, x: S.dot(x.T, a),
    "product": lambda a, b, x: S.dot(a, b.T).toarray(),
    "add": lambda a, b, x: (a + b).toarray(),
    "mul": lambda a, b, x: (a * b).toarray(),
    "mul_dense": lambda a, b, x: (a * x).toarray(),
    "sampling": lambda a, b, x: S.sampling_dot(x, T.exp(x.T).dot(x), a).toarray(),
    "rows": lambda a, b, x: S.row_scale(a, x[:, 0]).toarray(),
    "sums": lambda a, b, x: a.sum(0).sum() * a.sum(1) * S.diag(b),
    "parts": lambda a, b, x: a[[0, 3, 3], 1:5].toarray(),
    "stack": lambda a, b, x: S.hstack([a, b * 2.0]).toarray(),
    "structured": lambda a, b, x: S.structured_exp(a).toarray(),
    "format": lambda a, b, x: S.in_format(S.in_format(a, "csc"), "csr").data ** 2,
}


def test_gradients_with_respect_to_elements_and_dense_operands():
    other = OTHER.tocsr()

    def matrix(of, data):
        indices, indptr = (T.constant(v) for v in (of.indices, of.indptr))
        return S.SparseVariable("csr", data, indices, indptr, COLUMNS)

    for build in GRADIENTS.values():
        verify_grad(
            lambda d, e, x, build=build: build(matrix(SPARSE, d), matrix(other, e), x),
            [SPARSE.data, other.data, DENSE],
        )


def test_a_gradient_has_the_places_of_its_matrix():
    a, x = S.csc_array("a", "float64"), T.dmatrix("x")
    cost = (S.dot(a, x) ** 2).sum()
    of_a, of_x = symdnn.grad(cost, [a, x])
    assert isinstance(of_a, S.SparseVariable)
    f = symdnn.function([a, x], [of_a, of_x, symdnn.grad((of_a.data**2).sum(), a)])
    given = SPARSE.tocsc()
    found, slope, second = f(given, DENSE.T)
    wanted = 2 * (SPARSE @ DENSE.T) @ DENSE
    np.testing.assert_allclose(dense(found), np.where(dense(SPARSE) != 0, wanted, 0), rtol=1e-12)
    np.testing.assert_allclose(slope, 2 * SPARSE.T @ (SPARSE @ DENSE.T), rtol=1e-12)
    assert second.nnz == given.nnz


def test_errors_say_what_is_wanted():
    a, x = S.csr_array("a", "float64", (ROWS, COLUMNS)), T.dmatrix("x")
    b = S.csr_array("b", "float64", (ROWS, COLUMNS + 1))
    with pytest.raises(ShapeMismatch, match="equal inner sizes"):
        S.dot(a, a)
    with pytest.raises(ShapeMismatch, match="equal sizes"):
        S.add(a, b)
    with pytest.raises(ShapeMismatch, match="equal sizes"):
        S.mul(a, b)
    with pytest.raises(NdimMismatch, match="a vector or a matrix"):
        S.dot(a, T.dtensor3())
    with pytest.raises(NdimMismatch, match="a matrix"):
        S.add(a, T.dscalar())
    with pytest.raises(TypeMismatch, match="S.csr_from_dense"):
        S.as_sparse_variable(x)
    with pytest.raises(TypeMismatch, match="integer"):
        a[T.dvector()]
    with pytest.raises(AxisError, match="0 or 1"):
        S.sp_sum(a, 2)
    with pytest.raises(OptionError, match="'csr' or 'csc'"):
        S.in_format(a, "bsr")
    with pytest.raises(TypeMismatch, match="a number"):
        a / a
    with pytest.raises(InputError, match="symdnn.sparse"):
        T.exp(a)
    with pytest.raises(TypeMismatch, match="at least one"):
        S.vstack([])


def test_sizes_that_are_known_in_a_call_are_compared():
    a, b, x = S.csr_array("a", "float64"), S.csr_array("b", "float64"), T.dmatrix("x")
    wide = sp.csr_array(np.pad(dense(SPARSE), ((0, 0), (0, 1))))
    for made in (a + b, a * b):
        f = symdnn.function([a, b], made)
        with pytest.raises(ShapeMismatch, match="equal sizes"):
            f(SPARSE, wide)
    f = symdnn.function([a, b], S.dot(a, b))
    with pytest.raises(ShapeMismatch, match="equal inner sizes|equal sizes"):
        f(SPARSE, SPARSE)
    g = symdnn.function([a, x], S.dot(a, x))
    with pytest.raises(ShapeMismatch, match="columns of A"):
        g(SPARSE, DENSE)


def test_methods_are_those_of_scipys_arrays():
    for axis in (None, 0, 1, -1):
        check(lambda a, axis=axis: a.mean(axis), SPARSE.mean(axis), SPARSE)
    check(lambda a: a.diagonal(), SPARSE.diagonal(), SPARSE)
    check(lambda a: a.multiply(2.5), SPARSE * 2.5, SPARSE)
    check(lambda a, b: a.multiply(b), SPARSE.multiply(DENSE), SPARSE, DENSE)
    check(lambda a: abs(-a), SPARSE, SPARSE)
    for name in FORMATS:
        check(lambda a, name=name: getattr(a, f"to{name}")(), SPARSE, SPARSE)
    i, z = S.csr_array("i", "int32"), S.csr_array("z", "complex128")
    ints = sp.csr_array(np.int32([[0, 3], [2, 0]]))
    mean, turned = symdnn.function([i, z], [i.mean(0), z.conj()])(ints, ints * (1 + 2j))
    np.testing.assert_array_equal(mean, [1.0, 1.5])
    np.testing.assert_array_equal(dense(turned), dense(ints) * (1 - 2j))
