"""Products and convolutions of quantised numbers: exact sums, scaled once.

Sums of products of 8-bit integers are exact in int32. What follows is one line of float32: the
scales, a bias, an addend, relu, and the rounding to the numbers of the next layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from symdnn.errors import ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.op import Host, Op, Shapes, Types
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.quantize import FLOAT8, limits_of
from symdnn.ops.nn.conv import Conv, known_or_none

__all__ = ["TERMS", "QuantizedProduct", "integer_product"]

#: Names of the inputs after x and w, in their order; a product has some of them.
TERMS = ("x_zero", "w_zero", "x_scale", "w_scale", "bias", "z", "y_scale", "y_zero")
#: Those with an entry for each output channel, or one for all.
_BY_CHANNEL = ("w_zero", "w_scale", "bias")
_ZEROS = ("x_zero", "w_zero", "y_zero")


@dataclass(frozen=True)
class QuantizedProduct(Op):
    """``op`` (a convolution or matrix product) on codes, with exact sums.

    With ``s`` the sums of products of ``x - x_zero`` and ``w - w_zero``, the result is ``s`` in
    int32 if there is no scale, else with ``out`` a float dtype
    ``y = relu(s * (x_scale * w_scale) + bias + (z - z_zero) * z_scale)`` in float32, and with
    ``out`` int8 or uint8 ``round(y / y_scale) + y_zero``, halves to even, within the limits.

    Inputs are x, w and those that ``terms`` names, in the order of :data:`TERMS`: zero points are
    int32, scales and the bias float32, scalars or (``w_zero``, ``w_scale``, ``bias``) vectors with
    an entry for each output channel; ``z`` has the shape and dtype of the result. Operands of kind
    float8 are its bits; their sums are float32, and always scaled.
    """

    no_gradients: ClassVar[bool] = True
    op: Op
    terms: tuple[str, ...] = ()
    out: str = "int32"
    relu: bool = False
    z_scale: float = 1.0
    z_zero: int = 0
    kinds: tuple[str, str] = ("", "")

    @property
    def is_float8(self) -> bool:
        """Whether the operands are float8."""
        return self.kinds[0] in FLOAT8

    def index(self, name: str) -> int | None:
        """The index of a term among the inputs; None without it."""
        return 2 + self.terms.index(name) if name in self.terms else None

    @property
    def is_conv(self) -> bool:
        """Whether it is a convolution."""
        return isinstance(self.op, Conv)

    def _result(self, x: TensorType, w: TensorType) -> TensorType:
        (y,) = self.op.output_types([x.with_dtype("float32"), w.with_dtype("float32")])
        assert isinstance(y, TensorType), "a product of tensors is one"
        return y.with_dtype(self.out)

    def infer(self, *inputs: TensorType) -> TensorType:
        codes, rest = inputs[:2], inputs[2:]
        if not all(isinstance(t, TensorType) and t.dtype in ("int8", "uint8") for t in codes):
            raise TypeMismatch(self, "two tensors of int8 or uint8", list(inputs))
        ordered = tuple(n for n in TERMS if n in self.terms)
        if len(rest) != len(self.terms) or self.terms != ordered:
            raise TypeMismatch(self, f"x, w and {', '.join(self.terms)}", list(inputs))
        y = self._result(*codes)
        for name, t in zip(self.terms, rest, strict=True):
            most = int(name in _BY_CHANNEL)
            wanted = f"{'int32' if name in _ZEROS else 'float32'} with at most {most} dimensions"
            fits = wanted.startswith(t.dtype) and t.ndim <= most
            if name == "z":
                wanted = f"{self.out} with {y.ndim} dimensions"
                fits = t.dtype == self.out and t.ndim == y.ndim
            if not fits:
                raise TypeMismatch(self, f"{name} of {wanted}", t)
        self._check_channels(inputs, [t.shape for t in inputs])
        return y

    def _check_channels(self, types: Types, shapes: Sequence[Sequence[Dim | None]]) -> None:
        """Raise unless each vector has an entry for each output channel, or is one for certain."""
        w = shapes[1]
        channels = known_or_none(w[0 if self.is_conv else -1]) if len(w) > 1 else None
        for name, t, shape in zip(self.terms, types[2:], shapes[2:], strict=True):
            if name in _BY_CHANNEL and len(shape) == 1 and t.shape[0] != 1:
                entries = known_or_none(shape[0])
                if None not in (channels, entries) and entries != channels:
                    wanted = f"{name} with an entry for each of the {channels} output channels"
                    raise ShapeMismatch(self, wanted, f"{entries} entries")

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        self._check_channels(types, shapes)
        floats = [t.with_dtype("float32") for t in types[:2]]
        return self.op.shapes(floats, shapes[:2], host)

    def multiplications(self, inputs: Types, outputs: Types) -> float:
        return self.op.multiplications(inputs, outputs)

    def reference(self, *inputs: Array) -> Array:
        given = dict(zip(self.terms, inputs[2:], strict=True))
        s = self._sums(inputs[0], inputs[1], given)
        if "x_scale" not in given:
            return s.astype(np.int32)
        y = s.astype(np.float32) * self._along(given["x_scale"] * given["w_scale"], s.ndim)
        if "bias" in given:
            y = y + self._along(given["bias"], s.ndim)
        if "z" in given:
            z = given["z"].astype(np.float32) - np.float32(self.z_zero)
            y = y + z * np.float32(self.z_scale)
        if self.relu:
            y = np.maximum(y, 0)
        if "y_scale" in given:
            low, high = limits_of(self.out)
            y = np.clip(np.rint(y / given["y_scale"]) + given.get("y_zero", 0), low, high)
        return np.asarray(y).astype(numpy_dtype(self.out))

    def _sums(self, x: Array, w: Array, given: dict[str, Array]) -> Array:
        """Sums of products in float64, where those of 8-bit integers are exact."""
        if self.is_float8:
            a, b = (
                v.view(getattr(ml_dtypes, k)).astype(np.float64)
                for v, k in zip((x, w), self.kinds, strict=True)
            )
        else:
            a = x.astype(np.float64) - given.get("x_zero", 0)
            b = w.astype(np.float64)
            zero = np.asarray(given.get("w_zero", 0))
            first = zero.ndim and self.is_conv
            b = b - (zero.reshape(-1, *[1] * (w.ndim - 1)) if first else zero)
        return np.asarray(self.op.compute(a, b)[0])

    def _along(self, v: Array, ndim: int) -> Array:
        """A value for each output channel, which broadcasts with the result."""
        return v.reshape(-1, *[1] * (ndim - 2)) if v.ndim and self.is_conv else v

    def __str__(self) -> str:
        words = [str(self.op), *self.terms, *["relu"] * self.relu, f"out={self.out}"]
        return f"QuantizedProduct{{{', '.join(words)}}}"


def integer_product(
    op: Op, x: TensorLike, w: TensorLike, x_zero: Any = None, w_zero: Any = None
) -> Variable:
    """The int32 sums of ``op`` (``Dot()``, ``BatchedDot()``, a ``Conv``) on 8-bit integers.

    The zero points, numbers or integer variables, are subtracted first; that of ``w`` may have an
    entry for each output channel. Sums are exact. Raises :class:`~symdnn.errors.TypeMismatch` for
    operands that are not int8 or uint8. (ONNX's ``MatMulInteger`` and ``ConvInteger``.)

    >>> import numpy as np
    >>> from symdnn.ops.linalg.dot import Dot
    >>> integer_product(Dot(), np.int8([[1, 2]]), np.int8([[3], [4]]), 1).eval()
    array([[4]], dtype=int32)
    """
    zeros = {"x_zero": x_zero, "w_zero": w_zero}
    known = {n: cast(as_variable(v), "int32") for n, v in zeros.items() if v is not None}
    return QuantizedProduct(op, tuple(known))(x, w, *known.values())
