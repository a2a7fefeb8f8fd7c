"""The choice for several layers is the least of all choices: small tables, by brute force."""

from dataclasses import dataclass
from itertools import product
from math import inf, sqrt

import pytest

from symdnn.tuning.budget import Infeasible, choose, front
from symdnn.tuning.objective import costs, measures_energy, weights


@dataclass(frozen=True)
class Way:
    workspace_bytes: int
    ms: float | None = 1.0
    error: float = 0.0
    millijoules: float | None = None


def random_net(rng):
    """Tables of two to five layers, their rooms, and a bound on the error."""
    tables = [
        [Way(int(rng.integers(0, 8)) * 64, float(rng.integers(1, 20)),
             float(rng.choice([0.0, 1e-7, 3e-6, 2e-5, 4e-5, 1e-3])), float(rng.integers(1, 50)))
         for _ in range(rng.integers(1, 6))]
        for _ in range(rng.integers(2, 6))
    ]  # fmt: skip
    rooms = [int(rng.integers(0, 9)) * 64 for _ in tables]
    return tables, rooms, float(rng.choice([0.0, 1e-6, 3e-5, 6e-5, 1.4e-3]))


def error_of(ways):
    return sqrt(sum(w.error**2 for w in ways))


def by_brute_force(tables, rows, rooms, bound):
    """The least cost of all choices within the limits; infinite without one."""
    least = inf
    for which in product(*(range(len(t)) for t in tables)):
        ways = [t[i] for t, i in zip(tables, which)]
        if any(w.workspace_bytes > room for w, room in zip(ways, rooms)):
            continue
        if bound and error_of(ways) > bound:
            continue
        least = min(least, sum(row[i] for row, i in zip(rows, which)))
    return least


@pytest.mark.parametrize("objective", ["time", "energy", "0.7*time+0.3*energy"])
@pytest.mark.parametrize("seed", range(40))
def test_it_is_the_least_of_all_choices(objective, seed, rng):
    tables, rooms, bound = random_net(rng)
    rows = costs(tables, objective)
    wanted = by_brute_force(tables, rows, rooms, bound)
    if wanted == inf:
        with pytest.raises(Infeasible):
            choose(tables, rows, rooms, bound)
        return
    found = choose(tables, rows, rooms, bound)
    ways = [t[i] for t, i in zip(tables, found.ways)]
    assert found.cost == pytest.approx(wanted, rel=1e-9)
    assert found.gap == 0
    assert all(w.workspace_bytes <= room for w, room in zip(ways, rooms))
    assert not bound or error_of(ways) <= bound * (1 + 1e-8)


def test_the_error_is_shared_by_all_layers():
    """Each alone may take the fast way, both together may not: the one that gains more does."""
    tables = [[Way(0, 5.0), Way(0, 4.0, 8e-4)], [Way(0, 9.0), Way(0, 2.0, 8e-4)]]
    rows = costs(tables, "time")
    assert choose(tables, rows, [0, 0]).ways == (1, 1)
    assert choose(tables, rows, [0, 0], 1e-3).ways == (0, 1)
    assert choose(tables, rows, [0, 0], 1e-5).ways == (0, 0)


def test_a_large_net_is_chosen_exactly(rng):
    tables = [
        [Way(0, float(rng.uniform(1, 9)), float(10 ** rng.uniform(-7, -4))) for _ in range(20)]
        for _ in range(160)
    ]
    rows = costs(tables, "time")
    found = choose(tables, rows, [0] * 160, 1e-4)
    assert found.gap <= 1e-6
    assert error_of([t[i] for t, i in zip(tables, found.ways)]) <= 1e-4 * (1 + 1e-8)


def test_no_room_names_the_layer_and_what_it_needs():
    with pytest.raises(Infeasible) as caught:
        choose([[Way(0)], [Way(300), Way(200)]], [[0], [0, 0]], [0, 100])
    assert (caught.value.layer, caught.value.least) == (1, 200)


def test_no_error_small_enough_says_how_small_it_gets():
    with pytest.raises(Infeasible) as caught:
        choose([[Way(0, error=3e-4)], [Way(0, error=4e-4)]], [[0], [0]], [0, 0], 1e-5)
    assert caught.value.layer is None
    assert caught.value.least == pytest.approx(5e-4)


def test_of_equal_costs_the_smaller_workspace_is_taken():
    assert choose([[Way(64), Way(0)]], [[1.0, 1.0]], [64]).ways == (1,)


def test_objectives():
    assert weights("memory") == {"time": 1.0, "energy": 0.0}
    assert weights("time+2*energy") == {"time": 1.0, "energy": 2.0}
    assert measures_energy("0.5*time+0.5*energy")
    assert not measures_energy("time+0*energy")
    assert costs([[Way(0, 2.0), Way(0, None)], [Way(0, 2.0)]], "time") == [[0.5, inf], [0.5]]


def test_front_keeps_the_first_of_equal_points():
    points = [(2, 2), (1, 3), (2, 2), (2, 3), (3, 1)]
    assert front(points) == [1, 0, 4]
