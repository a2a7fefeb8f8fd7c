"""Ops that no library and no kernel takes are written out in simpler ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import inf, prod
from operator import add
from typing import Any

import numpy as np
from numpy import float32

from symdnn.config import config
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.order_statistics import ArgPartition, OrderStatistics, Partition
from symdnn.ops.array.reduce import sum as sum_
from symdnn.ops.array.sets import IsIn
from symdnn.ops.array.take import BincountLength
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.core.composed import written_out
from symdnn.ops.core.dtype import is_narrow_float, work_dtype
from symdnn.ops.core.shape import DimShuffle, dimshuffle
from symdnn.ops.elementwise.arithmetic import Cast, cast, clip, maximum
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.bessel import Iv, i0e, i1e
from symdnn.ops.elementwise.complexes import Complex, Imag, Real
from symdnn.ops.elementwise.math import exp
from symdnn.ops.elementwise.quantize import limits_of
from symdnn.ops.elementwise.rounding import round_half_to_even as rint
from symdnn.ops.elemwise import like
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.nn.rnn import RNNForward, RNNGrad
from symdnn.ops.quantized.product import QuantizedProduct
from symdnn.ops.written_out.pixel_sums import (
    PixelSums,
    PixelSumsGradImage,
    PixelSumsGradWeights,
)
from symdnn.ops.written_out.rnn import rnn_in_float32
from symdnn.rewriting.facts import made_by, node_of, number
from symdnn.rewriting.rewrite import Context, node_rewrite

#: With more than this our attention in TF32 is slower than GEMMs.
_FAST_FEATURES = 128
#: So many queries of at least so many keys are products of few rows on a CPU.
_FEW_QUERIES, _MANY_KEYS = 4, 32


@node_rewrite(
    Attention, AttentionGrad, phase="lower", tags=("fast_compile",), name="write_out_attention",
    last_resort=True,
)  # fmt: skip
def write_out(node: Apply, context: Context) -> Sequence[Variable] | None:
    """Attention and its gradient to products, a softmax and elementwise ops."""
    assert isinstance(node.op, Attention | AttentionGrad)
    own = context.capabilities.has_own_kernel(node, context.target.kind)
    if own and not (_gemms_are_faster(node, context) or _has_few_queries(node, context)):
        return None
    return node.op.parts(node.inputs)


def _gemms_are_faster(node: Apply, context: Context) -> bool:
    """Whether GEMMs of a GPU are faster than our kernel.

    A gradient that is written out shares scores and softmax with a result that is, too. Where flags
    let GEMMs round float32 operands, the kernel rounds to the digits of TF32, too: up to 128
    features it is the faster one.
    """
    target = context.target
    if target.kind != "cuda" or node.inputs[0].type.dtype != "float32":
        return False
    if node.hints.precision is None and config.amp != "off":
        return True
    users = [] if isinstance(node.op, AttentionGrad) else context.fgraph.user_nodes(node.outputs[1])
    if any(not context.capabilities.has_own_kernel(n, target.kind) for n in users):
        return True
    if not config.dnn.conv.allow_tf32:
        return False
    features = [v.type.shape[3] or inf for v in node.inputs[:3]]
    old = (target.compute_capability or (0, 0)) < (8, 0)
    return old or max(features) > _FAST_FEATURES


def _has_few_queries(node: Apply, context: Context) -> bool:
    """Whether there are few queries, as in a step of decoding: a CPU's kernel has tiles of more."""
    q, k = node.inputs[:2]
    if context.target.kind != "cpu" or not isinstance(node.op, Attention):
        return False
    if context.fgraph.user_nodes(node.outputs[1]):
        return False  # a gradient has a kernel of its own
    queries, keys = q.type.shape[2] or inf, k.type.shape[2] or inf
    return q.type.dtype == "float32" and queries <= _FEW_QUERIES and keys >= _MANY_KEYS


@node_rewrite(
    QuantizedProduct, phase="lower", tags=("fast_compile",), name="write_out_quantized_product",
    last_resort=True,
)  # fmt: skip
def write_out_product(node: Apply, context: Context) -> Variable | None:
    """int32 sums of 8-bit integers that no library takes, as sums of floats, which are exact.

    On a CPU they are sums in float32 of so few terms that none is beyond 2^24, added as integers;
    else in float64. What follows the sums is elementwise.
    """
    op: Any = node.op
    if op.is_float8:
        return None
    x, w = node.inputs[:2]
    given = dict(zip(op.terms, node.inputs[2:], strict=True))
    if "x_scale" in given:
        names = tuple(name for name in ("x_zero", "w_zero") if name in given)
        sums = QuantizedProduct(op.op, names)(x, w, *(given[name] for name in names))
        return _scaled(op, sums, given)
    zeros = given.get("x_zero"), given.get("w_zero")
    terms = _most_terms((x, w), zeros) if _adds_in_order(op, context) else 0
    axes = (1, 1) if op.is_conv else (x.type.ndim - 1, w.type.ndim - 2)
    parts = _parts(op, w, axes[1], terms)
    dtype = "float32" if parts else "float64"
    x, w = (_centred(op, i, v, z, dtype) for i, (v, z) in enumerate(zip((x, w), zeros)))
    if len(parts) < 2:
        return cast(op.op(x, w), "int32")
    cuts = [[v[(slice(None),) * a + (p,)] for v, a in zip((x, w), axes)] for p in parts]
    return reduce(add, (cast(op.op(*pair), "int32") for pair in cuts))


