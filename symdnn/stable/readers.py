"""How often the values of a graph are read while nodes of it get replacements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from symdnn.graph.variable import Apply, Variable
from symdnn.rewriting.facts import value_inputs


class Readers:
    """Counts of reads of the user's variables, by nodes that the outputs still need."""

    def __init__(self, order: Sequence[Apply], outputs: Iterable[Variable]) -> None:
        self._count: Counter[Variable] = Counter(outputs)
        #: Outputs of nodes that were merged -> those that stand for them.
        self._merged: dict[Variable, Variable] = {}
        self._reads: dict[Apply, list[Variable]] = {}
        for node in reversed(order):
            needed = any(self._count[o] for o in node.outputs)
            self._reads[node] = list(value_inputs(node)) if needed else []
            self._count.update(self._reads[node])

    def __getitem__(self, v: Variable) -> int:
        return self._count[self._merged.get(v, v)]

    def merged(self, node: Apply, twin: Apply) -> None:
        """Note that the readers of ``node`` read the outputs of ``twin``, an equal node."""
        for old, new in zip(node.outputs, twin.outputs, strict=True):
            self._merged[old] = new
            self._count[new] += self._count.pop(old, 0)
        old_reads, self._reads[node] = self._reads[node], []
        self._drop(old_reads)

    def replaced(
        self, node: Apply, forms: Iterable[Variable], users: Mapping[Variable, Variable]
    ) -> None:
        """Note that the outputs of ``node`` have these forms now.

        ``users`` has the user's variables of values that were replaced.
        """
        new = self._behind(forms, users)
        old, self._reads[node] = self._reads[node], new
        self._count.update(self._merged.get(v, v) for v in new)
        self._drop(old)

    def _behind(
        self, forms: Iterable[Variable], users: Mapping[Variable, Variable]
    ) -> list[Variable]:
        """The user's variables from which the new nodes of the forms are computed."""
        found: dict[Variable, None] = {}
        seen: set[Apply] = set()
        pending = list(forms)
        while pending:
            v = pending.pop()
            node = v.owner
            if v in users or node is None or node in self._reads:
                found[users.get(v, v)] = None
            elif node not in seen:
                seen.add(node)
                pending += value_inputs(node)
        return list(found)

    def _drop(self, variables: Iterable[Variable]) -> None:
        """These reads are gone, and those of nodes that nothing needs by that."""
        pending = list(variables)
        while pending:
            v = pending.pop()
            v = self._merged.get(v, v)
            self._count[v] -= 1
            node = v.owner
            if node in self._reads and not any(self._count[o] for o in node.outputs):
                pending += self._reads[node]
                self._reads[node] = []
