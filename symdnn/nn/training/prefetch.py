"""Prefetching: an iterator runs in its own thread, which copies arrays to the GPU if there is
one."""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from symdnn.compile.execute.targets import resolve_target
from symdnn.errors import InputError
from symdnn.graph.target import Target
from symdnn.options import is_int

_Stage = Callable[[int, Any], Any]

#: The running threads, with the events that stop them.
_running: dict[threading.Thread, queue.SimpleQueue[int | None]] = {}
_SECONDS_AT_EXIT = 5.0


@atexit.register
def _stop_all() -> None:
    """A thread that uses a GPU must not be cut off in the middle of a call of the driver."""
    for thread, free in list(_running.items()):
        free.put(None)
        thread.join(_SECONDS_AT_EXIT)


class Prefetch(Iterator[Any]):
    """See :func:`prefetch`. ``close()``, or the end of a ``with``, stops the thread."""

    def __init__(self, source: Iterable[Any], ahead: int, stage: _Stage, done: Callable[[], None]):
        self._ready: queue.SimpleQueue[tuple[int, Any, Any]] = queue.SimpleQueue()
        self._free: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        for slot in range(ahead + 1):  # one of them is the user's
            self._free.put(slot)
        self._held: int | None = None
        self._ended = False
        # The thread must not keep this object alive: a dropped iterator stops it.
        arguments = (source, self._free, self._ready, stage, done)
        self._thread = threading.Thread(
            target=_work, args=arguments, name="symdnn prefetch", daemon=True
        )
        self._stop = weakref.finalize(self, self._free.put, None)
        _running[self._thread] = self._free
        self._thread.start()

    def __iter__(self) -> Prefetch:
        return self

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        if self._held is not None:
            self._free.put(self._held)
        slot, item, error = self._ready.get()
        self._held = slot
        if error is not None:
            self._ended = True
            raise error
        return item

    def close(self) -> None:
        """Stop, and wait for the thread; what it has made is dropped."""
        self._ended = True
        self._stop()
        self._thread.join()

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def prefetch(
    iterator: Iterable[Any], n: int = 2, *, target: Target | str | None = None
) -> Prefetch:
    """The items of ``iterator``, made up to ``n`` ahead by a thread.

    Where ``target`` (default: by the flag ``device``) is a GPU, the NumPy arrays among the items,
    also inside of tuples, lists and dicts, are copied to it: by the thread into pinned memory, from
    there by the device, while it computes. Functions read them where they are. The places are used
    again, so an item holds until the next one is taken. ``target="cpu"`` leaves arrays as they are.
    An error of ``iterator`` is raised where its item would have come. ::

        for x, t in nn.prefetch(nn.batches((images, labels), 64)):
            train(x, t)
    """
    if not is_int(n) or n < 1:
        raise InputError(f"prefetch: n={n!r}; wanted an int, 1 or more")
    if not isinstance(iterator, Iterable):
        raise InputError(f"prefetch: wanted what can be iterated, got {iterator!r:.60}")
    chosen = resolve_target(target)
    if chosen.kind == "cpu":
        return Prefetch(iterator, n, lambda slot, item: item, lambda: None)
    from symdnn.gpu.execution.pinned_prefetch import PinnedPrefetch

    staging = PinnedPrefetch(chosen.index)
    return Prefetch(iterator, n, lambda slot, item: _staged(staging, slot, item), staging.close)


def _staged(staging: Any, slot: int, item: object) -> Any:
    """``item`` with its arrays on the device."""
    found: list[Any] = []
    _each_array(item, found.append)
    placed = iter(staging.put(slot, found))
    return _each_array(item, lambda array: next(placed))


def _each_array(item: object, change: Callable[[Any], Any]) -> Any:
    if isinstance(item, np.ndarray):
        return change(item)
    if isinstance(item, Mapping):
        return {key: _each_array(v, change) for key, v in item.items()}
    if isinstance(item, list | tuple):
        return type(item)([_each_array(v, change) for v in item])
    return item


def _work(source: Iterable[Any], free: Any, ready: Any, stage: _Stage, done: Any) -> None:
    """The thread: an item for each free slot, until there is none or it is told to stop."""
    iterator: Any = None
    try:
        iterator = iter(source)
        while (slot := free.get()) is not None:
            item = next(iterator)
            ready.put((slot, stage(slot, item), None))
    except BaseException as error:  # StopIteration too: the end of the items
        ready.put((None, None, error))
    finally:
        with contextlib.suppress(Exception):
            if hasattr(iterator, "close"):
                iterator.close()
        try:
            done()
        finally:
            _running.pop(threading.current_thread(), None)
