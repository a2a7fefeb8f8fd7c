"""Casts between kinds, with the meaning of ONNX where a number does not fit."""

from __future__ import annotations

import numpy as np

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.kinds import BITS, carrier
from symdnn.onnx.model.node import Node
from symdnn.onnx.model.values import Value
from symdnn.ops.elementwise.storage import NARROW_FLOATS, narrow


def as_kind(node: Node, value: Value, kind: str) -> Value:
    """``value`` as ``kind``, by the attributes ``saturate`` and ``round_mode`` of a ``Cast``."""
    if kind == value.kind:
        return value
    x = value.variable
    if kind in NARROW_FLOATS:
        wide = x if x.type.is_float else x.astype("float32")
        saturate, mode = bool(node.attribute("saturate", 1)), node.attribute("round_mode", "up")
        return Value(narrow(wide, kind, saturate, mode), kind)
    if kind in BITS:
        return Value(_low_bits(x, kind), kind)
    if kind == "bool":
        return Value(T.neq(x, np.asarray(0, x.type.numpy)))
    if x.type.is_complex and not kind.startswith("complex"):
        x = T.real(x)
    return Value(x.astype(carrier(kind)))


def _low_bits(x: Variable, kind: str) -> Variable:
    """The lowest bits of whole numbers, as NumPy's casts keep them."""
    bits = BITS[kind]
    whole = x.astype("int32") if not x.type.is_integer else x.astype("int64")
    low = whole & np.asarray((1 << bits) - 1, whole.type.numpy)
    if kind.startswith("int"):
        sign = np.asarray(1 << (bits - 1), whole.type.numpy)
        low = (low ^ sign) - sign
    return low.astype(carrier(kind))
