"""Dimshuffles and reshapes that cancel, have no effect, or can be moved behind an op."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.core.shape import Alloc, DimShuffle, Reshape, alloc, dimshuffle, reshape
from symdnn.ops.elemwise import Elemwise
from symdnn.rewriting.facts import ShapeFacts, all_ones, made_by, node_of
from symdnn.rewriting.rewrite import Context, node_rewrite, reads

__all__ = [
    "RULES",
    "fields_of",
    "made_by",
    "node_of",
    "on_operand",
    "operand_beside_elements",
]

PHASE = "canonicalize"
TAGS = ("fast_compile", "cleanup")


def fields_of(node: Apply) -> Any:
    """The op of a node as Any: its fields depend on the op type, which the caller checked."""
    return node.op


@node_rewrite(DimShuffle, phase=PHASE, tags=(*TAGS, "local_dimshuffle_lift"))
def dimshuffle_of_dimshuffle(node: Apply, context: Context) -> Variable | None:
    """Two dimshuffles in a row are one; the identity is none.

    A dimension of size 1 is kept, not dropped and added.
    """
    (v,) = node.inputs
    pattern = old = fields_of(node).pattern
    if "x" in old and len(old) - old.count("x") < v.type.ndim:
        dropped = iter([axis for axis in range(v.type.ndim) if axis not in old])
        pattern = tuple(next(dropped, d) if d == "x" else d for d in old)
    if pattern == tuple(range(v.type.ndim)):
        return v
    if not made_by(v, DimShuffle):
        return None if pattern == old else dimshuffle(v, pattern)
    inner: Any = v.owner
    return dimshuffle(
        inner.inputs[0], [d if d == "x" else inner.op.pattern[int(d)] for d in pattern]
    )


@node_rewrite(
    Elemwise,
    phase=PHASE,
    tags=("local_dimshuffle_lift", "local_lift_transpose"),
    admits=reads(DimShuffle),
)
def elemwise_of_dimshuffles(node: Apply, context: Context) -> Variable | None:
    """``f(x.T, y.T) -> f(x, y).T``: behind the op it may cancel, or apply to a smaller tensor."""
    if not any([made_by(v, DimShuffle) for v in node.inputs]):
        return None
    wide = [v for v in node.inputs if not all_ones(v)]
    if not wide:
        return _as_scalars(node)
    patterns = {_pattern(v) for v in wide}
    pattern = patterns.pop()
    if patterns or pattern is None:
        return None
    ndim = _inner(wide[0]).type.ndim
    if any(_inner(v).type.ndim != ndim for v in wide):  # one drops a dimension, one does not
        return None
    inner = [_single(v, ndim) if all_ones(v) else _inner(v) for v in node.inputs]
    return dimshuffle(node.op(*inner), pattern)


def _as_scalars(node: Apply) -> Variable | None:
    """An elementwise node on single elements, computed on scalars without dimensions."""
    symbolic = [v for v in node.inputs if not isinstance(v, Constant)]
    if not symbolic or not all(made_by(v, DimShuffle) for v in symbolic):
        return None
    if node.outputs[0].type.ndim == 0:
        return None
    scalars = [_single(v, 0) for v in node.inputs]
    return dimshuffle(node.op(*scalars), ("x",) * node.outputs[0].type.ndim)


def _pattern(v: Variable) -> tuple[Any, ...] | None:
    return node_of(v).op.pattern if made_by(v, DimShuffle) else None


def _inner(v: Variable) -> Variable:
    made: Variable = node_of(v).inputs[0]
    return made


def _single(v: Variable, ndim: int) -> Variable:
    """The single element ``v`` with ``ndim`` dimensions of size 1."""
    if isinstance(v, Constant):
        return v.reshaped((1,) * ndim)
    return dimshuffle(v, ("x",) * ndim)


@node_rewrite(Reduce, phase=PHASE, tags=("local_reduce_keepdims",))
def keepdims_after(node: Apply, context: Context) -> Variable | None:
    """``keepdims`` becomes a dimshuffle behind the reduction: one form for all rules."""
    op: Any = node.op
    if not op.keepdims:
        return None
    reduced = replace(op, keepdims=False)(node.inputs[0])
    return with_reduced_axes(op, reduced, node.inputs[0].type.ndim)


def with_reduced_axes(op: Any, reduced: Variable, ndim: int) -> Variable:
    """The reduced variable with the axes of ``op`` inserted again, of size 1."""
    kept = iter(range(ndim))
    return dimshuffle(reduced, ["x" if i in op.axes else next(kept) for i in range(ndim)])


# -- reshape --------------------------------------------------------------------------------------


@node_rewrite(Reshape, phase=PHASE, tags=(*TAGS, "local_useless_reshape"))
def reshape_to_own_shape(node: Apply, context: Context) -> Variable | None:
    """A reshape to the same shape is its input."""
    x, out = node.inputs[0], node.outputs[0]
    if x.type.ndim == 1 and fields_of(node).static == (-1,):
        return x
    return x if context.shapes.same_shape(x, out) else None


@node_rewrite(
    Reshape, phase=PHASE, tags=(*TAGS, "local_reshape_chain"), admits=reads(Reshape, at=0)
)
def reshape_of_reshape(node: Apply, context: Context) -> Variable | None:
    """The first of two reshapes is dropped, where it could not have failed."""
    inner = node.inputs[0]
    if not made_by(inner, Reshape) or not _cannot_fail(inner.owner, context.shapes):
        return None
    return reshape(node_of(inner).inputs[0], node.inputs[1:])


def _cannot_fail(node: Any, shapes: ShapeFacts) -> bool:
    """Whether a reshape keeps the number of elements, whatever the sizes are."""
    x, *dims = node.inputs
    if x.type.is_static and node.outputs[0].type.is_static:
        return True
    count, factors = shapes.product_key(shapes.dims(x))
    if -1 not in node.op.static:
        return shapes.product_key(dims) == (count, factors)
    fixed, symbols = shapes.product_key(
        d for d, s in zip(dims, node.op.static, strict=True) if s != -1
    )
    return not symbols and fixed > 0 and count % fixed == 0


@node_rewrite(Reshape, phase=PHASE, tags=(*TAGS, "local_reshape_to_dimshuffle"))
def reshape_to_dimshuffle(node: Apply, context: Context) -> Variable | None:
    """A reshape that only adds or drops dimensions of size 1 is a dimshuffle."""
    x, out = node.inputs[0], node.outputs[0]
    old = [i for i, d in enumerate(x.type.shape) if d != 1]
    new = [i for i, d in enumerate(out.type.shape) if d != 1]
    if len(old) != len(new) or len(old) == x.type.ndim == out.type.ndim:
        return None
    before, after = context.shapes.dims(x), context.shapes.dims(out)
    if not all(context.shapes.same(before[i], after[j]) for i, j in zip(old, new)):
        return None
    source = dict(zip(new, old))
    return dimshuffle(x, [source.get(j, "x") for j in range(out.type.ndim)])


@node_rewrite(
    Reshape, phase=PHASE, tags=(*TAGS, "local_reshape_lift"), admits=reads(Elemwise, at=0)
)
def reshape_back_of_elemwise(node: Apply, context: Context) -> Variable | None:
    """``reshape(f(reshape(x)))`` with the shape of ``x`` is ``f(x)``, beside single elements."""
    v, out = node.inputs[0], node.outputs[0]
    found = operand_beside_elements(v, Reshape)
    if found is None:
        return None
    k, inner = found
    x = node_of(inner).inputs[0]
    if not context.shapes.same_shape(x, out) or x.type.ndim == 0:
        return None
    return on_operand(node_of(v), k, x)


def operand_beside_elements(v: Variable, op: type) -> tuple[int, Variable] | None:
    """Which operand of the elementwise ``v`` an ``op`` made; all others must be single elements."""
    if not made_by(v, Elemwise) or len(node_of(v).outputs) != 1:
        return None
    large = [(k, w) for k, w in enumerate(node_of(v).inputs) if not all_ones(w)]
    if len(large) != 1 or not made_by(large[0][1], op):
        return None
    return large[0]


def on_operand(node: Apply, k: int, x: Variable) -> Variable:
    """An elementwise op of ``x`` in place of operand ``k``, the others being single elements."""

    def beside(w: Variable) -> Variable:
        return w if w.type.ndim == x.type.ndim else dimshuffle(w, ("x",) * x.type.ndim)

    inputs = [x if i == k else beside(w) for i, w in enumerate(node.inputs)]
    return node.op(*inputs)


@node_rewrite(Reshape, phase=PHASE, tags=("local_reshape_lift",))
def reshape_of_alloc(node: Apply, context: Context) -> Variable | None:
    """A reshape of one broadcast element is an alloc of the new shape."""
    inner = node.inputs[0]
    if not made_by(inner, Alloc) or not all_ones(node_of(inner).inputs[0]):
        return None
    if not _cannot_fail(node, context.shapes):
        return None
    value = dimshuffle(node_of(inner).inputs[0], ())
    return alloc(value, *context.shapes.dims(node.outputs[0]))


@node_rewrite(
    Reshape, phase=PHASE, tags=(*TAGS, "local_reshape_lift"), admits=reads(DimShuffle, at=0)
)
def reshape_of_transposed(node: Apply, context: Context) -> Variable | None:
    """A stack of transposed matrices is reshaped before they are transposed.

    The reshape of the leading dimensions may be a view then, and products read transposed matrices.
    """
    x, *sizes = node.inputs
    out = node.outputs[0]
    if not made_by(x, DimShuffle) or min(x.type.ndim, out.type.ndim) < 3:
        return None
    *lead, row, column = node_of(x).op.pattern
    before, after = (context.shapes.dims(v)[-2:] for v in (x, out))
    if "x" in (row, column) or row < column or not all(map(context.shapes.same, before, after)):
        return None
    upright = dimshuffle(node_of(x).inputs[0], (*lead, column, row))
    *front, rows, columns = sizes
    ndim = out.type.ndim
    return dimshuffle(
        reshape(upright, [*front, columns, rows]), (*range(ndim - 2), ndim - 1, ndim - 2)
    )


RULES = [
    dimshuffle_of_dimshuffle,
    elemwise_of_dimshuffles,
    keepdims_after,
    reshape_to_own_shape,
    reshape_of_reshape,
    reshape_to_dimshuffle,
    reshape_back_of_elemwise,
    reshape_of_alloc,
    reshape_of_transposed,
]
