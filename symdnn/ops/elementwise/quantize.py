"""Numbers of 8 bits and fewer that stand for floats: integers with a scale, and float8.

A *code* is what is stored. Of an integer kind it is the number, and ``(code - zero) * scale`` the
float that it stands for. Of float8 it is the bits, as uint8, and ``float8 * scale`` the float. So
tensors of codes take one byte for each element, on every target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from symdnn.errors import OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import normal_axis
from symdnn.graph.op import Grads, Vars
from symdnn.graph.type import TensorType, float_limits, numpy_dtype
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable, constant
from symdnn.ops.core.dtype import wide_float
from symdnn.ops.core.gradient_control import straight_through
from symdnn.ops.core.scalar import RESULT, STORED, Scalar
from symdnn.ops.core.shape import DimShuffle, dims_of, dimshuffle
from symdnn.ops.elementwise.arithmetic import cast, maximum, minimum, mul
from symdnn.ops.elemwise import Elemwise, broadcast_static, pad_left
from symdnn.options import as_numbers

#: Kind of codes -> the dtype that holds a code. int32 is only read, such as a quantised bias.
KINDS = {
    "int8": "int8", "uint8": "uint8", "int16": "int16", "uint16": "uint16", "int4": "int8",
    "uint4": "uint8", "int2": "int8", "uint2": "uint8", "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8", "int32": "int32",
}  # fmt: skip
#: Kind of float8 -> bits of its mantissa, and the bias of its exponent.
FLOAT8 = {"float8_e4m3fn": (3, 7), "float8_e5m2": (2, 15)}


def code_dtype(kind: str) -> str:
    """The dtype that holds codes of a kind; raises :class:`OptionError` for an unknown one."""
    if kind not in KINDS:
        raise OptionError(f"a kind of quantised numbers {kind!r}: wanted one of {', '.join(KINDS)}")
    return KINDS[kind]


@cache
def limits_of(kind: str) -> tuple[float, float]:
    """The least and the largest finite number of a kind."""
    if kind in FLOAT8:
        info = float_limits(kind)
        return float(info.min), float(info.max)
    bits = int(kind.lstrip("uint"))
    return (0, (1 << bits) - 1) if kind[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)


@dataclass(frozen=True)
class _OfCodes(Elemwise):
    """Base of both: inputs are a tensor, a scale and a zero point that broadcast with it."""

    may_overwrite: ClassVar[Mapping[int, tuple[int, ...]]] = {}
    abstract: ClassVar[bool] = True
    arity: ClassVar[int] = 3
    kinds: ClassVar[str] = ""  # operands differ in kind, so `_fault` tells
    mixes_dtypes: ClassVar[bool] = True
    kind: str = "int8"

    def operand_dtype(self, *dtypes: str) -> str | None:
        return None

    def _fault(self, x: TensorType, scale: TensorType, zero: TensorType) -> str:
        """What is wanted, if these are not it."""
        raise NotImplementedError

    def infer(self, *inputs: TensorType) -> TensorType:
        code_dtype(self.kind)
        if len(inputs) != 3 or not all(isinstance(t, TensorType) for t in inputs):
            raise TypeMismatch(self, "a tensor, its scale and its zero point", list(inputs))
        if wanted := self._fault(*inputs):
            raise TypeMismatch(self, wanted, list(inputs))
        shape = broadcast_static(self, inputs)
        return TensorType(self.out_dtype(*[t.dtype for t in inputs]), shape)


class Quantize(_OfCodes):
    """The codes of ``x / scale``: rounded, halves to even, then moved by ``zero``, then limited.

    Inputs are a float tensor, a float scale and an integer zero point. Numbers beyond the limits
    of the kind become the limits; NaN the least code, or the NaN of float8. (ONNX's
    ``QuantizeLinear``.) It has no gradient; that of the pair with :class:`Dequantize` is made by
    :func:`dequantize`.
    """

    def formula(self, x: Scalar, scale: Scalar, zero: Scalar) -> Scalar:
        y = x.cast("float32", STORED) / scale.cast("float32", STORED)
        if self.kind in FLOAT8:
            return _float8_bits(y, self.kind)
        low, high = limits_of(self.kind)
        y = y.call("rint") + zero.cast("float32")
        y = (y > low).where((y < high).where(y, high), low)
        return y.cast("int32").cast(self.out_dtype())

    def out_dtype(self, *dtypes: str) -> str:
        return code_dtype(self.kind)

    def _fault(self, x: TensorType, scale: TensorType, zero: TensorType) -> str:
        if self.kind == "int32":
            return "a kind of at most 16 bits"
        fits = x.is_float and scale.is_float and zero.is_integer
        return "" if fits else "a float tensor, a float scale and an integer zero point"

    def reference(self, *inputs: Array) -> Array:
        x, scale, zero = inputs
        with np.errstate(all="ignore"):
            y = x.astype(np.float32) / scale.astype(np.float32)
            low, high = map(np.float32, limits_of(self.kind))
            if self.kind in FLOAT8:
                y = np.where(np.isnan(y), y, np.clip(y, low, high))
                return np.asarray(y.astype(getattr(ml_dtypes, self.kind)).view(np.uint8))
            y = np.rint(y) + zero.astype(np.float32)
            y = np.where(y > low, np.where(y < high, y, high), low)
        return np.asarray(y).astype(numpy_dtype(code_dtype(self.kind)))

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [None, None, None]


@dataclass(frozen=True)
class Dequantize(_OfCodes):
    """The floats that codes stand for: ``(code - zero) * scale``, or of float8 the number.

    The result has the float dtype ``dtype``. Codes may be of any integer dtype, such as the int32
    sums of products. (ONNX's ``DequantizeLinear``.)
    """

    #: A constant stays in its 8 bits: folded it would take four times the memory.
    folds: ClassVar[bool] = False
    dtype: str = "float32"

    def formula(self, x: Scalar, scale: Scalar, zero: Scalar) -> Scalar:
        if self.kind in FLOAT8:
            wide = _of_float8_bits(x.cast("int32"), self.kind).cast(self.computed)
        else:
            wide = (x.cast("int32") - zero.cast("int32")).cast(self.computed)
        return (wide * scale.cast(self.computed, STORED)).cast(self.dtype, RESULT)

    def out_dtype(self, *dtypes: str) -> str:
        return self.dtype

    def _fault(self, x: TensorType, scale: TensorType, zero: TensorType) -> str:
        if self.kind in FLOAT8 and x.dtype != "uint8":
            return "the bits of float8 as uint8"
        fits = x.is_integer and scale.is_float and zero.is_integer
        fits = fits and TensorType(self.dtype).is_float
        return "" if fits else "an integer tensor, a float scale and an integer zero point"

    def reference(self, *inputs: Array) -> Array:
        x, scale, zero = inputs
        computed = self.computed
        if self.kind in FLOAT8:
            wide = x.view(getattr(ml_dtypes, self.kind)).astype(computed)
        else:
            wide = (x.astype(np.int32) - zero.astype(np.int32)).astype(computed)
        with np.errstate(all="ignore"):
            y = np.asarray(wide * scale.astype(computed))
            return y.astype(numpy_dtype(self.dtype))

    @property
    def computed(self) -> str:
        """The dtype in which it multiplies."""
        return wide_float(self.dtype)

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        x, scale, zero = inputs
        number = Dequantize(self.kind, scale.type.dtype)(x, scale.ones_like(), zero)
        return [None, cast(cotangent, scale.type.dtype) * number, None]


def _float8_bits(y: Scalar, kind: str) -> Scalar:
    """The bits of the nearest float8; halves to even."""
    mantissa, bias = FLOAT8[kind]
    most, dropped = limits_of(kind)[1], 23 - mantissa
    size = y.call("abs")
    size = (size < most).where(size, most)
    bits = size.bits("int32")
    odd = bits.call("shr", dropped).call("and", 1)
    normal = (bits + ((1 << dropped - 1) - 1) + odd).call("shr", dropped) - (127 - bias << mantissa)
    small = (size * 2.0 ** (bias - 1 + mantissa)).call("rint").cast("int32")
    found = (size < 2.0 ** (1 - bias)).where(small, normal)
    sign = y.bits("int32").call("shr", 24).call("and", 0x80)
    nan = {"float8_e4m3fn": 0x7F, "float8_e5m2": 0x7E}[kind]
    return y.call("isnan").where(nan, found).call("or", sign).cast("uint8")


def _of_float8_bits(code: Scalar, kind: str) -> Scalar:
    mantissa, bias = FLOAT8[kind]
    size = code.call("and", 0x7F)
    small = size.cast("float32") * 2.0 ** (1 - bias - mantissa)
    normal = (size.call("shl", 23 - mantissa) + (127 - bias << 23)).bits("float32")
    wide = (size < 1 << mantissa).where(small, normal)
    if kind == "float8_e4m3fn":
        wide = size.call("eq", 0x7F).where(np.nan, wide)
    else:
        beyond = size.call("eq", 0x7C).where(np.inf, wide)
        wide = (size > 0x7C).where(np.nan, beyond)
    return (code > 0x7F).where(-wide, wide)


# -- builders -------------------------------------------------------------------------------------


def spread(p: Variable, x: Variable, axis: int | None, block: int | None, what: str) -> Variable:
    """A scale or zero point in the form that broadcasts with ``x``.

    It is a scalar, a vector along ``axis``, or with ``block`` one for each ``block`` neighbours
    along ``axis``. Raises :class:`ShapeMismatch` for another shape.
    """
    if p.type.ndim == 0 or p.type.shape == (1,):
        return dimshuffle(p.reshape(()) if p.type.ndim else p, ("x",) * x.type.ndim)
    if p.type.broadcastable == (True,) * p.type.ndim:
        return pad_left(p, x.type.ndim)
    if axis is None:
        if p.type.ndim == x.type.ndim:
            return p
        raise ShapeMismatch(
            what, f"a scalar, or a vector and its axis, for {x.type}", str(p.type), "Give axis="
        )
    if not block:
        if p.type.ndim != 1:
            raise ShapeMismatch(what, f"a vector along axis {axis} of {x.type}", str(p.type))
        return dimshuffle(p, tuple(0 if i == axis else "x" for i in range(x.type.ndim)))
    if p.type.ndim != x.type.ndim:
        raise ShapeMismatch(what, f"a value for each block of {x.type}", str(p.type))
    wide = p.repeat(block, axis=axis)
    return wide[(*[slice(None)] * axis, slice(None, dims_of(x)[axis]))]


def _parameters(
    x: Variable, scale: Any, zero: Any, kind: str, axis: int | None, block: int | None, what: str
) -> tuple[Variable, Variable]:
    axis = None if axis is None else normal_axis(what, axis, x.type.ndim)
    if not isinstance(scale, Variable):
        scale = as_numbers(f"{what}: scale", scale, "float32")
    s = as_variable(scale)
    if zero is None:
        zero = np.zeros((), code_dtype(kind) if kind in KINDS else x.type.dtype)
    z = zero if isinstance(zero, Variable) else constant(np.asarray(zero))
    if not isinstance(zero, Variable | np.ndarray | np.generic):
        z = constant(np.asarray(zero, code_dtype(kind)))
    return spread(s, x, axis, block, what), spread(z, x, axis, block, what)


def quantize(
    x: TensorLike, scale: Any, zero_point: Any = None, dtype: str = "int8", *,
    axis: int | None = None, block: int | None = None,
) -> Variable:  # fmt: skip
    """``x`` (a float tensor) in numbers of 8 bits: ``round(x / scale) + zero_point``, limited.

    ``scale`` and ``zero_point`` are numbers or scalars for the whole tensor, vectors along
    ``axis``, or with ``block`` tensors that have one entry for each ``block`` elements along
    ``axis``. Halves are rounded to even. ``dtype`` is ``int8``, ``uint8`` (also 16, 4 and 2 bits),
    ``float8_e4m3fn`` or ``float8_e5m2``; float8 is held as its bits, in uint8, and has no zero
    point. Raises :class:`~symdnn.errors.OptionError` for another dtype, and
    :class:`~symdnn.errors.ShapeMismatch` for a scale that does not fit. (ONNX's
    ``QuantizeLinear``; Jacob et al. 2018, "Quantization and Training of Neural Networks for
    Efficient Integer-Arithmetic-Only Inference".)

    >>> import symdnn.tensor as T
    >>> x = T.fvector("x")
    >>> quantize(x, 0.5, 3).eval({x: [-1.0, 0.3, 0.75, 99.0]})
    array([  1,   4,   5, 127], dtype=int8)
    """
    v = as_variable(x)
    code_dtype(dtype)
    s, z = _parameters(v, scale, zero_point, dtype, axis, block, "quantize")
    return Quantize(dtype)(v, s, z)


def dequantize(
    x: TensorLike, scale: Any, zero_point: Any = None, dtype: str | None = None, *,
    axis: int | None = None, block: int | None = None, out: str | None = None,
) -> Variable:  # fmt: skip
    """The floats that codes stand for: ``(x - zero_point) * scale``.

    The arguments are those of :func:`quantize`. ``dtype`` is the kind of the codes (default: their
    dtype), ``out`` the float dtype of the result (default: that of the scale). Of codes that
    :func:`quantize` made of ``v``, the gradient is the straight-through estimator's: that of the
    identity where ``v`` is within the limits of the dtype, and 0 beyond (Bengio, Leonard, Courville
    2013). (ONNX's ``DequantizeLinear``.)

    >>> import symdnn.tensor as T
    >>> x = T.fvector("x")
    >>> y = dequantize(quantize(x, 0.5), 0.5)
    >>> y.eval({x: [-1.0, 0.3, 99.0]})
    array([-1. ,  0.5, 63.5], dtype=float32)
    >>> T.grad(y.sum(), x).eval({x: [-1.0, 0.3, 99.0]})
    array([1., 1., 0.], dtype=float32)
    """
    v = as_variable(x)
    made = v.owner
    kind = dtype or (made.op.kind if made is not None and isinstance(made.op, Quantize) else None)
    s, z = _parameters(v, scale, zero_point, kind or v.type.dtype, axis, block, "dequantize")
    y = Dequantize(kind or v.type.dtype, out or s.type.dtype)(v, s, z)
    real = _real(v, s, z, y)
    return y if real is None else straight_through(y, real)


def _real(codes: Variable, scale: Variable, zero: Variable, y: Variable) -> Variable | None:
    """What :func:`quantize` made the codes of, within the limits; None for other codes."""
    made = codes.owner
    if made is None or not isinstance(made.op, Quantize):
        return None
    low, high = (_number(n, made.op.kind, zero, scale) for n in limits_of(made.op.kind))
    within = minimum(maximum(cast(made.inputs[0], scale.type.dtype), low), high)
    real = cast(within, y.type.dtype)
    return real if real.type.ndim == y.type.ndim else None


def _number(code: float, kind: str, zero: Variable, scale: Variable) -> Variable:
    """The real number that a code stands for."""
    number = np.asarray(code, scale.type.numpy)
    if kind in FLOAT8 or is_zero(zero):
        return mul(scale, number)
    return mul(scale, number - cast(zero, scale.type.dtype))


def is_zero(v: Variable) -> bool:
    """Whether it is a constant of zeros, which may be broadcast."""
    while v.owner is not None and isinstance(v.owner.op, DimShuffle):
        v = v.owner.inputs[0]
    return isinstance(v, Constant) and not np.any(np.asarray(v.data))
