"""Comparisons of each element with a few tests, against NumPy."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.elementwise.sets import IsInKernel
from symdnn.graph.type import TensorType
from symdnn.ops.array.sets import IsIn
from tests.cpu.harness import call_of, compiled, launched

pytestmark = compiled


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "uint64"])
@pytest.mark.parametrize("count", [1, 3, 8, 9, 16])
def test_few_tests_are_compared(rng, dtype, count):
    x = rng.integers(0, 60, (70, 90)).astype(dtype)
    tests = rng.integers(0, 60, 2 * count).astype(dtype)
    for a, b in (
        (x, tests[:count]), (x.T, tests[::2]), (x[::-1, ::3], tests[:count][::-1]),
        (x[0, 0], tests[:count]), (tests[count - 1 : count], tests[:count]),
    ):  # fmt: skip
        a = np.asarray(a)
        call = call_of(IsIn(), [a, b], TensorType("bool", a.shape))
        assert IsInKernel().refuses(call) is None or a.size == 1  # little work
        for threads in (1, 3):
            with config.change_flags(**{"openmp.threads": threads}):
                (got,) = launched(IsInKernel(), call, [a, b])
            np.testing.assert_array_equal(got, np.isin(a, b))


@pytest.mark.parametrize("count", [0, 17, 1000])
def test_many_tests_and_none_are_left_to_numpy(rng, count):
    x, tests = rng.integers(0, 60, (70, 90)), rng.integers(0, 60, count)
    call = call_of(IsIn(), [x, tests], TensorType("bool", x.shape))
    assert IsInKernel().refuses(call) is not None
    a, b = T.lmatrix(), T.lvector()
    f = symdnn.function([a, b], T.isin(a, b))
    np.testing.assert_array_equal(f(x, tests), np.isin(x, tests))
    np.testing.assert_array_equal(f(x, x[0, :5]), np.isin(x, x[0, :5]))
