"""The steps of a plan in the order of their launches, and their values in a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from symdnn.gpu.device.array import RawArray
from symdnn.gpu.execution.operands import Operands, Step, Values
from symdnn.gpu.execution.watched import run_watched
from symdnn.graph.evaluate import note_failure
from symdnn.graph.runtime import Watcher
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.lowered.transfer import HostFromGpu


@dataclass(frozen=True)
class BoundSteps:
    """The steps of a plan. Only the contents of ``results`` and ``not_loaded`` change in calls.

    ``head`` copies inputs to the device and reads host values of the call, ``middle`` and
    ``updates`` can be captured, ``outs`` are the copies to the host. ``updates`` write the new
    values of shared variables. ``bound`` are the values that are the same in all calls.
    """

    operands: Operands
    bound: Values
    head: list[Step]
    middle: list[Step]
    updates: list[Step]
    outs: list[Apply]
    #: Results of a kept segment, which are written again to the same memory.
    results: Values = field(default_factory=dict)
    #: Updates whose kernels may not be compiled and loaded yet.
    not_loaded: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.not_loaded.extend(self.updates)

    def values(self, entering: Sequence[Any], separate: bool = False) -> Values:
        """The values at the start of a call. With ``separate`` new values of shared variables are
        new arrays, so that no storage is written."""
        values = dict(self.bound)
        values.update(zip(self.operands.spec.segment.inputs, entering))
        for new, old in self.operands.memory.stored.items():
            at = values[old]
            empty = self.operands.device.memory.empty
            values[new] = empty(at.shape, at.dtype) if separate else at
        values.update((new, values[old]) for new, old in self.operands.memory.carried.items())
        return values

    def allocate_results(self, values: Values, targets: Sequence[Any] = ()) -> None:
        """Allocate the results that stay on the device, or use ``targets`` that fit."""
        found: dict[Variable, Any] = {}
        for i, v in self._allocated:
            target = targets[i] if i < len(targets) else None
            like = target is not None and target.is_like(self._types[v][0], v.type.dtype)
            found[v] = target if like else self.results.get(v)
        new = [v for v, array in found.items() if array is None]
        if new:
            found.update(
                zip(new, self.operands.device.memory.beside([self._types[v] for v in new]))
            )
        values.update(found)
        if self.operands.spec.segment.kept:
            self.results.update(found)
        for v, w, view in self._beside:
            at = found[v]
            values[w] = RawArray(at.ptr + view.offset, view.shape, w.type.dtype, view.strides, at)

    @cached_property
    def _allocated(self) -> list[tuple[int, Variable]]:
        """The results with memory of their own on the device, and their places."""
        found = []
        for i, v in enumerate(self.operands.spec.segment.outputs):
            buffer, made = self.operands.memory.views[v].buffer, v.owner
            if buffer.kind == "outside" and buffer.variable is v and made is not None:
                found += [(i, v)] * (not isinstance(made.op, HostFromGpu))
        return found

    @cached_property
    def _types(self) -> dict[Variable, tuple[tuple[int, ...], str]]:
        views = self.operands.memory.views
        return {v: (views[v].shape, v.type.dtype) for _, v in self._allocated}

    @cached_property
    def _beside(self) -> list[tuple[Variable, Variable, Any]]:
        """What shares the memory of each of these results: its source, and other views."""
        shared = ((v, *other) for v in self._types for other in self.operands.sharing(v))
        return [(v, w, view) for v, w, view in shared if w is not v]

    def redirect_updates(self, values: Values) -> None:
        """Let copied new values be the storages that they were copied to.

        The runtime's update then does not copy them again.
        """
        values.update((new, values[old]) for new, old in self.operands.memory.copied.items())

    def written(self, entering: Sequence[Any]) -> list[tuple[int, int]]:
        """The address ranges of the storages that new values are written to."""
        memory = self.operands.memory
        updated = {*memory.stored.values(), *memory.copied.values()}
        if not updated:
            return []
        pairs = zip(self.operands.spec.segment.inputs, entering)
        return [a.extent for v, a in pairs if v in updated]

    def run(self, steps: Sequence[Step], values: Values, watcher: Watcher | None = None) -> None:
        """Enqueue some of the steps, with a call of ``watcher`` before and after each."""
        for step in steps:
            try:
                if watcher is None or not step.node.outputs:  # a check
                    step.run(step.node, values)
                else:
                    run_watched(self.operands, step, values, watcher)
            except Exception as error:
                inputs = [values.get(v) for v in step.node.inputs]
                note_failure(error, step.node, inputs)
                raise

    def run_middle(self, values: Values, updates: bool = True) -> None:
        """Enqueue the middle and the updates. Updates begin only when all kernels are loaded;
        without ``updates`` they are loaded alone."""
        self.run(self.middle, values)
        if self.not_loaded:
            self._load_updates(values)
        if updates:
            self.run(self.updates, values)

    def _load_updates(self, values: Values) -> None:
        for env in self.operands.envs:
            env.load_only = True
        try:
            self.run(self.not_loaded, values)
        finally:
            for env in self.operands.envs:
                env.load_only = False
        self.not_loaded.clear()
