"""A whole loop as one CUDA graph: all its steps, when it runs again with the same sizes.

What a step launches depends on nothing but sizes, addresses and a few values of the host, so a loop
of known length is enqueued once while the stream is captured, and launched as one from then on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from symdnn.config import config
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.capture import CaptureFailed
from symdnn.gpu.kernels.copy import strided_copy

if TYPE_CHECKING:
    from symdnn.gpu.execution.runtime import CudaRuntime

__all__ = ["LoopGraphs"]

_MOST_NODES = 16384  # kernels and copies in one graph
_MOST_HOST = 1 << 16  # bytes of a host array whose values become part of a graph
_MOST_SIZES = 8
_MOST_CAPTURES = 6  # of one size: addresses or values that always change are not worth it
_DIRECT = 2  # calls before the first capture: by then what comes before is a graph itself

Pointers = list[int | None]


class Body(Protocol):
    """A loop as :class:`LoopGraphs` sees it."""

    @property
    def plan(self) -> Any:
        """The plan of a step in the last :meth:`work` (:class:`symdnn.compile.plan.plan.Plan`)."""

    def work(self, inputs: Sequence[Any]) -> list[Any]:
        """Enqueue all steps; the loop's results."""

    def steps(self, inputs: Sequence[Any]) -> int:
        """How many there are."""

    def is_current(self, plan: Any) -> bool:
        """Whether the plan was not dropped since."""


class _Captured:
    """The graph of one size: where inputs are copied to, and what it leaves."""

    def __init__(self, rt: CudaRuntime, inputs: Sequence[Any], moved: set[int], body: Body) -> None:
        self.rt = rt
        given = list(inputs)
        self.places: list[tuple[int, RawArray]] = []
        self.results: list[Any] = []
        self.inputs = given  # memory of the device that it reads where it is
        with rt.memory.keeping(staging=True) as self.kept:
            for k in sorted(moved):
                given[k] = rt.memory.empty(inputs[k].shape, inputs[k].dtype)
                self.places.append((k, given[k]))
            self.graph = rt.capture(lambda: self.results.extend(body.work(given)))
        self.plan = body.plan

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Results of the loop, each time in the same memory."""
        self.rt.arena.reserve(self.plan.bound.memory.arena_bytes)
        for k, place in self.places:
            strided_copy(self.rt.env(), inputs[k], place)
        self.graph.launch()
        if self.plan.bound.reports:
            self.rt.copy_word()
            self.rt.pending_check = True
        return list(self.results)


class _Size:
    """What is known of one signature: how often it came, from where, and its graph."""

    def __init__(self) -> None:
        self.calls = self.captures = 0
        self.last: Pointers | None = None
        self.plan: Any = None
        self.moved: set[int] = set()
        self.captured: _Captured | None = None
        #: Why no graph can be made; empty while one may.
        self.why = ""

    def changed(self, now: Pointers) -> set[int]:
        """Inputs that lie elsewhere than in the last call and are not copied yet."""
        last, self.last = self.last, now
        return {k for k, (a, b) in enumerate(zip(last or now, now)) if a != b} - self.moved


class LoopGraphs:
    """The graphs of one loop by the sizes of its inputs and the values of those on the host."""

    def __init__(self, rt: CudaRuntime) -> None:
        self.rt = rt
        self.sizes: OrderedDict[Any, _Size] = OrderedDict()

    def run(self, inputs: Sequence[Any], body: Body) -> list[Any]:
        """Results of the loop. The first two calls of a size are enqueued step by step."""
        key = None if self.rt.busy or not body.steps(inputs) else _signature(inputs)
        if key is None or config.gpu.graph == "off":
            return body.work(inputs)
        size = self._size(key)
        if size.why:
            return body.work(inputs)
        size.calls += 1
        changed = size.changed([a.ptr if isinstance(a, RawArray) else None for a in inputs])
        if changed or (size.captured and not body.is_current(size.captured.plan)):
            size.captured = None
        if size.calls > _DIRECT:
            size.moved |= changed
            if size.captured is None:
                self._capture(size, inputs, body)
        if size.captured is not None:
            return size.captured.run(inputs)
        results = body.work(inputs)
        size.plan = body.plan
        return results

    def _size(self, key: Any) -> _Size:
        if key not in self.sizes and len(self.sizes) >= _MOST_SIZES:
            self.sizes.popitem(last=False)
        size = self.sizes.setdefault(key, _Size())
        self.sizes.move_to_end(key)
        return size

    def _capture(self, size: _Size, inputs: Sequence[Any], body: Body) -> None:
        plan, steps = size.plan.bound, body.steps(inputs)
        why = plan.loop_obstacle()
        if not why and steps * len(plan.steps) > _MOST_NODES:
            why = f"its {steps} steps launch more than {_MOST_NODES} kernels"
        if not why and size.captures < _MOST_CAPTURES:
            size.captures += 1
            self.rt.arena.reserve(plan.memory.arena_bytes)
            try:
                size.captured = _Captured(self.rt, inputs, size.moved, body)
                size.captured.plan.bound.loop_state = f"captured with its loop, {steps} steps"
            except CaptureFailed as error:
                why = str(error)
        if why:
            size.why = plan.not_captured = why


def _signature(inputs: Sequence[Any]) -> Any:
    """Sizes of what is on the device, values of what is on the host; None for much of that."""
    parts: list[Any] = []
    for a in inputs:
        if isinstance(a, RawArray):
            parts.append((a.shape, a.dtype, a.strides))
            continue
        host = np.asarray(a)
        if host.nbytes > _MOST_HOST or host.dtype.hasobject:
            return None
        parts.append((host.shape, host.dtype.name, host.tobytes()))
    return tuple(parts)
