"""Plans, and the cache of a segment's plans by signature (least recently used out first)."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from symdnn.compile.plan.budget import chosen_together
from symdnn.compile.plan.comparison import Compared, Lists
from symdnn.compile.plan.memory import MemoryPlan, plan_memory
from symdnn.compile.plan.memory_order import ordered_by_size
from symdnn.compile.plan.recompute import ordered_for_memory
from symdnn.compile.plan.specialise import Answers, Oracle, Specialised, specialise
from symdnn.compile.program.program import Segment
from symdnn.config import config
from symdnn.graph.evaluate import evaluate_node
from symdnn.graph.gc_pause import paused
from symdnn.graph.kernel import Versions
from symdnn.graph.runtime import BoundPlan, Runtime
from symdnn.graph.variable import Constant, Variable
from symdnn.ops.core.shape import ShapeI
from symdnn.tuning.allowance import visiting

Signature = tuple[Any, ...]


@dataclass(frozen=True)
class Plan:
    """A segment at concrete shapes: kernels and memory, bound to the device."""

    signature: Signature
    specialised: Specialised
    memory: MemoryPlan
    bound: BoundPlan
    #: A measurement was put off until the shapes return: the plan is then made again.
    postponed: bool = False
    #: The collectives in it, which other ranks run in the same calls; None if there are none.
    together: Lists | None = None

    def __str__(self) -> str:
        lines = [f"plan for {self.signature}"]
        for node, choice in self.specialised.choices.items():
            lines.append(f"  {node.op}: {choice.kernel.name}")
        return "\n".join([*lines, self.memory.text()])


#: Plans of shapes that have been met once which a segment keeps, and signatures that it remembers.
_MAX_NEW_PLANS, _MAX_SIGNATURES = 16, 4096


class PlanCache:
    """The plans of one segment.

    Shapes that return have plans of their own for long, the least recently used of which go first.
    Of shapes that were met once only the last few have. Their signatures are remembered, so that
    a plan that was dropped too early is dropped once.

    With collectives of several ranks the same holds for their lists, by which all ranks drop plans
    in the same call (:class:`~symdnn.compile.plan.comparison.Compared`), also if they take too much
    memory on one rank alone. Of several plans with the same list a rank drops its own, but the last
    one.
    """

    def __init__(
        self, segment: Segment, oracle: Oracle, runtime: Runtime, versions: Versions | None = None
    ) -> None:
        self.segment, self.oracle, self.runtime = segment, oracle, runtime
        self.versions = versions or {}
        self.plans: OrderedDict[Signature, Plan] = OrderedDict()
        self.hits = self.misses = self._remade = 0
        self.compared = Compared()
        self._answers = Answers()
        #: The plan of the last call.
        self.latest: Plan | None = None
        self._hits_before_latest = 0
        #: Signatures of plans that have been called again.
        self._returned: set[Signature] = set()
        #: Hashes of the signatures that were met.
        self._met: OrderedDict[int, None] = OrderedDict()

    def get(self, entering: Sequence[Any], values: Mapping[Variable, Any]) -> Plan:
        """The plan for these inputs; made if it is the first of its signature."""
        key: Signature = tuple([getattr(a, "shape", ()) for a in entering])
        if self.segment.sources:
            key += tuple([values[v].shape for v in self.segment.sources])
        if self.segment.dims:
            key += tuple(int(values[d]) for d in self.segment.dims)
        plan = self.plans.get(key)
        if plan is None or plan.postponed:
            plan = self._make(key, values)
            self._use(plan)
        else:
            self._use(plan)
            self.hits += 1
        if plan.together is not None:
            plan.bound.at_once = plan.together.called()
        return plan

    def used(self, plan: Plan) -> bool:
        """Count a call of ``plan`` without a look-up; False if it has been dropped."""
        if plan is not self.latest:
            if self.plans.get(plan.signature) is not plan:
                return False
            self._use(plan)
        self.hits += 1
        return True

    def _use(self, plan: Plan) -> None:
        """Make ``plan`` the latest one, which was used last."""
        before = self.latest
        if before is not None and self.hits > self._hits_before_latest:
            self._returned.add(before.signature)
        if plan.together is not None:
            self.compared.use(plan.together, self._calls)
        if before is not plan:
            self.plans.move_to_end(plan.signature)
            self.latest, self._hits_before_latest = plan, self.hits

    def _make(self, key: Signature, values: Mapping[Variable, Any]) -> Plan:
        self.misses += 1
        shapes = {v: tuple(s) for v, s in zip((*self.segment.inputs, *self.segment.sources), key)}
        returns = hash(key) in self._met
        with paused(), visiting(may_measure=returns or self.misses == 1) as visit:
            plan = make_plan(
                self.segment, shapes, values, self.oracle, self.runtime, key, self.versions,
                first=self.misses == 1, answers=self._answers,
            )  # fmt: skip
        kept: Counter[Lists] = Counter()
        for one in self.plans.values():
            if one.together is not None:
                kept[one.together] += one.bound.nbytes
        together = self.compared.check(plan.specialised, plan.bound.not_captured, kept)
        if together is not None:
            plan.bound.together = together
            self.compared.use(together, self._calls - 1)
        plan = replace(plan, postponed=visit.postponed, together=together)
        self.plans[key] = plan
        self._met[hash(key)] = None
        if len(self._met) > _MAX_SIGNATURES:
            self._met.popitem(last=False)
        if returns:
            self._returned.add(key)
        self._drop_oldest()
        return plan

    def remake(self, plan: Plan, values: Mapping[Variable, Any]) -> Plan:
        """Make ``plan`` again, with flags that may have changed, and replace it."""
        self.forget(plan)
        self._remade += 1
        again = self._make(plan.signature, values)
        again.bound.at_once = plan.bound.at_once
        return again

    @property
    def _calls(self) -> int:
        """The number of calls, the same on all ranks."""
        return self.hits + self.misses - self._remade

    def forget(self, plan: Plan) -> None:
        """Drop ``plan``; the next call of its signature makes a new one."""
        self._drop(plan.signature)
        self.latest = None

    def _drop_oldest(self) -> None:
        """Drop plans beyond the limits; the newest plan always stays."""
        gone = self.compared.dropped(int(config.plan_cache_size))
        for key in [k for k, p in self.plans.items() if p.together in gone]:
            self._drop(key)
        new = [key for key in self._droppable() if key not in self._returned]
        for key in new[: max(0, len(new) + 1 - _MAX_NEW_PLANS)]:
            self._drop(key)
        for key in self._droppable()[: max(0, len(self.plans) - int(config.plan_cache_size))]:
            self._drop(key)
        limit = int(config.plan_cache_bytes)
        kept = sum(p.bound.nbytes for p in self.plans.values()) if limit else 0
        for key in self._droppable():
            if kept > limit:
                kept -= self.plans[key].bound.nbytes
                self._drop(key)

    def _droppable(self) -> list[Signature]:
        """All plans but the newest, and but the last ones of lists of collectives."""
        count = Counter(p.together for p in self.plans.values() if p.together is not None)
        found = []
        for key in list(self.plans)[:-1]:
            together = self.plans[key].together
            if together is not None:
                count[together] -= 1
            if together is None or count[together] > 0:
                found.append(key)
        return found

    def _drop(self, key: Signature) -> None:
        self.plans.pop(key, None)
        self._returned.discard(key)


def evaluate_sizes(
    segment: Segment, shapes: Mapping[Variable, tuple[int, ...]]
) -> dict[Variable, Any]:
    """Values of the integers that depend only on shapes."""
    values: dict[Variable, Any] = {}
    for node in segment.sizes:
        if isinstance(node.op, ShapeI):
            (of,) = node.inputs  # perhaps itself one of these values
            shape = np.shape(values[of]) if of in values else shapes[of]
            results: Sequence[Any] = [np.asarray(shape[node.op.axis], np.int64)]
        else:
            inputs = [v.data if isinstance(v, Constant) else values[v] for v in node.inputs]
            results = evaluate_node(node, inputs)
        values.update(zip(node.outputs, results, strict=True))
    return values


def make_plan(
    segment: Segment,
    shapes: Mapping[Variable, tuple[int, ...]],
    host_values: Mapping[Variable, Any],
    oracle: Oracle,
    runtime: Runtime,
    signature: Signature = (),
    versions: Versions | None = None,
    first: bool = False,
    answers: Answers | None = None,
) -> Plan:
    """Make a plan: specialise the segment, plan its memory, bind both to the device.

    The kernels of a segment's ``first`` plan begin to compile while it is made. ``answers`` are
    those of its last plan.
    """
    sizes = evaluate_sizes(segment, shapes)
    known = {**host_values, **sizes}
    begin = runtime.begin if first else None
    found = specialise(segment, shapes, known, oracle, sizes, versions, begin, answers)
    specialised = chosen_together(ordered_by_size(found))
    specialised = ordered_for_memory(specialised)
    memory = plan_memory(specialised)
    return Plan(signature, specialised, memory, runtime.bind(specialised, memory))
