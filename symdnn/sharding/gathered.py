"""Programs whose parameters are gathered just before they are used, and freed after.

Readers of a bucket that are near each other share one all-gather; distant ones (in the backward
pass) have another. An all-gather starts when the work of the bucket before the previous one is
done. So at most two are alive: one in use, one in flight. Buckets of vectors, which are small and
which all layers read, are counted apart: they do not stand between those of two layers. A bucket
that keeps what is gathered has one all-gather for all its readers, and it starts at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from symdnn.graph.origin import make_written
from symdnn.graph.traverse import copy_node, leaves, substituted, toposort
from symdnn.graph.variable import Apply, Constant, Shared, Variable
from symdnn.ops.control.checkpoint import After
from symdnn.ops.elemwise import Elemwise
from symdnn.sharding.bucket import Bucket
from symdnn.sharding.storage import InParts, layout_of

Pairs = list[tuple[Shared, Variable]]
#: A bucket is gathered again after this many other buckets were used.
_FAR = 2


def with_gathers(outputs: Sequence[Variable], pairs: Pairs) -> tuple[list[Variable], Pairs]:
    """``outputs`` and updates of a program, of parts in place of the variables kept in parts."""
    news = [new for _, new in pairs]
    if not InParts.made[0] or not _buckets(
        [*leaves([*outputs, *news]), *(old for old, _ in pairs)]
    ):
        return list(outputs), pairs
    news, olds = _grouped(pairs)
    done = _Gathering([*outputs, *news]).done()
    return done[: len(outputs)], list(zip(olds, done[len(outputs) :], strict=True))


def _buckets(variables: Iterable[Variable]) -> dict[Bucket, None]:
    found = [layout_of(v) for v in variables]
    return {b: None for b in found if isinstance(b, Bucket)}


def _grouped(pairs: Pairs) -> tuple[list[Variable], list[Shared]]:
    """New values and the variables that get them: those of members are parts of new vectors."""
    news: dict[Bucket, dict[Shared, Variable]] = {}
    found: Pairs = []
    for old, new in pairs:
        layout = layout_of(old)
        if isinstance(layout, Bucket):
            news.setdefault(layout, {})[old] = new
        else:
            found.append((old, new))
    for bucket, some in news.items():
        found.append((bucket.own, bucket.part(some, {v: v for v in bucket.members})))
    return [new for _, new in found], [old for old, _ in found]


@dataclass(eq=False)
class _Cluster:
    """Readers of a bucket that are near each other; they read one gathering."""

    bucket: Bucket
    depth: int
    readers: list[Apply] = field(default_factory=list)
    views: dict[Shared, Variable] = field(default_factory=dict)
    gather: Apply | None = None
    #: The one of the same kind before it.
    before: _Cluster | None = None


def _is_of_vectors(bucket: Bucket) -> bool:
    return all(v.type.ndim < 2 for v in bucket.members)


class _Gathering:
    """The program rebuilt."""

    def __init__(self, outputs: Sequence[Variable]) -> None:
        self.outputs = list(outputs)
        self.order = toposort(self.outputs)
        #: Variables that depend only on parameters, and their buckets.
        self.derived: dict[Variable, dict[Bucket, None]] = {}
        for v in leaves(self.outputs):
            if found := _buckets([v]):
                self.derived[v] = found
        #: The length of the longest chain of nodes that need data.
        self.depth: dict[Variable, int] = {}
        self.place: dict[Apply, int] = {}
        self.work = [n for n in self.order if not self._is_derived(n)]
        self.clusters: list[_Cluster] = []
        self.cluster_of: dict[tuple[Apply | None, Bucket], _Cluster] = {}
        self._find_clusters()
        self.memo: dict[Variable, Variable] = {}
        self.stage: dict[Variable, int] = {}
        self._copies: dict[tuple[Variable, tuple[int, ...]], Variable] = {}

    def _is_derived(self, node: Apply) -> bool:
        """Whether a node depends only on parameters. If not, its depth is recorded."""
        inputs = [v for v in node.inputs if not isinstance(v, Constant)]
        pure = not (node.op.ordered or node.op.unmergeable)
        if inputs and pure and all(v in self.derived for v in inputs):
            buckets = {b: None for v in inputs for b in self.derived[v]}
            self.derived.update((v, buckets) for v in node.outputs)
            return True
        self.place[node] = 1 + max((self.depth.get(v, 0) for v in node.inputs), default=0)
        self.depth.update(dict.fromkeys(node.outputs, self.place[node]))
        return False

    def _find_clusters(self) -> None:
        last = 1 + max(self.place.values(), default=0)
        uses: list[tuple[int, Apply | None, Bucket]] = []
        for n in self.work:
            found = {b: None for v in n.inputs for b in self.derived.get(v, ())}
            uses += [(self.place[n], n, b) for b in found]
        direct = {b: None for v in self.outputs for b in self.derived.get(v, ())}
        uses += [(last, None, b) for b in direct]
        uses.sort(key=lambda use: use[0])  # stable: equal on all ranks
        present: dict[Bucket, _Cluster] = {}
        since: dict[Bucket, set[Bucket]] = {}
        latest: dict[bool, _Cluster] = {}
        for depth, node, bucket in uses:
            kind = _is_of_vectors(bucket)
            far = not bucket.keeps_gathered and len(since.get(bucket, ())) >= _FAR
            if bucket not in present or far:
                made = _Cluster(bucket, depth, before=latest.get(kind))
                present[bucket] = latest[kind] = made
                self.clusters.append(made)
            since[bucket] = set()
            for other, seen in since.items():
                if other is not bucket and _is_of_vectors(other) == kind:
                    seen.add(bucket)
            if node is not None:
                present[bucket].readers.append(node)
            self.cluster_of[node, bucket] = present[bucket]

    # -- the new program ---------------------------------------------------------------------

    def done(self) -> list[Variable]:
        """The outputs."""
        waiting: dict[Variable, list[int]] = {}
        for c, cluster in enumerate(self.clusters):
            v = self._before(cluster)
            if v is None:
                self._gather(c)
            else:
                waiting.setdefault(v, []).append(c)
        # Sorted by depth, the inputs of an all-gather come before its readers.
        for node in sorted(self.work, key=self.place.__getitem__):
            self._rebuild(node)
            for v in node.outputs:
                for c in waiting.pop(v, ()):
                    self._gather(c, self.memo.get(v, v))
        found = [self._read(v, None) for v in self.outputs]
        self._order_effects(found)
        return found

    def _gather(self, number: int, after: Variable | None = None) -> None:
        cluster = self.clusters[number]
        own: Variable = cluster.bucket.own
        joined = cluster.bucket.joined(own if after is None else After()(own, after))
        cluster.gather = joined.owner
        cluster.views = cluster.bucket.views(joined)
        self.stage[joined] = number

    def _before(self, cluster: _Cluster) -> Variable | None:
        """A value that exists when the work of the previous cluster starts; None for the first two,
        if there is no such value, and where memory is no reason to wait."""
        if cluster.bucket.keeps_gathered or not (cluster.before and cluster.before.before):
            return None
        readers = cluster.before.readers
        heavy = [n for n in readers if not isinstance(n.op, Elemwise)]
        for node in [*heavy[:1], *readers[:1]]:
            data = [v for v in node.inputs if v in self.depth]
            if data:
                latest = max(data, key=self.depth.__getitem__)
                if self.depth[latest] < cluster.depth:
                    return latest
        return None

    def _rebuild(self, node: Apply) -> None:
        inputs = [self._read(v, node) for v in node.inputs]
        if all(a is b for a, b in zip(inputs, node.inputs)):
            return
        copy = copy_node(node, inputs)
        self.memo.update(zip(node.outputs, copy.outputs, strict=True))

    def _read(self, v: Variable, reader: Apply | None) -> Variable:
        if v not in self.derived:
            return self.memo.get(v, v)
        clusters = [self.cluster_of[reader, b] for b in self.derived[v]]
        key = v, tuple(map(id, clusters))
        if key not in self._copies:
            views: Mapping[Variable, Variable] = {
                p: view for c in clusters for p, view in c.views.items()
            }
            self._copies[key] = substituted([v], views)[0]
        return self._copies[key]

    def _order_effects(self, outputs: Sequence[Variable]) -> None:
        """Let each gathering come before the effects of the cluster before it, and after those of
        earlier ones; all other effects keep their order."""
        gathers = [c.gather for c in self.clusters]
        numbers = {g: i for i, g in enumerate(gathers)}
        order = toposort(outputs)
        stage: dict[Variable, int] = {}
        chain: list[Apply] = []
        stages: dict[Apply, int] = {}
        for n in order:
            last = max((stage.get(v, -1) for v in n.inputs), default=-1)
            stages[n] = max(last, numbers.get(n, -1))
            stage.update(dict.fromkeys(n.outputs, stages[n]))
        chain = [n for n in order if n.op.ordered and n not in numbers]
        merged: list[Apply] = []
        left = 0
        for n in chain:
            while left < len(gathers) and left <= stages[n] + 1:
                merged.append(gathers[left])  # type: ignore[arg-type]
                left += 1
            merged.append(n)
        merged += gathers[left:]  # type: ignore[arg-type]
        for n in merged:
            if stages[n] >= 0:  # the others are the user's own nodes, and come first anyway
                n.written = make_written()
