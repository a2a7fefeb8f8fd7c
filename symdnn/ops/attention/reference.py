"""Attention and its gradient in NumPy: the truth that kernels are tested against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from symdnn.graph.typing import Array
from symdnn.ops.attention.scores import OfNumpy, Scores, visible
from symdnn.ops.random import rng_philox as philox


def attention(how: Scores, q: Array, k: Array, v: Array, *extras: Array) -> tuple[Array, Array]:
    """Result (in the dtype of ``v``) and log-sum-exp of the scores."""
    given = how.named(extras)
    q, k, v = (a.astype(wide(a.dtype), copy=False) for a in (q, k, v))
    s, *_ = _scores(how, q, k, given)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = e.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.where(np.isfinite(top), top, 0) + np.log(total)
    p = e / np.where(total > 0, total, 1)
    p = np.where(_kept(given, p.shape), p / _keep(given, p.dtype), 0) if "rate" in given else p
    return p @ _spread(v, q.shape[1]), lse[..., 0]


def attention_grad(how: Scores, *operands: Any) -> tuple[Array, ...]:
    """Gradients of query, key and value, and of a float mask.

    ``operands`` are query, key, value, result, log-sum-exp, the cotangents of both (0 for none of
    the latter), the extras.
    """
    q, k, v, out, lse, dout = (a.astype(wide(a.dtype), copy=False) for a in operands[:6])
    dlse = np.asarray(operands[6])[..., None]
    given = how.named(operands[7:])
    heads, groups = q.shape[1], k.shape[1]
    s, slope, seen = _scores(how, q, k, given)
    with np.errstate(over="ignore", invalid="ignore"):
        p = np.where(seen, np.exp(s - lse[..., None]), 0)
    dp = dout @ _spread(v, heads).swapaxes(2, 3)
    dropped = p
    if "rate" in given:
        kept, keep = _kept(given, p.shape), _keep(given, p.dtype)
        dp, dropped = np.where(kept, dp / keep, 0), np.where(kept, p / keep, 0)
    ds = p * (dp - (dout * out).sum(-1, keepdims=True) + dlse)
    raw = ds * slope * scale_of(how, q)
    dq = raw @ _spread(k, heads)
    dk = _gathered(raw.swapaxes(2, 3) @ q, groups)
    dv = _gathered(dropped.swapaxes(2, 3) @ dout, groups)
    if "mask" not in given or given["mask"].dtype == bool:
        return dq, dk, dv
    mask = given["mask"]
    axes = tuple(a for a in range(4) if mask.shape[a] == 1 and ds.shape[a] != 1)
    return dq, dk, dv, ds.sum(axes, keepdims=True)


def wide(dtype: object) -> Any:
    """The dtype to compute in."""
    return np.dtype("float64" if dtype == np.float64 else "float32")


def scale_of(how: Scores, q: Any) -> float:
    """The factor of the scores."""
    return float(1 / np.sqrt(max(q.shape[3], 1)) if how.scale is None else how.scale)


def _scores(how: Scores, q: Array, k: Array, given: Mapping[str, Any]) -> tuple[Any, ...]:
    """Scores with -inf where they are hidden, the slope of the soft cap, and what is seen."""
    s = q @ _spread(k, q.shape[1]).swapaxes(2, 3) * q.dtype.type(scale_of(how, q))
    slope: Any = q.dtype.type(1)
    if how.softcap:
        bounded = np.tanh(s / q.dtype.type(how.softcap))
        s, slope = bounded * q.dtype.type(how.softcap), 1 - bounded**2
    mask = given.get("mask")
    if mask is not None and mask.dtype != bool:
        s = s + mask.astype(s.dtype)
    found = visible(how, (q.shape[2], k.shape[2]), given, OfNumpy)
    seen = np.broadcast_to(True if found is None else found, s.shape)
    return np.where(seen, s, -np.inf), slope, seen


def _spread(x: Array, heads: int) -> Array:
    """Each head of keys or values as often as query heads share it."""
    return x if x.shape[1] == heads else np.repeat(x, heads // x.shape[1], 1)


def _gathered(x: Array, groups: int) -> Array:
    """The sums over the query heads that share one."""
    b, heads, *rest = x.shape
    return x if heads == groups else x.reshape(b, groups, heads // groups, *rest).sum(2)


def _kept(given: Mapping[str, Any], shape: tuple[int, ...]) -> Array:
    """The mask that :class:`~symdnn.ops.nn.dropout.Dropout` draws from this state."""
    words = philox.words(given["state"], int(np.prod(shape, dtype=np.int64)), 1)[:, 0]
    return np.asarray(words < (1.0 - float(given["rate"])) * 2.0**32).reshape(shape)


def _keep(given: Mapping[str, Any], dtype: Any) -> Any:
    keep = dtype.type(1) - dtype.type(given["rate"])
    return keep if keep > 0 else dtype.type(1)
