from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from symdnn.autodiff import grad
from symdnn.errors import ShapeMismatch, TypeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType
from symdnn.graph.variable import constant
from symdnn.ops.array.argreduce import ArgMax
from symdnn.ops.array.cumulative import CumMax, LinearRecurrence
from symdnn.ops.array.order_statistics import OrderStatistics
from symdnn.ops.array.reduce import Max
from symdnn.ops.array.sort import ArgSort, Sort
from symdnn.tensor import reductions as R

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def var(dtype="float64", *shape, name="x"):
    return TensorType(dtype, shape)(name)


def value(out, values=None):
    return evaluate([out], values or {})[0]


def slope_at(f, point):
    array = np.asarray(point, "float64")
    x = var("float64", *([None] * array.ndim))
    return value(grad(f(x).sum(), x), {x: array})


# --- dtypes ---------------------------------------------------------------------------------------

SUM_DTYPES = [
    ("bool", "int64", "float64"),
    ("int8", "int64", "float64"),
    ("uint8", "uint64", "float64"),
    ("int64", "int64", "float64"),
    ("float16", "float16", "float16"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("float32", "float32", "float32"),
    ("float64", "float64", "float64"),
    ("complex64", "complex64", "complex64"),
]


@pytest.mark.parametrize(("dtype", "of_sum", "of_mean"), SUM_DTYPES)
def test_dtypes_of_sums_and_means_are_theanos(dtype, of_sum, of_mean):
    x = var(dtype, 2, 3)
    for f in (R.sum, R.prod, R.cumsum, R.cumprod):
        assert f(x).dtype == of_sum
    assert R.mean(x).dtype == of_mean
    real = {"complex64": "float32"}.get(of_mean, of_mean)
    assert R.var(x).dtype == R.std(x).dtype == real
    assert R.sum(x, dtype="complex128").dtype == "complex128"
    ones = np.ones((2, 3), x.type.numpy)
    for f, wanted in [(R.sum, 6), (R.prod, 1), (R.mean, 1), (R.var, 0)]:
        assert value(f(x), {x: ones}) == wanted


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "bfloat16", "float32"])
def test_extremes_keep_the_dtype_and_indices_are_int64(dtype):
    x = var(dtype, None, 2)
    data = np.array([[0, 1], [1, 0]]).astype(x.type.numpy)
    for f, wanted in [(R.max, [1, 1]), (R.min, [0, 0]), (R.argmax, [1, 0]), (R.argmin, [0, 1])]:
        out = f(x, axis=0)
        assert out.dtype == ("int64" if "arg" in f.__name__ else dtype)
        assert value(out, {x: data}).astype(int).tolist() == wanted
    for f in (R.any, R.all):
        assert f(x).dtype == "bool"


def test_float16_accumulates_in_float32():
    x = var("float16", None)
    many = np.full(5000, 0.1, "float16")
    assert abs(float(value(R.sum(x), {x: many})) - 500) < 1
    large = np.full(100, 60000, "float16")
    assert float(value(R.mean(x), {x: large})) == float(large[0])
    assert R.sum(x).owner.op.acc_dtype == "float32"
    assert R.sum(x, acc_dtype="float16").owner.op.acc_dtype == "float16"


def test_accumulator_follows_the_wider_of_input_and_result():
    assert R.sum(var("int8", 3), dtype="int8").owner.op.acc_dtype == "int64"
    assert R.sum(var("float64", 3), dtype="float32").owner.op.acc_dtype == "float64"
    assert R.sum(var("float16", 3), dtype="float64").owner.op.acc_dtype == "float64"
    small = var("int8", None)
    total = value(R.sum(small, dtype="float32"), {small: np.full(300, 100, "int8")})
    assert (total.dtype, float(total)) == ("float32", 30000)


def test_bfloat16_sums():
    x = var("bfloat16", None, None)
    data = np.full((3, 1000), 0.5, ml_dtypes.bfloat16)
    for f, wanted in [(R.sum, 500), (R.mean, 0.5), (R.logsumexp, 0.5 + np.log(1000))]:
        got = value(f(x, axis=1), {x: data})
        np.testing.assert_allclose(got.astype("float32"), [wanted] * 3, rtol=1e-2)


# --- axes, sizes and what is refused --------------------------------------------------------------


@pytest.mark.parametrize("f", [R.sum, R.max, R.argmax, R.mean, R.var, R.logsumexp, R.any])
def test_bad_axes_are_refused(f):
    x = var("float64", 2, 3)
    for axis, message in [(2, "2 dimension"), (-3, "2 dimension"), ((0, -2), "each axis once"),
                          (1.5, "an int"), (var("int64"), "when the graph is built")]:  # fmt: skip
        with pytest.raises(TypeMismatch, match=message):
            f(x, axis=axis)


def test_axis_may_be_a_constant_or_numpy_int():
    x = var("float64", 2, 3)
    for axis in (constant(1), np.int64(1), [1], (np.int8(-1),)):
        assert R.sum(x, axis=axis).type.shape == (2,)
    assert R.sum(x, axis=[]).type.shape == (2, 3)


