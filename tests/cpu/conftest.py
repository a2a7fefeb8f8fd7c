"""What tests of the processor's kernels may ask for."""

from collections.abc import Iterator

import pytest

from symdnn.config import config


@pytest.fixture
def always() -> Iterator[None]:
    """Compile however small it is."""
    with config.change_flags(**{"cpu.compile": "always"}):
        yield
