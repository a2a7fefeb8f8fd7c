"""A whole loop as one CUDA graph of all its steps, for loops that repeat with the same sizes.

The launches of a step depend only on sizes, addresses and a few values of the host. So a loop of
known length is captured once, and replayed from then on. Loops in its steps are part of the graph.
All of a function with such loops is captured in the same way, as a loop of one step
(:mod:`symdnn.compile.execute.joined`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from symdnn.config import config
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.capture import CaptureFailed
from symdnn.gpu.execution.operands import Device
from symdnn.gpu.execution.run_ahead import InFlightCalls
from symdnn.gpu.kernels.copy import strided_copy
from symdnn.graph.runtime import BoundPlan

_MAX_HOST_BYTES = 1 << 16  # of a host array whose values become part of a graph
_MAX_SIGNATURES = 8
#: Captures of one signature: plans are dropped, and addresses change.
_MAX_CAPTURES = 6
#: Captures after which a graph reads no input in place any more, but copies, so that the addresses
#: of inputs no longer matter.
_CAPTURES_IN_PLACE = 3
#: Calls before the first capture. By then the segments before the loop are graphs themselves, and
#: their results keep their addresses.
_CALLS_BEFORE_CAPTURE = 2

Pointers = list[int | None]


class Body(Protocol):
    """The loop of a :class:`LoopGraphs`."""

    #: The most kernels and copies in one graph.
    most_nodes: int

    @property
    def plans(self) -> list[Any]:
        """The plans (:class:`symdnn.compile.plan.plan.Plan`) of a step in the last :meth:`work`."""

    def work(self, inputs: Sequence[Any]) -> list[Any]:
        """Enqueue all steps, and return the loop's results."""

    def steps(self, inputs: Sequence[Any]) -> int:
        """The number of steps."""

    def is_ready(self) -> bool:
        """Whether a first graph may be made after a call like the last :meth:`work`."""

    def is_current(self, plans: Sequence[Any]) -> bool:
        """Whether the plans are still in their caches."""

    def forgetting_plans_if_it_fails(self) -> AbstractContextManager[None]:
        """A context of a capture. What plans made inside have uploaded was captured, not done."""

    def forget_inner_graphs(self) -> None:
        """Free the graphs of loops in its steps."""

    def note_captured(self, plans: Sequence[Any], inputs: Sequence[Any]) -> None:
        """A graph runs these plans now."""

    def refuse(self, plans: Sequence[Any], why: str) -> None:
        """No graph can run these plans."""


class _Captured:
    """The graph of one signature, with the memory of copied inputs and of results."""

    def __init__(self, device: Device, inputs: Sequence[Any], moved: set[int], body: Body) -> None:
        self.device = device
        given = list(inputs)
        self.places: list[tuple[int, RawArray]] = []
        self.results: list[Any] = []
        self.inputs = given  # keeps memory alive that the graph reads in place
        with device.memory.keeping(staging=True) as self.kept:
            for k in sorted(moved):
                given[k] = device.memory.empty(inputs[k].shape, inputs[k].dtype)
                self.places.append((k, given[k]))
            with body.forgetting_plans_if_it_fails():
                self.graph = device.capture(lambda: self.results.extend(body.work(given)))
        # Also those that a step has used and a later one has dropped: the graph keeps them.
        used: dict[Any, None] = dict.fromkeys(b for b in self.kept if isinstance(b, BoundPlan))
        self.plans = [p for p in body.plans if p.bound in used]
        self.arena_bytes = max((bound.memory.arena_bytes for bound in used), default=0)
        reports = any(bound.reports for bound in used)
        self.in_flight = InFlightCalls(device.queue, 1) if reports else None

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """The results of the loop, in the same memory each time.

        Where kernels report errors, no more than two calls are enqueued, so that one of the next
        calls raises these.
        """
        in_flight = self.in_flight
        if in_flight is not None and in_flight.begin((), False):
            self.device.raise_finished_errors()
        self.device.arena.reserve(self.arena_bytes)
        for k, place in self.places:
            strided_copy(self.device.env(), inputs[k], place)
        self.graph.launch()
        self.device.enqueued += self.graph.nodes
        if in_flight is not None:
            self.device.copy_error_word()
            in_flight.end()
            self.device.unread = True
        return list(self.results)


