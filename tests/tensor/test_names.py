"""The names of `T` that compute nothing new: grids, constants known in advance, labels."""

import math

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import function
from symdnn.errors import InputError, NotScalarConstantError, SymbolicValueError, TypeMismatch
from symdnn.graph.same import equal_computations, is_same_graph


def value(v: T.Variable) -> np.ndarray:
    return function([], v)()


def test_grids() -> None:
    for ours, theirs in zip(T.mgrid[0:2, 1:7:2], np.mgrid[0:2, 1:7:2]):
        np.testing.assert_array_equal(value(ours), theirs)
    for ours, theirs in zip(T.ogrid[0:2, 1:7:2], np.ogrid[0:2, 1:7:2]):
        np.testing.assert_array_equal(value(ours), theirs)
    n = T.lscalar("n")
    assert function([n], T.mgrid[0:n][0])(3).tolist() == [0, 1, 2]
    with pytest.raises(TypeMismatch, match="end"):
        T.mgrid[3:]


def test_permutations() -> None:
    x = np.arange(6.0).reshape(2, 3)
    order = np.array([[2, 0, 1], [1, 2, 0]])
    wanted = np.take_along_axis(x, order, 1)
    np.testing.assert_array_equal(value(T.permute_row_elements(x, order)), wanted)
    back = T.permute_row_elements(T.permute_row_elements(x, order), order, inverse=1)
    np.testing.assert_array_equal(value(back), x)
    np.testing.assert_array_equal(value(T.permute_row_elements(x, order[0])), x[:, order[0]])


def test_at_least_so_many_dimensions() -> None:
    assert [f(T.scalar()).ndim for f in (T.atleast_1d, T.atleast_2d, T.atleast_3d)] == [1, 2, 3]
    assert T.atleast_2d(T.tensor3()).ndim == 3


def test_constants_known_in_advance() -> None:
    x, n = T.matrix("x"), T.lscalar("n")
    assert T.get_scalar_constant_value(T.constant(2) * 3) == 6
    assert T.get_scalar_constant_value(T.alloc(np.float32(7), n, n)) == 7
    assert T.TensorType("float32", (None, 4))("y").shape[1].get_scalar_constant_value() == 4
    for unknown in (x.shape[0], x, T.constant([1, 2])):
        with pytest.raises(NotScalarConstantError):
            T.get_scalar_constant_value(unknown)
    assert T.get_vector_length(x.shape) == 2
    with pytest.raises(ValueError, match="length"):
        T.get_vector_length(T.vector())


def test_known_sizes_are_numbers_of_python() -> None:
    """Sizes that types know, and what is computed of them: as ints and floats, in ``if``."""
    x = T.TensorType("float32", (None, 8, 2))("x")
    some, known, two = x.shape
    half = known // 2
    assert (int(known), int(half), float(two / 4), math.sqrt(half)) == (8, 4, 0.5, 2.0)
    assert [*range(half)] == [0, 1, 2, 3]
    assert ["a", "b", "c"][two] == "c"
    assert np.zeros((known, two)).shape == (8, 2)
    assert [part.type.shape[1] for part in x.split(half, dim=1)] == [4, 4]
    assert f"{known:,} {half * 1000:,} {half / 3:.2f}" == "8 4,000 1.33"
    assert known > half
    assert not known <= half
    with pytest.raises(TypeError, match="integer"):
        range(two / 4)
    for asked in (lambda: int(some), lambda: range(some), lambda: float(some + two),
                  lambda: bool(some > two), lambda: int(T.constant([1])),
                  lambda: int(symdnn.shared(3)), lambda: int(T.iscalar())):  # fmt: skip
        with pytest.raises(SymbolicValueError):
            asked()


def test_same_graphs() -> None:
    x, y, z = T.vectors("xyz")
    a, b = T.exp(x + 2 * y), T.exp(x + 2 * y)
    assert is_same_graph(a, b)
    assert not is_same_graph(a, T.exp(x + 3 * y))
    assert not is_same_graph(a, T.exp(x + 2 * z))
    assert is_same_graph(a, T.exp(x + 2 * z), givens={y: z})
    assert equal_computations([a, b], [b, a])
    assert equal_computations([x + y], [z + y], [x], [z])
    assert not equal_computations([x + y], [z + y])
    assert not equal_computations([x], [x, y])


def test_labels() -> None:
    counts, labels = T.nnet.confusion_matrix(np.array([0, 4, 4, 7]), np.array([0, 4, 7, 7]))
    np.testing.assert_array_equal(value(counts), [[1, 0, 0], [0, 1, 1], [0, 0, 1]])
    np.testing.assert_array_equal(value(labels), [0, 4, 7])

    logits, bias = np.array([[0.0, 1.0], [3.0, 0.0]]), np.array([0.5, 0.0])
    outs = T.nnet.crossentropy_softmax_argmax_1hot_with_bias(logits, bias, np.array([0, 0]))
    nll, probabilities, best = map(value, outs)
    e = np.exp(logits + bias)
    np.testing.assert_allclose(probabilities, e / e.sum(1, keepdims=True))
    np.testing.assert_allclose(nll, -np.log(probabilities[:, 0]))
    np.testing.assert_array_equal(best, [1, 0])

    rows = T.nnet.prepend_scalar_to_each_row(9, np.ones((2, 2), "float32"))
    np.testing.assert_array_equal(value(rows), [[9, 1, 1], [9, 1, 1]])


def test_ways_to_stack() -> None:
    a, b = T.vectors("ab")
    ways = [T.stack([a, b]), T.stack(a, b), T.stack(tensors=[a, b]), T.stack([a, b], 0)]
    assert all(is_same_graph(ways[0], w) for w in ways)
    assert is_same_graph(T.stack([a, b], 1), T.stack(tensors=[a, b], axis=1))


def test_prepend_scalar_to_rows_without_columns():
    val, mat = T.fscalar(), T.fmatrix()
    f = function([val, mat], T.nnet.prepend_scalar_to_each_row(val, mat))
    for shape in ((3, 0), (0, 2), (0, 0), (2, 2)):
        want = np.insert(np.ones(shape, "float32"), 0, 7, 1)
        np.testing.assert_array_equal(f(7, np.ones(shape, "float32")), want)


def test_a_name_is_a_string():
    x = T.matrix("x")
    with pytest.raises(InputError, match="wanted a string as its name, got Variable"):
        T.vector(x)
