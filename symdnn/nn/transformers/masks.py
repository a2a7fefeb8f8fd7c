"""Masks of PyTorch's attention modules, where True is left out, as masks of the attention op."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.variable import Variable
from symdnn.ops.array.create import arange
from symdnn.ops.array.join import concatenate
from symdnn.ops.core.shape import dims_of, zeros_like
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.comparison import switch


def over_heads(what: str, mask: Variable, batch: Any, heads: int) -> Variable:
    """An ``attn_mask`` (queries, keys) or (batch x heads, queries, keys) with four dimensions."""
    _check(what, "attn_mask", mask, "(queries, keys) or (batch x heads, queries, keys)", 2, 3)
    if mask.type.ndim == 2:
        return mask.dimshuffle("x", "x", 0, 1)
    return mask.reshape((batch, heads, *dims_of(mask)[1:]))


def over_keys(what: str, mask: Variable, batched: bool) -> Variable:
    """A ``key_padding_mask`` (batch, keys), or (keys,) without a batch, with four dimensions."""
    wanted = "(batch, keys)" if batched else "(keys,)"
    _check(what, "key_padding_mask", mask, wanted, 2 if batched else 1)
    return mask.dimshuffle(0, "x", "x", 1) if batched else mask.dimshuffle("x", "x", "x", 0)


def _check(what: str, name: str, mask: Any, wanted: str, *ndims: int) -> None:
    fits = isinstance(mask, Variable) and mask.type.ndim in ndims
    if not fits or not (mask.type.dtype == "bool" or mask.type.is_float):
        got = mask.type if isinstance(mask, Variable) else mask
        raise TypeMismatch(what, f"{name}: bool (True is left out) or float, {wanted}", got)


def causal_mask(queries: Any, keys: Any) -> Variable:
    """True for keys after the query of equal index, (1, 1, queries, keys)."""
    i, j = arange(queries, dtype="int32"), arange(keys, dtype="int32")
    return j.dimshuffle("x", "x", "x", 0) > i.dimshuffle("x", "x", 0, "x")


def with_more_keys(mask: Variable, count: int) -> Variable:
    """A mask with ``count`` more keys at its end, which all queries see."""
    more = mask[..., :1]
    seen = zeros_like(more)
    return concatenate([mask, *[seen] * count], axis=3)


def combined(masks: list[Variable], dtype: str) -> Variable | None:
    """One mask of the attention op for several of PyTorch's: what one leaves out is left out.

    If all are bool it is bool, and True takes part; else it is a sum of floats of this ``dtype``.
    """
    if not masks:
        return None
    if all(m.type.dtype == "bool" for m in masks):
        out = masks[0]
        for m in masks[1:]:
            out = out | m
        return ~out
    added = [_added(m, dtype) for m in masks]
    total = added[0]
    for m in added[1:]:
        total = total + m
    return total


def _added(mask: Variable, dtype: str) -> Variable:
    if mask.type.dtype != "bool":
        return cast(mask, dtype)
    number = np.asarray(-math.inf, dtype)
    return switch(mask, number, np.zeros((), dtype))
