"""Variables of which each rank keeps a part along one dimension (tensor parallel)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.errors import ShapeMismatch
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.values.storage import Storage
from symdnn.graph.variable import Shared, Variable
from symdnn.ops.array.join import concatenate
from symdnn.ops.collective.functions import all_gather
from symdnn.sharding.storage import Array, InParts, Layout
from symdnn.world import process
from symdnn.world.group import Group


@dataclass(frozen=True)
class Split:
    """Which dimension is shared out, each rank having an equal part of each of its ``sections``.

    Sections are sizes that add up to the dimension's: queries, keys and values that one product
    makes, say. Without them it is one section.
    """

    axis: int
    sections: tuple[int, ...] = ()

    def moved(self, axis: int) -> Split:
        """The same of another dimension."""
        return Split(axis, self.sections)


class AxisLayout(Layout):
    """One variable of which a rank keeps the part of its number along a dimension."""

    def __init__(self, member: Shared, split: Split, group: Group, what: str) -> None:
        self.members, self.group, self.split, self.what = (member,), group, split, what
        self.index = group.index(process.current().place.rank, what)
        self.shape = tuple(member.storage.shape)
        sections = split.sections or (self.shape[split.axis],)
        if sum(sections) != self.shape[split.axis] or any(s % group.size for s in sections):
            raise ShapeMismatch(
                what, f"a dimension {split.axis} that {group.size} ranks divide",
                f"{member} of shape {self.shape}, in sections {sections}",
                "Choose other sizes, or fewer ranks",
            )  # fmt: skip
        local = list(self.shape)
        local[split.axis] //= group.size
        static = [d if s is not None else None for d, s in zip(local, member.type.shape)]
        type_ = TensorType(member.type.dtype, static)
        value = sliced(member.get_value(borrow=True), split, group.size, self.index)
        self._own = Shared(type_, Storage(np.ascontiguousarray(value)), member.name)
        self._reader: Any = None

    @property
    def own(self) -> Shared:
        return self._own

    def whole(self, member: Shared) -> Array:
        if self._reader is None:
            value = joined(self.own, self.split, self.group, self.shape[self.split.axis])
            label = f"the whole of {member}"
            self._reader = operator("function")([], value, name=label)
        return np.asarray(self._reader())

    def keep(self, member: Shared, array: Array) -> None:
        part = sliced(array, self.split, self.group.size, self.index)
        self.own.set_value(np.ascontiguousarray(part))


def keep_along(member: Shared, split: Split, group: Group, what: str) -> AxisLayout:
    """From now on each rank of ``group`` keeps a part of ``member``; its value is read and written
    as a whole. All ranks have equal values before."""
    layout = AxisLayout(member, split, group, what)
    before = member.storage
    member.storage = InParts(layout, member, layout.shape, before.dtype)
    before.set(np.empty((0,) * len(layout.shape), before.dtype))
    return layout


def _sections(split: Split, size: int) -> list[tuple[int, int]]:
    """Where each section begins, and its size."""
    found, at = [], 0
    for s in split.sections or (size,):
        found.append((at, s))
        at += s
    return found


def sliced(x: Any, split: Split, size: int, index: int) -> Any:
    """The part of number ``index`` of an array, or of a variable whose dimension is static."""
    ndim = x.ndim if isinstance(x, np.ndarray) else x.type.ndim
    shape: Sequence[Any] = x.shape if isinstance(x, np.ndarray) else x.type.shape
    parts = []
    for start, length in _sections(split, shape[split.axis]):
        part = length // size
        cut = [slice(None)] * ndim
        cut[split.axis] = slice(start + index * part, start + (index + 1) * part)
        parts.append(x[tuple(cut)])
    if len(parts) == 1:
        return parts[0]
    join: Any = np.concatenate if isinstance(x, np.ndarray) else concatenate
    return join(parts, axis=split.axis)


def joined(x: Variable, split: Split, group: Group, size: int | None) -> Variable:
    """The whole of a value that is shared out; ``size`` is that of the dimension, needed where
    there are sections."""
    found = all_gather(x, split.axis, group)
    if len(split.sections) < 2:
        return found
    local, parts = sum(split.sections) // group.size, []
    for start, length in _sections(split, sum(split.sections)):
        for r in range(group.size):
            begin = r * local + start // group.size
            cut = [slice(None)] * x.type.ndim
            cut[split.axis] = slice(begin, begin + length // group.size)
            parts.append(found[tuple(cut)])
    return concatenate(parts, axis=split.axis)
