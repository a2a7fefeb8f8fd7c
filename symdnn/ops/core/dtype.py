"""Upcasting rules: NumPy's promotion under the flags ``floatX`` and ``cast_policy``."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.graph.type import TensorType, numpy_dtype

_cast_policy = config.reader("cast_policy")


def upcast(*dtypes: str) -> str:
    """The dtype of arithmetic on these dtypes, by the present flags.

    NumPy's promotion (float32 with int32 is float64, with int8 float32). With
    ``cast_policy=numpy+floatX`` float64 becomes ``floatX`` if no input is float64.
    """
    result = promote(*dtypes)
    if _cast_policy() == "numpy+floatX" and result == "float64" and "float64" not in dtypes:
        return str(config.floatX)
    return result


def float_of(*dtypes: str) -> str:
    """:func:`upcast` with a discrete result made floating, as for ``exp`` of an int.

    With ``cast_policy=numpy2`` it becomes ``floatX``. With ``custom`` it is as in Theano: float32
    for dtypes of at most 16 bits, else float64.
    """
    common = upcast(*dtypes)
    if _wide(common):
        return common
    result = TensorType(common)
    if config.cast_policy == "custom" and result.numpy.itemsize > 2:
        return "float64"
    return "float32" if config.cast_policy == "custom" else str(config.floatX)


def number_of(*dtypes: str) -> str:
    """:func:`promote` with a bool result made int8, as for ``%`` of two bools."""
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
    """Whether it is float16 or bfloat16: dtypes of storage, which are computed in float32."""
    return dtype in ("float16", "bfloat16")


def work_dtype(dtype: str) -> str:
    """The dtype in which values of ``dtype`` are computed: float32 for float16 and bfloat16."""
    return "float32" if is_narrow_float(dtype) else dtype


def wide_float(dtype: str) -> str:
    """``float64`` for float64, else ``float32``: the dtype of sums and factors for ``dtype``."""
    return "float64" if dtype == "float64" else "float32"


def widened(*arrays: Any) -> list[Any]:
    """The arrays in the dtype of computation: float32 for float16 and bfloat16. None stays None."""
    narrow = [a is not None and is_narrow_float(a.dtype.name) for a in arrays]
    return [a.astype(np.float32) if n else a for a, n in zip(arrays, narrow, strict=True)]


@cache
def promote(*dtypes: str) -> str:
    """NumPy's promotion; bfloat16 with float16 is float32. No flag changes it."""
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
