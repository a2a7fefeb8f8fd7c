"""Discrete Fourier transforms: complex, of real numbers, and back to real numbers.

There are three ops, and the adjoint of each is made of these three. They neither pad nor crop, so
their gradients need no case for that: the functions in :mod:`symdnn.ops.fourier.functions` do.
The convention of gradients is that of :class:`symdnn.ops.elemwise.Elemwise`: ``dC/dx + i dC/dy``,
so the vjp is the conjugate transpose of the transform's matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import AxisError, OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, common, known
from symdnn.graph.op import Axes, Batched, Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable, constant
from symdnn.ops.array.create import arange
from symdnn.ops.core.lanes import on_lanes
from symdnn.ops.core.shape import as_dim, dims_of, dimshuffle, static_dim

#: The complex dtype of two numbers of a real one, and back.
COMPLEX_OF = {"float32": "complex64", "float64": "complex128"}
REAL_OF = {c: r for r, c in COMPLEX_OF.items()}
_NORMS = ("none", "ortho", "full")


@dataclass(frozen=True)
class Transform(Op):
    """Base of the transforms: along ``axes``, of which the last one is the halved one, if any.

    ``norm`` is the factor of the result, for the number n of elements in the space of real numbers:
    1 (``"none"``), ``1 / sqrt(n)`` (``"ortho"``) or ``1 / n`` (``"full"``).
    """

    linear_in_first: ClassVar[bool] = True
    abstract: ClassVar[bool] = True
    axes: tuple[int, ...]
    norm: str = "none"

    def _operand(self, z: Any, dtypes: Sequence[str]) -> TensorType:
        """The type of the operand, checked."""
        if self.norm not in _NORMS:
            raise OptionError(f"{self}: norm={self.norm!r}: wanted one of {', '.join(_NORMS)}")
        if not isinstance(z, TensorType) or z.dtype not in dtypes:
            raise TypeMismatch(self, f"a tensor of dtype {' or '.join(dtypes)}", z)
        if not self.axes or len({*self.axes}) != len(self.axes):
            raise AxisError(self, "at least one axis, and each of them once", self.axes)
        if not all(0 <= a < z.ndim for a in self.axes):
            raise AxisError(self, f"axes of a tensor of {z.ndim} dimension(s)", self.axes)
        return z

    def _check_sizes(self, sizes: Sequence[Any]) -> None:
        if any(d is not None and (n := known(d)) is not None and n < 1 for d in sizes):
            raise ShapeMismatch(
                self,
                f"at least one element along the axes {self.axes}",
                f"sizes {tuple(sizes)}",
                "A transform of no elements is not defined; give n or test the size first",
            )

    def with_size(self, shape: Sequence[Any], size: Any) -> tuple[Any, ...]:
        """``shape`` with another size of the halved axis."""
        return tuple(size if i == self.axes[-1] else d for i, d in enumerate(shape))

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(replace(self, axes=tuple(a + 1 for a in self.axes)), inputs, axes)

    def _halves(self, size: Dim, ndim: int, dtype: str, inner: float) -> Variable:
        """Along the halved axis of an even or odd ``size``: 1 for the frequencies that are their
        own negative, ``inner`` for those that stand for two."""
        n = as_dim(size)
        k = arange(n // 2 + 1, dtype="int64")
        alone = operator("eq")(k, 0) | operator("eq")(2 * k, n)
        one, other = (constant(v, dtype=dtype) for v in (1, inner))
        weights = operator("switch")(alone, one, other)
        return dimshuffle(weights, [0 if i == self.axes[-1] else "x" for i in range(ndim)])


@dataclass(frozen=True)
class FFT(Transform):
    """``y[k] = sum_j x[j] exp(-2 pi i j k / n)`` along each axis; ``inverse`` with ``+2 pi i``.

    ``x`` is complex, or real. (``scipy.fft.fftn`` and ``ifftn``, cuFFT's ``C2C`` and ``Z2Z``.)
    """

    may_overwrite: ClassVar[Mapping[int, tuple[int, ...]]] = {0: (0,)}
    inverse: bool = False

    def infer(self, x: TensorType) -> TensorType:
        self._operand(x, (*COMPLEX_OF, *REAL_OF))
        self._check_sizes([x.shape[a] for a in self.axes])
        return x.with_dtype(COMPLEX_OF.get(x.dtype, x.dtype))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        self._check_sizes([shapes[0][a] for a in self.axes])
        return [tuple(shapes[0])]

    def reference(self, x: Array) -> Array:
        import scipy.fft

        function = scipy.fft.ifftn if self.inverse else scipy.fft.fftn
        return np.asarray(function(x, axes=self.axes, norm=scale_of(self.norm, self.inverse)))

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x,), (dy,) = inputs, cotangents
        dx = replace(self, inverse=not self.inverse)(dy)
        return [dx if x.type.is_complex else dx.real]


class RealFFT(Transform):
    """:class:`FFT` of a real tensor, whose last axis has only the first ``n // 2 + 1`` frequencies.

    The others are their conjugates. (``scipy.fft.rfftn``, cuFFT's ``R2C`` and ``D2Z``.)
    """

    def infer(self, x: TensorType) -> TensorType:
        self._operand(x, tuple(COMPLEX_OF))
        self._check_sizes([x.shape[a] for a in self.axes])
        n = x.shape[self.axes[-1]]
        half = None if n is None else n // 2 + 1
        return TensorType(COMPLEX_OF[x.dtype], self.with_size(x.shape, half))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        (x,) = shapes
        self._check_sizes([x[a] for a in self.axes])
        return [self.with_size(x, x[self.axes[-1]] // 2 + 1)]

    def reference(self, x: Array) -> Array:
        import scipy.fft

        return np.asarray(scipy.fft.rfftn(x, axes=self.axes, norm=scale_of(self.norm, False)))

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x,), (dy,) = inputs, cotangents
        n = dims_of(x)[self.axes[-1]]
        # The inverse counts each frequency twice that stands for two; the sum here counts it once.
        halves = self._halves(n, dy.type.ndim, x.type.dtype, 0.5)
        return [inverse_real_fft(dy * halves, n, self.axes, self.norm)]


@dataclass(frozen=True)
class InverseRealFFT(Transform):
    """A real tensor with ``size`` elements along the last axis, from the first ``size // 2 + 1``
    frequencies of it; the unscaled inverse of :class:`RealFFT`.

    Imaginary parts that would make it complex count as 0. The second input is the size, an integer
    scalar; ``size`` is its value where that is known. (``scipy.fft.irfftn``, cuFFT's ``C2R`` and
    ``Z2D``.)
    """

    host_inputs: ClassVar[tuple[int, ...]] = (1,)
    run_time_inputs: ClassVar[tuple[int, ...]] = ()
    size: int | None = None

    def infer(self, z: TensorType, size: TensorType) -> TensorType:
        self._operand(z, tuple(REAL_OF))
        self._check(z.shape, self.size)
        return TensorType(REAL_OF[z.dtype], self.with_size(z.shape, self.size))

    def _check(self, shape: Sequence[Dim | None], n: Any) -> None:
        self._check_sizes([*(shape[a] for a in self.axes[:-1]), n])
        given = shape[self.axes[-1]]
        if given is not None and n is not None and common((given, n // 2 + 1)) is None:
            raise ShapeMismatch(
                self,
                f"n // 2 + 1 frequencies along axis {self.axes[-1]} for n={n}",
                f"a tensor of shape {tuple(shape)}",
            )

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        n = host[1] if self.size is None else self.size
        self._check(shapes[0], n)
        return [self.with_size(shapes[0], n)]

    def reference(self, z: Array, size: Array) -> Array:
        import scipy.fft

        n, axes = int(size), self.axes
        self._check(z.shape, n)
        sizes = [*(z.shape[a] for a in axes[:-1]), n]
        norm = scale_of(self.norm, True)
        return np.asarray(scipy.fft.irfftn(z, s=sizes, axes=axes, norm=norm))

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (z, size), (dy,) = inputs, cotangents
        n = size if self.size is None else self.size
        halves = self._halves(n, z.type.ndim, dy.type.dtype, 2.0)
        return [RealFFT(self.axes, self.norm)(dy) * halves, None]


def inverse_real_fft(z: Variable, size: Dim, axes: tuple[int, ...], norm: str) -> Variable:
    """:class:`InverseRealFFT` to ``size`` elements, an int or an integer scalar."""
    n = as_dim(size)
    return InverseRealFFT(axes, norm, static_dim(n))(z, n)


def scale_of(norm: str, inverse: bool) -> str:
    """``norm`` of SciPy's forward (or inverse) functions for a :class:`Transform`'s."""
    if norm == "ortho":
        return norm
    return "forward" if (norm == "full") != inverse else "backward"
