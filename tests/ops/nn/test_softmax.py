from __future__ import annotations

import numpy as np
import pytest

from symdnn.errors import IndexOutOfRange, ShapeMismatch, TypeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType
from symdnn.ops.nn import crossentropy as C
from symdnn.ops.nn import softmax as S


def matrix(dtype="float32"):
    return TensorType(dtype, (None, None))("x")


def labels(dtype="int64"):
    return TensorType(dtype, (None,))("t")


def run(out, **values):
    return evaluate([out], {v: values[v.name] for v in _leaves(out) if v.name in values})[0]


def _leaves(out):
    from symdnn.graph.traverse import toposort

    return {v for node in toposort([out]) for v in node.inputs if v.owner is None and v.name}


def test_a_vector_gives_a_row_and_keeps_its_shape_when_the_axis_is_named():
    v = TensorType("float32", (None,))("x")
    assert S.softmax(v).type.shape == (1, None)
    assert S.logsoftmax(v).type.shape == (1, None)
    assert S.softmax(v, axis=0).type.shape == (None,)
    assert S.softmax(v, axis=-1).type.shape == (None,)


@pytest.mark.parametrize(("ndim", "axis"), [(2, 1), (3, 2), (4, 3)])
def test_default_axis_is_the_last(ndim, axis):
    x = TensorType("float32", (None,) * ndim)()
    assert S.softmax(x).owner.op == S.Softmax(axis)


def test_refusals_name_the_op_and_say_what_to_do():
    with pytest.raises(TypeMismatch, match=r"Softmax.*float.*astype"):
        S.softmax(TensorType("int64", (None, None))())
    with pytest.raises(TypeMismatch, match="2 dimension.*got 2"):
        S.softmax(matrix(), axis=2)
    with pytest.raises(TypeMismatch, match="at least one dimension"):
        S.softmax(TensorType("float32", ())())


@pytest.mark.parametrize("value", [1e4, -1e4, 1e38])
def test_large_values_do_not_overflow(value):
    x = np.array([[value, 0.0]], "float32")
    x1 = matrix()
    y = run(S.softmax(x1), x=x)
    assert np.isfinite(y).all()
    np.testing.assert_allclose(y.sum(), 1)
    assert np.isfinite(run(S.logsoftmax(x1), x=x)).all()


def test_minus_infinity_is_probability_zero():
    y = run(S.softmax(matrix()), x=np.array([[0.0, -np.inf]], "float32"))
    np.testing.assert_array_equal(y, [[1, 0]])


@pytest.mark.parametrize("bad", [4, -1, 100])
@pytest.mark.parametrize(
    "loss",
    [C.categorical_crossentropy, C.softmax_crossentropy, C.nll_loss],
    ids=lambda f: f.__name__,
)
def test_a_label_that_is_no_class_is_named_with_its_row(loss, bad):
    x = np.full((3, 4), 0.25, "float32")
    with pytest.raises(IndexOutOfRange, match=rf"label {bad} in row 2 .* 4 classes"):
        run(loss(matrix(), labels()), x=x, t=np.array([0, 1, bad]))


@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_labels_must_be_integers(dtype):
    with pytest.raises(TypeMismatch, match=r"labels that are integers.*astype"):
        C.categorical_crossentropy(matrix(), labels(dtype))
    with pytest.raises(TypeMismatch, match="labels that are integers"):
        C.softmax_crossentropy(matrix(), labels(dtype))


def test_ranks_of_the_truth():
    with pytest.raises(TypeMismatch, match="distributions of 2 or labels of 1"):
        C.categorical_crossentropy(matrix(), TensorType("int64", ())())
    with pytest.raises(TypeMismatch, match=r"labels of 1 dimension"):
        C.softmax_crossentropy(matrix(), TensorType("int64", (None, None))())


def test_one_label_for_each_row():
    with pytest.raises(ShapeMismatch, match="one label for each row"):
        run(
            C.softmax_crossentropy(matrix(), labels()),
            x=np.zeros((3, 4), "float32"),
            t=np.zeros(2, "int64"),
        )


def test_the_fused_loss_is_exact_where_a_softmax_underflows():
    x = np.array([[0.0, 200.0]], "float32")
    loss = run(C.softmax_crossentropy(matrix(), labels()), x=x, t=np.array([0]))
    np.testing.assert_allclose(loss, [200.0])


def test_label_dtypes_and_result_types():
    for dtype in ("uint8", "int32", "int64"):
        out = C.categorical_crossentropy(matrix(), labels(dtype))
        assert out.type == TensorType("float32", (None,))


def test_weighted_losses():
    x = np.random.default_rng(0).standard_normal((3, 4)).astype("float32")
    t, w = np.array([0, 3, 1]), np.array([1, 2, 3, 4], "float32")
    got = run(C.nll_loss(matrix(), labels(), w), x=x, t=t)
    np.testing.assert_allclose(got, [-x[0, 0], -4 * x[1, 3], -2 * x[2, 1]], rtol=1e-6)


def test_sigmoid_binary_crossentropy_is_stable_and_right():
    x, t = np.array([-3.0, 0.5, 200.0, -200.0]), np.array([1.0, 0.25, 1.0, 0.0])
    got = evaluate([C.sigmoid_binary_crossentropy(x, t)], {})[0]
    p = 1 / (1 + np.exp(-x[:2]))
    np.testing.assert_allclose(got[:2], -(t[:2] * np.log(p) + (1 - t[:2]) * np.log(1 - p)))
    np.testing.assert_allclose(got[2:], 0, atol=1e-30)


def test_h_softmax_of_all_outputs_and_of_targets_agree():
    rng = np.random.default_rng(0)
    x, w1, b1 = rng.standard_normal((3, 4)), rng.standard_normal((4, 2)), rng.standard_normal(2)
    w2, b2 = rng.standard_normal((2, 4, 3)), rng.standard_normal((2, 3))
    every = evaluate([C.h_softmax(x, 3, 6, 2, 3, w1, b1, w2, b2)], {})[0]
    np.testing.assert_allclose(every.sum(1), 1)
    t = np.array([0, 4, 5])
    chosen = evaluate([C.h_softmax(x, 3, 6, 2, 3, w1, b1, w2, b2, t)], {})[0]
    np.testing.assert_allclose(chosen, every[np.arange(3), t])


def test_a_static_clash_is_found_before_any_value():
    t = TensorType("float32", (None, None))
    with pytest.raises(ShapeMismatch):
        S.SoftmaxGrad(1).shapes([t, t], [(2, 3), (2, 4)], {})
