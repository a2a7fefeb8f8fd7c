"""Functions with loops of small steps as one compiled function: what is around the loops, too."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from symdnn.cpu.execution.whole_loop import WORK_AT_ONCE, CompiledSteps, hot_steps, most_work
from symdnn.cpu.launch.scratch import address, empty_aligned
from symdnn.cpu.steps.steps_ir import ARRAYS, FAILED, SCRATCH
from symdnn.graph.inner import InnerGraph
from symdnn.graph.traverse import clone_graph
from symdnn.graph.variable import Variable
from symdnn.ops.control.scan import Scan
from symdnn.ops.steps.code import NotLowered
from symdnn.ops.steps.statements import Branch, LoopProgram, Repeat, Statement, work_of
from symdnn.ops.steps.whole_loop import WholeLoop

if TYPE_CHECKING:
    from symdnn.cpu.execution.plan import CpuPlan

#: Calls after which a function is compiled whose loops are.
_WARM_CALLS = 50
#: Bytes of the values inside of it at most.
_MOST_BYTES = 1 << 23
#: Statements of it at most: of more, its loops are compiled apart, which takes less time.
_MOST_STATEMENTS = 400
#: Complex values that it computes at most: LLVM did not end with 26 statements of their parts.
_MOST_COMPLEX = 3
_ONE = np.ones((), np.int64)


class CpuWholeFunction(WholeLoop):
    """The compiled functions of a graph, which is the only step of a loop."""

    made_as = "one compiled function with all around it"

    def __init__(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        own = {v: v.type() for v in inputs}
        memo = clone_graph(outputs, own)
        inner = InnerGraph(list(own.values()), [memo[v] for v in outputs])
        super().__init__(Scan(inner, 0, (), 1))

    def hot(self) -> int:
        """Calls after which a function is compiled."""
        return min(hot_steps(), _WARM_CALLS)

    def make(self, inputs: Sequence[Any]) -> _Function:
        """A compiled function."""
        made = [v for n in self.op.inner.nodes if not n.op.views for v in n.outputs]
        if sum(getattr(v.type, "is_complex", False) for v in made) > _MOST_COMPLEX:
            raise NotLowered("LLVM takes too long for many complex values")
        return _Function(self.op, inputs)

    @staticmethod
    def release(plans: Sequence[CpuPlan]) -> bool:
        """Give the memory of plans' values back until they run again.

        False in a nested call: a plan that runs around it may use the same memory.
        """
        if any(plan.runtime.depth >= 0 for plan in plans):
            return False
        for plan in plans:
            plan.fewer.clear()
            for arena in plan.runtime.arenas:
                arena.leave(plan)
            plan.step_function = plan.python_function = plan.spans = None  # which hold arrays
            plan.grouped = False
            plan.results.let_go()
        return True

    def learn(self, arrays: Sequence[Any]) -> Any:
        """After a call with these arrays: the function for such ones, once there is one."""
        hot = self.hot()
        if hot < 0:
            return None
        functions = self._functions(inputs := [_ONE, *arrays])
        functions.steps += 1
        if functions.refused or functions.steps < hot:
            return None
        return functions.of(self, inputs)


class _Function(CompiledSteps):
    """A compiled graph. Its words stay, since it runs with the runtime's lock held."""

    def __init__(self, op: Scan, inputs: Sequence[Any]) -> None:
        super().__init__(op, inputs, _whole_work, _MOST_BYTES)
        self._words = (ctypes.c_int64 * (ARRAYS + len(self.roles)))()
        self._words[1] = 1
        self._memory = empty_aligned(self._scratch)
        self._words[SCRATCH] = address(self._memory)
        numbered = list(enumerate(self.roles, ARRAYS))
        for i, role in numbered:
            if role.kind == "constant":
                self._words[i] = address(role.value)
        self._reads = [(i, r.number - 1) for i, r in numbered if r.kind == "input" and r.number]
        places = {r.number: i for i, r in numbered if r.kind == "collected"}
        self._writes = [(places[k], *entry) for k, entry in enumerate(self._entries)]

    def run(self, inputs: Sequence[Any]) -> list[Any] | None:
        """The outputs; None where it reports a failure."""
        return self.of_arrays(inputs[1:])

    def of_arrays(self, arrays: Sequence[Any]) -> list[Any] | None:
        """The graph's outputs; None where it reports a failure."""
        words, found = self._words, []
        for i, k in self._reads:
            words[i] = address(arrays[k])
        for i, shape, dtype in self._writes:
            made = np.empty(shape, dtype)
            words[i] = address(made)
            found.append(made)
        words[FAILED] = 0
        self._run(words)
        return None if words[FAILED] else found

    def fits_arrays(self, arrays: Sequence[Any]) -> bool:
        """:meth:`fits`, of the graph's inputs."""
        return all(int(arrays[i - 1]) == value for i, value in self._values.items())


def _whole_work(program: LoopProgram) -> int:
    """The work of a graph; raises :class:`NotLowered` where calling its kernels is no great part.

    That is so where a loop's step, or what is around the loops, is large, and if all of it is.
    """
    if sum(1 for _ in program.statements()) > _MOST_STATEMENTS:
        raise NotLowered("it is long")
    most = most_work()
    for block in _blocks(program.loop.body):
        if sum(work_of([s]) for s in block if not isinstance(s, Repeat)) > most:
            raise NotLowered("its steps are large")
    if (work := work_of(program.loop.body)) > WORK_AT_ONCE:
        raise NotLowered("it is large")
    return work


def _blocks(block: Sequence[Statement]) -> list[Sequence[Statement]]:
    found = [block]
    for s in block:
        if isinstance(s, Branch):
            found += _blocks((*s.yes, *s.no))
        elif isinstance(s, Repeat):
            found += _blocks((*s.body, *s.after))
    return found
