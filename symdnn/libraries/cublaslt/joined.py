"""GEMMs that differ only in their weights become one GEMM of the joined weights.

``x @ a``, ``x @ b`` and ``x @ c`` (query, key and value; gate and gated values; experts that all
tokens visit) are columns of ``x @ [a, b, c]``. One launch reads ``x`` once, and fills a GPU that a
single one would not fill.

Only weights that the function does not update are joined: the parameter cache stores the joined
copy (:mod:`symdnn.compile.program.parameter_cache`), so no call copies. A training step would copy
each of k weights in each call, with k launches, to save k - 1. The gradient of ``x`` is a sum of k
GEMMs, each of which accumulates (cuBLASLt's beta). Joined along the summed axis, it would copy the
gradients of all k results and save no launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.graph.origin import inherit
from symdnn.graph.type import numpy_dtype
from symdnn.graph.variable import Apply, Constant, Shared, Variable
from symdnn.ops.array.index import Subtensor, subtensor
from symdnn.ops.array.join import Join
from symdnn.ops.attention.attention import Attention
from symdnn.ops.control.control import IfElse
from symdnn.ops.core.shape import DimShuffle, Reshape, dimshuffle
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.lowered.epilogue import BIAS
from symdnn.ops.lowered.lowered import neutral_of
from symdnn.ops.vendor.gpublas import GpuGemm
from symdnn.rewriting.rewrite import Context

#: The cost of a launch, as bytes that an H100 reads in that time (2 to 3 microseconds). Weights are
#: joined if the additional copy is not larger than this for each saved launch.
BYTES_OF_A_LAUNCH = 8 << 20
#: A result's columns begin at multiples of this, for vector loads and for tensor cores.
_ALIGNMENT_BYTES = 16


def join_products(context: Context, name: str) -> None:
    """Join the GEMMs of one operand with parameters, for the rewrite ``name``."""
    order = context.fgraph.toposort()
    if not Parameters.are_kept(context, order):
        return  # each call would copy the weights
    is_parameter = Parameters(context, order)
    groups: dict[Any, list[Apply]] = {}
    for node in order:
        if _takes(node, context, is_parameter):
            dtypes = tuple(v.type.dtype for v in node.inputs[1:])
            key = (node.op, node.hints, node.inputs[0], dtypes)
            groups.setdefault(key, []).append(node)
    for nodes in groups.values():
        if len(nodes) > 1 and _is_worth_it(nodes):
            _join(nodes, context, name)


class Parameters:
    """Values that depend only on constants and on parameters that the function does not update."""

    def __init__(self, context: Context, order: Sequence[Apply]) -> None:
        self._updated = {*context.fgraph.inputs, *context.fgraph.updates.values()}
        self._known: dict[Variable, bool] = {}
        #: Values that may differ from call to call. The cache serves only their nodes.
        self.varying: set[Variable] = set(self._updated)
        for node in order:
            if any(v in self.varying for v in node.inputs):
                self.varying.update(node.outputs)

    @staticmethod
    def are_kept(context: Context, order: Sequence[Apply]) -> bool:
        """Whether a graph has the parameter cache for what is computed of them."""
        branches = any(isinstance(n.op, IfElse) for n in order)
        return bool(config.keep_prepared) and not context.inner and not branches

    def __call__(self, v: Variable) -> bool:
        """Whether the parameter cache can hold ``v``: a parameter, its view, or its cast."""
        if v not in self._known:
            node = v.owner
            if node is None:
                self._known[v] = isinstance(v, Constant | Shared) and v not in self._updated
            else:
                known = isinstance(node.op, DimShuffle | Elemwise)
                self._known[v] = known and all(self(w) for w in node.inputs)
        return self._known[v]


def _takes(node: Apply, context: Context, is_parameter: Parameters) -> bool:
    """Whether a node is a GEMM of a value with parameters, whose readers take its columns."""
    op: Any = node.op
    product = op.unlowered if isinstance(op, GpuGemm) else op
    if not isinstance(product, Dot | BatchedDot):
        return False
    x, w, *others = node.inputs
    bias_only = not others or (op.operand_names == (BIAS,) and others[0].type.shape[-1] != 1)
    if not bias_only or x.type.ndim != w.type.ndim or w.type.ndim < 2:
        return False
    *_, k, n = w.type.shape
    itemsize = numpy_dtype(node.outputs[0].type.dtype).itemsize
    if k is None or n is None or n < 2 or n * itemsize % _ALIGNMENT_BYTES:
        return False
    given = all(is_parameter(v) for v in node.inputs[1:])
    return given and x in is_parameter.varying and _read_by_columns(node.outputs[0], context)


def _read_by_columns(v: Variable, context: Context) -> bool:
    """Whether all readers take rows with a stride: none needs, or is, a dense result."""
    users = context.fgraph.users(v)
    return bool(users) and all(u is not None and _takes_strides(u, v, context) for u, _ in users)


def _takes_strides(node: Apply, v: Variable, context: Context) -> bool:
    op = neutral_of(node.op)
    if isinstance(op, Reshape):
        # A view, if the columns stay whole: dimensions before them, or parts of them.
        return _splits(node, context) and _read_by_columns(node.outputs[0], context)
    if isinstance(op, DimShuffle | Subtensor):
        return node.inputs[0] is v and _read_by_columns(node.outputs[0], context)
    if isinstance(op, Dot | BatchedDot):
        return v in node.inputs[:2] and v not in node.inputs[2:]
    return isinstance(op, Elemwise | Attention)


def _splits(node: Apply, context: Context) -> bool:
    """Whether a reshape divides dimensions and merges none."""
    old, new = (context.shapes.dims(u) for u in (node.inputs[0], node.outputs[0]))
    if len(new) < len(old):
        return False
    if context.shapes.same(old[-1], new[-1]):
        return True
    columns, size = old[-1], 1
    if not isinstance(columns, int):
        return False
    for d in reversed(new[1:]):
        if not isinstance(d, int) or size == columns:
            break
        size *= d
    return size == columns


def _is_worth_it(nodes: Sequence[Apply]) -> bool:
    """Whether the launches that are saved are worth the copy of the weights."""
    copied = 0
    for node in nodes:
        sizes = node.inputs[1].type.shape
        copied += (
            int(np.prod([d or 1 for d in sizes])) * numpy_dtype(node.inputs[1].type.dtype).itemsize
        )
    return copied <= (len(nodes) - 1) * BYTES_OF_A_LAUNCH


def _join(nodes: Sequence[Apply], context: Context, name: str) -> None:
    first = nodes[0]
    last = first.outputs[0].type.ndim - 1
    with inherit(first.origin, first.hints):
        operands = [_side_by_side(vs) for vs in zip(*(n.inputs[1:] for n in nodes), strict=True)]
        whole = first.op(first.inputs[0], *operands)
        pairs, begin = [], 0
        for node in nodes:
            end = begin + (node.inputs[1].type.shape[-1] or 0)
            part = subtensor(whole, [*[slice(None)] * last, slice(begin, end)])
            pairs.append((node.outputs[0], part))
            begin = end
        context.replace(pairs, name)


def _side_by_side(vs: Sequence[Variable]) -> Variable:
    """Tensors joined along their last dimension; those that are transposed, in their memory."""
    last = vs[0].type.ndim - 1
    across = (*range(last - 1), last, last - 1)
    if all(v.owner is not None and _pattern(v.owner) == across for v in vs):
        sources = [v.owner.inputs[0] for v in vs if v.owner is not None]
        return dimshuffle(Join(last - 1)(*sources), across)
    return Join(last)(*vs)


def _pattern(node: Apply) -> tuple[Any, ...] | None:
    op: Any = node.op
    return tuple(op.pattern) if isinstance(op, DimShuffle) else None
