from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symdnn.autodiff import grad
from symdnn.errors import ShapeMismatch, TypeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.graph.origin import Hints
from symdnn.graph.type import TensorType
from symdnn.graph.variable import as_variable
from symdnn.ops.core.shape import dims_of
from symdnn.ops.nn.pool import (
    AveragePoolGrad,
    MaxPoolGrad,
    MaxPoolGradGrad,
    Pool,
    PoolGrad,
    max_pool_2d_same_size,
    pool_1d,
    pool_2d,
    pool_3d,
    pool_size,
)


def tensor(*shape, dtype="float32"):
    return TensorType(dtype, shape)()


def value(v):
    return evaluate([v], {})[0]


def test_defaults_are_theanos() -> None:
    x = tensor(2, 3, 7, 7)
    op = pool_2d(x, (2, 3)).owner.op
    assert op == Pool((2, 3), (2, 3), (0, 0), "max", False)
    assert pool_2d(x, (2, 2)).type.shape == (2, 3, 4, 4)
    assert pool_2d(x, (2, 2), True).type.shape == (2, 3, 3, 3)
    assert pool_2d(x, 2, True).owner.op == pool_2d(x, (2, 2), ignore_border=True).owner.op


def test_old_and_other_names() -> None:
    x = tensor(2, 3, 7, 7)
    new = pool_2d(x, ws=(3, 3), stride=(2, 2), pad=(1, 1), ignore_border=True)
    old = pool_2d(x, ds=(3, 3), st=(2, 2), padding=(1, 1), ignore_border=True)
    assert new.owner.op == old.owner.op
    assert pool_2d(x, 2, mode="max_deterministic").owner.op.mode == "max"
    assert pool_2d(x, 2, mode="average").owner.op.mode == "average_inc_pad"
    with pytest.raises(TypeError, match="ds is the old name of ws"):
        pool_2d(x, ws=2, ds=2)
    with pytest.raises(TypeError, match="ws"):
        pool_2d(x)


def test_sizes_as_constants() -> None:
    x = tensor(2, 3, 7, 7)
    ws = as_variable(np.array([2, 2]))
    assert pool_2d(x, ws, True).type.shape == (2, 3, 3, 3)
    assert pool_2d(x, [as_variable(2), 2], True).type.shape == (2, 3, 3, 3)
    assert pool_2d(x, TensorType("int64", (2,))(), True).type.shape == (2, 3, None, None)
    with pytest.raises(TypeMismatch, match="an integer, or 2"):
        pool_2d(x, TensorType("float32", (2,))(), True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"pad": (1, 1)}, "ignore_border=True"),
        ({"pad": (2, 0), "ignore_border": True}, "smaller than ws"),
        ({"mode": "median"}, "mode must be one of"),
        ({"stride": (0, 1)}, "at least 1"),
    ],
)
def test_options_that_do_not_fit(options, text) -> None:
    with pytest.raises(ValueError, match=text):
        pool_2d(tensor(2, 3, 7, 7), (2, 2), **options)


def test_types_that_do_not_fit() -> None:
    with pytest.raises(TypeMismatch, match="at least 2 dimension"):
        pool_2d(tensor(3), 2)
    with pytest.raises(TypeMismatch, match="float tensors.*Cast"):
        pool_2d(tensor(3, 3, dtype="int32"), 2, mode="average_exc_pad")
    with pytest.raises(TypeMismatch, match="real"):
        pool_2d(tensor(3, 3, dtype="complex64"), 2)
    with pytest.raises(TypeMismatch, match="ws"):
        pool_3d(tensor(3, 3, 3), (2, 2))


def test_a_nan_stays_a_nan() -> None:
    x = np.arange(16.0).reshape(4, 4)
    x[0, 1] = np.nan
    y = value(pool_2d(x, 2))
    assert np.isnan(y[0, 0])
    assert not np.isnan(y.ravel()[1:]).any()


def test_padding_never_wins_a_maximum() -> None:
    x = -np.ones((1, 3, 3))
    np.testing.assert_array_equal(value(pool_2d(x, 2, True, 1, 1)), -np.ones((1, 4, 4)))
    low = np.full((3, 3), -100, "int8")
    np.testing.assert_array_equal(value(pool_2d(low, 2, True, 1, 1)), np.full((4, 4), -100))


