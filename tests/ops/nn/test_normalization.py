from __future__ import annotations

import itertools

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import ShapeMismatch, TypeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType
from symdnn.ops.nn import normalization as N
from tests.seeded import new_rng


def tensor(*shape, dtype="float32"):
    return TensorType(dtype, shape)()


def make(ndim, shape=(None,) * 4, stat=(None,) * 4, n=2):
    return TensorType("float32", shape[:ndim])(), [
        TensorType("float32", stat[:ndim])() for _ in range(n)
    ]


def test_types_of_the_results():
    x, ps = make(4, n=4)
    y, mean, invstd, new_mean, new_var = N.batch_normalization_train(
        x, ps[0], ps[1], "spatial", running_mean=ps[2], running_var=ps[3]
    )
    assert y.type == x.type
    assert mean.type.shape == invstd.type.shape == (1, None, 1, 1)
    assert ps[2].type.accepts(new_mean.type)
    assert ps[3].type.accepts(new_var.type)


def test_half_precision_keeps_statistics_in_float32():
    for dtype in ("float16", "bfloat16"):
        g = tensor(None, dtype=dtype)
        y, mean, _, new_mean, _ = N.batch_normalization_train(
            tensor(None, None, dtype=dtype), g, g, running_mean=g, running_var=g
        )
        assert (y.type.dtype, mean.type.dtype, new_mean.type.dtype) == (dtype, "float32", dtype)


def test_mixed_dtypes_are_upcast():
    g = tensor(None, dtype="float64")
    assert N.batch_normalization_train(tensor(None, None), g, g)[0].type.dtype == "float64"


def test_a_parameter_of_the_wrong_rank_is_refused():
    with pytest.raises(ValueError, match="4 dimensions like the input, or 1 without"):
        N.batch_normalization_train(make(4)[0], *make(3)[1], axes="spatial")


def test_one_running_value_alone_is_refused():
    x, (g, b) = make(2)
    with pytest.raises(ValueError, match="both running_mean and running_var"):
        N.batch_normalization_train(x, g, b, running_mean=g)


@pytest.mark.parametrize("axes", ["all", (0, 0), (5,), ()])
def test_axes_that_are_none(axes):
    x, (g, b) = make(2)
    with pytest.raises(ValueError, match=r"axes=|an axis of a tensor of 2"):
        N.batch_normalization_train(x, g, b, axes)


def test_an_integer_input_is_refused():
    g = tensor(None, dtype="int32")
    with pytest.raises(TypeMismatch, match="float"):
        N.batch_normalization_train(tensor(None, None, dtype="int64"), g, g)


def test_a_parameter_that_is_not_1_on_a_normalised_axis_is_found_when_it_runs():
    x, (g, b) = make(2)
    y = N.batch_normalization_train(x, g, b)[0]
    ones = np.ones((3, 4), "float32")
    with pytest.raises(ShapeMismatch):
        evaluate([y], {x: ones, g: ones, b: ones})


def test_small_epsilon_is_taken_here():
    x, (g, b) = make(2)
    y = N.batch_normalization_train(x, g, b, epsilon=1e-9)[0]
    values = np.array([[1.0], [2.0]], "float32")
    one = np.ones((1, 1), "float32")
    got = evaluate([y], {x: values, g: one, b: 0 * one})[0]
    np.testing.assert_allclose(got, [[-1], [1]], rtol=1e-6)


def test_running_variance_is_unbiased():
    x, ps = make(2, n=4)
    new_var = N.batch_normalization_train(
        x, ps[0], ps[1], running_average_factor=1.0, running_mean=ps[2], running_var=ps[3]
    )[4]
    data = np.random.default_rng(0).standard_normal((5, 3)).astype("float32")
    one = np.ones((1, 3), "float32")
    got = evaluate([new_var], {x: data, **dict.fromkeys(ps, one)})[0]
    np.testing.assert_allclose(got[0], data.var(0, ddof=1), rtol=1e-5)


def test_variance_of_large_means_is_accurate():
    x, (g, b) = make(2)
    _, _, invstd = N.batch_normalization_train(x, g, b, epsilon=1e-4)
    data = (np.random.default_rng(0).standard_normal((64, 2)) + 1000).astype("float32")
    one = np.ones((1, 2), "float32")
    got = evaluate([invstd], {x: data, g: one, b: one})[0]
    np.testing.assert_allclose(got[0], (data.astype("f8").var(0) + 1e-4) ** -0.5, rtol=1e-4)


def test_groups_must_divide_the_channels():
    with pytest.raises(ValueError, match="3 groups do not divide 4 channels"):
        N.group_norm(tensor(None, 4, None, None), 3)


def test_static_shape_survives_group_norm():
    x = tensor(None, 4, 5, None)
    assert N.group_norm(x, 2).type == x.type


@pytest.mark.parametrize("single", list(itertools.product([False, True], repeat=4)))
def test_given_parameters_of_one_value_have_gradients_of_one_value(single):
    """Each of gamma, beta, mean and variance may have one value for all channels."""
    rng = new_rng()
    shapes = [(1, 1, 1, 1) if one else (1, 3, 1, 1) for one in single]
    x, given = T.dtensor4("x"), [TensorType("float64", s)(n) for s, n in zip(shapes, "gbmv")]
    y = T.nnet.batch_normalization_test(x, *given, axes="spatial")
    arrays = [rng.normal(size=(4, 3, 5, 2)), *(rng.uniform(0.5, 2, s) for s in shapes)]
    cost = T.sqr(y).sum()
    f = symdnn.function([x, *given], [cost, *T.grad(cost, [x, *given])])
    grads = f(*arrays)[1:]
    for k, (a, g) in enumerate(zip(arrays, grads)):
        assert g.shape == a.shape
        step = 1e-6 * rng.normal(size=a.shape)
        up, down = ([*arrays[:k], a + s * step, *arrays[k + 1 :]] for s in (1, -1))
        np.testing.assert_allclose((f(*up)[0] - f(*down)[0]) / 2, (g * step).sum(), rtol=1e-5)
