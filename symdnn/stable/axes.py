"""Attention whose scores have other axes than (batch, heads, queries, keys), in this order.

Axes of windows or groups may stand beside batch and heads, keys before queries, heads last, and
several query heads may be rows of one product with the same keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from symdnn.graph.dims import product
from symdnn.graph.variable import Apply, Variable, as_variable
from symdnn.ops.core.shape import DimShuffle, Reshape, alloc
from symdnn.ops.elementwise.arithmetic import Cast
from symdnn.rewriting.facts import made_by, node_of
from symdnn.rewriting.rewrite import Context
from symdnn.stable.heads import broadcast_along, unchecked
from symdnn.stable.views import behind

#: The last two of three axes exchanged.
_SWAPPED = (0, 2, 1)


@dataclass(frozen=True)
class Joined:
    """What is behind views.

    One of what is before and behind them has three axes, each of which joins ``groups`` of the
    other one's.
    """

    array: Variable
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Second:
    """The product of weights and values: its node, which operand the weights are, their axes.

    With ``at`` 1 it is the transposed one, of values and weights that stand transposed.
    """

    node: Apply
    at: int
    groups: tuple[tuple[int, ...], ...]

    @property
    def stack(self) -> tuple[int, ...]:
        """The axes of the scores that its stack joins."""
        return self.groups[0]

    @property
    def rows(self) -> tuple[int, ...]:
        """Those of its rows."""
        return self.groups[1 + self.at]

    @property
    def terms(self) -> tuple[int, ...]:
        """Those over which it sums."""
        return self.groups[2 - self.at]


@dataclass(frozen=True)
class Axes:
    """The axes of scores, and their sizes.

    ``shared`` are those of queries and keys both, ``rows`` those of queries alone: heads that share
    keys, and time as the last. ``keys`` is that of the keys.
    """

    shared: tuple[int, ...]
    rows: tuple[int, ...]
    keys: int
    sizes: tuple[Any, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """The axes in attention's order."""
        return (*self.shared, *self.rows, self.keys)

    def dims(self, axes: Iterable[int]) -> list[Any]:
        """The sizes of these axes."""
        return [self.sizes[a] for a in axes]

    def _lead(self, heads: bool) -> list[tuple[int, ...]]:
        """The axes of the batch, and of the heads of queries or of keys."""
        batch = self.shared[:-1] or self.shared
        return [batch, self.shared[len(batch) :] + (self.rows[:-1] if heads else ())]

    def operands(
        self, first: Joined, second: Second, context: Context
    ) -> tuple[Axes, list[Variable]]:
        """Query, key and value, (batch, heads, time, features), and the axes for which they are.

        Axes along which key and value are repeated are the query's alone.
        """
        stack, *others = first.groups
        product, turned = node_of(first.array), others[1] == (self.keys,)
        query = self._whole(
            product.inputs[not turned], (*stack, *others[not turned]), not turned, context
        )
        key = self._whole(product.inputs[turned], (*stack, self.keys), turned, context)
        values = second.node.inputs[1 - second.at]
        value = self._whole(values, (*second.stack, self.keys), second.at == 1, context)
        axes, pair = self._without_repeats([key, value], context)
        return axes, [axes._four(query, True), *(axes._four(x, False) for x in pair)]

    def _whole(self, x: Variable, axes: Sequence[int], turned: bool, context: Context) -> Variable:
        """An operand of a product with the axes of the scores that it has, and features.

        ``x`` is a stack of matrices whose stack and rows join ``axes``; ``turned`` says that they
        stand transposed.
        """
        stack = [a for a in axes if a in self.shared]
        rows = [a for a in axes if a not in self.shared]
        s, r, features = len(stack), len(rows), context.shapes.dims(x)[1 if turned else 2]
        sizes, own = self.dims(stack), self.dims(rows)
        wanted = [*sizes, features, *own] if turned else [*sizes, *own, features]
        place = {a: i + (i >= s and turned) for i, a in enumerate((*stack, *rows))}
        last = (self.keys,) if self.keys in rows else self.rows
        order = [place[a] for a in (*self.shared, *last)]
        return _with_sizes(x, wanted, context).dimshuffle(*order, s if turned else s + r)

    def _without_repeats(
        self, pair: list[Variable], context: Context
    ) -> tuple[Axes, list[Variable]]:
        """Keys and values without axes along which both are repeated: these are the query's."""
        axes = self
        while len(axes.shared) > 1:
            last = len(axes.shared) - 1
            once = [broadcast_along(x, last, context) for x in pair]
            found = [x for x in once if x is not None]
            if len(found) < len(pair):
                break
            pair = [x.dimshuffle(*(a for a in range(x.type.ndim) if a != last)) for x in found]
            axes = replace(axes, shared=axes.shared[:-1], rows=(axes.shared[-1], *axes.rows))
        return axes, pair

    def _four(self, x: Variable, heads: bool) -> Variable:
        """An operand as (batch, heads, time, features); ``heads`` says that it is the query."""
        lead = [product(self.dims(axes)) for axes in self._lead(heads)]
        time = self.sizes[self.rows[-1] if heads else self.keys]
        return x.reshape((*lead, time, x.type.shape[-1] or x.shape[x.type.ndim - 1]))

    def mask(self, x: Variable, repeat: bool, context: Context) -> Variable | None:
        """What broadcasts over the scores, as it does over (batch, heads, queries, keys).

        Without ``repeat`` it is None where sizes of 1 stand beside others in batch or heads.
        """
        ones = {a for a, d in enumerate(x.type.shape) if d == 1}
        lead = [() if ones.issuperset(axes) else axes for axes in self._lead(True)]
        short = {a for axes in lead for a in axes if a in ones and self.sizes[a] != 1}
        sizes = list(context.shapes.dims(x))
        if short:
            if not repeat:
                return None
            sizes = [self.sizes[a] if a in short else d for a, d in enumerate(sizes)]
            x = alloc(x, *sizes)
        last = (self.rows[-1], self.keys)
        whole = x.dimshuffle(*(a for axes in lead for a in axes or ("x",)), *last)
        if all(len(axes) < 2 for axes in lead):
            return whole
        joined = (product([sizes[a] for a in axes]) for axes in lead)
        return whole.reshape((*joined, *(sizes[a] for a in last)))

    def divided(self, x: Variable, second: Second) -> Variable:
        """Attention's result as the array of the second product."""
        own = self.order[:-1]
        features = x.type.shape[3] or x.shape[3]
        whole = x.reshape((*self.dims(own), features))
        whole = whole.dimshuffle(*(own.index(a) for a in (*second.stack, *second.rows)), len(own))
        sizes = product(self.dims(second.stack)), product(self.dims(second.rows)), features
        found = whole.reshape(sizes)
        return found.dimshuffle(*_SWAPPED) if second.at else found


