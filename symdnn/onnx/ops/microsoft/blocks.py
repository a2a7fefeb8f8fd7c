"""Matrices of few bits, in blocks with scales of their own, of ``com.microsoft``."""

from __future__ import annotations

from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.variable import Variable, constant
from symdnn.onnx.model.node import Node
from symdnn.onnx.ops.elementwise import number
from symdnn.onnx.ops.microsoft.known import known
from symdnn.ops.core.shape import dims_of

#: The numbers of 4 bits of bitsandbytes (Dettmers et al. 2023): by codes, of a largest 1.
_FP4 = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4], "float32")
_NF4 = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
        0.7229568362236023, 1.0,
    ],
    "float32",
)  # fmt: skip


def _unpacked(x: Variable, bits: int) -> Variable:
    """Whole numbers of ``bits`` bits from bytes, the lowest bits first, along the last axis."""
    if bits == 8:
        return x
    top = np.uint8((1 << bits) - 1)
    parts = [T.right_shift(x, np.uint8(s)) & top if s else x & top for s in range(0, 8, bits)]
    return T.stack(parts, axis=x.ndim).reshape((*dims_of(x)[:-1], -1))


def _matmul_n_bits(node: Node) -> Variable:
    """A product with a matrix of 2, 4 or 8 bits, (N, blocks, bytes of a block)."""
    a, packed, scales = node.x(), node.x(1), node.x(2)
    bits, block = int(node.attribute("bits", 4)), int(node.required("block_size"))
    n, k = int(node.required("N")), int(node.required("K"))
    if bits not in (2, 4, 8):
        raise node.error(f"{bits} bits: wanted 2, 4 or 8")
    blocks = -(-k // block)
    codes = _unpacked(packed.reshape((n, blocks, block * bits // 8)), bits)
    codes = codes.reshape((n, blocks * block)).astype(scales.type.dtype)
    scale = scales.reshape((n, blocks))
    if not node.has(3):
        zero: Variable = T.alloc(number(scales, 1 << (bits - 1)), n, blocks)
    elif node.x(3).type.is_integer:
        points = _unpacked(node.x(3).reshape((n, -1)), bits)[:, :blocks]
        zero = points.astype(scales.type.dtype)
    else:
        zero = node.x(3).reshape((n, blocks))
    if node.has(4):  # the block of each column
        of_columns = node.x(4).astype("int64")
        scale, zero = (T.take(v, of_columns, axis=1) for v in (scale, zero))
        weights = (codes[:, :k] - zero[:, :k]) * scale[:, :k]
    else:
        codes = codes.reshape((n, blocks, block))
        weights = (codes - zero.dimshuffle(0, 1, "x")) * scale.dimshuffle(0, 1, "x")
        weights = weights.reshape((n, blocks * block))[:, :k]
    y = T.dot(a, weights.astype(a.type.dtype).T)
    return y + node.x(5) if node.has(5) else y


def _matmul_bnb4(node: Node) -> Variable:
    """A product with a matrix of 4 bits of bitsandbytes, the high bits first."""
    a, packed, scales = node.x(), node.x(1).flatten(), node.x(2).flatten()
    block, n, k = (int(node.required(name)) for name in ("block_size", "N", "K"))
    numbers = _NF4 if int(node.required("quant_type")) else np.concatenate([_FP4, -_FP4])
    pairs = T.stack([T.right_shift(packed, np.uint8(4)), packed & np.uint8(15)], axis=1)
    real = T.take(constant(numbers), pairs.flatten()[: n * k].astype("int64"), axis=0)
    scale = T.repeat(scales.astype("float32"), block, axis=0)[: n * k]
    weights = (real * scale).reshape((n, k)).astype(a.type.dtype)
    return T.dot(a, weights.T if node.attribute("transB", 1) else weights)


def _gather_blocks(node: Node) -> Variable:
    """Rows of a quantised table as floats."""
    value, indices, scales = node.value(0), node.x(1), node.x(2)
    x = value.variable
    bits, block = int(node.attribute("bits", 4)), int(node.attribute("block_size", 128))
    gathered = node.axis(x.ndim, 0, "gather_axis")
    axis = node.axis(x.ndim, 1, "quantize_axis")
    packed = value.kind == "uint8" and bits < 8
    if packed and axis != x.ndim - 1:
        raise node.error("packed bytes that are quantised along another axis than the last")
    middle = 1 << (bits - 1) if value.kind == "uint8" else 0
    index = T.switch(indices < 0, indices + dims_of(x)[gathered], indices).astype("int64")
    rows = [T.take(v, index, axis=gathered) for v in (x, scales)]
    codes = _unpacked(rows[0], bits) if packed else rows[0]
    at = axis if axis < gathered else axis + indices.ndim - 1
    if axis == gathered:
        raise node.error("the axis of blocks is gathered")
    zero: Any = number(scales, middle)
    if node.has(3):
        points = T.take(node.x(3), index, axis=gathered)
        points = _unpacked(points, bits) if packed else points
        zero = _wide(points.astype(scales.type.dtype), block, at, dims_of(codes)[at])
    scale = _wide(rows[1], block, at, dims_of(codes)[at])
    return (codes.astype(scales.type.dtype) - zero) * scale


def _wide(v: Variable, block: int, axis: int, size: Any) -> Variable:
    """Each entry as often as a block is long, and ``size`` of them."""
    cut = [slice(None)] * axis + [slice(None, size)]
    return T.repeat(v, block, axis=axis)[tuple(cut)]


OPS: dict[str, Any] = {
    "MatMulNBits": known(_matmul_n_bits, 6, "K N bits block_size accuracy_level"),
    "MatMulBnb4": known(_matmul_bnb4, 3, "K N block_size quant_type transB"),
    "GatherBlockQuantized": known(
        _gather_blocks, 4, "bits block_size gather_axis quantize_axis"
    ),
}  # fmt: skip
