"""Ops of ``com.microsoft`` that optimised and exported transformers have."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.onnx.model.values import Value
from symdnn.onnx.ops.attention import heads_apart, heads_joined
from symdnn.onnx.ops.conv import conv_of
from symdnn.onnx.ops.elementwise import number
from symdnn.onnx.ops.linear import matmul
from symdnn.onnx.ops.norms import layer_norm, rms_norm
from symdnn.onnx.ops.quantize import dequantized
from symdnn.ops.core.shape import dims_of

__all__ = ["OPS"]


# -- activations ----------------------------------------------------------------------------------


def _gelu(node: Node) -> Variable:
    return T.nnet.gelu(node.x())


def _fast_gelu(node: Node) -> Variable:
    x = node.x() if not node.has(1) else node.x() + node.x(1)
    return T.nnet.gelu(x, approximate="tanh")


def _bias_gelu(node: Node) -> Variable:
    return T.nnet.gelu(node.x() + node.x(1))


def _quick_gelu(node: Node) -> Variable:
    x = node.x()
    return x * T.nnet.sigmoid(x * number(x, node.attribute("alpha", 1.702)))


def _bias_split_gelu(node: Node) -> Variable:
    x = node.x() + node.x(1)
    half = dims_of(x)[-1] // 2
    return x[..., :half] * T.nnet.gelu(x[..., half:])


def _bias_add(node: Node) -> Variable:
    return node.x() + node.x(1) + node.x(2)


# -- products -------------------------------------------------------------------------------------


def _fused_matmul(node: Node) -> Variable:
    a, b = node.x(), node.x(1)
    for i, v in enumerate((a, b)):
        letter = "AB"[i]
        if node.attribute(f"transBatch{letter}", 0) and v.ndim > 2:  # rows are the first axis
            v = v.transpose((*range(1, v.ndim - 1), 0, v.ndim - 1))
        if node.attribute(f"trans{letter}", 0) and v.ndim > 1:
            v = T.swapaxes(v, -1, -2)
        a, b = (v, b) if i == 0 else (a, v)
    y, alpha = matmul(a, b), node.attribute("alpha", 1.0)
    return y if alpha == 1 else y * number(y, alpha)


def _fused_activation(node: Node, y: Variable) -> Variable:
    name = node.attribute("activation")
    if not name:
        return y
    params = {k.removeprefix("activation_"): v for k, v in node.attributes.items()
              if k.startswith("activation_")}  # fmt: skip
    given = params.pop("params", None) or []
    names = {"LeakyRelu": ["alpha"], "HardSigmoid": ["alpha", "beta"], "Elu": ["alpha"]}
    params |= dict(zip(names.get(name, []), given))
    if name == "Clip" and len(given) == 2:
        return T.clip(y, number(y, given[0]), number(y, given[1]))
    found: Variable = node.scope.call(name, y, **params)[0].variable
    return found


def _fused_gemm(node: Node) -> Variable:
    plain = {k: v for k, v in node.attributes.items() if not k.startswith("activation")}
    y = node.scope.call("Gemm", *node.inputs, **plain)[0].variable
    return _fused_activation(node, y)


def _fused_conv(node: Node) -> Variable:
    y = conv_of(node, node.x(), node.x(1), node.optional(2))
    return _fused_activation(node, y + node.x(3) if node.has(3) else y)


def _matmul_n_bits(node: Node) -> Variable:
    """A product with a matrix of 4 or 8 bits, in blocks with scales of their own."""
    a, packed, scales = node.x(), node.x(1), node.x(2)
    bits, block = int(node.attribute("bits", 4)), int(node.required("block_size"))
    n, k = int(node.required("N")), int(node.required("K"))
    if bits not in (4, 8):
        raise node.error(f"{bits} bits: wanted 4 or 8")
    blocks = -(-k // block)
    codes = _unpacked(packed.reshape((n, blocks, block * bits // 8)), bits)
    codes = codes.reshape((n, blocks, block)).astype(scales.type.dtype)
    if not node.has(3):
        zero: Any = number(scales, 1 << (bits - 1))
    elif node.x(3).type.is_integer:
        points = _unpacked(node.x(3).reshape((n, -1)), bits)[:, :blocks]
        zero = points.astype(scales.type.dtype).dimshuffle(0, 1, "x")
    else:
        zero = node.x(3).reshape((n, blocks, 1))
    weights = (codes - zero) * scales.reshape((n, blocks, 1))
    weights = weights.reshape((n, blocks * block))[:, :k].astype(a.type.dtype)
    y = T.dot(a, weights.T)
    return y + node.x(5) if node.has(5) else y


def _unpacked(x: Variable, bits: int) -> Variable:
    """Whole numbers of ``bits`` bits from bytes, the lowest bits first, along the last axis."""
    if bits == 8:
        return x
    low, high = x & np.uint8(15), T.right_shift(x, np.uint8(4))
    return T.stack([low, high], axis=x.ndim).reshape((*dims_of(x)[:-1], -1))


# -- normalisation --------------------------------------------------------------------------------


def _skip_layer_norm(node: Node) -> list[Any]:
    x, epsilon = node.x() + node.x(1), node.attribute("epsilon", 1e-12)
    x = x + node.x(4) if node.has(4) else x
    return [layer_norm(x, node.x(2), node.optional(3), x.ndim - 1, epsilon), None, None, x]


def _skip_rms_norm(node: Node) -> list[Any]:
    x, epsilon = node.x() + node.x(1), node.attribute("epsilon", 1e-6)
    x = x + node.x(3) if node.has(3) else x
    return [rms_norm(x, node.x(2), x.ndim - 1, epsilon), None, None, x]


def _rms_norm(node: Node) -> Variable:
    x = node.x()
    return rms_norm(x, node.x(1), node.axis(x.ndim, -1), node.attribute("epsilon", 1e-5))


def _embed_layer_norm(node: Node) -> list[Any]:
    ids = node.x()
    words, positions = node.x(2), node.x(3)
    length = dims_of(ids)[1]
    if node.has(8):
        places = T.take(positions, node.x(8).astype("int64"), axis=0)
    else:
        places = T.shape_padleft(T.take(positions, T.arange(length, dtype="int64"), axis=0))
    x = T.take(words, ids.astype("int64"), axis=0) + places
    if node.has(1) and node.has(4):
        x = x + T.take(node.x(4), node.x(1).astype("int64"), axis=0)
    y = layer_norm(x, node.x(5), node.x(6), 2, node.attribute("epsilon", 1e-12))
    if node.has(7):
        counts = T.sum(node.x(7).astype("int32"), axis=1).astype("int32")
    else:
        counts = T.zeros((dims_of(ids)[0],), dtype="int32")
    return [y, counts, x]


# -- attention ------------------------------------------------------------------------------------


def _padding_mask(node: Node, i: int, keys: Any, like: Variable) -> Variable | None:
    """What is added to scores of keys that are masked out: a mask, or lengths, of each example."""
    if not node.has(i):
        return None
    mask = node.x(i)
    value = number(like, node.attribute("mask_filter_value", -10000.0))
    if mask.ndim == 1:
        at = T.arange(keys, dtype="int64").dimshuffle("x", 0)
        keep = at < mask.astype("int64").dimshuffle(0, "x")
    else:
        keep = T.neq(mask, 0)
    patterns: dict[int, list[Any]] = {2: [0, "x", "x", 1], 3: [0, "x", 1, 2], 4: [0, 1, 2, 3]}
    pattern = patterns[keep.ndim]
    return T.switch(keep.dimshuffle(*pattern), number(like, 0), value)


def _attend(
    node: Node, q: Variable, k: Variable, v: Variable, bias: Variable | None, causal: bool
) -> Variable:
    scale = node.attribute("scale") or None
    return T.nnet.scaled_dot_product_attention(
        q, k, v, bias, scale=scale, causal="bottom_right" if causal else None
    )  # fmt: skip


def _attention(node: Node) -> list[Any]:
    x, w = node.x(), node.x(1)
    heads = int(node.required("num_heads"))
    y = T.dot(x, w)
    y = y + node.x(2) if node.has(2) else y
    given: Any = node.attribute("qkv_hidden_sizes")
    total = w.type.shape[1]
    if total is None:
        total = int(node.settled(dims_of(w)[1], "the number of features"))
    sizes: list[int] = given or [total // 3] * 3
    ends = np.cumsum([0, *sizes])
    q, k, v = (heads_apart(y[:, :, int(a) : int(b)], heads) for a, b in pairwise(ends))
    present = None
    causal = bool(node.attribute("unidirectional", 0))
    if node.has(4):
        past = node.x(4)
        k, v = (T.concatenate([past[i], t], axis=2) for i, t in enumerate((k, v)))
    if len(node.wanted) > 1:
        present = T.stack([k, v])
    bias = _padding_mask(node, 3, dims_of(k)[2], q)
    if node.has(5):
        bias = node.x(5) if bias is None else bias + node.x(5)
    return [heads_joined(_attend(node, q, k, v, bias, causal)), present]


def _multi_head(node: Node) -> list[Any]:
    heads, q = int(node.required("num_heads")), node.x()
    if q.ndim == 5 or (node.has(1) and node.x(1).ndim == 5):
        raise node.error("packed queries, keys and values are not known")
    k, v = node.x(1), node.x(2)
    if node.has(3):
        shift, n = node.x(3), dims_of(q)[2]
        m = dims_of(k)[2] if k.ndim == 3 else n
        q = q + shift[:n]
        if k.ndim == 3:
            k, v = k + shift[n : n + m], v + shift[n + m :]
    q = heads_apart(q, heads)
    k, v = (heads_apart(t, heads) if t.ndim == 3 else t for t in (k, v))
    if node.has(6):
        k, v = T.concatenate([node.x(6), k], axis=2), T.concatenate([node.x(7), v], axis=2)
    bias = _padding_mask(node, 4, dims_of(k)[2], q)
    if node.has(5):
        bias = node.x(5) if bias is None else bias + node.x(5)
    causal = bool(node.attribute("unidirectional", 0))
    return [heads_joined(_attend(node, q, k, v, bias, causal)), k, v]


def _grouped(node: Node) -> list[Any]:
    """Attention whose heads share keys, with a cache of keys and values."""
    heads, groups = int(node.required("num_heads")), int(node.required("kv_num_heads"))
    if node.attribute("local_window_size", -1) > 0 or node.attribute("softcap", 0.0):
        raise node.error("a local window or a soft cap of scores is not known")
    q = node.x()
    if not node.has(1):
        size = dims_of(q)[2] // (heads + 2 * groups)
        a, b = heads * size, (heads + groups) * size
        q, k, v = q[:, :, :a], q[:, :, a:b], q[:, :, b:]
    else:
        k, v = node.x(1), node.x(2)
    q, k, v = heads_apart(q, heads), heads_apart(k, groups), heads_apart(v, groups)
    lengths = node.x(5).astype("int64").flatten() + 1  # of each example, with this call's
    new = dims_of(q)[2]
    if node.attribute("do_rotary", 0):
        start = (lengths - new).dimshuffle(0, "x") + T.arange(new, dtype="int64").dimshuffle("x", 0)
        interleaved = bool(node.attribute("rotary_interleaved", 0))
        q, k = (rotated(t, node.x(7), node.x(8), start, interleaved) for t in (q, k))
    if node.has(3):
        past_k, past_v = node.x(3), node.x(4)
        k, v = T.concatenate([past_k, k], axis=2), T.concatenate([past_v, v], axis=2)
    at = lengths.dimshuffle(0, "x") - new + T.arange(new, dtype="int64").dimshuffle("x", 0)
    keys = T.arange(dims_of(k)[2], dtype="int64").dimshuffle("x", "x", 0)
    keep = (keys <= at.dimshuffle(0, 1, "x")).dimshuffle(0, "x", 1, 2)
    bias = T.switch(keep, number(q, 0), number(q, -np.inf))
    each = heads // groups
    wide_k, wide_v = (T.repeat(t, each, axis=1) if each > 1 else t for t in (k, v))
    return [heads_joined(_attend(node, q, wide_k, wide_v, bias, False)), k, v]


def rotated(
    x: Variable, cos: Variable, sin: Variable, places: Variable, interleaved: bool
) -> Variable:
    """(batch, heads, length, features) with pairs of features turned by their place's angle."""
    half = dims_of(cos)[1]
    c, s = (T.take(t, places, axis=0).dimshuffle(0, "x", 1, 2) for t in (cos, sin))
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        pairs = T.stack([a * c - b * s, a * s + b * c], axis=x.ndim)
        y = pairs.reshape(dims_of(turned))
    else:
        a, b = turned[..., :half], turned[..., half:]
        y = T.concatenate([a * c - b * s, a * s + b * c], axis=3)
    return T.concatenate([y, rest], axis=3)


