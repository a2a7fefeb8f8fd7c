"""Channels last inside, changes of the order only at the border.

Tensor cores read (N, \\*sizes, C); programs say (N, C, \\*sizes). Convolutions that gain from it
get the first order, and the change is moved to where it costs least: through elementwise nodes,
pooling, normalisation, joins and reductions, forward and gradient alike. What is least is found for
the whole graph at once, as a cut (:mod:`symdnn.opt.layout.layout_cut`): a value that its maker has
in one order and a reader wants in the other costs its bytes once. Elementwise nodes read the other
order themselves, so there it costs less; a value with at most one dimension that moves (the bias of
a channel, 1x1 kernels) costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.op import Op
from symdnn.graph.origin import inherit
from symdnn.graph.target import Target
from symdnn.graph.type import numpy_dtype
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.view import ForgetShape
from symdnn.ops.core.shape import DimShuffle, ShapeI, SpecifyType, dimshuffle
from symdnn.ops.lowered.lowered import Lowered, neutral_of
from symdnn.ops.nn.channels_last import (
    Reorder,
    first_order,
    is_image,
    last_order,
    moved_axis,
)
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight
from symdnn.opt.layout.layout_cut import Network
from symdnn.opt.layout.layout_follow import absorbs, follows, is_kernel, rebuilt
from symdnn.opt.layout.layout_sizes import GuessedSizes
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["RULES", "choose_layout", "layout_text"]

#: What reading the other order in place costs, against a copy of its own.
_ABSORBED = 0.4


@graph_rewrite("layout", tags=("cudnn", "onednn", "channels_last"), name="choose_layout")
def choose_layout(context: Context) -> None:
    """Convolutions and what surrounds them work on channels-last images where that is faster."""
    wish = _wish(context)
    if wish == "nchw" or context.inner:
        return
    order = context.fgraph.toposort()
    wanting = {n for n in order if _wants(n, context.target, wish == "nhwc")}
    if wanting:
        last = _cheapest(context, order, wanting)
        if context.target.kind == "cpu":
            last -= {n for n in last if _only_checks(context.fgraph, n, last)}
            last -= {n for n in last if _is_alone(context.fgraph, n, last)}
        _Rebuild(context.fgraph, order, last, context.target.kind == "cuda").replace()


def layout_text(fgraph: FunctionGraph) -> str:
    """How many operations have which layout, for reports; empty where all are as programs say."""
    ops = [node.op for node in fgraph.nodes if isinstance(node.op, Lowered)]
    layouts = [op.layout for op in ops if "NHWC" in op.layouts]
    last = layouts.count("NHWC")
    if not last:
        return ""
    changes = sum(isinstance(node.op, Reorder) for node in fgraph.nodes)
    return (
        f"images: {last} operations with channels last (NHWC), {layouts.count('NCHW')} not; "
        f"{changes} arrays are copied into the other order"
    )


def _wish(context: Context) -> str:
    """``nchw``, ``nhwc`` or ``auto``; oneDNN's kernels want channels last wherever images are."""
    target = context.target
    if target.kind == "cpu":
        return "nhwc" if target.has("onednn") else "nchw"
    return str(config.gpu.layout)


# -- which convolutions want it -------------------------------------------------------------------


def _wants(node: Apply, target: Target, always: bool) -> bool:
    """Whether a node is a convolution that gains from channels last.

    On a CPU also a pooling or batch normalisation of images that lie so: programs that keep theirs
    as (N, sizes, C) show them through a dimshuffle (as :mod:`symdnn.opt.layout.absorb_nhwc_views`
    on a GPU).
    """
    op = node.op
    if not isinstance(op, Lowered) or "NHWC" not in op.layouts or not follows(node):
        return False
    if not _is_convolution(op):
        return target.kind == "cpu" and _lies_last(node.inputs[0])
    if target.kind == "cpu":
        return not _may_be_depthwise(node) or any(_lies_last(v) for v in _images(node))
    if always:
        return True
    conv: Any = op.unlowered
    return conv.groups == 1 and _has_tensor_cores(node.outputs[0].type.dtype, target)


def _is_convolution(op: Op) -> bool:
    return isinstance(neutral_of(op), Conv | ConvGradInput | ConvGradWeight)


def _images(node: Apply) -> list[Variable]:
    return [v for v in node.inputs if is_image(v.type) and not is_kernel(v, node)]


