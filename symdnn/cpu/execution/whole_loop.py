"""Runs a scan whose steps are small as one compiled function, in stretches of steps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.execution.output_buffers import LoopBuffers
from symdnn.cpu.execution.tier_up import HOT_CALLS
from symdnn.cpu.ir.scalar_ir import refusal
from symdnn.cpu.launch.scratch import address, empty_aligned
from symdnn.cpu.steps.steps_ir import ARRAYS, DONE, ENDED, FAILED, SCRATCH, large_buffers, steps_ir
from symdnn.cpu.threads import threads
from symdnn.graph.type import numpy_dtype
from symdnn.ops.control.scan import Scan
from symdnn.ops.steps.code import MAX_BYTES, NotLowered
from symdnn.ops.steps.program import lowered_loop
from symdnn.ops.steps.rules import RULES_IN_VECTORS
from symdnn.ops.steps.statements import LoopProgram, bounded, programs_of, work_of
from symdnn.ops.steps.whole_loop import WholeLoop, collected_entries

#: Work, in additions of vectors, in the time that it takes to call the kernels of a step.
_WORK_OF_CALLS = 1 << 16
#: Work of a step above which its products should be those of libraries.
_MOST_WORK = 1 << 20
#: Work between two looks for Ctrl-C.
WORK_AT_ONCE = 1 << 24
#: Steps of a loop of unknown length for which memory is allocated at first.
_FIRST_CAPACITY_STEPS = 64
_compile, _deterministic = config.reader("cpu.compile"), config.reader("deterministic")


@cache
def _problem() -> bool:
    """Whether nothing can be compiled here."""
    return bool(jit.problem() or threads.problem())


def most_work() -> float:
    """Work of a step above which kernels called one by one are faster: they divide it."""
    saved = 1 - 1 / threads.allowed()
    return min(_MOST_WORK, _WORK_OF_CALLS / saved) if saved else _MOST_WORK


def hot_steps() -> int:
    """Steps after which a loop is compiled, which rounds in its own way; -1: never."""
    mode = str(_compile())
    if mode == "never" or _problem():
        return -1
    if mode == "always":
        return 0
    return -1 if str(_deterministic()) == "more" else HOT_CALLS


class CpuWholeLoop(WholeLoop):
    """A scan's compiled functions."""

    def hot(self) -> int:
        """Steps after which a function is compiled."""
        return hot_steps()

    def make(self, inputs: Sequence[Any]) -> _Function:
        """A compiled function."""
        return _Function(self.op, inputs)


class CompiledSteps:
    """The compiled steps of a scan of such arrays, and what they need of them."""

    def __init__(
        self, op: Scan, inputs: Sequence[Any], work: Callable[[LoopProgram], int],
        most_bytes: int = MAX_BYTES,
    ) -> None:  # fmt: skip
        program, code = lowered_loop(op, inputs, RULES_IN_VECTORS, most_bytes)
        for p in programs_of(program):
            if missing := refusal(p):
                raise NotLowered(missing)
        #: Of a step, in additions of vectors.
        self.work = work(program)
        body = bounded(program.loop.body, WORK_AT_ONCE)
        program = replace(program, loop=replace(program.loop, body=body))
        self.op, self.roles = op, code.roles
        self._values = code.values
        self._scratch = large_buffers(program)[-1]
        self._run = threads.kernel(steps_ir, program)
        assert self._run.function
        self._entries = [
            (shape, numpy_dtype(dtype)) for shape, dtype in collected_entries(op, code)
        ]

    def fits(self, inputs: Sequence[Any]) -> bool:
        """Whether the numbers are those that the function was made for."""
        return all(int(inputs[i]) == value for i, value in self._values.items())


def step_work(program: LoopProgram) -> int:
    """The work of a step; raises :class:`NotLowered` where kernels called one by one are faster."""
    work = max(1, work_of((*program.loop.body, *program.loop.after)))
    if work > most_work():
        raise NotLowered("its steps are large")
    return work


class _Function(CompiledSteps):
    """A compiled loop."""

    def __init__(self, op: Scan, inputs: Sequence[Any]) -> None:
        super().__init__(op, inputs, step_work)
        self._buffers = LoopBuffers()
        #: The number of steps for which the sizes were found to be right.
        self._checked = -1
        self._stretch = max(64, WORK_AT_ONCE // self.work)

    def run(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Outputs of the scan; None where it reports a failure."""
        op = self.op
        given = op.split(inputs)
        n = int(given.steps)
        if n != self._checked:  # for these sizes of arrays
            op.check_lengths(n, op.split([a.shape for a in inputs]))
            self._checked = n
        if n == 0:
            return None
        arrays = _Arrays(op, given.initials, self._entries, n, self._buffers)
        words = (ctypes.c_int64 * (ARRAYS + len(self.roles)))()
        scratch = empty_aligned(self._scratch) if self._scratch else None
        words[SCRATCH] = 0 if scratch is None else address(scratch)
        self._place(words, inputs, arrays)
        done = 0
        while True:
            words[0], words[1] = done, min(done + self._stretch, arrays.room)
            self._run(words)
            if words[FAILED]:
                return None
            done = words[DONE]
            if words[ENDED] or done == n:
                return arrays.results(done)
            if done == arrays.room:
                arrays.grow()
                self._place(words, inputs, arrays)

    def _place(self, words: Any, inputs: Sequence[Any], arrays: _Arrays) -> None:
        for i, role in enumerate(self.roles, ARRAYS):
            if role.kind == "input":
                array = inputs[role.number]
            elif role.kind == "constant":
                array = role.value
            else:
                array = getattr(arrays, role.kind)[role.number]
            words[i] = address(array)


class _Arrays:
    """The arrays that a loop writes: last values of states, histories, collected values."""

    def __init__(
        self, op: Scan, initials: Sequence[Any], collected: Sequence[tuple[Any, Any]], n: int,
        buffers: LoopBuffers,
    ) -> None:  # fmt: skip
        self.op, self.n, empty = op, n, buffers.empty
        keeps = collected or any(c.history for c in op.states)
        self.room = min(n, _FIRST_CAPACITY_STEPS) if op.until and keeps else n
        #: The last values of states: the results, and where another stretch begins.
        self.now = [
            None if c.history else empty(a.shape, a.dtype) for c, a in zip(op.states, initials)
        ]
        self.history: list[Any] = []
        for c, a in zip(op.states, initials, strict=True):
            whole = None
            if c.history:
                whole = empty((c.depth + self.room, *a.shape[1:]), a.dtype)
            self.history.append(whole)
        self.collected = [empty((self.room, *shape), dtype) for shape, dtype in collected]

    def grow(self) -> None:
        """Make room for twice as many steps."""
        more = min(self.n, 2 * self.room) - self.room
        self.room += more
        self.history = [None if h is None else _longer(h, more) for h in self.history]
        self.collected = [_longer(c, more) for c in self.collected]

    def results(self, done: int) -> list[Any]:
        """Outputs of the scan after so many steps."""
        found: list[Any] = []
        for c, now, whole in zip(self.op.states, self.now, self.history, strict=True):
            if whole is None:
                assert now is not None
                found.append(now[-1, ...])
                continue
            last = c.depth + done
            found += [whole[:last], np.array(whole[last - 1, ...], order="C")]
        found += [c[:done] for c in self.collected]
        return [*found, np.asarray(done, np.int64)] if self.op.until else found


def _longer(array: Any, more: int) -> Any:
    longer = np.empty((len(array) + more, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer
