"""The checks of a guarded plan on a GPU: a kernel that sets the error word where a value is faulty.

Launches are few: values wait until their memory is about to be written again, or until they are
more than the card's cache holds, and are then checked by one launch with a table of addresses.
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
from symdnn.graph.values.guard import ValueGuard, part_dtype
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.lowered.transfer import HostFromGpu

__all__ = ["fault_checks", "with_checks"]

_THREADS = 256
#: Elements of one array per block.
_CHUNK_ELEMENTS = _THREADS * 16
#: The most arrays of one launch: its parameters have at most 4096 bytes.
_MOST_ARRAYS = 120
#: Bytes of values that wait for their check: about what the second-level cache of a card holds.
_MOST_WAITING_BYTES = 32 << 20


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
    nbytes: int = 0

    def add(self, variables: Iterable[Variable]) -> None:
        """Let values wait for their check."""
        for v in variables:
            number = self.operands.device.number_of(self.guard.node(v), [v.type])
            self.checks.append(_Check(v, self.operands.env(node=number)))
            self.nbytes += int(self.operands.memory.views[v].buffer.nbytes)

    def would_lose(self, nodes: Sequence[Apply]) -> bool:
        """Whether these nodes write memory of a waiting value."""
        memory = self.operands.memory
        written = [memory.views[v].buffer for n in nodes for v in n.outputs]
        written += [memory.workspaces[n] for n in nodes if n in memory.workspaces]
        kept = [memory.views[c.variable].buffer for c in self.checks]
        return any(_overlap(a, b) for a in written for b in kept)

    def step(self) -> Step:
        """The step that checks them all; none waits then."""
        checks, self.checks, self.nbytes = self.checks, [], 0
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
    views = operands.memory.views
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
        if waiting.nbytes > _MOST_WAITING_BYTES:
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

    def run(node: Apply, values: Values) -> None:
        dtypes: dict[str, list[tuple[RawArray, int]]] = {}
        for check in checks:
            x = values.get(check.variable)  # an argument on the host has a copy, checked too
            if not isinstance(x, RawArray) or not x.size:
                continue
            flat = _flat(operands, x)
            dtypes.setdefault(flat.dtype, []).append((flat, check.env.node))
        for dtype, found in dtypes.items():
            env.reports = True
            enqueue(env, fault_checks(guard, dtype, found))

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
    ranges = [*guard.ranges(dtype), (0, 0), (0, 0)][:2]
    bits = numpy_dtype(dtype).itemsize
    vector = 16 // bits if all(a.ptr % 16 == 0 for a, _ in arrays) else 1
    source = specialised(
        "faults.cu", BITS=f"u{8 * bits}", VECTOR=vector, MOST=_MOST_ARRAYS, CHUNK=_CHUNK_ELEMENTS
    )
    found = []
    for start in range(0, len(arrays), _MOST_ARRAYS):
        part = arrays[start : start + _MOST_ARRAYS]
        entries: list[int] = []
        blocks = 0
        for a, number in part:
            entries += [a.ptr, a.size, blocks, number]
            blocks += -(-a.size // _CHUNK_ELEMENTS)
        limits = [first for first, _ in ranges] + [count for _, count in ranges]
        padding = [0] * (4 * (_MOST_ARRAYS - len(part)))
        parameters = (Pointer(ERROR_WORD), len(part), *limits, *entries, *padding)
        found.append(KernelLaunch(source, "find_faults", (blocks,), (_THREADS,), parameters))
    return found
