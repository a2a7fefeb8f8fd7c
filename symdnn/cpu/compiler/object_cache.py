"""A least-recently-used cache of library objects that plans share, within a budget of bytes.

oneDNN's primitives and descriptors take 0.1 to 10 ms to create, and equal layouts have equal ones.
oneDNN does not report their size, so each kind states an estimate: the growth of the process over
a thousand of them.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any

#: Budget of all cached objects together.
_MAX_BYTES = 16 << 20

_entries: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
_used = [0]
_lock = threading.RLock()


def _in_child() -> None:
    """A thread that a forked child has not may have had the lock."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_in_child)


def most_bytes() -> int:
    """The budget of all cached objects together."""
    return _MAX_BYTES


def cached(nbytes: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that caches a function's results, each of about ``nbytes``, by its arguments.

    The least recently used results of all functions are dropped first. A plan holds the objects
    that it runs, so they stay alive.
    """

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def found(*arguments: Any) -> Any:
            key = function, arguments
            with _lock:
                entry = _entries.get(key)
                if entry is not None:
                    _entries.move_to_end(key)
                    return entry[0]
            made = function(*arguments)
            with _lock:
                _put(key, made, nbytes)
            return made

        return found

    return wrap


def _put(key: Any, made: Any, nbytes: int) -> None:
    if key not in _entries:
        _used[0] += nbytes
    _entries[key] = made, nbytes
    while _used[0] > _MAX_BYTES:
        _, (_, least) = _entries.popitem(last=False)
        _used[0] -= least


def clear() -> None:
    """Empty the cache."""
    with _lock:
        _entries.clear()
        _used[0] = 0
