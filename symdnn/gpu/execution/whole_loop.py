"""Runs a scan whose steps are small as one kernel of one block; its condition is on the device.

The host reads what the kernel reports only where a check may fail, or where the number of steps is
not known. Loops are in no captured segment, so it may wait for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.gpu.codegen.cuda_source import print_problem
from symdnn.gpu.codegen.device_source import CTYPES
from symdnn.gpu.codegen.steps_source import scratch_places, steps_source, threads_of
from symdnn.gpu.device.array import ALIGNMENT, RawArray
from symdnn.gpu.kernels.copy import strided_copy
from symdnn.ops.control.scan import Scan
from symdnn.ops.steps.code import NotLowered
from symdnn.ops.steps.program import lowered_loop
from symdnn.ops.steps.rules import RULES
from symdnn.ops.steps.statements import (
    Folding,
    Index,
    LoopProgram,
    Map,
    Product,
    Repeat,
    bounded,
    programs_of,
    work_of,
)
from symdnn.ops.steps.whole_loop import WholeLoop, collected_entries

#: Steps after which a kernel is made, of up to so many ops; of more ops fewer steps. Compiling
#: takes about as long as those steps one by one.
_HOT_STEPS, _OPS_OF_A_STEP = 1000, 10
#: Operations of a step, in all and for each statement, above which kernels that use the whole
#: device should run one by one.
_MOST_WORK, _WORK_OF_A_STATEMENT = 1 << 18, 1 << 15
#: Indices of an array by which entries are moved one after the other. Kernels of a captured step
#: move more of them in less time, all at once.
_MOST_INDICES = 64
#: Work of one launch (of :func:`~symdnn.ops.steps.statements.work_of`), so that a loop that does
#: not end can be interrupted between launches, and steps in one launch at least.
_WORK_AT_ONCE, _LEAST_AT_ONCE = 1 << 22, 64
_FIRST_CAPACITY_STEPS = 256
#: Statements of a function at most: of more, its loops are compiled apart, which takes less time.
_MOST_STATEMENTS = 300
_whole, _deterministic = config.reader("gpu.whole_loops"), config.reader("deterministic")


class GpuWholeLoop(WholeLoop):
    """A scan's kernels."""

    made_as = "one kernel"

    def __init__(self, op: Scan, device: Any) -> None:
        super().__init__(op)
        self._device = device

    def hot(self) -> int:
        """Steps after which a kernel is made; it rounds in its own way."""
        mode = str(_whole())
        if mode == "never" or self._device.is_watched:
            return -1
        if mode == "always":
            return 0
        if str(_deterministic()) == "more":
            return -1
        return _HOT_STEPS * _OPS_OF_A_STEP // max(_OPS_OF_A_STEP, len(self.op.inner.nodes))

    def make(self, inputs: Sequence[Any]) -> GpuLoopFunction:
        """A kernel's function."""
        return GpuLoopFunction(self._device, self.op, on_device(self._device.memory, inputs))


