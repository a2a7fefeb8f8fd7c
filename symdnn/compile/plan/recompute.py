"""Recomputed values of a plan, which keep its memory within a bound.

:mod:`~symdnn.compile.plan.reruns` says which nodes may run again, and the cost of a choice.
:mod:`~symdnn.compile.plan.rerun_search` finds one, and :mod:`~symdnn.compile.plan.rerun_exact` a
better one where a segment is small. A choice is judged by the live bytes of the whole order, and at
the end by the plan itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from symdnn.compile.plan.memory import plan_memory
from symdnn.compile.plan.memory_order import eager
from symdnn.compile.plan.rerun_exact import Exact, Solver
from symdnn.compile.plan.rerun_search import search
from symdnn.compile.plan.reruns import Found, Reruns, maker
from symdnn.compile.plan.result_block import made_bytes
from symdnn.compile.plan.specialise import Specialised, make_call
from symdnn.errors import OverBudget
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.control.checkpoint import After

#: How often the search's bound is corrected by the difference between the plan's memory and live
#: bytes, and how often without slack.
_MOST_ROUNDS, _MOST_ROOMY = 6, 1
#: Room in proportion to the bound that is worth another search.
_ROOM = 0.02


@dataclass(frozen=True)
class Recomputed:
    """The recomputed nodes of a plan with a bound on its memory.

    Sizes are in bytes: the ``budget``, and the ``peak`` of arena and results ``before`` and after.
    ``nodes`` counts the recomputed nodes of each op, and ``share`` is their estimated time as a
    share of that of all nodes. ``gap`` bounds how much smaller the share of any other choice with
    as many live bytes can be; None if no solver has proved it.
    """

    budget: int
    before: int
    peak: int
    nodes: Mapping[str, int]
    share: float
    gap: float | None = None

    def __str__(self) -> str:
        count = sum(self.nodes.values())
        if not count:
            return f"memory budget {self.budget}: kept, nothing is computed again"
        most = sorted(self.nodes.items(), key=lambda p: -p[1])
        shown = ", ".join(f"{n} x {name[:60]}" for name, n in most[:4])
        more = f" and {len(most) - 4} other ops" if len(most) > 4 else ""
        return (
            f"memory budget {self.budget}: {self.peak} bytes in place of {self.before}, "
            f"{count} nodes run again ({shown}{more}), {self.share:.0%} more time by estimate"
            + (
                ""
                if self.gap is None
                else f", no choice takes less than {self.share - self.gap:.0%}"
            )
        )


def ordered_for_memory(spec: Specialised) -> Specialised:
    """The segment within its budget; with checkpoints, in an order that frees memory early."""
    if spec.segment.memory_budget is not None:
        return within_budget(spec, spec.segment.memory_budget)
    return eager(spec) if any(isinstance(n.op, After) for n in spec.segment.nodes) else spec


def within_budget(spec: Specialised, budget: int) -> Specialised:
    """The segment with values computed again, such that arena and results fit into ``budget``.

    Raises :class:`~symdnn.errors.OverBudget`, with the least that was found, where that fails.
    """
    spec = eager(spec)
    free = replace(spec, segment=replace(spec.segment, memory_budget=None))
    shared, results = _bytes_of(free)
    whole = shared + results
    if whole <= budget:
        return replace(free, recomputed=Recomputed(budget, whole, whole, {}, 0.0))
    before, made = _bytes_of(spec)
    if before + made <= budget:
        return replace(spec, recomputed=Recomputed(budget, whole, before + made, {}, 0.0))
    reruns, fitting = Reruns(spec), _Fitting(before)
    solver = Solver(reruns)
    bound = room = float(budget - made)
    for attempt in range(_MOST_ROUNDS + 1):
        last = attempt == _MOST_ROUNDS
        choice = search(reruns, 0.0 if last else bound)
        if choice is None:
            break
        exact = Exact(choice.found) if last else solver.improved(bound, choice.found)
        found = Rebuilt(reruns, exact.found)
        new = _with_nodes(spec, found)
        arena, _ = _bytes_of(new)
        gap = exact.gap(reruns.total)
        said = Recomputed(budget, whole, arena + made, found.counts(), found.share, gap)
        fitting.add(arena, room, replace(new, recomputed=said))
        if last or exact.found.peak > bound or fitting.is_enough(arena, room):
            break
        # In-place ops need less memory, and placement leaves holes: correct the bound up or down.
        # The last round takes the smallest choice of the search.
        bound = (bound if arena <= room else min(bound, exact.found.peak)) + room - arena
    if fitting.best is not None:
        return fitting.best
    raise OverBudget(
        f"memory_budget={budget}: a call needs {whole} bytes beside its arguments and "
        f"shared variables, and by computing values again {fitting.least + made} is the least that "
        f"was found ({results} of them for results). Give that much, a smaller batch, "
        "or fewer results"
    )


class _Fitting:
    """The results of the rounds: the fewest bytes, and the fastest plan within the budget."""

    def __init__(self, before: int) -> None:
        self.least, self.fits = before, 0
        self.best: Specialised | None = None

    def add(self, arena: int, room: float, new: Specialised) -> None:
        """A plan of a round."""
        self.least = min(self.least, arena)
        if arena <= room:
            self.fits += 1
            if self.best is None or new.recomputed.share < self.best.recomputed.share:
                self.best = new

    def is_enough(self, arena: int, room: float) -> bool:
        """Whether another round can't improve the result."""
        if arena > room:
            return self.fits > 0
        return self.fits > _MOST_ROOMY or room - arena < _ROOM * room


