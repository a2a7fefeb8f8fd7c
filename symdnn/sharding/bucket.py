"""Variables joined to one vector, of which each rank keeps an equal part (ZeRO, FSDP).

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models";
Zhao et al. 2023, "PyTorch FSDP".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from symdnn.errors import InputError
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.values.storage import Storage
from symdnn.graph.variable import Shared, Variable, constant
from symdnn.ops.array.join import concatenate
from symdnn.ops.collective.reductions import AllGather
from symdnn.ops.core.shape import reshape
from symdnn.sharding.storage import Array, InParts, Layout, layout_of
from symdnn.world import process
from symdnn.world.group import Group


class Bucket(Layout):
    """Variables of one dtype, one behind the other in a vector that is padded to equal parts."""

    def __init__(self, members: Sequence[Shared], group: Group, name: str) -> None:
        self.members, self.group = tuple(members), group
        self.index = group.index(process.current().place.rank, name)
        self.shapes = {v: tuple(v.storage.shape) for v in members}
        self.starts: dict[Shared, int] = {}
        length = 0
        for v in members:
            self.starts[v] = length
            length += _count(self.shapes[v])
        #: The number of elements of a rank's part, and of those behind the last.
        self.count = -(-length // group.size)
        self.pad = self.count * group.size - length
        self.name, self._readers = name, dict[Shared, Any]()
        #: Whether what a program gathers lives on until the backward pass, which reads it again.
        self.keeps_gathered = False
        self._own: Shared | None = None

    @property
    def own(self) -> Shared:
        """The elements of this rank, once :meth:`keep_parts` was called."""
        assert self._own is not None, f"{self.name} keeps no parts"
        return self._own

    def keep_parts(self) -> None:
        """From now on the members' values are those parts; what this rank had of others is freed.

        All ranks have equal values before.
        """
        type_ = TensorType(self.members[0].type.dtype, (self.count,))
        self._own = Shared(
            type_, Storage(np.zeros(self.count, type_.numpy), borrow=True), self.name
        )
        for v in self.members:
            self.keep(v, np.asarray(v.get_value(borrow=True)))
            before, shape = v.storage, self.shapes[v]
            v.storage = InParts(self, v, shape, before.dtype)
            before.set(np.empty((0,) * len(shape), before.dtype))

    @property
    def place(self) -> slice:
        """Where the part is in the vector."""
        return slice(self.index * self.count, (self.index + 1) * self.count)

    def views(self, joined: Variable) -> dict[Shared, Variable]:
        """The members' values in the whole vector."""
        found = {}
        for v in self.members:
            at = self.starts[v]
            found[v] = reshape(joined[at : at + _count(self.shapes[v])], self.shapes[v])
        return found

    def joined(self, own: Variable | None = None) -> Variable:
        """The whole vector, gathered from all ranks."""
        return AllGather(self.group)(self.own if own is None else own)

    def part(self, news: Mapping[Shared, Variable], olds: Mapping[Shared, Variable]) -> Variable:
        """The next value of ``own``, of whole next values of members; others stay ``olds``."""
        return self.sliced({v: news.get(v, olds[v]) for v in self.members})

    def sliced(self, values: Mapping[Shared, Variable]) -> Variable:
        """This rank's part of whole values: of each member only the elements in it."""
        pieces = []
        for v in self.members:
            first, last = self.bounds(v)
            if first < last:
                at = first + self.place.start - self.starts[v]
                pieces.append(values[v].flatten()[at : at + last - first])
        behind = self.count - sum(b - a for a, b in map(self.bounds, self.members))
        return flat(pieces, behind, self.members[0].type.numpy)

    def whole(self, member: Shared) -> Array:
        """The value of a member, by a collective."""
        if member not in self._readers:
            value = self.views(self.joined())[member]
            label = f"the whole of {member}"
            self._readers[member] = operator("function")([], value, name=label)
        return np.asarray(self._readers[member]())

    def keep(self, member: Shared, array: Array) -> None:
        """Of a whole value, this rank's part."""
        first, last = self.bounds(member)
        if first < last:
            mine, offset = self.own.get_value(), self.place.start - self.starts[member]
            mine[first:last] = np.ravel(array)[first + offset : last + offset]
            self.own.set_value(mine)

    def bounds(self, member: Shared) -> tuple[int, int]:
        """The place of a member's elements in this rank's part; empty where it has none."""
        start = self.starts[member] - self.place.start
        first, last = max(start, 0), min(start + _count(self.shapes[member]), self.count)
        return (first, last) if first < last else (0, 0)


def _count(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=int))


def flat(values: Sequence[Variable], pad: int, dtype: Any = None) -> Variable:
    """All elements in one vector, with ``pad`` zeros behind."""
    dtype = dtype or values[0].type.numpy
    pieces = [v.flatten() for v in values]
    return concatenate([*pieces, *([constant(np.zeros(pad, dtype))] if pad else [])])


def made_whole(variables: Sequence[Shared], but: Sequence[Bucket] = ()) -> None:
    """Give each rank the whole values of ``variables``, but those of some buckets; a collective.

    A bucket is dissolved as a whole. Functions that read its parts must be compiled again.
    """
    buckets: dict[Bucket, None] = {}
    for v in variables:
        layout = layout_of(v)
        if layout is None or layout in but:
            continue
        if not isinstance(layout, Bucket):
            raise InputError(f"{v}: its dimensions are shared out; it takes no shard=")
        buckets[layout] = None
    for bucket in buckets:
        values = {v: bucket.whole(v) for v in bucket.members}
        for v, value in values.items():
            v.storage = Storage(value)
