"""Slices by ends of the call, and elements by masks that change, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.errors import ShapeMismatch
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
