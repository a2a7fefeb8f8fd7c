"""cuDNN's numbers of dimensions: (N, C) and two or three spatial sizes.

An op over one dimension becomes one over two, of which the first has size 1. Dimensions before the
spatial ones are merged into N where they are not (N, C).
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from symdnn.graph.dims import product
from symdnn.graph.variable import Variable
from symdnn.ops.core.shape import dims_of, reshape

#: What the fields of convolutions and poolings have for a dimension of size 1.
_UNIT_ENTRIES: dict[str, Any] = {
    "padding": (0, 0), "pad": 0, "ws": 1, "stride": 1, "dilation": 1, "static": 1,
}  # fmt: skip


def as_2d(op: Any) -> Any:
    """The op over two dimensions that equals ``op`` over one; ``op`` itself over more."""
    if op.ndim > 1:
        return op
    names = {f.name for f in fields(op)} & _UNIT_ENTRIES.keys()
    return replace(op, **{n: (_UNIT_ENTRIES[n], *getattr(op, n)) for n in names})


def to_ncx(v: Variable, ndim: int) -> Variable:
    """``v``, which ends with ``ndim`` spatial dimensions, as (N, C, sizes...) with at least two."""
    lead, spatial = dims_of(v)[: v.type.ndim - ndim], dims_of(v)[v.type.ndim - ndim :]
    if len(lead) == 2:
        return v if ndim > 1 else v.dimshuffle(0, 1, "x", 2)
    shape = (product(lead), 1, *([1] if ndim == 1 else []), *spatial)
    return reshape(v, shape, ndim=len(shape))


def from_ncx(v: Variable, like: Variable, ndim: int) -> Variable:
    """A result of cuDNN's with the dimensions before the spatial ones as ``like`` has them."""
    if like.type.ndim - ndim == 2:
        return v if ndim > 1 else v.dimshuffle(0, 1, 3)
    lead = dims_of(like)[: like.type.ndim - ndim]
    return reshape(v, (*lead, *dims_of(v)[v.type.ndim - ndim :]), ndim=like.type.ndim)
