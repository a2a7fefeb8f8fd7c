"""Products of dequantised values as products of their integer codes, which libraries compute in 8
bits.

``conv(dequantize(x), dequantize(w))`` is the exact sum of products of the codes, scaled once, if
``x`` has one scale, ``w`` one for each output channel, and neither a zero point. A bias, an addend,
a relu and the quantisation of the result are fused if nothing else reads the values between.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from symdnn.graph.op import Op
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.shape import DimShuffle, Reshape, dimshuffle
from symdnn.ops.elementwise.activations import Relu
from symdnn.ops.elementwise.arithmetic import Add, cast
from symdnn.ops.elementwise.quantize import FLOAT8, Dequantize, Quantize, is_zero
from symdnn.ops.linalg.dot import BatchedDot
from symdnn.ops.nn.conv import Conv
from symdnn.ops.quantized.product import TERMS, QuantizedProduct
from symdnn.rewriting.facts import all_ones, only_axis
from symdnn.rewriting.rewrite import Context


@dataclass(frozen=True)
class Codes:
    """A dequantised value: its codes, with broadcast scale and zero point."""

    codes: Variable
    scale: Variable
    zero: Variable
    kind: str
    dtype: str


def codes_of(v: Variable) -> Codes | None:
    """The codes of which ``v`` is the dequantised value, seen through views; else None."""
    node = v.owner
    if node is None:
        return None
    op: Any = node.op
    if isinstance(op, Dequantize):
        codes, scale, zero = node.inputs
        return Codes(codes, scale, zero, op.kind, op.dtype)
    if isinstance(op, DimShuffle) and (found := codes_of(node.inputs[0])) is not None:
        codes, scale, zero = (
            dimshuffle(p, op.pattern) for p in (found.codes, found.scale, found.zero)
        )
        return replace(found, codes=codes, scale=scale, zero=zero)
    if isinstance(op, Reshape) and (found := codes_of(node.inputs[0])) is not None:
        if not (all_ones(found.scale) and all_ones(found.zero)):
            return None
        ones = ("x",) * v.type.ndim
        scale, zero = (dimshuffle(_vector(p), ones) for p in (found.scale, found.zero))
        return replace(found, codes=op(found.codes, *node.inputs[1:]), scale=scale, zero=zero)
    return None


def _vector(p: Variable, axis: int = 0) -> Variable:
    """A scale or zero point as a scalar, or as a vector along ``axis``."""
    return dimshuffle(p, () if all_ones(p) else (axis,))


def _channel_axis(op: Op, ndim: int) -> int:
    """The axis of ``w`` that is that of the output channels."""
    return 0 if isinstance(op, Conv) else ndim - 1


def why_no_product(node: Apply) -> str | None:
    """Why a product is not one of codes with scales behind it; None if it is."""
    found = [codes_of(v) for v in node.inputs[:2]]
    x, w = found
    if x is None or w is None:
        return "its operands are not dequantised values"
    if (x.kind in FLOAT8) != (w.kind in FLOAT8):
        return f"its operands are of {x.kind} and {w.kind}"
    if any(c.codes.type.dtype not in ("int8", "uint8") for c in (x, w)):
        return "its operands have more than 8 bits"
    if not all_ones(x.scale) or not all_ones(x.zero):
        return "the left operand has a scale for each entry of an axis"
    if not is_zero(w.zero):
        return "the right operand has a zero point"
    axis = _channel_axis(node.op, w.codes.type.ndim)
    ones = w.scale.type.broadcastable
    if not all(b for i, b in enumerate(ones) if i != axis):
        return "the right operand's scale varies along another axis than that of the outputs"
    if not all_ones(w.scale) and isinstance(node.op, BatchedDot):
        return "a stack of products has one scale for each operand"
    return None


def codes_of_operands(node: Apply) -> tuple[Codes, Codes]:
    """The codes of both operands of a node that :func:`why_no_product` has no reason against."""
    x, w = (codes_of(v) for v in node.inputs[:2])
    assert x is not None, "why_no_product found no reason"
    assert w is not None, "why_no_product found no reason"
    return x, w


def product_of_codes(node: Apply) -> Variable:
    """The scaled product of codes that a product of dequantised values is."""
    x, w = codes_of_operands(node)
    given: dict[str, Variable] = {}
    if not is_zero(x.zero) and x.kind not in FLOAT8:
        given["x_zero"] = cast(_vector(x.zero), "int32")
    given["x_scale"] = cast(_vector(x.scale), "float32")
    axis = _channel_axis(node.op, w.codes.type.ndim)
    given["w_scale"] = cast(_vector(w.scale, axis), "float32")
    kinds = (x.kind, w.kind) if x.kind in FLOAT8 else ("", "")
    op = QuantizedProduct(node.op, tuple(given), node.outputs[0].type.dtype, kinds=kinds)
    return op(x.codes, w.codes, *given.values(), hints=node.hints)


# -- what stands behind ---------------------------------------------------------------------------


def longer_product(node: Apply, context: Context, layout: str) -> tuple[Variable, Variable] | None:
    """(a later value, that value by a longer product), where a product takes its only reader.

    ``node`` is one of a library's op around a :class:`QuantizedProduct`, whose field ``op`` it is.
    """
    low: Any = node.op
    product: QuantizedProduct = low.op
    y = node.outputs[0]
    if product.out != "float32" or "x_scale" not in product.terms or not context.only_user(y):
        return None
    (user,) = context.fgraph.user_nodes(y)
    between = None
    if isinstance(user.op, Reshape) and _keeps_last(user, context):
        between = user
        if not context.only_user(user.outputs[0]):
            return None
        (user,) = context.fgraph.user_nodes(user.outputs[0])
    at = y if between is None else between.outputs[0]
    taken = _taken(product, user, at, layout, context)
    if taken is None:
        return None
    value, op, more = taken
    given = {**dict(zip(product.terms, node.inputs[2:], strict=True)), **more}
    terms = tuple(n for n in TERMS if n in given)
    inputs = (*node.inputs[:2], *(given[n] for n in terms))
    made: Variable = replace(low, op=replace(op, terms=terms))(*inputs, hints=node.hints)
    return value, made if between is None else between.op(made, *between.inputs[1:])


def _keeps_last(user: Apply, context: Context) -> bool:
    v, out = user.inputs[0], user.outputs[0]
    if v.type.ndim != 2 or out.type.ndim < 2:
        return False
    return context.shapes.same(context.shapes.dims(v)[-1], context.shapes.dims(out)[-1])


#: A later value, the product that computes it, and the product's new inputs.
_Taken = tuple[Variable, QuantizedProduct, dict[str, Variable]] | None


def _taken(
    product: QuantizedProduct, user: Apply, y: Variable, layout: str, context: Context
) -> _Taken:
    """The product with the fused reader of ``y``, and its value; None if it can't be fused."""
    if isinstance(user.op, Relu) and not product.relu:
        return user.outputs[0], replace(product, relu=True), {}
    if isinstance(user.op, Quantize):
        return _rounded(product, user, y)
    first = not product.relu and "z" not in product.terms
    if isinstance(user.op, Add) and first and user.outputs[0].type.dtype == "float32":
        other = user.inputs[1 - list(user.inputs).index(y)]
        axis = 1 if product.is_conv and layout == "NCHW" else y.type.ndim - 1
        is_bias = only_axis(other) == axis and other is not y and other.type.dtype == "float32"
        if is_bias and "bias" not in product.terms:
            return user.outputs[0], product, {"bias": _vector(other, axis)}
        return _with_addend(product, user, y, other, context)
    return None