class _Signature:
    """The state of one signature: numbers of calls and captures, last addresses, the graph."""

    def __init__(self) -> None:
        self.calls = self.captures = 0
        self.last: Pointers | None = None
        self.plans: list[Any] = []
        #: Whether the last call ran in such a way that the next one may be captured.
        self.ready = False
        #: How much the last call enqueued step by step.
        self.enqueued = 0
        self.moved: set[int] = set()
        self.captured: _Captured | None = None
        #: Why no graph can be made; empty while one may be.
        self.why = ""

    def changed(self, now: Pointers) -> set[int]:
        """Inputs that have other addresses than in the last call and are not copied yet."""
        last, self.last = self.last, now
        return {k for k, (a, b) in enumerate(zip(last or now, now)) if a != b} - self.moved


class LoopGraphs:
    """The graphs of one loop, by the sizes of device inputs and the values of host inputs.

    A graph's results are in the same memory each time. With ``fresh`` they are copied, for a loop
    in another one, whose states keep results of earlier steps.
    """

    def __init__(self, device: Device, fresh: bool) -> None:
        self.device, self.fresh = device, fresh
        self.signatures: OrderedDict[Any, _Signature] = OrderedDict()
        #: Whether the last call was one graph.
        self.ran_captured = False

    def run(self, inputs: Sequence[Any], body: Body) -> list[Any]:
        """The results of the loop. The first calls of a signature are enqueued step by step."""
        within = self.device.memory.captures_host_values  # a loop around it is being captured
        self.ran_captured = False
        apart = within or self.device.is_watched or not body.steps(inputs)
        key = None if apart else _signature(inputs)
        if key is None or config.gpu.graph == "off":
            return body.work(inputs)
        state = self._state(key)
        if state.why:
            return body.work(inputs)
        state.calls += 1
        changed = state.changed([a.ptr if isinstance(a, RawArray) else None for a in inputs])
        if changed or (state.captured and not body.is_current(state.captured.plans)):
            state.captured = None
        if state.calls > _CALLS_BEFORE_CAPTURE and (state.captures or state.ready):
            state.moved |= changed
            if state.captured is None and state.captures >= _CAPTURES_IN_PLACE:
                state.moved |= {k for k, a in enumerate(inputs) if isinstance(a, RawArray)}
            if state.captured is None:
                self._capture(state, inputs, body)
        self.ran_captured = state.captured is not None
        if state.captured is not None:
            results = state.captured.run(inputs)
            return [self.device.fresh(r) for r in results] if self.fresh else results
        before = self.device.enqueued
        results = body.work(inputs)
        state.plans, state.enqueued = body.plans, self.device.enqueued - before
        state.ready = body.is_ready()
        return results

    def forget(self, inputs: Sequence[Any]) -> None:
        """Free the graph for such inputs and its memory: something else runs the loop now."""
        if self.signatures:
            self.signatures.pop(_signature(inputs), None)

    def _state(self, key: Any) -> _Signature:
        if key not in self.signatures and len(self.signatures) >= _MAX_SIGNATURES:
            self.signatures.popitem(last=False)
        state = self.signatures.setdefault(key, _Signature())
        self.signatures.move_to_end(key)
        return state

    def _capture(self, state: _Signature, inputs: Sequence[Any], body: Body) -> None:
        plans, steps = [p.bound for p in state.plans], body.steps(inputs)
        why = next((found for p in plans if (found := p.loop_obstacle())), "")
        if not why and state.enqueued > body.most_nodes:
            why = f"its {steps} steps launch more than {body.most_nodes} kernels"
        if not why and state.captures < _MAX_CAPTURES:
            state.captures += 1
            self.device.arena.reserve(max((p.memory.arena_bytes for p in plans), default=0))
            try:
                state.captured = _Captured(self.device, inputs, state.moved, body)
            except CaptureFailed as error:
                why = str(error)
            else:
                body.forget_inner_graphs()
                body.note_captured(state.captured.plans, inputs)
        if why:
            state.why = why
            body.refuse(state.plans, why)


def _signature(inputs: Sequence[Any]) -> Any:
    """The sizes of device inputs and the values of host inputs; None for large host inputs."""
    parts: list[Any] = []
    for a in inputs:
        if isinstance(a, RawArray):
            parts.append((a.shape, a.dtype, a.strides))
            continue
        host = np.asarray(a)
        if host.nbytes > _MAX_HOST_BYTES or host.dtype.hasobject:
            return None
        parts.append((host.shape, host.dtype.name, host.tobytes()))
    return tuple(parts)
