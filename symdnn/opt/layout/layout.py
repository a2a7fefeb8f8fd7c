"""Chooses NCHW or NHWC for each node, with reorders where they move the fewest bytes.

Tensor cores read NHWC, that is (N, \\*sizes, C); programs are written in NCHW, (N, C, \\*sizes).
Convolutions that gain from NHWC get it. Elementwise nodes, pooling, normalisation, joins and
reductions, forward and backward, may have either layout. Their layouts are chosen for the whole
graph at once, by a min cut (:mod:`symdnn.opt.layout.layout_cut`). A value that is computed in one
layout and read in the other costs its bytes once. Elementwise nodes can read the other layout
directly, which costs less. A value with at most one permuted dimension of size other than 1 (a
bias, 1x1 filters) costs nothing: its reorder is a view.
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
from symdnn.ops.nn.conv_words import allows_tf32
from symdnn.ops.quantized.product import QuantizedProduct
from symdnn.opt.layout.flat_images import lift_rows
from symdnn.opt.layout.group_norm import GatheredNorms
from symdnn.opt.layout.layout_cut import FlowNetwork
from symdnn.opt.layout.layout_follow import in_nhwc, is_filter, may_have_nhwc, reads_strided
from symdnn.opt.layout.layout_sizes import GuessedSizes
from symdnn.rewriting.rewrite import Context, graph_rewrite

#: The cost of reading a value directly in the other layout, relative to that of a reorder.
_STRIDED_READ_COST = 0.4
#: The cost of a reorder that is a view: far below that of any copy.
_VIEW_COST_BYTES = 1e-3
#: Stands in a network for what makes or reads a value of the program's own (N, sizes, C).
_CHANNELS_LAST = "channels last"


@graph_rewrite("layout", tags=("cudnn", "onednn", "channels_last"), name="choose_layout")
def choose_layout(context: Context) -> None:
    """Convolutions and nodes around them get the layout NHWC where that is faster."""
    requested = _requested_layout(context)
    if requested == "nchw" or context.inner:
        return
    order = context.fgraph.toposort()
    fixed = {n for n in order if _must_have_nhwc(n, context.target, requested == "nhwc")}
    norms = GatheredNorms(context)
    if fixed and context.target.kind == "cuda":
        lift_rows(context.fgraph)
        norms.gather()
        order = context.fgraph.toposort()
    if fixed:
        nhwc = _min_cut(context, order, fixed)
        if context.target.kind == "cpu":
            nhwc -= {n for n in nhwc if _only_checks_nchw(context.fgraph, n, nhwc)}
            nhwc -= {n for n in nhwc if _has_nchw_neighbours(context.fgraph, n, nhwc)}
        _LayoutChange(context.fgraph, order, nhwc, context.target.kind == "cuda").replace()
        norms.write_back()


def layout_text(fgraph: FunctionGraph) -> str:
    """The number of operations in each layout, for reports; empty where all have NCHW."""
    ops = [node.op for node in fgraph.nodes if isinstance(node.op, Lowered)]
    layouts = [op.layout for op in ops if "NHWC" in op.layouts]
    nhwc = layouts.count("NHWC")
    if not nhwc:
        return ""
    changes = sum(isinstance(node.op, Reorder) for node in fgraph.nodes)
    return (
        f"images: {nhwc} operations with channels last (NHWC), {layouts.count('NCHW')} not; "
        f"{changes} arrays are copied into the other order"
    )


def _requested_layout(context: Context) -> str:
    """``nchw``, ``nhwc`` or ``auto``, by the flag ``gpu.layout``; with oneDNN always ``nhwc``."""
    target = context.target
    if target.kind == "cpu":
        return "nhwc" if target.has("onednn") else "nchw"
    return str(config.gpu.layout)


# -- nodes that must have NHWC --------------------------------------------------------------------


def _must_have_nhwc(node: Apply, target: Target, always: bool) -> bool:
    """Whether a node is a convolution that gains from NHWC.

    On a CPU also a pooling or batch normalisation of a transposed view of an NHWC array (for GPUs
    see :mod:`symdnn.opt.layout.absorb_nhwc_views`).
    """
    op = node.op
    if not isinstance(op, Lowered) or "NHWC" not in op.layouts or not may_have_nhwc(node):
        return False
    if not _is_convolution(op):
        return target.kind == "cpu" and _is_nhwc_view(node.inputs[0])
    if target.kind == "cpu":
        return not _may_be_depthwise(node) or any(_is_nhwc_view(v) for v in _activations(node))
    if always:
        return True
    conv = _convolution_of(op)
    return conv.groups == 1 and _has_tensor_cores(node.outputs[0].type.dtype, target)


def _convolution_of(op: Op) -> Any:
    """The neutral convolution of a library's op, also that of quantised numbers; else None."""
    neutral = neutral_of(op)
    if isinstance(neutral, QuantizedProduct):
        neutral = neutral.op
    return neutral if isinstance(neutral, Conv | ConvGradInput | ConvGradWeight) else None


