"""Orders of PyTorch: descending, the smallest, NaN above all, and numbers that have no negative."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T

NAN, INF = np.nan, np.inf
DATA = {
    "float32": [[1, NAN, 3, 2, 2], [NAN, -INF, 0, 5, INF]],
    "uint8": [[0, 3, 255, 2, 3], [5, 5, 0, 9, 1]],
    "int8": [[-128, 127, 0, -1, 0], [3, 3, -128, 4, -128]],
    "int64": [[-(2**63), 5, 2**63 - 1, 0, 5], [1, 2, 3, 2, 1]],
    "bool": [[True, False, True, False, True], [False, False, True, True, False]],
}


def ordered(row, descending):
    """Indices by a stable sort, also of the reverse, in which NaN is the largest."""
    keys = [(v != v, 0 if v != v else v) for v in row]
    return sorted(range(len(row)), key=lambda i: keys[i], reverse=descending)


@pytest.mark.parametrize("dtype", DATA)
@pytest.mark.parametrize("descending", [False, True])
def test_sort_and_topk(dtype, descending):
    data = np.array(DATA[dtype], dtype)
    x = T.tensor(dtype, (None, None))
    sorted_, first = x.sort(dim=1, descending=descending), x.topk(2, dim=1, largest=descending)
    found = symdnn.function([x], [*sorted_, x.argsort(dim=1, descending=descending), *first])(data)
    orders = [ordered(row.tolist(), descending) for row in data]
    wanted = np.take_along_axis(data, np.array(orders), 1)
    np.testing.assert_array_equal(found[0], wanted)
    np.testing.assert_array_equal(found[1], orders)
    np.testing.assert_array_equal(found[2], orders)
    np.testing.assert_array_equal(found[3], wanted[:, :2])
    np.testing.assert_array_equal(np.take_along_axis(data, found[4], 1), wanted[:, :2])


@pytest.mark.parametrize("dtype", DATA)
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_extremes_so_far_have_indices(dtype, name):
    data = np.array(DATA[dtype], dtype)
    x = T.tensor(dtype, (None, None))
    values, indices = symdnn.function([x], list(getattr(x, name)(dim=1)))(data)
    of = np.maximum if name == "cummax" else np.minimum
    np.testing.assert_array_equal(values, of.accumulate(data, 1))
    np.testing.assert_array_equal(np.take_along_axis(data, indices, 1), values)
    assert (np.diff(indices, axis=1) >= 0).all()
    np.testing.assert_array_equal(getattr(x, name)(1).eval({x: data}), values)


def test_differences_along_a_dim():
    x = T.constant([[1.0, 4.0, 9.0], [0.0, 1.0, 3.0]])
    for found in (x.diff(dim=0), T.diff(x, dim=0)):
        np.testing.assert_array_equal(found.eval(), [[-1, -3, -6]])
    before = T.diff(x, dim=1, prepend=x[:, :1], append=x[:, -1:])
    np.testing.assert_array_equal(before.eval(), [[0, 3, 5, 0], [0, 1, 2, 0]])
