"""Optimisers whose work is shared out over ranks (ZeRO: Rajbhandari et al. 2020).

Parameters with equal settings are joined to one vector, of which each rank has an equal part. The
gradients are summed by ``reduce_scatter``, so that a rank gets those of its part; it updates only
its part, with its part of the state. Then ``all_gather`` sends the new values to all ranks. If
parameters are sharded too, programs gather them where they use them. Where a step keeps what is
gathered, tables of which it reads few rows are not worth that: each rank has the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.compile.function import function
from symdnn.distributed.gradients import DataParallel
from symdnn.distributed.rows import Moved, Parted, Rows, mean_of
from symdnn.errors import InputError
from symdnn.graph.typing import Array
from symdnn.graph.variable import Shared, Variable, constant
from symdnn.nn.optimizers.groups import Parameter
from symdnn.ops.array.join import concatenate
from symdnn.ops.array.reduce import sum as total
from symdnn.ops.collective.functions import all_gather, all_reduce
from symdnn.ops.collective.reductions import ReduceScatter
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.shape import alloc, dimshuffle
from symdnn.ops.elementwise.arithmetic import cast, maximum, sqr, sqrt
from symdnn.ops.elementwise.comparison import eq
from symdnn.sharding.axis import AxisLayout
from symdnn.sharding.bucket import Bucket, flat, made_whole
from symdnn.sharding.storage import layout_of


@dataclass(frozen=True)
class Part(Parameter):
    """This rank's part of some joined parameters: ``variable`` is the first of them."""

    joined: tuple[Parameter, ...] = ()
    own: Variable | None = None
    bucket: Bucket | None = None

    @property
    def geometry(self) -> Bucket:
        """The place of the parameters in the part."""
        assert self.bucket is not None, "made with it"
        return self.bucket

    @property
    def value(self) -> Variable:
        """The elements of this rank."""
        assert self.own is not None, "made with its elements"
        return self.own

    @property
    def sizes(self) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
        """The shape of its state."""
        return (self.geometry.count,), (self.geometry.count,)

    def norms(self, *values: Variable) -> list[Variable]:
        """For each value a vector of the norms of the joined parameters, over all ranks."""
        bounds = [self.geometry.bounds(p.variable) for p in self.joined]
        own = [
            concatenate([dimshuffle(total(sqr(v[a:b])), ["x"]) for a, b in bounds]) for v in values
        ]
        return [sqrt(s) for s in all_reduce(own, "sum", self.geometry.group)]

    def spread(self, v: Variable) -> Variable:
        """A number of each joined parameter, for each of its elements."""
        bounds = [self.geometry.bounds(p.variable) for p in self.joined]
        pieces = [alloc(v[i], b - a) for i, (a, b) in enumerate(bounds)]
        behind = self.geometry.count - sum(b - a for a, b in bounds)
        return concatenate([*pieces, constant(np.zeros(behind, v.type.numpy))])


