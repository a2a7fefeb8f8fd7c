"""Small results of a call lie beside each other, and copies of them are one copy."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode, Out
from symdnn.gpu.device.array import ALIGNMENT
from tests.gpu.reference_device import ReferenceRuntime


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> ReferenceRuntime:
    import symdnn.gpu.execution.runtime as runtimes

    found = ReferenceRuntime()
    monkeypatch.setattr(runtimes, "_runtimes", {0: found})
    return found


def test_small_arrays_are_parts_of_one_block(runtime):
    types = [((3,), "float32"), ((0, 2), "float32"), ((5, 70), "float64"), ((1 << 13,), "int64"),
             ((), "bool")]  # fmt: skip
    made = runtime.memory.beside(types)
    assert [(a.shape, a.dtype) for a in made] == types
    small, large = [made[k] for k in (0, 2, 4)], made[3]
    assert len({id(a.owner) for a in small}) == 1
    assert large.owner is not small[0].owner
    assert all(a.ptr % ALIGNMENT == 0 for a in made)
    spans = sorted(a.extent for a in small)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    (alone,) = runtime.memory.beside(types[:1])
    assert alone.owner is not small[0].owner


def test_results_of_their_own_are_copied_at_once_and_stay(runtime, monkeypatch):
    x = T.fvector("x")
    count, wide = 4, T.alloc(x[0], 5000)
    outs = [Out(x * (k + 2), stay=True) for k in range(count)]
    outs.append(Out(wide, stay=True))
    f = symdnn.function([x], outs, mode=Mode(target="cuda:sm_90"))
    copies: list[tuple[Any, Any]] = []
    copy = runtime.memory.copy

    def counted(source: Any, target: Any) -> None:
        copies.append((source, target))
        copy(source, target)

    monkeypatch.setattr(runtime.memory, "copy", counted)
    kept = []
    for call in range(5):
        copies.clear()
        kept.append(f(np.arange(3, dtype="float32") + call))
    assert len(copies) == 2  # of the small ones, and of the large one
    runtime.memory.synchronize()
    for call, results in enumerate(kept):
        given = np.arange(3, dtype="float32") + call
        wanted = [*(given * (k + 2) for k in range(count)), np.full(5000, given[0])]
        for found, want in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(found.get(), want)


@pytest.mark.parametrize("stay", [True, False])
def test_repeated_results_of_their_own_share_no_memory(runtime, stay):
    x = T.fvector("x")
    y, total = x * 2, x.sum()
    outs = [Out(v, stay=True) for v in (y, total, y, x, x)] + [Out(total, stay=stay)]
    f = symdnn.function([x], outs, mode=Mode(target="cuda:sm_90"))
    for call in range(5):
        given = np.arange(3, dtype="float32") + call
        found = f(given)
        raw = [a._array for a in found[: 5 + stay]]
        spans = sorted(a.extent for a in raw)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        for a, want in zip(found, [2 * given, given.sum(), 2 * given, given, given, given.sum()]):
            np.testing.assert_array_equal(np.asarray(a), want)


def test_results_that_are_arguments_are_captured_copies(runtime):
    """Nothing is computed, but a call enqueues copies: a graph has them as any other work."""
    x, n = T.fvector("x"), T.lmatrix("n")
    outs = [Out(v, borrow=True) for v in (x, n, x)]
    f = symdnn.function([x, n], outs, mode=Mode(target="cuda:sm_90"))
    two = [[np.arange(5, dtype="float32") + k, np.arange(6).reshape(2, 3) * k] for k in range(2)]
    lent = [[runtime.lend(runtime.memory.upload(a, None)) for a in given] for given in two]
    for call in range(12):
        given = (lent if call % 3 else two)[call % 2]
        found = f(*given)
        runtime.memory.synchronize()
        wanted = two[call % 2]
        for a, want in zip(found, [wanted[0], wanted[1], wanted[0]], strict=True):
            np.testing.assert_array_equal(a.get(), want)
    (plan,) = f.plans()
    assert plan.bound.capture_state.startswith("captured")
