"""Gradients of slices as one kernel of a GPU: functions against NumPy, by the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.array.index import IncSubtensor
from symdnn.ops.core.shape import Alloc
from symdnn.ops.lowered.gathered import FusedPlacedSums, PlacedSums
from symdnn.opt.lower.increments import _MOST_PARTS
from tests.gpu import emulator
from tests.gpu.fake_device import fake_device  # noqa: F401
from tests.gpu.table import assert_close

by_emulator = pytest.mark.skipif(not emulator.AVAILABLE, reason="needs g++")
EMULATED = symdnn.Mode(target="cuda:sm_90")


def places(x: Any, parts: Any, values: Any) -> Any:
    """Values that are added to parts of zeros, as an expression."""
    found = x.zeros_like()
    for part, value in zip(parts, values, strict=True):
        found = T.inc_subtensor(found[part], value)
    return found


def placed_by_numpy(x: Any, parts: Any, values: Any) -> Any:
    """Each sum is rounded."""
    found = np.zeros_like(x)
    for part, value in zip(parts, values, strict=True):
        found[part] += value
    return found


#: The slices of a matrix, and what is added to them, of NumPy's functions or of ours.
PROGRAMS = {
    "two functions": (
        (np.s_[1:], np.s_[:-1]),
        lambda N, x, y: (N.exp(x[1:]) * y[:-1], N.sqrt(N.abs(y[1:]))),
    ),
    "one function twice": (
        (np.s_[:, 1:], np.s_[:, :-1]),
        lambda N, x, y: (N.sign(x[:, 1:] - x[:, :-1]), -N.sign(x[:, 1:] - x[:, :-1])),
    ),
    "backwards": (
        (np.s_[::-1, ::-2], np.s_[-2::-3]),
        lambda N, x, y: (x[:, ::2] * y[:, ::2], N.maximum(x[1::3], y[1::3])),
    ),
    "a row for all": (
        (np.s_[2:], np.s_[:, ::2]),
        lambda N, x, y: (x[2:] * y[:1], y[:, :1] + N.where(x > y, x, y)[:, ::2]),
    ),
    "an empty part": (
        (np.s_[40:], np.s_[:3]),
        lambda N, x, y: (N.exp(x[40:]), N.exp(x[:3]) - y[:3]),
    ),
    "constants": (
        (np.s_[1:-1], np.s_[0:1]),
        lambda N, x, y: (x[1:-1] * 3.0 + 1.0, 2.0 * y[:1]),
    ),
    "no function": ((np.s_[1:], np.s_[:-1]), lambda N, x, y: (x[1:], y[:-1])),
}
IN_DTYPES = [(name, "float32") for name in PROGRAMS]
IN_DTYPES += [("backwards", "float64"), ("a row for all", "float16"), ("constants", "bfloat16")]


def compiled(vs: Any, outputs: Any, mode: Any = EMULATED) -> Any:
    """The function; nothing is added to zeros that a kernel wrote before."""
    f = symdnn.function(vs, outputs, mode=mode, on_unused_input="ignore")
    ops = [n.op for n in f.fgraph.toposort()]
    assert not any(isinstance(op, IncSubtensor | Alloc) for op in ops)
    assert any(isinstance(op, FusedPlacedSums | PlacedSums) for op in ops)
    return f


def matrices(rng: Any, dtype: str, shape: tuple[int, int]) -> list[Any]:
    """A few elements are no numbers."""
    found = [rng.normal(size=shape).astype(numpy_dtype(dtype)) for _ in range(2)]
    for a in found:
        a[rng.random(shape) < 0.05] = np.nan
    return found


@by_emulator
@pytest.mark.parametrize(("name", "dtype"), IN_DTYPES)
def test_programs_in_sizes_that_a_call_knows(
    fake_device: Any,  # noqa: F811
    rng: Any,
    name: str,
    dtype: str,
) -> None:
    parts, values = PROGRAMS[name]
    x, y = (TensorType(dtype, (None, None))(v) for v in "xy")
    f = compiled([x, y], places(x, parts, [v.astype(dtype) for v in values(T, x, y)]))
    for shape in ((9, 14), (50, 5), (4, 1)):
        a, b = matrices(rng, dtype, shape)
        with np.errstate(all="ignore"):
            given = [v.astype(a.dtype) for v in values(np, a, b)]
        wanted = placed_by_numpy(a, parts, given)
        narrow = {"float16": 4e-3, "bfloat16": 3e-2}
        assert_close(np.asarray(f(a, b)), wanted, narrow.get(dtype))


def smoothed(N: Any, v: Any, w: Any) -> Any:
    """Differences at the ends, as NumPy's gradient has them, and a penalty."""
    ends = N.square(v[1] - v[0]).sum() + (w[-1] * N.square(v[-1] - v[-2])).sum()
    return N.square(v[2:] - v[:-2]).sum() + ends + 0.5 * N.square(v).sum()