class Parts:
    """The parts of all parameters, and their gradients on this rank."""

    def __init__(
        self, name: str, parameters: Sequence[Parameter], grads: Sequence[Variable],
        parallel: DataParallel,
    ) -> None:  # fmt: skip
        self.name, self.group = name, parallel.ranks
        for p in parameters:
            if isinstance(layout_of(p.variable), AxisLayout):
                raise InputError(
                    f"{name}: shard={parallel.shard!r} does not go with nn.parallel.shard, by "
                    f"which ranks share out {p.name}; leave shard= away"
                )
        self.parallel = parallel
        #: Whether the parameters are sharded, too.
        self.keeps = parallel.shard == "parameters"
        self._like, self._grads = [p.variable for p in parameters], list(grads)
        self._parted = [Parted(g) for g in grads]
        if parallel.keep_gathered:
            self._parted = parallel.parted(grads, self._like)
        #: Tables that stay whole, by their indices.
        self.tables = {i: parameters[i] for i, p in enumerate(self._parted) if p.rows}
        shared = [i for i in range(len(parameters)) if i not in self.tables]
        found = _buckets([parameters[i] for i in shared], [grads[i] for i in shared], parallel)
        self._found = [tuple(shared[k] for k in bucket) for bucket in found]
        self._sent = [
            parallel.reduced_in(g if p.dense is None else p.dense)
            for g, p in zip(grads, self._parted)
        ]
        joined = [[parameters[i] for i in bucket] for bucket in self._found]
        buckets = [
            Bucket([p.variable for p in ps], self.group, f"{name}.part{i}")
            for i, ps in enumerate(joined)
        ]
        if self.keeps:
            buckets = _kept(buckets, parallel.keep_gathered)
        self.parts: list[Part] = []
        for number, (ps, bucket) in enumerate(zip(joined, buckets, strict=True)):
            own = bucket.own if self.keeps else bucket.sliced({v: v for v in bucket.members})
            first = ps[0]
            part = Part(
                f"part{number}", first.variable, first.group, first.options, first.lr_scale,
                first.decays, tuple(ps), own, bucket,
            )  # fmt: skip
            self.parts.append(part)

    def gradients(self) -> Iterator[tuple[Parameter, Variable]]:
        """Each part with this rank's part of its gradients, and tables that stay whole with theirs.

        A part's is given once as many bytes of later buckets have begun to move: what is computed
        for them covers it. So its new values can be sent during the backward pass.
        """
        waiting: list[tuple[Part, Variable, int, int]] = []
        begun, parts = 0, dict(zip(self._found, self.parts, strict=True))
        totals: dict[int, Variable] = {}
        rows: dict[int, list[Rows]] = {}
        for moved in self._moved():
            if moved.indices not in parts:
                (i,) = moved.indices
                said, sent = self._parted[i].said, self._sent[i]
                if moved.rows:
                    rows[i] = self._parted[i].moved(self._like[i], self.group, sent.type.dtype)
                else:
                    totals[i] = self.parallel.reduced([sent], said)[0]
                continue
            part, sents = parts[moved.indices], [self._sent[i] for i in moved.indices]
            whole, like = flat(sents, part.geometry.pad), self._grads[moved.indices[0]]
            reduced = ReduceScatter(self.group, "sum", self.parallel.as_rounded)(whole)
            g = mean_of(reduced, like, part.variable, self.group.size)
            nbytes = part.geometry.count * reduced.type.numpy.itemsize
            begun += nbytes
            waiting.append((part, g, nbytes, begun))
            for one in [w for w in waiting if begun - w[3] >= w[2]]:
                waiting.remove(one)
                yield one[:2]
        yield from (one[:2] for one in waiting)
        for i, p in self.tables.items():
            like, ranks = self._grads[i], self.group.size
            yield p, mean_of(totals.get(i), like, p.variable, ranks, rows[i])

    def _moved(self) -> list[Moved]:
        """What moves, in order: the dense parts of tables among the buckets of their time."""
        if not self.tables:
            return [Moved(bucket, 0, 0) for bucket in self._found]
        dense = [i for i in self.tables if self._parted[i].dense is not None]
        return self.parallel.moved(self._found, self._sent, self._parted, self._like, dense)

    def everywhere(self, good: Variable) -> Variable:
        """Whether a bool scalar is true on all ranks."""
        return eq(all_reduce(cast(good, "float32"), "min", self.group), np.float32(1))

    def clipped(
        self, of: Sequence[Parameter], grads: Sequence[Variable], limit: Any
    ) -> list[Variable]:
        """The parts of gradients ``of`` parameters times ``min(1, limit / norm)``, by the norm over
        all ranks."""
        wide = "float64" if any(g.type.dtype == "float64" for g in grads) else "float32"
        own: list[Any] = [[], []]
        for p, g in zip(of, grads, strict=True):
            own[isinstance(p, Part)].append(total(sqr(cast(g, wide))))
        whole, parts = own
        if parts:
            whole = [*whole, all_reduce(sum(parts[1:], parts[0]), "sum", self.group)]
        norm = sqrt(sum(whole[1:], whole[0]))
        bound = cast(limit, wide) if isinstance(limit, Variable) else constant(
            np.asarray(limit, wide)
        )  # fmt: skip
        factor = bound / maximum(norm, bound)
        return [cast(cast(g, wide) * factor, g.type.dtype) for g in grads]

    def whole(self, part: Part, new: Variable) -> list[tuple[Shared, Variable]]:
        """The updates of a part: of its parameters, from all ranks' new parts, or of itself."""
        if self.keeps:
            return [(part.geometry.own, new)]
        return list(part.geometry.views(part.geometry.joined(new)).items())

    # -- files -------------------------------------------------------------------------------

    def names(self, state: Mapping[str, Shared]) -> list[str]:
        """The names of states of which a rank has a part."""
        return [n for n in state if self._part_of(n) is not None]

    def gathered(self, state: Mapping[str, Shared]) -> dict[str, Array]:
        """The states of parts by the names and shapes that they have without parts; all ranks call
        this."""
        mine = self.names(state)
        values = function([], [all_gather(state[n], group=self.group) for n in mine])()
        found: dict[str, Array] = {}
        for name, value in zip(mine, values, strict=True):
            part, word = self._named(name)
            at = 0
            for p in part.joined:
                shape = p.variable.storage.shape
                piece = value[at : at + _size(p)].reshape(shape)
                found[f"{self.name}.{p.name}.{word}"] = np.array(piece)
                at += _size(p)
        return found

    def own_values(
        self, values: Mapping[str, Any], state: Mapping[str, Shared]
    ) -> dict[str, Array]:
        """``values`` with this rank's parts of those that :meth:`gathered` returned, on any number
        of ranks."""
        left, found = dict(values), {}
        for name in self.names(state):
            part, word = self._named(name)
            pieces = []
            for p in part.joined:
                full = f"{self.name}.{p.name}.{word}"
                if full not in left:
                    raise InputError(f"{self.name}: the state has no {full}")
                pieces.append(np.ravel(left.pop(full)))
            joined = np.pad(np.concatenate(pieces), (0, part.geometry.pad))
            found[name] = joined[part.geometry.place]
        return {**left, **found}

    def _part_of(self, name: str) -> Part | None:
        known = {f"{self.name}.{p.name}": p for p in self.parts}
        return known.get(name.rpartition(".")[0])

    def _named(self, name: str) -> tuple[Part, str]:
        part = self._part_of(name)
        assert part is not None, "asked before"
        return part, name.rpartition(".")[2]


