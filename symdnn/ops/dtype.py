"""Upcasting rules: NumPy's promotion under the flags ``floatX`` and ``cast_policy``."""

from __future__ import annotations

from functools import cache

import numpy as np

from symdnn.config import config
from symdnn.graph.type import TensorType, numpy_dtype

__all__ = ["accumulator", "float_of", "is_narrow_float", "number_of", "upcast"]


def upcast(*dtypes: str) -> str:
    """The dtype that arithmetic on these dtypes gives.

    NumPy's promotion (float32 with int32 is float64, with int8 float32). With
    ``cast_policy=numpy+floatX`` a float64 that no input asked for becomes ``floatX``.
    """
    result = _promote(dtypes)
    if config.cast_policy == "numpy+floatX" and result == "float64" and "float64" not in dtypes:
        return str(config.floatX)
    return result


def float_of(*dtypes: str) -> str:
    """:func:`upcast`, and a discrete result becomes ``floatX`` (what ``exp`` of an int gives)."""
    result = upcast(*dtypes)
    return str(config.floatX) if TensorType(result).is_discrete else result


def number_of(*dtypes: str) -> str:
    """:func:`upcast`, and a bool result becomes int8 (what ``%`` of two bools gives)."""
    result = upcast(*dtypes)
    return "int8" if result == "bool" else result


def accumulator(dtype: str) -> tuple[str, str]:
    """The (result, accumulator) dtypes of a sum: ints widen, float16 sums in float32."""
    t = TensorType(dtype)
    if t.is_discrete:
        wide = "uint64" if dtype.startswith("u") else "int64"
        return wide, wide
    return (dtype, "float32") if is_narrow_float(dtype) else (dtype, dtype)


def is_narrow_float(dtype: str) -> bool:
    """float16 or bfloat16: stored so, computed in float32."""
    return dtype in ("float16", "bfloat16")


@cache
def _promote(dtypes: tuple[str, ...]) -> str:
    names = set(dtypes)
    if names == {"float16", "bfloat16"}:
        return "float32"
    if "bfloat16" in names:
        rest = names - {"bfloat16"}
        return _promote(tuple(rest)) if any(_wide(d) for d in rest) else "bfloat16"
    return np.result_type(*(numpy_dtype(d) for d in dtypes)).name


def _wide(dtype: str) -> bool:
    return not TensorType(dtype).is_discrete
