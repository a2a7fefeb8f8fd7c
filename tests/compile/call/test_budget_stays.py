"""A copy of a function, however it is made, keeps to the memory budget of the first one."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import symdnn
from symdnn.errors import OverBudget
from tests.compile.plan.test_loop_budget import compiled as loops
from tests.compile.plan.test_recompute import points, trained


def saved(f, folder):
    symdnn.save(f, folder / "f.symdnn")
    return symdnn.load(folder / "f.symdnn")


WAYS = {
    "copy": lambda f, folder: f.copy(),
    "copy.copy": lambda f, folder: copy.copy(f),
    "deepcopy": lambda f, folder: copy.deepcopy(f),
    "pickle": lambda f, folder: pickle.loads(pickle.dumps(f)),
    "a file": saved,
}


@pytest.mark.parametrize("way", WAYS)
def test_values_are_computed_again(way, tmp_path):
    free, _ = trained()
    budget = int(free.memory_report().peak * 0.7)
    f, _ = trained(budget)
    other = WAYS[way](f, tmp_path)
    other(points())
    report = other.memory_report()
    assert report.peak <= budget
    assert report.recomputed
    assert str(report.recomputed[0].peak) == str(f.memory_report().recomputed[0].peak)


@pytest.mark.parametrize("way", WAYS)
def test_loops_run_in_segments(way, tmp_path):
    plain, given = loops("lstm")
    want = plain(*given)
    budget = int(plain.memory_report().peak * 0.5)
    f, _ = loops("lstm", budget)
    other = WAYS[way](f, tmp_path)
    np.testing.assert_allclose(other(*given)[0], want[0], rtol=1e-12)
    report = other.memory_report()
    assert report.peak <= budget
    assert any(loop.pieces for loop in report.loops)


def test_a_copy_with_other_parameters_and_without_updates():
    f, _ = trained(10**9)
    old = f.get_shared()[0]
    new = symdnn.shared(np.zeros_like(old.get_value()))
    other = f.copy(swap={old: new}, delete_updates=True)
    assert new in other.get_shared()
    assert old not in other.get_shared()
    before = [w.get_value() for w in other.get_shared()]
    other(points())
    for w, value in zip(other.get_shared(), before, strict=True):
        np.testing.assert_array_equal(w.get_value(), value)
    assert all(s.memory_budget == 10**9 for s in other.stages.program.segments() if not s.kept)
    with pytest.raises(OverBudget):
        trained(1000)
