"""Collectives in two halves, so that the nodes between them run meanwhile; gatherings rounded."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.config import config
from symdnn.graph.origin import inherit
from symdnn.graph.traverse import copy_node
from symdnn.graph.type import numpy_dtype
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.index import Subtensor
from symdnn.ops.collective.base import Collective
from symdnn.ops.collective.overlapped import (
    AllReduceStart,
    AllReduceWait,
    AllSucceeded,
    MoveStart,
    MoveWait,
    StreamStart,
    StreamWait,
)
from symdnn.ops.collective.reductions import AllGather, AllReduce, ReduceScatter
from symdnn.ops.control.checkpoint import After
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.shape import DimShuffle, Reshape
from symdnn.ops.elementwise.arithmetic import Cast, cast
from symdnn.rewriting.rewrite import Context, graph_rewrite, node_rewrite


@node_rewrite(AllReduce, phase="transfer", tags=("fast_compile",), name="overlap_all_reduce")
def overlap(node: Apply[AllReduce], context: Context) -> Sequence[Variable] | None:
    """A reduction to its start, and a wait that the program puts as late as it can."""
    if node.op.group.size == 1 or context.target.kind != "cpu":
        return _of_each_dtype(node) or _on_a_stream(node, context)
    started = AllReduceStart(node.op.group, node.op.op)(*node.inputs)
    return AllReduceWait(len(node.inputs))(started, *node.inputs)


@node_rewrite(
    AllGather, ReduceScatter, phase="transfer", tags=("fast_compile",), name="overlap_moves"
)
def overlap_moves(
    node: Apply[Collective], context: Context
) -> Variable | Sequence[Variable] | None:
    """Likewise a gathering, or a reduction to parts."""
    if node.op.group.size == 1 or context.target.kind != "cpu":
        return _on_a_stream(node, context)
    return MoveWait()(*MoveStart(node.op.group, node.op)(*node.inputs))


@node_rewrite(AllSucceeded, phase="transfer", tags=("fast_compile",), name="overlap_agreement")
def overlap_agreement(node: Apply[AllSucceeded], context: Context) -> Sequence[Variable] | None:
    """On a GPU the agreement before updates, likewise."""
    return _on_a_stream(node, context) if context.target.kind != "cpu" else None


def _of_each_dtype(node: Apply[AllReduce]) -> list[Variable] | None:
    """A bucket of several dtypes as one of each, where copy engines move it: they take one sum."""
    dtypes = list(dict.fromkeys(v.type.dtype for v in node.inputs))
    if len(dtypes) == 1 or str(config.distributed.cta_policy) != "zero":
        return None
    found: dict[int, Variable] = {}
    for k, dtype in enumerate(dtypes):
        own = {i: v for i, v in enumerate(node.inputs) if v.type.dtype == dtype}
        with inherit(node.origin, node.hints, (*node.written, k)):
            found.update(zip(own, node.op.make_node(*own.values()).outputs, strict=True))
    return [found[i] for i in range(len(node.inputs))]


def _on_a_stream(node: Apply[Collective], context: Context) -> Sequence[Variable] | None:
    """Both halves on a GPU, of several ranks, if the program has other nodes to run meanwhile."""
    if node.op.group.size == 1 or context.inner or not config.distributed.overlap:
        return None
    started = StreamStart(node.op.group, node.op).make_node(*node.inputs)
    if context.capabilities.kernel_reason(started, context.target.kind) is not None:
        return None  # the host runs it
    return StreamWait(len(started.outputs)).make_node(*started.outputs, *node.inputs).outputs


@graph_rewrite("layout", tags=("fast_compile",), name="round_before_gathering")
def round_before_gathering(context: Context) -> None:
    """What all readers of a gathering round to 16 bits is rounded by each rank, and then gathered:
    half of the bytes move. 8-bit numbers move as they are."""
    for node in context.fgraph.toposort():
        if not isinstance(node.op, AllGather) or _itemsize(node.inputs[0]) <= 2:
            continue
        if found := _roundings(node.outputs[0], context):
            with inherit(node.origin, node.hints, node.written):
                whole = node.op(cast(node.inputs[0], found[0].type.dtype))
            pairs = [(v, _viewed(v, node.outputs[0], whole)) for v in found]
            context.replace(pairs, "round_before_gathering")


@graph_rewrite("layout", tags=("fast_compile",), name="wait_for_rounded")
def wait_for_rounded(context: Context) -> None:
    """What waits for a value that is rounded to 16 bits waits for the rounded one. As a reader of
    the value itself it would be why a kernel has to store that, too."""
    for node in context.fgraph.toposort():
        if isinstance(node.op, After):
            x, *values = node.inputs
            rounded = [_rounded(_viewed_value(v), context) for v in values]
            if any(r is not None for r in rounded):
                waited = [v if r is None else r for r, v in zip(rounded, values, strict=True)]
                with inherit(node.origin, node.hints, node.written):
                    waiting = node.op.make_node(x, *waited)
                context.replace([(node.outputs[0], waiting.outputs[0])], "wait_for_rounded")


def _viewed_value(v: Variable) -> Variable:
    """What ``v`` is a view of."""
    while v.owner is not None and _is_view(v.owner):
        v = v.owner.inputs[0]
    return v


def _rounded(v: Variable, context: Context) -> Variable | None:
    """What a float32 value, or a view of it, is rounded to."""
    if v.type.dtype != "float32":
        return None
    for user, _ in context.fgraph.users(v):
        if user is not None and isinstance(user.op, Cast):
            if is_narrow_float(user.outputs[0].type.dtype):
                return user.outputs[0]
            continue
        found = _rounded(user.outputs[0], context) if user is not None and _is_view(user) else None
        if found is not None:
            return found
    return None


def _is_view(node: Apply) -> bool:
    known = all(isinstance(v, Constant) for v in node.inputs[1:])
    return isinstance(node.op, DimShuffle | Reshape) and known


def _itemsize(v: Variable) -> int:
    return numpy_dtype(v.type.dtype).itemsize


def _roundings(v: Variable, context: Context) -> list[Variable]:
    """The values that views of ``v`` are rounded to; none if it is read in another way, too."""
    found: list[Variable] = []
    for user, index in context.fgraph.users(v):
        out = None if user is None else user.outputs[0]
        if user is None or out is None or index != 0:
            return []
        if isinstance(user.op, Cast) and is_narrow_float(out.type.dtype):
            found.append(out)
        elif isinstance(user.op, DimShuffle | Reshape | Subtensor):
            some = _roundings(out, context)
            if not some:
                return []
            found += some
        else:
            return []
    return found if len({f.type.dtype for f in found} - {v.type.dtype}) == 1 else []


def _viewed(v: Variable, old: Variable, new: Variable) -> Variable:
    """``v``, which rounds a view of ``old``, as that view of ``new``."""
    if v is old:
        return new
    assert v.owner is not None, "made of it"
    x, *others = v.owner.inputs
    inner = _viewed(x, old, new)
    return (
        inner if isinstance(v.owner.op, Cast) else copy_node(v.owner, [inner, *others]).outputs[0]
    )


RULES = (overlap, overlap_moves, overlap_agreement, round_before_gathering, wait_for_rounded)
