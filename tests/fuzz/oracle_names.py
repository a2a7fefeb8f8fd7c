"""NumPy's word for functions that have PyTorch's names, or results of their own choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.signal import windows

Function = Callable[..., Any]


def _added(product: Function) -> Function:
    """``beta x + alpha`` times a product."""
    return lambda x, a, b, beta=1, alpha=1: beta * x + alpha * product(a, b)


def _running(f: Function) -> Function:
    """Bools and small ints are added up in 64 bits."""

    def found(x: Any, axis: Any = None, **more: Any) -> Any:
        dtype = {"b": "int64", "i": "int64", "u": "uint64"}.get(np.asarray(x).dtype.kind)
        return f(x, axis=axis, dtype=dtype, **more)

    return found


def _along(x: Any, dim: int, index: Any) -> tuple[Any, ...]:
    """Places of a gather: those of ``index`` along ``dim``, its own along the other axes."""
    places = list(np.indices(np.shape(index)))
    places[dim] = np.asarray(index)
    return tuple(places)


def _changed(x: Any, at: Any, values: Any, add: bool = False) -> Any:
    out = np.array(x)
    if add:
        np.add.at(out, at, values)
    else:
        out[at] = values
    return out


def _scatter(x: Any, dim: int, index: Any, src: Any, reduce: str | None = None) -> Any:
    return _changed(x, _along(x, dim, index), src, reduce == "add")


def _rows(dim: int, index: Any) -> tuple[Any, ...]:
    return (*(slice(None),) * dim, index)


def _unflatten(x: Any, dim: int, sizes: Any) -> Any:
    shape = np.shape(x)
    dim %= len(shape)
    return np.reshape(x, (*shape[:dim], *sizes, *shape[dim + 1 :]))


def _start(reduce: str, dtype: Any) -> Any:
    """The number that a reduction begins with."""
    ends = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return dtype.type({"prod": 1, "amax": ends[0], "amin": ends[1]}.get(reduce, 0))


def _reduced(x: Any, at: Any, values: Any, reduce: str, include_self: bool = True) -> Any:
    """The elements at some places reduced with values: PyTorch's words."""
    f = {"prod": np.multiply, "amax": np.maximum, "amin": np.minimum}.get(reduce, np.add)
    out, count = np.array(x), np.ones(np.shape(x), np.int64)
    if not include_self:
        out[at] = _start(reduce, out.dtype)
        count[at] = 0
    f.at(out, at, values)
    np.add.at(count, at, 1)
    if reduce != "mean":
        return out
    return (out / count if out.dtype.kind == "f" else out // count).astype(out.dtype)


def _segments(reduce: str) -> Function:
    def found(data: Any, ids: Any, count: Any = None) -> Any:
        shape = (int(np.max(ids)) + 1 if count is None else count, *np.shape(data)[1:])
        return _reduced(np.full(shape, _start(reduce, data.dtype)), ids, data, reduce)

    return found


def _unfold(x: Any, dim: int, size: int, step: int) -> Any:
    dim %= np.ndim(x)
    windows = np.lib.stride_tricks.sliding_window_view(x, size, dim)
    return windows[_rows(dim, slice(None, None, step))]


def _kth(x: Any, k: int, dim: int, keepdim: bool = False) -> list[Any]:
    value = np.take(np.sort(x, dim), [k - 1], dim)
    found = [value, _same(x, value).argmax(dim, keepdims=True)]
    return found if keepdim else [a.squeeze(dim) for a in found]


def _same(x: Any, value: Any) -> Any:
    return (x == value) | ((x != x) & (value != value))


def _parted(a: Any, kth: Any, axis: int = -1) -> Any:
    """The indices before the chosen element, of equal ones, and of those behind it."""
    value = np.take(np.sort(a, axis), [kth], axis)
    same, before = _same(a, value), (a < value) | ((a == a) & (value != value))
    return np.argsort(np.where(same, 1, np.where(before, 0, 2)), axis, kind="stable")


def _clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def _nearest(x: Any, mode: Any = None) -> Any:
    return np.trunc(x + np.copysign(0.5, x)) if mode == "half_away_from_zero" else np.rint(x)


def _pairs(*vectors: Any) -> Any:
    rows = np.stack(np.meshgrid(*vectors, indexing="ij"), -1).reshape(-1, len(vectors))
    return rows if len(vectors) > 1 else rows[:, 0]


def stft(
    x: Any, n_fft: int, hop: int | None = None, win_length: int | None = None, window: Any = None,
    center: bool = True, pad_mode: str = "reflect", normalized: bool = False,
    onesided: bool | None = None, return_complex: bool = True,
) -> Any:  # fmt: skip
    """PyTorch's, by NumPy: a transform of each window of the padded signal."""
    if center:
        x = np.pad(x, [(0, 0)] * (np.ndim(x) - 1) + [(n_fft // 2,) * 2], pad_mode)
    frames = _unfold(x, -1, n_fft, hop or n_fft // 4) * _wide(window, n_fft, win_length)
    whole = np.iscomplexobj(frames) or onesided is False
    found = (np.fft.fft if whole else np.fft.rfft)(frames) / (n_fft**0.5 if normalized else 1)
    found = found.swapaxes(-1, -2)
    return found if return_complex else np.stack([found.real, found.imag], -1)


def istft(
    z: Any, n_fft: int, hop: int | None = None, win_length: int | None = None, window: Any = None,
    center: bool = True, normalized: bool = False, onesided: bool | None = None,
    length: int | None = None, return_complex: bool = False,
) -> Any:  # fmt: skip
    """PyTorch's, by NumPy: frames are added one after the other."""
    shape, hop = _wide(window, n_fft, win_length), hop or n_fft // 4
    half = z.shape[-2] != n_fft if onesided is None else onesided
    frames = z.swapaxes(-1, -2) * (n_fft**0.5 if normalized else 1)
    frames = np.fft.irfft(frames, n_fft) if half else np.fft.ifft(frames)
    frames = frames if half or return_complex else frames.real
    count, size = frames.shape[-2], (frames.shape[-2] - 1) * hop + n_fft
    total, weight = np.zeros((*z.shape[:-2], size), frames.dtype), np.zeros(size)
    for m in range(count):
        total[..., m * hop : m * hop + n_fft] += frames[..., m, :] * shape
        weight[m * hop : m * hop + n_fft] += shape**2
    signal = np.where(weight > 0, total / np.where(weight > 0, weight, 1), 0)
    start = n_fft // 2 if center else 0
    if length is None:
        return signal[..., start : size - start]
    signal = signal[..., start : start + length]
    return np.pad(signal, [(0, 0)] * (z.ndim - 2) + [(0, length - signal.shape[-1])])


def _wide(window: Any, n_fft: int, win_length: int | None) -> Any:
    width = n_fft if win_length is None else win_length
    before = (n_fft - width) // 2
    return np.pad(np.ones(width) if window is None else window, (before, n_fft - width - before))


def _periodic(name: str) -> Function:
    """The window of SciPy, which is periodic unless told."""

    def made(n: int, periodic: bool = True, *shape: float) -> Any:
        return getattr(windows, name)(n, *shape, sym=not periodic)

    return made


NAMES: dict[str, Function] = {
    "stft": stft, "istft": istft, "kaiser_window": lambda n, periodic, beta=12.0: _periodic(
        "kaiser")(n, periodic, beta),
    **{f"{w}_window": _periodic(w) for w in ("bartlett", "blackman", "hamming", "hann")},
    "addmm": _added(np.matmul), "addmv": _added(np.matmul), "baddbmm": _added(np.matmul),
    "addbmm": _added(lambda a, b: (a @ b).sum(0)), "addr": _added(np.outer), "mv": np.matmul,
    "mm": np.matmul, "bmm": np.matmul, "histogram2d": lambda x, y, bins, range: list(
        np.histogram2d(x, y, bins, range)),
    "addcmul": lambda x, a, b, value=1: x + value * a * b,
    "addcdiv": lambda x, a, b, value=1: x + value * a / b,
    "clamp": _clamp, "clamp_min": np.maximum, "clamp_max": np.minimum, "around": _nearest,
    "frac": lambda x: x - np.trunc(x),
    "cat": lambda a, axis=0: np.concatenate([np.asarray(t) for t in a], axis),
    "gather": lambda x, dim, index: x[_along(x, dim, index)], "scatter": _scatter,
    "scatter_add": lambda x, dim, index, src: _scatter(x, dim, index, src, "add"),
    "scatter_reduce": lambda x, dim, index, src, reduce, include_self=True: _reduced(
        x, _along(x, dim, index), src, reduce, include_self),
    "index_reduce": lambda x, dim, index, source, reduce, include_self=True: _reduced(
        x, _rows(dim, index), source, reduce, include_self),
    "segment_sum": _segments("sum"), "segment_prod": _segments("prod"),
    "segment_max": _segments("amax"), "segment_min": _segments("amin"),
    "index_select": lambda x, dim, index: np.take(x, index, dim),
    "index_add": lambda x, dim, index, source, alpha=1: _changed(
        x, _rows(dim, index), alpha * source, True),
    "index_copy": lambda x, dim, index, source: _changed(x, _rows(dim, index), source),
    "index_fill": lambda x, dim, index, value: _changed(x, _rows(dim, index), value),
    "masked_fill": lambda x, mask, value: np.where(mask, value, x),
    "masked_select": lambda x, mask: x[mask], "movedim": np.moveaxis, "swapdims": np.swapaxes,
    "repeat_interleave": np.repeat, "tensor_split": np.array_split, "unflatten": _unflatten,
    "unfold": _unfold, "unsqueeze": np.expand_dims, "kthvalue": _kth,
    "bucketize": lambda x, boundaries, right=False: np.searchsorted(
        boundaries, x, "right" if right else "left"),
    "take_along_dim": np.take_along_axis, "cartesian_prod": _pairs,
    "split_with_sizes": lambda x, sizes, dim=0: np.split(x, np.cumsum(sizes)[:-1], dim),
    "broadcast_tensors": lambda *a: list(np.broadcast_arrays(*a)),
    # -- of NumPy's functions what is open there
    "partition": lambda a, kth, axis=-1: np.take_along_axis(a, _parted(a, kth, axis), axis),
    "argpartition": lambda a, kth, axis=-1: _parted(a, kth, axis),
    "polymul": np.convolve, "nancumsum": _running(np.nancumsum),
    "nancumprod": _running(np.nancumprod), "cumulative_sum": _running(np.cumulative_sum),
    "cumulative_prod": _running(np.cumulative_prod),
}  # fmt: skip
