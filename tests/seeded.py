"""Random data of tests: other numbers in each test, the same ones in each run.

A seed is made of the test's id, of how many generators the test has made, and of ``--seed N``.
"""

from __future__ import annotations

import zlib

import numpy as np

__all__ = ["description", "drew", "enter", "new_rng", "number", "seeds", "start"]


class _State:
    seed = 0
    test = "import"
    made = 0


def start(seed: int) -> None:
    """Begin a run with ``--seed``."""
    _State.seed = seed


def enter(test: str) -> None:
    """Begin the test with this id."""
    _State.test, _State.made = test, 0


def new_rng() -> np.random.Generator:
    """Another generator for the running test; at import, one for the run."""
    _State.made += 1
    return np.random.default_rng([_State.seed, _State.made, number()])


def number() -> int:
    """A seed of 32 bits for the running test, for generators that are not NumPy's."""
    return zlib.crc32(f"{_State.seed} {_State.test}".encode())


def seeds() -> list[int]:
    """What a test that makes its own seed adds to it."""
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
