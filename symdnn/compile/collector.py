"""Python's search for garbage in cycles, put off while graphs are made."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["paused"]


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No search inside, where there would be one: tens of thousands of new objects, nearly all of
    which stay, would have it look through all that the process has, again and again."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
