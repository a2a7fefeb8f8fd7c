"""Runs the rewrites of a phase to a fixed point, by a worklist of new and changed nodes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any

from symdnn.config import config
from symdnn.errors import CudnnRequired, NotLowered, RewriteError
from symdnn.graph.origin import NO_HINTS, NOWHERE, inherit, inheriting
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.rewriting.failure import report_failure
from symdnn.rewriting.rewrite import Context, GraphRewrite, Rewrite
from symdnn.rewriting.table import RuleTable

__all__ = ["Applied", "Observer", "RewriteProfile", "run_rewrites"]

#: Exceptions that a rewrite raises because a flag demands it. They reach the user as they are.
DEMANDED_ERRORS = (CudnnRequired, NotLowered)

#: How many replacements more than 200 for each node of a graph mean that rewriting does not end.
SPARE_REPLACEMENTS = 20_000
#: A graph that grows does not end either, long before that: so many nodes more than 20 times those
#: that it had, after at least so many replacements. (A graph that is put in counts as one.)
SPARE_NODES, LEAST_REPLACEMENTS = 5_000, 1_000

#: Called before each replacement with (rewrite, node, replacements).
Observer = Callable[[Rewrite, Apply, Sequence[Variable | None]], None]


@dataclass
class Applied:
    """Statistics of one rewrite: how often it fired and was tried, and its time in seconds."""

    fired: int = 0
    tried: int = 0
    seconds: float = 0.0


@dataclass
class RewriteProfile:
    """Counts and times of all rewrites of one compilation."""

    rewrites: dict[str, Applied] = field(default_factory=lambda: defaultdict(Applied))
    phases: dict[str, float] = field(default_factory=dict)
    #: Flags without effect here, each with the reason; reports show them.
    notes: tuple[str, ...] = ()
    #: The names of registered rewrites that took part, fired or not.
    outside: tuple[str, ...] = ()

    def slowest(self, count: int = 10) -> list[tuple[str, Applied]]:
        """The ``count`` rewrites that took longest, as (name, statistics), slowest first."""
        return sorted(self.rewrites.items(), key=lambda kv: -kv[1].seconds)[:count]

    def __str__(self) -> str:
        lines = [f"{'rewrite':40} {'fired':>7} {'tried':>8} {'ms':>9}"]
        lines += [_row(name, a) for name, a in self.slowest()]
        if self.outside:
            lines.append("registered by the program:")
            lines += [_row(f"  {n}", self.rewrites.get(n, Applied())) for n in self.outside]
        for name, seconds in self.phases.items():
            lines.append(f"phase {name:34} {'':7} {'':8} {seconds * 1e3:9.2f}")
        return "\n".join(lines)


def _row(name: str, a: Applied) -> str:
    return f"{name:40} {a.fired:7d} {a.tried:8d} {a.seconds * 1e3:9.2f}"


def run_rewrites(
    rules: Sequence[Rewrite | GraphRewrite],
    context: Context,
    profile: RewriteProfile,
    observer: Observer | None = None,
) -> int:
    """Run ``rules`` on ``context.fgraph`` to a fixed point and return the number of replacements.

    Graph rewrites run once, first. Node rewrites for another kind of target are left out.
    """
    sorted_out = _sorted_out(tuple(rules), context.target.kind)
    for rule in sorted_out.of_graphs:
        start = time.perf_counter()
        _run_on_graph(rule, context)
        entry = profile.rewrites[rule.name]
        entry.tried += 1
        entry.seconds += time.perf_counter() - start
    fgraph = context.fgraph
    table = sorted_out.without(fgraph.in_vain) if sorted_out.of_nodes else None
    if table is None:
        return 0
    fired, ended = _Worklist(table, sorted_out.table, context, profile, observer).run()
    if ended:
        fgraph.in_vain |= sorted_out.of_nodes
    return fired


class _SortedOut:
    """Graph rewrites, and the node rewrites for a kind of target, with tables of these.

    Compilations share the tables, with what they have found for kinds of nodes.
    """

    def __init__(self, rules: Sequence[Rewrite | GraphRewrite], kind: str) -> None:
        self.of_graphs = [r for r in rules if isinstance(r, GraphRewrite)]
        self._in_order = [r for r in rules if isinstance(r, Rewrite) and r.target in (None, kind)]
        self.of_nodes = frozenset(self._in_order)
        self.table = RuleTable(self._in_order)
        self._without: dict[frozenset[Rewrite], RuleTable | None] = {}

    def without(self, rules: frozenset[Rewrite]) -> RuleTable | None:
        """The table of node rewrites without some: None if none is left."""
        if rules not in self._without:
            left = [r for r in self._in_order if r not in rules]
            whole = len(left) == len(self._in_order)
            self._without[rules] = self.table if whole else RuleTable(left) if left else None
        return self._without[rules]


_sorted_out = lru_cache(maxsize=256)(_SortedOut)


def _run_on_graph(rule: GraphRewrite, context: Context) -> None:
    try:
        with inherit(NOWHERE, NO_HINTS):  # the graph gives a new node the line of what it replaces
            rule.function(context)
    except DEMANDED_ERRORS:
        raise
    except Exception as error:
        if "always" in rule.tags:
            raise  # without it the program would not run
        report_failure(f"rewrite {rule.name} failed", error, "The rest of it is left out")


def _same_node(a: Variable, b: Variable) -> bool:
    """Whether ``a`` and ``b`` are one node to the graph's common subexpression elimination."""
    new, old = a.owner, b.owner
    if new is None or old is None or a.index != b.index or new.op != old.op:
        return False
    same = len(new.inputs) == len(old.inputs) and new.hints == old.hints
    return same and all(
        v is w or (isinstance(v, Constant) and isinstance(w, Constant) and v.key() == w.key())
        for v, w in zip(new.inputs, old.inputs)
    )


