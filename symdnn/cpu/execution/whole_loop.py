"""Runs a scan whose steps are small as one compiled function, in stretches of steps.

The function is made of the step's graph (:mod:`symdnn.ops.steps`), for the sizes and strides that
come. Where there is none, or where it reports a failure, the caller runs the loop step by step,
which raises the error with the user's line.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.cpu.execution.tier_up import HOT_CALLS
from symdnn.cpu.ir.scalar_ir import refusal
from symdnn.cpu.launch.contiguous_launch import compiler_refusal
from symdnn.cpu.launch.scratch import address, empty_aligned
from symdnn.cpu.steps.steps_ir import ARRAYS, DONE, ENDED, FAILED, SCRATCH, large_buffers, steps_ir
from symdnn.cpu.threads import threads
from symdnn.errors import KernelCompileError
from symdnn.ops.control.scan import Scan
from symdnn.ops.steps.code import Code, NotLowered
from symdnn.ops.steps.program import lowered_loop
from symdnn.ops.steps.rules import RULES
from symdnn.ops.steps.statements import programs_of, work_of

__all__ = ["WholeLoop"]

#: Work of a step, in additions of vectors, above which its kernels should run one by one: they
#: divide work between threads, and calling them takes little of the time.
_MOST_WORK = 1 << 16
#: Work between two looks for Ctrl-C.
_WORK_AT_ONCE = 1 << 24
#: Sizes and strides of arrays for which a loop keeps functions, and functions for each.
_MOST_KEYS, _MOST_FUNCTIONS = 64, 4
#: Steps of a loop of unknown length for which memory is allocated at first.
_FIRST_CAPACITY_STEPS = 64


class WholeLoop:
    """A scan's compiled functions, by the sizes and strides of its arrays."""

    def __init__(self, op: Scan) -> None:
        self.op = op
        self._known: dict[Any, _Functions] = {}

    def after(self, inputs: Sequence[Any]) -> int:
        """After how many steps of a loop of unknown length its function should take over."""
        functions = self._functions(inputs)
        if functions is None or functions.refused:
            return 0
        return max(1, _hot() - functions.steps)

    def run(self, inputs: Sequence[Any], steps: int) -> list[Any] | None:
        """Outputs of the scan; None where the loop has to run step by step.

        ``steps`` are how many it will do, as far as that is known: few are not worth compiling.
        """
        functions = self._functions(inputs)
        if functions is None:
            return None
        functions.steps += steps
        if functions.refused or functions.steps < _hot():
            return None
        found = functions.of(self.op, inputs)
        return None if found is None else found.run(inputs)

    def run_by_steps(self, inputs: Sequence[Any], steps: int) -> None:
        """Count the steps of a loop of unknown length that ran step by step."""
        functions = self._functions(inputs)
        if functions is not None:
            functions.steps += steps

    def _functions(self, inputs: Sequence[Any]) -> _Functions | None:
        if compiler_refusal() is not None or _hot() < 0:
            return None
        key = tuple([(a.shape, a.strides, a.dtype.char) for a in inputs])
        found = self._known.get(key)
        if found is None:
            if len(self._known) == _MOST_KEYS:
                self._known.pop(next(iter(self._known)))
            found = self._known[key] = _Functions()
        return found


def _hot() -> int:
    """Steps after which a function is compiled; -1: never, since it rounds in its own way."""
    if str(config.cpu.compile) == "always":
        return 0
    return -1 if str(config.deterministic) == "more" else HOT_CALLS


class _Functions:
    """The functions for arrays of the same sizes and strides; numbers may differ."""

    def __init__(self) -> None:
        self.steps = 0
        self.refused = ""
        self._made: list[_Function] = []

    def of(self, op: Scan, inputs: Sequence[Any]) -> _Function | None:
        for f in self._made:
            if f.fits(inputs):
                return f
        if len(self._made) == _MOST_FUNCTIONS:
            self.refused = "sizes inside of it change"
            return None
        try:
            self._made.append(_Function(op, inputs))
        except (NotLowered, KernelCompileError) as error:
            self.refused = str(error)
            return None
        return self._made[-1]


class _Function:
    """A compiled loop, and what it needs of the arrays."""

    def __init__(self, op: Scan, inputs: Sequence[Any]) -> None:
        program, code = lowered_loop(op, inputs, RULES)
        for p in programs_of(program):
            if missing := refusal(p):
                raise NotLowered(missing)
        work = max(1, work_of((*program.loop.body, *program.loop.after)))
        if work > _MOST_WORK:
            raise NotLowered("its steps are large")
        self.op, self.roles = op, code.roles
        self._values = code.values
        self._stretch = max(64, _WORK_AT_ONCE // work)
        self._scratch = large_buffers(program)[-1]
        self._run = threads.kernel(steps_ir, program)
        assert self._run.function
        self._entries = _entries(op, code)

    def fits(self, inputs: Sequence[Any]) -> bool:
        """Whether the numbers are those that the function was made for."""
        return all(int(inputs[i]) == value for i, value in self._values.items())

    def run(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Outputs of the scan; None where it reports a failure."""
        op = self.op
        given = op.split(inputs)
        n = int(given.steps)
        op.check_lengths(n, op.split([a.shape for a in inputs]))
        if n == 0:
            return None
        arrays = _Arrays(op, given.initials, self._entries, n)
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


def _entries(op: Scan, code: Code) -> list[tuple[tuple[int, ...], Any]]:
    """The shape and dtype of an entry of each collected value."""
    shapes = {r.number: r.value for r in code.roles if r.kind == "collected"}
    types: Sequence[Any] = op.inner.output_types[len(op.states) :]
    return [(shapes[k], t.numpy) for k, t in enumerate(types[: op.collected])]


class _Arrays:
    """The arrays that a loop writes: last values of states, histories, collected values."""

    def __init__(
        self, op: Scan, initials: Sequence[Any], collected: Sequence[tuple[Any, Any]], n: int
    ) -> None:
        self.op, self.n = op, n
        keeps = collected or any(c.history for c in op.states)
        self.room = min(n, _FIRST_CAPACITY_STEPS) if op.until and keeps else n
        self.now = [
            None if c.history else np.array(a, order="C") for c, a in zip(op.states, initials)
        ]
        self.history: list[Any] = []
        for c, a in zip(op.states, initials, strict=True):
            whole = None
            if c.history:
                whole = np.empty((c.depth + self.room, *a.shape[1:]), a.dtype)
                whole[: c.depth] = a
            self.history.append(whole)
        self.collected = [np.empty((self.room, *shape), dtype) for shape, dtype in collected]

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
