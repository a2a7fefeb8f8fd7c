"""Quantised values, exactly: whole numbers with a scale.

A pair of ``QuantizeLinear`` and ``DequantizeLinear`` has the gradient of the straight-through
estimator: that of the identity between the least and the greatest number, 0 beyond.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.op import Op
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable, constant
from symdnn.onnx.model.kinds import BITS, carrier, numpy_kind
from symdnn.onnx.model.node import Node
from symdnn.onnx.model.values import Value
from symdnn.onnx.ops.conv import conv_of, conv_op
from symdnn.ops.core.gradient_control import straight_through
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.quantize import FLOAT8, KINDS
from symdnn.ops.elementwise.storage import NARROW_FLOATS, narrow
from symdnn.ops.linalg.dot import Dot
from symdnn.ops.quantized.product import integer_product


def limits(kind: str) -> tuple[int, int]:
    """The least and the largest whole number of an integer kind."""
    if kind in BITS:
        return (
            (-(1 << BITS[kind] - 1), (1 << BITS[kind] - 1) - 1)
            if kind[0] == "i"
            else (0, (1 << BITS[kind]) - 1)
        )
    info = np.iinfo(kind)
    return int(info.min), int(info.max)


def rounded_to(x: Variable, zero: Variable | None, kind: str) -> Value:
    """``x`` rounded to whole numbers, moved by ``zero``, within the limits of ``kind``."""
    low, high = limits(kind)
    y = T.round(x, mode="half_to_even")
    if zero is not None:
        y = y + zero.astype(x.type.dtype)
    y = T.clip(y, np.asarray(low, x.type.numpy), np.asarray(high, x.type.numpy))
    return Value(y.astype(carrier(kind)), kind)


def _along(node: Node, p: Variable | None, x: Variable, axis: int, block: int) -> Variable | None:
    """A scale or zero point in a form that broadcasts with ``x``."""
    if p is None or p.ndim == 0:
        return p
    if p.ndim == 1 and p.type.shape == (1,) and not block:
        return p.reshape(())
    if not block:
        if p.ndim != 1:
            raise node.error(f"a scale of shape {p.type.shape} for an axis")
        return p.dimshuffle(*[0 if i == axis else "x" for i in range(x.ndim)])
    wide = T.repeat(p, block, axis=axis)
    size = dims_of(x)[axis]
    cut = [slice(None)] * axis + [slice(None, size)]
    return wide[tuple(cut)]


def _parameters(node: Node, x: Variable) -> tuple[Variable, Variable | None]:
    # One scale is for all elements, whatever its number of dimensions and the axis.
    several = x.ndim and node.x(1).ndim and node.x(1).type.shape != (1,)
    axis = node.axis(x.ndim, 1) if several else 0
    block = int(node.attribute("block_size", 0))
    scale = _along(node, node.x(1), x, axis, block)
    assert scale is not None, "the scale is an input that must be there"
    return scale, _along(node, node.optional(2), x, axis, block)


def _quantize(node: Node) -> Value:
    x = node.x()
    kind = node.kind_attribute("output_dtype")
    kind = node.value(2).kind if node.has(2) else (kind or "uint8")
    scale, zero = _parameters(node, x)
    if _is_plain(node, x, scale, kind):
        codes = T.nnet.quantize(x, scale, None if kind in FLOAT8 else zero, kind)
        if kind not in FLOAT8:
            return Value(codes, kind)
        made = Value(T.nnet.dequantize(codes, np.float32(1), dtype=kind), kind)
        made.bits = codes
        return made
    found = quantized(node, x, scale, zero, kind)
    if x.type.is_float and kind not in NARROW_FLOATS:
        low, high = (_real_limit(n, scale, zero, x) for n in limits(kind))
        found.real = T.minimum(T.maximum(x, low), high)
    return found


def _is_plain(node: Node, x: Variable, scale: Variable, kind: str) -> bool:
    """Whether it is computed in float32, to at most 16 bits, as symdnn's own op does."""
    precision = node.kind_attribute("precision") or scale.type.dtype
    floats = x.type.is_float and x.type.dtype != "float64" and precision == "float32"
    return floats and kind in KINDS and kind != "int32" and bool(node.attribute("saturate", 1))


