"""Facts about the nodes of a compiled function: order, place, kernel, in-place writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from symdnn.compile.function import Function
from symdnn.compile.plan.plan import Plan
from symdnn.compile.program.program import If, Loop, Program
from symdnn.graph.variable import Apply


@dataclass
class Facts:
    """For each node its position in the order, its place, and the choices of plans made so far."""

    order: dict[Apply, int] = field(default_factory=dict)
    host: set[Apply] = field(default_factory=set)
    sizes: set[Apply] = field(default_factory=set)
    lazy: set[Apply] = field(default_factory=set)
    kernels: dict[Apply, list[str]] = field(default_factory=dict)
    in_place: dict[Apply, dict[int, int]] = field(default_factory=dict)
    views: dict[Apply, int] = field(default_factory=dict)

    def words(self, node: Apply) -> list[str]:
        """The facts of ``node`` as words, such as ``["numpy.ufunc", "in place of input 0"]``."""
        said = ["host"] if node in self.host else ["size"] if node in self.sizes else []
        said += ["lazy"] if node in self.lazy else []
        if node in self.views:
            return [*said, f"view of input {self.views[node]}"]
        if node in self.kernels:
            said.append(" or ".join(self.kernels[node]))
        for output, source in self.in_place.get(node, {}).items():
            which = f"output {output} " if len(node.outputs) > 1 else ""
            said.append(f"{which}in place of input {source}")
        return said


def facts_of(function: Function) -> Facts:
    """The facts of a function; kernels and in-place writes are those of its plans so far."""
    order = {node: i for i, node in enumerate(function.fgraph.toposort())}
    facts = Facts(order)
    _add_program(facts, function.stages.program)
    _add_plans(facts, function.plans())
    return facts


def facts_of_plan(plan: Plan) -> Facts:
    """The facts of one plan."""
    facts = Facts()
    _add_plans(facts, [plan])
    return facts


def _add_program(facts: Facts, program: Program) -> None:
    for segment in program.segments():
        facts.host.update(segment.host)
        facts.sizes.update(segment.sizes)
    for region in program.regions:
        if isinstance(region, If):
            facts.lazy.add(region.node)
            _add_program(facts, region.then)
            _add_program(facts, region.orelse)
        elif isinstance(region, Loop):
            _add_program(facts, region.body)


def _add_plans(facts: Facts, plans: Iterable[Plan]) -> None:
    for plan in plans:
        for node, choice in plan.specialised.choices.items():
            names = facts.kernels.setdefault(node, [])
            if choice.kernel.name not in names:
                names.append(choice.kernel.name)
        for node, written in plan.memory.in_place.items():
            facts.in_place.setdefault(node, {}).update(written)
        for node in plan.memory.aliases:
            facts.views[node] = node.op.views.get(0, 0)
