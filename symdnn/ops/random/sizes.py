"""Sizes, dtypes and parameters of random variables, as the methods of streams take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.errors import NdimMismatch, OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, DtypeLike, TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.core.dtype import upcast
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import cast


def size_dims(size: Any, ndim: int | None = None, like: Sequence[Variable] = ()) -> list[Dim]:
    """``size`` as a list of dimensions.

    An int, a sequence of ints and integer scalars, an integer vector (with ``ndim`` where its
    length is not static), or None for the shape to which ``like`` broadcast.
    """
    if size is None:
        return _broadcast_dims(like)
    if isinstance(size, Variable):
        return _symbolic_dims(size, ndim)
    sizes = size if isinstance(size, np.ndarray | list | tuple) else [size]
    try:
        dims = [d if isinstance(d, Variable) else int(d) for d in sizes]
    except (TypeError, ValueError):
        wanted = "integers, an integer vector, or None"
        raise TypeMismatch("size", wanted, f"{size!r:.80}") from None
    if any(d != given for d, given in zip(dims, sizes, strict=True) if isinstance(d, int)):
        raise TypeMismatch("size", "whole numbers", f"{size!r:.80}")
    if any(isinstance(d, int) and d < 0 for d in dims):
        raise OptionError(f"size={size}: a dimension cannot be negative")
    if ndim is not None and ndim != len(dims):
        raise OptionError(f"size={size} has {len(dims)} dimension(s), ndim={ndim}")
    return dims


def _symbolic_dims(size: Variable, ndim: int | None) -> list[Dim]:
    if not size.type.is_discrete or size.type.ndim > 1:
        raise TypeMismatch("size", "an integer scalar or vector", size.type)
    if size.type.ndim == 0:
        return [size]
    length = size.type.shape[0] if ndim is None else ndim
    if length is None:
        raise NdimMismatch("size", "a vector of known length; pass ndim=", size.type)
    return [size[i] for i in range(length)]


def _broadcast_dims(like: Sequence[Variable]) -> list[Dim]:
    dims: list[Dim] = [1] * max((v.type.ndim for v in like), default=0)
    for v in like:
        lead = len(dims) - v.type.ndim
        for axis, (known, d) in enumerate(zip(v.type.shape, dims_of(v), strict=True)):
            if known != 1 and (known is not None or dims[lead + axis] == 1):
                if isinstance(before := dims[lead + axis], int) and before not in (1, known):
                    wanted = "sizes that agree or are 1 in each dimension"
                    raise ShapeMismatch("the parameters", wanted, [str(w.type) for w in like])
                dims[lead + axis] = d
    return dims


def product_of(dims: Sequence[Dim]) -> Dim:
    """The product of sizes."""
    total: Dim = 1
    for d in dims:
        total = d * total
    return total


def count_of(what: str, n: TensorLike) -> Variable:
    """Numbers of trials as int64, refused where they are not whole or negative."""
    v = as_variable(n)
    if not v.type.is_discrete or (isinstance(v, Constant) and (v.data < 0).any()):
        raise TypeMismatch(what, "non-negative ints as n", n)
    return cast(v, "int64")


_RANGES: dict[str, tuple[str, Callable[[Array], Array]]] = {
    **dict.fromkeys(("std", "scale", "shape", "kappa"), ("at least 0", lambda v: v < 0)),
    **dict.fromkeys(("df", "a", "b", "n", "alpha"), ("above 0", lambda v: v <= 0)),
    "p": ("from 0 to 1", lambda v: (v < 0) | (v > 1)),
}


def check_parameters(what: str, **given: TensorLike) -> None:
    """Refuse numbers and constants that no distribution has; a variable's value is not known."""
    for name, value in given.items():
        wanted, outside = _RANGES[name]
        v = as_variable(value)
        if isinstance(v, Constant) and outside(v.data).any():
            raise OptionError(f"{what}: wanted {name} {wanted}, got {v.data.tolist()!s:.60}")


def is_number(v: Variable, number: float) -> bool:
    """Whether it is the constant ``number``."""
    return isinstance(v, Constant) and v.data.ndim == 0 and float(v.data) == number


def float_dtype(dtype: DtypeLike | None, *parameters: Variable) -> str:
    """``dtype``, or the upcast of ``floatX`` and the parameters."""
    if dtype is not None:
        return TensorType(dtype).dtype
    return upcast(str(config.floatX), *(v.type.dtype for v in parameters))


def probabilities(what: str, p: TensorLike | None) -> Variable:
    """Float weights with the classes last."""
    if p is None:
        raise TypeMismatch(what, "probabilities (pvals, p)", None)
    v = as_variable(p)
    if v.type.ndim == 0 or v.type.is_complex:
        raise TypeMismatch(what, "probabilities with the classes last", v.type)
    return v if v.type.is_float else cast(v, "float64")
