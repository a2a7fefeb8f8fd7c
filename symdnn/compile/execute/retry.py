"""Calls that run out of memory: the plan is remade with smaller workspaces before they fail."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from symdnn.compile.plan.plan import PlanCache
from symdnn.config import config
from symdnn.graph.runtime import Watcher
from symdnn.graph.variable import Variable

#: Limits for the workspace of a convolution, tried in turn when memory is short.
_WORKSPACE_LIMITS_BYTES = (64 << 20, 1 << 20, 1)


def run_segment(
    cache: PlanCache,
    entering: Sequence[Any],
    values: Mapping[Variable, Any],
    watcher: Watcher | None = None,
) -> list[Any]:
    """Run the segment of ``cache`` and return its outputs.

    If the device has too little memory for the plan, plans with less workspace are tried, and the
    first that runs replaces it. If none does, raises the first ``MemoryError``; nothing was
    updated.
    """
    plan = cache.get(entering, values)
    try:
        return plan.bound.run(entering, watcher)
    except MemoryError as error:
        first = _without_frames(error)
    for limit in smaller_limits(plan.memory):
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
    """The error, with its frames cleared, so that arrays of the failed call are freed."""
    traceback.clear_frames(error.__traceback__)
    return error


def smaller_limits(memory: Any) -> list[int]:
    """The limits that are smaller than a plan's largest workspace: those to try next.

    None for a step of a loop that has written a state in place: it can't begin again.
    """
    if memory.carried:
        return []
    largest = max((b.nbytes for b in memory.workspaces.values()), default=0)
    return [limit for limit in _WORKSPACE_LIMITS_BYTES if limit < largest]


@contextmanager
def _workspaces(limit: int) -> Iterator[None]:
    """A context in which plans give a convolution at most ``limit`` bytes of workspace."""
    name = "dnn.conv.workspace_limit"
    given = int(config.dnn.conv.workspace_limit)
    flags = {name: min(limit, given) if given else limit, "dnn.conv.on_unsupported": "fallback"}
    with config.change_flags(**flags):
        yield