def test_cumsum_takes_one_axis():
    with pytest.raises(TypeMismatch, match="one axis"):
        R.cumsum(var("float64", 2, 3), axis=(0, 1))


def test_running_extremes_take_numbers_that_have_an_order():
    with pytest.raises(TypeMismatch, match="order"):
        R.cummax(var("complex64", 3))
    with pytest.raises(TypeMismatch, match="one axis"):
        R.cummin(var("float64", 2, 3), axis=(0, 1))


def test_every_tie_of_a_running_extreme_takes_the_whole_gradient():
    np.testing.assert_array_equal(slope_at(R.cummax, [1, 3, 3, 2]), [1, 3, 2, 0])
    np.testing.assert_array_equal(slope_at(R.cummin, [1, 3, 1, 2]), [4, 0, 2, 0])


def test_a_running_extreme_is_nan_from_the_first_nan_on():
    x = np.array([1, np.nan, 2])
    np.testing.assert_array_equal(value(R.cummax(constant(x))), [1, np.nan, np.nan])


@pytest.mark.parametrize("f", [R.max, R.min, R.argmax, R.argmin])
def test_extremes_of_nothing_are_an_error_that_says_so(f):
    x = var("float64", None, None)
    empty = np.zeros((0, 3))
    with pytest.raises(ShapeMismatch, match=r"at least one element along the axes \(0,\)"):
        value(f(x, axis=0), {x: empty})
    assert value(f(x, axis=1), {x: empty}).shape == (0,)
    op = f(x, axis=0).owner.op
    with pytest.raises(ShapeMismatch, match="at least one element"):
        op.shapes([x.type], [(0, 3)], {})
    with pytest.raises(TypeMismatch, match="real dtype"):
        f(var("complex64", 2))


def test_sums_of_nothing_are_neutral():
    x = var("float64", None)
    nothing = {x: np.zeros(0)}
    for f, wanted in [(R.sum, 0), (R.prod, 1), (R.any, False), (R.all, True), (R.mean, np.nan),
                      (R.logsumexp, -np.inf)]:  # fmt: skip
        np.testing.assert_equal(value(f(x), nothing), wanted)


def test_complex_needs_a_complex_accumulator():
    with pytest.raises(TypeMismatch, match="complex acc_dtype"):
        R.sum(var("complex64", 3), acc_dtype="float64")
    with pytest.raises(TypeMismatch, match="real dtype"):
        R.logsumexp(var("complex64", 3))


def test_keepdims_dimension_is_static_one_and_broadcasts():
    x = var("float64", None, None)
    for f in (R.sum, R.max, R.mean, R.logsumexp, R.argmax, R.std):
        assert f(x, axis=1, keepdims=True).broadcastable == (False, True)
    centred = x - R.mean(x, axis=0, keepdims=True)
    np.testing.assert_allclose(value(centred, {x: np.eye(2)}), [[0.5, -0.5], [-0.5, 0.5]])


# --- NaN ------------------------------------------------------------------------------------------


def test_nan_is_handled_as_by_numpy():
    data = np.array([[1.0, np.nan, 3.0], [0.0, 1.0, -1.0]])
    x = constant(data)
    for name in ("sum", "prod", "max", "min", "mean", "var", "argmax", "argmin", "any", "all"):
        got, want = value(getattr(R, name)(x, axis=1)), getattr(np, name)(data, axis=1)
        np.testing.assert_allclose(got, want)


# --- gradients ------------------------------------------------------------------------------------


