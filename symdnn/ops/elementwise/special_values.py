"""Special functions that SciPy lacks, to full precision: of arrays, and of one element."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np

from symdnn.graph.typing import Array
from symdnn.ops.core.scalar import Scalar


def scipy_function(name: str) -> Any:
    """The function of ``scipy.special``, which is imported when one first runs."""

    def function(*arrays: Array) -> Any:
        import scipy.special

        return getattr(scipy.special, name)(*arrays)

    function.__name__ = name
    return function


#: The number of terms of the slope's asymptotic series, and the ``x`` from which it is used.
TERMS, FAR = 14, 9.0


def erfcx_slope_of(x: Any) -> Any:
    """``2 x erfcx(x) - 2 / sqrt(pi)``; by its asymptotic series where these two cancel."""
    wide = x.astype(np.float64)
    far = np.maximum(wide, FAR)
    total = np.zeros_like(far)
    for n in range(TERMS, 0, -1):
        total = -(2 * n + 1) / (2 * far * far) * (1 + total)
    near = 2 * wide * scipy_function("erfcx")(wide) - 2 / sqrt(pi)
    found = np.where(wide < FAR, near, -(1 + total) / (sqrt(pi) * far * far))
    return found.astype(x.dtype)


def erfcx_slope_formula(x: Scalar) -> Scalar:
    """:func:`erfcx_slope_of` of one element, in float64, since its terms cancel."""
    wide = x.cast("float64")
    far = wide.call("max", FAR)
    total = far.like(0.0)
    inverse = 0.5 / (far * far)
    for n in range(TERMS, 0, -1):
        total = -(2.0 * n + 1.0) * inverse * (1 + total)
    near = 2 * wide * wide.call("erfcx") - 2 / sqrt(pi)
    found = (wide < FAR).where(near, -(1 + total) / (sqrt(pi) * far * far))
    return found.cast(x.dtype)


def log_erfc_of(x: Any) -> Any:
    """``log(erfc(x))`` of arrays: near 0 from ``erf``, beyond from ``erfcx``."""
    low, high = np.minimum(x, x.dtype.type(0.5)), np.maximum(x, x.dtype.type(0.5))
    near = np.log1p(-scipy_function("erf")(low))
    return np.where(x < 0.5, near, np.log(scipy_function("erfcx")(high)) - high * high)


def log_erfc_formula(x: Scalar) -> Scalar:
    """:func:`log_erfc_of` of one element."""
    near = (-x.call("min", 0.5).call("erf")).call("log1p")
    high = x.call("max", 0.5)
    return (x < 0.5).where(near, high.call("erfcx").call("log") - high * high)


def log_half_erfc_of(x: Any) -> Any:
    """``log(erfc(x) / 2)`` of arrays: below 0 by ``log1p`` of the difference from 1."""
    low, high = np.minimum(x, x.dtype.type(0)), np.maximum(x, x.dtype.type(0))
    half = x.dtype.type(0.5)
    near = np.log1p(-half * scipy_function("erfc")(-low))
    return np.where(x < 0, near, np.log(half * scipy_function("erfcx")(high)) - high * high)


def log_half_erfc_formula(x: Scalar) -> Scalar:
    """:func:`log_half_erfc_of` of one element."""
    near = (-0.5 * (-x.call("min", 0)).call("erfc")).call("log1p")
    high = x.call("max", 0)
    return (x < 0).where(near, (0.5 * high.call("erfcx")).call("log") - high * high)
