"""Candidates are checked before they are timed, in any family."""

from math import inf

import numpy as np
import pytest

from symdnn.errors import SymdnnError
from symdnn.tuning.attempts import Attempt, Bench, Limits, best_of, difference, measure


class Scripted(Bench):
    """Errors and milliseconds by name; the second list is what a race finds."""

    error_limit = 1e-3

    def __init__(self, errors=(), ms=(), raced=()):
        self.errors, self.ms, self.raced, self.timed = dict(errors), dict(ms), dict(raced), []

    def check(self, candidate, good_ms):
        error = self.errors.get(candidate, 0.0)
        if isinstance(error, Exception):
            raise error
        return error, 0.0

    def time(self, candidate, good_ms):
        self.timed.append(candidate)
        return self.ms[candidate]

    def race(self, candidates):
        return [self.raced.get(c, self.ms[c]) for c in candidates]


def test_what_is_wrong_is_never_timed():
    bench = Scripted({"b": 0.5, "c": float("nan")}, {"a": 2.0, "d": 3.0})
    table = measure(bench, "abcd")
    assert bench.timed == ["a", "d"]
    assert [a.usable for a in table] == [True, False, False, True]
    assert table[1].problem == "its result is off by 0.5, 0.001 allowed"
    assert best_of(table).candidate == "a"


@pytest.mark.parametrize("error", [SymdnnError("no\nmore"), RuntimeError("no"), MemoryError("no")])
def test_what_fails_is_left_out_with_the_reason(error):
    table = measure(Scripted({"a": error}, {"b": 1.0}), "ab")
    assert (table[0].problem, best_of(table).candidate) == ("no", "b")


def test_near_times_are_decided_by_a_race():
    bench = Scripted(ms={"a": 1.0, "b": 1.1, "c": 2.0}, raced={"a": 1.2, "b": 0.9})
    table = measure(bench, "abc")
    assert best_of(table).candidate == "b"
    assert [a.ms for a in table] == [1.2, 0.9, 2.0]


def test_limits():
    ms = {c: 1.0 for c in "abcdef"}
    assert len(measure(Scripted(ms=ms), "abcdef", Limits(patience=2))) == 3
    late = measure(Scripted(ms=ms), "abc", Limits(budget_ms=0))
    assert [a.problem != "" for a in late] == [False, True, True]  # one there has to be
    assert best_of([]) is None


def test_a_search_is_as_short_as_what_it_can_save(monkeypatch):
    """It costs about as much as so many runs of the best; a few candidates are always tried."""
    now = iter(range(1000))  # each look at the clock is a second later
    monkeypatch.setattr("symdnn.tuning.attempts.time.perf_counter", lambda: float(next(now)))
    names = range(40)
    tried = {
        ms: len(measure(Scripted(ms=dict.fromkeys(names, ms)), names, Limits(runs=1000)))
        for ms in (1e-3, 1.0, 20.0, 100.0)
    }
    assert tried == {1e-3: 9, 1.0: 9, 20.0: 20, 100.0: 40}


class Kernel:
    def __init__(self, workspace_bytes):
        self.workspace_bytes = workspace_bytes


def test_the_best_by_time_memory_energy():
    small, large = Kernel(1), Kernel(9)
    table = [Attempt(small, 3.0, 0.0, 10.0), Attempt(large, 1.0, 0.0, 20.0)]
    assert best_of(table, "time").candidate is large
    assert best_of(table, "memory").candidate is small
    assert best_of(table, "energy").candidate is small
    assert best_of([Attempt(small, inf, problem="wrong")]) is None


@pytest.mark.parametrize("by", ["time", "energy", "0.5*time+0.5*energy"])
def test_a_workspace_has_to_be_worth_more_than_noise(by):
    small, large = Kernel(1), Kernel(9)
    near = [Attempt(small, 1.01, 0.0, 10.1), Attempt(large, 1.0, 0.0, 10.0)]
    assert best_of(near, by).candidate is small
    far = [Attempt(small, 1.05, 0.0, 10.5), Attempt(large, 1.0, 0.0, 10.0)]
    assert best_of(far, by).candidate is large


def test_what_is_not_finite_in_both_agrees():
    a = np.array([1.0, np.nan, np.inf])
    assert difference(a, a * (1 + 1e-6)) < 1e-5
    assert difference(a, np.array([1.0, 1.0, np.inf])) == np.inf
    assert difference(a, a * 1.1) == pytest.approx(0.1)
    zeros = np.zeros(3)
    assert difference(zeros, zeros) == 0
    assert difference(zeros, zeros + 1e-9) == np.inf


class Results(Bench):
    """Results by name, for the comparison that a bench makes by default."""

    error_limit = 0.1

    def __init__(self, **values):
        self.values, self.timed = values, []

    def results(self, candidate):
        value = self.values[candidate]
        if isinstance(value, str):
            raise SymdnnError(value)
        return [np.array([1.0, value]), np.ones(2)]

    def time(self, candidate, good_ms):
        self.timed.append(candidate)
        return 1.0


def test_results_are_compared_with_those_of_the_first_that_runs():
    bench = Results(a="it fails", b=2.0, c=2.1, d=3.0)
    found = {a.candidate: a for a in measure(bench, "abcd")}
    assert found["a"].problem == "it fails"
    assert (found["b"].error, found["b"].usable) == (0.0, True)
    assert found["c"].error == pytest.approx(0.05)
    assert found["d"].wrong
    assert "off by 0.5, 0.1 allowed" in found["d"].problem
    assert "d" not in bench.timed


def test_what_is_only_tried_is_not_timed():
    bench = Results(a=2.0, b=5.0)
    assert bench.tried("a", timed=False) == Attempt("a", error=0.0)
    assert bench.tried("b", timed=False).wrong
    assert bench.timed == []
