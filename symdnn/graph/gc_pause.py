"""Pauses Python's garbage collector while graphs are built."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

__all__ = ["paused"]


_paused_here = [False]  # whether this module has paused it


def _in_child() -> None:
    """Switch the collector on in a child that another thread forked during a pause."""
    if _paused_here[0]:
        _paused_here[0] = False
        gc.enable()


os.register_at_fork(after_in_child=_in_child)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """A context without garbage collection.

    Building a graph makes tens of thousands of objects, most of which stay. The collector would
    search all objects of the process again and again.
    """
    if not gc.isenabled():
        yield
        return
    _paused_here[0] = True
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _paused_here[0] = False