def test_every_tie_of_an_extreme_gets_the_full_gradient():
    x = [[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]
    assert slope_at(lambda v: R.max(v, axis=1), x).tolist() == [[0, 1, 1], [1, 1, 1]]
    assert slope_at(R.min, x).tolist() == [[1, 0, 0], [0, 0, 0]]


def test_gradient_of_a_product_is_right_with_any_number_of_zeros():
    assert slope_at(R.prod, [2.0, 3.0, 4.0]).tolist() == [12, 8, 6]
    assert slope_at(R.prod, [2.0, 0.0, 4.0]).tolist() == [0, 8, 0]
    assert slope_at(R.prod, [0.0, 0.0, 4.0]).tolist() == [0, 0, 0]


def test_second_gradient_of_a_product_is_right_with_zeros():
    x = var("float64", None)
    for point in itertools.product([0.0, 2.0, 3.0], repeat=3):
        at = {x: np.array(point)}
        (row,) = evaluate([grad(grad(R.prod(x), x)[0], x)], at)
        np.testing.assert_allclose(row, [0, point[2], point[1]], atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(hnp.arrays("float64", st.integers(1, 6), elements=st.integers(-2, 2)))
def test_gradient_of_cumprod_agrees_with_leaving_one_out(a):
    n = len(a)
    jacobian = np.array(
        [[np.prod(np.delete(a[: i + 1], k)) if k <= i else 0 for k in range(n)] for i in range(n)]
    )
    x = var("float64", None)
    weights = np.arange(1.0, n + 1)
    got = value(grad((R.cumprod(x) * weights).sum(), x), {x: a})
    np.testing.assert_allclose(got, weights @ jacobian, atol=1e-12)


def test_norms_at_zero_have_gradient_zero():
    for L in (1, 2, float("inf")):
        assert not slope_at(lambda v, L=L: R.norm(v, L, axis=1), np.zeros((2, 3))).any()


def test_gradient_of_logsumexp_of_nothing_but_minus_infinity_is_zero():
    x = [[-np.inf, -np.inf], [0.0, -np.inf]]
    assert slope_at(lambda v: R.logsumexp(v, axis=1), x).tolist() == [[0, 0], [1, 0]]


def test_complex_product_gradient():
    z = var("complex128", None)
    at = {z: np.array([1 + 1j, 2 - 1j, 0.5j])}
    got = value(grad(R.prod(z).real, z), at)
    others = np.array([np.prod(np.delete(at[z], k)) for k in range(3)])
    np.testing.assert_allclose(got, others.conj())


def test_argmax_is_disconnected_and_max_is_not():
    x = var("float64", None)
    largest, where = R.max_and_argmax(x)
    cost = largest + where.astype("float64")
    assert value(grad(cost, x), {x: np.array([1.0, 5.0])}).tolist() == [0, 1]


def test_recurrence_wants_two_floats_alike():
    with pytest.raises(TypeMismatch, match="two float tensors"):
        LinearRecurrence(0)(var("float64", 3), var("float32", 3))
    x, y = var("float64", None, name="x"), var("float64", None, name="y")
    with pytest.raises(ShapeMismatch, match="two equal shapes"):
        LinearRecurrence(0).shapes([x.type, y.type], [(3,), (4,)], {})


# --- against NumPy --------------------------------------------------------------------------------


NAMES = ["sum", "prod", "max", "min", "mean", "var", "std", "any", "all"]


@st.composite
def reductions(draw):
    array = draw(
        hnp.arrays(
            st.sampled_from(["bool", "int8", "uint8", "int32", "float32", "float64"]),
            hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=3),
            elements=st.integers(0, 1),
        )
    )
    axes = draw(st.none() | st.lists(st.integers(0, array.ndim - 1), unique=True, max_size=3))
    return array, axes if axes is None else tuple(axes), draw(st.booleans())


@settings(max_examples=60, deadline=None)
@given(reductions(), st.sampled_from(NAMES))
def test_reductions_agree_with_numpy_over_any_axes(case, name):
    array, axes, keepdims = case
    x = TensorType(array.dtype, tuple(1 if n == 1 else None for n in array.shape))()
    got = value(getattr(R, name)(x, axis=axes, keepdims=keepdims), {x: array})
    want = getattr(np, name)(array, axis=axes, keepdims=keepdims)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


def test_references_of_small_calls_do_not_ask_numpy_for_names_of_dtypes(monkeypatch):
    """NumPy works such a name out each time, for a tenth of a small call."""
    x, place = np.array([[3.0, 1.0, 2.0]], "float32"), np.array([1])
    ops = [Sort(1), ArgSort(1), ArgMax((1,)), Max((1,)), CumMax(1)]
    monkeypatch.setattr("numpy._core._dtype._name_get", None)
    found = [np.asarray(op.reference(x)) for op in ops]
    found.append(OrderStatistics(1).reference(x, place))
    monkeypatch.undo()
    wanted = [[[1, 2, 3]], [[1, 2, 0]], [0], [3], [[3, 3, 3]], [[2]]]
    for a, b in zip(found, wanted, strict=True):
        assert a.tolist() == b


def test_methods_of_variables_are_these_builders():
    x = var("float64", None, None)
    data = np.array([[1.0, 2.0], [4.0, 3.0]])
    checks = [
        (x.sum(axis=1), data.sum(1)), (x.prod(0), data.prod(0)), (x.mean(1), data.mean(1)),
        (x.var(1, ddof=1), data.var(1, ddof=1)), (x.std(), data.std()), (x.max(0), data.max(0)),
        (x.min(), data.min()), (x.argmax(1), data.argmax(1)), (x.argmin(), data.argmin()),
        (x.ptp(1), np.ptp(data, 1)), (x.any(1), data.any(1)), (x.all(), data.all()),
        (x.norm(2, axis=1), np.linalg.norm(data, axis=1)), (x.cumsum(), data.cumsum()),
        (x.cumprod(1), data.cumprod(1)), (x.clip(1.5, 3), data.clip(1.5, 3)),
        (x.round(), data.round()), (abs(-x), data), (x // 2, data // 2), (x % 2, data % 2),
        (2**x, 2**data), (x >= 2, data >= 2), (x <= 2, data <= 2), (x > 2, data > 2),
        (~(x < 2), ~(data < 2)), ((x < 2) | (x > 3), (data < 2) | (data > 3)),
        ((x < 2) ^ (x > 1), (data < 2) ^ (data > 1)), (x.astype("int8") << 1, 2 * data),
        (x.astype("int8") >> 1, data // 2), (x.real, data), (x.imag, 0 * data), (x.conj(), data),
    ]  # fmt: skip
    for got, want in checks:
        np.testing.assert_allclose(value(got, {x: data}), want)
