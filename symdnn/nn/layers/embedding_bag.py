"""Sums, means and maxima of rows of a table: PyTorch's EmbeddingBag."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.errors import InputError, TypeMismatch, UnknownWord
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.nn.layers.linear import LookupTable
from symdnn.ops.array.argreduce import argmax
from symdnn.ops.array.create import arange, zeros
from symdnn.ops.array.getitem import inc_subtensor
from symdnn.ops.array.sort import searchsorted
from symdnn.ops.array.take import take_along_axis
from symdnn.ops.array.view import of_sizes
from symdnn.ops.core.shape import alloc, dims_of
from symdnn.ops.elementwise.arithmetic import cast, maximum
from symdnn.ops.elementwise.comparison import eq, neq, switch
from symdnn.ops.elemwise import like

__all__ = ["EmbeddingBag"]

_MODES = ("sum", "mean", "max")


class EmbeddingBag(LookupTable):
    """``bag(x)`` of integers (B, n): the sum, mean or maximum of the n rows of each bag, (B, dim).

    ``bag(x, offsets)`` of a vector of integers: bag i begins at ``offsets[i]``, and the last ends
    with ``x``, or with ``include_last_offset`` at the last offset. ``per_sample_weights``, of the
    shape of ``x``, multiply the rows of a sum. Rows ``padding_idx`` count for nothing; an empty bag
    is 0. ``weight`` is (num_embeddings, embedding_dim); the other arguments are those of
    ``Embedding``. (PyTorch's.)
    """

    _shown = "{0.nIndex} -> {0.nOutput}, mode={0.mode}"

    def __init__(
        self, num_embeddings: int, embedding_dim: int, max_norm: float | None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean",
        sparse: bool = False, _weight: TensorLike | None = None, include_last_offset: bool = False,
        padding_idx: int | None = None, *, dtype: str | None = None,
    ) -> None:  # fmt: skip
        if mode not in _MODES:
            raise UnknownWord(f"EmbeddingBag: mode={mode!r}; wanted one of {', '.join(_MODES)}")
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm=max_norm, norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq, dtype=dtype,
        )  # fmt: skip
        if _weight is not None:
            self.weight.set_value(_table(_weight, self.weight.type))
        self.mode, self.include_last_offset = mode, bool(include_last_offset)

    def forward(
        self, index: Variable, offsets: Any = None, per_sample_weights: Any = None
    ) -> Variable:
        check_index(index, offsets)
        counted = None if self.paddingValue is None else neq(index, self.paddingValue)
        return bags(
            super().forward(index), counted, self.mode, offsets, per_sample_weights,
            self.include_last_offset,
        )  # fmt: skip


def check_index(index: Any, offsets: Any) -> None:
    """Raise :class:`TypeMismatch` unless these are integers that go with ``offsets``, or None."""
    wanted = 2 if offsets is None else 1
    if not isinstance(index, Variable) or index.type.ndim != wanted:
        words = "integers (B, n)" if wanted == 2 else "a vector of integers, with offsets"
        raise TypeMismatch("EmbeddingBag", words, getattr(index, "type", index))


def bags(
    rows: Variable, counted: Variable | None, mode: str, offsets: Any = None,
    weights: Any = None, last: bool = False,
) -> Variable:  # fmt: skip
    """Sums, means or maxima of rows (B, n, dim), or of those (n, dim) from offset to offset.

    ``weights`` multiply the rows of a sum. Rows that are not ``counted`` count for nothing. With
    ``last`` the last offset is the end.
    """
    if mode not in _MODES:
        raise UnknownWord(f"EmbeddingBag: mode={mode!r}; wanted one of {', '.join(_MODES)}")
    if weights is not None:
        if mode != "sum":
            raise InputError(f"EmbeddingBag: per_sample_weights are for mode='sum', not {mode!r}")
        weights = cast(weights, rows.type.dtype)
        weights = of_sizes(weights, dims_of(rows)[:-1], "EmbeddingBag: per_sample_weights")
        rows = rows * weights.dimshuffle(*range(weights.type.ndim), "x")
    if counted is None:
        counted = alloc(constant(True), *dims_of(rows)[:-1])
    if offsets is None:
        return _of_rows(rows, counted, mode)
    return _of_vector(rows, counted, mode, as_variable(offsets), last)


def _of_rows(rows: Variable, counted: Variable, mode: str) -> Variable:
    """Bags (B, n): rows (B, n, dim)."""
    kept = counted.dimshuffle(0, 1, "x")
    if mode == "max":
        return _largest(switch(kept, rows, like(-np.inf, rows)))
    total = switch(kept, rows, like(0, rows)).sum(axis=1)
    if mode == "sum":
        return total
    number = cast(counted, rows.type.dtype).sum(axis=1, keepdims=True)
    return total / maximum(number, like(1, number))


def _of_vector(
    rows: Variable, counted: Variable, mode: str, offsets: Variable, last: bool
) -> Variable:
    """Bags one behind the other: rows (n, dim)."""
    starts = offsets[:-1] if last else offsets
    number, dim = dims_of(starts)[0], dims_of(rows)[1]
    place = arange(dims_of(rows)[0])
    owner = searchsorted(starts, place, side="right") - 1
    counted = counted & (owner >= 0)
    if last:
        counted = counted & (place < offsets[-1])
    owner = maximum(owner, 0)
    kept = counted.dimshuffle(0, "x")
    if mode == "max":  # each row beside each bag
        inside = eq(owner.dimshuffle("x", 0), arange(number).dimshuffle(0, "x")) & counted
        beside = rows.dimshuffle("x", 0, 1)
        each = switch(inside.dimshuffle(0, 1, "x"), beside, like(-np.inf, rows))
        return _largest(each)
    none = zeros((number, dim), rows.type.dtype)
    total = inc_subtensor(none[owner], switch(kept, rows, like(0, rows)))
    if mode == "sum":
        return total
    one = zeros((number,), rows.type.dtype)
    found = inc_subtensor(one[owner], cast(counted, rows.type.dtype)).dimshuffle(0, "x")
    return total / maximum(found, like(1, found))


def _table(values: Any, kind: Any) -> Any:
    try:
        array = np.asarray(values, kind.dtype)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.shape != kind.shape:
        raise InputError(f"EmbeddingBag: _weight={values!r:.60}; wanted an array of {kind.shape}")
    return array


def _largest(x: Variable) -> Variable:
    """The first maximum over axis 1, 0 for that of no rows."""
    found = take_along_axis(x, argmax(x, axis=1, keepdims=True), 1)[:, 0]
    return switch(eq(found, like(-np.inf, x)), like(0, x), found)
