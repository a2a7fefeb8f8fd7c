"""Compiled floor division and remainder, bit for bit as NumPy's."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.graph.type import numpy_dtype
from tests.seeded import new_rng

_FLOATS = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2.5, -2.5, 1e-3, 3, 7, 0.1, 0.3, -0.7]


def operands(dtype):
    r, kind = new_rng(), numpy_dtype(dtype)
    if kind.kind == "f":
        special, more = _FLOATS, [r.normal(size=500) * 10, r.normal(size=500) * 3]
    else:
        i = np.iinfo(kind)
        special = [i.min, i.max, 0, 1, 2, 3, 5, 7] + [-1, -2, -3, -7] * (i.min < 0)
        low = -1 if i.min < 0 else 0
        more = [r.integers(100 * low, 100, 500), r.integers(9 * low, 9, 500)]
    pairs = [[x for x in special for _ in special], [y for _ in special for y in special]]
    return [np.concatenate([np.array(p, kind), m.astype(kind)]) for p, m in zip(pairs, more)]


@pytest.mark.usefixtures("always")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "dtypes", ["float64 float32 float16", "int8 int16 int32 int64", "uint8 uint64"]
)
def test_division_with_every_pair_of_special_numbers(dtypes):
    for dtype in dtypes.split():
        x, y = T.vector("x", dtype=dtype), T.vector("y", dtype=dtype)
        f = symdnn.function([x, y], [x // y, x % y], mode=symdnn.Mode(target="cpu"))
        a, b = operands(dtype)
        for found, wanted in zip(f(a, b), (a // b, a % b)):
            np.testing.assert_array_equal(found, wanted)
            numbers = ~np.isnan(wanted) if wanted.dtype.kind == "f" else slice(None)
            np.testing.assert_array_equal(np.signbit(found[numbers].astype(float)),
                                          np.signbit(wanted[numbers].astype(float)))  # fmt: skip


@pytest.mark.usefixtures("always")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "int64", "uint64"])
def test_division_is_one_call(dtype):
    x, y = T.vector("x", dtype=dtype), T.vector("y", dtype=dtype)
    f = symdnn.function([x, y], [x // y, x % y], mode=symdnn.Mode(target="cpu"))
    f(*operands(dtype))
    (plan,) = f.plans()
    assert all(s.launch.native is not None for s in plan.bound.steps)
