"""Functions of one tensor, element by element, and activation functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.kinds import carrier, is_narrow
from symdnn.onnx.model.node import Node
from symdnn.onnx.model.values import Optional, Value
from symdnn.onnx.ops.casts import as_kind
from symdnn.ops.elementwise.activations import rounded_once
from symdnn.ops.elementwise.storage import bitcast


def _of(function: Callable[[Variable], Variable]) -> Callable[[Node], Any]:
    """The builder of a function of one tensor, in the tensor's dtype."""

    def build(node: Node) -> Variable:
        x = node.x()
        return function(x).astype(x.type.dtype)

    return build


def number(x: Variable, value: Any) -> Variable:
    """A constant of the dtype of ``x``."""
    return T.constant(np.asarray(value, dtype=x.type.numpy))


def _isinf(node: Node) -> Variable:
    x = node.x()
    up, down = node.attribute("detect_positive", 1), node.attribute("detect_negative", 1)
    if up and down:
        return T.isinf(x)
    if up:
        return T.isposinf(x)
    return T.isneginf(x) if down else T.zeros_like(x, dtype="bool")


def _relu(node: Node) -> Variable:
    x = node.x()
    return T.nnet.relu(x) if x.type.is_float else T.maximum(x, number(x, 0))


def _leaky_relu(node: Node) -> Variable:
    return T.nnet.leaky_relu(node.x(), number(node.x(), node.attribute("alpha", 0.01)))


def _thresholded_relu(node: Node) -> Variable:
    x = node.x()
    return T.switch(x > number(x, node.attribute("alpha", 1.0)), x, number(x, 0))


def _elu(node: Node) -> Variable:
    return T.nnet.elu(node.x(), number(node.x(), node.attribute("alpha", 1.0)))


def _celu(node: Node) -> Variable:
    x, alpha = node.x(), node.attribute("alpha", 1.0)
    zero = number(x, 0)
    return T.maximum(x, zero) + T.minimum(zero, number(x, alpha) * T.expm1(x / number(x, alpha)))


def _selu(node: Node) -> Variable:
    x = node.x()
    alpha = node.attribute("alpha", 1.67326319217681884765625)
    gamma = node.attribute("gamma", 1.05070102214813232421875)
    return number(x, gamma) * T.nnet.elu(x, number(x, alpha))


def _line(x: Variable, slope: float, shift: float) -> Variable:
    """The line, limited to 0 .. 1."""
    return T.clip(x * number(x, slope) + number(x, shift), number(x, 0), number(x, 1))


def _hard_sigmoid(node: Node) -> Variable:
    slope, shift = node.attribute("alpha", 0.2), node.attribute("beta", 0.5)
    return rounded_once(lambda x: _line(x, slope, shift), node.x())


def _hard_swish(node: Node) -> Variable:
    return rounded_once(lambda x: x * _line(x, 1 / 6, 0.5), node.x())


def _mish(node: Node) -> Variable:
    return node.x() * T.tanh(T.nnet.softplus(node.x()))


def _swish(node: Node) -> Variable:
    x = node.x()
    return x * T.nnet.sigmoid(x * number(x, node.attribute("alpha", 1.0)))


def _gelu(node: Node) -> Variable:
    return T.nnet.gelu(node.x(), approximate=node.attribute("approximate", "none") == "tanh")


def _shrink(node: Node) -> Variable:
    x = node.x()
    bias, edge = node.attribute("bias", 0.0), node.attribute("lambd", 0.5)
    wide = x if x.type.is_float else x.astype("float64")
    below = T.switch(wide < -edge, wide + bias, number(wide, 0))
    return T.switch(wide > edge, wide - bias, below).astype(x.type.dtype)


def _prelu(node: Node) -> Variable:
    x, slope = node.x(), node.x(1)
    if node.version < 7 and slope.ndim == 1 and x.ndim > 2:  # one for each channel
        slope = slope.dimshuffle(0, *["x"] * (x.ndim - 2))
    return T.switch(x < number(x, 0), x * slope, x)


def _clip_before_11(node: Node) -> Variable:
    x = node.x()
    low, high = node.attribute("min"), node.attribute("max")
    return _clipped(x, None if low is None else number(x, low),
                    None if high is None else number(x, high))  # fmt: skip


def _clip(node: Node) -> Variable:
    return _clipped(node.x(), node.optional(1), node.optional(2))


