"""Values of a plan that are computed again, so that its memory keeps to a bound.

The forward order of nodes is kept. A value with a long gap between two of its reads is dropped
there, and computed again, once, before the second read: of values that are there, or of others that
are then computed again too. The choice bounds the memory by the least estimated time.

Cheap values per byte go first, and among equally cheap ones those that lie evenly apart (T. Chen et
al., "Training deep nets with sublinear memory cost", 2016); what proves needless is kept after all.
Each choice is judged by the live bytes of the whole order, the last one by the plan itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log2

from symdnn.compile.plan.memory import plan_memory
from symdnn.compile.plan.node_costs import seconds_of
from symdnn.compile.plan.specialise import Specialised, make_call
from symdnn.compile.plan.views import byte_count
from symdnn.errors import OverBudget
from symdnn.graph.type import OpaqueType
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.control.checkpoint import After

__all__ = ["Recomputed", "eager", "ordered_for_memory", "within_budget"]

#: A gap of fewer nodes is no reason to compute a value again.
_SHORTEST_GAP = 4
#: The most choices that are tried along the order of costs, and of single values after it.
_MOST_PREFIXES, _MOST_SINGLES = 64, 400
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
    for _ in range(_MOST_ROUNDS):
        dropped = search.best(bound)
        if dropped is None:
            break
        found = search.rebuilt(dropped)
        new = _with_nodes(spec, found)
        arena = plan_memory(new).arena_bytes
        least = min(least, arena)
        if arena + made <= budget:
            said = Recomputed(budget, before + made, arena + made, found.counts(), found.share)
            return replace(new, recomputed=said)
        # Placement leaves holes: aim lower by as much.
        bound -= max(arena + made - budget, 1)
    smallest = _with_nodes(spec, search.rebuilt(search.smallest()))
    least = min(least, plan_memory(smallest).arena_bytes)
    raise OverBudget(
        f"memory_budget={budget}: a call needs {before + made} bytes beside its arguments and "
        f"shared variables, and by computing values again {least + made} is the least that was "
        f"found ({made} of them for results). Give that much, a smaller batch, or fewer results"
    )


def _made_bytes(spec: Specialised) -> int:
    memory = plan_memory(spec)
    leaving = {id(memory.views[v].buffer): memory.views[v].buffer for v in spec.segment.outputs}
    return sum(b.nbytes for b in leaving.values() if b.kind in ("made", "outside"))


def eager(spec: Specialised) -> Specialised:
    """The segment in an order in which nodes that free as much as they take run at once.

    A gradient with respect to a weight is computed where its operands are, say, in place of at the
    end.
    """
    nodes = spec.segment.nodes
    size = {v: _bytes(spec, v) for n in nodes for v in n.outputs}
    readers: dict[Variable, list[Apply]] = {}
    for n in nodes:
        for v in dict.fromkeys(n.inputs):
            readers.setdefault(v, []).append(n)
    left = {v: len(found) for v, found in readers.items()}
    leaving = set(spec.segment.outputs)
    late = {new for new, _ in spec.segment.updates}
    missing = {n: len({v.owner for v in n.inputs if v in size}) for n in nodes}
    done: dict[Apply, None] = {}

    def gain(n: Apply) -> int:
        freed = sum(
            size.get(v, 0) for v in dict.fromkeys(n.inputs) if left[v] == 1 and v not in leaving
        )
        return freed - sum(size[v] for v in n.outputs if v not in leaving)

    def fixed(n: Apply) -> bool:
        op = n.op
        moves = op.unmergeable or op.host_callback or not size_known(n)
        return moves or any(v in late for v in n.outputs)

    def size_known(n: Apply) -> bool:
        return all(spec.shapes.get(v) is not None for v in n.outputs)

    def run(first: Apply) -> None:
        stack = [first]
        while stack:
            n = stack.pop()
            if n in done:
                continue
            done[n] = None
            for v in dict.fromkeys(n.inputs):
                left[v] -= 1
            after = dict.fromkeys(r for v in n.outputs for r in readers.get(v, ()))
            for r in after:
                missing[r] -= 1
            beside = dict.fromkeys(
                r for v in n.inputs if left[v] == 1 for r in readers[v] if r not in done
            )
            for r in (*beside, *after):
                if r not in done and not missing[r] and not fixed(r) and gain(r) > 0:
                    stack.append(r)

    for n in nodes:
        run(n)
    order = tuple(done)
    return spec if order == nodes else replace(spec, segment=replace(spec.segment, nodes=order))


def _bytes(spec: Specialised, v: Variable) -> int:
    shape = spec.shapes.get(v)
    return 0 if shape is None or isinstance(v.type, OpaqueType) else byte_count(v, shape)


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
        self.size = {v: _bytes(spec, v) for n in self.nodes for v in n.outputs}
        self.leaving = set(spec.segment.outputs)
        self.is_view = {n: self._is_view(n) for n in self.nodes}
        self.seconds = {
            n: 0.0 if self.is_view[n] else seconds_of(spec.call(n), spec.segment.place)
            for n in self.nodes
        }
        self.total = sum(self.seconds.values()) or 1.0
        self.reads: dict[Variable, list[int]] = {}
        for i, n in enumerate(self.nodes):
            for v in dict.fromkeys(n.inputs):
                if v in self.size:
                    self.reads.setdefault(v, []).append(i)
        self.last = self._last_reads()
        self.gaps = {n: g for n in self.nodes if (g := self._gap(n)) is not None}
        self.ranked = self._ranked()
        self._tried: list[tuple[int, _Order]] | None = None

    def _is_view(self, n: Apply) -> bool:
        return n.op.views.get(0) is not None and len(n.outputs) == 1

    def _last_reads(self) -> dict[Variable, int]:
        """The last step that reads each value, itself or by a view of it."""
        last = {v: max(reads) for v, reads in self.reads.items()}
        for n in reversed(self.nodes):
            if self.is_view[n]:
                source = n.inputs[n.op.views[0]]
                last[source] = max(last.get(source, -1), last.get(n.outputs[0], self.step[n]))
        return last

    def _may_run_again(self, n: Apply) -> bool:
        op = n.op
        if op.unmergeable or op.host_callback or op.private_draws or isinstance(op, After):
            return False
        opaque = any(isinstance(v.type, OpaqueType) for v in (*n.inputs, *n.outputs))
        known = all(self.spec.shapes.get(v) is not None for v in n.outputs)
        return known and not opaque

    def _gap(self, n: Apply) -> tuple[int, int] | None:
        """The longest stretch of steps in which the results of a node lie unread."""
        if not self._may_run_again(n) or any(v in self.leaving for v in n.outputs):
            return None
        steps = sorted({self.step[n], *(i for v in n.outputs for i in self.reads.get(v, ()))})
        pairs = [(b - a, a, b) for a, b in pairwise(steps)]
        if not pairs:
            return None
        length, a, b = max(pairs)
        return (a, b) if length >= _SHORTEST_GAP else None

    def _ranked(self) -> list[Apply]:
        """Candidates: cheap per byte first, equally cheap ones evenly apart."""
        found: list[tuple[int, float, Apply]] = []
        wanted = [
            n for n in self.gaps if not self.is_view[n] and sum(self.size[v] for v in n.outputs)
        ]
        for n in wanted:
            a, _ = self.gaps[n]
            cost = self.seconds[n] + self._of_makers(n, a)
            per_byte = cost / sum(self.size[v] for v in n.outputs)
            found.append((round(log2(max(per_byte, 1e-18))), 0.0, n))
        groups: dict[int, list[Apply]] = {}
        for bucket, _, n in found:
            groups.setdefault(bucket, []).append(n)
        return [n for b in sorted(groups) for n in _evenly(groups[b])]

    def _of_makers(self, n: Apply, gap: int) -> float:
        """The time of what has to run again for ``n`` since nothing keeps it anyway."""
        seconds, stack, seen = 0.0, [n], {n}
        while stack:
            for v in stack.pop().inputs:
                maker = v.owner
                if maker is None or maker in seen or v not in self.size:
                    continue
                if self.last.get(v, -1) > self.gaps[n][1] or v in self.leaving:
                    continue
                seen.add(maker)
                seconds += self.seconds[maker]
                stack.append(maker)
        return seconds

    # -- orders ---------------------------------------------------------------------------------

    def best(self, bound: float) -> frozenset[Apply] | None:
        """Values to drop so that the live bytes stay in ``bound``, for the least time; or None."""
        fits = [(o.seconds, k) for k, o in self._prefixes() if o.peak <= bound]
        if not fits:
            return None
        dropped = list(self.ranked[: min(fits)[1]])
        # What need not be dropped is kept, the most costly first.
        for n in sorted(dropped, key=lambda n: -self.seconds[n])[:_MOST_SINGLES]:
            without = frozenset(m for m in dropped if m is not n)
            if self.rebuilt(without).peak <= bound:
                dropped.remove(n)
        return frozenset(dropped)

    def smallest(self) -> frozenset[Apply]:
        """The values to drop for the fewest live bytes that were found."""
        _, k = min((o.peak, k) for k, o in self._prefixes())
        return frozenset(self.ranked[:k])

    def _prefixes(self) -> list[tuple[int, _Order]]:
        if self._tried is None:
            count = len(self.ranked)
            steps = min(count, _MOST_PREFIXES)
            counts = sorted({round(count * i / steps) for i in range(steps + 1)} if steps else {0})
            self._tried = [(k, self.rebuilt(frozenset(self.ranked[:k]))) for k in counts]
        return self._tried

    def rebuilt(self, dropped: frozenset[Apply]) -> _Order:
        """The order in which the results of ``dropped`` nodes are computed again."""
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

    def __init__(self, search: _Search, dropped: frozenset[Apply]) -> None:
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
        if maker in self.dropped:
            return step > self.search.gaps[maker][0]
        if self._of_gone_view(maker, step):
            return True
        past = step > self.search.last.get(v, -1)
        return past and v not in self.search.leaving and self.search._may_run_again(maker)

    def _of_gone_view(self, maker: Apply, step: int) -> bool:
        if not self.search.is_view[maker]:
            return False
        return self._gone(maker.inputs[maker.op.views[0]], step)

    def _there(self, n: Apply, step: int) -> list[Variable]:
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


def _evenly(nodes: Sequence[Apply]) -> list[Apply]:
    """The same nodes such that those of any first part lie evenly apart (van der Corput)."""
    bits = max(1, (len(nodes) - 1).bit_length())
    order = sorted(range(len(nodes)), key=lambda i: int(f"{i:0{bits}b}"[::-1], 2))
    return [nodes[i] for i in order]
