"""Sums of 16 bits on vectors: rows in bundles, one row in quarters, conversions of all numbers."""

import numpy as np
import pytest

from symdnn.graph.type import numpy_dtype
from symdnn.ops.array.reduce import Sum
from symdnn.ops.core.scalar import Builder
from symdnn.ops.lowered.fused import FusedReduce
from tests.cpu.harness import compiled
from tests.cpu.nest.test_bundles import folded, schedule_of

pytestmark = compiled

NARROW = ["float16", "bfloat16"]


def sum_of(axis, dtype):
    return Sum((axis,), False, "float32", dtype)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("length", [8, 9, 16, 31, 32, 33, 40, 41, 64, 100, 1024, 2049, 3079])
def test_rows_in_bundles(rng, dtype, length):
    """Rows that follow one another, that are some bytes apart, backwards; columns beside."""
    x = (rng.normal(size=(7, length + 5)) * 9).astype(numpy_dtype(dtype))
    op = sum_of(1, "float32")
    for some in (x[:, :length], x[::-1, 3 : length + 3], np.ascontiguousarray(x[:4, :length])):
        assert schedule_of(op, some, (1,)).shape == "bundles"
        wide = some.astype("float64")
        (total,) = folded(op, some.shape, (1,), [some])
        assert (abs(total - wide.sum(1)) <= 2.0**-22 * abs(wide).sum(1)).all()
    for columns in (2, 4):
        beside = (rng.normal(size=(5, length, columns)) * 9).astype(numpy_dtype(dtype))
        wide = beside.astype("float64")
        (total,) = folded(op, beside.shape, (1,), [beside])
        assert (abs(total - wide.sum(1)) <= 2.0**-22 * abs(wide).sum(1)).all()


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("length", [8, 35, 32 * 4, 32 * 4 + 1, 8192, 8193, 40000])
def test_one_row_in_quarters(rng, dtype, length):
    x = (rng.normal(size=(1, length)) * 9).astype(numpy_dtype(dtype))
    assert schedule_of(sum_of(1, "float32"), x, (1,)).shape == "rows"
    wide = x.astype("float64")
    (total,) = folded(sum_of(1, "float32"), x.shape, (1,), [x])
    assert (abs(total - wide.sum(1)) <= 2.0**-22 * abs(wide).sum(1)).all()


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("length", [35, 150])
def test_what_is_no_number_stays_in_its_row(dtype, rows, length):
    for value in (np.nan, np.inf):
        for at in range(0, length, 3):
            x = np.ones((rows, length), numpy_dtype(dtype))
            x[::2, at] = value
            (total,) = folded(sum_of(1, "float32"), x.shape, (1,), [x], (1,))
            np.testing.assert_array_equal(total, x.astype("float32").sum(1))


@pytest.mark.parametrize("dtype", NARROW)
def test_every_number_is_converted_on_vectors(dtype):
    """One in a row of zeros, so that each sum is a number."""
    every = np.arange(1 << 16, dtype="uint16").view(numpy_dtype(dtype))
    x = np.zeros((1 << 16, 11), numpy_dtype(dtype))
    x[np.arange(1 << 16), np.arange(1 << 16) % 11] = every
    assert schedule_of(sum_of(1, "float32"), x, (1,)).shape == "bundles"
    (total,) = folded(sum_of(1, "float32"), x.shape, (1,), [x], (1,))
    np.testing.assert_array_equal(total, every.astype("float32"))
    (total,) = folded(sum_of(1, dtype), x.shape, (1,), [x], (1,))
    np.testing.assert_array_equal(total.astype("float32"), every.astype("float32"))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_numbers_are_rounded_on_vectors(rng, dtype, source):
    """To the nearest, of two to the even one; by programs and at the end."""
    b = Builder([source])
    op = FusedReduce(b.program([b.cast(b.input(0), dtype)]), (sum_of(1, dtype),))
    x = np.zeros((1 << 14, 9), source)
    bits = rng.integers(0, 1 << 32, 1 << 14, "uint32").view("float32")
    bits[::4] = rng.normal(size=1 << 12) * 2.0 ** rng.integers(-26, 18, 1 << 12)
    halves = np.arange(0x3F00, 0x4100, dtype="uint32") << 16 | 0x8000  # between two of bfloat16
    bits[1 : 1 + 2 * 512 : 2] = halves.view("float32")
    with np.errstate(all="ignore"):
        x[:, 4] = bits
        wanted = x[:, 4].astype("float32").astype(numpy_dtype(dtype))
    for rows in (x, x[:1]):
        (total,) = folded(op, rows.shape, (1,), [rows], (1,))
        np.testing.assert_array_equal(
            total.astype("float32"), wanted[: len(rows)].astype("float32")
        )
