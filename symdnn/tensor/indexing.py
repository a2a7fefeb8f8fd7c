"""Indexing, picking, sorting and counting."""

from symdnn.ops.array.getitem import inc_subtensor, nonzero, set_subtensor
from symdnn.ops.array.sort import (
    Unique,
    argsort,
    argtopk,
    searchsorted,
    sort,
    topk,
    topk_and_argtopk,
    unique,
)
from symdnn.ops.array.take import (
    bincount,
    choose,
    compress,
    diff,
    fill_diagonal,
    fill_diagonal_offset,
    flatnonzero,
    nonzero_values,
    put_along_axis,
    take,
    take_along_axis,
    to_one_hot,
)

__all__ = [
    "Unique",
    "argsort",
    "argtopk",
    "bincount",
    "choose",
    "compress",
    "diff",
    "fill_diagonal",
    "fill_diagonal_offset",
    "flatnonzero",
    "inc_subtensor",
    "nonzero",
    "nonzero_values",
    "put_along_axis",
    "searchsorted",
    "set_subtensor",
    "sort",
    "take",
    "take_along_axis",
    "to_one_hot",
    "topk",
    "topk_and_argtopk",
    "unique",
]