def _may_be_depthwise(node: Apply) -> bool:
    """Whether a convolution may have a group for each channel: those there are fast kernels for in
    either order, so that they go with what surrounds them."""
    op: Any = node.op
    w = next(v for v in (*node.inputs, *node.outputs) if is_kernel(v, node))
    conv = op.unlowered
    one = w.type.shape[1] in (1, None)
    return bool(conv.groups > 1 and conv.ndim == 2 and one and w.type.dtype == "float32")


def _lies_last(v: Variable) -> bool:
    """Whether an image is a view of an array with channels last."""
    made = v.owner
    return made is not None and made.op == DimShuffle(first_order(v.type.ndim))


def _has_tensor_cores(dtype: str, target: Target) -> bool:
    """Whether tensor cores multiply this dtype under the present flags."""
    capability = target.compute_capability or (0, 0)
    if dtype == "float16":
        return capability >= (7, 0)
    return capability >= (8, 0) and (
        dtype == "bfloat16" or (dtype == "float32" and bool(config.dnn.conv.allow_tf32))
    )


# -- which nodes have it --------------------------------------------------------------------------


def _cheapest(context: Context, order: Sequence[Apply], wanting: set[Apply]) -> set[Apply]:
    """The nodes whose images have channels last in the cheapest assignment.

    On a CPU reading the other order in place costs more than a copy does, and cuts lie far from the
    convolutions, so that these may take in what follows them.
    """
    network, sizes = Network(), GuessedSizes(context.shapes, order)
    on_gpu = context.target.kind == "cuda"
    for node in order:
        if node in wanting:
            network.fix(node, at_source=True)
        elif not follows(node):
            network.fix(node, at_source=False)
    network.fix(None, at_source=False)  # makes inputs, reads outputs
    for v in context.fgraph.variables:
        if is_image(v.type) and not isinstance(v, Constant) and not _is_dense(v, last_order):
            cost = sizes.elements(v) * numpy_dtype(v.type.dtype).itemsize
            _add_value(network, context.fgraph, v, cost, absorbing=on_gpu)
    return {n for n in network.at_source(largest=not on_gpu) if isinstance(n, Apply)}


def _only_checks(fgraph: FunctionGraph, node: Apply, last: set[Apply]) -> bool:
    """Whether a node checks a shape for readers in the program's order alone."""
    readers = [n for v in node.outputs for n, _ in fgraph.users(v)]
    moved = any(n in last or (n is not None and isinstance(n.op, DimShuffle)) for n in readers)
    return isinstance(node.op, SpecifyType | ForgetShape) and not moved


def _is_alone(fgraph: FunctionGraph, node: Apply, last: set[Apply]) -> bool:
    """Whether all around a convolution on a CPU is in the program's order.

    Then its kernel changes the order as suits it, and knows of cheaper orders than this one.
    """
    if not _is_convolution(node.op):
        return False
    for v in (*node.inputs, *node.outputs):
        if not is_image(v.type) or is_kernel(v, node):
            continue
        near = {v.owner, *(reader for reader, _ in fgraph.users(v))} - {node}
        if near & last or _is_dense(v, last_order):
            return False
        if any(n is not None and isinstance(n.op, DimShuffle) for n in near):
            return False
    return True


def _add_value(
    network: Network, fgraph: FunctionGraph, v: Variable, cost: float, absorbing: bool
) -> None:
    readers: list[Apply | None] = []
    maker = None if is_kernel(v, v.owner) else v.owner
    for reader, _ in fgraph.users(v):
        if reader is not None and isinstance(reader.op, ShapeI | DimShuffle):
            continue  # a view, or no data at all
        if is_kernel(v, reader):
            reader = None
        if reader is not None and absorbing and absorbs(reader):
            network.pair(maker, reader, _ABSORBED * cost)
        else:
            readers.append(reader)
    if readers:
        network.value(v, maker, readers, cost)


def _seen(v: Variable, order: Any) -> tuple[Variable, tuple[Any, ...]]:
    """``v`` with its dimensions in another order: what that is a view of, and in which pattern."""
    pattern: tuple[Any, ...] = order(v.type.ndim)
    source = v
    while source.owner is not None and isinstance(source.owner.op, DimShuffle):
        inner = source.owner.op.pattern
        pattern = tuple(d if d == "x" else inner[int(d)] for d in pattern)
        source = source.owner.inputs[0]
    return source, pattern


