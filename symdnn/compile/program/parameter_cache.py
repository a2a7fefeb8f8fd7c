"""The parameter cache: values that depend only on parameters are computed when these change.

Filters scaled by a folded batch norm, and parameters cast to 16 bits or reordered to another
layout, are equal in every call of a function that does not update them (prepacking). They are
computed by a segment of their own before the others. It runs only if a shared variable that it
reads has changed (:attr:`~symdnn.graph.values.storage.Storage.version`): by ``set_value`` or by
another function's update. While a user has borrowed a variable's memory, it runs at each call. Its
results stay at the same addresses, so that captured graphs stay valid.

There is no cache for a function whose results all depend only on shared variables, nor for one
with a lazy choice, of which a branch may never run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from symdnn.compile.program.program import Segment
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.place import Place
from symdnn.graph.traverse import toposort
from symdnn.graph.type import TensorType
from symdnn.graph.values.storage import Storage, writes
from symdnn.graph.variable import Apply, Constant, Shared, Variable
from symdnn.ops.array.index import Subtensor
from symdnn.ops.array.join import Join
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.array.slices import is_slice
from symdnn.ops.array.view import Copy, ForgetShape
from symdnn.ops.control.control import IfElse
from symdnn.ops.core.shape import DimShuffle, Reshape, ShapeI, SpecifyType
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.fused import FusedComplex, FusedElemwise, FusedReduce
from symdnn.ops.nn.channels_last import Reorder

#: Ops without an effect that never fail: an error would be raised in the first call only.
_CACHEABLE_OPS = (
    Elemwise, FusedElemwise, FusedComplex, FusedReduce, Reduce, Reorder, Join, Copy,
    DimShuffle, Reshape, SpecifyType, ForgetShape,
)  # fmt: skip

_count = count(1)


# -- the cached values -----------------------------------------------------------------------------


def cacheable_values(
    fgraph: FunctionGraph, device_of: Callable[[Apply], Place], place: Place
) -> list[Variable]:
    """Values that depend only on parameters, and that nodes which depend on more read.

    ``place`` is the device on which they are computed and stored.
    """
    order = fgraph.toposort()
    if any(isinstance(n.op, IfElse) for n in order):
        return []
    varying: set[Variable] = {*fgraph.inputs, *fgraph.updates.values()}
    sizes: set[Apply] = set()
    fixed: set[Apply] = set()
    read: dict[Variable, None] = {}
    for n in order:
        if any(v in varying for v in n.inputs):
            varying.update(n.outputs)
            read.update((v, None) for v in n.inputs if v.owner in fixed)
        elif _is_size(n, sizes):
            sizes.add(n)
        elif device_of(n) == place and _is_cacheable(n, fixed, sizes):
            fixed.add(n)
        else:  # of parameters alone, but made in each call
            varying.update(n.outputs)
            read.update((v, None) for v in n.inputs if v.owner in fixed)
    found = (_behind_views(v, fixed) for v in read)
    values = list(dict.fromkeys(v for v in found if v is not None))
    return _without_those_made_anyway(values, fgraph.outputs)


def _without_those_made_anyway(
    values: list[Variable], outputs: Sequence[Variable]
) -> list[Variable]:
    """``values`` less those whose node runs in each call, for another of its results."""
    while True:
        order = set(toposort(outputs, set(values)))
        kept = [v for v in values if v.owner not in order]
        if len(kept) == len(values):
            return values
        values = kept


def _is_size(node: Apply, sizes: set[Apply]) -> bool:
    """Whether a node is a size of a parameter, or arithmetic on such sizes."""
    if isinstance(node.op, ShapeI):
        return isinstance(node.inputs[0], Shared)
    return isinstance(node.op, Elemwise) and all(
        isinstance(v, Constant) or v.owner in sizes for v in node.inputs
    )


def _is_cacheable(node: Apply, fixed: set[Apply], sizes: set[Apply]) -> bool:
    known = all(
        isinstance(v, Constant)
        or (isinstance(v, Shared) and not v.type.is_integer_scalar)
        or v.owner in fixed
        or (v.owner in sizes and i in node.op.host_inputs)
        for i, v in enumerate(node.inputs)
    )
    tensors = all(isinstance(v.type, TensorType) for v in node.outputs)
    never_fails = isinstance(node.op, _CACHEABLE_OPS) or _is_checked_index(node)
    return known and tensors and never_fails and not node.op.unmergeable


def _is_checked_index(node: Apply) -> bool:
    """Whether a node indexes by slices, and by ints within sizes that are known."""
    op = node.op
    return isinstance(op, Subtensor) and all(
        is_slice(e) or (e != "?" and size is not None)
        for e, size in zip(op.index, node.inputs[0].type.shape, strict=True)
    )


def _behind_views(v: Variable, fixed: set[Apply]) -> Variable | None:
    """The value to cache: the source of a view; None for a view of a parameter itself."""
    while (node := v.owner) in fixed and node is not None:
        source = node.op.views.get(0)
        if source is None or (isinstance(node.op, Reshape) and _is_view(node.inputs[source])):
            return v  # a reshape of a view may be a copy
        v = node.inputs[source]
    return None


def _is_view(v: Variable) -> bool:
    return v.owner is not None and bool(v.owner.op.views)


# -- their state -----------------------------------------------------------------------------------


class ParameterCache:
    """The results of a cached segment, with the versions of the shared variables that it read.

    ``device_of`` is the place where a shared variable is read.
    """

    def __init__(self, segment: Segment, device_of: Callable[[Variable], Place]) -> None:
        read = dict.fromkeys((*segment.inputs, *segment.sources))
        self._storages: list[tuple[Storage, Place]] = [
            (v.storage, device_of(v)) for v in read if isinstance(v, Shared)
        ]
        self.outputs = segment.outputs
        self.left: Sequence[Any] = ()
        #: Changes whenever the values change.
        self.version = 0
        self._versions: list[int | None] | None = None
        self._writes = -1

    def _read(self) -> list[int | None]:
        return [storage.version_on(place) for storage, place in self._storages]

    @property
    def is_current(self) -> bool:
        """Whether no shared variable has changed since the values were computed."""
        now = writes()
        if now == self._writes:
            return True
        if self._versions is None or self._read() != self._versions:
            return False
        self._writes = now
        return True

    def renew(self, compute: Callable[[], Sequence[Any]]) -> None:
        """Compute the values again by ``compute``. If it fails, the next call tries again."""
        now, versions = writes(), self._read()
        self._versions, self._writes, self.version = None, -1, next(_count)
        self.left = compute()  # a change since the versions were read shows in the next call
        if None not in versions:
            self._versions, self._writes = versions, now

    def values(self) -> Iterator[tuple[Variable, Any]]:
        """The values by variable."""
        return zip(self.outputs, self.left, strict=True)

    def versions(self) -> Mapping[Variable, Callable[[], int | None]]:
        """For each value a function that returns its version, as ``Storage.version`` does."""
        return dict.fromkeys(self.outputs, lambda: self.version)
