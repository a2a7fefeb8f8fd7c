"""Fourier transforms of signals."""

from __future__ import annotations

from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.kinds import carrier
from symdnn.onnx.model.node import Node
from symdnn.onnx.model.values import Value
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.complexes import complex as complex_of


def _as_signal(node: Node, x: Variable) -> Variable:
    """Real or complex numbers of a tensor whose last dimension has their one or two parts."""
    parts = x.type.shape[-1]
    if parts is None:
        parts = int(node.settled(dims_of(x)[-1], "whether numbers are complex"))
    if parts == 1:
        return x[..., 0]
    if parts != 2:
        raise node.error(f"a last dimension of {parts}: wanted 1 for real numbers, 2 for complex")
    return complex_of(x[..., 0], x[..., 1])


def _as_parts(y: Variable, dtype: str) -> Variable:
    return T.stack([T.real(y), T.imag(y)], axis=y.ndim).astype(dtype)


def _dft(node: Node) -> Variable:
    x = node.x()
    dtype = x.type.dtype
    if dtype in ("float16", "bfloat16"):
        x = x.astype("float32")
    axis = int(node.known(2, "the axis").ravel()[0]) if node.has(2) else (
        node.attribute("axis", 1 if node.version < 20 else -2)
    )  # fmt: skip
    axis = node.normal(axis, x.ndim)
    n = node.number(1)
    signal = _as_signal(node, x)
    inverse, onesided = node.attribute("inverse", 0), node.attribute("onesided", 0)
    if inverse and onesided:
        return T.fft.irfft(signal, n, axis=axis).astype(dtype).dimshuffle(*range(x.ndim - 1), "x")
    if inverse:
        return _as_parts(T.fft.ifft(signal, n, axis=axis), dtype)
    if onesided and not signal.type.is_complex:
        return _as_parts(T.fft.rfft(signal, n, axis=axis), dtype)
    y = T.fft.fft(signal, n, axis=axis)
    if onesided:
        size = (dims_of(x)[axis] if n is None else n) // 2 + 1
        y = y[tuple([slice(None)] * axis + [slice(None, size)])]
    return _as_parts(y, dtype)


def _stft(node: Node) -> Variable:
    x = node.x()
    step = int(node.known(1, "the step").ravel()[0])
    if x.ndim == 2:
        x = x.dimshuffle(0, 1, "x")
    signal = _as_signal(node, x)
    if node.has(3):
        length = int(node.known(3, "the frame's length").ravel()[0])
    elif node.has(2) and node.x(2).type.shape[0] is not None:
        length = int(node.x(2).type.shape[0] or 0)
    else:
        length = int(node.settled(dims_of(signal)[1], "the frame's length"))
    count = (dims_of(signal)[1] - length) // step + 1
    starts = T.arange(count, dtype="int64") * step
    places = starts.dimshuffle(0, "x") + T.arange(length, dtype="int64").dimshuffle("x", 0)
    frames = T.take(signal, places, axis=1)
    if node.has(2):
        frames = frames * node.x(2).dimshuffle("x", "x", 0)
    onesided = bool(node.attribute("onesided", 1))
    if onesided and not frames.type.is_complex:
        y = T.fft.rfft(frames, length, axis=2)
    else:
        y = T.fft.fft(frames, length, axis=2)
        y = y[:, :, : length // 2 + 1] if onesided else y
    return _as_parts(y, x.type.dtype)


def _mel_matrix(node: Node) -> Value:
    """Weights (frequencies, bins) of triangles that are equally wide on the mel scale."""
    bins, length, rate, low, high = (
        node.known(i, "a setting of the matrix").ravel()[0].item() for i in range(5)
    )
    kind = node.kind_attribute("output_datatype", "float32")
    ends = [2595 * np.log1p(f / 700) / np.log(10) for f in (low, high)]
    mels = np.arange(bins + 2) * ((ends[1] - ends[0]) / (bins + 2)) + ends[0]
    hertz = 700 * np.expm1(mels / 2595 * np.log(10))
    edges = ((length + 1) * hertz // rate).astype(np.int64)
    weights = np.zeros((length // 2 + 1, bins))
    for i, (left, centre, right) in enumerate(zip(edges, edges[1:], edges[2:])):
        if centre == left:
            weights[centre, i] = 1
        else:
            rise = np.arange(left, centre + 1)
            weights[rise, i] = (rise - left) / (centre - left)
        if right > centre:
            fall = np.arange(centre, right)
            weights[fall, i] = (right - fall) / (right - centre)
    return Value.of(weights.astype(carrier(str(kind))), kind)


OPS: dict[str, Any] = {"DFT": _dft, "STFT": _stft, "MelWeightMatrix": _mel_matrix}