def test_every_tie_gets_the_gradient() -> None:
    x = tensor(1, 2, 2, dtype="float64")
    g = grad(pool_2d(x, 2).sum(), x)
    np.testing.assert_array_equal(evaluate([g], {x: np.ones((1, 2, 2))})[0], np.ones((1, 2, 2)))
    assert isinstance(g.owner.op, MaxPoolGrad)
    assert isinstance(g.owner.op, PoolGrad)


def test_averages_keep_no_data_for_their_gradient() -> None:
    x = tensor(None, 4, 6)
    g = grad(pool_2d(x, 2, True, mode="average_exc_pad").sum(), x)
    assert isinstance(g.owner.op, AveragePoolGrad)
    assert g.owner.op.static == (4, 6)
    assert x not in g.owner.inputs


def test_second_order_of_a_maximum() -> None:
    x, v = tensor(None, 4, 6), tensor(None, 4, 6)
    g = grad((pool_2d(x, 2, True) ** 2).sum(), x)
    second = grad((g * v).sum(), v)
    assert second.type.ndim == 3
    y = pool_2d(x, 2, True)
    gather = MaxPoolGradGrad(*y.owner.op.settings)(x, y, v)
    assert isinstance(grad(gather.sum(), v).owner.op, MaxPoolGrad)


def test_hints() -> None:
    hints = Hints(name="pool1")
    y = pool_2d(tensor(2, 4, 4), 2, hints=hints)
    assert y.owner.hints == hints
    assert pool_1d(tensor(2, 4), 2, hints=hints).owner.hints == hints


def test_same_size() -> None:
    x = np.array([[1.0, 4, 7], [3, 2, 8]])
    np.testing.assert_array_equal(value(max_pool_2d_same_size(x, (2, 2))), [[0, 4, 0], [0, 0, 0]])


def test_gradient_ops_check_shapes() -> None:
    op = Pool((2, 2), (2, 2), (0, 0))
    with pytest.raises(ShapeMismatch, match="dy of shape"):
        MaxPoolGrad(*op.settings)(tensor(2, 4, 4), tensor(2, 2, 2), tensor(2, 3, 2))
    with pytest.raises(ShapeMismatch, match="v of shape"):
        MaxPoolGradGrad(*op.settings)(tensor(2, 4, 4), tensor(2, 2, 2), tensor(2, 4, 5))
    with pytest.raises(ShapeMismatch, match="dy of shape"):
        AveragePoolGrad((2, 2), (2, 2), (0, 0), "sum", True, (4, 4))(
            tensor(2, 2, 3), np.int64(4), np.int64(4)
        )


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 9), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.booleans(),
    st.sampled_from(["max", "sum", "average_inc_pad", "average_exc_pad"]),
)  # fmt: skip
def test_symbolic_shape_is_the_shape_of_the_value(n, ws, stride, pad, ignore, mode) -> None:
    pad = min(pad, ws - 1) if ignore else 0
    x = tensor(None, None, dtype="float64")
    given = {x: np.arange(2.0 * n).reshape(2, n)}
    y = pool_1d(x, ws, ignore, stride, pad, mode)
    g = grad(y.sum(), x)
    for v in (y, g):
        node = v.owner
        host = {i: node.inputs[i] for i in node.op.host_inputs}
        shapes = [dims_of(i) for i in node.inputs]
        (dims,) = node.op.shapes([i.type for i in node.inputs], shapes, host)
        found = tuple(int(d) for d in evaluate([as_variable(d) for d in dims], given))
        assert found == evaluate([v], given)[0].shape
    assert found == (2, n)


@given(st.integers(0, 30), st.integers(1, 5), st.integers(1, 5))
def test_without_ignore_border_windows_cover_everything(n, ws, stride) -> None:
    out = pool_size(n, ws, stride, 0, False)
    last = (out - 1) * stride
    assert out == 0 if n == 0 else last < n
    if stride <= ws:
        assert last + ws >= n
