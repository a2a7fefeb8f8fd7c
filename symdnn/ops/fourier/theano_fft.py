"""Theano's transforms of batches of real numbers, with real and imaginary parts in a last axis."""

from __future__ import annotations

from symdnn.errors import NdimMismatch, OptionError, TypeMismatch
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.array.join import stack
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.complexes import complex, imag, real
from symdnn.ops.fourier.functions import operand
from symdnn.ops.fourier.transform import RealFFT, inverse_real_fft

#: The factors of the transform and of its inverse by Theano's ``norm``.
_NORMS = {None: ("none", "full"), "ortho": ("ortho", "ortho"), "no_norm": ("none", "none")}


def _factors(name: str, norm: str | None) -> tuple[str, str]:
    if norm not in _NORMS:
        raise OptionError(f"{name}: norm={norm!r}: wanted None, 'ortho' or 'no_norm'")
    return _NORMS[norm]


def rfft(inp: TensorLike, norm: str | None = None) -> Variable:
    """The transform of each example of a batch of real tensors ``(m, ..., n)``, over all axes but
    the first: ``(m, ..., n // 2 + 1, 2)``, real and imaginary parts.

    ``norm`` is None (the inverse has the factor 1/n), ``"ortho"`` or ``"no_norm"`` (no factor in
    either). (``theano.tensor.fft.rfft``, ``theano.gpuarray.fft.curfft``)

    >>> import numpy as np
    >>> from symdnn.tensor import theano_fft
    >>> theano_fft.rfft(np.float32([[1, 2, 3, 4]])).eval().tolist()
    [[[10.0, 0.0], [-2.0, 2.0], [-2.0, 0.0]]]
    """
    factor = _factors("rfft", norm)[0]
    v = operand("rfft", inp)
    if v.type.is_complex or v.type.ndim < 2:
        raise NdimMismatch("rfft", "a batch (m, ..., n) of real tensors", v.type)
    z = RealFFT(tuple(range(1, v.type.ndim)), factor)(v)
    return stack([real(z), imag(z)], axis=-1)


def irfft(inp: TensorLike, norm: str | None = None, is_odd: bool = False) -> Variable:
    """The inverse of :func:`rfft`: ``(m, ..., n)`` from ``(m, ..., n // 2 + 1, 2)``.

    ``is_odd`` says whether ``n`` is odd. (``theano.tensor.fft.irfft``,
    ``theano.gpuarray.fft.cuirfft``)

    >>> import numpy as np
    >>> from symdnn.tensor import theano_fft
    >>> theano_fft.irfft(np.float32([[[10, 0], [-2, 2], [-2, 0]]])).eval().tolist()
    [[1.0, 2.0, 3.0, 4.0]]
    """
    if not isinstance(is_odd, bool):
        raise OptionError(f"irfft: is_odd={is_odd!r}: wanted True or False")
    factor = _factors("irfft", norm)[1]
    v = operand("irfft", inp)
    if v.type.is_complex or v.type.ndim < 3:
        raise NdimMismatch("irfft", "real and imaginary parts (m, ..., n // 2 + 1, 2)", v.type)
    if v.type.shape[-1] not in (None, 2):
        raise TypeMismatch("irfft", "real and imaginary parts in a last axis of size 2", v.type)
    z = complex(v[..., 0], v[..., 1])
    n = 2 * (dims_of(z)[-1] - 1) + int(is_odd)
    return inverse_real_fft(z, n, tuple(range(1, z.type.ndim)), factor)
