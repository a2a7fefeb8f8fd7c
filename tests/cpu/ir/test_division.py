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


@pytest.mark.usefixtures("always")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtypes", ["int8 int16 int32 int64", "uint8 uint16 uint32 uint64"])
def test_division_by_constants(dtypes):
    for dtype in dtypes.split():
        i, x = np.iinfo(dtype), T.vector("x", dtype=dtype)
        numbers = [1, 2, 3, 7, 10, 100, 127, 0, i.max, i.max // 2, i.min, *[-1, -3] * (i.min < 0)]
        a = np.unique(
            np.concatenate([*operands(dtype), new_rng().integers(i.min, i.max, 500, dtype)])
        )
        for b in [np.array(n, dtype) for n in numbers]:
            f = symdnn.function([x], [x // b, x % b], mode=symdnn.Mode(target="cpu"))
            for found, wanted in zip(f(a), (a // b, a % b)):
                np.testing.assert_array_equal(found, wanted, str(b))


@pytest.mark.usefixtures("always")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_quotients_of_16_bits_are_exact(dtype):
    """Next to multiples, where a quotient in float32 could be rounded to the next integer."""
    x, y = T.vector("x", dtype=dtype), T.vector("y", dtype=dtype)
    f = symdnn.function([x, y], [x // y, x % y], mode=symdnn.Mode(target="cpu"))
    i = np.iinfo(dtype)
    b = np.arange(1, i.max + 1, 7).astype(dtype)
    for k in (1, 2, 3, 100, 181, 255):
        for off in (-1, 0, 1):
            a = (i.max // b.astype(int) // k * b + off).clip(i.min, i.max).astype(dtype)
            for found, wanted in zip(f(a, b), (a // b, a % b)):
                np.testing.assert_array_equal(found, wanted)


def test_a_divisor_that_is_a_number_is_in_the_program():
    x = T.vector("x", dtype="int32")
    for out in (x // 3, x % 3):
        f = symdnn.function([x], out, mode=symdnn.Mode(target="cpu"))
        (node,) = f.fgraph.nodes
        assert tuple(node.inputs) == tuple(f.fgraph.inputs)


@pytest.mark.usefixtures("always")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_quotients_of_64_bits_are_exact(dtype):
    """Numbers of any size, next to multiples, and beyond what float64 has exactly."""
    r, i, count = new_rng(), np.iinfo(dtype), 20_000
    a, b, q = (
        r.integers(i.min, i.max, count, dtype, endpoint=True) >> r.integers(0, 63, count, dtype)
        for _ in range(3)
    )
    near = q * b + r.integers(0, 3, count, dtype) - np.array(1, dtype)  # they may wrap
    powers = np.array([1 << 53, (1 << 53) + 1, 1 << 62, (1 << 62) + 1], dtype)
    ends = np.array([i.min, i.min + 1, i.max - 1024, i.max - 1023, i.max - 1, i.max], dtype)
    some = np.concatenate([powers, ends, np.arange(4).astype(dtype)])
    some = np.concatenate([some, np.array(0, dtype) - some])
    a, b = (
        np.concatenate([a, near, np.repeat(some, some.size)]),
        np.concatenate([b, b, np.tile(some, some.size)]),
    )
    x, y = T.vector("x", dtype=dtype), T.vector("y", dtype=dtype)
    f = symdnn.function([x, y], [x // y, x % y], mode=symdnn.Mode(target="cpu"))
    for found, wanted in zip(f(a, b), (a // b, a % b)):
        np.testing.assert_array_equal(found, wanted)
