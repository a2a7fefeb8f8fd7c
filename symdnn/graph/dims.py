"""Arithmetic on dimensions that are ints at plan time and symbols while the graph is rewritten.

An op states its shape rule once (:meth:`Op.shapes`); with ints it gives the plan's shapes, with
integer scalar variables the graph that computes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import index
from typing import Any

from symdnn.errors import AxisError, ShapeMismatch
from symdnn.graph.operators import operator
from symdnn.graph.variable import Constant, Variable

__all__ = [
    "Dim",
    "Shape",
    "ceil_div",
    "dim_max",
    "dim_min",
    "dim_where",
    "normal_axis",
    "product",
    "same_dim",
]

Dim = Any  # int | Variable (an int64 scalar)
Shape = tuple[Dim, ...]


def known(d: Dim) -> int | None:
    """The size when it is a number already (None is an unknown one)."""
    if isinstance(d, Constant):
        return int(d.data)
    return None if d is None or isinstance(d, Variable) else int(d)


def normal_axis(op: str, axis: Any, ndim: int) -> int:
    """``axis`` counted from the front; raises :class:`AxisError` when it does not exist."""
    given = axis.data if isinstance(axis, Constant) else axis
    try:
        number = index(given)
    except TypeError:
        raise AxisError(op, "an axis that is an int", repr(axis)) from None
    if not -ndim <= number < ndim:
        raise AxisError(op, f"an axis of a tensor of {ndim} dimension(s)", str(number))
    return number % ndim


def dim_max(a: Dim, b: Dim) -> Dim:
    """The larger of two dimensions."""
    if a is b:
        return a
    if isinstance(a, Variable) or isinstance(b, Variable):
        return operator("maximum")(a, b)
    return max(a, b)


def dim_min(a: Dim, b: Dim) -> Dim:
    """The smaller of two dimensions."""
    if a is b:
        return a
    if isinstance(a, Variable) or isinstance(b, Variable):
        return operator("minimum")(a, b)
    return min(a, b)


def dim_where(condition: Any, a: Dim, b: Dim) -> Dim:
    """``a`` where ``condition`` (a comparison of dimensions) holds, else ``b``."""
    if isinstance(condition, Variable):
        return operator("switch")(condition, a, b)
    return a if condition else b


def ceil_div(a: Dim, b: Dim) -> Dim:
    """``a / b`` rounded up."""
    return (a + b - 1) // b


def product(dims: Iterable[Dim]) -> Dim:
    """The product of dimensions; 1 for none."""
    return reduce(lambda a, b: a * b, dims, 1)


def same_dim(op: Any, dims: Sequence[Dim], wanted: str, got: Any, do: str = "") -> Dim:
    """The common value of ``dims``; raises :class:`ShapeMismatch` when two known ones differ."""
    numbers = {n for d in dims if (n := known(d)) is not None}
    if len(numbers) > 1:
        raise ShapeMismatch(op, wanted, got, do)
    return numbers.pop() if numbers else dims[0]
