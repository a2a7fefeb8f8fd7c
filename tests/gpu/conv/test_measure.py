"""How many candidates of a convolution are tried, without a device."""

from __future__ import annotations

from math import inf

import pytest

from symdnn.errors import CudnnError
from symdnn.gpu.conv import measure as conv_measure
from symdnn.gpu.conv.candidate import Candidate
from symdnn.gpu.conv.measure import measure
from symdnn.tuning import attempts


class Bench(attempts.Bench):
    """Milliseconds by name; one that is not there is wrong, a negative one an error."""

    error_limit = 1e-3

    def __init__(self, times):
        self.times, self.seen = times, []

    def __call__(self, context, signature):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def compute_reference(self, two=None):
        return "none"

    def check(self, candidate, good_ms=inf):
        self.seen.append(candidate.name)
        ms = self.times.get(candidate.name)
        if ms is not None and ms < 0:
            raise CudnnError("it fails")
        return (1.0, 1.0) if ms is None else (0.0, ms)

    def time(self, candidate, good_ms=inf):
        return self.times[candidate.name]

    def race(self, candidates):
        return [self.times[c.name] for c in candidates]


def candidates(count):
    for i in range(count):
        yield Candidate("legacy", f"a{i}", 0, True, i)


def measured(monkeypatch, times, count, **words):
    bench = Bench({f"a{i}": t for i, t in enumerate(times) if t is not None})
    monkeypatch.setattr(conv_measure, "Bench", bench)
    table, problem = measure(None, None, candidates(count), **words)
    assert problem == ""
    return bench.seen, table


def test_without_patience_all_are_tried(monkeypatch):
    seen, table = measured(monkeypatch, [1.0] * 30, 30)
    assert len(seen) == len(table) == 30


@pytest.mark.parametrize(
    ("times", "tried"),
    [
        ([1.0] * 30, 5),  # equal ones are not faster
        ([1.0, 0.99, 0.985] + [1.0] * 27, 5),  # nor are those that are as good as equal
        ([4.0, 3.0, 2.0] + [2.0] * 27, 7),
        ([2.0] * 4 + [1.0] + [2.0] * 25, 9),
        ([1.0, None, -1.0, None, None, 0.5], 5),  # what fails is none either
        ([None, -1.0] * 5 + [1.0] * 20, 15),  # but one there has to be
    ],
)
def test_so_many_in_a_row_that_are_not_faster_end_it(monkeypatch, times, tried):
    seen, _ = measured(monkeypatch, times, 30, patience=4)
    assert len(seen) == tried