def _rotary(node: Node) -> Variable:
    x, places = node.x(), node.x(1).astype("int64")
    cos, sin = node.x(2), node.x(3)
    heads = int(node.attribute("num_heads", 0))
    flat = x.ndim == 3
    if flat:
        size = (heads and dims_of(x)[2] // heads) or 2 * dims_of(cos)[1]
        b, n, d = dims_of(x)
        x = x.reshape((b, n, d // size, size)).transpose((0, 2, 1, 3))
    if places.ndim == 1:
        steps = T.arange(dims_of(x)[2], dtype="int64")
        places = (places + steps).dimshuffle("x", 0)
    y = rotated(x, cos, sin, places, bool(node.attribute("interleaved", 0)))
    return heads_joined(y) if flat else y


# -- quantised ------------------------------------------------------------------------------------


def _matmul_integer_to_float(node: Node) -> Variable:
    a = dequantized(node.x(), node.x(2), node.optional(4), None)
    b = dequantized(node.x(1), node.x(3), node.optional(5), None)
    y = T.matmul(a, b)
    return y + node.x(6) if node.has(6) else y


def _dynamic_matmul(node: Node) -> Variable:
    codes, scale, zero = node.scope.call("DynamicQuantizeLinear", node.value(0), outputs=3)
    x = dequantized(codes.variable, scale.variable, zero.variable, None)
    b = dequantized(node.x(1), node.x(2), node.optional(3), None)
    y = T.matmul(x, b)
    return y + node.x(4) if node.has(4) else y


# -- 8 bits in, 8 bits out: nodes that ONNX Runtime's quantize_static writes -----------------------


def _real(node: Node, i: int) -> Variable:
    """Input ``i`` of 8 bits, whose scale and zero point follow it, as floats."""
    return dequantized(node.x(i), node.x(i + 1), node.optional(i + 2), None)


def _rounded(node: Node, y: Variable | Value, i: int) -> Value:
    """A result in 8 bits, by the scale that is input ``i`` and the zero point after it."""
    inputs = [y, node.value(i), *([node.value(i + 1)] if node.has(i + 1) else [])]
    found: Value = node.scope.call("QuantizeLinear", *inputs)[0]
    return found


def _qlinear_binary(op: str) -> Any:
    def build(node: Node) -> Value:
        return _rounded(node, node.scope.call(op, _real(node, 0), _real(node, 3))[0], 6)

    return build


def _qlinear_unary(op: str) -> Any:
    def build(node: Node) -> Value:
        options = {k: v for k, v in node.attributes.items() if k not in ("channels_last", "opset")}
        if node.attribute("channels_last", 0):
            raise node.error("channels last")
        return _rounded(node, node.scope.call(op, _real(node, 0), **options)[0], 3)

    return build


def _qlinear_softmax(node: Node) -> Value:
    x = _real(node, 0)
    axis = int(node.attribute("axis", -1)) % x.ndim
    if int(node.attribute("opset", 13)) < 13 and axis != x.ndim - 1:
        x = x.reshape((*(x.shape[k] for k in range(axis)), -1))  # one softmax of all axes from it
    y = T.softmax(x, axis=axis)
    return _rounded(node, y.reshape(tuple(node.x(0).shape)), 3)


def _qlinear_concat(node: Node) -> Value:
    parts = [_real(node, i) for i in range(2, len(node.inputs), 3)]
    return _rounded(node, T.concatenate(parts, axis=int(node.attribute("axis"))), 0)


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


def _default(op: str) -> Any:
    """The op of the default domain with this name."""

    def build(node: Node) -> list[Any]:
        found: list[Any] = node.scope.call(
            op, *node.inputs, outputs=len(node.wanted), **node.attributes
        )
        return found

    return build


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


OPS: dict[str, Any] = {
    "Gelu": _gelu, "FastGelu": _fast_gelu, "BiasGelu": _bias_gelu, "QuickGelu": _quick_gelu,
    "BiasSplitGelu": _bias_split_gelu, "BiasAdd": _bias_add, "FusedMatMul": _fused_matmul,
    "TransposeMatMul": _fused_matmul, "FusedGemm": _fused_gemm, "FusedConv": _fused_conv,
    "MatMulNBits": _matmul_n_bits, "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "SimplifiedLayerNormalization": _rms_norm,
    "EmbedLayerNormalization": _embed_layer_norm, "Attention": _attention,
    "MultiHeadAttention": _multi_head, "GroupQueryAttention": _grouped,
    "RotaryEmbedding": _rotary, "MatMulIntegerToFloat": _matmul_integer_to_float,
    "DynamicQuantizeMatMul": _dynamic_matmul, "DynamicQuantizeLSTM": _dynamic_lstm,
    "QLinearAdd": _qlinear_binary("Add"),
    "QLinearMul": _qlinear_binary("Mul"), "QLinearWhere": _qlinear_where, "QGemm": _q_gemm,
    "QLinearAveragePool": _qlinear_unary("AveragePool"), "QLinearConcat": _qlinear_concat,
    "QLinearGlobalAveragePool": _qlinear_unary("GlobalAveragePool"),
    "QLinearLeakyRelu": _qlinear_unary("LeakyRelu"),
    "QLinearSigmoid": _qlinear_unary("Sigmoid"), "QLinearSoftmax": _qlinear_softmax,
    "QuantizeLinear": _default("QuantizeLinear"),
    "DequantizeLinear": _default("DequantizeLinear"),
}  # fmt: skip
