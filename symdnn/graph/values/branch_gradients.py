"""Gradients through the branches of lazy choices: those of a branch that is not taken are zero.

There the cotangents are 0, and a derivative may be infinite or NaN: the product is NaN. So a value
that only one branch uses passes gradients on only if that branch is taken. These gradients are
lazy, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from symdnn.graph.variable import Apply, Variable

__all__ = ["Branch", "Branches"]

#: A lazy choice, and the number of one of its branches.
Branch = tuple[Apply, int]


class Branches:
    """The nodes, of ``nodes`` in topological order, that only one branch of a choice uses."""

    def __init__(self, nodes: Sequence[Apply], read: Collection[Variable]) -> None:
        """``read`` are variables that others than the nodes need."""
        self._of: dict[Apply, frozenset[Branch]] = {}
        if not any(node.op.branches for node in nodes):
            return
        users: dict[Variable, list[tuple[Apply, int]]] = {}
        for node in nodes:
            for i, v in enumerate(node.inputs):
                users.setdefault(v, []).append((node, i))
        for node in reversed(nodes):
            uses = [use for v in node.outputs for use in users.get(v, ())]
            if uses and not any(v in read for v in node.outputs):
                self._of[node] = frozenset.intersection(*(self._through(*use) for use in uses))

    def _through(self, user: Apply, i: int) -> frozenset[Branch]:
        """The branches that are the only users of this use of a value."""
        own = {(user, k) for k, inputs in enumerate(user.op.branches) if i in inputs}
        return self._of.get(user, frozenset()) | own

    def of(self, node: Apply) -> list[Branch]:
        """The branches that are the only users of ``node``, inner ones first."""
        own = self._of.get(node, ())
        return sorted(own, key=lambda b: (b[0].written, b[1]), reverse=True)

    def masked(self, node: Apply, v: Variable, gradient: Variable) -> Variable:
        """The gradient that ``node`` passes on to its input ``v``."""
        above = self._of.get(v.owner, frozenset()) if v.owner is not None else frozenset()
        for choice, branch in self.of(node):
            if (choice, branch) not in above:
                gradient = choice.op.where_taken(choice.inputs, branch, gradient)
        return gradient
