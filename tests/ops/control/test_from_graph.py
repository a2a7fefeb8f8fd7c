"""OpFromGraph: overrides, shared variables, inlining, what it refuses."""

import pickle

import numpy as np
import pytest

from symdnn.autodiff import Rop, grad
from symdnn.compile.function import function
from symdnn.compile.shared import shared
from symdnn.errors import MissingInputError, TypeMismatch
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.ops.control.from_graph import OpFromGraph
from symdnn.ops.linalg.dot import Dot

VECTOR = TensorType("float64", (None,))
MATRIX = TensorType("float64", (None, None))
X = np.array([0.5, -1.0, 2.0])


def square(**options):
    a = VECTOR("a")
    return OpFromGraph([a], [a * a], **options)


@pytest.mark.parametrize("inline", [False, True])
def test_value_and_gradient(inline):
    x = VECTOR("x")
    y = square(inline=inline)(x)
    f = function([x], [y, grad(y.sum(), x)])
    value, slope = f(X)
    np.testing.assert_allclose(value, X**2)
    np.testing.assert_allclose(slope, 2 * X)


@pytest.mark.cpu
@pytest.mark.parametrize("inline", [False, True])
def test_compiled_functions_run_its_nodes(inline):
    x, w, a, b = VECTOR("x"), MATRIX("w"), VECTOR("a"), MATRIX("b")
    f = function([x, w], OpFromGraph([a, b], [a.dot(b)], inline=inline)(x, w))
    assert [type(n.op) for n in f.fgraph.toposort()] == [Dot]


def test_several_outputs_are_a_list():
    a = VECTOR("a")
    op = OpFromGraph([a], [a + 1, a.sum()])
    plus, total = op(VECTOR("x"))
    assert (plus.type.ndim, total.type.ndim) == (1, 0)


def test_shared_variables_are_inputs_by_themselves():
    w = shared(np.array(3.0), "w")
    a, x = VECTOR("a"), VECTOR("x")
    y = OpFromGraph([a], [a * w])(x)
    f = function([x], [y, grad(y.sum(), w)], updates=[(w, w + 1)])
    value, slope = f(X)
    np.testing.assert_allclose(value, 3 * X)
    np.testing.assert_allclose(slope, X.sum())
    np.testing.assert_allclose(f(X)[0], 4 * X)


@pytest.mark.parametrize(
    "override",
    [
        {"grad_overrides": lambda inputs, cotangents: [cotangents[0] * 7]},
        {"grad_overrides": [lambda inputs, cotangents: cotangents[0] * 7]},
        {"lop_overrides": lambda inputs, outputs, cotangents: [cotangents[0] * 7 + outputs[0] * 0]},
    ],
)
def test_gradients_of_ones_own(override):
    x = VECTOR("x")
    slope = grad(square(**override)(x).sum(), x)
    np.testing.assert_allclose(function([x], slope)(X), [7, 7, 7])


def test_overrides_of_some_inputs():
    a, b, x, y = VECTOR("a"), VECTOR("b"), VECTOR("x"), VECTOR("y")
    op = OpFromGraph([a, b], [a * b], grad_overrides=["default", None])
    slopes = grad(op(x, y).sum(), [x, y], disconnected_inputs="ignore")
    by_x, by_y = function([x, y], slopes)(X, X + 1)
    np.testing.assert_allclose(by_x, X + 1)
    np.testing.assert_array_equal(by_y, np.zeros(3))


def test_forward_mode_and_its_override():
    x = VECTOR("x")
    own = Rop(square()(x), x, np.ones(3))
    given = Rop(square(rop_overrides=lambda inputs, tangents: [tangents[0] * 5])(x), x, np.ones(3))
    tangents = function([x], [own, given])(X)
    np.testing.assert_allclose(tangents, [2 * X, [5, 5, 5]])


def test_one_variable_as_two_inputs():
    a, b, x = VECTOR("a"), VECTOR("b"), VECTOR("x")
    y = OpFromGraph([a, b], [a * b * b])(x, x)
    values = function([x], [grad(y.sum(), x), Rop(y, x, np.ones(3))])(X)
    np.testing.assert_allclose(values, [3 * X**2, 3 * X**2])


def test_equal_graphs_are_equal_ops_and_pickle():
    assert square() == square()
    assert square() != square(inline=True)
    assert pickle.loads(pickle.dumps(square())) == square()


def test_sizes_among_the_inputs():
    n, k = TensorType("int64", ())("n"), TensorType("int64", ())("k")
    y = OpFromGraph([n], [operator("arange")(n * 2)])(k)
    f = function([k], [y, y.shape[0]])
    assert f(3)[0].tolist() == list(range(6))
    assert f(3)[1] == 6


def test_what_it_refuses():
    a, b = VECTOR("a"), VECTOR("b")
    with pytest.raises(MissingInputError, match="needs b"):
        OpFromGraph([a], [a + b])
    with pytest.raises(TypeMismatch, match="not shared"):
        OpFromGraph([shared(1.0)], [a])
    with pytest.raises(TypeMismatch, match=r"1 input.*2 of them"):
        square()(a, b)
    with pytest.raises(TypeMismatch, match="input 0 of type"):
        square()(MATRIX("m"))
    with pytest.raises(ValueError, match="got both"):
        square(grad_overrides=lambda i, c: c, lop_overrides=lambda i, o, c: c)
    with pytest.raises(TypeMismatch, match="1 overrides, got 2"):
        grad(square(grad_overrides=[None, None])(a).sum(), a)