def _is_convolution(op: Op) -> bool:
    return _convolution_of(op) is not None


def _activations(node: Apply) -> list[Variable]:
    return [v for v in node.inputs if is_image(v.type) and not is_filter(v, node)]


def _may_be_depthwise(node: Apply) -> bool:
    """Whether a convolution may be depthwise, with a group for each channel.

    There are fast kernels for these in both layouts, so they take the layout of their neighbours.
    """
    op: Any = node.op
    w = next(v for v in (*node.inputs, *node.outputs) if is_filter(v, node))
    conv = _convolution_of(op)
    one = w.type.shape[1] in (1, None)
    return bool(conv.groups > 1 and conv.ndim == 2 and one and w.type.dtype == "float32")


def _is_nhwc_view(v: Variable) -> bool:
    """Whether ``v`` is a transposed view of an NHWC array."""
    made = v.owner
    return made is not None and made.op == DimShuffle(first_order(v.type.ndim))


def _has_tensor_cores(dtype: str, target: Target) -> bool:
    """Whether tensor cores multiply this dtype with the current flags."""
    capability = target.compute_capability or (0, 0)
    if dtype == "float16":
        return capability >= (7, 0)
    return capability >= (8, 0) and (dtype == "bfloat16" or (dtype == "float32" and allows_tf32()))


# -- nodes that get NHWC --------------------------------------------------------------------------


def _min_cut(context: Context, order: Sequence[Apply], fixed: set[Apply]) -> set[Apply]:
    """The nodes with NHWC in the assignment that moves the fewest bytes.

    On a CPU a direct read of the other layout costs more than a reorder. There, of equally cheap
    cuts, the one farthest from the convolutions is taken, and a reorder that is a view costs a
    little, so that more ops may join their epilogues.
    """
    network, sizes = FlowNetwork(), GuessedSizes(context.shapes, order)
    on_gpu = context.target.kind == "cuda"
    for node in order:
        if node in fixed:
            network.fix(node, at_source=True)
        elif not may_have_nhwc(node):
            network.fix(node, at_source=False)
    network.fix(None, at_source=False)  # None stands for the graph's inputs and outputs
    network.fix(_CHANNELS_LAST, at_source=True)
    for v in context.fgraph.variables:
        if not is_image(v.type) or isinstance(v, Constant):
            continue
        seen_last = _is_free(v, last_order)
        if not seen_last or (on_gpu and not _is_free(v, range)):
            cost = sizes.elements(v) * numpy_dtype(v.type.dtype).itemsize
            _add_value(network, context.fgraph, v, cost, on_gpu, seen_last)
        elif not on_gpu and v.owner is not None and may_have_nhwc(v.owner):
            _add_value(network, context.fgraph, v, _VIEW_COST_BYTES, strided_reads=False)
    return {n for n in network.at_source(largest=not on_gpu) if isinstance(n, Apply)}