class _Worklist:
    """A worklist of nodes that are new or whose inputs changed, nearest to the inputs first.

    In this order a constant or sign that moves outward meets others that it merges with. In order
    of arrival each of them would move one step a round, which is quadratic in the depth.

    ``table`` has the rewrites of the phase that may apply to the graph as it is, ``whole`` those
    that may apply once it has changed.
    """

    def __init__(
        self,
        table: RuleTable,
        whole: RuleTable,
        context: Context,
        profile: RewriteProfile,
        observer: Observer | None,
    ) -> None:
        self.context, self.observer = context, observer
        self.entries = profile.rewrites
        self.table, self.whole = table, whole
        #: The inputs of a node when it was looked up last, and the rules that may apply with these.
        self.found: dict[Apply, tuple[Sequence[Variable], Sequence[Rewrite]]] = {}
        #: A heap of (height, number of arrival, node), and the nodes in it.
        self.heap: list[tuple[int, int, Apply]] = []
        self.queue: set[Apply] = set()
        self.arrivals = 0
        #: The height of a node above the inputs when it was added.
        self.heights: dict[Apply, int] = {}
        order = context.fgraph.toposort()
        for node in order:
            self.add(node)
        self.budget = 200 * len(order) + SPARE_REPLACEMENTS
        self.most_nodes = 20 * len(order) + SPARE_NODES
        self.failed: set[str] = set()
        #: Nodes visited since the last replacement, to which no rule applied.
        self.settled: set[Apply] = set()

    def run(self) -> tuple[int, bool]:
        """The number of replacements, and whether none is left to do."""
        fgraph = self.context.fgraph
        fgraph.on_new_node.append(self.add)
        fgraph.on_fewer_readers.append(self.add_if_several)
        fired, before, ended = 0, -1, False
        try:
            # A pattern may be several nodes deep, but only the neighbours of a change are queued.
            # So all nodes are visited again until nothing fires, except those that were visited
            # since the last replacement.
            while fired != before:
                before = fired
                fired = self.drain(fired)
                if fired != before:
                    for node in fgraph.toposort():
                        if node not in self.settled:
                            self.add(node)
            ended = True
        except RewriteError as error:
            report_failure("rewriting was stopped", error, "The graph stays as it is now")
        finally:
            fgraph.on_new_node.remove(self.add)
            fgraph.on_fewer_readers.remove(self.add_if_several)
        return fired, ended

    def rules_of(self, node: Apply) -> Sequence[Rewrite]:
        """The rules that may apply to ``node`` as it is now."""
        known = self.found.get(node)
        if known is None or known[0] is not node.inputs:
            known = self.found[node] = (node.inputs, self.table.of(node))
        return known[1]

    def drain(self, fired: int) -> int:
        """Visit queued nodes until none is left; the number of replacements so far."""
        nodes = self.context.fgraph.nodes
        with inheriting() as take_after:
            while self.heap:
                node = heappop(self.heap)[2]
                self.queue.discard(node)
                rules = self.rules_of(node)
                if rules and node in nodes:
                    take_after(node.origin, node.hints, node.written)
                    if self.try_each(rules, node):
                        fired += 1
                        self.settled.clear()
                        if node in nodes:  # a reader became equal to it and was merged into it
                            self.add(node)
                        self.check_budget(fired)
                    else:
                        self.settled.add(node)
        return fired

    def add(self, node: Apply) -> None:
        if node in self.queue:
            return
        heights, height = self.heights, 0
        for v in node.inputs:
            if v.owner is not None and (below := heights.get(v.owner, 0)) > height:
                height = below
        heights[node] = height + 1
        if self.rules_of(node):  # a node without rules is added again when its inputs change
            self.queue.add(node)
            self.arrivals += 1
            heappush(self.heap, (height, self.arrivals, node))

    def add_if_several(self, node: Apply) -> None:
        """Queue a node that lost a reader of one of several outputs: a cheaper op may do now."""
        if len(node.outputs) > 1:
            self.add(node)

    def try_each(self, rules: Sequence[Rewrite], node: Apply) -> int:
        """Let the first rule that applies rewrite ``node``; return 1 if there is one, else 0."""
        context, clock = self.context, time.perf_counter
        before = clock()
        for rule in rules:
            entry = self.entries[rule.name]
            try:
                found = rule.function(node, context)
                new = None if found is None else rule.conformed(found, node, context)
                new = None if new is None else self.replace(rule, node, new)
            except Exception as error:
                self.report(rule, node, error)
                new = None
            now = clock()
            entry.seconds += now - before
            entry.tried += 1
            before = now
            if new is not None:
                entry.fired += 1
                return 1
        return 0

    def replace(self, rule: Rewrite, node: Apply, new: Sequence[Variable | None]) -> Any:
        """Replace the node's outputs by ``new``; None where that changes nothing."""
        read = self.context.fgraph.clients
        pairs = [
            (o, n) for o, n in zip(node.outputs, new)
            if n is not None and n is not o and read.get(o) and not _same_node(n, o)
        ]  # fmt: skip
        if not pairs:
            return None
        if self.observer is not None:
            self.observer(rule, node, new)
        if self.table is not self.whole:
            self.table = self.whole
            self.found.clear()
        self.context.fgraph.replace_all(pairs, rule.name)
        return new

    def report(self, rule: Rewrite, node: Apply, error: Exception) -> None:
        error.add_note(f"In rewrite {rule.name} on {node}, made here:\n{node.origin.text()}")
        if rule.name not in self.failed or config.on_opt_error != "warn":
            self.failed.add(rule.name)
            what = f"rewrite {rule.name} failed on {node.op}"
            report_failure(what, error, "The node stays as it was")

    def check_budget(self, fired: int) -> None:
        grows = fired > LEAST_REPLACEMENTS and len(self.context.fgraph.nodes) > self.most_nodes
        if grows or fired > self.budget:
            busiest = max(self.entries.items(), key=lambda kv: kv[1].fired)
            raise RewriteError(
                f"rewriting does not end: {fired} replacements, most by {busiest[0]} "
                f"({busiest[1].fired}). Switch it off with optimizer_excluding={busiest[0]}"
            )
