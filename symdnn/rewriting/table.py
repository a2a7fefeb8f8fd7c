"""Looks up the rewrites that may apply to a node, by its op and the ops that make its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from symdnn.graph.op import Op
from symdnn.graph.pattern import Makers, makers
from symdnn.graph.variable import Apply
from symdnn.rewriting.rewrite import Rewrite

__all__ = ["RuleTable"]

#: Kinds of nodes of which a table keeps the answers.
MAX_KINDS = 5000


class RuleTable:
    """Rewrites in order, looked up by a node; answers are cached by kind of node.

    Most nodes have no rewrite that may apply, so one look-up is enough for them.
    """

    def __init__(self, rules: Iterable[Rewrite]) -> None:
        self._rules = tuple(sorted(rules, key=lambda r: r.last_resort))
        self._found: dict[tuple[type[Op], Makers], Sequence[Rewrite]] = {}

    def of(self, node: Apply) -> Sequence[Rewrite]:
        """The rewrites that may apply to ``node`` as it is now."""
        key = (type(node.op), makers(node))
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= MAX_KINDS:
                self._found = {}
            found = self._found[key] = self._of_kind(*key)
        return found

    def _of_kind(self, op: type[Op], made: Makers) -> Sequence[Rewrite]:
        return tuple(
            r
            for r in self._rules
            if issubclass(op, r.ops) and (r.admits is None or r.admits(op, made))
        )
