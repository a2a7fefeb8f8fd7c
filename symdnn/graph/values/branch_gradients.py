"""Gradients through the branches of lazy choices: those of a branch that is not taken are zero.

There the cotangents are 0, and a derivative may be infinite or NaN: the product is NaN. So a value
that only one branch uses passes gradients on only if that branch is taken. These gradients are
lazy, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Variable

#: A lazy choice, and the number of one of its branches.
Branch = tuple[Apply, int]


class Branches:
    """The nodes, of ``nodes`` in topological order, that only one branch of a choice uses.

    Choices by one condition are one choice. Uses that have no gradients do not count, such as sizes
    and comparisons, or values of which only these are read.
    """

    def __init__(self, nodes: Sequence[Apply], read: Collection[Variable]) -> None:
        """``read`` are variables that others than the nodes need."""
        self._of: dict[Apply, frozenset[Branch]] = {}
        choices = [node for node in nodes if node.op.branches]
        if not choices:
            return
        first: dict[tuple[type, Variable], Apply] = {}
        self._same = {c: first.setdefault((type(c.op), c.inputs[0]), c) for c in choices}
        users: dict[Variable, list[tuple[Apply, int]]] = {}
        for node in reversed(nodes):
            own = [v for v in node.outputs if _has_gradient(v)]
            uses = [use for v in own for use in users.get(v, ())]
            needed = any(v in read for v in own)
            if uses and not needed:
                self._of[node] = frozenset.intersection(*(self._through(*use) for use in uses))
            if uses or needed:
                for i, v in enumerate(node.inputs):
                    users.setdefault(v, []).append((node, i))
        self._around: dict[Apply, frozenset[Branch]] = {}
        for choice in choices:
            around, same = self._of.get(choice, frozenset()), self._same[choice]
            self._around[same] = self._around.get(same, around) & around

    def _through(self, user: Apply, i: int) -> frozenset[Branch]:
        """The branches that are the only users of this use of a value."""
        own = {(self._same[user], k) for k, inputs in enumerate(user.op.branches) if i in inputs}
        return self._of.get(user, frozenset()) | own

    def of(self, node: Apply) -> list[Branch]:
        """The branches that are the only users of ``node``, inner ones first."""
        found = self._of.get(node, ())
        return sorted(found, key=lambda b: (-len(self._around[b[0]]), b[0].written, b[1]))

    def masked(self, node: Apply, v: Variable, gradient: Variable) -> Variable:
        """The gradient that ``node`` passes on to its input ``v``."""
        above = self._of.get(v.owner, frozenset()) if v.owner is not None else frozenset()
        for choice, branch in self.of(node):
            if (choice, branch) not in above:
                gradient = choice.op.where_taken(choice.inputs, branch, gradient)
        return gradient


def _has_gradient(v: Variable) -> bool:
    return not isinstance(v.type, TensorType) or v.type.is_differentiable