def _real_limit(number: int, scale: Variable, zero: Variable | None, x: Variable) -> Variable:
    """The real number for which the least or greatest whole number stands."""
    dtype = x.type.dtype
    shift = np.asarray(number, x.type.numpy)
    moved = shift if zero is None else shift - zero.astype(dtype)
    return moved * scale.astype(dtype)


def quantized(node: Node, x: Variable, scale: Variable, zero: Variable | None, kind: str) -> Value:
    """``x / scale + zero`` in the numbers of ``kind``."""
    precision = node.kind_attribute("precision") or None
    if precision is None:
        precision = scale.type.dtype if scale.type.is_float else "float32"
    work = precision if precision in ("float16", "bfloat16", "float32", "float64") else "float32"
    y = (x.astype(work) / scale.astype(work)).astype(work)
    if kind in NARROW_FLOATS:
        return Value(narrow(y, kind, bool(node.attribute("saturate", 1))), kind)
    if limits(kind)[1] > 1 << 20 or work in ("float16", "bfloat16"):
        y = y.astype("float32" if limits(kind)[1] <= 1 << 20 else "float64")
    return rounded_to(y, zero, kind)


def _dequantize(node: Node) -> Value:
    x = node.x()
    kind = node.kind_attribute("output_dtype")
    scale, zero = _parameters(node, x)
    if node.value(0).bits is not None or (node.value(0).kind in FLOAT8 and _known(node)):
        bits = node.value(0).bits or constant(_bits(node.value(0)))
        out = carrier(kind or scale.type.dtype)
        return Value(T.nnet.dequantize(bits, scale, dtype=node.value(0).kind, out=out))
    y = dequantized(x, scale, zero, kind)
    real = node.value(0).real
    if real is not None and real.type.dtype == y.type.dtype and real.ndim == y.ndim:
        y = straight_through(y, real)
    return Value(y)


def _known(node: Node) -> bool:
    """Whether the codes are constants, and the zero point is none that would change them."""
    return node.value(0).array is not None


def _bits(value: Value) -> Array:
    """The bits of a constant of float8."""
    assert value.array is not None, "the value is known"
    return value.array.astype(numpy_kind(value.kind)).view(np.uint8)


def dequantized(x: Variable, scale: Variable, zero: Variable | None, kind: str | None) -> Variable:
    """``(x - zero) * scale`` in the dtype of the scale, or ``kind``."""
    out = kind or scale.type.dtype
    if x.type.dtype in KINDS and scale.type.is_float:
        return T.nnet.dequantize(x, scale, zero, out=carrier(out))
    if x.type.is_discrete:
        difference = x.astype("int32")
        if zero is not None:
            difference = difference - zero.astype("int32")
        wide = difference.astype("float32")
    else:
        wide = x if zero is None else x - zero.astype(x.type.dtype)
    return (wide * scale.astype("float32")).astype(carrier(out))


def dequantized_columns(x: Variable, scale: Variable, zero: Variable | None) -> Variable:
    """A matrix of codes as floats; scale and zero point are those of all, or of each column."""

    def along(v: Variable) -> Variable:
        if v.ndim != 1:
            return v
        return v.reshape(()) if v.type.shape == (1,) else v.dimshuffle(*["x"] * (x.ndim - 1), 0)

    return dequantized(x, along(scale), None if zero is None else along(zero), None)


def _dynamic(node: Node) -> list[Any]:
    """uint8 with a scale from the least and largest element; it is 1 if all are 0."""
    x = node.x()
    zero = np.asarray(0, x.type.numpy)
    low, high = T.minimum(T.min(x), zero), T.maximum(T.max(x), zero)
    scale = (high - low) / np.float32(255)
    scale = T.switch(T.eq(scale, zero), np.float32(1), scale)
    point = T.clip(T.round(-low / scale, mode="half_to_even"), np.float32(0), np.float32(255))
    y = rounded_to(x / scale, point, "uint8")
    return [y, scale, point.astype("uint8")]


