"""Views that a plan takes at each call are those of the references."""

import numpy as np
import pytest

from symdnn.cpu.execution.view_ops import view_of
from symdnn.ops.array.index import Subtensor
from symdnn.ops.core.shape import DimShuffle, Reshape
from tests.seeded import new_rng


@pytest.mark.parametrize(
    ("pattern", "shape"),
    [
        ((), ()), (("x",), ()), ((0,), (5,)), (("x", 0), (5,)), ((0, "x"), (5,)), ((1, 0), (3, 4)),
        ((0, 1), (3, 4)), ((1, "x", 0), (3, 4)), ((0,), (3, 1)), ((), (1, 1)),
        (("x", 2, 0), (3, 1, 4)), ((0, 3, 1, 2), (2, 3, 4, 5)), ((1, 0), (0, 4)),
    ],
)  # fmt: skip
def test_dimensions_in_another_order(pattern, shape):
    x, op = new_rng().normal(size=shape), DimShuffle(pattern)
    x = np.asarray(x)
    (found,), (wanted,) = view_of(op, len(shape), ())(x), op.compute(x)
    assert isinstance(found, np.ndarray)
    assert found.shape == wanted.shape
    assert found.strides == wanted.strides or 0 in shape
    assert x.ndim == 0 or found.size == 0 or np.shares_memory(found, x)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_a_scalar_of_dropped_dimensions_is_a_view(ndim):
    """A group takes views before the steps that write what they look at."""
    x = np.ones((1,) * ndim)
    (got,) = view_of(DimShuffle(()), ndim, ())(x)
    assert got.shape == ()
    assert np.shares_memory(got, x)


@pytest.mark.parametrize(
    ("op", "rest"),
    [
        (Subtensor((2, (None, None, -1))), ()), (Subtensor((-1, 3)), ()),
        (Subtensor(((1, -1, None), (None, None, 2))), ()), (Subtensor(((1, "?", None), 0)), (4,)),
        (Reshape((None, None)), (4, 5)), (Reshape((2, None)), (2, -1)),
    ],
)  # fmt: skip
def test_slices_and_shapes_are_the_references_views(op, rest):
    x, rest = new_rng().normal(size=(5, 4)), [np.asarray(n) for n in rest]
    (wanted,) = op.compute(x, *rest)
    (found,) = view_of(op, 2, wanted.shape)(x, *rest)
    assert found.strides == wanted.strides
    assert np.shares_memory(found, x)
    np.testing.assert_array_equal(found, wanted)
