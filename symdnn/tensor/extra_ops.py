"""``T.extra_ops``: functions that programs reach under this name, a face like the others."""

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
