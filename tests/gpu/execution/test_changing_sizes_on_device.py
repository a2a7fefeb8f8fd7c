"""Slices by ends of the call, and elements by masks that change, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.errors import IndexOutOfRange, ShapeMismatch
from symdnn.ops.lowered.transfer import GpuFromHost

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]
SEED = 3

#: Slices of an array of three dimensions by two ends and a place.
PARTS: dict[str, Any] = {
    "first": lambda x, n, m, i: x[:n],
    "from_one": lambda x, n, m, i: x[1:n],
    "from_the_end": lambda x, n, m, i: x[-3:n],
    "of_columns": lambda x, n, m, i: x[:, :n],
    "each_second": lambda x, n, m, i: x[:n:2, i],
    "two_ends": lambda x, n, m, i: x[::-1, :n, 2:m],
    "backwards": lambda x, n, m, i: x[:n:-1],
    "of_a_row": lambda x, n, m, i: x[i, :n, 1:m:3],
    "the_rest": lambda x, n, m, i: x[n:],
    "of_a_part": lambda x, n, m, i: x[i:][:n][:, :m],
}
ENDS = [(0, 2), (1, 4), (3, -1), (-2, 2), (100, 100), (-100, 3), (3, -1)]


def on_device(inputs: list[Any], outputs: Any) -> Any:
    with config.change_flags(device="cuda"):
        return symdnn.function(inputs, outputs, on_unused_input="ignore")


@pytest.mark.parametrize("name", PARTS)
def test_slices_by_ends_of_the_call(name: str) -> None:
    a = np.random.default_rng(SEED).standard_normal((6, 7, 5)).astype("float32")
    x, (n, m, i), part = T.ftensor3("x"), T.lscalars("n", "m", "i"), PARTS[name]
    first, second = part(x, n, m, i), part(T.maximum(x, 0), n, m, i)
    shared = part(symdnn.shared(a), n, m, i)
    f = on_device([x, n, m, i], [first, first * 2, T.sum(second), T.concatenate([shared, shared])])
    for ends in ENDS:
        for place in (0, 2, 2):
            wanted = part(a, *ends, place)
            above = part(np.maximum(a, 0), *ends, place)
            found = f(a, *ends, place)
            np.testing.assert_array_equal(found[0], wanted)
            np.testing.assert_array_equal(found[1], wanted * 2)
            np.testing.assert_allclose(found[2], above.sum(), rtol=1e-5)
            np.testing.assert_array_equal(found[3], np.concatenate([wanted, wanted]))


def test_the_first_elements_are_read_in_place() -> None:
    """A start that is known, and a size that the plan is for, say where they are."""
    x, n = T.fmatrix("x"), T.lscalar("n")
    f = on_device([x, n], x[:n] * 2)
    a = np.ones((8, 4), "float32")
    for _ in range(3):
        f(a, 5)
    (plan,) = f.plans()
    assert [type(s.node.op) for s in plan.bound.steps.head] == [GpuFromHost]
    assert plan.bound.capture_state.startswith("captured")


def test_an_argument_of_which_a_slice_is_read_is_not_copied() -> None:
    x, i = T.fmatrix("x"), T.lscalar("i")
    a = np.random.default_rng(SEED).standard_normal((40, 4)).astype("float32")
    f = on_device([x, i], [x[i : i + 3] * 2, x[i]])
    g = on_device([x, i], [x[i : i + 3] * 2, x.sum()])
    with config.change_flags(device="cuda"):
        there = symdnn.function([], symdnn.Out(symdnn.shared(a) + 0, borrow=True))()
    for given in (a, there, a[::2], there):
        for k in (0, 7, 7, 3):
            b = np.asarray(given)
            for found in (f(given, k), g(given, k)):
                np.testing.assert_array_equal(found[0], b[k : k + 3] * 2)
            np.testing.assert_array_equal(f(given, k)[1], b[k])
    for plan in f.plans():
        assert not plan.bound.replay.slots
    with pytest.raises(IndexOutOfRange):
        f(a, 40)


#: Indices by two places of the call.
PLACES: list[Any] = [
    lambda i, j: i, lambda i, j: np.s_[:, i], lambda i, j: np.s_[i, :, j],
    lambda i, j: np.s_[1:, i, j], lambda i, j: np.s_[i, j, 2], lambda i, j: np.s_[-1, 1:3, i],
    lambda i, j: np.s_[i + j - 1, ::-1],
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(PLACES)))
@pytest.mark.parametrize("dtype", ["float32", "int64", "float16"])
def test_places_of_the_call_are_part_of_the_graph(at: int, dtype: str) -> None:
    a = np.random.default_rng(SEED).integers(-9, 9, (5, 6, 7)).astype(dtype)
    x, (i, j), place = symdnn.shared(a), T.lscalars("i", "j"), PLACES[at]
    part = x[place(i, j)]
    y = T.cast(T.maximum(x[0, 0, 0], 1), dtype)
    outs = [
        part,
        T.set_subtensor(part, y),
        T.inc_subtensor(part, part),
        T.sum((x * x)[place(i, j)]),
    ]
    f = on_device([i, j], outs)
    for numbers in ((0, 1), (2, 3), (2, 3), (-1, 4), (4, 0)):
        where, put, added = place(*numbers), a.copy(), a.copy()
        put[where], added[where] = max(a[0, 0, 0], 1), 2 * a[where]
        *found, total = f(*numbers)
        for got, wanted in zip(found, [a[where], put, added], strict=True):
            np.testing.assert_array_equal(got, wanted)
        np.testing.assert_allclose(total, (a.astype("f8")[where] ** 2).sum(), rtol=2e-3)
    (plan,) = f.plans()
    assert plan.bound.capture_state.startswith("captured")
    for _ in range(2):
        with pytest.raises(IndexOutOfRange):
            f(9, 9)


def test_a_cache_of_keys_grows_in_a_graph() -> None:
    """Decoding: a row is written at the place of the call, and the rows up to it are read."""
    rng = np.random.default_rng(SEED)
    cache, w = symdnn.shared(np.zeros((12, 4), "float32")), rng.standard_normal((4, 4))
    x, i = T.fvector("x"), T.lscalar("i")
    new = T.set_subtensor(cache[i], T.dot(x, w.astype("float32")))
    with config.change_flags(device="cuda"):
        f = symdnn.function([x, i], T.dot(new[: i + 1], x), updates=[(cache, new)])
    known = np.zeros((12, 4))
    for _ in range(3):
        for k in range(6):
            given = rng.standard_normal(4).astype("float32")
            known[k] = given @ w
            np.testing.assert_allclose(f(given, k), known[: k + 1] @ given, rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(cache.get_value(), known, rtol=1e-2, atol=1e-2)
    assert all(p.bound.capture_state.startswith("captured") for p in f.plans())
    with pytest.raises(IndexOutOfRange):
        f(given, 12)
    np.testing.assert_allclose(cache.get_value(), known, rtol=1e-2, atol=1e-2)


#: What is computed of elements by a mask, and the same in NumPy.
OF_MASKS: dict[str, Any] = {
    "sum": (lambda x, m: x[m].sum(),) * 2,
    "mean": (lambda x, m: (x[m] ** 2).mean(),) * 2,
    "of_rows": (lambda x, m: x[m].sum(0),) * 2,
    "most": (lambda x, m: x[m].max(),) * 2,
    "number": (lambda x, m: x[m].shape[0],) * 2,
    "put": (lambda x, m: T.set_subtensor(x[m], 0), lambda x, m: np.where(m[:, None], 0, x)),
    "added": (lambda x, m: T.inc_subtensor(x[m], 1), lambda x, m: x + m[:, None]),
    "gradient": (lambda x, m: T.grad((x[m] ** 2).sum(), x), lambda x, m: 2 * x * m[:, None]),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_MASKS)
def test_one_plan_for_all_numbers_of_chosen_elements(name: str) -> None:
    x, m = T.fmatrix("x"), T.vector("m", "bool")
    build, wanted = OF_MASKS[name]
    f = on_device([x, m], build(x, m))
    rng = np.random.default_rng(SEED)
    for chance in (0.2, 0.5, 0.5, 1.0):
        a, k = rng.standard_normal((41, 6)).astype("float32"), rng.random(41) < chance
        k[0] = True
        a[~k] = np.nan if name not in ("put", "added", "gradient") else a[~k]
        np.testing.assert_allclose(f(a, k), wanted(a, k), rtol=1e-5, atol=1e-5)
    assert len(f.plans()) == 1


def test_no_element_has_no_extreme() -> None:
    x, m = T.fvector("x"), T.vector("m", "bool")
    f = on_device([x, m], x[m].max())
    a = np.arange(5, dtype="float32")
    for _ in range(3):
        assert f(a, a < 3) == 2
        with pytest.raises(ShapeMismatch, match="at least one element"):
            f(a, a < 0)
