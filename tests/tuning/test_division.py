"""Divisions of a batch: the front of all of them, by brute force."""

from itertools import combinations_with_replacement

import pytest

from symdnn.tuning.budget import front
from symdnn.tuning.division import Division, Part, divisions, sizes


def by_brute_force(total, table):
    """The coordinates of all divisions that no other one is better than."""
    made = []
    for count in range(1, total + 1):
        for parts in combinations_with_replacement(table, count):
            if sum(p.count for p in parts) == total:
                division = Division()
                for part in parts:
                    division = division.plus(part)
                made.append(division.coordinates())
    return sorted(made[i] for i in front(made))


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_front_of_all_divisions(seed, rng):
    table = [
        Part(int(rng.integers(1, 5)), i, int(rng.integers(0, 6)) * 64, float(rng.integers(1, 16)),
             float(rng.integers(1, 16)) if seed % 2 else None, float(rng.integers(0, 3)) * 1e-6)
        for i in range(4)
    ]  # fmt: skip
    found = divisions(6, table)
    assert sorted(d.coordinates() for d in found) == by_brute_force(6, table)
    for d in found:
        counts = [p.count for p in d.parts]
        assert sum(counts) == 6
        assert counts == sorted(counts, reverse=True)


def test_parts_share_one_workspace():
    """An algorithm with a large workspace for 8 samples fits for 4: two parts are faster."""
    slow, fast = Part(8, "slow", 0, 10.0), Part(4, "fast", 500, 3.0)
    found = divisions(8, [slow, fast, Part(8, "fast", 1000, 5.0)])
    assert [(d.ms, d.workspace_bytes) for d in found] == [(5.0, 1000), (6.0, 500), (10.0, 0)]


def test_energy_that_was_not_measured_is_not_known():
    known, unknown = Part(1, "a", 0, 1.0, 2.0), Part(1, "b", 0, 1.0)
    assert Division().plus(known).millijoules == 2.0
    assert Division().plus(known).plus(unknown).millijoules is None


def test_no_division_of_what_the_parts_do_not_make():
    assert divisions(5, [Part(2, "a", 0, 1.0)]) == []


def test_sizes_are_nearly_equal_parts():
    assert sizes(64) == [(32,), (16,), (8,), (4,)]
    assert sizes(7) == [(4, 3), (2, 1)]
    assert sizes(1) == []
