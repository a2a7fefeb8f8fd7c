"""Shapes with what tuples have: a length, slices, ``+`` with a tuple."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import ShapeMismatch, SymbolicValueError, TypeMismatch

VALUE = np.zeros((3, 4, 5), "float32")
FORMS = {
    "after": lambda s: s + (2, 7),
    "before": lambda s: (2, 7) + s,
    "both": lambda s: (1,) + s[:1] + (2,),
    "slice": lambda s: s[:-1] + (2,),
    "nothing": lambda s: s[:0] + (2,),
    "empty": lambda s: () + s + (),
    "part of a sum": lambda s: (s + (2, 7))[2:] + (1,),
    "an entry": lambda s: s[1:] + (s[0] * 2, -1),
    "of itself": lambda s: s[:1] + (*s[1:],),
}


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_tuples_are_joined(form, declared) -> None:
    x = T.TensorType("float32", VALUE.shape if declared else (None, 4, None))("x")
    for shape in (x.shape, x.size(), T.shape(x)):
        v = FORMS[form](shape)
        found = symdnn.function([x], v, on_unused_input="ignore")(VALUE)
        assert tuple(found) == FORMS[form](VALUE.shape)
        assert (found.dtype, len(v)) == ("int64", len(found))


def test_sizes_of_results() -> None:
    @symdnn.jit
    def heads(x):
        y = x.reshape(x.shape[:-1] + (2, 2)) + T.zeros(x.shape[:1] + (1, 2, 2))
        return symdnn.vmap(lambda row: row.reshape((1,) + row.shape))(y)

    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    assert np.array_equal(heads(x), x.reshape(2, 1, 3, 2, 2))
    assert heads(x[:0]).shape == (0, 1, 3, 2, 2)
    v = T.tensor3("v")
    copied, joined = pickle.loads(pickle.dumps([v, v.shape + (1,)]))
    assert tuple(symdnn.function([copied], joined)(VALUE)) == (3, 4, 5, 1)


def test_lengths() -> None:
    x = T.tensor3("x")
    assert [len(v) for v in (x.shape, x.shape[1:], x.shape[:0], x.size())] == [3, 2, 0, 3]


def test_comparison_with_tuples() -> None:
    """What is known is decided, what is known in a call only is an error, not False."""
    x = T.TensorType("float32", (None, 4))("x")
    full = T.TensorType("float32", (3, 4))("full")
    equal = [(full.shape, (3, 4)), (full.size(), (3, 4)), (full.shape[1:], (4,)), (x.shape[:0], ())]
    assert all(a == b and b == a for a, b in equal)
    n = x.shape[0]
    equal = [(full.shape, (np.int64(3), np.int32(4))), (x.shape[1:], (np.int64(4),))]
    assert all(a == b for a, b in equal)
    other = [(full.shape, (np.int64(3), np.int64(5)))]
    other += [(full.shape, (3, 5)), (x.shape, (3, 5)), (x.shape, (4,)), (x.shape, [3, 4])]
    other += [(T.zeros((2, n)).shape[:1], (n, 1)), (x.shape[:1] + (7,), (n, 8))]
    assert all(a != b for a, b in other)
    for f in (lambda x: x.shape == (3, 4), lambda x: x.shape != (3, 4)):
        with pytest.raises(SymbolicValueError, match="sizes are known in a call only"):
            symdnn.jit(f)(VALUE[0])
    shape = x.shape
    assert shape in {shape: 1}


def test_comparison_of_shapes() -> None:
    """Two shapes are equal where all sizes are, as those of arrays; or it is an error."""
    x, full = T.TensorType("float32", (None, 4))("x"), T.TensorType("float32", (3, 4))("full")
    assert x.shape == x.shape
    assert full.shape == T.zeros((3, 4)).shape
    assert full.shape[1:] == x.shape[1:]
    assert full.shape != T.zeros((3, 5)).shape
    assert x.shape != T.zeros((7, 5)).shape
    with pytest.raises(SymbolicValueError, match="sizes are known in a call only"):
        assert x.shape == full.shape


def test_comparison_of_one_size() -> None:
    """A size that is known is a number for ``==``, as it is for ``<``."""
    x, y = T.TensorType("float32", (None, 8))("x"), T.TensorType("float32", (8, 5))("y")
    size = x.shape[1]
    equal = [(size, 8), (size, np.int64(8)), (size, 8.0), (size, y.shape[0]), (size % 2, 0)]
    equal += [(size // 2, 4), (x.size(1), 8), (y.size, 40), (x.shape[0], x.shape[0])]
    assert all(a == b and b == a and bool(a != b) is False for a, b in equal)
    other = [(size, 7), (size, y.shape[1]), (size % 3, 0), (size, None), (size, "8"), (size, (8,))]
    assert all(a != b and b != a and bool(a == b) is False for a, b in other)
    assert size in (1, 8)
    n, v = T.iscalar("n"), T.matrix("v")  # no sizes: objects
    assert n != 3
    assert v != 8
    for f in (lambda: x.shape[0] == 8, lambda: x.shape[0] != 8, lambda: x.shape[0] % 2 == 0):
        with pytest.raises(SymbolicValueError, match="known in a call only. Declare sizes"):
            f()
    both = (
        r"^(x\.shape\[0\] == v\.shape\[0\]|v\.shape\[0\] == x\.shape\[0\]): .*known in a call only"
    )
    for a, b in ((x.shape[0], v.shape[0]), (v.shape[0], x.shape[0])):
        with pytest.raises(SymbolicValueError, match=both):
            assert a == b
    with pytest.raises(
        SymbolicValueError, match=r"^(x\.shape == v|v\.shape == x)\.shape: the sizes"
    ):
        assert x.shape == v.shape


@pytest.mark.parametrize("chosen", [
    lambda x: x if x.shape[0] == 2 else -x, lambda x: x if x.size % 2 == 0 else -x,
    lambda x: x if x.shape[0] != 2 else -x, lambda x, n=0: x if x.sum() == n else -x,
    lambda x: x if x.shape[0] == x.shape[1] else -x,
])  # fmt: skip
def test_no_branch_of_a_traced_function_is_chosen_in_silence(chosen) -> None:
    with pytest.raises(SymbolicValueError, match="known in a call only"):
        symdnn.jit(chosen)(VALUE[0])


def test_theano_programs_compare_objects(theano_names) -> None:
    x = T.TensorType("float32", (None, 4))("x")
    assert x.shape[1] != 4
    assert x.shape[0] != 3
    assert x.shape != x.shape


def test_arithmetic_stays() -> None:
    """Shapes are vectors: with numbers, lists, arrays and shapes of one length they calculate."""
    x = T.tensor3("x")
    sums = [x.shape + 1, x.shape + [1, 2, 3], np.array([1, 2, 3]) + x.shape, x.shape + x.shape - 1]
    found = symdnn.function([x], sums)(VALUE)
    assert [v.tolist() for v in found] == [[4, 5, 6], [4, 6, 8], [4, 6, 8], [5, 7, 9]]


def test_errors() -> None:
    x = T.tensor3("x")
    with pytest.raises(ShapeMismatch, match=r"got \[2, 1\].*\(\*a, \*b\) to join"):
        x.shape[:2] + x.shape[2:]
    with pytest.raises(TypeMismatch, match="wanted an integer scalar"):
        x.shape + (0.5,)


def test_theano_programs_add(theano_names) -> None:
    x = T.tensor3("x")
    v = x.shape + (1, 2, 3)
    assert symdnn.function([x], v)(VALUE).tolist() == [4, 6, 8]


@pytest.fixture
def theano_names(monkeypatch):
    """What ``symdnn.compat.theano.install`` makes of NumPy's functions."""
    monkeypatch.setattr("symdnn.ops.core.called_size.numpy_calls", {"add"})
