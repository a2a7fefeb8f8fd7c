"""Batches of calls: helpers for methods :meth:`~symdnn.graph.op.Op.batch` of ops.

A lane is one call of the batch. A stacked operand has an entry for each lane along dimension 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from symdnn.graph.dims import Dim
from symdnn.graph.op import Axes, Batched, Op, Vars
from symdnn.graph.operators import operator
from symdnn.graph.origin import Written
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Constant, Variable


@dataclass(frozen=True)
class Vectorizing:
    """What a user who vectorises a function has said, for the ops that it meets.

    ``randomness`` is ``"error"``, ``"different"`` or ``"same"``. Draws written before ``since`` are
    not of the function: they are one draw for all lanes unless they depend on the lane. (None: none
    are of the function.)
    """

    lanes: Dim
    randomness: str
    since: Written | None = ()

    def covers(self, written: Written) -> bool:
        """Whether a node of this number belongs to the function."""
        return self.since is not None and written >= self.since


_vectorizing: ContextVar[Vectorizing | None] = ContextVar("vectorizing", default=None)
_called: ContextVar[bool] = ContextVar("called", default=False)


def vectorizing() -> Vectorizing | None:
    """What holds while a user's function is vectorised; None elsewhere."""
    return _vectorizing.get()


@contextmanager
def vectorizing_by(how: Vectorizing | None) -> Iterator[None]:
    """A block in which graphs are batched by ``how``."""
    token = _vectorizing.set(how)
    try:
        yield
    finally:
        _vectorizing.reset(token)


def in_a_lane() -> bool:
    """Whether a function that will be vectorised is being called, with variables for one lane."""
    return _called.get()


@contextmanager
def calling_for_lanes() -> Iterator[None]:
    """A block in which a function that will be vectorised is called."""
    token = _called.set(True)
    try:
        yield
    finally:
        _called.reset(token)


def sizes_of(x: Variable) -> list[Dim]:
    """The shape as ints where static, else integer scalars."""
    return [operator("shape_i")(x, i) if d is None else d for i, d in enumerate(x.type.shape)]


def lanes_of(inputs: Vars, axes: Axes) -> Dim:
    """The number of lanes: an int if a type has it, else an integer scalar.

    A draw of which no input is stacked may be asked for numbers of each lane: then it is that of
    :func:`vectorizing`.
    """
    found = [v for v, a in zip(inputs, axes, strict=True) if a is not None]
    if not found and (how := vectorizing()) is not None:
        return how.lanes
    tensors = [v for v in found if isinstance(v.type, TensorType)]
    known = [v.type.shape[0] for v in tensors if v.type.shape[0] is not None]
    return known[0] if known else operator("shape_i")(tensors[0], 0)


def same_for_all(v: Variable) -> Variable:
    """``v`` with a new first dimension of size 1, which broadcasts over the lanes."""
    if isinstance(v, Constant):
        return v.reshaped((1, *v.data.shape))
    return operator("dimshuffle")(v, ["x", *range(v.type.ndim)])


def spread(v: Variable, lanes: Dim) -> Variable:
    """``v``, which all lanes share, repeated for each lane."""
    return operator("alloc")(v, lanes, *sizes_of(v))


def stacked(v: Variable, axis: int | None, lanes: Dim) -> Variable:
    """``v`` with an entry for each lane."""
    return spread(v, lanes) if axis is None else v


def on_lanes(op: Op, inputs: Vars, axes: Axes, same: Collection[int] = ()) -> Batched:
    """``op`` on stacked operands, with stacked results.

    Its host inputs and the inputs ``same`` must be equal for all lanes, else it is a loop.
    """
    fixed = {*op.host_inputs, *same}
    if any(axes[i] is not None for i in fixed):
        return None
    lanes = lanes_of(inputs, axes)
    given = [
        v if i in fixed else stacked(v, a, lanes)
        for i, (v, a) in enumerate(zip(inputs, axes, strict=True))
    ]
    outputs = op.make_node(*given).outputs
    return outputs, [0] * len(outputs)


# -- lanes as a part of another dimension ---------------------------------------------------------