def axes_of(
    first: Joined, second: Second, order: tuple[int, ...], keys: int, sizes: tuple[Any, ...]
) -> Axes | None:
    """The axes of scores of these ``sizes`` that are normalised along ``keys``.

    ``order`` is that of the softmax. It is None where both products don't fit together.
    """
    stack, *others = first.groups
    if (keys,) not in others or not second.groups or second.terms != (keys,):
        return None
    rows = others[others[0] == (keys,)]
    ones = [x.type.shape[0] == 1 for x in (*node_of(first.array).inputs, *second.node.inputs)]
    if set(second.stack) != set(stack) or set(second.rows) != set(rows) or len(set(ones)) > 1:
        return None
    rows = tuple(sorted(rows, key=order.index))
    found = Axes(stack, rows, keys, sizes)
    if found.order == order:
        return found
    time = max(rows, key=lambda a: sizes[a] if isinstance(sizes[a], int) else inf)
    return replace(found, rows=(*(a for a in rows if a != time), time))


def _with_sizes(x: Variable, sizes: Sequence[Any], context: Context) -> Variable:
    """``x`` reshaped; the source of its own reshape where that has these sizes."""
    x = unchecked(x)
    if made_by(x, Reshape):
        source = as_variable(node_of(x).inputs[0])
        own = context.shapes.dims(source)
        if len(own) == len(sizes) and all(map(context.shapes.same, own, sizes)):
            return source
    return x.reshape(tuple(sizes))


def joined_axes(outer: Variable, of_outer: bool, context: Context) -> Joined:
    """What is behind views of ``outer`` that nothing else reads: two dimshuffles and a reshape.

    With ``of_outer`` it is ``outer`` that has three axes. Without such axes there are no groups.
    """
    first, v = turned(outer, context)
    sizes = context.shapes.dims(v)
    v = behind(v, context, Reshape)
    inside = context.shapes.dims(v)
    last, v = turned(v, context)
    if of_outer:
        runs = _runs(inside, sizes, context)
        return Joined(v, tuple(tuple(last[a] for a in runs[i]) for i in first) if runs else ())
    runs = _runs(sizes, inside, context)
    places = sorted(range(len(last)), key=last.__getitem__)
    return Joined(v, tuple(tuple(first.index(a) for a in runs[i]) for i in places) if runs else ())


def turned(v: Variable, context: Context) -> tuple[tuple[int, ...], Variable]:
    """(for each axis of ``v`` that of its operand, the operand) of a dimshuffle without ones."""
    v = behind(v, context, Cast)
    plain = tuple(range(v.type.ndim))
    if not made_by(v, DimShuffle) or not context.only_reader(v):
        return plain, v
    pattern = node_of(v).op.pattern
    if tuple(sorted(map(str, pattern))) != tuple(map(str, plain)):
        return plain, v
    return pattern, behind(as_variable(node_of(v).inputs[0]), context, Cast)


def _runs(
    many: Sequence[Any], three: Sequence[Any], context: Context
) -> list[tuple[int, ...]] | None:
    """For each of three sizes the neighbouring ones of ``many`` whose product it is."""
    n, same = len(many), context.shapes.same
    if len(three) != 3:
        return None
    for i in range(n - 2, 0, -1):
        for j in range(n - 1, i, -1):
            ends = [(0, i), (i, j), (j, n)]
            if all(same(product(many[a:b]), size) for (a, b), size in zip(ends, three)):
                return [tuple(range(a, b)) for a, b in ends]
    return None