def _scaled(op: Any, sums: Variable, given: Mapping[str, Variable]) -> Variable:
    """What a product computes of its exact sums, in the order of its reference."""

    def along(v: Variable) -> Variable:
        ones = ["x"] * (sums.type.ndim - 2)
        return dimshuffle(v, (0, *ones)) if op.is_conv and v.type.ndim else v

    y = cast(sums, "float32") * along(given["x_scale"] * given["w_scale"])
    if "bias" in given:
        y = y + along(given["bias"])
    if "z" in given:
        y = y + (cast(given["z"], "float32") - float32(op.z_zero)) * float32(op.z_scale)
    if op.relu:
        y = maximum(y, float32(0))
    if "y_scale" in given:
        low, high = map(float32, limits_of(op.out))
        y = rint(y / given["y_scale"]) + cast(given.get("y_zero", float32(0)), "float32")
        y = clip(y, low, high)
    return cast(y, op.out)


def _centred(op: Any, i: int, v: Variable, zero: Variable | None, dtype: str) -> Variable:
    """An operand less its zero point."""
    v = cast(v, dtype)
    if zero is None:
        return v
    first = i and op.is_conv and zero.type.ndim
    wide = dimshuffle(zero, (0, *["x"] * (v.type.ndim - 1))) if first else zero
    return v - cast(wide, dtype)


#: Integers up to which float32 has all; products of parts that are worth their number.
_EXACT, _MOST_PARTS = 1 << 24, 16


def _adds_in_order(op: Any, context: Context) -> bool:
    """Whether sums of float32 are plain ones: neither rounded nor by Winograd's algorithm."""
    target = context.target
    plain = target.kind == "cpu" and str(config.amp) == "off"
    return plain and not (op.is_conv and (not target.isa or "AVX-512" in target.isa))


def _most_terms(operands: Sequence[Variable], zeros: Sequence[Variable | None]) -> int:
    """Terms of which each sum is exact in float32; 0 if zero points may be any integers."""
    sizes = [_largest(v, z) for v, z in zip(operands, zeros)]
    return _EXACT // (sizes[0] * sizes[1]) if all(sizes) else 0


def _largest(v: Variable, zero: Variable | None) -> int:
    """The largest absolute value of an integer of 8 bits less its zero point; 0: not known."""
    low, high = map(int, limits_of(v.type.dtype))
    if zero is None:
        return max(-low, high)
    if isinstance(zero, Constant):
        ends = int(np.min(zero.data)), int(np.max(zero.data))
    else:
        made = zero.owner
        if made is None or not isinstance(made.op, Cast):
            return 0
        given = made.inputs[0].type.dtype
        if given not in ("int8", "uint8"):
            return 0
        low_zero, high_zero = map(int, limits_of(given))
        ends = low_zero, high_zero
    return max(high - ends[0], ends[1] - low, 1)


