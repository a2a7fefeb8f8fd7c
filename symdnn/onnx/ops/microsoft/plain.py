"""Activations, products, normalisation and shapes of ``com.microsoft``."""

from __future__ import annotations

from typing import Any

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.onnx.ops.conv import conv_of
from symdnn.onnx.ops.elementwise import number
from symdnn.onnx.ops.linear import matmul
from symdnn.onnx.ops.microsoft.known import known
from symdnn.onnx.ops.norms import inverse_root, layer_norm, rms_norm, simplified_norm
from symdnn.ops.core.shape import dims_of

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
    return node.scope.call(name, y, **params)[0].variable


def _fused_gemm(node: Node) -> Variable:
    plain = {k: v for k, v in node.attributes.items() if not k.startswith("activation")}
    y = node.scope.call("Gemm", *node.inputs, **plain)[0].variable
    return _fused_activation(node, y)


def _fused_conv(node: Node) -> Variable:
    y = conv_of(node, node.x(), node.x(1), node.optional(2))
    return _fused_activation(node, y + node.x(3) if node.has(3) else y)


# -- normalisation --------------------------------------------------------------------------------


def _skip_layer_norm(node: Node) -> list[Variable | None]:
    x, epsilon = node.x() + node.x(1), node.attribute("epsilon", 1e-12)
    x = x + node.x(4) if node.has(4) else x
    y = layer_norm(x, node.x(2), node.optional(3), x.ndim - 1, epsilon)
    mean = T.mean(x, axis=-1, keepdims=True)
    spread = T.mean(T.sqr(x - mean), axis=-1, keepdims=True)
    return [y, mean, inverse_root(spread, epsilon), x]


def _skip_rms_norm(node: Node) -> list[Variable | None]:
    x, epsilon = node.x() + node.x(1), node.attribute("epsilon", 1e-6)
    x = x + node.x(3) if node.has(3) else x
    square = T.mean(T.sqr(x), axis=-1, keepdims=True)
    y = rms_norm(x, node.x(2), x.ndim - 1, epsilon)
    return [y, None, inverse_root(square, epsilon), x]


# -- shapes, and older names ----------------------------------------------------------------------


def _transposed_conv(node: Node) -> Any:
    """``ConvTranspose`` whose padding is an input: begins and ends of one pair after the other."""
    pads = {"pads": node.ints(2, "the padding")} if node.has(2) else {}
    inputs = [node.input(0), node.input(1), *node.inputs[3:4]]
    return node.scope.call("ConvTranspose", *inputs, **{**node.attributes, **pads})


def _default(op: str) -> Any:
    """The op of the default domain with this name."""

    def build(node: Node) -> list[Any]:
        return node.scope.call(op, *node.inputs, outputs=len(node.wanted), **node.attributes)

    return build


def _unique(node: Node) -> list[Variable | None]:
    """Distinct elements in the order of their first places, the places of all, and counts."""
    found = node.scope.call("Unique", node.input(0), outputs=4, sorted=0)
    return [found[0], found[2], found[3]]


def _expand_dims(node: Node) -> Variable:
    (axis,) = node.ints(1, "the axis")
    x = node.x()
    return T.expand_dims(x, node.normal(axis, x.ndim + 1))


def _inverse(node: Node) -> Variable:
    return T.linalg.inv(node.x())


def _distances(node: Node) -> Variable:
    """Distances of the rows of two matrices."""
    metric = node.required("metric")
    if metric not in ("euclidean", "sqeuclidean"):
        raise node.error(f"metric {metric!r}: wanted euclidean or sqeuclidean")
    square = T.sum(T.sqr(node.x().dimshuffle(0, "x", 1) - node.x(1).dimshuffle("x", 0, 1)), axis=2)
    return square if metric == "sqeuclidean" else T.sqrt(square)


def _embed_layer_norm(node: Node) -> list[Variable | None]:
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


_ACTIVATION = "activation activation_alpha activation_beta activation_params"
_WINDOW = "auto_pad dilations group kernel_shape pads strides"

OPS: dict[str, Any] = {
    "Gelu": known(_gelu, 1),
    "FastGelu": known(_fast_gelu, 2),
    "BiasGelu": known(_bias_gelu, 2),
    "QuickGelu": known(_quick_gelu, 1, "alpha"),
    "BiasSplitGelu": known(_bias_split_gelu, 2),
    "BiasAdd": known(_bias_add, 3),
    "FusedMatMul": known(_fused_matmul, 2, "alpha transA transB transBatchA transBatchB"),
    "TransposeMatMul": known(_fused_matmul, 2, "alpha transA transB"),
    "FusedGemm": known(_fused_gemm, 3, f"alpha beta transA transB {_ACTIVATION} activation_gamma"),
    "FusedConv": known(_fused_conv, 4, f"{_WINDOW} {_ACTIVATION}"),
    "SkipLayerNormalization": known(_skip_layer_norm, 5, "epsilon"),
    "SkipSimplifiedLayerNormalization": known(_skip_rms_norm, 4, "epsilon"),
    "SimplifiedLayerNormalization": known(simplified_norm, 2, "axis epsilon stash_type"),
    "EmbedLayerNormalization": known(_embed_layer_norm, 9, "epsilon mask_index_type"),
    "ConvTransposeWithDynamicPads": known(
        _transposed_conv, 4, f"{_WINDOW} output_padding output_shape"
    ),
    "GridSample": known(_default("GridSample"), 2, "mode padding_mode align_corners"),
    "CDist": known(_distances, 2, "metric"),
    "ExpandDims": known(_expand_dims, 2),
    "GatherND": known(_default("GatherND"), 2),
    "Inverse": known(_inverse, 1),
    "Pad": known(_default("Pad"), 3, "mode"),
    "Range": known(_default("Range"), 3),
    "Trilu": known(_default("Trilu"), 2, "upper"),
    "Unique": known(_unique, 1),
}  # fmt: skip
