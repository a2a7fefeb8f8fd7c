"""Estimates of the time that a node takes, to compare nodes of one plan.

A node takes the time of its arithmetic or of its memory traffic, whichever is longer (S. Williams,
A. Waterman and D. Patterson, "Roofline: an insightful visual performance model", 2009), with
typical figures of a core's share and of a large GPU. Only their ratios count.
"""

from __future__ import annotations

from math import prod
from typing import Any

from symdnn.config import config
from symdnn.graph.kernel import Call
from symdnn.graph.place import HOST, Place
from symdnn.graph.type import TensorType, Type
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.lowered.lowered import neutral_of
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight
from symdnn.ops.nn.rnn import RNNForward, RNNGrad

__all__ = ["seconds_of"]

#: Operations and bytes a second, and the seconds that a launch takes at least.
_HOST = (5e10, 1e10, 2e-6)
_DEVICE = (3e14, 2.5e12, 2e-6)
#: Operations a second of a device whose tensor cores may not be used: by wide floats.
_WIDE_RATE = 5e13
_allow_tf32 = config.reader("dnn.conv.allow_tf32")
_PRODUCTS = ("Dot", "BatchedDot", "Dot22", "OneDnnMatmul", "GpuGemm", "GpuGemmBiasGrad")


def seconds_of(call: Call, place: Place) -> float:
    """The estimated time of one call."""
    rate, bandwidth, least = _HOST if place == HOST else _DEVICE
    if place != HOST and _is_wide(call):
        rate = _WIDE_RATE
    traffic = sum(_bytes(t) for t in (*call.inputs, *call.outputs))
    return float(max(_operations(call) / rate, traffic / bandwidth, least))


def _is_wide(call: Call) -> bool:
    """Whether floats are multiplied as they are, in 32 or 64 bits."""
    dtype = getattr(call.inputs[0], "dtype", "") if call.inputs else ""
    return dtype == "float64" or (dtype == "float32" and not _allow_tf32())


def _bytes(t: Type) -> float:
    return _elements(t) * t.numpy.itemsize if isinstance(t, TensorType) else 0.0


def _elements(t: Type) -> float:
    return float(prod(d or 1 for d in t.shape)) if isinstance(t, TensorType) else 0.0


def _operations(call: Call) -> float:
    op: Any = neutral_of(call.op)
    inputs, out = call.inputs, call.outputs[0]
    if type(op).__name__ in _PRODUCTS or type(call.op).__name__ in _PRODUCTS:
        # (m k) (k n) has m n results, so the product of all three sizes is a square.
        return float(2.0 * (_elements(inputs[0]) * _elements(inputs[1]) * _elements(out)) ** 0.5)
    if isinstance(op, Conv | ConvGradInput | ConvGradWeight):
        return 2.0 * _of_convolution(op, inputs, out)
    if isinstance(op, RNNForward | RNNGrad):
        steps_of_all = prod(inputs[1].shape[:-1])
        each = 2.0 if isinstance(op, RNNForward) else 4.0
        return float(each * _elements(inputs[0]) * steps_of_all)
    if isinstance(op, Attention | AttentionGrad):
        batch, heads, queries, width = inputs[0].shape
        work = 4.0 * batch * heads * queries * width * inputs[1].shape[2]
        return float(work if isinstance(op, Attention) else 2.5 * work)
    return 4.0 * max((_elements(t) for t in (*inputs, *call.outputs)), default=0.0)


def _of_convolution(op: Any, inputs: Any, out: Any) -> float:
    """Multiplications: positions of the small images times elements of the filters."""
    images = {Conv: out, ConvGradInput: inputs[1], ConvGradWeight: inputs[1]}[type(op)]
    filters = {Conv: inputs[1], ConvGradInput: inputs[0], ConvGradWeight: out}[type(op)]
    last = getattr(op, "layout", "NCHW") == "NHWC"
    channels = images.shape[-1] if last else images.shape[1]
    return float(_elements(images) / max(channels or 1, 1) * _elements(filters))