def _centred(node: Node, i: int, zero: int, channel: int | None) -> Variable:
    """An integer operand less its zero point, as float64 in which sums of products are exact."""
    x = node.x(i).astype("float64")
    if not node.has(zero):
        return x
    point = node.x(zero).astype("float64")
    if point.ndim == 1 and channel is not None and point.type.shape != (1,):
        point = point.dimshuffle(*[0 if k == channel else "x" for k in range(x.ndim)])
    elif point.ndim == 1 and point.type.shape == (1,):
        point = point.reshape(())
    return x - point


def _sums(node: Node, a: int, b: int, zeros: tuple[int, int], op: str) -> Variable:
    """The exact int32 sums of products of integers less their zero points.

    Of 8 bits they are one op, which int8 instructions compute; others are sums in float64.
    """
    x, w = node.x(a), node.x(b)
    product: Op | None = conv_op(node, x, w) if op == "conv" else Dot()
    points = [_point(node, i) for i in zeros]
    narrow = all(v.type.dtype in ("int8", "uint8") for v in (x, w))
    matrices = op == "conv" or (w.ndim == 2 and x.ndim >= 2)
    if product is not None and narrow and matrices and (points[0] is None or not points[0].ndim):
        if op == "conv":
            return integer_product(product, x, w, *points)
        *lead, k = dims_of(x)
        rows = x if x.ndim == 2 else x.reshape((-1, k))
        y = integer_product(product, rows, w, *points)
        return y if x.ndim == 2 else y.reshape((*lead, dims_of(w)[1]), ndim=x.ndim)
    if op == "conv":
        wide = _centred(node, a, zeros[0], None), _centred(node, b, zeros[1], 0)
        return conv_of(node, *wide, None).astype("int32")
    left = _centred(node, a, zeros[0], x.ndim - 2)
    return T.matmul(left, _centred(node, b, zeros[1], w.ndim - 1)).astype("int32")


def _point(node: Node, i: int) -> Variable | None:
    """A zero point as a scalar or vector; None for none, or for zeros."""
    if not node.has(i):
        return None
    known, point = node.value(i).array, node.x(i)
    if known is not None and not np.any(known):
        return None
    return point.reshape(()) if point.type.shape == (1,) else point


def _matmul_integer(node: Node) -> Variable:
    return _sums(node, 0, 1, (2, 3), "dot")


def _conv_integer(node: Node) -> Variable:
    return _sums(node, 0, 1, (2, 3), "conv")


def _scaled(node: Node, y: Variable, scales: tuple[int, int, int], channel: int | None) -> Value:
    """An exact integer result in the numbers of the output."""
    a, b, out = (node.x(i).astype("float32") for i in scales)
    factor = a.reshape(()) if a.ndim == 1 and a.type.shape == (1,) else a
    other = b
    if b.ndim == 1 and channel is not None and b.type.shape != (1,):
        other = b.dimshuffle(*[0 if k == channel else "x" for k in range(y.ndim)])
    elif b.ndim == 1 and b.type.shape == (1,):
        other = b.reshape(())
    if factor.ndim == 1:
        factor = factor.dimshuffle(0, "x")
    out = out.reshape(()) if out.type.shape == (1,) else out
    scaled = y.astype("float32") * (factor * other / out)
    zero = node.x(scales[2] + 1)
    zero = zero.reshape(()) if zero.type.shape == (1,) else zero
    return rounded_to(scaled, zero, node.value(scales[2] + 1).kind)


def _qlinear_matmul(node: Node) -> Value:
    y = _sums(node, 0, 3, (2, 5), "dot")
    return _scaled(node, y, (1, 4, 6), y.ndim - 1)


def _qlinear_conv(node: Node) -> Value:
    y = _sums(node, 0, 3, (2, 5), "conv")
    if node.has(8):
        y = y + node.x(8).dimshuffle("x", 0, *["x"] * (y.ndim - 2))
    return _scaled(node, y, (1, 4, 6), 1)


OPS: dict[str, Any] = {
    "QuantizeLinear": _quantize, "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic, "MatMulInteger": _matmul_integer,
    "ConvInteger": _conv_integer, "QLinearMatMul": _qlinear_matmul, "QLinearConv": _qlinear_conv,
}  # fmt: skip
