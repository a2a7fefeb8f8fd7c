"""Upcasting rules: NumPy's promotion under the flags ``floatX`` and ``cast_policy``."""

from __future__ import annotations

from functools import cache

import numpy as np

from symdnn.config import config
from symdnn.graph.type import TensorType, numpy_dtype

__all__ = ["accumulator", "float_of", "is_narrow_float", "number_of", "promote", "upcast"]

_cast_policy = config.reader("cast_policy")


def upcast(*dtypes: str) -> str:
    """The dtype that arithmetic on these dtypes gives, by the flags of now.

    NumPy's promotion (float32 with int32 is float64, with int8 float32). With
    ``cast_policy=numpy+floatX`` a float64 that no input asked for becomes ``floatX``.
    """
    result = promote(*dtypes)
    if _cast_policy() == "numpy+floatX" and result == "float64" and "float64" not in dtypes:
        return str(config.floatX)
    return result


def float_of(*dtypes: str) -> str:
    """:func:`upcast`, and a discrete result becomes floating (what ``exp`` of an int gives).

    With ``cast_policy=numpy2`` it becomes ``floatX``, with ``custom`` Theano's: float32 of at most
    16 bits, else float64.
    """
    common = upcast(*dtypes)
    if _wide(common):
        return common
    result = TensorType(common)
    if config.cast_policy == "custom" and result.numpy.itemsize > 2:
        return "float64"
    return "float32" if config.cast_policy == "custom" else str(config.floatX)


def number_of(*dtypes: str) -> str:
    """:func:`promote`, and a bool result becomes int8 (what ``%`` of two bools gives)."""
    result = promote(*dtypes)
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
def promote(*dtypes: str) -> str:
    """NumPy's promotion, with bfloat16 beside float16 as float32; no flag changes it."""
    names = set(dtypes)
    if names == {"float16", "bfloat16"}:
        return "float32"
    if "bfloat16" in names:
        rest = names - {"bfloat16"}
        return promote(*rest) if any(_wide(d) for d in rest) else "bfloat16"
    return np.result_type(*(numpy_dtype(d) for d in dtypes)).name


@cache
def _wide(dtype: str) -> bool:
    return not TensorType(dtype).is_discrete