def _bytes_of(spec: Specialised) -> tuple[int, int]:
    """The bytes that values share, and those that only results take.

    Results whose memory has values before are among the former.
    """
    memory = plan_memory(spec)
    shared = 0 if memory.block is None else memory.views[memory.block].buffer.nbytes
    made = made_bytes(spec, memory.views, memory.block)
    return memory.arena_bytes + shared, made - shared


class Rebuilt:
    """The order of nodes for a choice: the segment's own, and before a stage those that run again.

    ``first`` maps new nodes to the originals, ``again`` are the second runs, and ``main`` maps
    values to their new ones.
    """

    def __init__(self, reruns: Reruns, found: Found) -> None:
        self._reruns = reruns
        self.share = found.seconds / reruns.total
        self.nodes: list[Apply] = []
        self.first: dict[Apply, Apply] = {}
        self.again: list[Apply] = []
        self.main: dict[Variable, Variable] = {}
        #: The last computation of each large value, and views of computations that are not first.
        self._latest: dict[Variable, Variable] = {}
        self._views: dict[tuple[Variable, Variable], Variable] = {}
        self._waiting = {n for n in reruns.passing_views() if n.outputs[0] not in reruns.leaving}
        before = {reruns.stages[t]: units for t, units in found.runs}
        for i, n in enumerate(reruns.nodes):
            for u in before.get(i, ()):
                self._run_again(reruns.units[u])
            if n not in self._waiting:
                self._run(n)

    def counts(self) -> dict[str, int]:
        """How often each op runs again."""
        found: dict[str, int] = {}
        for n in self.again:
            found[str(n.op)] = found.get(str(n.op), 0) + 1
        return found

    def _run(self, n: Apply) -> None:
        """A node of the segment, on values that are there now."""
        inputs = [self._now(v) for v in n.inputs]
        if all(a is b for a, b in zip(inputs, n.inputs)):
            self.nodes.append(n)
        else:
            self.main.update(zip(n.outputs, self._made(n, inputs).outputs))

    def _run_again(self, n: Apply) -> None:
        new = self._made(n, [self._now(v) for v in n.inputs])
        self.again.append(new)
        pairs = zip(n.outputs, new.outputs, strict=True)
        self._latest.update((v, copy) for v, copy in pairs if v in self._reruns.number)

    def _now(self, v: Variable) -> Variable:
        """The new value for ``v``; a missing view is made."""
        root = self._reruns.root.get(v)
        if root is None or root not in self._reruns.number:
            return self._latest.get(v, self.main.get(v, v))
        n = maker(v)
        if root not in self._latest:
            if n in self._waiting:
                self._waiting.remove(n)
                self._run(n)
            return self.main.get(v, v)
        key = v, self._latest[root]
        if key not in self._views:
            (self._views[key],) = self._made(n, [self._now(w) for w in n.inputs]).outputs
        return self._views[key]

    def _made(self, node: Apply, inputs: Sequence[Variable]) -> Apply:
        types = [v.type for v in node.outputs]
        new = Apply(node.op, inputs, types, node.origin, node.hints, node.written)
        for old, v in zip(node.outputs, new.outputs):
            v.name = old.name
        self.nodes.append(new)
        self.first[new] = node
        return new


def _with_nodes(spec: Specialised, order: Rebuilt) -> Specialised:
    """The segment with new nodes, each with the kernel of its original."""
    shapes, choices, calls = dict(spec.shapes), {}, {}
    for n in order.nodes:
        first = order.first.get(n, n)
        shapes.update((v, spec.shapes[old]) for v, old in zip(n.outputs, first.outputs))
        choices[n] = spec.choices[first]
        calls[n] = spec.call(n) if first is n else make_call(n, shapes, spec.versions)
    now = order.main
    segment = replace(
        spec.segment,
        nodes=tuple(order.nodes),
        outputs=tuple(now.get(v, v) for v in spec.segment.outputs),
        updates=tuple((now.get(v, v), s) for v, s in spec.segment.updates),
        carried=tuple((now.get(v, v), s) for v, s in spec.segment.carried),
    )
    budgeted = frozenset(n for n in order.nodes if order.first.get(n, n) in spec.budgeted)
    return replace(
        spec, segment=segment, shapes=shapes, choices=choices, calls=calls, budgeted=budgeted
    )
