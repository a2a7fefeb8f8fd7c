"""Arrays to compute with: dtypes, sizes, values and layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.graph.type import DTYPES, numpy_dtype

#: How often a dtype is drawn; what is not named here is drawn as often as "uint8".
WEIGHTS = {"float32": 30, "float64": 24, "int64": 8, "bool": 6, "int32": 6, "float16": 6,
           "bfloat16": 6, "int8": 4, "complex128": 4, "complex64": 3}  # fmt: skip
SIZES = (0, 1, 1, 2, 3, 3, 5, 7, 11, 13)
LARGE = (1, 17, 64, 129, 257, 1031)
LAYOUTS = ("C", "C", "C", "F", "negative", "strided", "read-only", "unaligned", "broadcast")

_UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53,
         "complex64": 2.0**-24, "complex128": 2.0**-53}  # fmt: skip
_LEAST = {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022,
          "complex64": 2.0**-126, "complex128": 2.0**-1022}  # fmt: skip
_LARGEST = {"float16": 65504.0, "bfloat16": 3.38e38, "float32": 3.4e38, "float64": 1.79e308,
            "complex64": 3.4e38, "complex128": 1.79e308}  # fmt: skip


def unit(dtype: str) -> float:
    """Half a unit in the last place, relative; 0 for what is exact."""
    return _UNIT.get(dtype, 0.0)


def least(dtype: str) -> float:
    """The smallest number above 0 that a library's function may not replace by 0."""
    return _LEAST.get(dtype, 0.0)


def largest(dtype: str) -> float:
    """The largest finite number."""
    return _LARGEST.get(dtype, np.inf)


def kind(dtype: str) -> str:
    """``b``, ``i``, ``u``, ``f`` or ``c``; bfloat16 is an ``f``."""
    return "f" if dtype == "bfloat16" else np.dtype(dtype).kind


def wide(array: Any) -> Any:
    """Floats as float64, complex numbers as complex128; the rest as it is."""
    a = np.asarray(array)
    k = kind(a.dtype.name)
    return a.astype("f8") if k == "f" else a.astype("c16") if k == "c" else a


def draw_dtype(rng: np.random.Generator, among: Sequence[str] = DTYPES) -> str:
    """One of the dtypes, the usual ones more often."""
    weights = np.array([WEIGHTS.get(d, 2) for d in among], float)
    return among[int(rng.choice(len(among), p=weights / weights.sum()))]


def draw_values(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Values of one of several kinds, few of them extreme: what comes after shall not overflow."""
    k = kind(dtype)
    if k == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if k in "iu":
        info = np.iinfo(dtype)
        if rng.random() < 0.15:  # the whole range
            return np.asarray(rng.integers(info.min, info.max, shape, dtype, endpoint=True))
        return np.asarray(rng.integers(-6 if k == "i" else 0, 9, shape)).astype(dtype)
    if k == "c":
        return np.asarray(_reals(rng, shape) + 1j * _reals(rng, shape)).astype(dtype)
    return np.asarray(_reals(rng, shape)).astype(numpy_dtype(dtype))


def _reals(rng: np.random.Generator, shape: Sequence[int]) -> Any:
    which = rng.integers(6)
    if which == 0:  # few values: ties, and sums that are exact
        return rng.integers(-8, 9, shape) / 4
    if which == 1:
        return rng.uniform(0.1, 2, shape)
    if which == 2:
        return rng.uniform(-0.9, 0.9, shape)
    if which == 3:
        return rng.standard_normal(shape) * 4
    if which == 4:
        return np.where(rng.random(shape) < 0.3, 0.0, rng.standard_normal(shape))
    return rng.standard_normal(shape)


def lay_out(array: np.ndarray, layout: str) -> np.ndarray:
    """The same values, lying in memory in another way."""
    a = np.array(array, order="C")
    if layout == "F":
        return a.copy("F")
    if layout == "negative" and a.ndim:
        return np.flip(np.flip(a).copy())
    if layout == "strided" and a.ndim:
        spread = np.zeros([2 * n + 1 for n in a.shape], a.dtype)
        inner = spread[tuple(slice(1, 2 * n + 1, 2) for n in a.shape)]
        inner[...] = a
        return inner
    if layout == "read-only":
        a = a.copy()
        a.flags.writeable = False
    if layout == "unaligned" and a.size:
        raw = np.zeros(a.nbytes + a.itemsize + 1, np.uint8)
        moved = raw[1 : 1 + a.nbytes].view(a.dtype).reshape(a.shape)
        moved[...] = a
        return moved
    if layout == "broadcast" and a.ndim and a.shape[0] > 1 and bool((a == a[:1]).all()):
        return np.broadcast_to(a[:1], a.shape)
    return a


def as_text(array: np.ndarray) -> str:
    """Python that makes the array; ``np``, ``base64``, ``zlib`` and ``ml_dtypes`` are there."""
    name = array.dtype.name
    dtype = "ml_dtypes.bfloat16" if name == "bfloat16" else repr(name)
    if 0 < array.size <= 48:
        plain = wide(array).tolist()
        return f"np.array({plain!r}, {dtype})".replace("nan", "np.nan").replace("inf", "np.inf")
    if array.size == 0:
        return f"np.zeros({array.shape}, {dtype})"
    import base64
    import zlib

    packed = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode()
    raw = f"zlib.decompress(base64.b64decode({packed!r}))"
    return f"np.frombuffer({raw}, {dtype}).reshape({array.shape})"
