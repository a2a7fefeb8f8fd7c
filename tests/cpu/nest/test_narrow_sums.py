"""Sums of 16 bits: four numbers at a time in float32, these sums in float64."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.ops.nest.of_ops import reduction_fold

SHAPES = [(n, 300) for n in (1, 3, 8, 9, 600)] + [(300, n) for n in (1, 2, 4, 5, 31, 600, 9001)]


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_error_is_bounded(rng, shape, dtype, axis):
    x = T.tensor(dtype, (None, None))
    f = symdnn.function([x], [x.sum(axis, dtype="float32"), x.sum(axis), x.mean(axis)])
    a = rng.normal(size=shape) * np.exp(1.5 * rng.normal(size=shape))
    a = a.astype(x.type.numpy)
    wide = a.astype("float64")
    exact, size = wide.sum(axis), abs(wide).sum(axis)
    results = []
    for count in (1, 2):
        with config.change_flags(**{"openmp.threads": count}):
            results.append(f(a))
    (total, narrow, mean), again = results
    bound = 2.0**-23 * size + 2.0**-24 * abs(exact)
    assert (abs(total.astype("float64") - exact) <= bound).all()
    last = 2.0**-11 if dtype == "float16" else 2.0**-8
    count = a.size / exact.size
    for found, want in ((narrow, exact), (mean, exact / count)):
        room = last * abs(want) + 2.0**-22 * size + 2.0**-24
        kept = np.isfinite(found.astype("float64"))  # beyond the largest number of float16
        assert (abs(found.astype("float64") - want)[kept] <= room[kept]).all()
    for one, two in zip(results[0], again, strict=True):
        np.testing.assert_array_equal(one.astype("float64"), two.astype("float64"))


def test_a_wide_accumulator_is_kept():
    x = T.tensor("bfloat16", (None,))
    f = symdnn.function([x], T.sum(x, acc_dtype="float64", dtype="float64"))
    a = np.tile(np.array([2.0**100, 1, -(2.0**100), 1]), 5000).astype(x.type.numpy)
    assert f(a) == 10000
    few = [reduction_fold(T.sum(x, acc_dtype=d).owner.op, ("bfloat16",), "int32", True)
           for d in ("float64", "float32")]  # fmt: skip
    assert [bool(fold.monoids[0].few) for fold in few] == [False, True]
