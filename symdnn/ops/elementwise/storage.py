"""Numbers as narrow storage types have them, in a wider dtype; and bits read as another dtype.

float8, float6 and float4 of ``ml_dtypes`` are no dtypes of a graph. :func:`narrow` rounds floats to
their numbers, which float32 holds exactly, so that a graph computes what such storage would give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from symdnn.errors import OptionError, TypeMismatch
from symdnn.graph.op import Axes, Batched, Grads, Op, Vars
from symdnn.graph.type import DTYPES, TensorType, float_limits, numpy_dtype
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.lanes import on_lanes
from symdnn.ops.core.scalar import STORED, Scalar
from symdnn.ops.elementwise.comparison import switch
from symdnn.ops.elemwise import Elemwise, like

__all__ = ["NARROW_FLOATS", "BitCast", "Narrow", "bitcast", "narrow"]

#: The storage types of floats.
NARROW_FLOATS = (
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn",
)  # fmt: skip
_POWER_MODES = ("up", "down", "nearest")


@dataclass(frozen=True)
class Narrow(Elemwise):
    """Floats rounded to the numbers of the storage type ``kind``, as float32; halves to even.

    With ``saturate``, numbers beyond the largest become it; otherwise they become what
    ``ml_dtypes`` gives (an infinity or NaN). ``power`` is the rounding of ``float8_e8m0fnu``, whose
    numbers are powers of 2. The gradient is the straight-through estimator's: that of the identity
    between the least and the largest number, and 0 beyond (Bengio, Leonard, Courville 2013).
    """

    may_overwrite: ClassVar[Mapping[int, tuple[int, ...]]] = {}
    kinds: ClassVar[str] = "f"
    mixes_dtypes: ClassVar[bool] = True

    kind: str
    saturate: bool = True
    power: str = "up"

    def formula(self, x: Scalar) -> Scalar:
        wide = x.cast("float32", STORED)
        if self.kind == "float8_e8m0fnu":
            return _power_formula(wide, self.power, self.saturate)
        return _rounded_formula(wide, self.kind, self.saturate)

    def out_dtype(self, *dtypes: str) -> str:
        return "float32"

    def reference(self, *inputs: Array) -> Array:
        (x,) = inputs
        wide = x.astype(np.float32)
        with np.errstate(all="ignore"):
            if self.kind == "float8_e8m0fnu":
                return _power_of_two(wide, self.power, self.saturate)
            edge = largest(self.kind)
            if self.saturate:
                wide = np.clip(wide, -edge, edge)
            return wide.astype(getattr(ml_dtypes, self.kind)).astype(np.float32)

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        (x,) = inputs
        edge = like(min(largest(self.kind), float(np.finfo(np.float16).max))
                    if x.type.dtype == "float16" else largest(self.kind), x)  # fmt: skip
        inside = (x <= edge) & (x >= -edge)
        return [switch(inside, cotangent, like(0, cotangent)).astype(x.type.dtype)]


def largest(kind: str) -> float:
    """The largest number of a storage type."""
    return float(float_limits(kind).max)


def _power_of_two(x: Array, mode: str, saturate: bool) -> Array:
    """``x`` as a power of 2 from 2**-127 to 2**127; 0 becomes the least, negative ones NaN."""
    mantissa, exponent = np.frexp(x.astype(np.float64))  # x = mantissa * 2**exponent, [0.5, 1)
    power = exponent - 1
    over = mantissa > 0.5
    if mode == "nearest":
        over = mantissa >= 0.75
    power = power + (over if mode != "down" else 0)
    power = np.where(x == 0, -127, np.where(np.isinf(x), 128, power))
    beyond = power > 127
    bounded = np.clip(power, -127, 127).astype(np.float64)
    value = np.exp2(bounded)
    bad = np.isnan(x) | (x < 0) | (beyond & (not saturate))
    return np.where(bad, np.nan, value).astype(np.float32)


def _rounded_formula(x: Scalar, kind: str, saturate: bool) -> Scalar:
    """``x`` as a multiple of the step between the numbers of ``kind`` beside it; halves to even."""
    info = float_limits(kind)
    digits, edge = int(info.nmant), largest(kind)
    beyond, none, minus_zero = (_converted(v, kind) for v in (4 * edge, np.nan, -0.0))
    size = x.call("abs").call("min", edge if saturate else 4 * edge)
    exponent = size.bits("int32").call("shr", 23).call("max", int(info.minexp) + 127)
    steps = (-exponent + digits + 254).call("shl", 23).bits("float32")
    step = (exponent - digits).call("shl", 23).bits("float32")
    value = (size * steps).call("rint") * step
    if not saturate:
        value = (value > edge).where(value.like(beyond), value)
    if np.signbit(minus_zero):
        value = value.call("copysign", x)
    else:
        value = (x < 0).where(-value, value) + 0.0
    return x.call("isnan").where(value.like(none), value)


def _converted(value: float, kind: str) -> float:
    """A number through the storage type, as ``ml_dtypes`` converts it."""
    with np.errstate(all="ignore"):
        stored = np.asarray(value, np.float32).astype(getattr(ml_dtypes, kind))
    return float(stored.astype(np.float32))


def _power_formula(x: Scalar, mode: str, saturate: bool) -> Scalar:
    """:func:`_power_of_two` by the bits of ``x``; below 2**-126 those of the fraction count."""
    bits = x.bits("int32")
    exponent, fraction = bits.call("shr", 23), bits.call("and", 0x7FFFFF)
    small = exponent < 1
    if mode == "down":
        over = small.call("and", small.call("not"))
    else:
        least = (1, 0x400001) if mode == "up" else (0x400000, 0x600000)
        over = fraction >= small.where(fraction.like(least[1]), least[0])
    power = exponent + over.cast("int32")
    beyond = power > 254
    power = power.call("min", 254)
    normal = power.call("shl", 23)
    value = (power < 1).where(normal.like(0x400000), normal).bits("float32")
    bad = x.call("isnan").call("or", x < 0)
    if not saturate:
        bad = bad.call("or", beyond)
    value = bad.where(value.like(np.nan), value)
    return (x.call("eq", 0)).where(value.like(2.0**-127), value)


def narrow(x: TensorLike, kind: str, saturate: bool = True, power: str = "up") -> Variable:
    """``x`` (a float tensor) rounded to the numbers of the storage type ``kind``, as float32.

    ``kind`` is one of :data:`NARROW_FLOATS`. See :class:`Narrow` for the options and the gradient.
    Raises :class:`~symdnn.errors.OptionError` for another kind.

    >>> from symdnn.graph.type import TensorType
    >>> str(narrow(TensorType("float16", (3, None))("x"), "float8_e4m3fn").type)
    'float32(3, ?)'
    """
    if kind not in NARROW_FLOATS:
        raise OptionError(f"narrow: kind {kind!r}, wanted one of {', '.join(NARROW_FLOATS)}")
    if power not in _POWER_MODES:
        raise OptionError(f"narrow: power {power!r}, wanted one of {', '.join(_POWER_MODES)}")
    return Narrow(kind, saturate, power)(as_variable(x))


@dataclass(frozen=True)
class BitCast(Op):
    """The bits of each element read as ``dtype``, of the same width; without a gradient."""

    shaped_as: ClassVar[int | None] = 0
    no_gradients: ClassVar[bool] = True
    views: ClassVar[Mapping[int, int]] = {}
    dtype: str

    def infer(self, x: TensorType) -> TensorType:
        if not isinstance(x, TensorType) or x.numpy.itemsize != numpy_dtype(self.dtype).itemsize:
            bits = 8 * numpy_dtype(self.dtype).itemsize
            raise TypeMismatch(self, f"a tensor whose elements have {bits} bits", x)
        return TensorType(self.dtype, x.shape)

    def reference(self, x: Array) -> Array:
        return np.ascontiguousarray(x).view(numpy_dtype(self.dtype)).reshape(x.shape)

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(self, inputs, axes)


def bitcast(x: TensorLike, dtype: Any) -> Variable:
    """The bits of each element of ``x`` read as ``dtype``, which has elements of the same width.

    Raises :class:`~symdnn.errors.TypeMismatch` for another width. (``lax.bitcast_convert_type``.)

    >>> from symdnn.graph.type import TensorType
    >>> str(bitcast(TensorType("float32", (3,))("x"), "int32").type)
    'int32(3,)'
    """
    v, wanted = as_variable(x), TensorType(dtype).dtype
    assert wanted in DTYPES, "a type has one of them"
    return v if v.type.dtype == wanted else BitCast(wanted)(v)
