"""Theano's semantics of shapes: static patterns, errors, dtypes."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn.autodiff import grad
from symdnn.config import config
from symdnn.errors import DataError, InputError, OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.graph.traverse import toposort
from symdnn.graph.type import TensorType


def value(out, given=None):
    return evaluate([out], given or {})[0]


def test_static_ones_come_from_where_theano_has_them():
    x, n = T.dmatrix("x"), T.lscalar("n")
    assert T.zeros((n, 1)).type.broadcastable == (False, True)
    assert T.alloc(1.0, 1, n).type.broadcastable == (True, False)
    assert x.reshape((1, -1)).type.broadcastable == (True, False)
    assert x.dimshuffle("x", 0, 1).type.broadcastable == (True, False, False)
    assert T.unbroadcast(T.zeros((1, 3)), 0).type.shape == (None, 3)
    assert T.patternbroadcast(x, (True, False)).type.broadcastable == (True, False)
    assert T.shape_padaxis(x, 1).type.broadcastable == (False, True, False)


def test_unbroadcast_is_kept_from_broadcasting():
    x, y = T.drow("x"), T.dmatrix("y")
    out = T.unbroadcast(x, 0) + y
    types = [v.type for v in out.owner.inputs]
    with pytest.raises(ShapeMismatch, match="addbroadcast"):
        out.owner.op.shapes(types, [(1, 3), (4, 3)], {})
    assert grad(T.unbroadcast(x, 0).sum(), x).type.broadcastable == (True, False)


def test_addbroadcast_is_checked():
    x = T.dmatrix("x")
    with pytest.raises(ShapeMismatch, match="static"):
        value(T.addbroadcast(x, 0), {x: np.zeros((2, 3))})
    with pytest.raises(TypeMismatch, match="axis"):
        T.addbroadcast(x, 2)


def test_reshape_errors():
    x = T.dmatrix("x")
    with pytest.raises(ShapeMismatch, match=r"6 elements.*\(4, -1\).*\(2, 3\)"):
        value(x.reshape((4, -1)), {x: np.zeros((2, 3))})
    with pytest.raises(ShapeMismatch, match="at most one -1"):
        x.reshape((-1, -1))
    with pytest.raises(TypeMismatch, match="ndim="):
        x.reshape(T.lvector("v"))
    with pytest.raises(TypeMismatch, match="integer scalar"):
        x.reshape((2.5, 2))
    with pytest.raises(ShapeMismatch):  # at once where all is static
        T.zeros((2, 3)).reshape((4, 2))
    assert T.zeros((2, 6)).reshape((T.lscalar("n"), 3)).type.shape == (4, 3)
    v = T.lvector("v")
    out = T.reshape(x, v, ndim=3)
    assert out.ndim == 3
    assert value(out, {x: np.zeros((2, 3)), v: np.array([1, 6, 1])}).shape == (1, 6, 1)


@pytest.mark.parametrize("sizes", [[1, 6], [1, 6, 1, 1], [1, 6, 1, 7]])
def test_a_vector_of_sizes_has_as_many_as_were_told(sizes):
    x, v = T.dmatrix("x"), T.lvector("v")
    for out in (T.reshape(x, v, ndim=3), T.tile(x, v, ndim=3)):
        with pytest.raises(ShapeMismatch, match=rf"\(3,\), got \({len(sizes)},\)"):
            value(out, {x: np.zeros((2, 3)), v: np.array(sizes)})
    with pytest.raises(ShapeMismatch, match="int64"):  # at once where the length is static
        T.reshape(x, TensorType("int64", (len(sizes),))(), ndim=3)


def test_flatten_keeps_leading_dimensions():
    x = TensorType("float32", (None, 3, 4))()
    assert x.flatten(2).type.shape == (None, 12)
    assert T.flatten(x, outdim=3) is x
    assert T.flatten(T.scalar()).ndim == 1
    with pytest.raises(TypeMismatch, match=r"1\.\.3"):
        x.flatten(4)


def test_dimshuffle_errors():
    x = T.matrix("x")
    assert x.dimshuffle(0, 1) is x
    with pytest.raises(TypeMismatch, match="addbroadcast"):
        x.dimshuffle(0)
    with pytest.raises(TypeMismatch, match="below 2"):
        x.dimshuffle(0, 2)
    with pytest.raises(TypeMismatch, match="at most once"):
        x.dimshuffle(0, 0)
    with pytest.raises(TypeMismatch, match="axis"):
        T.swapaxes(x, 0, 2)


def test_join_rules():
    x, i = T.fmatrix("x"), T.imatrix("i")
    assert T.concatenate([x, i], axis=1).type.dtype == "float64"
    assert T.join(0, x) is x
    assert T.join(T.constant(1), T.zeros((2, 3)), T.zeros((2, 4))).type.shape == (2, 7)
    assert T.concatenate([T.zeros((1, 3)), T.unbroadcast(T.zeros((1, 3)), 0)], 1).type.shape[0] == 1
    with pytest.raises(InputError, match="list or tuple"):
        T.concatenate(x)
    with pytest.raises(TypeMismatch, match="Use stack"):
        T.concatenate([T.scalar(), T.scalar()])
    with pytest.raises(ShapeMismatch, match="dimension 0"):
        T.concatenate([T.zeros((2, 3)), T.zeros((3, 3))], axis=1)
    with pytest.raises(ShapeMismatch, match="dimension 0"):
        value(T.concatenate([x, x[1:]], axis=1), {x: np.zeros((3, 3), np.float32)})
    with pytest.raises(TypeMismatch, match="2 dimension"):
        T.join(T.lscalar(), x, x[0])


def test_stack_of_scalars_is_a_vector():
    a, b = T.fscalar("a"), T.lscalar("b")
    assert T.stack([a, 2]).type == TensorType("float32", (2,))
    assert T.stack(b, b, b).type == TensorType("int64", (3,))
    assert T.as_tensor_variable([b, 5]).type == TensorType("int64", (2,))
    assert T.stacklists([[a, a], [a, a], [a, a]]).type.shape == (3, 2)
    assert T.stack([T.vector(), T.vector()], axis=1).type.shape == (None, 2)
    assert T.stack([T.vector(), T.vector()], -1).type.shape == (None, 2)


@pytest.mark.parametrize("known", [True, False])
def test_split_by_a_number_makes_equal_parts_and_by_dim_parts_of_a_size(known):
    x = T.tensor("float64", (2, 6) if known else (None, None))
    array = np.arange(12.0).reshape(2, 6)
    for count, axis in ((3, 1), (2, -1), (1, 0)):
        found = [value(p, {x: array}) for p in T.split(x, count, axis=axis)]
        for a, b in zip(found, np.split(array, count, axis), strict=True):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(ShapeMismatch, match=r"4 parts divide.*array_split|add up to 6"):
        value(T.split(x, 4, axis=1)[0], {x: array})
    with pytest.raises(OptionError, match="at least 1 part"):
        T.split(x, 0)
    sized = T.split(T.specify_shape(x, (2, 6)), 4, dim=1)
    assert [value(p, {x: array}).shape for p in sized] == [(2, 4), (2, 2)]


def test_split_must_cover_everything():
    x = T.dvector("x")
    with pytest.raises(ShapeMismatch, match="add up to 4"):
        value(T.split(x, [1, 2], 2)[0], {x: np.zeros(4)})
    with pytest.raises(TypeMismatch, match="3 sizes"):
        T.split(x, [1, 2], 3)
    sizes = T.lvector("sizes")
    first, second = T.split(x, sizes, 2)
    known = {x: np.arange(5.0), sizes: np.array([2, 3])}
    assert value(first, known).tolist() == [0, 1]
    assert value(second, known).tolist() == [2, 3, 4]
    g = grad(second.sum(), x)  # the cotangent of the first is absent
    assert value(g, known).tolist() == [0, 0, 1, 1, 1]


def test_alloc_broadcasts_static_ones_only():
    x, n = T.dvector("x"), T.lscalar("n")
    node = T.alloc(x, n, 3).owner
    types = [v.type for v in node.inputs]
    with pytest.raises(ShapeMismatch, match="addbroadcast"):
        node.op.shapes(types, [(1,), (), ()], {1: 2, 2: 3})
    with pytest.raises(ShapeMismatch, match="not negative"):
        value(T.zeros((n,)), {n: np.int64(-1)})
    assert T.zeros(x.shape).ndim == 1
    assert T.ones((2, n), "int8").type == TensorType("int8", (2, None))
    assert T.zeros(3).type.dtype == config.floatX
    assert T.full((2,), 1.5, "float64").type.dtype == "float64"


def test_arange_dtypes():
    assert T.arange(5).type == TensorType("int64", (5,))
    assert T.arange(5, dtype="float32").type == TensorType("float32", (5,))
    assert T.arange(T.iscalar()).type.dtype == "int64"
    assert T.arange(T.dscalar()).type.dtype == "float64"
    assert T.arange(0, 1, 0.1).type.shape == (10,)
    assert T.arange(T.lscalar(), dtype="int8").type.dtype == "int8"
    with pytest.raises(ShapeMismatch, match="step"):
        T.arange(0, 5, 0)
    with pytest.raises(TypeMismatch, match="scalars"):
        T.arange(T.vector())


def test_repeat_and_tile():
    x = T.dvector("x")
    with pytest.raises(DataError, match="not negative"):
        value(T.repeat(x, np.array([1, -1]), 0), {x: np.zeros(2)})
    with pytest.raises(ShapeMismatch, match="3 counts"):
        value(T.repeat(x, np.array([1, 1]), 0), {x: np.zeros(3)})
    assert T.tile(x, 1) is x
    with pytest.raises(TypeMismatch, match="at least 2"):
        T.tile(x, (2, 2), ndim=1)
    assert T.repeat(T.zeros((2, 3)), 2, 1).type.shape == (2, 6)


def test_specify_shape():
    x, n = T.dmatrix("x"), T.lscalar("n")
    assert T.specify_shape(x, (3, None)).type.shape == (3, None)
    out = T.specify_shape(x, (n, 3))
    assert out.type.shape == (None, 3)
    with pytest.raises(ShapeMismatch, match=r"\(2, 3\)"):
        value(out, {x: np.zeros((3, 3)), n: np.int64(2)})


def test_pad_words():
    x = T.dmatrix("x")
    with pytest.raises(ValueError, match="constant, edge"):
        T.pad(x, 1, "means")
    with pytest.raises(TypeMismatch, match="pair of widths"):
        T.pad(x, ((1, 1), (1, 1), (1, 1)))
    with pytest.raises(ShapeMismatch, match="not negative"):
        T.pad(x, -1)
    assert T.pad(T.zeros((2, 3)), ((0, 1), (2, 2))).type.shape == (3, 7)
    image = T.dtensor4("image")
    padded = T.pad(image, ((0, 0), (0, 0), (2, 2), (2, 2)), "reflect")
    a = np.random.default_rng(0).normal(size=(2, 3, 4, 5))
    wanted = np.pad(a, ((0, 0), (0, 0), (2, 2), (2, 2)), "reflect")
    np.testing.assert_array_equal(value(padded, {image: a}), wanted)


def test_triangles_leave_no_nan_behind():
    x = np.full((2, 2), np.nan)
    assert np.isnan(value(T.tril(T.constant(x)))).sum() == 3
    assert T.eye(3).type.dtype == config.floatX
    assert T.eye(3, 4, dtype="int8").type == TensorType("int8", (3, 4))
    m = T.fmatrix("m")
    assert T.identity_like(m).type.dtype == "float32"


def test_shapes_read_no_data():
    """What only needs the shape of an expression does not depend on its value."""
    x = T.dmatrix("x")
    out = T.zeros_like(T.exp(x))
    reads = [n.op for n in toposort([out]) if type(n.op).__name__ == "ShapeI"]
    assert len(reads) == 2


@pytest.mark.parametrize("name", ["scalar", "vector", "row", "col", "matrix", "tensor3", "tensor5"])
def test_constructors(name):
    v = getattr(T, name)("v")
    assert v.name == "v"
    assert v.type.dtype == config.floatX
    assert getattr(T, name)("v", dtype="int8").type.dtype == "int8"
    for letter, dtype in zip("bwilfdcz", T.constructors._LETTERS, strict=True):
        made = getattr(T, letter + name)("v")
        assert made.type.dtype == dtype
        assert made.type.broadcastable == v.type.broadcastable
        assert made.type == getattr(T, letter + name)


def test_several_variables_at_once():
    assert [v.name for v in T.matrices("a", "b")] == ["a", "b"]
    assert len(T.fvectors(3)) == 3
    assert [v.type.dtype for v in T.lscalars("i", "j")] == ["int64", "int64"]
    assert [v.name for v in T.fvectors("xyz")] == ["x", "y", "z"]
    x, y = T.vectors("x", "y", dtype="float64")
    assert x.type.dtype == y.type.dtype == "float64"


def test_tensor_and_as_tensor_variable():
    assert T.tensor("float32", (False, True), "x").type.broadcastable == (False, True)
    assert T.tensor(dtype="int8", shape=(None, 4)).type.shape == (None, 4)
    x = T.vector("x")
    assert T.as_tensor_variable(x) is x
    assert T.as_tensor_variable(x, ndim=3).type.broadcastable == (True, True, False)
    assert T.as_tensor_variable(T.row(), ndim=1).ndim == 1
    with pytest.raises(TypeMismatch, match="at most 1"):
        T.as_tensor_variable(T.matrix(), ndim=1)
    assert isinstance(T.constant(3), T.TensorConstant)
    assert isinstance(x, T.TensorVariable)


def test_star_imports_have_no_clashing_names():
    assert set(T.constructors.__all__) <= set(dir(T))
    for face in (T.shaping, T.indexing, T.extra_ops):
        for name in face.__all__:
            assert getattr(T, name) is getattr(face, name), name