def fold(v: Variable, at: int, parts: int = 1) -> Variable:
    """A stacked ``v`` with the lanes joined into dimension ``at`` of the entries.

    The lane is the outer index of that dimension, or of each of its ``parts`` equal parts.
    """
    lanes, *dims = sizes_of(v)
    size = dims[at]
    if parts > 1:
        split = [lanes, *dims[:at], parts, size // parts, *dims[at + 1 :]]
        v, at = operator("reshape")(v, split), at + 1
    order = [*range(1, at + 1), 0, *range(at + 1, v.type.ndim)]
    place = at - (parts > 1)
    joined = [*dims[:place], lanes * size, *dims[place + 1 :]]
    return operator("reshape")(operator("dimshuffle")(v, order), joined)


def unfold(y: Variable, at: int, lanes: Dim, size: Dim, parts: int = 1) -> Variable:
    """The inverse of :func:`fold`: a stack whose lanes have ``size`` in dimension ``at``."""
    dims = sizes_of(y)
    middle = [parts, lanes, size // parts] if parts > 1 else [lanes, size]
    split = operator("reshape")(y, [*dims[:at], *middle, *dims[at + 1 :]])
    place = at + (parts > 1)
    rest = (i for i in range(split.type.ndim) if i != place)
    moved = operator("dimshuffle")(split, [place, *rest])
    if parts == 1:
        return moved
    return operator("reshape")(moved, [lanes, *dims[:at], size, *dims[at + 1 :]])


def on_folded(
    op: Op, inputs: Vars, axes: Axes, places: Sequence[int | None], outs: Sequence[int | None]
) -> Batched:
    """``op``, which treats each example separately, on the examples of all lanes at once.

    ``places`` and ``outs`` are the dimensions of inputs and outputs that count the examples. An
    input without one must be the same for all lanes, else it is a loop. An output without one is
    the same for all lanes.
    """
    if any(a is not None and p is None for a, p in zip(axes, places, strict=True)):
        return None
    lanes = lanes_of(inputs, axes)
    given: list[Variable] = []
    size: Any = None
    for v, a, p in zip(inputs, axes, places, strict=True):
        if p is None:
            given.append(v)
            continue
        whole = stacked(v, a, lanes)
        size = sizes_of(whole)[p + 1] if size is None else size
        given.append(fold(whole, p))
    outputs = op.make_node(*given).outputs
    found = [y if p is None else unfold(y, p, lanes, size) for y, p in zip(outputs, outs)]
    kept = [p is None and isinstance(y.type, TensorType) for y, p in zip(outputs, outs)]
    return found, [None if k else 0 for k in kept]


def joined(v: Any, at: int) -> Any:
    """``v``, a variable or an array, with dimensions ``at`` and ``at + 1`` as one."""
    dims = sizes_of(v) if isinstance(v, Variable) else v.shape
    return v.reshape((*dims[:at], dims[at] * dims[at + 1], *dims[at + 2 :]))


def on_parts(
    op: Op, inputs: Vars, axes: Axes, places: Sequence[int | None], outs: Sequence[int],
    new: bool,
) -> Batched:  # fmt: skip
    """``op``, which has dimensions of parts that do not meet, with the lanes among these parts.

    ``places`` and ``outs`` are these dimensions of inputs and outputs; an input without one is the
    same for all lanes. If they are ``new``, the entries of the lanes have none: each is a part.
    """
    lanes = lanes_of(inputs, axes)
    size: Dim = 1
    given: list[Variable] = []
    for v, a, p in zip(inputs, axes, places, strict=True):
        if p is not None:
            v = stacked(v, a, lanes)
            if new:
                order = range(v.type.ndim)
                v = operator("dimshuffle")(v, [*order[: p + 1], "x", *order[p + 1 :]])
            size = sizes_of(v)[p + 1]
            v = fold(v, p)
        given.append(v)
    outputs = op.make_node(*given).outputs
    found = [unfold(y, p, lanes, size) for y, p in zip(outputs, outs)]
    return [joined(y, p) if new else y for y, p in zip(found, outs)], [0] * len(found)
