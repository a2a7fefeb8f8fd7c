"""Numbers of 8 bits of ``com.microsoft``: what quantisers of ONNX Runtime write."""

from __future__ import annotations

from typing import Any

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.onnx.model.values import Value
from symdnn.onnx.ops.elementwise import number
from symdnn.onnx.ops.microsoft.known import known
from symdnn.onnx.ops.norms import layer_norm
from symdnn.onnx.ops.quantize import dequantized, dequantized_columns
from symdnn.ops.core.shape import dims_of


def _matmul_integer_to_float(node: Node) -> Variable:
    a = dequantized(node.x(), node.x(2), node.optional(4), None)
    b = dequantized_columns(node.x(1), node.x(3), node.optional(5))
    y = T.matmul(a, b)
    return y + node.x(6) if node.has(6) else y


def _dynamic_matmul(node: Node) -> Variable:
    codes, scale, zero = node.scope.call("DynamicQuantizeLinear", node.value(0), outputs=3)
    x = dequantized(codes.variable, scale.variable, zero.variable, None)
    b = dequantized_columns(node.x(1), node.x(2), node.optional(3))
    y = T.matmul(x, b)
    return y + node.x(4) if node.has(4) else y


# -- 8 bits in, 8 bits out: nodes that ONNX Runtime's quantize_static writes -----------------------


def _real(node: Node, i: int) -> Variable:
    """Input ``i`` of 8 bits, whose scale and zero point follow it, as floats."""
    return dequantized(node.x(i), node.x(i + 1), node.optional(i + 2), None)


def _rounded(node: Node, y: Variable | Value, i: int) -> Value:
    """A result in 8 bits, by the scale that is input ``i`` and the zero point after it."""
    inputs = [y, node.value(i), *([node.value(i + 1)] if node.has(i + 1) else [])]
    return node.scope.call("QuantizeLinear", *inputs)[0]


def _qlinear_binary(op: str) -> Any:
    def build(node: Node) -> Value:
        return _rounded(node, node.scope.call(op, _real(node, 0), _real(node, 3))[0], 6)

    return build


def _qlinear_unary(op: str) -> Any:
    def build(node: Node) -> Value:
        options = {k: v for k, v in node.attributes.items() if k not in ("channels_last", "opset")}
        last = bool(node.attribute("channels_last", 0))
        y = node.scope.call(op, _channels(_real(node, 0), 1 if last else None), **options)[0]
        return _rounded(node, _channels(y.variable, -1 if last else None), 3)

    return build


def _channels(x: Variable, to: int | None) -> Variable:
    """``x`` with channels from the last axis to the second (1), or from the second to the last."""
    if to is None:
        return x
    axes = list(range(x.ndim))
    return x.transpose((0, x.ndim - 1, *axes[1:-1]) if to == 1 else (0, *axes[2:], 1))


def _channels_last(op: str, *images: int) -> Any:
    """An op of the default domain on images whose channels are last."""

    def build(node: Node) -> Value:
        inputs = list(node.inputs)
        for i in images:
            inputs[i] = Value(_channels(node.x(i), 1), node.value(i).kind)
        options = {k: v for k, v in node.attributes.items() if k != "channels_last"}
        (y,) = node.scope.call(op, *inputs, **options)
        return Value(_channels(y.variable, -1), y.kind)

    return build


def _qlinear_conv(node: Node) -> Any:
    if node.attribute("channels_last", 0):
        return _channels_last("QLinearConv", 0)(node)
    options = {k: v for k, v in node.attributes.items() if k != "channels_last"}
    return node.scope.call("QLinearConv", *node.inputs, **options)


def _qlinear_mean(node: Node) -> Value:
    y = node.scope.call("ReduceMean", _real(node, 0), **node.attributes)[0]
    return _rounded(node, y, 3)


def _embed_layer_norm(node: Node) -> list[Variable | None]:
    """``EmbedLayerNormalization`` of tables in 8 bits."""
    tables = [
        dequantized(node.x(i), node.x(i + 6), node.optional(i + 11), None) if node.has(i) else None
        for i in range(2, 7)
    ]
    words, positions, segments, gamma, beta = tables
    assert words is not None, "an input that must be there"
    assert positions is not None, "an input that must be there"
    ids = node.x()
    places = T.take(positions, T.arange(dims_of(ids)[1], dtype="int64"), axis=0)
    x = T.take(words, ids.astype("int64"), axis=0) + T.shape_padleft(places)
    if segments is not None and node.has(1):
        x = x + T.take(segments, node.x(1).astype("int64"), axis=0)
    y = layer_norm(x, gamma, beta, 2, node.attribute("epsilon", 1e-12))
    counts = T.zeros((dims_of(ids)[0],), dtype="int32")
    if node.has(7):
        counts = T.sum(node.x(7).astype("int32"), axis=1).astype("int32")
    return [y, counts]


