"""Objects of libraries that are kept for the next plan, within a budget of bytes.

Primitives and descriptors of oneDNN are made in 0.1 to 10 ms and are the same for equal layouts.
They take memory that nothing tells the size of, so each kind says about how much: measured as
growth of the process over a thousand of them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any

__all__ = ["clear", "kept", "most_bytes"]

#: What all functions together keep at most.
_MOST_BYTES = 16 << 20

_entries: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
_used = [0]
_lock = threading.RLock()


def most_bytes() -> int:
    """How much is kept at most."""
    return _MOST_BYTES


def kept(nbytes: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Keep results of a function of hashable arguments, each of about ``nbytes`` (a decorator).

    The least recently used of all functions' results go first; plans keep what they run.
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
    while _used[0] > _MOST_BYTES:
        _, (_, least) = _entries.popitem(last=False)
        _used[0] -= least


def clear() -> None:
    """Let go of all that no plan keeps."""
    with _lock:
        _entries.clear()
        _used[0] = 0
