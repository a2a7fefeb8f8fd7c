"""NumPy's word for functions that have PyTorch's names, or results of their own choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

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
    found = [np.take(f(x, dim, kind="stable"), k - 1, dim) for f in (np.sort, np.argsort)]
    return [np.expand_dims(a, dim) for a in found] if keepdim else found


def _clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def _nearest(x: Any, mode: Any = None) -> Any:
    return np.trunc(x + np.copysign(0.5, x)) if mode == "half_away_from_zero" else np.rint(x)


def _pairs(*vectors: Any) -> Any:
    rows = np.stack(np.meshgrid(*vectors, indexing="ij"), -1).reshape(-1, len(vectors))
    return rows if len(vectors) > 1 else rows[:, 0]


NAMES: dict[str, Function] = {
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
    "partition": lambda a, kth, axis=-1: np.sort(a, axis),
    "argpartition": lambda a, kth, axis=-1: np.argsort(a, axis, kind="stable"),
    "polymul": np.convolve, "nancumsum": _running(np.nancumsum),
    "nancumprod": _running(np.nancumprod), "cumulative_sum": _running(np.cumulative_sum),
    "cumulative_prod": _running(np.cumulative_prod),
}  # fmt: skip
