"""Complex numbers: parts, conjugate, angle, and building them from real ones.

For the convention of gradients see :class:`symdnn.ops.elemwise.Elemwise`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.graph.op import Grads, Vars
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.gradient_control import disconnected_grad, zero_grad
from symdnn.ops.core.python_numbers import settled
from symdnn.ops.elementwise.arithmetic import maximum, sqr
from symdnn.ops.elementwise.math import arctan2, cos, sin
from symdnn.ops.elemwise import Elemwise, apply_elemwise


def _part_dtype(dtype: str) -> str:
    return "float32" if dtype == "complex64" else "float64"


@dataclass(frozen=True)
class ComplexPart(Elemwise):
    """Base of real functions of one complex operand."""

    may_overwrite: ClassVar[Mapping[int, tuple[int, ...]]] = {}
    abstract: ClassVar[bool] = True
    kinds: ClassVar[str] = "c"

    def out_dtype(self, *dtypes: str) -> str:
        return _part_dtype(dtypes[0])


class Real(ComplexPart):
    """The real part."""

    function = np.real

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        return [complex(cotangent, cotangent.zeros_like())]


class Imag(ComplexPart):
    """The imaginary part."""

    function = np.imag

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        return [complex(cotangent.zeros_like(), cotangent)]


class Angle(ComplexPart):
    """The angle in the complex plane, in ``[-pi, pi]``."""

    function = np.angle

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        a, b = real(inputs[0]), imag(inputs[0])
        larger = disconnected_grad(maximum(abs(a), abs(b)))  # as ArcTan2
        a, b = a / larger, b / larger
        scaled = cotangent / larger / (sqr(a) + sqr(b))
        return [complex(-scaled * b, scaled * a)]


@dataclass(frozen=True)
class Conj(Elemwise):
    """The complex conjugate."""

    function = np.conjugate
    kinds: ClassVar[str] = "c"

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        return [conj(cotangent)]


def _complex(a: Any, b: Any) -> Any:
    return a + 1j * b


@dataclass(frozen=True)
class Complex(Elemwise):
    """``a + ib`` of two reals: complex64 if both fit in float32, else complex128."""

    may_overwrite: ClassVar[Mapping[int, tuple[int, ...]]] = {}
    function = _complex
    arity: ClassVar[int] = 2
    kinds: ClassVar[str] = "bif"

    def out_dtype(self, *dtypes: str) -> str:
        wide = super().out_dtype(*dtypes, "float16")
        return "complex128" if wide == "float64" else "complex64"

    def reference(self, *inputs: Array) -> Array:
        a, b = inputs
        # a + 1j * b would make NaNs of infinities.
        out = np.empty(np.broadcast_shapes(a.shape, b.shape), _numpy_complex(self, a, b))
        out.real, out.imag = a, b
        return out

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        return [real(cotangent), imag(cotangent)]


def _numpy_complex(op: Complex, a: Array, b: Array) -> np.dtype[Any]:
    return np.dtype(op.out_dtype(a.dtype.name, b.dtype.name))


def real(z: TensorLike) -> Variable:
    """The real part; ``z`` itself when it is real."""
    v = as_variable(z)
    return Real()(v) if v.type.is_complex else v


def imag(z: TensorLike) -> Variable:
    """The imaginary part; zeros of a real ``z``."""
    v = as_variable(z)
    return Imag()(v) if v.type.is_complex else v.zeros_like()


def conj(z: TensorLike) -> Variable:
    """The complex conjugate; ``z`` itself when it is real."""
    v = as_variable(z)
    return Conj()(v) if v.type.is_complex else v


def angle(z: TensorLike) -> Variable:
    """The angle in the complex plane, in ``[-pi, pi]``; 0 or pi of a real ``z``.

    The gradient by a real ``z`` is 0.
    """
    v = as_variable(z)
    return Angle()(v) if v.type.is_complex else arctan2(v.zeros_like(), zero_grad(v))


def complex(real: TensorLike, imag: TensorLike) -> Variable:
    """``real + i imag`` of two real operands."""
    return apply_elemwise(Complex(), real, imag)


def complex_from_polar(abs: TensorLike, angle: TensorLike) -> Variable:
    """The complex number of this modulus and angle; ints are computed in float64."""
    r, t = settled([as_variable(abs), as_variable(angle)])
    if r.type.is_discrete and t.type.is_discrete:
        r, t = r.astype("float64"), t.astype("float64")
    return complex(r * cos(t), r * sin(t))


OPERATORS = {
    "real": real,
    "imag": imag,
    "conj": conj,
    "angle": angle,
    "complex": complex,
}
