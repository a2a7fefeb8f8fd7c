"""``numpy.fft``'s functions: sizes, axes and norms around :mod:`symdnn.ops.fourier.transform`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.config import config
from symdnn.errors import AxisError, OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, normal_axis
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import AxisLike, DtypeLike, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.create import arange
from symdnn.ops.array.join import roll
from symdnn.ops.array.pad import pad
from symdnn.ops.array.reduce import normal_axes
from symdnn.ops.core.dtype import float_of, work_dtype
from symdnn.ops.core.shape import as_dim, dims_of, shape_entries, shape_i, static_dim
from symdnn.ops.elementwise.complexes import conj
from symdnn.ops.fourier.transform import COMPLEX_OF, FFT, RealFFT, inverse_real_fft
from symdnn.options import as_list

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift",
    "ihfft", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

#: A size that may be symbolic; None is that of the operand.
Size = Any
Sizes = Sequence[Size] | Variable | None

_FORWARD = {"backward": "none", "ortho": "ortho", "forward": "full"}
_SWAPPED = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def _norm(name: str, norm: str | None, inverse: bool = False) -> str:
    """A transform's factor by NumPy's ``norm``."""
    given = "backward" if norm is None else norm
    if given not in _FORWARD:
        raise OptionError(f"{name}: norm={norm!r}: wanted 'backward', 'ortho' or 'forward'")
    return _FORWARD[_SWAPPED[given] if inverse else given]


def operand(name: str, a: TensorLike) -> Variable:
    """The operand as a variable of float32, float64 or a complex dtype."""
    v = as_variable(a)
    if not isinstance(v.type, TensorType):
        raise TypeMismatch(name, "a tensor", v.type)
    if v.type.ndim == 0:
        raise AxisError(name, "a tensor with at least one dimension", v.type)
    dtype = float_of(v.type.dtype)
    return v.astype(work_dtype(dtype))


def _sizes(s: Sizes) -> list[Size] | None:
    """The sizes as a list; a symbolic vector, such as ``x.shape``, as its entries."""
    if s is None:
        return None
    return list(shape_entries(s)) if isinstance(s, Variable) else as_list("fft: s", s, "sizes")


def _axes(name: str, ndim: int, s: Sizes, axes: Any) -> tuple[int, ...]:
    """The axes as numbers from 0, in the order in which they were given."""
    if axes is None:
        count = ndim if s is None else len(s)
        if count > ndim:
            raise AxisError(name, f"at most {ndim} sizes", f"{count} of them")
        return tuple(range(ndim - count, ndim))
    given = [axes] if isinstance(axes, int) else list(axes)
    found = tuple(normal_axis(name, a, ndim) for a in given)
    if not found or len({*found}) != len(found):
        raise AxisError(name, "at least one axis, and each of them once", str(tuple(given)))
    if s is not None and len(s) != len(found):
        raise AxisError(name, f"a size for each of the axes {found}", f"{len(s)} of them")
    return found


def resized(v: Variable, axis: int, n: Size, name: str = "fft") -> Variable:
    """``v`` with ``n`` elements along ``axis``: its first ones, with zeros behind them.

    ``n`` is an int or an integer scalar; with None (or -1, as in NumPy) the size stays.
    """
    if n is None or (isinstance(n, int) and n == -1):
        return v
    wanted = as_dim(n)
    number, size = static_dim(wanted), v.type.shape[axis]
    if number is not None and number < 1:
        raise ShapeMismatch(name, "a size n of at least 1", str(number))
    if number is not None and number == size:
        return v
    dim: Dim = wanted if number is None else number
    if number is None or size is None or number < size:
        v = v[(*(slice(None) for _ in range(axis)), slice(0, dim))]
        if number is not None and size is not None:
            return v
    missing = dim - dims_of(v)[axis]
    return pad(v, [(0, missing if i == axis else 0) for i in range(v.type.ndim)])


def _all_resized(v: Variable, s: Sizes, axes: Sequence[int], name: str) -> Variable:
    for axis, n in zip(axes, s or (), strict=False):
        v = resized(v, axis, n, name)
    return v


# -- complex --------------------------------------------------------------------------------------


def _complex(
    name: str, a: TensorLike, s: Sizes, axes: Any, norm: str | None, inverse: bool
) -> Variable:
    v, factor = operand(name, a), _norm(name, norm, inverse)
    s = _sizes(s)
    where = _axes(name, v.type.ndim, s, axes)
    return FFT(where, factor, inverse)(_all_resized(v, s, where, name))


def fft(a: TensorLike, n: Size = None, axis: int = -1, norm: str | None = None) -> Variable:
    """The discrete Fourier transform along ``axis``: ``y[k] = sum_j a[j] exp(-2 pi i j k / n)``.

    ``a`` is cropped or padded with zeros to ``n`` elements, an int or an integer scalar. The result
    is complex64 for float32 and 16-bit floats, complex128 for float64. ``norm`` is ``"backward"``
    (None: the inverse has the factor 1/n), ``"ortho"`` (both ``1/sqrt(n)``) or ``"forward"``.
    Gradients of a real cost by a complex variable are ``dC/dx + i dC/dy``. (``numpy.fft.fft``)

    Raises :class:`~symdnn.errors.AxisError`, :class:`~symdnn.errors.OptionError`, and
    :class:`~symdnn.errors.ShapeMismatch` for no elements.

    >>> import numpy as np, symdnn.tensor as T
    >>> T.fft.fft(np.float32([1, 2, 3, 4])).eval().imag.tolist()
    [-0.0, 2.0, -0.0, -2.0]
    """
    return _complex("fft", a, [n], [axis], norm, False)


def ifft(a: TensorLike, n: Size = None, axis: int = -1, norm: str | None = None) -> Variable:
    """The inverse of :func:`fft`. (``numpy.fft.ifft``)"""
    return _complex("ifft", a, [n], [axis], norm, True)


def fft2(
    a: TensorLike, s: Sizes = None, axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Variable:  # fmt: skip
    """:func:`fftn` along the last two axes. (``numpy.fft.fft2``)"""
    return _complex("fft2", a, s, axes, norm, False)


def ifft2(
    a: TensorLike, s: Sizes = None, axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Variable:  # fmt: skip
    """The inverse of :func:`fft2`. (``numpy.fft.ifft2``)"""
    return _complex("ifft2", a, s, axes, norm, True)


def fftn(
    a: TensorLike, s: Sizes = None, axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Variable:  # fmt: skip
    """:func:`fft` along several ``axes``: all, or the last ones, as many as the sizes ``s``.

    (``numpy.fft.fftn``)
    """
    return _complex("fftn", a, s, axes, norm, False)


def ifftn(
    a: TensorLike, s: Sizes = None, axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Variable:  # fmt: skip
    """The inverse of :func:`fftn`. (``numpy.fft.ifftn``)"""
    return _complex("ifftn", a, s, axes, norm, True)


# -- of real numbers ------------------------------------------------------------------------------


def rfftn(
    a: TensorLike, s: Sizes = None, axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Variable:  # fmt: skip
    """:func:`fftn` of a real tensor: of the last axis only the first ``n // 2 + 1`` frequencies.

    (``numpy.fft.rfftn``) Raises :class:`~symdnn.errors.TypeMismatch` for a complex tensor.
    """
    v, factor = operand("rfftn", a), _norm("rfftn", norm)
    if v.type.is_complex:
        raise TypeMismatch("rfftn", "a real tensor", v.type, "Use fftn, or take its real part")
    s = _sizes(s)
    where = _axes("rfftn", v.type.ndim, s, axes)
    return RealFFT(where, factor)(_all_resized(v, s, where, "rfftn"))


def irfftn(
    a: TensorLike, s: Sizes = None, axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Variable:  # fmt: skip
    """The inverse of :func:`rfftn`: a real tensor of sizes ``s`` along ``axes``.

    The last size is by default ``2 (m - 1)`` for ``m`` frequencies, so give an odd one.
    (``numpy.fft.irfftn``)
    """
    v, factor = operand("irfftn", a), _norm("irfftn", norm, True)
    s = _sizes(s)
    where = _axes("irfftn", v.type.ndim, s, axes)
    v = v.astype(COMPLEX_OF.get(v.type.dtype, v.type.dtype))
    last, given = s[-1] if s is not None else None, dims_of(v)[where[-1]]
    if isinstance(last, int) and last == -1:
        last = given
    size = 2 * (given - 1) if last is None else last
    if isinstance(size, int) and size < 1:
        raise ShapeMismatch("irfftn", "a last size of at least 1", str(size), "Give s (or n)")
    dim = as_dim(size)
    v = _all_resized(v, None if s is None else s[:-1], where, "irfftn")
    if last is not None:
        number = static_dim(dim)
        half = (dim if number is None else number) // 2 + 1
        v = resized(v, where[-1], half, "irfftn")
    return inverse_real_fft(v, dim, where, factor)


def rfft(a: TensorLike, n: Size = None, axis: int = -1, norm: str | None = None) -> Variable:
    """:func:`fft` of a real tensor: the first ``n // 2 + 1`` frequencies, since the others are
    their conjugates. (``numpy.fft.rfft``)

    >>> import numpy as np, symdnn.tensor as T
    >>> T.fft.rfft(np.float32([1, 2, 3, 4])).eval()
    array([10.+0.j, -2.+2.j, -2.+0.j], dtype=complex64)
    """
    return rfftn(a, [n], [axis], norm)


def irfft(a: TensorLike, n: Size = None, axis: int = -1, norm: str | None = None) -> Variable:
    """The inverse of :func:`rfft`: ``n`` real elements, by default ``2 (m - 1)`` for ``m``
    frequencies. (``numpy.fft.irfft``)"""
    return irfftn(a, [n], [axis], norm)


def rfft2(
    a: TensorLike, s: Sizes = None, axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Variable:  # fmt: skip
    """:func:`rfftn` along the last two axes. (``numpy.fft.rfft2``)"""
    return rfftn(a, s, axes, norm)


def irfft2(
    a: TensorLike, s: Sizes = None, axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Variable:  # fmt: skip
    """The inverse of :func:`rfft2`. (``numpy.fft.irfft2``)"""
    return irfftn(a, s, axes, norm)


def hfft(a: TensorLike, n: Size = None, axis: int = -1, norm: str | None = None) -> Variable:
    """The transform of a signal that is Hermitian in time, of which ``a`` is the first half: real.

    ``n`` is the size of the result, by default ``2 (m - 1)``. (``numpy.fft.hfft``)
    """
    _norm("hfft", norm)
    return irfft(conj(as_variable(a)), n, axis, _SWAPPED[norm or "backward"])


def ihfft(a: TensorLike, n: Size = None, axis: int = -1, norm: str | None = None) -> Variable:
    """The inverse of :func:`hfft`. (``numpy.fft.ihfft``)"""
    _norm("ihfft", norm)
    return conj(rfft(a, n, axis, _SWAPPED[norm or "backward"]))


# -- frequencies ----------------------------------------------------------------------------------


def _frequencies(k: Variable, n: Variable, d: TensorLike, dtype: DtypeLike | None) -> Variable:
    wanted = TensorType(dtype or config.floatX).dtype
    step = as_variable(d).astype(wanted) * n.astype(wanted)
    return k.astype(wanted) / step


def fftfreq(n: Size, d: TensorLike = 1.0, dtype: DtypeLike | None = None) -> Variable:
    """The frequencies of :func:`fft`, in cycles per unit of the sample spacing ``d``.

    ``n`` is an int or an integer scalar. The dtype is ``floatX`` by default.
    (``numpy.fft.fftfreq``)

    >>> import symdnn.tensor as T
    >>> T.fft.fftfreq(4, 0.5).eval().tolist()
    [0.0, 0.5, -1.0, -0.5]
    """
    size = as_dim(n)
    k = arange(size, dtype="int64")
    return _frequencies(operator("switch")(2 * k < size, k, k - size), size, d, dtype)


def rfftfreq(n: Size, d: TensorLike = 1.0, dtype: DtypeLike | None = None) -> Variable:
    """The frequencies of :func:`rfft`; see :func:`fftfreq`. (``numpy.fft.rfftfreq``)"""
    size = as_dim(n)
    return _frequencies(arange(size // 2 + 1, dtype="int64"), size, d, dtype)


def fftshift(x: TensorLike, axes: AxisLike = None) -> Variable:
    """``x`` with the frequency 0 moved to the middle of ``axes`` (all by default).

    (``numpy.fft.fftshift``)
    """
    return _shifted("fftshift", x, axes, 1)


def ifftshift(x: TensorLike, axes: AxisLike = None) -> Variable:
    """The inverse of :func:`fftshift`. (``numpy.fft.ifftshift``)"""
    return _shifted("ifftshift", x, axes, -1)


def _shifted(name: str, x: TensorLike, axes: AxisLike, sign: int) -> Variable:
    v = as_variable(x)
    where = normal_axes(axes, v.type.ndim, name)
    return roll(v, [sign * (shape_i(v, a) // 2) for a in where], where)
