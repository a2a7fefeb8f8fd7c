"""Operands of a plan's steps on the device, and the interface of the device that plans use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from symdnn.gpu.codegen.launches import View
from symdnn.gpu.device.arena import Arena
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.capture import Graph, Queue
from symdnn.gpu.device.env import Env
from symdnn.gpu.device.memory import CudaMemory
from symdnn.gpu.kernels.copy import strided_copy
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.index import Subtensor
from symdnn.ops.array.slices import as_python, check_index, fill_in, is_slice

Values = dict[Variable, Any]


class Device(Protocol):
    """The runtime of a device, as plans use it.

    See :class:`~symdnn.gpu.execution.runtime.CudaRuntime`.
    """

    arena: Arena
    memory: CudaMemory
    queue: Queue
    enqueued: int
    pending_check: bool
    unread: bool

    def env(self, workspace: int = 0, node: int = -1) -> Env:
        """A new launch environment."""

    def number_of(self, node: Apply, types: Sequence[Any]) -> int:
        """The number by which errors of a node are reported."""

    def forget_nodes(self, numbers: Sequence[int]) -> None:
        """Drop nodes of :meth:`number_of`."""

    def constant(self, v: Constant) -> RawArray:
        """A constant's copy on the device."""

    def to_host(self, value: Any) -> Any:
        """A value as a NumPy array."""

    def fresh(self, value: Any) -> Any:
        """A copy of an array."""

    def settle(self) -> None:
        """Wait for calls that can report errors, and raise these."""

    def capture(self, enqueue: Callable[[], None]) -> Graph:
        """A CUDA graph of the work that ``enqueue`` enqueues."""

    def seconds_of(self, enqueue: Callable[[], object]) -> float:
        """The device's time for work that it waits for."""

    def watched(
        self, nbytes: int, registered: Sequence[RawArray]
    ) -> contextlib.AbstractContextManager[None]:
        """The context of a watcher's call."""

    @property
    def is_watched(self) -> bool:
        """Whether a call now is that of a watcher."""

    def run_nested(self, run: Callable[[], list[Any]]) -> list[Any]:
        """Run a call of a watcher."""

    def raise_finished_errors(self) -> None:
        """Raise errors of finished calls."""

    def copy_error_word(self) -> None:
        """Enqueue a copy of the error word to the host."""

    def error_word_copy(self) -> tuple[int, int, int]:
        """That copy as (target, source, bytes)."""


class Step(NamedTuple):
    """A node, or the first node of a horizontally fused group, and the function that enqueues it.

    ``run(node, values)`` reads inputs from ``values``, and adds outputs that it allocates.
    """

    node: Apply
    run: Callable[[Apply, Values], None]


@lru_cache(maxsize=1024)
def place_of_part(
    op: Subtensor, shape: tuple[int, ...], dtype: str, strides: tuple[int, ...],
    bounds: tuple[int, ...],
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:  # fmt: skip
    """The offset, shape and strides of a slice by these bounds."""
    entries = fill_in(op.index, bounds)
    for axis, (e, size) in enumerate(zip(entries, shape)):
        if not is_slice(e):
            check_index(op, e, size, axis)
    seen = View(0, dtype, shape, strides)[as_python(entries)]
    return seen.offset, seen.shape, seen.strides


@dataclass(frozen=True)
class Operands:
    """Access to the operands of a plan: ``spec`` is the specialised plan, ``memory`` its memory
    plan, ``registered`` its memory of libraries. ``envs`` are the environments of all its launches.
    """

    device: Device
    spec: Any
    memory: Any
    registered: Sequence[RawArray] = ()
    envs: list[Env] = field(default_factory=list)

    def env(self, workspace: int = 0, node: int = -1) -> Env:
        """A new environment for a step."""
        env = self.device.env(workspace, node)
        self.envs.append(env)
        return env

    @property
    def reports(self) -> bool:
        """Whether a kernel that has run can report an error of the data."""
        return any(env.reports for env in self.envs)

    def operand(self, node: Apply, i: int, v: Variable, values: Values) -> Any:
        """Input ``i`` of a node; a constant is on the host if the node reads it there."""
        if isinstance(v, Constant):
            return v.data if i in node.op.host_inputs else self.device.constant(v)
        return values[v]

    def contiguous(self, x: Any, accepted: bool) -> Any:
        """``x``, copied to contiguous memory unless its layout is ``accepted``."""
        if accepted or not isinstance(x, RawArray):
            return x
        target = self.device.memory.empty(x.shape, x.dtype)
        strided_copy(self.device.env(), x, target)
        return target

    def copy_to(self, value: Any, target: RawArray) -> None:
        """Enqueue a copy of an array of the host or the device to ``target``."""
        if not isinstance(value, RawArray):
            self.device.memory.copy_in(np.asarray(value), target)
        elif value.contiguous and target.contiguous:
            self.device.memory.copy(value, target)
        else:
            strided_copy(self.device.env(), value, target)

    def sharing(self, v: Variable) -> list[tuple[Variable, Any]]:
        """All variables, with their views, that share the memory of ``v``."""
        views = self.memory.views
        return [(w, view) for w, view in views.items() if view.buffer is views[v].buffer]
