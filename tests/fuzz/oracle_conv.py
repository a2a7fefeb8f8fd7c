"""Convolutions by sums over the positions of the filter, and their adjoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

Sizes = tuple[int, ...]


def _several(value: Any, d: int) -> Sizes:
    return (value,) * d if isinstance(value, int) else tuple(value)


def _taps(
    spatial: Sizes, kernel: Sizes, stride: Sizes, dilation: Sizes, flip: bool
) -> Iterator[tuple[Sizes, tuple[slice, ...]]]:
    """Each position in the filter, and where in the padded input its factors are."""
    out = [(n - (k - 1) * e - 1) // s + 1
           for n, k, s, e in zip(spatial, kernel, stride, dilation)]  # fmt: skip
    for at in product(*map(range, kernel)):
        of = tuple(k - 1 - i for k, i in zip(kernel, at)) if flip else at
        yield (
            of,
            tuple(
                slice(i * e, i * e + s * (o - 1) + 1, s)
                for i, e, s, o in zip(at, dilation, stride, out)
            ),
        )


def _prepared(d: int, kernel: Sizes, words: dict[str, Any]) -> tuple[Any, Sizes, Sizes, bool]:
    dilation = _several(words.get("filter_dilation", 1), d)
    stride = _several(words.get("subsample", words.get("input_dilation", 1)), d)
    mode = words.get("border_mode", "valid")
    reach = [(k - 1) * e for k, e in zip(kernel, dilation)]
    named = {"valid": [0] * d, "full": reach, "half": [(r + 1) // 2 for r in reach]}
    pad = named[mode] if isinstance(mode, str) else _several(mode, d)
    both = [(p, p) if isinstance(p, int) else p for p in pad]
    return both, stride, dilation, words.get("filter_flip", True)


def forward(x: Any, w: Any, **words: Any) -> Any:
    """The convolution of (batch, channels, ...) with filters (out, channels, ...)."""
    d = x.ndim - 2
    pad, stride, dilation, flip = _prepared(d, w.shape[2:], words)
    x = np.pad(x, [(0, 0), (0, 0), *pad])
    total: Any = 0
    for of, at in _taps(x.shape[2:], w.shape[2:], stride, dilation, flip):
        total = total + np.einsum("bc...,oc->bo...", x[(..., *at)], w[(..., *of)])
    return total


def wrt_inputs(g: Any, w: Any, shape: Any = None, **words: Any) -> Any:
    """Its adjoint in ``x``; without a shape, the smallest one."""
    d = g.ndim - 2
    pad, stride, dilation, flip = _prepared(d, w.shape[2:], words)
    least = [(o - 1) * s + (k - 1) * e + 1
             for o, s, k, e in zip(g.shape[2:], stride, w.shape[2:], dilation)]  # fmt: skip
    spatial = least if shape is None else [n + sum(p) for n, p in zip(shape[2:], pad)]
    x = np.zeros((len(g), w.shape[1], *spatial))
    for of, at in _taps(tuple(spatial), w.shape[2:], stride, dilation, flip):
        x[(..., *at)] += np.einsum("bo...,oc->bc...", g, w[(..., *of)])
    return x[(..., *(slice(p, n - q) for (p, q), n in zip(pad, spatial)))]


def wrt_weights(x: Any, g: Any, shape: Any, **words: Any) -> Any:
    """Its adjoint in ``w``."""
    d = x.ndim - 2
    pad, stride, dilation, flip = _prepared(d, shape[2:], words)
    x = np.pad(x, [(0, 0), (0, 0), *pad])
    w = np.zeros(shape)
    for of, at in _taps(x.shape[2:], tuple(shape[2:]), stride, dilation, flip):
        w[(..., *of)] = np.tensordot(g, x[(..., *at)], [[0, *range(2, d + 2)]] * 2)
    return w


def _causal(x: Any, w: Any, **words: Any) -> Any:
    left = (w.shape[2] - 1) * words.get("filter_dilation", 1)
    return forward(x, w, **words, border_mode=((left, 0),))


def _separable(x: Any, deep: Any, wide: Any, channels: int, **words: Any) -> Any:
    per = deep.shape[0] // channels
    parts = [forward(x[:, c : c + 1], deep[c * per : (c + 1) * per], **words)
             for c in range(channels)]  # fmt: skip
    return forward(np.concatenate(parts, 1), wide)


OWN: dict[str, Callable[..., Any]] = {
    **{f"conv{d}d_grad_wrt_inputs": wrt_inputs for d in (1, 2, 3)},
    **{f"conv{d}d_grad_wrt_weights": wrt_weights for d in (1, 2, 3)},
    **{f"conv{d}d_transpose": wrt_inputs for d in (1, 2, 3)},
    "causal_conv1d": _causal, "separable_conv2d": _separable,
}  # fmt: skip


PRODUCTS = frozenset(["addbmm", "addmm", "addmv", "baddbmm", "batched_dot", "bmm", "dot", "inner",
                      "matmul", "matrix_dot", "matvec", "mm", "mv", "vdot", "vecdot",
                      "vecmat"])  # fmt: skip


def terms(name: str, args: Sequence[Any]) -> float:
    """How many products a result is the sum of; 1 for all other functions.

    Those of matrices add up along their operands' last axes at most, but for the last operand's.
    """
    if name.endswith("_grad_wrt_weights"):
        return float(np.size(args[1]) / args[1].shape[1])
    if name in OWN:
        return float(np.size(args[1]))
    if name in PRODUCTS:
        return float(sum(np.shape(a)[-1] if np.ndim(a) else 1 for a in args[:-1])) or 1.0
    return 1.0
