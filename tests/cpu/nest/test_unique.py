"""The different ones of many numbers, and how often each occurs, against NumPy."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu.nest.unique import UniqueKernel
from symdnn.graph.type import TensorType
from symdnn.ops.array.sort import Unique
from tests.cpu.harness import call_of, compiled

pytestmark = compiled
VECTOR = TensorType("int64", (None,))


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64"]
)
@pytest.mark.parametrize("shape", [(1,), (2,), (1023,), (1024,), (40, 130)])
def test_values_and_counts(rng, dtype, shape):
    for high in (2, 100, 10**9):
        x = rng.normal(size=shape) * high
        x = x.round().astype(dtype if dtype[0] == "f" else "int64").astype(dtype)
        if dtype[0] == "f" and x.size > 9:
            x.flat[:9] = np.nan, -np.nan, 0, -0.0, np.inf, np.inf, -np.inf, np.nan, 1
        for a in (x, x.T, x[::-1]):
            call = call_of(Unique(return_counts=True), [a], TensorType(dtype, (None,)), VECTOR)
            assert UniqueKernel().refuses(call) is None
            got = UniqueKernel().bind(call)([a], [None, None])
            for found, wanted in zip(got, np.unique(a, return_counts=True), strict=True):
                np.testing.assert_array_equal(found, wanted)
                assert found.dtype == wanted.dtype
            call = call_of(Unique(), [a], TensorType(dtype, (None,)))
            np.testing.assert_array_equal(UniqueKernel().bind(call)([a], [None])[0], got[0])


@pytest.mark.parametrize("more", ["return_index", "return_inverse"])
def test_other_results_are_left_to_numpy(rng, more):
    x = rng.normal(size=3000)
    call = call_of(Unique(**{more: True}), [x], TensorType("float64", (None,)), VECTOR)
    assert UniqueKernel().refuses(call)
    v = T.dvector()
    for found, wanted in zip(
        symdnn.function([v], T.unique(v, **{more: True}))(x), np.unique(x, **{more: True})
    ):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64", "int64"])
@pytest.mark.parametrize("n", [0, 1, 5, 300, 2000])
def test_a_function_of_any_dtype(rng, dtype, n):
    x = T.TensorType(dtype, (None,))("x")
    f = symdnn.function([x], [T.unique(x), *T.unique(x, return_counts=True)])
    a = np.round(rng.normal(size=n) * 40).astype(x.type.numpy)
    if n > 3 and dtype != "int64":
        a[1:4] = np.nan
    plain = a.astype("float32") if dtype == "bfloat16" else a
    values, same, counts = f(a)
    wanted = np.unique(plain, return_counts=True)
    np.testing.assert_array_equal(values.astype(plain.dtype), wanted[0])
    np.testing.assert_array_equal(same.astype(plain.dtype), wanted[0])
    np.testing.assert_array_equal(counts, wanted[1])
