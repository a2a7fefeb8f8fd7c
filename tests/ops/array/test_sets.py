"""Membership and different elements against NumPy: tables, searches, and comparisons of pairs."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.graph.evaluate import evaluate
from symdnn.graph.traverse import toposort
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.array.sets import IsIn
from symdnn.ops.array.sort import SearchSorted, Sort, Unique

DTYPES = ["int8", "uint8", "int32", "int64", "uint64", "bool", "complex64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]


def drawn(rng, size, dtype):
    a = (20 * rng.normal(size=size)).astype(T.tensor(dtype, ()).type.numpy)
    if dtype in FLOATS and size > 5:
        a[:3] = np.nan, -0.0, np.inf
    return a


@pytest.mark.parametrize("sizes", [(0, 0), (5, 0), (0, 5), (100, 3), (3000, 40), (20000, 200)])
@pytest.mark.parametrize("dtype", [*DTYPES, *FLOATS])
def test_membership(rng, dtype, sizes):
    x, y = T.tensor(dtype, (None, None)), T.tensor(dtype, (None,))
    f = symdnn.function([x, y], [T.isin(x, y), T.isin(x, y, invert=True)])
    a, b = drawn(rng, sizes[0], dtype).reshape(-1, 1), drawn(rng, sizes[1], dtype)
    wide = [v.astype("float32") if dtype == "bfloat16" else v for v in (a, b)]
    want = (wide[0][..., None] == wide[1]).any(-1)
    for found, wanted in zip(f(a, b), (want, ~want), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("count", [0, 1, 7, 16, 17])
@pytest.mark.parametrize("dtype", [*DTYPES, *FLOATS])
def test_membership_among_a_known_number(rng, dtype, count):
    """A few are compared in one loop, which has no axis of the tests."""
    y = T.tensor(dtype, (count,))
    a, b = drawn(rng, 200, dtype), drawn(rng, count, dtype)
    if count:
        a[10:20] = b[-1]
    wide = [v.astype("float32") if dtype == "bfloat16" else v for v in (a, b)]
    for own, of in ((a, wide[0]), (a[11], wide[0][11])):
        x = T.tensor(dtype, np.shape(own))
        f = symdnn.function([x, y], T.isin(x, y))
        np.testing.assert_array_equal(f(own, b), (of[..., None] == wide[1]).any(-1))
        reduced = any(isinstance(n.op, Reduce) for n in toposort([T.isin(x, y)]))
        assert reduced == (not 0 < count <= 16)


@pytest.mark.parametrize("pair", [("int8", "int64"), ("float32", "int32"), ("bool", "uint8")])
def test_membership_of_other_dtypes(rng, pair):
    x, y = (T.tensor(d, (None,)) for d in pair)
    a, b = (drawn(rng, 500, d) for d in pair)
    f = symdnn.function([x, y], T.isin(x, y))
    np.testing.assert_array_equal(f(a, b), np.isin(a, b))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("count", [0, 1, 5, 33, 300])
@pytest.mark.parametrize("static", [True, False])
def test_membership_is_a_search_on_a_gpu_but_of_few(rng, dtype, count, static):
    x, y = T.tensor(dtype, (None, None)), T.tensor(dtype, (count if static else None,))
    mode = symdnn.Mode(target="cuda:sm_90")
    with symdnn.config.change_flags(assert_lowered="raise"):
        f = symdnn.function([x, y], [IsIn()(x, y)], mode=mode)
    kinds = [type(node.op) for node in f.fgraph.apply_nodes]
    assert IsIn not in kinds
    assert (SearchSorted in kinds) == (not static or count > 32)
    limits = np.iinfo(dtype)
    b = rng.integers(-60 * (limits.min < 0), 120, count).astype(dtype)
    b[: count // 4] = limits.max
    b[1 : count // 5] = limits.min
    a = rng.integers(-60 * (limits.min < 0), 120, (9, 40)).astype(dtype)
    a[0, :3] = limits.min, limits.max, 0
    (found,) = evaluate(f.fgraph.outputs, dict(zip(f.fgraph.inputs, (a, b), strict=True)))
    np.testing.assert_array_equal(found, np.isin(a, b))


@pytest.mark.parametrize("dtype", [*DTYPES[:5], "float32"])
@pytest.mark.parametrize("size", [0, 1, 50, 5000])
def test_different_elements(rng, dtype, size):
    x = T.tensor(dtype, (None,))
    f = symdnn.function([x], [*T.unique(x, True, True, True), T.unique(x), *T.unique(x, True)])
    limits = np.iinfo(dtype) if dtype != "float32" else None
    arrays = [drawn(rng, size, dtype)]
    if limits and size > 1:  # a table of the least and the largest numbers, and none
        steps = rng.integers(0, 100, size)
        arrays += [(int(limits.max) - steps.astype(object)).astype(dtype)]
        arrays += [(int(limits.min) + steps.astype(object)).astype(dtype)]
        arrays += [rng.integers(limits.min, limits.max, size, dtype, endpoint=True)]
    for a in arrays:
        want = [*np.unique(a, True, True, True), np.unique(a), *np.unique(a, True)]
        for found, wanted in zip(f(a), want, strict=True):
            np.testing.assert_array_equal(found, wanted)
            assert found.dtype == wanted.dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_orders_of_long_lines_of_narrow_floats(rng, dtype):
    """NumPy's own sort of these leaves long lines out of order, or NaN between numbers."""
    kind = T.tensor(dtype, ()).type.numpy
    a = (np.round(3 * rng.normal(size=70_000)) / 8).astype(kind)
    a[::7] = np.nan
    wide = a.astype("float32")
    ordered = np.sort(wide)
    values, counts = np.unique(wide, return_counts=True)
    x = T.tensor(dtype, (None,))
    found = Sort(0).reference(a), *Unique(return_counts=True).reference(a)
    made = symdnn.function([x], [T.sort(x), *T.unique(x, return_counts=True)])(a)
    for own in (found, made):
        assert own[0].dtype == own[1].dtype == kind
        for got, wanted in zip(own, (ordered, values, counts), strict=True):
            np.testing.assert_array_equal(got.astype(wanted.dtype), wanted)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nan_is_last_where_narrow_floats_are_searched(rng, dtype, side):
    """Both in the table and among the values."""
    kind = T.tensor(dtype, ()).type.numpy
    table, values = (np.round(8 * rng.normal(size=n)) / 8 for n in (40, 300))
    table[::5] = values[::7] = np.nan
    table, values = np.sort(table), values.astype(kind)
    x, v = (T.tensor(dtype, (None,)) for _ in range(2))
    found = symdnn.function([x, v], T.searchsorted(x, v, side))(table.astype(kind), values)
    wide = values.astype("float32")
    np.testing.assert_array_equal(found, np.searchsorted(table.astype("float32"), wide, side))
