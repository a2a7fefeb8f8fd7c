"""Fixtures for tests of CPU kernels."""

from collections.abc import Iterator

import pytest

from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.threads import threads
from symdnn.disk import store


@pytest.fixture
def always() -> Iterator[None]:
    """Compile however small it is."""
    with config.change_flags(**{"cpu.compile": "always"}):
        yield


@pytest.fixture
def nothing_compiled(monkeypatch, tmp_path) -> None:
    """As in a process that has compiled nothing, with an empty cache."""
    monkeypatch.setattr(store, "base", lambda: tmp_path)
    monkeypatch.setattr(jit, "_functions", {})
    monkeypatch.setattr(threads, "_kernels", {})
