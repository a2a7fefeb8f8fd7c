"""Values of a plan that are computed again, so that its memory keeps to a bound.

The forward order of nodes is kept. A value with a long gap between two of its reads is dropped
there, and computed again, once, before the second read: of values that are there, or of others that
are then computed again too. Results of products that only those need are held longer instead, or
dropped as well. The choice bounds the memory by the least estimated time.

Two families of choices are tried. In one, cheap values per byte go first, and among equally cheap
ones those that lie evenly apart. In the other the forward pass has parts, and what enters a part is
kept (T. Chen et al., "Training deep nets with sublinear memory cost", 2016). What need not go is
kept after all, the most costly per byte first.
Each choice is judged by the live bytes of the whole order, the last one by the plan itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, log2

from symdnn.compile.plan.memory import plan_memory
from symdnn.compile.plan.memory_order import bytes_of, eager, is_view
from symdnn.compile.plan.node_costs import seconds_of
from symdnn.compile.plan.specialise import Specialised, make_call
from symdnn.errors import OverBudget
from symdnn.graph.place import HOST
from symdnn.graph.type import OpaqueType
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.control.checkpoint import After

__all__ = ["Recomputed", "ordered_for_memory", "within_budget"]

#: A gap of fewer nodes is no reason to compute a value again.
_SHORTEST_GAP = 4
#: The most choices that are tried along the order of costs, parts of the forward pass, choices that
#: are refined, and steps of that for a thousand nodes.
_MOST_PREFIXES, _MOST_PARTS, _MOST_REFINED, _MOST_SINGLES = 24, 32, 2, 30
#: The smallest choices without products that are mixed with some.
_MOST_MIXED = 5
#: Seconds for each byte of a result above which a value is costly to compute again: some passes
#: over memory.
_CHEAP = {"host": 8e-10, "device": 4e-12}
#: Values of less than this share of the mean size of a node's results stay.
_SMALL = 0.05
#: How often the bound is lowered where placement needs more than the live bytes.
_MOST_ROUNDS = 6


@dataclass(frozen=True)
class Recomputed:
    """What a plan computes again for a bound on its memory.

    Sizes are in bytes: the ``budget``, and the ``peak`` of arena and results ``before`` and with
    it. ``nodes`` has for each op that runs again how often, and ``share`` is the estimated time of
    these runs in proportion to that of all nodes.
    """

    budget: int
    before: int
    peak: int
    nodes: Mapping[str, int]
    share: float

    def __str__(self) -> str:
        count = sum(self.nodes.values())
        if not count:
            return f"memory budget {self.budget}: kept, nothing is computed again"
        most = sorted(self.nodes.items(), key=lambda p: -p[1])
        shown = ", ".join(f"{n} x {name[:60]}" for name, n in most[:4])
        more = f" and {len(most) - 4} other ops" if len(most) > 4 else ""
        return (
            f"memory budget {self.budget}: {self.peak} bytes in place of {self.before}, "
            f"{count} nodes run again ({shown}{more}), {self.share:.0%} more time by estimate"
        )


def ordered_for_memory(spec: Specialised) -> Specialised:
    """The segment within its budget; with checkpoints, in an order that frees memory early."""
    if spec.segment.memory_budget is not None:
        return within_budget(spec, spec.segment.memory_budget)
    return eager(spec) if any(isinstance(n.op, After) for n in spec.segment.nodes) else spec


def within_budget(spec: Specialised, budget: int) -> Specialised:
    """The segment with values computed again, such that arena and results fit into ``budget``.

    Raises :class:`~symdnn.errors.OverBudget`, with the least that was found, where that fails.
    """
    spec = eager(spec)
    made = _made_bytes(spec)
    before = plan_memory(spec).arena_bytes
    if before + made <= budget:
        return replace(spec, recomputed=Recomputed(budget, before + made, before + made, {}, 0.0))
    search = _Search(spec)
    least, bound = before, float(budget - made)
    for attempt in range(_MOST_ROUNDS + 1):
        dropped = search.best(bound) if attempt < _MOST_ROUNDS else None
        last = dropped is None
        found = search.rebuilt(search.smallest() if dropped is None else dropped)
        new = _with_nodes(spec, found)
        arena = plan_memory(new).arena_bytes
        least = min(least, arena)
        if arena + made <= budget:
            said = Recomputed(budget, before + made, arena + made, found.counts(), found.share)
            return replace(new, recomputed=said)
        if last:
            break
        # Placement leaves holes: aim lower by as much.
        bound -= arena + made - budget
    raise OverBudget(
        f"memory_budget={budget}: a call needs {before + made} bytes beside its arguments and "
        f"shared variables, and by computing values again {least + made} is the least that was "
        f"found ({made} of them for results). Give that much, a smaller batch, or fewer results"
    )


def _made_bytes(spec: Specialised) -> int:
    memory = plan_memory(spec)
    buffers = [(memory.views[v].buffer, v) for v in spec.segment.outputs]
    return sum(b.nbytes for b, v in buffers if b.variable is v)


@dataclass
class _Order:
    """Nodes in the order of a run.

    ``first`` maps new nodes to those that they stand for, ``again`` are those that run a second
    time, ``main`` maps values to the new ones in their place.
    """

    nodes: list[Apply]
    first: dict[Apply, Apply]
    again: list[Apply]
    main: dict[Variable, Variable]
    peak: int
    seconds: float
    share: float

    def counts(self) -> dict[str, int]:
        """How often each op runs again."""
        found: dict[str, int] = {}
        for n in self.again:
            found[str(n.op)] = found.get(str(n.op), 0) + 1
        return found


class _Search:
    """The choice of values to drop in one segment."""

    def __init__(self, spec: Specialised) -> None:
        self.spec, self.nodes = spec, spec.segment.nodes
        self.step = {n: i for i, n in enumerate(self.nodes)}
        self.place_kind = "host" if spec.segment.place == HOST else "device"
        self.size = {v: bytes_of(spec, v) for n in self.nodes for v in n.outputs}
        self.leaving = set(spec.segment.outputs)
        self.is_view = {n: is_view(n) for n in self.nodes}
        self.seconds = {
            n: 0.0 if self.is_view[n] else seconds_of(spec.call(n), spec.segment.place)
            for n in self.nodes
        }
        self.total = sum(self.seconds.values()) or 1.0
        self.reads = self._reads()
        self.last = {v: max(reads) for v, reads in self.reads.items()}
        self.least_size = sum(self.size.values()) / len(self.nodes) * _SMALL
        self.repeatable = {n for n in self.nodes if self._may_run_again(n)}
        self.droppable = [v for v in self.size if self._may_drop(v)]
        self.turn = self._turn()
        #: The last read before the turn and the first one after it. Only what is there at the turn
        #: is dropped: of later values all that they need would run again.
        self.gaps = {v: g for v in self.droppable if (g := self._gap(v)) is not None}
        #: Unread later, but held rather than computed again, unless they are dropped: products.
        self.costly = {v for v in self.gaps if self._per_byte(v) > _CHEAP[self.place_kind]}
        self.ranked = self._ranked()
        self._tried: list[tuple[frozenset[Variable], _Order]] | None = None

    def _reads(self) -> dict[Variable, list[int]]:
        """The steps that read each value, itself or by a view of it."""
        reads: dict[Variable, list[int]] = {}
        source: dict[Variable, Variable] = {}
        for i, n in enumerate(self.nodes):
            if self.is_view[n]:
                source[n.outputs[0]] = n.inputs[n.op.views[0]]
                continue
            for v in dict.fromkeys(n.inputs):
                while v in self.size:
                    reads.setdefault(v, []).append(i)
                    if v not in source:
                        break
                    v = source[v]
        return reads

    def _may_run_again(self, n: Apply) -> bool:
        op = n.op
        if op.unmergeable or op.host_callback or op.private_draws or isinstance(op, After):
            return False
        opaque = any(isinstance(v.type, OpaqueType) for v in (*n.inputs, *n.outputs))
        known = all(self.spec.shapes.get(v) is not None for v in n.outputs)
        return known and not opaque

    def _may_drop(self, v: Variable) -> bool:
        n = maker(v)
        fixed = n not in self.repeatable or self.is_view[n] or v in self.leaving
        return not fixed and self.size[v] >= self.least_size

    def _gap(self, v: Variable) -> tuple[int, int] | None:
        """The reads around the turn; the end of the order for a value that is not read after it."""
        made, reads = self.step[maker(v)], self.reads.get(v, [])
        if made > self.turn:
            return None
        before = max((i for i in reads if i <= self.turn), default=made)
        after = min((i for i in reads if i > self.turn), default=len(self.nodes))
        return (before, after) if after - before >= _SHORTEST_GAP else None

    def _per_byte(self, v: Variable) -> float:
        n = maker(v)
        return float(self.seconds[n] / sum(self.size[o] for o in n.outputs))

    def _ranked(self) -> list[Variable]:
        """Candidates: cheap per byte first, equally cheap ones evenly apart."""
        groups: dict[tuple[bool, int], list[Variable]] = {}
        for v, (_, b) in self.gaps.items():
            if b < len(self.nodes) or v in self.costly:
                bucket = round(log2(max(self._per_byte(v), 1e-18)))
                groups.setdefault((v in self.costly, bucket), []).append(v)
        return [v for b in sorted(groups) for v in _evenly(groups[b])]

    # -- orders ---------------------------------------------------------------------------------

    def best(self, bound: float) -> frozenset[Variable] | None:
        """Values to drop so that the live bytes stay in ``bound``, for the least time; or None."""
        tried = self._tried_sets()
        fits = sorted((o.seconds, i) for i, (_, o) in enumerate(tried) if o.peak <= bound)
        found = [self._kept_again(tried[i][0], bound) for _, i in fits[:_MOST_REFINED]]
        return min(found, key=lambda d: self.rebuilt(d).seconds) if found else None

    def _kept_again(self, dropped: frozenset[Variable], bound: float) -> frozenset[Variable]:
        """Without what need not be dropped, the most costly per byte first."""
        left = max(20, _MOST_SINGLES * 1000 // len(self.nodes))
        stack = [[v for v in reversed(self.ranked) if v in dropped]]
        seconds = self.rebuilt(dropped).seconds
        while stack and left:
            part = stack.pop()
            left -= 1
            order = self.rebuilt(dropped - set(part))
            if order.peak <= bound and order.seconds <= seconds:
                dropped, seconds = dropped - set(part), order.seconds
            elif len(part) > 1:
                half = len(part) // 2
                stack += [part[half:], part[:half]]
        return dropped

    def smallest(self) -> frozenset[Variable]:
        """The values to drop for the fewest live bytes that were found."""
        return min(self._tried_sets(), key=lambda p: p[1].peak)[0]

    def _tried_sets(self) -> list[tuple[frozenset[Variable], _Order]]:
        if self._tried is None:
            count = len(self.ranked)
            steps = min(count, _MOST_PREFIXES)
            counts = sorted({round(count * i / steps) for i in range(steps + 1)} if steps else {0})
            sets = {frozenset(self.ranked[:k]): None for k in counts}
            everything = frozenset(self.ranked)
            for kept in self._boundaries():
                sets.update({everything - kept: None, everything - kept - self.costly: None})
            self._tried = [(dropped, self.rebuilt(dropped)) for dropped in sets]
            self._tried += self._mixed(self._tried)
        return self._tried

    def _mixed(
        self, tried: Sequence[tuple[frozenset[Variable], _Order]]
    ) -> list[tuple[frozenset[Variable], _Order]]:
        """The smallest choices that keep all products, without some of these as well."""
        cheap = [(o.peak, i) for i, (dropped, o) in enumerate(tried) if not dropped & self.costly]
        products = [v for v in self.ranked if v in self.costly]
        sets: dict[frozenset[Variable], None] = {}
        for _, i in sorted(cheap)[:_MOST_MIXED]:
            for share in (0.06, 0.12, 0.25, 0.5) if products else ():
                sets[tried[i][0] | set(products[: ceil(share * len(products))])] = None
        return [(dropped, self.rebuilt(dropped)) for dropped in sets]

    def _boundaries(self) -> list[set[Variable]]:
        """Values to keep, for each number of parts: those that enter a part of the forward pass."""
        turn = self.turn
        through: list[set[Variable]] = [set() for _ in range(turn + 1)]
        for v in self.ranked:
            reads = [i for i in self.reads.get(v, ()) if i <= turn]
            for i in range(self.step[maker(v)], max(reads, default=0)):
                through[i].add(v)
        cut = [sum(self.size[v] for v in values) for values in through]
        found = []
        for parts in range(2, min(_MOST_PARTS, turn // 2) + 1):
            kept: set[Variable] = set()
            width = turn / parts
            for k in range(1, parts):
                near = range(round((k - 0.5) * width), min(turn, round((k + 0.5) * width)))
                if near:
                    kept |= through[min(near, key=lambda i: (cut[i], abs(i - k * width)))]
            found.append(kept)
        return found

    def _turn(self) -> int:
        """The step at which most bytes wait for a later step."""
        change = [0] * (len(self.nodes) + 1)
        for v in self.droppable:
            steps = sorted({self.step[maker(v)], *self.reads.get(v, ())})
            length, a, b = max(((b - a, a, b) for a, b in pairwise(steps)), default=(0, 0, 0))
            if length >= _SHORTEST_GAP:
                change[a] += self.size[v]
                change[b] -= self.size[v]
        waiting, most, turn = 0, 0, 0
        for i, d in enumerate(change):
            waiting += d
            if waiting > most:
                most, turn = waiting, i
        return turn

    def rebuilt(self, dropped: frozenset[Variable]) -> _Order:
        """The order in which ``dropped`` values are computed again."""
        again = _Again(self, dropped)
        for i, n in enumerate(self.nodes):
            again.run(i, n)
        seconds = sum(self.seconds[again.first[n]] for n in again.again)
        peak, share = self._peak(again.order, again.first), seconds / self.total
        return _Order(again.order, again.first, again.again, again.main, peak, seconds, share)

    def _peak(self, nodes: Sequence[Apply], firsts: Mapping[Apply, Apply]) -> int:
        """The most bytes that are live at once; views count with what they are views of."""
        root: dict[Variable, Variable] = {}
        last: dict[Variable, int] = {}
        for i, n in enumerate(nodes):
            for v in n.inputs:
                last[root.get(v, v)] = i
            if self.is_view[firsts.get(n, n)]:
                source = n.inputs[n.op.views[0]]
                root[n.outputs[0]] = root.get(source, source)
        ends: list[list[Variable]] = [[] for _ in nodes]
        for v, i in last.items():
            ends[i].append(v)
        live = most = 0
        held: dict[Variable, int] = {}
        for i, n in enumerate(nodes):
            first = firsts.get(n, n)
            if not self.is_view[first]:
                for v, old in zip(n.outputs, first.outputs):
                    if v not in self.leaving:
                        held[v] = self.size[old]
                        live += self.size[old]
            most = max(most, live + self.spec.choices[first].workspace_bytes)
            for v in (*ends[i], *(v for v in n.outputs if v not in last and v not in root)):
                live -= held.pop(v, 0)
        return most


class _Again:
    """Builds an order: nodes, and those that run again before the first that needs them."""

    def __init__(self, search: _Search, dropped: frozenset[Variable]) -> None:
        self.search, self.dropped = search, dropped
        self.order: list[Apply] = []
        #: New nodes, and what they stand for; ``again`` are those that run a second time.
        self.first: dict[Apply, Apply] = {}
        self.again: list[Apply] = []
        #: Values of nodes that read others than before, and values that were computed again.
        self.main: dict[Variable, Variable] = {}
        self.copies: dict[Variable, Variable] = {}

    def run(self, step: int, n: Apply) -> None:
        """``n`` itself, on values that are there at this step."""
        inputs = self._there(n, step)
        if all(a is b for a, b in zip(inputs, n.inputs)):
            self.order.append(n)
        else:
            self.main.update(zip(n.outputs, self._made(n, inputs).outputs))

    def _gone(self, v: Variable, step: int) -> bool:
        """Whether a value is no longer held at this step."""
        maker = v.owner
        if v not in self.search.size or maker is None:
            return False
        if v in self.dropped:
            return step > self.search.gaps[v][0]
        if self._of_gone_view(maker, step):
            return True
        if v in self.search.leaving or step <= self.search.last.get(v, -1):
            return False
        return v not in self.search.costly and maker in self.search.repeatable

    def _of_gone_view(self, maker: Apply, step: int) -> bool:
        if not self.search.is_view[maker] or maker.op.unmergeable or maker.op.host_callback:
            return False
        return self._gone(maker.inputs[maker.op.views[0]], step)

    def _there(self, n: Apply, step: int) -> list[Variable]:
        if not any(self._gone(v, step) for v in n.inputs):
            return [self.main.get(v, v) for v in n.inputs]
        stack: list[tuple[Apply, bool]] = [(n, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                if node is not n and node.outputs[0] not in self.copies:
                    self._copy(node, step)
                continue
            stack.append((node, True))
            for v in node.inputs:
                maker = v.owner
                if maker is not None and v not in self.copies and self._gone(v, step):
                    stack.append((maker, False))
        return [self._at(v, step) for v in n.inputs]

    def _at(self, v: Variable, step: int) -> Variable:
        if v in self.copies and self._gone(v, step):
            return self.copies[v]
        return self.main.get(v, v)

    def _copy(self, node: Apply, step: int) -> None:
        new = self._made(node, [self._at(v, step) for v in node.inputs])
        self.again.append(new)
        self.copies.update(zip(node.outputs, new.outputs))

    def _made(self, node: Apply, inputs: Sequence[Variable]) -> Apply:
        types = [v.type for v in node.outputs]
        new = Apply(node.op, inputs, types, node.origin, node.hints, node.written)
        for old, v in zip(node.outputs, new.outputs):
            v.name = old.name
        self.order.append(new)
        self.first[new] = node
        return new


def _with_nodes(spec: Specialised, order: _Order) -> Specialised:
    """The segment with other nodes, each with the kernel of the node that it stands for."""
    shapes, choices, calls = dict(spec.shapes), {}, {}
    for n in order.nodes:
        first = order.first.get(n, n)
        shapes.update((v, spec.shapes[old]) for v, old in zip(n.outputs, first.outputs))
        choices[n] = spec.choices[first]
        calls[n] = spec.call(n) if first is n else make_call(n, shapes, spec.versions)
    now = order.main
    segment = replace(
        spec.segment,
        nodes=tuple(order.nodes),
        outputs=tuple(now.get(v, v) for v in spec.segment.outputs),
        updates=tuple((now.get(v, v), s) for v, s in spec.segment.updates),
    )
    budgeted = frozenset(n for n in order.nodes if order.first.get(n, n) in spec.budgeted)
    return replace(
        spec, segment=segment, shapes=shapes, choices=choices, calls=calls, budgeted=budgeted
    )


def maker(v: Variable) -> Apply:
    """The node that makes a value of the segment."""
    assert v.owner is not None
    return v.owner


def _evenly(values: Sequence[Variable]) -> list[Variable]:
    """The same values such that those of any first part lie evenly apart (van der Corput)."""
    bits = max(1, (len(values) - 1).bit_length())
    order = sorted(range(len(values)), key=lambda i: int(f"{i:0{bits}b}"[::-1], 2))
    return [values[i] for i in order]
