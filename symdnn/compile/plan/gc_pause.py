"""Python's search for garbage in cycles, put off while graphs are made."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

__all__ = ["paused"]


_off = [False]  # whether it is this module that has put it off


def _in_child() -> None:
    """A child that another thread forked meanwhile is left with it on."""
    if _off[0]:
        _off[0] = False
        gc.enable()


os.register_at_fork(after_in_child=_in_child)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No search inside, where there would be one: tens of thousands of new objects, nearly all of
    which stay, would have it look through all that the process has, again and again."""
    if not gc.isenabled():
        yield
        return
    _off[0] = True
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _off[0] = False