def _in_order(source: Variable, pattern: Sequence[Any]) -> bool:
    """Whether a view by such a pattern is as dense as what it shows."""
    moving = [int(d) for d in pattern if d != "x" and source.type.shape[int(d)] != 1]
    return moving == sorted(moving)


def _is_dense(v: Variable, order: Any) -> bool:
    """Whether ``v`` with its dimensions in another order is dense as it is."""
    return _in_order(*_seen(v, order))


# -- the new graph --------------------------------------------------------------------------------


class _Rebuild:
    """Values in both orders, made as they are needed."""

    def __init__(
        self, fgraph: FunctionGraph, order: Sequence[Apply], chosen: set[Apply], absorbing: bool
    ) -> None:
        self.fgraph, self.order, self.chosen = fgraph, order, chosen
        self.absorbing = absorbing
        self.last: dict[Variable, Variable] = {}  # with channels last, where a chosen node made it
        self.first: dict[Variable, Variable] = {}  # in the program's order, rebuilt
        self.copies: dict[tuple[Variable, bool], Variable] = {}

    def replace(self) -> None:
        """Put the new graph in the place of the old one."""
        for node in self.order:
            with inherit(node.origin, node.hints, node.written):
                if node in self.chosen:
                    self._to_last(node)
                else:
                    self._stays(node)
        pairs = [(v, self._as_first(v, None)) for v in dict.fromkeys(self.fgraph.outputs)]
        self.fgraph.replace_all([(a, b) for a, b in pairs if a is not b], "choose_layout")

    def _to_last(self, node: Apply) -> None:
        inputs = [self._as_last(v, node) for v in node.inputs]
        for old, new in zip(node.outputs, rebuilt(node, inputs), strict=True):
            moved = is_image(old.type) and not is_kernel(old, node)
            (self.last if moved else self.first)[old] = new

    def _stays(self, node: Apply) -> None:
        if isinstance(node.op, ShapeI) and node.inputs[0] in self.last:
            v = node.inputs[0]
            self.first[node.outputs[0]] = ShapeI(moved_axis(node.op.axis, v.type.ndim))(
                self.last[v]
            )
            return
        inputs = [self._as_first(v, node) for v in node.inputs]
        if any(a is not b for a, b in zip(inputs, node.inputs)):
            new = node.op.make_node(*inputs, hints=node.hints)
            self.first.update(zip(node.outputs, new.outputs, strict=True))

    def _as_last(self, v: Variable, reader: Apply) -> Variable:
        """An input of a node that works on channels-last images."""
        if not is_image(v.type) or is_kernel(v, reader):
            return self._as_first(v, reader) if is_kernel(v, reader) else self.first.get(v, v)
        if v in self.last:
            return self.last[v]
        if isinstance(v, Constant):
            return Constant(np.ascontiguousarray(v.data.transpose(last_order(v.type.ndim))), v.name)
        return self._changed(v, self.first.get(v, v), last_order, reader)

    def _as_first(self, v: Variable, reader: Apply | None) -> Variable:
        """An input of a node, or a result, in the order that the program gave it."""
        if v not in self.last:
            return self.first.get(v, v)
        return self._changed(v, self.last[v], first_order, reader)

    def _changed(self, v: Variable, now: Variable, order: Any, reader: Apply | None) -> Variable:
        """``v`` in the other order: a view where that will do, else a copy that all share."""
        source, pattern = _seen(now, order)
        view = dimshuffle(source, pattern)
        key = (v, order is last_order)
        if _in_order(source, pattern) or (reader is not None and isinstance(reader.op, DimShuffle)):
            return view
        if (
            key not in self.copies
            and reader is not None
            and self.absorbing
            and absorbs(reader)
            and self._alone(v, key)
        ):
            return view
        if key not in self.copies:
            self.copies[key] = Reorder(order(now.type.ndim))(now)
        return self.copies[key]

    def _alone(self, v: Variable, key: tuple[Variable, bool]) -> bool:
        """Whether no reader needs a copy in this order anyway."""
        return not any(
            (reader in self.chosen) == key[1]
            and (
                reader is None
                or not (absorbs(reader) or isinstance(reader.op, ShapeI | DimShuffle))
            )
            for reader, _ in self.fgraph.users(v)
        )


RULES = (choose_layout,)
