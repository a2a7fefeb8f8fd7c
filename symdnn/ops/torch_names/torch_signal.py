"""PyTorch's windows and short-time Fourier transforms, with its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.errors import DtypeError, OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.ops.array.create import arange, zeros
from symdnn.ops.array.getitem import inc_subtensor
from symdnn.ops.array.pad import pad
from symdnn.ops.core.dtype import upcast
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import cast, sqr
from symdnn.ops.elementwise.comparison import gt, switch
from symdnn.ops.fourier.functions import fft, ifft, irfft, operand, resized, rfft
from symdnn.ops.torch_names.torch_arrays import unfold
from symdnn.ops.torch_names.torch_more import view_as_complex, view_as_real
from symdnn.options import as_int, is_int

__all__ = [
    "bartlett_window", "blackman_window", "hamming_window", "hann_window", "istft",
    "kaiser_window", "stft",
]  # fmt: skip


# -- windows ---------------------------------------------------------------------------------------


def _window(
    name: str, make: Callable[[int], Array], length: int, periodic: bool, dtype: str | None
) -> Variable:
    """The numbers of a window; a periodic one is the longer symmetric one without its last."""
    if not is_int(length) or length < 0:
        raise OptionError(f"{name}: window_length={length!r:.60}; wanted an int, 0 or more")
    chosen = np.dtype(str(config.floatX) if dtype is None else dtype)
    if chosen.kind != "f":
        raise DtypeError(f"{name}: dtype={dtype!r}; wanted a float")
    longer = bool(periodic) and length > 1
    value = make(int(length) + longer)
    return constant(value[: int(length)].astype(chosen))


def bartlett_window(
    window_length: int, periodic: bool = True, *, dtype: str | None = None
) -> Variable:
    """A triangle of ``window_length`` numbers, 0 at its ends; see :func:`hann_window`."""
    return _window("bartlett_window", np.bartlett, window_length, periodic, dtype)


def blackman_window(
    window_length: int, periodic: bool = True, *, dtype: str | None = None
) -> Variable:
    """``0.42 - 0.5 cos(t) + 0.08 cos(2 t)``, ``t`` from 0 to 2 pi; see :func:`hann_window`."""
    return _window("blackman_window", np.blackman, window_length, periodic, dtype)


def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *,
    dtype: str | None = None,
) -> Variable:  # fmt: skip
    """``alpha - beta cos(t)``, ``t`` from 0 to 2 pi; see :func:`hann_window`."""

    def make(n: int) -> Array:
        return np.ones(n) if n < 2 else alpha - beta * np.cos(2 * np.pi * np.arange(n) / (n - 1))

    return _window("hamming_window", make, window_length, periodic, dtype)


def hann_window(window_length: int, periodic: bool = True, *, dtype: str | None = None) -> Variable:
    """``0.5 - 0.5 cos(t)``, ``t`` from 0 to 2 pi: ``window_length`` numbers (an int).

    It is a constant of ``dtype``, by default ``floatX``. A periodic window, for transforms, stops
    before 2 pi. With ``periodic=False`` it is symmetric, as NumPy's.

    >>> import symdnn.tensor as T
    >>> T.hann_window(4).eval().tolist()
    [0.0, 0.5, 1.0, 0.5]
    """
    return hamming_window(window_length, periodic, 0.5, 0.5, dtype=dtype)


def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: str | None = None
) -> Variable:
    """Kaiser's window of the shape ``beta``; see :func:`hann_window`."""
    return _window("kaiser_window", lambda n: np.kaiser(n, beta), window_length, periodic, dtype)


# -- frames ----------------------------------------------------------------------------------------


def _frames(
    name: str, n_fft: int, hop_length: int | None, win_length: int | None, window: Any, dtype: str
) -> tuple[int, Variable]:
    """The step from frame to frame, and the window of ``n_fft`` numbers."""
    n_fft = as_int(f"{name}: n_fft", n_fft)
    hop = n_fft // 4 if hop_length is None else as_int(f"{name}: hop_length", hop_length)
    width = n_fft if win_length is None else as_int(f"{name}: win_length", win_length)
    if not 1 <= width <= n_fft or hop < 1:
        raise OptionError(
            f"{name}: n_fft={n_fft}, hop_length={hop}, win_length={width}; wanted a hop of 1 or "
            "more, and a window of 1 to n_fft elements"
        )
    shape = constant(np.ones(width, dtype)) if window is None else as_variable(window)
    if shape.type.ndim != 1 or not shape.type.is_float:
        raise TypeMismatch(name, "a window that is a vector of floats", shape.type)
    shape = cast(shape, upcast(shape.type.dtype, dtype))
    if shape.type.shape[0] not in (None, width):
        raise ShapeMismatch(name, f"a window of {width} elements (win_length)", f"{shape.type}")
    before = (n_fft - width) // 2
    return hop, pad(shape, [(before, n_fft - width - before)]) if width < n_fft else shape


def _real_of(v: Variable) -> str:
    """The dtype of the real parts."""
    return {"complex64": "float32", "complex128": "float64"}.get(v.type.dtype, v.type.dtype)


