"""Brings a part of a graph into stable form, by one pass from the inputs to the outputs.

Rules match patterns towards the inputs only, which have their stable form already, so one pass is
enough. Nodes that a rule makes are visited at once. Where no rule applies, the user's nodes stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from symdnn.config import config
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.inner import InnerGraph
from symdnn.graph.origin import inheriting
from symdnn.graph.target import Target
from symdnn.graph.traverse import copy_node, new_nodes, substituted, toposort
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.gradient_control import Opaque
from symdnn.ops.core.shape import ShapeI
from symdnn.rewriting.failure import report_failure
from symdnn.rewriting.rewrite import Context, Rewrite
from symdnn.rewriting.table import RuleTable
from symdnn.stable.readers import Readers
from symdnn.stable.rules import RULES

#: The most replacements per node, so that the pass ends even if rules undo each other.
MAX_REPLACEMENTS_PER_NODE = 30


class StableGraph:
    """The nodes on a path from ``starts`` to ``outputs``, in stable form.

    ``at(v)`` is the replacement of the user's variable ``v``. No pattern matches through a variable
    of ``opaque``: it is replaced by an ``Opaque`` node. Nodes before ``blockers`` are left out.
    ``fired`` lists the user's nodes that were replaced, with the rule; if it is empty, the user's
    graph is in stable form.
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
        self._replacement: dict[Variable, Variable] = {}
        #: Replacements that compute nothing new, each with the variable whose value it has.
        self._same_as: dict[Variable, Variable] = {}
        self._read_same = False
        #: Replacements that read what they replace.
        self._reads_itself: set[Variable] = set()
        #: What a node computes -> the first of the user's nodes that does.
        self._twins: dict[tuple[Any, ...], Apply] = {}
        self._rules = _selected()
        self._inner: dict[InnerGraph, InnerGraph] = {}
        order = toposort(outputs, self._blockers)
        self._readers = Readers(order, outputs)
        #: The user's variables of replacements.
        self._users_variable: dict[Variable, Variable] = {}
        self._context = _StableContext(reads_of=self._reads_of)
        self._users = frozenset(order)
        self._known: dict[Apply, None] = dict.fromkeys(order)
        self._replacements_left = MAX_REPLACEMENTS_PER_NODE * len(order) + 100
        self._run(order, set(starts))
        for old, new in self._replacement.items():
            if self._is_new(new):
                new.stable_form_of = old  # whose sizes the derivatives read (`shape_i`)

    def at(self, v: Variable) -> Variable:
        """The replacement of ``v``; ``v`` itself if it has none."""
        return self._replacement.get(v, v)

    def in_users_terms(self, found: Sequence[Variable | None]) -> list[Variable | None]:
        """The expressions ``found`` with the user's own variables where the values are the same.

        These are variables behind ``Opaque`` nodes, and results of ops that must run once.
        """
        made = [v for v in found if v is not None]
        forms = {new: old for old, new in self._replacement.items() if self._is_new(new)}
        for v in self._same_as:
            v.stable_form_of = None
            forms.pop(v, None)
        new = [*made, *forms]
        if self._read_same:
            new = substituted(new, self._same_as)
        for form, (v, users) in zip(new[len(made) :], forms.items(), strict=True):
            form.stable_form_of = None if v in self._reads_itself else users
        own = iter(new)
        return [None if v is None else next(own) for v in found]

    def _reads_of(self, v: Variable) -> int:
        """How often a value of the stable form is read; that of a rule's new node once."""
        user = self._users_variable.get(v, v)
        return self._readers[user] if user.owner in self._users or v is not user else 1

    def _is_new(self, v: Variable) -> bool:
        return v.owner is not None and v.owner not in self._users

    # -- the pass over the graph ----------------------------------------------------------------

    def _run(self, order: Sequence[Apply], reached: set[Variable]) -> None:
        for v in self._opaque & (self._blockers | reached):
            if v.owner is not None:
                self._make_opaque(v, v)
        with inheriting() as self._take_after:
            for node in order:
                if any(v in reached for v in node.inputs) and _may_vary(node):
                    reached.update(node.outputs)
                    self._take_after(node.origin, node.hints, node.written)
                    self._visit(node)

    def _visit(self, node: Apply) -> None:
        self._current_node = node
        inputs = [self._input(v) for v in node.inputs]
        changed = any(a is not b for a, b in zip(inputs, node.inputs))
        if (twin := self._twin(node, inputs)) is not node:
            self._readers.merged(node, twin)
            pairs = zip(node.outputs, twin.outputs, strict=True)
            self._replacement.update((old, self._replacement.get(v, v)) for old, v in pairs)
            return
        current = copy_node(node, inputs) if changed else node
        forms = self._stable_outputs(current)
        if forms is not current.outputs:
            self._readers.replaced(node, forms, self._users_variable)
        for old, new in zip(node.outputs, forms, strict=True):
            if new.name is None and self._is_new(new):
                new.name = old.name
            if old in self._opaque:
                self._make_opaque(old, new)
            elif new is not old:
                self._replacement[old] = new
                self._users_variable[new] = old
                if node.op.unmergeable:  # it must run once, as the user's node
                    self._same_as[new], self._read_same = old, True

    def _twin(self, node: Apply, inputs: Sequence[Variable]) -> Apply:
        """The first of the user's nodes that computes the same; ``node`` itself if it is that."""
        if node.op.unmergeable or any(v in self._opaque for v in node.outputs):
            return node
        same = tuple(v.key() if isinstance(v, Constant) else v for v in inputs)
        return self._twins.setdefault((node.op, same, node.hints), node)

    def _make_opaque(self, old: Variable, new: Variable) -> None:
        stand_in = Opaque()(new)
        self._replacement[old], self._same_as[stand_in] = stand_in, old

    def _input(self, v: Variable) -> Variable:
        found = self._replacement.get(v, v)
        if found in self._same_as:
            self._read_same = True
        return found

    # -- one node -------------------------------------------------------------------------------

    def _stable_outputs(self, node: Apply) -> Sequence[Variable]:
        """The stable form of the outputs of ``node``, whose inputs are in stable form."""
        if isinstance(inner := getattr(node.op, "inner", None), InnerGraph):
            return self._with_stable_inside(node, inner)
        for rule in self._rules.of(node):
            new = self._applied(rule, node)
            if new is not None:
                self.fired.append((self._current_node, rule.name))
                itself = self._reads(new, node)
                found = [o if n is None else self._visited(n) for o, n in zip(node.outputs, new)]
                self._reads_itself.update(found if itself else ())
                return found
        return node.outputs

    def _reads(self, found: Sequence[Variable | None], node: Apply) -> bool:
        """Whether the nodes that a rule made for ``node`` read more than its sizes."""
        made = new_nodes([v for v in found if v is not None], self._known)
        return any(v.owner is node for n in made if not isinstance(n.op, ShapeI) for v in n.inputs)

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
        self._replacements_left -= changes
        return found if changes and self._replacements_left >= 0 else None

    def _visited(self, v: Variable) -> Variable:
        """``v`` with its new nodes in stable form, too."""
        memo: dict[Variable, Variable] = {}
        for node in new_nodes([v], self._known):
            inputs = [memo.get(i, i) for i in node.inputs]
            changed = any(a is not b for a, b in zip(inputs, node.inputs))
            current = copy_node(node, inputs) if changed else node
            self._known[current] = None
            for old, new in zip(node.outputs, self._stable_outputs(current), strict=True):
                memo[old] = new
        return memo.get(v, v)

    def _with_stable_inside(self, node: Apply, inner: InnerGraph) -> Sequence[Variable]:
        """Outputs of an op with an inner graph, whose derivative is taken of the stable form.

        The values are those of the user's own node, so a loop runs only once.
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
        self.fired.append((self._current_node, "inside"))
        own = substituted(node.outputs, self._same_as)
        self._same_as.update(zip(new.outputs, own, strict=True))
        self._read_same = True
        return new.outputs


@dataclass(frozen=True)
class _StableContext(Context):
    """The context of rules here: readers are counted in the stable form, as far as it is made."""

    fgraph: FunctionGraph = field(default_factory=lambda: FunctionGraph([], []))
    target: Target = field(default_factory=Target)
    reads_of: Callable[[Variable], int] = lambda v: 1

    def only_reader(self, v: Variable) -> bool:
        """As in any context."""
        return self.reads_of(v) == 1

    def unread(self, v: Variable) -> bool:
        """As in any context."""
        return self.reads_of(v) == 0


def _may_vary(node: Apply) -> bool:
    """Whether some result is differentiable; other nodes (integers, comparisons) are left alone."""
    types = [v.type for v in node.outputs]
    return any([not isinstance(t, TensorType) or t.is_differentiable for t in types])


def stable_inside(inner: InnerGraph) -> InnerGraph:
    """The inner graph in stable form; the same object where no rule applied."""
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