def _only_checks_nchw(fgraph: FunctionGraph, node: Apply, nhwc: set[Apply]) -> bool:
    """Whether a node only checks a shape, for readers that all have NCHW."""
    readers = [n for v in node.outputs for n, _ in fgraph.users(v)]
    moved = any(n in nhwc or (n is not None and isinstance(n.op, DimShuffle)) for n in readers)
    return isinstance(node.op, SpecifyType | ForgetShape) and not moved


def _has_nchw_neighbours(fgraph: FunctionGraph, node: Apply, nhwc: set[Apply]) -> bool:
    """Whether all neighbours of a convolution on a CPU have NCHW.

    Then oneDNN's kernel reorders to the blocked layout that suits it, which is cheaper than NHWC.
    """
    if not _is_convolution(node.op):
        return False
    for v in (*node.inputs, *node.outputs):
        if not is_image(v.type) or is_filter(v, node):
            continue
        near = {v.owner, *(reader for reader, _ in fgraph.users(v))} - {node}
        if near & nhwc or _is_free(v, last_order):
            return False
        if any(n is not None and isinstance(n.op, DimShuffle) for n in near):
            return False
    return True


def _add_value(
    network: FlowNetwork, fgraph: FunctionGraph, v: Variable, cost: float, strided_reads: bool,
    seen_last: bool = False,
) -> None:  # fmt: skip
    """Add the cost of a value that is read in the other layout.

    ``seen_last`` values are views of (N, sizes, C), which the program computes itself.
    """
    readers: list[object] = []
    maker: object = None if is_filter(v, v.owner) else v.owner
    maker = _CHANNELS_LAST if seen_last else maker
    for reader, _ in fgraph.users(v):
        if _is_view(reader):
            if strided_reads and not seen_last and _is_read_last(fgraph, v, reader):
                network.pair(maker, _CHANNELS_LAST, _STRIDED_READ_COST * cost)
            continue
        if is_filter(v, reader):
            reader = None
        if reader is not None and strided_reads and reads_strided(reader):
            network.pair(maker, reader, _STRIDED_READ_COST * cost)
        else:
            readers.append(reader)
    if readers:
        network.value(v, maker, readers, cost)


def _is_read_last(fgraph: FunctionGraph, v: Variable, reader: Apply | None) -> bool:
    """Whether a view of ``v`` as (N, sizes, C) is computed with, by nodes of no layout."""
    if reader is None or reader.op != DimShuffle(last_order(v.type.ndim)):
        return False
    users = fgraph.users(reader.outputs[0])
    return any(n is not None and not _is_view(n) for n, _ in users)


def _is_view(node: Apply | None) -> bool:
    """Whether a node reads no data: a dimshuffle is a view, and a size is known without it."""
    return node is not None and isinstance(node.op, ShapeI | DimShuffle)


def _as_view(v: Variable, order: Any) -> tuple[Variable, tuple[Any, ...]]:
    """``v`` permuted by ``order(ndim)`` as (source, pattern), through all dimshuffles before it."""
    pattern: tuple[Any, ...] = order(v.type.ndim)
    source = v
    while source.owner is not None and isinstance(source.owner.op, DimShuffle):
        inner = source.owner.op.pattern
        pattern = tuple(d if d == "x" else inner[int(d)] for d in pattern)
        source = source.owner.inputs[0]
    return source, pattern


def _is_contiguous_view(source: Variable, pattern: Sequence[Any]) -> bool:
    """Whether the dimshuffle of a contiguous ``source`` by ``pattern`` is contiguous."""
    moving = [int(d) for d in pattern if d != "x" and source.type.shape[int(d)] != 1]
    return moving == sorted(moving)


def _is_free(v: Variable, order: Any) -> bool:
    """Whether ``v`` permuted by ``order(ndim)`` is contiguous without a copy."""
    return _is_contiguous_view(*_as_view(v, order))


# -- the new graph --------------------------------------------------------------------------------


