"""Random data of tests: other numbers in each test, the same ones in each run.

A seed is made of the test's id, of how many generators the test has made, and of ``--seed N``.

Of long tables a run takes a part, and ``--turn N`` another one: :func:`part`, :func:`covering`.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import pytest
from _pytest.mark.structures import ParameterSet

__all__ = [
    "covering", "description", "drew", "enter", "new_rng", "number", "part", "sampled", "seeds",
    "start", "turn",
]  # fmt: skip

T = TypeVar("T")


class _State:
    seed = 0
    turn = 0
    test = "import"
    made = 0


def start(seed: int, turn: int) -> None:
    """Begin a run with ``--seed`` and ``--turn``."""
    _State.seed, _State.turn = seed, turn


def turn() -> int:
    """Which part of sampled tables this run takes."""
    return _State.turn


def part(cases: Iterable[T], every: int, rest: bool = False) -> list[T]:
    """One case in ``every``, others at each turn; with ``rest``, those that are left out."""
    return [c for i, c in enumerate(cases, _State.turn) if (i % every != 0) == rest]


def covering(cases: Sequence[Mapping[str, Hashable]], every: int) -> list[int]:
    """Numbers of some of a test's cases, at most one in ``every``, others at each turn.

    A case is its parameters. Of several that vary each value is in one of the cases taken, where
    that many are enough: then no more are taken. Cases of one parameter are taken in turn.
    """
    most = part(range(len(cases)), min(every, len(cases)))
    values = [set(case.items()) for case in cases]
    missing = set.union(*values) - set.intersection(*values)
    if every < 2 or len({name for name, _ in missing}) < 2:
        return most
    numbers = sorted(range(len(cases)), key=lambda i: zlib.crc32(f"{_State.turn} {i}".encode()))
    found: list[int] = []
    for new in range(len(cases[0]), 0, -1):
        for i in numbers:
            if len(found) < len(most) and len(values[i] & missing) >= new:
                found.append(i)
                missing -= values[i]
    return sorted(found)


def enter(test: str) -> None:
    """Begin the test with this id."""
    _State.test, _State.made = test, 0


def sampled(cases: Sequence[object], every: int) -> list[ParameterSet]:
    """Parameters of a test (a tuple is of several names); those of other turns are ``slow``."""
    made = [
        c if isinstance(c, ParameterSet) else pytest.param(*(c if type(c) is tuple else [c]))
        for c in cases
    ]
    taken = set(part(range(len(made)), every))
    slow = pytest.mark.slow
    return [c if i in taken else c._replace(marks=[*c.marks, slow]) for i, c in enumerate(made)]


def new_rng() -> np.random.Generator:
    """Another generator for the running test; at import, one for the run."""
    _State.made += 1
    return np.random.default_rng([_State.seed, _State.made, number()])


def number() -> int:
    """A seed of 32 bits for the running test, for generators that are not NumPy's."""
    return zlib.crc32(f"{_State.seed} {_State.test}".encode())


def seeds() -> list[int]:
    """A number to add to a test's own seed."""
    return [_State.seed] if _State.seed else []


def drew() -> bool:
    """Whether the running test has made a generator."""
    return _State.made > 0


def description() -> str:
    """How to draw the running test's data again."""
    return (
        f"{_State.made} generators of --seed {_State.seed}; "
        f"again: pytest '{_State.test}' --seed {_State.seed}"
    )
