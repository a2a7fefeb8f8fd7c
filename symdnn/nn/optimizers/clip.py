"""Gradients clipped by their common norm, or element by element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable
from symdnn.nn.modules.checked import checked
from symdnn.ops.array.reduce import sum as total
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.elementwise.arithmetic import cast, clip, maximum, sqr, sqrt

__all__ = ["clip_by_norm", "clip_by_value", "global_norm"]


def global_norm(grads: Sequence[Variable]) -> Variable:
    """The Euclidean norm of all elements of all ``grads``, a scalar.

    It is computed in float32, or in float64 where a gradient is of that dtype.
    """
    _check("global_norm", grads)
    wide = "float64" if any(g.type.dtype == "float64" for g in grads) else "float32"
    squares = [total(sqr(_widened(g))) for g in grads]
    found = cast(squares[0], wide)
    for s in squares[1:]:
        found = found + cast(s, wide)
    return sqrt(found)


@checked
def clip_by_norm(grads: Sequence[Variable], limit: float | Variable) -> list[Variable]:
    """``grads`` times ``min(1, limit / norm)``, with the common norm of all of them.

    ``limit`` is a positive number or a symbolic scalar; dtypes do not change. An infinite or NaN
    element makes all of them NaN or 0. (Pascanu et al. 2013.)
    """
    _check("clip_by_norm", grads)
    if not isinstance(limit, Variable) and not limit > 0:
        raise ValueError(f"clip_by_norm: limit={limit}; wanted a number above 0")
    norm = global_norm(grads)
    bound = cast(limit, norm.type.dtype) if isinstance(limit, Variable) else _like(norm, limit)
    factor = bound / maximum(norm, bound)
    return [_times(g, factor) for g in grads]


@checked
def clip_by_value(grads: Sequence[Variable], limit: float) -> list[Variable]:
    """``grads`` with each element clipped to ``-limit`` and ``limit``, a positive number."""
    _check("clip_by_value", grads)
    if not limit > 0:
        raise ValueError(f"clip_by_value: limit={limit}; wanted a number above 0")
    return [clip(g, _like(g, -limit), _like(g, limit)) for g in grads]


def _check(what: str, grads: Any) -> None:
    if isinstance(grads, Variable) or not grads:
        raise TypeMismatch(what, "a list of gradients, one at least", repr(grads))
    for g in grads:
        if not (isinstance(g, Variable) and isinstance(g.type, TensorType) and g.type.is_float):
            raise TypeMismatch(what, "gradients that are float tensors", g)


def _like(v: Variable, number: float) -> Array:
    return np.asarray(number, v.type.numpy)


def _widened(g: Variable) -> Variable:
    return cast(g, "float32") if is_narrow_float(g.type.dtype) else g


def _times(g: Variable, factor: Variable) -> Variable:
    """The product in the dtype of ``g``; of a 16-bit one it is rounded once."""
    wide = _widened(g)
    return cast(wide * cast(factor, wide.type.dtype), g.type.dtype)