def stft(
    input: TensorLike, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: TensorLike | None = None, center: bool = True, pad_mode: str = "reflect",
    normalized: bool = False, onesided: bool | None = None, return_complex: bool = True,
) -> Variable:  # fmt: skip
    """Fourier transforms of frames of a signal: ``y[..., k, m]`` has the frequency k of frame m.

    ``input`` is (length,) or (batch, length). Frames have ``n_fft`` elements and begin every
    ``hop_length`` ones (``n_fft // 4``). Each is multiplied by ``window`` of ``win_length``
    elements (``n_fft``; by default ones), with zeros on both sides up to ``n_fft``. With ``center``
    the signal is padded by ``n_fft // 2`` on both sides, so that frame m has its middle at
    ``m hop_length``; ``pad_mode`` is one of :func:`symdnn.tensor.pad`, or PyTorch's word for it.
    ``normalized`` divides by ``sqrt(n_fft)``. Of a real signal there are ``n_fft // 2 + 1``
    frequencies, all of them with ``onesided=False``. With ``return_complex=False`` real and
    imaginary parts are in a last axis. (PyTorch's ``torch.stft``.)

    Raises :class:`~symdnn.errors.TypeMismatch`, :class:`~symdnn.errors.OptionError`, and
    :class:`~symdnn.errors.ShapeMismatch` for a window of another length.

    >>> import numpy as np, symdnn.tensor as T
    >>> T.stft(np.ones(8, "float32"), 4, window=T.hann_window(4)).eval().shape
    (3, 9)
    """
    x = operand("stft", input)
    if x.type.ndim > 2:
        raise TypeMismatch("stft", "a signal (length,) or (batch, length)", x.type)
    hop, shape = _frames("stft", n_fft, hop_length, win_length, window, _real_of(x))
    if center:
        words = {"replicate": "edge", "circular": "wrap"}
        sides = [(0, 0)] * (x.type.ndim - 1) + [(n_fft // 2, n_fft // 2)]
        x = pad(x, sides, words.get(pad_mode, pad_mode))
    size = x.type.shape[-1]
    if size is not None and size < n_fft:
        raise ShapeMismatch("stft", f"{n_fft} elements or more (n_fft)", str(size))
    windowed = unfold(x, -1, n_fft, hop) * shape
    whole = windowed.type.is_complex or onesided is False
    if windowed.type.is_complex and onesided:
        raise OptionError("stft: onesided=True of complex values; leave it out")
    found = (fft if whole else rfft)(windowed, norm="ortho" if normalized else None)
    found = found.swapaxes(-1, -2)
    return found if return_complex else view_as_real(found)


def istft(
    input: TensorLike, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: TensorLike | None = None, center: bool = True, normalized: bool = False,
    onesided: bool | None = None, length: Any = None, return_complex: bool = False,
) -> Variable:  # fmt: skip
    """The signal whose :func:`stft` with the same arguments is nearest to ``input``.

    Its frames are multiplied by the window, added up, and divided by the sum of the squared
    windows; where that is 0 the result is 0. ``input`` is (frequencies, frames) or (batch,
    frequencies, frames), complex; or real, with the parts in a last axis of 2. ``onesided`` says
    that there are ``n_fft // 2 + 1`` frequencies; None: by their number, if it is static. The
    result has ``length`` elements (an int or an integer scalar), by default all that the frames
    cover, without the ``n_fft // 2`` at both ends that ``center`` added. ``return_complex`` is for
    signals that were complex. (PyTorch's ``torch.istft``.)

    >>> import numpy as np, symdnn.tensor as T
    >>> x, w = np.float32([1, 2, 3, 4, 3, 2, 1, 0]), T.hann_window(4)
    >>> T.istft(T.stft(x, 4, window=w), 4, window=w).eval().round(5).tolist()
    [1.0, 2.0, 3.0, 4.0, 3.0, 2.0, 1.0, 0.0]
    """
    z = operand("istft", input)
    if not z.type.is_complex and z.type.shape[-1] in (None, 2):
        z = view_as_complex(z)
    if not z.type.is_complex or z.type.ndim not in (2, 3):
        wanted = "complex values (frequencies, frames) or (batch, frequencies, frames)"
        raise TypeMismatch("istft", wanted, as_variable(input).type)
    half = z.type.shape[-2] != n_fft if onesided is None else bool(onesided)
    count = n_fft // 2 + 1 if half else n_fft
    if z.type.shape[-2] not in (None, count):
        raise ShapeMismatch("istft", f"{count} frequencies for n_fft={n_fft}", f"{z.type}")
    if return_complex and half:
        raise OptionError("istft: return_complex=True needs onesided=False")
    hop, shape = _frames("istft", n_fft, hop_length, win_length, window, _real_of(z))
    norm = "ortho" if normalized else None
    turned = z.swapaxes(-1, -2)
    frames = irfft(turned, n_fft, norm=norm) if half else ifft(turned, norm=norm)
    frames = frames if half or return_complex else frames.real
    total = _added_up(frames * shape, hop)
    weight = _added_up(sqr(shape) + zeros(dims_of(frames)[-2:], shape.type.dtype), hop)
    seen = gt(weight, 1e-11)
    signal = switch(seen, total / switch(seen, weight, 1), 0)
    start = n_fft // 2 if center else 0
    size: Dim = dims_of(signal)[-1]
    if length is None:
        return signal[..., start : size - start]
    return resized(signal[..., start:], signal.type.ndim - 1, length, "istft")


def _added_up(frames: Variable, hop: int) -> Variable:
    """Frames (..., frames, size) that begin every ``hop`` elements, added up: of :func:`unfold` the
    transpose."""
    *outer, count, size = dims_of(frames)
    at = (arange(count) * hop).dimshuffle(0, "x") + np.arange(size)
    nothing = zeros((*outer, (count - 1) * hop + size), frames.type.dtype)
    return inc_subtensor(nothing[(..., at)], frames)