class _LayoutChange:
    """Builds the new graph, with reorders of the values that are needed in both layouts."""

    def __init__(
        self, fgraph: FunctionGraph, order: Sequence[Apply], chosen: set[Apply], strided_reads: bool
    ) -> None:
        self.fgraph, self.order, self.chosen = fgraph, order, chosen
        self.strided_reads = strided_reads
        self.nhwc: dict[Variable, Variable] = {}  # values in NHWC, made by nodes with NHWC
        self.nchw: dict[Variable, Variable] = {}  # values in NCHW, made by rebuilt nodes
        self.copies: dict[tuple[Variable, bool], Variable] = {}

    def replace(self) -> None:
        """Build the new graph and replace the old one by it."""
        for node in self.order:
            with inherit(node.origin, node.hints, node.written):
                if node in self.chosen:
                    self._rebuild_in_nhwc(node)
                else:
                    self._rebuild_in_nchw(node)
        pairs = [(v, self._in_nchw(v, None)) for v in dict.fromkeys(self.fgraph.outputs)]
        self.fgraph.replace_all([(a, b) for a, b in pairs if a is not b], "choose_layout")

    def _rebuild_in_nhwc(self, node: Apply) -> None:
        inputs = [self._in_nhwc(v, node) for v in node.inputs]
        for old, new in zip(node.outputs, in_nhwc(node, inputs), strict=True):
            moved = is_image(old.type) and not is_filter(old, node)
            (self.nhwc if moved else self.nchw)[old] = new

    def _rebuild_in_nchw(self, node: Apply) -> None:
        if isinstance(node.op, ShapeI) and node.inputs[0] in self.nhwc:
            v = node.inputs[0]
            self.nchw[node.outputs[0]] = ShapeI(moved_axis(node.op.axis, v.type.ndim))(self.nhwc[v])
            return
        inputs = [self._in_nchw(v, node) for v in node.inputs]
        if any(a is not b for a, b in zip(inputs, node.inputs)):
            new = node.op.make_node(*inputs, hints=node.hints)
            self.nchw.update(zip(node.outputs, new.outputs, strict=True))

    def _in_nhwc(self, v: Variable, reader: Apply) -> Variable:
        """An input of a node with NHWC."""
        if not is_image(v.type) or is_filter(v, reader):
            return self._in_nchw(v, reader) if is_filter(v, reader) else self.nchw.get(v, v)
        if v in self.nhwc:
            return self.nhwc[v]
        if isinstance(v, Constant):
            return Constant(np.ascontiguousarray(v.data.transpose(last_order(v.type.ndim))), v.name)
        return self._reordered(v, self.nchw.get(v, v), last_order, reader)

    def _in_nchw(self, v: Variable, reader: Apply | None) -> Variable:
        """An input of a node with NCHW, or a result of the graph."""
        if v not in self.nhwc:
            return self.nchw.get(v, v)
        return self._reordered(v, self.nhwc[v], first_order, reader)

    def _reordered(self, v: Variable, now: Variable, order: Any, reader: Apply | None) -> Variable:
        """``v`` in the other layout: a view where that will do, else a reorder that all share."""
        source, pattern = _as_view(now, order)
        key = (v, order is last_order)
        free = _is_contiguous_view(source, pattern) or _is_view(reader)
        if free or (key not in self.copies and self._all_read_strided(v, key[1], reader)):
            return dimshuffle(source, pattern)
        if key not in self.copies:
            self.copies[key] = Reorder(order(now.type.ndim))(now)
        return self.copies[key]

    def _all_read_strided(self, v: Variable, nhwc: bool, reader: Apply | None) -> bool:
        """Whether ``reader`` can read ``v`` strided, and no other reader needs a reorder anyway."""
        if reader is None or not self.strided_reads or not reads_strided(reader):
            return False
        others = [n for n, _ in self.fgraph.users(v) if (n in self.chosen) == nhwc]
        return all(n is not None and (reads_strided(n) or _is_view(n)) for n in others)


RULES = (choose_layout,)
