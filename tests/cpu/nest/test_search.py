"""Compiled searches in a sorted vector beside NumPy's."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from tests.seeded import new_rng


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint32"])
def test_places_are_numpys(dtype, side):
    rng = new_rng()
    x, v = T.vector(dtype=dtype), T.matrix(dtype=dtype)
    with config.change_flags(**{"cpu.compile": "always"}):
        f = symdnn.function([x, v], T.searchsorted(x, v, side=side), mode=symdnn.Mode(target="cpu"))
        for n in (0, 1, 2, 7, 8, 9, 31, 64, 65, 500):
            table = np.sort(rng.integers(0, 50, n)).astype(dtype)
            values = rng.integers(0, 55, (2, 1030)).astype(dtype)
            if dtype.startswith("float"):
                values[0, :3] = np.nan, np.inf, -np.inf
                table[-2:], table[:1] = np.nan, -np.inf
            wanted = np.searchsorted(table, values, side=side)
            np.testing.assert_array_equal(f(table, values), wanted)
            np.testing.assert_array_equal(f(table, values[:, ::-1]), wanted[:, ::-1])
            if dtype.startswith("float"):  # without NaN in the table
                table = np.sort(np.nan_to_num(table))
                wanted = np.searchsorted(table, values, side=side)
                np.testing.assert_array_equal(f(table, values), wanted)
    assert "llvm.search" in str(f.lowering_report())