def _rounded(product: QuantizedProduct, user: Apply, y: Variable) -> _Taken:
    x, scale, zero = user.inputs
    op: Any = user.op
    if x is not y or op.kind not in ("int8", "uint8") or not (all_ones(scale) and all_ones(zero)):
        return None
    more = {"y_scale": cast(_vector(scale), "float32")}
    if not is_zero(zero):
        more["y_zero"] = cast(_vector(zero), "int32")
    return user.outputs[0], replace(product, out=op.kind), more


def _with_addend(
    product: QuantizedProduct, user: Apply, y: Variable, other: Variable, context: Context
) -> _Taken:
    """The product with a dequantised addend, relu, and the rounding to the addend's dtype."""
    z = codes_of(other)
    if z is None or y.type.broadcastable != z.codes.type.broadcastable:
        return None
    scale, zero = (constant_value(p) for p in (z.scale, z.zero))
    reader, relu = user, False
    if scale is None or zero is None or not context.only_user(user.outputs[0]):
        return None
    (reader,) = context.fgraph.user_nodes(user.outputs[0])
    if isinstance(reader.op, Relu) and context.only_user(reader.outputs[0]):
        relu, last = True, reader.outputs[0]
        (reader,) = context.fgraph.user_nodes(last)
    else:
        last = user.outputs[0]
    if not isinstance(reader.op, Quantize) or reader.op.kind != z.codes.type.dtype:
        return None
    added = replace(product, relu=relu, z_scale=float(scale), z_zero=int(zero))
    found = _rounded(added, reader, last)
    return found and (found[0], found[1], {**found[2], "z": z.codes})


def constant_value(p: Variable) -> float | None:
    """The number of a constant with one element, seen through views; else None."""
    while p.owner is not None and isinstance(p.owner.op, DimShuffle):
        p = p.owner.inputs[0]
    one = isinstance(p, Constant) and np.size(p.data) == 1
    return np.asarray(p.data).item() if one else None  # type: ignore[attr-defined]