def _qlinear_softmax(node: Node) -> Value:
    x = _real(node, 0)
    axis = int(node.attribute("axis", -1)) % x.ndim
    if int(node.attribute("opset", 13)) < 13 and axis != x.ndim - 1:
        x = x.reshape((*(x.shape[k] for k in range(axis)), -1))  # one softmax of all axes from it
    y = T.softmax(x, axis=axis)
    return _rounded(node, y.reshape(tuple(node.x(0).shape)), 3)


def _qlinear_concat(node: Node) -> Value:
    parts = [_real(node, i) for i in range(2, len(node.inputs), 3)]
    axis = node.axis(parts[0].ndim, None)
    return _rounded(node, T.concatenate(parts, axis=axis), 0)


def _qlinear_where(node: Node) -> Value:
    chosen = node.scope.call("Where", node.value(0), _real(node, 1), _real(node, 4))[0]
    return _rounded(node, chosen, 7)


def _q_gemm(node: Node) -> Value:
    """``alpha A B + C``, where C are 32-bit codes of scale ``alpha a_scale b_scale``."""
    columns = 0 if node.attribute("transB", 0) else 1

    def of_columns(v: Variable | None) -> Variable | None:
        order = [0 if k == columns else "x" for k in range(2)]
        return v if v is None or v.ndim == 0 or v.type.shape == (1,) else v.dimshuffle(*order)

    scale = of_columns(node.x(4))
    assert scale is not None, "an input that must be there"
    a, b = _real(node, 0), dequantized(node.x(3), scale, of_columns(node.optional(5)), None)
    a, b = a.T if node.attribute("transA", 0) else a, b if columns else b.T
    alpha = number(a, node.attribute("alpha", 1.0))
    y = alpha * T.dot(a, b)
    if node.has(6):
        y = y + node.x(6).astype(a.type.dtype) * (alpha * node.x(1) * node.x(4))
    return _rounded(node, y, 7) if node.has(7) else Value(y)


def _dynamic_lstm(node: Node) -> Any:
    """``LSTM`` of weights in 8 bits, as quantize_dynamic of ONNX Runtime writes it.

    W and R are (directions, inputs, 4 hidden), with one scale or one for each direction or column.
    The activations stay floats, which ONNX Runtime rounds to 8 bits.
    """
    x, _, _, *rest = [*node.inputs, *[None] * 12][:8]

    def real(codes: int, scale: int) -> Value:
        wide = [node.x(i).astype("float32") for i in (codes, scale, scale + 1)]
        w, *of_column = wide
        factor, zero = (v if v.ndim == 0 else v.reshape((v.shape[0], 1, -1)) for v in of_column)
        return Value(((w - zero) * factor).transpose((0, 2, 1)))

    inputs = [x, real(1, 8), real(2, 10), *rest]
    return node.scope.call("LSTM", *inputs, outputs=len(node.wanted), **node.attributes)


def _default(op: str) -> Any:
    """The op of the default domain with this name."""

    def build(node: Node) -> Any:
        return node.scope.call(op, *node.inputs, **node.attributes)

    return build


_POOL = "auto_pad ceil_mode channels_last count_include_pad kernel_shape pads strides dilations"
_CONV = "auto_pad channels_last dilations group kernel_shape pads strides"

OPS: dict[str, Any] = {
    "MatMulIntegerToFloat": known(_matmul_integer_to_float, 7),
    "DynamicQuantizeMatMul": known(_dynamic_matmul, 5),
    "DynamicQuantizeLSTM": known(
        _dynamic_lstm, 12, "activation_alpha activation_beta activations clip direction "
        "hidden_size input_forget",
    ),
    "QLinearAdd": known(_qlinear_binary("Add"), 8),
    "QLinearMul": known(_qlinear_binary("Mul"), 8),
    "QLinearWhere": known(_qlinear_where, 9),
    "QGemm": known(_q_gemm, 9, "alpha transA transB"),
    "QLinearAveragePool": known(_qlinear_unary("AveragePool"), 5, _POOL),
    "QLinearGlobalAveragePool": known(_qlinear_unary("GlobalAveragePool"), 5, "channels_last"),
    "QLinearConcat": known(_qlinear_concat, 1 << 20, "axis"),
    "QLinearConv": known(_qlinear_conv, 9, _CONV),
    "QLinearLeakyRelu": known(_qlinear_unary("LeakyRelu"), 5, "alpha"),
    "QLinearReduceMean": known(_qlinear_mean, 5, "axes keepdims"),
    "QLinearSigmoid": known(_qlinear_unary("Sigmoid"), 5),
    "QLinearSoftmax": known(_qlinear_softmax, 5, "axis opset"),
    "NhwcMaxPool": known(_channels_last("MaxPool", 0), 1, _POOL),
    "QEmbedLayerNormalization": known(_embed_layer_norm, 18, "epsilon"),
    "QuantizeLinear": known(_default("QuantizeLinear"), 3, "axis"),
    "DequantizeLinear": known(_default("DequantizeLinear"), 3, "axis"),
}  # fmt: skip