def _parts(op: Any, w: Variable, axis: int, terms: int) -> list[slice]:
    """Parts of the terms' axis with at most ``terms`` terms each; none where that can't be."""
    sizes = (w.type.shape[axis], *(w.type.shape[2:] if op.is_conv else ()))
    if axis < 0 or None in sizes or not terms:
        return []
    count, *kernel = (int(n) for n in sizes if n is not None)
    step = terms // max(1, prod(kernel))
    if not step or not count:
        return []
    number = -(-count // step)
    if number > _MOST_PARTS or (number > 1 and op.is_conv and op.op.groups > 1):
        return []
    step = -(-count // number)
    return [slice(i, min(i + step, count)) for i in range(0, count, step)]


@node_rewrite(Dot, phase="lower", tags=("fusion",), target="cuda")
def product_with_a_vector(node: Apply, context: Context) -> Variable | None:
    """``dot(x, v) -> sum(x * v, 1)``, and with a vector on the left, or a single row or column;
    the product of a column and a row is elementwise.

    Memory bounds it, and a reduction takes in what is elementwise before it. A matrix library
    computes tiles of results.
    """
    (x, y), out = node.inputs, node.outputs[0].type
    if context.inner or out.dtype not in ("float32", "float64") or node.hints:
        return None
    columns, rows = x.type.ndim - 1, y.type.ndim - 1
    single = [x.type.ndim == 1 or x.type.shape[0] == 1, y.type.ndim == 1 or y.type.shape[-1] == 1]
    sizes = context.shapes.dims(x)[columns], context.shapes.dims(y)[0]
    if x.type.ndim == y.type.ndim == 2 and x.type.shape[1] == y.type.shape[0] == 1:
        return x * y
    if not any(single) or not context.shapes.same(*sizes):
        return None
    if single[1]:  # x v
        v = dimshuffle(y, (*["x"] * columns, 0))
        total = sum_(x * v, axis=columns)
        return total if rows == 0 else dimshuffle(total, (*range(columns), "x"))
    v = dimshuffle(x, (columns, "x"))
    total = sum_(y * v, axis=0)
    return total if columns == 0 else dimshuffle(total, ("x", 0))


@node_rewrite(BatchedDot, phase="lower", tags=("fusion",), target="cuda")
def gathered_with_vectors(node: Apply, context: Context) -> Variable | None:
    """``batched_dot(t[i], v) -> sum(t[i] * v, 2)`` for stacks of vectors, on any side.

    The reduction selects the rows itself, so that the matrices of candidates that are compared with
    a vector each (negative samples, items of a list) are never stored.
    """
    (x, y), out = node.inputs, node.outputs[0].type
    if context.inner or out.dtype not in ("float32", "float64") or node.hints:
        return None
    left = y.type.shape[2] != 1
    whole, v = (y, x) if left else (x, y)
    one, axis = (1, 1) if left else (2, 2)  # where the result has one element; that of the terms
    if v.type.shape[one] != 1 or whole.type.shape[3 - one] == 1:
        return None
    if made_by(whole, DimShuffle) and node_of(whole).op == DimShuffle((0, 2, 1)):
        whole, axis = node_of(whole).inputs[0], 3 - axis
    v = v if axis != one else dimshuffle(v, (0, 2, 1))
    dims = [context.shapes.dims(u) for u in (whole, v)]
    fits = all(context.shapes.same(dims[0][d], dims[1][d]) for d in (0, axis))
    if not made_by(whole, AdvancedSubtensor) or not fits:
        return None
    total = sum_(whole * v, axis=axis, keepdims=True)
    return total if axis == one else dimshuffle(total, (0, 2, 1))


@node_rewrite(Iv, phase="lower", tags=("fusion",), target="cuda")
def bessel_of_low_order(node: Apply, context: Context) -> Variable | None:
    """``iv(0, x) -> i0e(x) * exp(|x| / 2) ** 2``, and of orders 1 and -1 by ``i1e``.

    Elementwise kernels have these. Half of ``|x|`` each time, since all of it overflows first.
    """
    (order, x), dtype = node.inputs, node.outputs[0].type.dtype
    known = number(order)
    if known not in (0, 1, -1) or x.type.broadcastable != node.outputs[0].type.broadcastable:
        return None
    x = cast(x, work_dtype(dtype))
    half = exp(absolute(x) * like(0.5, x))
    found: Variable = (i1e(x) if known else i0e(x)) * half * half
    return cast(found, dtype)


@node_rewrite(
    ArgPartition, BincountLength, IsIn, OrderStatistics, Partition, PixelSums, PixelSumsGradImage,
    PixelSumsGradWeights, phase="lower", tags=("fast_compile",), name="write_out_selections",
    target="cuda",
)  # fmt: skip
def write_out_selections(node: Apply, context: Context) -> Sequence[Variable] | None:
    """Selections as parts of a sort, membership, lengths of counts, and sums of pixels as gathers,
    for which a GPU has no kernel of its own."""
    op: Any = node.op
    expanded: list[Variable] | None = op.expanded(*node.inputs)
    return expanded


@node_rewrite(
    AdvancedIncSubtensor, phase="lower", tags=("fast_compile",),
    name="write_out_complex_increments", target="cuda",
)  # fmt: skip
def write_out_complex_increments(node: Apply, context: Context) -> Variable | None:
    """Complex increments by index arrays as those of both parts."""
    op, (x, y, *index) = node.op, node.inputs
    assert isinstance(op, AdvancedIncSubtensor)
    if not x.type.is_complex or op.set_instead_of_inc:
        return None
    return Complex()(*(op(part()(x), part()(y), *index) for part in (Real, Imag)))


@node_rewrite(RNNGrad, phase="canonicalize", tags=("fast_compile",), name="write_out_rnn_lanes")
def write_out_rnn_lanes(node: Apply, context: Context) -> Sequence[Variable] | None:
    """Recurrent parameters' gradients of each lane as those of a loop, on a GPU.

    cuDNN adds up the gradients of all sequences, and no kernel can read its reserve.
    """
    op = node.op
    assert isinstance(op, RNNGrad)
    if not op.lanes or context.target.kind == "cpu":
        return None
    with written_out(op, "a loop with gradients of each lane"):
        return op.by_loop(node.inputs)


@node_rewrite(RNNForward, phase="lower", name="narrow_rnn_in_float32")
def narrow_rnn_in_float32(node: Apply, context: Context) -> Sequence[Variable] | None:
    """A recurrent network in 16 bits as that in float32, which a CPU has, in casts."""
    narrow = context.target.kind == "cpu" and is_narrow_float(node.inputs[1].type.dtype)
    return rnn_in_float32(node) if narrow else None


RULES = (
    write_out, write_out_product, product_with_a_vector, gathered_with_vectors, bessel_of_low_order,
    write_out_selections, write_out_complex_increments, write_out_rnn_lanes, narrow_rnn_in_float32,
)  # fmt: skip
