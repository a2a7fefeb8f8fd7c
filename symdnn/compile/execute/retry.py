"""A call that finds no memory: the plan is made again with smaller workspaces, then given up."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from symdnn.compile.plan.plan import PlanCache
from symdnn.config import config
from symdnn.graph.runtime import Watcher
from symdnn.graph.variable import Variable

__all__ = ["run_segment"]

#: Bytes of workspace that one convolution may have when memory is short: what is tried in turn.
_CUTS = (64 << 20, 1 << 20, 1)


def run_segment(
    cache: PlanCache,
    entering: Sequence[Any],
    values: Mapping[Variable, Any],
    watcher: Watcher | None = None,
) -> list[Any]:
    """What leaves the segment of ``cache``.

    Where the device has no room for the plan, plans with less workspace are tried; the first that
    runs replaces it. Raises the first ``MemoryError`` when none does: nothing was updated.
    """
    plan = cache.get(entering, values)
    try:
        return plan.bound.run(entering, watcher)
    except MemoryError as error:
        first = _without_frames(error)
    for limit in _cuts(plan.memory):
        with _workspaces(limit):
            smaller = cache.remake(plan, values)
        try:
            return smaller.bound.run(entering, watcher)
        except MemoryError as error:
            _without_frames(error)
            first.add_note(f"  with at most {limit} bytes for a workspace: {error}")
    cache.forget(plan)
    raise first


def _without_frames(error: MemoryError) -> MemoryError:
    """The error, its frames no longer keeping alive what the failed call had allocated."""
    traceback.clear_frames(error.__traceback__)
    return error


def _cuts(memory: Any) -> list[int]:
    """The limits that are smaller than the plan's largest workspace."""
    largest = max((b.nbytes for b in memory.workspaces.values()), default=0)
    return [limit for limit in _CUTS if limit < largest]


@contextmanager
def _workspaces(limit: int) -> Iterator[None]:
    """Plans made inside give a convolution at most ``limit`` bytes, by whatever algorithm fits."""
    name = "dnn.conv.workspace_limit"
    given = int(config.dnn.conv.workspace_limit)
    flags = {name: min(limit, given) if given else limit, "dnn.conv.on_unsupported": "fallback"}
    with config.change_flags(**flags):
        yield