def _size(p: Parameter) -> int:
    return int(np.prod(p.variable.storage.shape, dtype=int))


def _kept(buckets: Sequence[Bucket], keep_gathered: bool) -> list[Bucket]:
    """The buckets, which keep parts from now on; those that did so before are taken again."""
    found: list[Bucket] = []
    for bucket in buckets:
        before = layout_of(bucket.members[0])
        same = isinstance(before, Bucket) and before.group == bucket.group
        again = same and before.members == bucket.members  # type: ignore[union-attr]
        found.append(before if again else bucket)  # type: ignore[arg-type]
    made_whole([v for b in found for v in b.members], found)
    for bucket in found:
        bucket.keeps_gathered = keep_gathered
        if layout_of(bucket.members[0]) is not bucket:
            bucket.keep_parts()
    return found


def _buckets(
    parameters: Sequence[Parameter], grads: Sequence[Variable], parallel: DataParallel
) -> list[list[int]]:
    """Indices of parameters that are joined: of equal settings, in the order of their gradients.

    Vectors are apart: with mixed precision matrices, and their gradients, move in 16 bits.
    """
    kinds: dict[Any, list[int]] = {}
    for i, (p, g) in enumerate(zip(parameters, grads, strict=True)):
        stored = p.variable.type.dtype
        wide = work_dtype(stored)
        vector = p.variable.type.ndim < 2
        key = (p.group, p.lr_scale, p.decays, stored, g.type.dtype, wide, vector)
        kinds.setdefault(key, []).append(i)
    found: list[list[int]] = []
    for same in kinds.values():
        made = parallel.buckets([grads[i] for i in same], [parameters[i].variable for i in same])
        found += [[same[k] for k in bucket] for bucket in made]
    return found
