"""Element types of ONNX, and the dtypes of symdnn that carry them.

Most are dtypes of symdnn. The *narrow* ones (4 and 2 bits, float8, float6, float4) are storage
types: a graph carries their values in a wider dtype, in which they are exact, and converts where a
value enters or leaves it. A kind is named as the dtype of NumPy or ``ml_dtypes`` (``int4``).
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from symdnn.errors import ModelError
from symdnn.graph.typing import Array

#: ``TensorProto.DataType`` -> kind. Strings have none.
KINDS = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64",
    15: "complex128", 16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz",
    19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4_e2m1fn",
    24: "float8_e8m0fnu", 25: "uint2", 26: "int2", 27: "float6_e2m3fn", 28: "float6_e3m2fn",
}  # fmt: skip
CODES = {kind: code for code, kind in KINDS.items()}

#: Kinds of floats that are dtypes of symdnn.
FLOATS = ("float16", "bfloat16", "float32", "float64")

#: Integer kind of fewer than 8 bits -> their number.
BITS = {"uint4": 4, "int4": 4, "uint2": 2, "int2": 2}

#: Narrow kind -> the dtype that carries it.
_CARRIERS = {
    "uint4": "uint8", "int4": "int8", "uint2": "uint8", "int2": "int8",
    **{k: "float32" for k in KINDS.values() if k.startswith(("float8_", "float6_", "float4_"))},
}  # fmt: skip


def is_narrow(kind: str) -> bool:
    """Whether a graph carries ``kind`` in a wider dtype."""
    return kind in _CARRIERS


def carrier(kind: str) -> str:
    """The dtype of symdnn that carries values of ``kind``."""
    return _CARRIERS.get(kind, kind)


def numpy_kind(kind: str) -> np.dtype[Any]:
    """The dtype of NumPy or ``ml_dtypes`` of a kind."""
    found = getattr(ml_dtypes, kind, None)
    return np.dtype(kind if found is None else found)


def kind_of(code: int, what: str) -> str:
    """The kind of an element type by its number; raises :class:`ModelError` for others."""
    if code == 8:
        raise ModelError(f"{what}: its elements are strings, which symdnn does not compute with")
    if code not in KINDS:
        raise ModelError(f"{what}: unknown element type {code}")
    return KINDS[code]


def code_of(kind: str) -> int:
    """The number of an element type."""
    return CODES[kind]


def stored(value: Array, kind: str) -> Array:
    """A value of a graph in the dtype of its kind, as users get it."""
    return value.astype(numpy_kind(kind)) if is_narrow(kind) else value


def carried(value: Any, kind: str) -> Array:
    """A value of a user or file in the dtype that carries it."""
    array = np.asarray(value)
    return array.astype(carrier(kind)) if is_narrow(kind) else array


def rounded(value: Array, kind: str) -> Array:
    """``value`` rounded to the numbers of a narrow kind, in its carrier."""
    with np.errstate(all="ignore"):
        return value.astype(numpy_kind(kind)).astype(carrier(kind))
