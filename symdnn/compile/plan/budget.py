"""The algorithms of a plan, chosen together within ``dnn.workspace_budget``.

A workspace lives in one step, in the arena, between the values that are live in that step. So
workspaces of different steps overlay each other and dead values. What they cost is by how much the
arena grows, and that is what the budget bounds. Values get their offsets first, as if there were no
such workspaces. Then the room of a step is the largest gap between its live values, in an arena
that is larger by the budget. This is exact: workspaces are placed behind the values
(:func:`~symdnn.compile.plan.packing.assign_offsets`), and those of two steps never meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from symdnn.compile.plan.memory import plan_memory
from symdnn.compile.plan.packing import Buffer, end_at, room_at
from symdnn.compile.plan.specialise import Choice, Specialised
from symdnn.config import config
from symdnn.errors import OverBudget
from symdnn.graph.kernel import Alternative
from symdnn.graph.variable import Apply
from symdnn.tuning.budget import Infeasible, choose
from symdnn.tuning.objective import costs

#: An alternative that was not measured costs this many times the most costly one that was.
_UNMEASURED_RATIO = 2.0


def chosen_together(spec: Specialised) -> Specialised:
    """The segment with the best kernels within the budget; unchanged without one.

    Raises :class:`~symdnn.errors.OverBudget` if there are none.
    """
    budget = int(config.dnn.workspace_budget)
    nodes = [n for n in spec.segment.nodes if spec.choices[n].kernel.leaves_choice]
    if not budget or not nodes:
        return spec
    return _Budget(spec, nodes, budget).chosen()


class _Budget:
    """The values' memory of one plan, and the rooms between them."""

    def __init__(self, spec: Specialised, nodes: Sequence[Apply], budget: int) -> None:
        self.spec, self.budget = spec, budget
        bare = _with(spec, {n: replace(spec.choices[n], workspace_bytes=0) for n in nodes})
        memory = plan_memory(bare)
        self.arena_bytes = memory.arena_bytes
        self.buffers: list[Buffer] = [*memory.arena_buffers(), *memory.workspaces.values()]
        self.steps = {n: i for i, n in enumerate(spec.segment.nodes)}
        rooms = {n: self._room(n) for n in nodes}
        found = {n: _alternatives(spec, n, rooms[n]) for n in nodes}
        self.nodes = [n for n in nodes if found[n]]
        self.tables = [found[n] for n in self.nodes]
        self.rooms = [rooms[n] for n in self.nodes]

    def _room(self, node: Apply) -> int:
        return room_at(self.steps[node], self.buffers, self.arena_bytes + self.budget)

    def chosen(self) -> Specialised:
        """The segment with the chosen kernels."""
        objective, bound = str(config.dnn.conv.objective), float(config.dnn.conv.error_bound)
        rows: list[list[float]] = [_finite(row) for row in costs(self.tables, objective)]
        if objective == "memory":
            rows = [[float(a.workspace_bytes) for a in table] for table in self.tables]
        try:
            ways = choose(self.tables, rows, self.rooms, bound).ways
        except Infeasible as error:
            raise self._explained(error, bound) from None
        picked = [table[i] for table, i in zip(self.tables, ways)]
        made = {
            n: replace(self.spec.choices[n], kernel=a.kernel, workspace_bytes=a.workspace_bytes)
            for n, a in zip(self.nodes, picked)
        }
        return replace(_with(self.spec, made), budgeted=frozenset(made))

    def _explained(self, error: Infeasible, bound: float) -> OverBudget:
        if error.layer is None:
            return OverBudget(
                f"dnn.conv.error_bound={bound:g} can't be kept: the errors of the "
                f"{len(self.nodes)} convolutions of this plan are at least {error.least:.3g} "
                "together (the root of the sum of their squares), with the workspaces for which "
                f"there is room (dnn.workspace_budget={self.budget}). Give a larger bound, or "
                "name no algorithms"
            )
        node, room = self.nodes[error.layer], self.rooms[error.layer]
        ends = (
            end_at(self.steps[n], self.buffers, min(a.workspace_bytes for a in table))
            for n, table in zip(self.nodes, self.tables)
        )
        found = OverBudget(
            f"dnn.workspace_budget={self.budget} is too small: {node.op} needs a workspace of "
            f"{int(error.least)} bytes at least, and there is room for {max(room, 0)}. "
            f"dnn.workspace_budget={max(ends) - self.arena_bytes} would do for this plan, whose "
            f"values need {self.arena_bytes} bytes of the arena"
        )
        found.add_note(f"It was made here:\n{node.origin.text()}")
        return found


def _alternatives(spec: Specialised, node: Apply, room: int) -> Sequence[Alternative]:
    return spec.choices[node].kernel.alternatives(spec.call(node), room)


def _with(spec: Specialised, choices: Mapping[Apply, Choice]) -> Specialised:
    return replace(spec, choices={**spec.choices, **choices})


def _finite(row: Sequence[float]) -> list[float]:
    """Costs where those of alternatives that were not measured are more than all others."""
    most = max((c for c in row if c < inf), default=0.0)
    return [c if c < inf else _UNMEASURED_RATIO * most for c in row]
