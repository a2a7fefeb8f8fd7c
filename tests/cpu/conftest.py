"""Fixtures for tests of CPU kernels."""

from collections.abc import Iterator

import pytest

from symdnn.compile.call.fast_loops import LoopCalls
from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.threads import threads
from symdnn.disk import store


@pytest.fixture
def always() -> Iterator[None]:
    """Compile however small it is."""
    with config.change_flags(**{"cpu.compile": "always"}):
        yield


@pytest.fixture(autouse=True)
def by_parts_at_first(monkeypatch) -> None:
    """The first call of a loop runs by parts, whose results those of later ones must be."""
    monkeypatch.setattr(LoopCalls, "at_first", lambda *args: None)


@pytest.fixture
def nothing_compiled(monkeypatch, tmp_path) -> None:
    """As in a process that has compiled nothing, with an empty cache."""
    monkeypatch.setattr(store, "base", lambda: tmp_path)
    monkeypatch.setattr(jit, "_functions", {})
    monkeypatch.setattr(threads, "_kernels", {})
