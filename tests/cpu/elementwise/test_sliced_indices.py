"""Index arrays beside slices and new axes, and of complex numbers: compiled gathers, scatters."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import IndexOutOfRange
from symdnn.ops.array.getitem import reduce_subtensor

DTYPES = ("float32", "int32", "uint8", "bfloat16", "complex64", "complex128")
ROWS = np.array([3, 0, -1, 7, 3, 3])
COLUMNS = np.array([0, -2, 1, 4, 0, 0])
INDICES = {
    "after": np.s_[ROWS, 1:],
    "step": np.s_[ROWS, ::-3],
    "before": np.s_[1::, COLUMNS],
    "between": np.s_[ROWS, 1:790, COLUMNS],
    "new": np.s_[ROWS, None, :, COLUMNS],
    "table": np.s_[:, np.stack([ROWS, ROWS[::-1]])],
    "whole": np.s_[ROWS],
    "rows": np.s_[1:, None, ROWS, 5:],
}


def numbers(rng, *shape, dtype="float32"):
    x = rng.integers(-90, 90, shape) + (1j * rng.integers(0, 9, shape) if "complex" in dtype else 0)
    return (abs(x) if dtype == "uint8" else x).astype(T.TensorType(dtype, ()).numpy)


def kernels(f):
    return f.lowering_report().kernels()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", INDICES)
def test_gathers_are_compiled(rng, dtype, name):
    x = numbers(rng, 10, 800, 100, dtype=dtype)
    v = T.TensorType(dtype, (None,) * 3)()
    f = symdnn.function([v], v[INDICES[name]])
    for own in (x, np.asfortranarray(x), np.repeat(x, 2, -1)[..., ::2]):
        np.testing.assert_array_equal(f(own), x[INDICES[name]])
    assert "llvm.gather" in kernels(f)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("what", ["set", "add", "max", "min"])
@pytest.mark.parametrize("name", INDICES)
def test_scatters_are_compiled(rng, dtype, what, name):
    if what in ("max", "min") and "complex" in dtype:
        pytest.skip("complex numbers have no order")
    index = INDICES[name]
    x = numbers(rng, 10, 800, 100, dtype=dtype)
    y = numbers(rng, *x[index].shape, dtype=dtype)
    v, w = T.TensorType(dtype, (None,) * 3)(), T.TensorType(dtype, (None,) * y.ndim)()
    part = v[index]
    made = {"set": T.set_subtensor, "add": T.inc_subtensor}.get(what)
    f = symdnn.function([v, w], made(part, w) if made else reduce_subtensor(part, w, what))
    narrow = dtype == "bfloat16" and what != "set"
    wanted = x.copy()
    if what == "set":
        wanted[index] = y
    else:
        {"add": np.add, "max": np.maximum, "min": np.minimum}[what].at(wanted, index, y)
    before = x.copy()
    for own in (x, np.asfortranarray(x)):
        found = f(own, y)
        np.testing.assert_allclose(
            found.astype(complex), wanted.astype(complex), 2e-2 if narrow else 1e-5
        )
    np.testing.assert_array_equal(x, before)
    assert "llvm.scatter" in kernels(f)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_an_index_out_of_range_is_an_error_before_any_write(rng, dtype):
    x = numbers(rng, 10, 800, 100, dtype=dtype)
    v, i = T.TensorType(dtype, (None,) * 3)(), T.lvector()
    s = symdnn.shared(x)
    f = symdnn.function([v, i], v[2:, i])
    g = symdnn.function([i], [], updates=[(s, T.inc_subtensor(s[2:, i], 1))])
    for bad in (800, -801):
        with pytest.raises(IndexOutOfRange, match="of size 800"):
            f(x, np.array([0, bad]))
        with pytest.raises(IndexOutOfRange, match="of size 800"):
            g(np.array([0, bad]))
    np.testing.assert_array_equal(s.get_value(), x)
