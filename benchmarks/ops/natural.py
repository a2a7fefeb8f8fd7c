"""What users of PyTorch, JAX and SciPy call in place of the op table's slow helpers.

The op table has helpers that loop over elements, so that anyone sees that they are right. Here are
the same functions as a library has them: :func:`of` gives those of one library, by helper.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

__all__ = ["SpecialFunctions", "of", "of_record"]

Functions = dict[str, Callable[..., Any]]


@cache
def of(library: str) -> dict[int, Callable[..., Any]]:
    """Functions of ``torch``, ``jax`` or ``numpy`` by the ``id`` of the helper or library function
    that each stands for.
    """
    found = {"torch": _torch, "jax": _jax, "numpy": _numpy}[library]()
    return {id(_named(name)): _taking_arrays(f, library) for name, f in found.items()}


def of_record(library: str, name: str) -> Callable[..., Any] | None:
    """The function that computes a whole record, where its formula calls no helper.

    The formulas of inverse functions know that ``erfinv(erf(x))`` is ``x``, which takes no time.
    """
    records = {"torch": _torch_records, "jax": _jax_records, "numpy": _numpy_records}
    found = records[library]().get(name)
    return found and _taking_arrays(found, library)


class SpecialFunctions:
    """What stands for ``scipy.special``: a library's module, and what it has elsewhere."""

    def __init__(self, library: str, module: Any) -> None:
        self._library, self._module = library, module
        own = {"torch": _torch, "jax": _jax}[library]()
        start = "scipy.special."
        self._own = {n.removeprefix(start): f for n, f in own.items() if n.startswith(start)}

    def __getattr__(self, name: str) -> Any:
        f = self._own.get(name) or getattr(self._module, name)
        return _taking_arrays(f, self._library)


