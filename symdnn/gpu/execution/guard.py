"""The checks of a guarded plan on a GPU: a kernel that sets the error word where a value is faulty.

Launches are few: values wait until they are about what the card's cache holds, and are then checked
by one launch with a table of addresses. The plan of memory keeps them until then
(:attr:`~symdnn.compile.plan.memory.MemoryPlan.check_after`); where memory is about to be written
again before, as that of shared variables, they are checked first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from symdnn.gpu.codegen.device_source import specialised
from symdnn.gpu.codegen.launches import ERROR_WORD, KernelLaunch, Pointer
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.env import Env
from symdnn.gpu.execution.batched_updates import enqueue
from symdnn.gpu.execution.operands import Operands, Step, Values
from symdnn.graph.type import numpy_dtype
from symdnn.graph.values.guard import Range, ValueGuard, part_dtype
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.lowered.transfer import HostFromGpu

_THREADS = 256
#: Bytes of a load, and loads of a thread.
_VECTOR_BYTES, _LOADS = 16, 8
#: The most arrays of one launch: its parameters have at most 4096 bytes.
_MOST_ARRAYS = 120


@dataclass(frozen=True)
class _Check:
    """A value that is to be checked, with the environment that has its node's number."""

    variable: Variable
    env: Env


@dataclass
class _Waiting:
    """The values whose check has not been enqueued yet."""

    operands: Operands
    guard: ValueGuard
    checks: list[_Check] = field(default_factory=list)

    def add(self, variables: Iterable[Variable]) -> None:
        """Let values wait for their check."""
        for v in variables:
            number = self.operands.device.number_of(self.guard.node(v), [v.type])
            self.checks.append(_Check(v, self.operands.env(node=number)))

    def would_lose(self, nodes: Sequence[Apply]) -> bool:
        """Whether these nodes write memory of a waiting value; views write nothing."""
        memory = self.operands.memory
        nodes = [n for n in nodes if n not in memory.aliases]
        written = [memory.views[v].buffer for n in nodes for v in n.outputs]
        written += [memory.workspaces[n] for n in nodes if n in memory.workspaces]
        kept = [memory.views[c.variable].buffer for c in self.checks]
        return any(_overlap(a, b) for a in written for b in kept)

    def step(self) -> Step:
        """The step that checks them all; none waits then."""
        checks, self.checks = self.checks, []
        return Step(self.guard.node(checks[-1].variable), _run(self.operands, self.guard, checks))


def with_checks(
    operands: Operands,
    steps: Sequence[Step],
    groups: Sequence[Sequence[Apply]] = (),
    before: Sequence[Apply] = (),
) -> list[Step]:
    """The steps, with checks of all that they compute.

    ``groups`` are nodes that run together, at the last one's step. The values that enter are
    checked first, with the results of the nodes ``before``.
    """
    segment = operands.spec.segment
    waiting = _Waiting(operands, segment.guard)
    views, check_after = operands.memory.views, operands.memory.check_after
    waiting.add(v for v in segment.watched if v in views and segment.guard.watches(v.type))
    waiting.add(v for n in before for v in _checked(n, segment.guard))
    group_of = {n: g for g in groups for n in g}
    found: list[Step] = []
    for step in steps:
        nodes = group_of.get(step.node, (step.node,))
        if waiting.checks and waiting.would_lose(nodes):
            found.append(waiting.step())
        found.append(step)
        waiting.add(v for n in nodes for v in _checked(n, segment.guard))
        if waiting.checks and not check_after.isdisjoint(nodes):
            found.append(waiting.step())
    if waiting.checks:
        found.append(waiting.step())
    return found


def _checked(node: Apply, guard: ValueGuard) -> list[Variable]:
    return [] if isinstance(node.op, HostFromGpu) else guard.checked(node)


def _overlap(a: Any, b: Any) -> bool:
    """Whether two buffers share memory."""
    if a is b:
        return True
    both = a.kind == b.kind == "arena"
    return both and bool(a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes)


def _run(
    operands: Operands, guard: ValueGuard, checks: Sequence[_Check]
) -> Callable[[Apply, Values], None]:
    env = checks[0].env
    own = [guard.of(check.variable) for check in checks]

    def run(node: Apply, values: Values) -> None:
        kinds: dict[tuple[ValueGuard, str], list[tuple[RawArray, int]]] = {}
        for check, faults in zip(checks, own, strict=True):
            x = values.get(check.variable)  # an argument on the host has a copy, checked too
            if not isinstance(x, RawArray) or not x.size:
                continue
            flat = _flat(operands, x)
            kinds.setdefault((faults, flat.dtype), []).append((flat, check.env.node))
        for (faults, dtype), found in kinds.items():
            env.reports = True
            enqueue(env, fault_checks(faults, dtype, found))

    return run


def _flat(operands: Operands, x: RawArray) -> RawArray:
    """All elements in the order of memory, a complex one as its two parts; if need be of a copy."""
    low, high = x.extent
    if high - low != x.nbytes:
        x = operands.contiguous(x, False)
        low = x.ptr
    dtype = part_dtype(x.dtype)
    return RawArray(low, (x.nbytes // numpy_dtype(dtype).itemsize,), dtype, owner=x)


def fault_checks(
    guard: ValueGuard, dtype: str, arrays: Sequence[tuple[RawArray, int]]
) -> list[KernelLaunch]:
    """Launches that check contiguous arrays of a real ``dtype``, each with its node's number."""
    bits = 8 * numpy_dtype(dtype).itemsize
    aligned = all(a.ptr % _VECTOR_BYTES == 0 for a, _ in arrays)
    vector = 8 * _VECTOR_BYTES // bits if aligned else 1
    word = max(bits, 32) if aligned else bits
    ranges = guard.ranges(dtype)
    source = specialised(
        "faults.cu", BITS=f"u{bits}", WORD=f"u{word}", VECTOR=vector, LOADS=_LOADS,
        MOST=_MOST_ARRAYS, RANGES=len(ranges),
    )  # fmt: skip
    masks = _masks(ranges, bits)
    chunk = _THREADS * vector * _LOADS
    found = []
    for start in range(0, len(arrays), _MOST_ARRAYS):
        part = arrays[start : start + _MOST_ARRAYS]
        entries: list[int] = []
        blocks = 0
        for a, number in part:
            entries += [a.ptr, a.size, blocks, number]
            blocks += -(-a.size // chunk)
        padding = [0] * (4 * (_MOST_ARRAYS - len(part)))
        parameters = (Pointer(ERROR_WORD), len(part), *masks, *entries, *padding)
        found.append(KernelLaunch(source, "find_faults", (blocks,), (_THREADS,), parameters))
    return found


def _masks(ranges: Sequence[Range], bits: int) -> list[int]:
    """Magnitude, sign, and two numbers for each of two ranges, repeated to 64 bits.

    A sum of a magnitude and the first of a range's numbers has the sign's bit if the magnitude is
    at least the range's first; with the second number if it is past its last. Nothing is carried
    into the next element of a word.
    """
    sign = 1 << (bits - 1)
    first = [sign - low for low, _ in ranges]
    last = [sign - low - count for low, count in ranges]
    padding = [0] * (2 - len(ranges))
    wide = sum(1 << at for at in range(0, 64, bits))
    masks = [sign - 1, sign, *first, *padding, *last, *padding]
    return [m * wide for m in masks]