@by_emulator
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_increments_of_an_array(fake_device: Any, rng: Any, dtype: str) -> None:  # noqa: F811
    """The gradient of a penalty is a part, too."""
    v, w = (TensorType(dtype, (7, 9))(n) for n in "vw")
    f = compiled([v, w], symdnn.grad(smoothed(T, v, w), v))
    a, b = (rng.normal(size=(7, 9)).astype(dtype) for _ in range(2))
    wanted = a.copy()
    for high, low, weight in (
        (np.s_[2:], np.s_[:-2], 1), (np.s_[1], np.s_[0], 1), (np.s_[-1], np.s_[-2], b[-1]),
    ):  # fmt: skip
        step = 2 * weight * (a[high] - a[low])
        wanted[high] += step
        wanted[low] -= step
    assert_close(np.asarray(f(a, b)), wanted, None)


def chain(count: int) -> tuple[Any, Any, Any]:
    """A row, and the sum of the products of each element with this many neighbours."""
    x = T.dvector("x")
    parts = [np.s_[k : k + 20] for k in range(count)]
    return x, parts, [T.exp(x[p]) * (k + 1) for k, p in enumerate(parts)]


@by_emulator
@pytest.mark.parametrize("count", [_MOST_PARTS, _MOST_PARTS + 1])
def test_many_parts(fake_device: Any, rng: Any, count: int) -> None:  # noqa: F811
    """Each element looks at all parts: more than the most are added one after another."""
    x, parts, values = chain(count)
    f = symdnn.function([x], places(x, parts, values), mode=EMULATED)
    ops = [n.op for n in f.fgraph.toposort()]
    sums = [op for op in ops if isinstance(op, FusedPlacedSums | PlacedSums)]
    assert len(sums) == (count <= _MOST_PARTS)
    a = rng.normal(size=40)
    given = [np.exp(a[p]) * (k + 1) for k, p in enumerate(parts)]
    assert_close(np.asarray(f(a)), placed_by_numpy(a, parts, given))


def curvature(x: Any, w: Any) -> Any:
    """Slices of slices, forwards and backwards."""
    second = x[2:] - 2 * x[1:-1] + x[:-2]
    mirrored = x[:, ::-1][:, ::2] * x[:, ::2]
    return (T.tanh(second) * w[1:-1]).sum() + T.sqr(mirrored).sum()


@by_emulator
def test_gradients_agree_with_finite_differences(fake_device: Any, rng: Any) -> None:  # noqa: F811
    x, w = T.dmatrices("x", "w")
    cost = curvature(x, w)
    slope = symdnn.grad(cost, x)
    f = compiled([x, w], slope)
    again = symdnn.function([x, w], symdnn.grad((slope * w).sum(), x), mode=EMULATED)
    assert any(isinstance(n.op, PlacedSums) for n in again.fgraph.toposort())
    on_cpu = symdnn.Mode(target="cpu")
    value = symdnn.function([x, w], cost, mode=on_cpu)
    a, b, step = rng.normal(size=(5, 7)), rng.normal(size=(5, 7)), 1e-5
    got, wanted = np.asarray(f(a, b)), np.zeros_like(a)
    for at in np.ndindex(a.shape):
        move = np.zeros_like(a)
        move[at] = step
        wanted[at] = (value(a + move, b) - value(a - move, b)) / (2 * step)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)
    along = (np.asarray(f(a + step * b, b)) - np.asarray(f(a - step * b, b))) / (2 * step)
    np.testing.assert_allclose(np.asarray(again(a, b)), along, rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "dtype"), IN_DTYPES)
def test_programs_on_a_device(cuda: Any, rng: Any, name: str, dtype: str) -> None:
    """Beside the function that a CPU computes, with equal bits in each call."""
    parts, values = PROGRAMS[name]
    x, y = (TensorType(dtype, (None, None))(v) for v in "xy")
    out = places(x, parts, [v.astype(dtype) for v in values(T, x, y)])
    f = compiled([x, y], out, symdnn.Mode(target="cuda"))
    mode = symdnn.Mode(target="cpu")
    beside = symdnn.function([x, y], out, mode=mode, on_unused_input="ignore")
    for shape in ((9, 14), (1000, 77), (4, 1)):
        a, b = matrices(rng, dtype, shape)
        found = [np.asarray(f(a, b)) for _ in range(3)]
        narrow = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5}
        assert_close(found[0], np.asarray(beside(a, b)), narrow.get(dtype))
        assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
