"""The CPU as a runtime: arenas, and plans bound to their addresses."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.cpu import kernels
from symdnn.graph.evaluate import describe_failure
from symdnn.graph.runtime import Watcher
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable

__all__ = ["CpuRuntime", "runtime"]

Array = Any


class Arena:
    """Scratch memory that the plans of one nesting depth overlay; it only grows."""

    def __init__(self) -> None:
        self.bytes: Array = np.empty(0, np.uint8)

    def reserve(self, nbytes: int) -> Array:
        """At least ``nbytes``, aligned to 64; a new array when it had to grow."""
        if self.bytes.nbytes < nbytes:
            raw = np.empty(nbytes + 64, np.uint8)
            start = -raw.__array_interface__["data"][0] % 64
            self.bytes = raw[start : start + nbytes]
        return self.bytes


class HostMemory:
    """Storages on the CPU are their own host copies."""

    device = "cpu"

    def upload(self, array: Array, into: Any) -> Any:
        """The array itself."""
        return array

    def download(self, buffer: Any) -> Array:
        """The array itself."""
        return buffer


class CpuRuntime:
    """One lock, and an arena for each depth of calls within calls (a user's callback)."""

    def __init__(self) -> None:
        self.memory = HostMemory()
        self._lock = threading.RLock()
        self._arenas: list[Arena] = []
        self._depth = -1

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the device; a call inside of a call gets an arena of its own."""
        with self._lock:
            self._depth += 1
            if self._depth == len(self._arenas):
                self._arenas.append(Arena())
            try:
                yield
            finally:
                self._depth -= 1

    @property
    def arena(self) -> Arena:
        """The arena of the current depth."""
        return self._arenas[self._depth]

    def bind(self, specialised: Any, memory_plan: Any) -> CpuPlan:
        """Bind the launches; buffers are attached at the first run, and when the arena grew."""
        return CpuPlan(self, specialised, memory_plan)

    def to_host(self, value: Any) -> Array:
        """The array itself."""
        return value

    def fresh(self, value: Any) -> Array:
        """A contiguous copy."""
        return np.array(value, order="C", copy=True)

    def facts(self) -> Mapping[str, Any]:
        """Which libraries run the kernels."""
        return {"device": "cpu", "kernels": f"NumPy {np.__version__}"}


@dataclass
class Step:
    """One launch: where its operands stand among the plan's values."""

    node: Apply
    launch: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    by_view: bool


class CpuPlan:
    """Values in one list: constants and arena views bound once, the rest put in at each call."""

    def __init__(self, runtime: CpuRuntime, spec: Any, memory: Any) -> None:
        self.runtime, self.spec, self.memory = runtime, spec, memory
        self.index: dict[Variable, int] = {}
        for v in memory.views:
            self.index[v] = len(self.index)
        self.values: list[Any] = [None] * len(self.index)
        self.entering = [self.index.get(v) for v in spec.segment.inputs]
        self.leaving = [self.index[v] for v in spec.segment.outputs]
        self.fresh = self._fresh_outputs()
        self.made = [i for v, i in self.index.items() if memory.views[v].buffer.kind == "made"]
        self.steps = [s for n in spec.segment.nodes if (s := self._step(n)) is not None]
        self.scratch: Array = None
        for v, i in self.index.items():
            if isinstance(v, Constant):
                self.values[i] = v.data
            elif v in spec.sizes:
                self.values[i] = spec.sizes[v]

    def _fresh_outputs(self) -> list[tuple[int, Any, Any]]:
        made = []
        for v in self.spec.segment.outputs:
            view = self.memory.views[v]
            if view.buffer.kind == "outside" and view.buffer.variable is v and v.owner is not None:
                made.append((self.index[v], view.shape, v.type.numpy))
        return made

    def _step(self, node: Apply) -> Step | None:
        by_view = node in self.memory.aliases
        if by_view and self.memory.views[node.outputs[0]].static and self._bound_once(node):
            return None
        call_inputs = tuple(self.index[v] for v in node.inputs)
        outputs = tuple(self.index[v] for v in node.outputs)
        if by_view:
            return Step(node, node.op.compute, call_inputs, outputs, True)
        return Step(node, self.spec.launch(node), call_inputs, outputs, False)

    def _bound_once(self, node: Apply) -> bool:
        return self.memory.views[node.outputs[0]].buffer.kind == "arena"

    def _attach(self) -> None:
        """Bind every view of the arena to its place."""
        arena = self.runtime.arena.reserve(self.memory.arena_bytes)
        if arena is self.scratch:
            return
        self.scratch = arena
        for v, view in self.memory.views.items():
            if view.buffer.kind == "arena" and view.static:
                self.values[self.index[v]] = _array_at(arena, view, v.type)

    def run(self, entering: Sequence[Any], watcher: Watcher | None = None) -> list[Any]:
        """Run every step; values that leave are fresh arrays."""
        self._attach()
        values = self.values
        for i, value in zip(self.entering, entering):
            if i is not None:
                values[i] = value
        for i, shape, dtype in self.fresh:
            values[i] = np.empty(shape, dtype)
        for i in self.made:
            values[i] = None
        self._launch_all(values, watcher)
        left = [values[i] for i in self.leaving]
        for i in self.entering:
            if i is not None:
                values[i] = None
        for i in self.leaving:
            values[i] = None
        return left

    def _launch_all(self, values: list[Any], watcher: Watcher | None) -> None:
        step: Step | None = None
        try:
            for step in self.steps:
                inputs = [values[i] for i in step.inputs]
                if watcher is not None:
                    watcher(step.node, inputs, None)
                self._launch(step, inputs, values)
                if watcher is not None:
                    watcher(step.node, inputs, [values[o] for o in step.outputs])
        except Exception as error:
            if step is not None:
                error.add_note(describe_failure(step.node, [values[i] for i in step.inputs]))
            raise

    @staticmethod
    def _launch(step: Step, inputs: list[Any], values: list[Any]) -> None:
        if step.by_view:
            values[step.outputs[0]] = step.launch(*inputs)[0]
            return
        outputs = [values[o] for o in step.outputs]
        results = step.launch(inputs, outputs)
        if results is not None:
            for o, result in zip(step.outputs, results):
                values[o] = result


def _array_at(arena: Array, view: Any, type_: Any) -> Array:
    assert isinstance(type_, TensorType)
    if 0 in view.shape:
        return np.empty(view.shape, type_.numpy)
    start = view.buffer.offset + view.offset
    return np.ndarray(view.shape, type_.numpy, arena, start, view.strides)


kernels.register()
_runtime = CpuRuntime()


def runtime() -> CpuRuntime:
    """The process's CPU runtime."""
    return _runtime
