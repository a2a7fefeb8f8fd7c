"""``T.extra_ops``: functions that programs reach under this name, a face like the others."""

from symdnn.ops.cumulative import cumprod, cumsum
from symdnn.ops.join import repeat
from symdnn.ops.sort import Unique, searchsorted, unique
from symdnn.ops.take import (
    bincount,
    compress,
    diff,
    fill_diagonal,
    fill_diagonal_offset,
    to_one_hot,
)
from symdnn.ops.view import squeeze

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
