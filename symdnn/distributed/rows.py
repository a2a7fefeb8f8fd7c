"""Averages of gradients that are mostly rows: those of embeddings, and of other gathers.

The gradient of a table that is read by rows is a scatter of rows, which the backward pass makes
last, into zeros or into a dense part, such as that of a product with the same table, which it makes
first. The dense part is averaged in a bucket of its time. The ranks gather each other's rows, and
each adds all of them to the average. Where the rows are fewer bytes than the table, that moves
less, and less of it at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.graph.origin import Hints
from symdnn.graph.variable import Shared, Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, InBounds
from symdnn.ops.array.slices import FULL
from symdnn.ops.collective.reductions import AllGather
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.shape import DimShuffle, alloc, dims_of, dimshuffle, reshape
from symdnn.ops.elementwise.arithmetic import Add, Mul, Neg, TrueDiv, cast, clip
from symdnn.rewriting.facts import all_ones, is_zero
from symdnn.sharding.storage import layout_of
from symdnn.world import process
from symdnn.world.group import Group

__all__ = ["Moved", "Parted", "Rows", "agreed", "in_order", "mean_of", "parted"]


@dataclass(frozen=True)
class Rows:
    """A scatter: ``value`` is added to the rows ``index`` of a table by ``op``."""

    op: AdvancedIncSubtensor
    value: Variable
    index: Variable

    @property
    def axis(self) -> int:
        """The dimension of the table that the index is of."""
        return self.op.getter().arrays[0]

    @property
    def count(self) -> int | None:
        """How many rows there are; None if that is not known when a function is compiled."""
        shape = self.index.type.shape
        return None if None in shape else math.prod(shape)  # type: ignore[arg-type]

    def nbytes(self, table: Shared, itemsize: int) -> int:
        """Bytes of the rows, with elements of ``itemsize`` bytes, and of their numbers."""
        each = math.prod(n for d, n in enumerate(table.storage.shape) if d != self.axis)
        return (self.count or 0) * (each * itemsize + int(self.index.type.numpy.itemsize))

    def of_all(self, table: Shared, group: Group, dtype: str, said: str) -> Rows:
        """All ranks' rows, which move in ``dtype``.

        They are added in the same order on all ranks.
        """
        axis, depth = self.axis, self.index.type.ndim
        shape: list[Any] = list(dims_of(self.value))
        shape[axis : axis + depth] = [self.count]
        own = reshape(self.value, tuple(shape))
        order = list(range(len(shape)))
        order[0], order[axis] = axis, 0  # a gathering joins along the first dimension
        index = self._index_of_all(dims_of(table)[axis], group)
        every = AllGather(group)(dimshuffle(cast(own, dtype), order), hints=Hints(name=said))
        value = dimshuffle(cast(every, self.value.type.dtype), order)
        op = replace(self.op, in_bounds=True, same_bits=True)
        return replace(self, op=op, value=value, index=index)

    def _index_of_all(self, size: Any, group: Group) -> Variable:
        """The numbers of all ranks' rows of ``size``. They are in range: this rank's are checked,
        and an error of another one is known later than its numbers are here."""
        assert self.count is not None, "gathered rows are counted"
        index = reshape(self.index, (self.count,))
        if self.op.in_bounds:
            return AllGather(group)(index)
        every = AllGather(group)(InBounds()(index, cast(size, "int64")))
        low = 0 if index.type.dtype.startswith("u") else -size
        return cast(clip(every, low, size - 1), index.type.dtype)


@dataclass(frozen=True)
class Parted:
    """A gradient: its dense part (None: zeros), and its rows, which are gathered; ``said`` is why
    they are, or are not: then ``dense`` is all of it. ``counts`` are the numbers of all rows."""

    dense: Variable | None
    rows: tuple[Rows, ...] = ()
    said: str = ""
    counts: tuple[int | None, ...] = ()

    def moved(self, table: Shared, group: Group, dtype: str) -> list[Rows]:
        """The rows of all ranks, which move in ``dtype``."""
        return [rows.of_all(table, group, dtype, self.said) for rows in self.rows]


def mean_of(
    total: Variable | None, g: Variable, table: Shared, ranks: int, rows: Sequence[Rows] = ()
) -> Variable:
    """The average of the gradient ``g`` of a table from the sum of its dense part over the ranks
    (None: zeros) and all ranks' rows.

    Of 16-bit gradients it is rounded once, at last. The factor joins the kernel that reads the
    average. NCCL has its symmetric kernels, and uses multicast, for sums alone.
    """
    dtype = work_dtype(g.type.dtype)
    if total is None:
        total = alloc(np.zeros((), dtype), *dims_of(table))
    total = cast(total, dtype)
    for r in rows:
        total = r.op(total, cast(r.value, dtype), r.index)
    return cast(total * np.asarray(1 / ranks, total.type.numpy), g.type.dtype)


def parted(g: Variable, v: Shared, ranks: int, dtype: Any) -> Parted:
    """The parts of the gradient ``g`` of ``v``, which so many ranks average in a NumPy ``dtype``.

    Rows are gathered where that moves fewer bytes than the average of a table (half as many where
    there is a dense part), as far as is known when a function is compiled.
    """
    dense, rows = _terms(g)
    if not rows:
        return Parted(g)
    name, counts = v.name or "a table", tuple(r.count for r in rows)
    if not config.distributed.gather_rows:
        said = f"{name}: averaged as a whole, by the flag distributed.gather_rows"
    elif layout_of(v) is not None:
        said = f"{name}: averaged as a whole, since ranks share it out"
    elif any(n is None for n in counts):
        said = f"{name}: averaged as a whole, since the number of its rows is not known"
    else:
        table = math.prod(v.storage.shape) * dtype.itemsize
        # An average moves each byte twice. A dense part moves besides: that less is exposed is
        # worth half of that.
        most = (table if dense else 2 * table) / 1e6
        moved = sum(r.nbytes(v, dtype.itemsize) for r in rows) * ranks / 1e6
        words = f"{moved:.3g} MB of all ranks' rows, of at most {most:.3g}"
        if moved < most:
            total = sum(dense[1:], dense[0]) if dense else None
            return Parted(total, tuple(rows), f"{name}: rows are gathered: {words}", counts)
        said = f"{name}: averaged as a whole: {words}"
    return Parted(g, (), said, counts)


def agreed(parts: Sequence[Parted], grads: Sequence[Variable], group: Group) -> list[Parted]:
    """``parts``, as a whole where ranks that compiled other sizes have other numbers of rows."""
    own = [list(p.counts) for p in parts]
    world = process.current()
    if world.store is None or not any(own):
        return list(parts)
    everywhere = world.gather("numbers of rows", own, group)
    found = list(parts)
    for i, (p, g) in enumerate(zip(parts, grads, strict=True)):
        if any(other[i] != own[i] for other in everywhere):
            name = p.said.split(":")[0]
            said = f"{name}: averaged as a whole, since ranks have different numbers of its rows"
            found[i] = Parted(g, (), said, p.counts)
    return found


def _terms(v: Variable) -> tuple[list[Variable], list[Rows]]:
    """The terms of a sum that are dense, and those that are rows."""
    op: Any = None if v.owner is None else v.owner.op
    inputs: list[Variable] = [] if v.owner is None else list(v.owner.inputs)
    dense: list[Variable] = []
    rows: list[Rows] = []
    if isinstance(op, AdvancedIncSubtensor) and _adds_rows(op, inputs):
        dense, rows = ([], []) if is_zero(inputs[0]) else _terms(inputs[0])
        rows = [*rows, Rows(op, inputs[1], inputs[2])]
    elif isinstance(op, Add) and all(_alike(x, v) for x in inputs):
        for x in inputs:
            more, others = _terms(x)
            dense, rows = dense + more, rows + others
    elif isinstance(op, DimShuffle) and sorted(map(str, op.pattern)) == [
        str(d) for d in range(inputs[0].type.ndim)
    ]:
        terms, others = _terms(inputs[0])
        dense = [dimshuffle(d, op.pattern) for d in terms]
        rows = [_transposed(r, op.pattern) for r in others]
    elif isinstance(op, Neg):
        dense, rows = _mapped(inputs[0], lambda x: -x)
    elif isinstance(op, Mul | TrueDiv):
        x, factor = inputs
        if isinstance(op, Mul) and all_ones(x):
            x, factor = factor, x
        if all_ones(factor) and _alike(x, v) and factor.type.dtype == v.type.dtype:
            dense, rows = _mapped(x, lambda y: op(y, _wide(factor, y.type.ndim)))
    return (dense, rows) if rows else ([v], [])


def _mapped(
    x: Variable, f: Callable[[Variable], Variable]
) -> tuple[list[Variable], list[Rows]]:  # fmt: skip
    """The terms of a linear function of a sum."""
    dense, rows = _terms(x)
    return [f(d) for d in dense], [replace(r, value=f(r.value)) for r in rows]


def _transposed(r: Rows, order: Sequence[Any]) -> Rows:
    """The same for a table whose dimensions are in another order."""
    axis, depth = r.axis, r.index.type.ndim
    own = [[d + (depth - 1) * (d > axis)] for d in range(len(order))]
    own[axis] = list(range(axis, axis + depth))
    value = dimshuffle(r.value, [k for d in order for k in own[d]])
    return replace(r, op=replace(r.op, index=tuple(r.op.index[d] for d in order)), value=value)


def _wide(factor: Variable, ndim: int) -> Variable:
    return dimshuffle(dimshuffle(factor, ()), ("x",) * ndim)


def _alike(x: Variable, v: Variable) -> bool:
    same = x.type.dtype == v.type.dtype and x.type.ndim == v.type.ndim
    return bool(same and x.type.broadcastable == v.type.broadcastable)


def _adds_rows(op: AdvancedIncSubtensor, inputs: Sequence[Variable]) -> bool:
    """Whether one index array is that of one dimension, the others whole, and all are floats."""
    get, (x, y, *rest) = op.getter(), inputs
    one = len(get.arrays) == 1 and all(e in ("a", FULL) for e in op.index)
    if op.set_instead_of_inc or not one or len(rest) != 1 or not x.type.is_float:
        return False
    part: Any = get.infer(x.type, rest[0].type)
    return bool(part.broadcastable == y.type.broadcastable)


@dataclass(frozen=True)
class Moved:
    """What moves at once: a bucket of gradients, or (``rows``) the rows of one; their indices.

    ``nbytes`` are those of an average that takes as long, and ``depth`` the length of the longest
    chain of nodes before it.
    """

    indices: tuple[int, ...]
    nbytes: float
    depth: int
    rows: bool = False


def in_order(buckets: Sequence[Moved], rows: Sequence[Moved]) -> list[Moved]:
    """All of them, rows behind what is made before them.

    Rows that are made last go before buckets of as many bytes (half of all at most), which are
    computed while the rows move.
    """
    order = list(buckets)
    most = sum(b.nbytes for b in buckets) / 2
    for one in sorted(rows, key=lambda r: r.depth):
        at = 1 + max((k for k, b in enumerate(order) if b.depth <= one.depth), default=-1)
        behind = sum(b.nbytes for b in order[at:])
        while at > 0 and not order[at - 1].rows and behind < one.nbytes:
            behind += order[at - 1].nbytes
            if behind > most:
                break
            at -= 1
        order.insert(at, one)
    return order
