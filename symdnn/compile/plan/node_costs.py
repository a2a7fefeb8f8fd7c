"""Estimates of the time that a node takes, to compare nodes of one plan.

A node takes the time of its arithmetic or of its memory traffic, whichever is longer (S. Williams,
A. Waterman and D. Patterson, "Roofline: an insightful visual performance model", 2009), with
typical figures of a core's share and of a large GPU. Only their ratios count.
"""

from __future__ import annotations

from symdnn.config import config
from symdnn.graph.kernel import Call
from symdnn.graph.place import HOST, Place
from symdnn.graph.type import TensorType, Type, elements
from symdnn.ops.lowered.lowered import neutral_of

#: Operations and bytes a second, and the seconds that a launch takes at least.
_HOST = (5e10, 1e10, 2e-6)
_DEVICE = (3e14, 2.5e12, 2e-6)
#: Operations a second of a device whose tensor cores may not be used: by wide floats.
_WIDE_RATE = 5e13
_allow_tf32 = config.reader("dnn.conv.allow_tf32")


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
    return elements(t) * t.numpy.itemsize if isinstance(t, TensorType) else 0.0


def _operations(call: Call) -> float:
    multiplications = neutral_of(call.op).multiplications(call.inputs, call.outputs)
    each = 4.0 * max((elements(t) for t in (*call.inputs, *call.outputs)), default=0.0)
    return 2.0 * multiplications or each
