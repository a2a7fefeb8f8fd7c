"""A part of a graph in forms that keep their digits: one walk over it, each node looked at once.

The rules look upward only, at inputs that are in their best form already, so one walk from the
inputs to the outputs is enough; what a rule makes is looked at where it is made. What needs no
change stays the user's own nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from symdnn.config import config
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.inner import InnerGraph
from symdnn.graph.origin import inheriting
from symdnn.graph.target import Target
from symdnn.graph.traverse import copy_node, new_nodes, substituted, toposort
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.core.gradient_control import Opaque
from symdnn.ops.core.shape import ShapeI
from symdnn.rewriting.failure import report_failure
from symdnn.rewriting.rewrite import Context, Rewrite
from symdnn.rewriting.table import RuleTable
from symdnn.stable.rules import RULES

__all__ = ["StableGraph"]

#: How many replacements there may be for each node, so that rules that undo each other end.
LIMIT = 30


class StableGraph:
    """The nodes on a path from ``starts`` to ``outputs``, in stable form.

    ``at(v)`` is what stands for the user's variable ``v``. No rule looks through a variable of
    ``opaque``, whose stand-in is a node of its own. ``fired`` says which rule replaced which of
    the user's nodes; where it is empty, the user's graph is as good.
    """

    def __init__(
        self,
        outputs: Sequence[Variable],
        starts: Iterable[Variable],
        opaque: Iterable[Variable] = (),
        blockers: Iterable[Variable] = (),
    ) -> None:
        self.fired: list[tuple[Apply, str]] = []
        self._opaque, self._blockers = set(opaque), set(blockers)
        self._now: dict[Variable, Variable] = {}
        #: Stand-ins that compute nothing new, and the variables whose values they have.
        self._same_as: dict[Variable, Variable] = {}
        self._read_same = False
        self._context = Context(FunctionGraph([], []), Target())
        self._rules = _selected()
        self._inner: dict[InnerGraph, InnerGraph] = {}
        order = toposort(outputs, self._blockers)
        self._users = frozenset(order)
        self._known: dict[Apply, None] = dict.fromkeys(order)
        self._left = LIMIT * len(order) + 100
        self._run(order, set(starts))

    def at(self, v: Variable) -> Variable:
        """What stands for ``v``."""
        return self._now.get(v, v)

    def in_users_terms(self, found: Sequence[Variable | None]) -> list[Variable | None]:
        """Expressions of stand-ins with the user's own variables where they do as well.

        These are opaque ones, and those of which a size is read: sizes of one form of an
        expression may look different from those of the other.
        """
        made = [v for v in found if v is not None]
        replace = dict(self._same_as) if self._read_same else {}
        users = {new: old for old, new in self._now.items() if self._is_ours(new)}
        for node in new_nodes(made, self._known):
            if isinstance(node.op, ShapeI) and node.inputs[0] in users:
                replace[node.outputs[0]] = node.op(users[node.inputs[0]])
        new = iter(substituted(made, replace)) if replace else iter(made)
        return [None if v is None else next(new) for v in found]

    def _is_ours(self, v: Variable) -> bool:
        return v.owner is not None and v.owner not in self._users

    # -- the walk -------------------------------------------------------------------------------

    def _run(self, order: Sequence[Apply], reached: set[Variable]) -> None:
        for v in self._opaque & (self._blockers | reached):
            if v.owner is not None:
                self._hide(v, v)
        with inheriting() as self._take_after:
            for node in order:
                if any(v in reached for v in node.inputs) and _may_vary(node):
                    reached.update(node.outputs)
                    self._take_after(node.origin, node.hints, node.written)
                    self._visit(node)

    def _visit(self, node: Apply) -> None:
        self._at, self._why = node, (node.origin, node.hints)
        inputs = [self._input(v) for v in node.inputs]
        changed = any(a is not b for a, b in zip(inputs, node.inputs))
        current = copy_node(node, inputs) if changed else node
        for old, new in zip(node.outputs, self._best(current), strict=True):
            if new.name is None and self._is_ours(new):
                new.name = old.name
            if old in self._opaque:
                self._hide(old, new)
            elif new is not old:
                self._now[old] = new
                if node.op.unmergeable:  # it happens once, where the user wrote it
                    self._same_as[new], self._read_same = old, True

    def _hide(self, old: Variable, new: Variable) -> None:
        stand_in = Opaque()(new)
        self._now[old], self._same_as[stand_in] = stand_in, old

    def _input(self, v: Variable) -> Variable:
        found = self._now.get(v, v)
        if found in self._same_as:
            self._read_same = True
        return found

    # -- one node -------------------------------------------------------------------------------

    def _best(self, node: Apply) -> Sequence[Variable]:
        """What stands for the outputs of ``node``, whose inputs are in stable form."""
        if isinstance(inner := getattr(node.op, "inner", None), InnerGraph):
            return self._with_stable_inside(node, inner)
        for rule in self._rules.of(node):
            new = self._applied(rule, node)
            if new is not None:
                self.fired.append((self._at, rule.name))
                return [o if n is None else self._settled(n) for o, n in zip(node.outputs, new)]
        return node.outputs

    def _applied(self, rule: Rewrite, node: Apply) -> Sequence[Variable | None] | None:
        try:
            found = rule(node, self._context)
        except Exception as error:
            error.add_note(f"In rewrite {rule.name} on {node}, made here:\n{node.origin.text()}")
            report_failure(f"rewrite {rule.name} failed on {node.op}", error, "The node stays")
            return None
        changes = found is not None and any(
            n is not None and n is not o for o, n in zip(node.outputs, found)
        )
        self._left -= changes
        return found if changes and self._left >= 0 else None

    def _settled(self, v: Variable) -> Variable:
        """``v`` after its new nodes have been looked at as well."""
        memo: dict[Variable, Variable] = {}
        for node in new_nodes([v], self._known):
            inputs = [memo.get(i, i) for i in node.inputs]
            changed = any(a is not b for a, b in zip(inputs, node.inputs))
            current = copy_node(node, inputs) if changed else node
            self._known[current] = None
            for old, new in zip(node.outputs, self._best(current), strict=True):
                memo[old] = new
        return memo.get(v, v)

    def _with_stable_inside(self, node: Apply, inner: InnerGraph) -> Sequence[Variable]:
        """Outputs of an op with a graph inside, of which only the derivative is another.

        The values stay those of the user's own node: the loop runs once.
        """
        if inner not in self._inner:
            self._inner[inner] = stable_inside(inner)
        if self._inner[inner] is inner:
            return node.outputs
        op: Any = node.op
        new = Apply(
            op.with_inner(self._inner[inner]), node.inputs, [o.type for o in node.outputs],
            node.origin, node.hints, node.written,
        )  # fmt: skip
        self.fired.append((self._at, "inside"))
        own = substituted(node.outputs, self._same_as)
        self._same_as.update(zip(new.outputs, own, strict=True))
        self._read_same = True
        return new.outputs


def _may_vary(node: Apply) -> bool:
    """Whether some result has a gradient: what is counted or compared stays the user's own."""
    types = [v.type for v in node.outputs]
    return any([not isinstance(t, TensorType) or t.is_differentiable for t in types])


def stable_inside(inner: InnerGraph) -> InnerGraph:
    """The same graph in stable form; itself where nothing is to be done."""
    graph = StableGraph(inner.outputs, inner.inputs)
    if not graph.fired:
        return inner
    outputs = [graph.at(v) for v in inner.outputs]
    own = [v for v in graph.in_users_terms(outputs) if v is not None]
    return InnerGraph(inner.inputs, own)


def _selected() -> RuleTable:
    """The rules without those that ``optimizer_excluding`` names."""
    out = set(filter(None, str(config.optimizer_excluding).split(":")))
    return TABLE if not out else _without(out)


def _without(out: set[str]) -> RuleTable:
    return RuleTable(r for r in RULES if not out & {r.name, r.phase, *r.tags})


TABLE = RuleTable(RULES)