def _named(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    own = module if module.startswith("scipy") else f"tests.op_table.{module}"
    return getattr(importlib.import_module(own), attribute)


def _taking_arrays(f: Callable[..., Any], library: str) -> Callable[..., Any]:
    """``f`` for the arrays of ``torch._numpy``, which are not tensors."""
    if library != "torch":
        return f
    import torch
    import torch._numpy as tnp

    def inner(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(inner, value))
        return value.tensor if isinstance(value, tnp.ndarray) else value

    def outer(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return tuple(map(outer, value))
        return tnp.ndarray(value) if isinstance(value, torch.Tensor) else value

    return lambda *xs, **ks: outer(f(*map(inner, xs), **{k: inner(v) for k, v in ks.items()}))


# -- NumPy and SciPy ------------------------------------------------------------------------------


def _numpy() -> Functions:
    import numpy as np
    import scipy.signal
    import scipy.special as sp

    def norm(x: Any, gamma: Any, beta: Any, axes: Any, eps: float = 1e-3) -> Any:
        mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
        r = 1 / np.sqrt(var + eps)
        return (x - mean) * r * gamma + beta, mean, r

    def nll(x: Any, t: Any, axis: int) -> Any:
        logs = sp.log_softmax(x, axis)
        return -np.take_along_axis(logs, np.expand_dims(t, axis), axis).squeeze(axis)

    return {
        "softmax.slow_softmax": sp.softmax,
        "softmax.nll": nll,
        "normalization.slow_norm": norm,
        "reduce.filtered": lambda b, a, x, axis: scipy.signal.lfilter(b, a, x, axis),
        "special.erf_integral": sp.erf,
        "special.gamma_integral": sp.gamma,
        "special.gammainc_integral": sp.gammainc,
        "special.bessel_integral": sp.jv,
        "special.modified_bessel_integral": sp.iv,
        "special.trigamma_series": lambda x: sp.polygamma(1, x),
        "incomplete.beta_integral": sp.betainc,
        "incomplete.owens_integral": sp.owens_t,
    }  # fmt: skip


def _numpy_records() -> Functions:
    import scipy.special as sp

    return {
        "erfinv": lambda x: sp.erfinv(sp.erf(x)), "erfcinv": lambda x: sp.erfcinv(sp.erfc(x)),
    }  # fmt: skip


# -- JAX ------------------------------------------------------------------------------------------


def _jax() -> Functions:
    import jax
    import jax.numpy as jnp
    import jax.scipy.special as sp

    def norm(x: Any, gamma: Any, beta: Any, axes: Any, eps: float = 1e-3) -> Any:
        mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
        r = jax.lax.rsqrt(var + eps)
        return (x - mean) * r * gamma + beta, mean, r

    def changed(x: Any, index: Any, y: Any, add: bool = False) -> Any:
        return x.at[index].add(y) if add else x.at[index].set(y)

    def combined(x: Any, index: Any, y: Any, reduce: str) -> Any:
        return getattr(x.at[index], reduce)(y)

    def nll(x: Any, t: Any, axis: int) -> Any:
        logs = jax.nn.log_softmax(x, axis)
        return -jnp.take_along_axis(logs, jnp.expand_dims(t, axis), axis).squeeze(axis)

    return {
        "softmax.slow_softmax": jax.nn.softmax,
        "scipy.special.softmax": jax.nn.softmax,
        "scipy.special.log_softmax": jax.nn.log_softmax,
        "softmax.nll": nll,
        "normalization.slow_norm": norm,
        "indexing.changed": changed,
        "indexing.combined": combined,
        "pool.loop_pool": _jax_pool,
        "attention.slow_attention": _jax_attention,
        "special.erf_integral": sp.erf,
        "special.gamma_integral": sp.gamma,
        "special.gammainc_integral": sp.gammainc,
        "special.trigamma_series": lambda x: sp.polygamma(1, x),
        "incomplete.beta_integral": sp.betainc,
        "scipy.special.chdtrc": lambda k, x: sp.gammaincc(k / 2, x / 2),
    }  # fmt: skip


def _jax_pool(
    x: Any, ws: Any, stride: Any = None, pad: Any = None, mode: str = "max",
    ignore_border: bool = True,
) -> Any:  # fmt: skip
    import jax
    import jax.numpy as jnp

    stride, pad = stride or ws, pad or (0,) * len(ws)
    lead = (1,) * (x.ndim - len(ws))
    ends = [
        p if ignore_border else p + max(0, _starts(n + 2 * p, w, s) * s + w - s - n - 2 * p)
        for n, w, s, p in zip(x.shape[len(lead) :], ws, stride, pad)
    ]
    padding = [(0, 0)] * len(lead) + list(zip(pad, ends))
    how = (*lead, *ws), (*lead, *stride), padding
    if mode == "max":
        least = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
        return jax.lax.reduce_window(x, least, jax.lax.max, *how)
    sums = jax.lax.reduce_window(x, jnp.zeros((), x.dtype), jax.lax.add, *how)
    if mode == "sum":
        return sums
    there = jnp.ones_like(x)
    if mode == "average_inc_pad":
        width = [(0, 0)] * len(lead) + [(p, p) for p in pad]
        there = jnp.ones([n + a + b for n, (a, b) in zip(x.shape, width)], x.dtype)
        padding = [(0, e - p) for (_, e), (p, _) in zip(padding, width)]
    return sums / jax.lax.reduce_window(
        there, jnp.zeros((), x.dtype), jax.lax.add, how[0], how[1], padding
    )


def _starts(n: int, w: int, s: int) -> int:
    """How many windows there are if the last one may be cut."""
    found = 0
    for i in range(0, n, s):
        found += 1
        if i + w >= n and s < w:
            break
    return found


def _jax_attention(
    how: Any, q: Any, k: Any, v: Any, mask: Any = None, keys: Any = None, queries: Any = None
) -> Any:
    import jax
    import jax.numpy as jnp

    if keys is not None:
        raise NotImplementedError("lengths")
    (b, h, t, d), s = q.shape, k.shape[2]
    scale = d**-0.5 if how.scale is None else how.scale
    grouped = q.reshape(b, k.shape[1], -1, t, d)
    score = (jnp.einsum("bkgtd,bksd->bkgts", grouped, k) * scale).reshape(b, h, t, s)
    if how.softcap:
        score = how.softcap * jnp.tanh(score / how.softcap)
    if mask is not None:
        score = jnp.where(mask, score, -jnp.inf) if mask.dtype == bool else score + mask
    i = jnp.arange(t)[:, None] + (s - t if how.bottom_right else 0)
    j = jnp.arange(s)
    for bound, hidden in ((how.right, lambda n: j > i + n), (how.left, lambda n: j < i - n)):
        if bound is not None:
            score = jnp.where(hidden(bound), -jnp.inf, score)
    lse = jax.nn.logsumexp(score, -1)
    p = jnp.exp(score - jnp.where(lse > -jnp.inf, lse, 0)[..., None]).reshape(
        b, k.shape[1], -1, t, s
    )
    return jnp.einsum("bkgts,bksd->bkgtd", p, v).reshape(b, h, t, -1), lse


def _jax_records() -> Functions:
    import jax
    import jax.numpy as jnp
    import jax.scipy.special as sp

    return {
        "psi": sp.digamma, "gammaln": sp.gammaln, "zeta": sp.zeta, "betaln_far": sp.betaln,
        "tri_gamma": lambda x: sp.polygamma(1, x), "ndtri": sp.ndtri, "cbrt": jnp.cbrt,
        "cbrt_float32": jnp.cbrt, "cbrt_far": jnp.cbrt,
        "logsoftmax": jax.nn.log_softmax,
        "logsoftmax_axis1_of_3": lambda x: jax.nn.log_softmax(x, 1),
        "logcumsumexp_near": jax.lax.cumlogsumexp,
        "erfinv": lambda x: sp.erfinv(sp.erf(x)),
        "erfcinv": lambda x: sp.erfinv(1 - sp.erfc(x)),
    }  # fmt: skip


# -- PyTorch --------------------------------------------------------------------------------------


def _torch() -> Functions:
    import torch
    from torch.nn import functional as F

    sp = torch.special

    def nll(x: Any, t: Any, axis: int) -> Any:
        return F.cross_entropy(x.movedim(axis, 1) if x.ndim > 1 else x, t, reduction="none")

    def changed(x: Any, index: Any, y: Any, add: bool = False) -> Any:
        out = x.clone()
        parts = index if isinstance(index, tuple) else (index,)
        whole = not any(isinstance(p, torch.Tensor | list) for p in parts)
        if not add or whole:
            out[index] = out[index] + y if add else y
            return out
        if len(parts) == 1:
            return out.index_put_(parts, torch.as_tensor(y, dtype=x.dtype), accumulate=True)
        places = torch.arange(x.numel()).reshape(x.shape)[index]
        flat = out.view(-1)
        return flat.index_add_(0, places.reshape(-1), y.expand(places.shape).reshape(-1)).view_as(x)

    def combined(x: Any, index: Any, y: Any, reduce: str) -> Any:
        places = torch.arange(x.numel()).reshape(x.shape)[index]
        kind = {"max": "amax", "min": "amin", "mul": "prod"}[reduce]
        values = y.expand(places.shape).reshape(-1).to(x.dtype)
        return x.reshape(-1).scatter_reduce(0, places.reshape(-1), values, kind).reshape(x.shape)

    return {
        "softmax.slow_softmax": torch.softmax,
        "softmax.nll": nll,
        "normalization.slow_norm": _torch_norm,
        "indexing.changed": changed,
        "indexing.combined": combined,
        "pool.loop_pool": _torch_pool,
        "attention.slow_attention": _torch_attention,
        "conv.loop_neibs": _torch_neibs,
        "special.erf_integral": sp.erf,
        "special.gamma_integral": lambda x: torch.lgamma(x).exp(),
        "special.gammainc_integral": lambda k, x: sp.gammainc(torch.as_tensor(k, dtype=x.dtype), x),
        "special.trigamma_series": lambda x: sp.polygamma(1, x),
        "scipy.special.chdtrc": lambda k, x: sp.gammaincc(
            torch.as_tensor(k, dtype=x.dtype) / 2, x / 2
        ),
    }  # fmt: skip


def _torch_norm(x: Any, gamma: Any, beta: Any, axes: Any, eps: float = 1e-3) -> Any:
    import torch

    axes = tuple(axes)
    kept = [i for i in range(x.ndim) if i not in axes]
    if kept == [1] and getattr(gamma, "shape", None) == (1, x.shape[1], *(1,) * (x.ndim - 2)):
        g, b = gamma.reshape(-1), beta.reshape(-1)
        y, mean, r = torch.native_batch_norm(x, g, b, None, None, True, 0.0, eps)
        return y, mean.view(gamma.shape), r.view(gamma.shape)
    own = x.shape[len(kept) :]
    if kept == list(range(len(kept))) and getattr(gamma, "shape", own)[-len(own) :] == own:
        g, b = (p.reshape(own) if isinstance(p, torch.Tensor) else None for p in (gamma, beta))
        return torch.native_layer_norm(x, own, g, b, eps)
    var, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    r = torch.rsqrt(var + eps)
    return (x - mean) * r * gamma + beta, mean, r


def _torch_pool(
    x: Any, ws: Any, stride: Any = None, pad: Any = None, mode: str = "max",
    ignore_border: bool = True,
) -> Any:  # fmt: skip
    from torch.nn import functional as F

    stride, pad, n = tuple(stride or ws), tuple(pad or (0,) * len(ws)), len(ws)
    lead = x.shape[: x.ndim - n]
    own = x.reshape(1, -1, *x.shape[x.ndim - n :])
    if any(2 * p > w or (s > w and not ignore_border) for p, w, s in zip(pad, ws, stride)):
        raise NotImplementedError("a window in the padding, or gaps at the border")
    words = {"stride": stride, "padding": pad, "ceil_mode": not ignore_border}
    if mode == "max":
        y = getattr(F, f"max_pool{n}d")(own, tuple(ws), **words)
    else:
        y = getattr(F, f"avg_pool{n}d")(
            own, tuple(ws), count_include_pad=mode == "average_inc_pad", **words
        )
        if mode == "sum":
            if not ignore_border:
                raise NotImplementedError("sums of cut windows")
            area = 1
            for w in ws:
                area *= w
            y = y * area
    return y.reshape(*lead, *y.shape[2:])


def _torch_attention(
    how: Any, q: Any, k: Any, v: Any, mask: Any = None, keys: Any = None, queries: Any = None
) -> Any:
    import torch

    if keys is not None or how.softcap:
        raise NotImplementedError("lengths, soft caps")
    t, s = q.shape[2], k.shape[2]
    share = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(share, 1) if share > 1 else x for x in (k, v))
    i = torch.arange(t)[:, None] + (s - t if how.bottom_right else 0)
    j = torch.arange(s)
    hidden = torch.zeros((t, s), dtype=torch.bool)
    if how.right is not None:
        hidden |= j > i + how.right
    if how.left is not None:
        hidden |= j < i - how.left
    score = (q @ k.mT) * (q.shape[3] ** -0.5 if how.scale is None else how.scale)
    if mask is not None:
        score = score.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else score + mask
    if how.right is not None or how.left is not None:
        score = score.masked_fill(hidden, -torch.inf)
    lse = torch.logsumexp(score, -1)
    return torch.exp(score - lse.masked_fill(lse == -torch.inf, 0)[..., None]) @ v, lse


def _torch_neibs(x: Any, size: Any, step: Any, wrap: bool = False) -> Any:
    if wrap:
        raise NotImplementedError("windows around the border")
    parts = x.unfold(2, size[0], step[0]).unfold(3, size[1], step[1])
    return parts.reshape(-1, size[0] * size[1])


def _torch_records() -> Functions:
    import torch

    sp, F = torch.special, torch.nn.functional
    return {
        "gelu": F.gelu, "gelu_far": F.gelu, "gelu_float32": F.gelu,
        "psi": sp.digamma, "gammaln": sp.gammaln, "zeta": sp.zeta, "ndtri": sp.ndtri,
        "logsoftmax": lambda x: torch.log_softmax(x, 1),
        "logsoftmax_axis1_of_3": lambda x: torch.log_softmax(x, 1),
        "logcumsumexp_near": lambda x: torch.logcumsumexp(x, 0),
        "erfinv": lambda x: sp.erfinv(sp.erf(x)),
        "erfcinv": lambda x: sp.erfinv(1 - sp.erfc(x)),
    }  # fmt: skip
