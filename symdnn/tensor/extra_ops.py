"""``T.extra_ops``: functions under Theano's module path, which defines no op."""

from symdnn.ops.array.cumulative import cumprod, cumsum
from symdnn.ops.array.join import repeat
from symdnn.ops.array.sort import Unique, searchsorted, unique
from symdnn.ops.array.take import (
    bincount,
    compress,
    diff,
    fill_diagonal,
    fill_diagonal_offset,
    to_one_hot,
)
from symdnn.ops.array.view import squeeze

__all__ = [
    "Unique",
    "bincount",
    "compress",
    "cumprod",
    "cumsum",
    "diff",
    "fill_diagonal",
    "fill_diagonal_offset",
    "repeat",
    "searchsorted",
    "squeeze",
    "to_one_hot",
    "unique",
]
