"""Which cases of a parametrised test a run takes."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import seeded

TABLE = [
    {"shape": s, "dtype": d, "flag": f, "same": 0}
    for s, d, f in itertools.product(range(7), "abcdef", (True, False))
]


@pytest.fixture
def turns() -> Iterator[range]:
    yield range(12)
    seeded.start(seeded._State.seed, before)


before = seeded.turn()


def taken(cases: list[dict[str, object]], every: int, turn: int) -> list[int]:
    seeded.start(seeded._State.seed, turn)
    return seeded.covering(cases, every)  # type: ignore[arg-type]


def test_each_value_of_each_parameter_is_taken(turns: range) -> None:
    everything = {pair for case in TABLE for pair in case.items()}
    for turn in turns:
        found = taken(TABLE, 3, turn)
        assert {pair for i in found for pair in TABLE[i].items()} == everything
        assert 7 <= len(found) <= 10


def test_other_turns_take_others_and_a_turn_the_same(turns: range) -> None:
    by_turn = [taken(TABLE, 3, turn) for turn in turns]
    assert by_turn == [taken(TABLE, 3, turn) for turn in turns]
    assert len({tuple(found) for found in by_turn}) == len(by_turn)
    assert len({i for found in by_turn for i in found}) > len(TABLE) / 2


@pytest.mark.parametrize("cases", [TABLE[:5], [{"n": i} for i in range(8)], [{}]])
def test_no_more_than_one_in_so_many(turns: range, cases: list[dict[str, object]]) -> None:
    for turn in turns:
        assert len(taken(cases, 3, turn)) <= -(-len(cases) // 3)
        assert taken(cases, 1, turn) == [*range(len(cases))]


def test_cases_of_one_parameter_all_come_in_turn() -> None:
    cases: list[dict[str, object]] = [{"n": i} for i in range(8)]
    found = [i for turn in range(3) for i in taken(cases, 3, turn)]
    seeded.start(seeded._State.seed, before)
    assert sorted(found) == [*range(8)]


def test_a_path_that_is_not_there_is_an_error_with_workers_too() -> None:
    command = [sys.executable, "-m", "pytest", "-n", "2", "tests/nothing"]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no such file or folder" in done.stderr
