"""Compiled conversions of floats to integers: as NumPy's, of all numbers that have room."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from tests.seeded import new_rng

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def numbers(dtype, to):
    """Floats of all sizes that ``to`` has room for, with whole ones around powers of two."""
    rng, most, least = new_rng(), float(np.iinfo(to).max), float(np.iinfo(to).min)
    largest = min(most, float(np.finfo(dtype).max))
    sizes = np.exp(rng.uniform(-5, np.log(largest), 5000))
    near = (2.0 ** np.arange(64)[:, None] + [-1, 0, 1]).ravel()
    found = np.concatenate([sizes, near, [0.0, 0.5, 0.999, 1.5]])
    found = np.concatenate([found, -found])
    with np.errstate(over="ignore"):
        found = found.astype(dtype)
    wide = found.astype("float64")
    return found[(wide >= least) & (wide < 2.0 ** int(np.ceil(np.log2(most)))) & np.isfinite(wide)]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("to", INTEGERS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_are_cut_to_whole_numbers(dtype, to):
    x = T.vector("x", dtype=dtype)
    f = symdnn.function([x], T.cast(x, to), mode=symdnn.Mode(target="cpu"))
    a = numbers(dtype, to)
    np.testing.assert_array_equal(f(a), a.astype(to))
    assert "llvm.elementwise" in f.lowering_report().kernels()


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_out_of_range_are_the_least_int64(dtype):
    x = T.vector("x", dtype=dtype)
    f = symdnn.function([x], T.cast(x, "int64"), mode=symdnn.Mode(target="cpu"))
    a = np.resize(np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**63], dtype), 301)
    np.testing.assert_array_equal(f(a), np.iinfo("int64").min)