def _clipped(x: Variable, low: Variable | None, high: Variable | None) -> Variable:
    # A bound is a scalar; some programs write a vector of one.
    low, high = (b if b is None or b.ndim == 0 else b.reshape(()) for b in (low, high))
    x = x if low is None else T.maximum(x, low)
    return x if high is None else T.minimum(x, high)


def _identity(node: Node) -> Any:
    return node.input(0)


def _round(node: Node) -> Variable:
    return T.round(node.x(), mode="half_to_even")


def _softplus(node: Node) -> Variable:
    return T.nnet.softplus(node.x())


def _not(node: Node) -> Variable:
    return T.invert(node.x())


def _cast_like(node: Node) -> Value:
    return as_kind(node, node.value(0), node.value(1).kind)


def _cast(node: Node) -> Value:
    kind = node.kind_attribute("to")
    if kind is None:
        raise node.error("the attribute to is missing")
    return as_kind(node, node.value(0), kind)


def _bit_cast(node: Node) -> Value:
    kind = node.kind_attribute("to")
    if kind is None:
        raise node.error("the attribute to is missing")
    if is_narrow(kind) or node.value(0).is_narrow:
        raise node.error(f"bits of {node.value(0).kind} as {kind} are not read")
    return Value(bitcast(node.x(), carrier(kind)))


def _dropout(node: Node) -> Any:
    """Dropout in a graph that is run: the identity, and a mask of ones."""
    x = node.x()
    if node.version >= 12 and node.has(2) and bool(node.known(2, "training_mode").ravel()[0]):
        ratio = float(node.known(1, "ratio").ravel()[0]) if node.has(1) else 0.5
        return _drop(node, x, ratio)
    kind = "bool" if node.version >= 10 else x.type.dtype
    return [x, T.ones_like(x, dtype=kind)]


def _drop(node: Node, x: Variable, ratio: float) -> list[Variable]:
    from symdnn.onnx.ops.random import stream_of

    if ratio == 0:
        return [x, T.ones_like(x, dtype="bool")]
    mask = stream_of(node).uniform(size=x.shape, dtype="float32") >= np.float32(ratio)
    return [x * mask.astype(x.type.dtype) / number(x, 1 - ratio), mask]


def _optional_has_element(node: Node) -> Value:
    found = node.inputs[0] if node.inputs else None
    there = found is not None and not (isinstance(found, Optional) and found.value is None)
    return Value.of(np.asarray(there))


def _optional_get_element(node: Node) -> Any:
    found = node.input(0)
    value = found.value if isinstance(found, Optional) else found
    if value is None:
        raise node.error("the optional value is absent")
    return value


def _optional(node: Node) -> Optional:
    return Optional(node.inputs[0] if node.inputs else None)


OPS = {
    "Abs": _of(T.abs_), "Acos": _of(T.arccos), "Acosh": _of(T.arccosh), "Asin": _of(T.arcsin),
    "Asinh": _of(T.arcsinh), "Atan": _of(T.arctan), "Atanh": _of(T.arctanh),
    "Ceil": _of(T.ceil), "Cos": _of(T.cos), "Cosh": _of(T.cosh), "Erf": _of(T.erf),
    "Exp": _of(T.exp), "Floor": _of(T.floor), "Log": _of(T.log), "Neg": _of(T.neg),
    "Reciprocal": _of(T.reciprocal), "Round": _round, "Sigmoid": _of(T.nnet.sigmoid),
    "Sign": _of(T.sgn), "Sin": _of(T.sin), "Sinh": _of(T.sinh), "Softplus": _softplus,
    "Softsign": _of(T.nnet.softsign), "Sqrt": _of(T.sqrt), "Tan": _of(T.tan), "Tanh": _of(T.tanh),
    "IsNaN": lambda node: T.isnan(node.x()), "IsInf": _isinf, "Not": _not,
    "BitwiseNot": _not, "Relu": _relu, "LeakyRelu": _leaky_relu,
    "ThresholdedRelu": _thresholded_relu, "Elu": _elu, "Celu": _celu, "Selu": _selu,
    "HardSigmoid": _hard_sigmoid, "HardSwish": _hard_swish, "Mish": _mish, "Swish": _swish,
    "Gelu": _gelu, "Shrink": _shrink, "PRelu": _prelu,
    "Clip": {1: _clip_before_11, 11: _clip}, "Identity": _identity, "Cast": _cast,
    "CastLike": _cast_like, "BitCast": _bit_cast, "Dropout": _dropout, "Optional": _optional,
    "OptionalHasElement": _optional_has_element, "OptionalGetElement": _optional_get_element,
}  # fmt: skip