class GpuLoopFunction:
    """A loop's kernel for arrays of certain sizes and strides.

    Loops of unknown length in its steps do so much ``work`` at most, and fail then.
    """

    def __init__(self, device: Any, op: Scan, inputs: Sequence[Any], work: int = 0) -> None:
        program, code = lowered_loop(op, inputs, RULES)
        if work:
            body = bounded(program.loop.body, work)
            if work_of(body) > _WORK_AT_ONCE:
                raise NotLowered("it is large")
            if sum(1 for _ in program.statements()) > _MOST_STATEMENTS:
                raise NotLowered("it is long")
            program = replace(program, loop=replace(program.loop, body=body))
        _check(program)
        self.device, self.op, self.roles, self._values = device, op, code.roles, code.values
        self._reads = op.until or program.may_fail
        own = max(1, work_of((*program.loop.body, *program.loop.after)))
        self._stretch = max(_LEAST_AT_ONCE, _WORK_AT_ONCE // own)
        self._scratch = scratch_places(program)[-1]
        self._entries = collected_entries(op, code)
        self._given = {i: r.value for i, r in enumerate(code.roles) if r.kind == "constant"}
        self._uploaded: dict[int, RawArray] = {}
        self._numbers = frozenset(
            i
            for i, r in enumerate(code.roles)
            if r.kind == "input" and not isinstance(inputs[r.number], RawArray)
        )
        if any(inputs[code.roles[i].number].shape for i in self._numbers):
            raise NotLowered("an array is on the host")
        self._threads = threads_of(program)
        source = steps_source(program, self._numbers)
        self._function = device.env().module(source, "steps")

    def fits(self, inputs: Sequence[Any]) -> bool:
        """Whether the numbers are those that the kernel was made for."""
        return all(int(inputs[i]) == value for i, value in self._values.items())

    def run(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Outputs of the scan; None where it reports a failure."""
        op, memory = self.op, self.device.memory
        if memory.captures_host_values:
            memory.keep(self)
        inputs = on_device(memory, inputs)
        given = op.split(inputs)
        n = int(given.steps)
        op.check_lengths(n, op.split([a.shape for a in inputs]))
        if n == 0:
            return None
        arrays = _Arrays(memory, op, given.initials, self._entries, n)
        constants = self._constants()
        words = memory.empty((3,), "int64")
        scratch = memory.empty((max(self._scratch, 1),), "uint8")
        done = 0
        while True:
            end = min(done + self._stretch, arrays.room)
            self._launch(done, end, words, scratch, self._placed(inputs, vars(arrays), constants))
            if self._reads:
                done, ended, failed = map(int, memory.download(words))
                if failed:
                    return None
            else:
                done, ended = end, 0
            if ended or done == n:
                return arrays.results(done, self.device.env())
            if done == arrays.room:
                arrays.grow(self.device.env())

    def _launch(self, first: int, end: int, words: Any, scratch: Any, arrays: list[int]) -> None:
        fields = np.array([first, end, words.ptr, scratch.ptr, *arrays], np.int64)
        args = (np.void(fields.tobytes()),)
        self.device.env().launch(self._function, (1,), (self._threads,), 0, args)

    def _constants(self) -> dict[int, RawArray]:
        """The constants on the device. In the capture of a loop around this one they are the
        graph's own, for which they are there when it is launched."""
        memory = self.device.memory
        found = self._uploaded or {i: memory.upload(a, None) for i, a in self._given.items()}
        if not memory.captures_host_values:
            self._uploaded = found
        return found

    def _placed(
        self, inputs: Sequence[Any], arrays: Mapping[str, Sequence[Any]],
        constants: dict[int, RawArray],
    ) -> list[int]:  # fmt: skip
        """The addresses of the arrays, by role and number; of those on the host the numbers."""
        found = []
        for i, role in enumerate(self.roles):
            if i in self._numbers:
                raw = np.asarray(inputs[role.number]).tobytes().ljust(8, b"\0")
                found.append(int(np.frombuffer(raw, np.int64)[0]))
            elif role.kind == "input":
                found.append(inputs[role.number].ptr)
            elif role.kind == "constant":
                found.append(constants[i].ptr)
            else:
                found.append(arrays[role.kind][role.number].ptr)
        return found


def on_device(memory: Any, inputs: Sequence[Any]) -> list[Any]:
    """Inputs with arrays on the device: positions of steps may be on the host."""
    return [a if isinstance(a, RawArray) or not a.shape else memory.upload(a, None) for a in inputs]


def _check(program: LoopProgram) -> None:
    """Raise :class:`NotLowered` for a program that a block should not run, or without code."""
    for p in programs_of(program):
        if problem := print_problem(p):
            raise NotLowered(problem)
        if strange := {*p.inputs, *p.output_dtypes, *(s.dtype for s in p.body)} - {*CTYPES}:
            raise NotLowered(f"no code for {', '.join(sorted(strange))}")
    work, statements = 0, 0
    for s in program.statements():
        statements += 1
        if isinstance(s, Map):
            work += prod(s.shape) * (1 + s.program.cost)
        elif isinstance(s, Folding):
            work += prod(s.sizes) * (1 + sum(p.cost for p in s.fold.programs))
        elif isinstance(s, Product):
            work += 2 * prod(s.x.shape) * s.y.shape[2]
        elif isinstance(s, Repeat) and _moves_by_many(s):
            raise NotLowered("it moves entries by many indices, one after the other")
    if work > min(_MOST_WORK, _WORK_OF_A_STATEMENT * statements):
        raise NotLowered("its steps are large")


def _moves_by_many(s: Repeat) -> bool:
    many = isinstance(s.count, int) and s.count > _MOST_INDICES
    return many and isinstance(s.body[0], Index)


class _Arrays:
    """The arrays that a loop writes: last values of states, histories, collected values."""

    def __init__(
        self, memory: Any, op: Scan, initials: Sequence[Any], entries: Sequence[tuple[Any, str]],
        n: int,
    ) -> None:  # fmt: skip
        self.op, self.n, self.memory = op, n, memory
        keeps = entries or any(c.history for c in op.states)
        self.room = min(n, _FIRST_CAPACITY_STEPS) if op.until and keeps else n
        pairs = list(zip(op.states, initials, strict=True))
        self.now = [None if c.history else memory.empty(a.shape, a.dtype) for c, a in pairs]
        self.history = [
            memory.empty((c.depth + self.room, *a.shape[1:]), a.dtype) if c.history else None
            for c, a in pairs
        ]
        self.collected = [memory.empty((self.room, *shape), dtype) for shape, dtype in entries]

    def grow(self, env: Any) -> None:
        """Make room for twice as many steps."""
        more = min(self.n, 2 * self.room) - self.room
        self.room += more
        self.history = [None if h is None else self._longer(env, h, more) for h in self.history]
        self.collected = [self._longer(env, c, more) for c in self.collected]

    def _longer(self, env: Any, array: RawArray, more: int) -> RawArray:
        length, *rest = array.shape
        longer: RawArray = self.memory.empty((length + more, *rest), array.dtype)
        strided_copy(env, array, longer[:length])
        return longer

    def _aligned(self, env: Any, entry: RawArray) -> RawArray:
        """An entry of an array, at an address that kernels like."""
        if entry.ptr % ALIGNMENT == 0:
            return entry
        made: RawArray = self.memory.empty(entry.shape, entry.dtype)
        strided_copy(env, entry, made)
        return made

    def results(self, done: int, env: Any) -> list[Any]:
        """Outputs of the scan after so many steps."""
        found: list[Any] = []
        for c, now, whole in zip(self.op.states, self.now, self.history, strict=True):
            if whole is None:
                assert now is not None
                found.append(self._aligned(env, now[c.depth - 1, ...]))
                continue
            last = c.depth + done
            found += [whole[:last], self._aligned(env, whole[last - 1, ...])]
        found += [c[:done] for c in self.collected]
        return [*found, np.asarray(done, np.int64)] if self.op.until else found
