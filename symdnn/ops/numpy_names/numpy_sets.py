"""NumPy's functions of sets: the different elements of arrays."""

from __future__ import annotations

from typing import Any

from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.join import concatenate
from symdnn.ops.array.sort import unique
from symdnn.ops.array.view import flatten
from symdnn.ops.core.python_numbers import settled
from symdnn.ops.core.shape import dims_of
from symdnn.ops.numpy_names.numpy_arrays import in1d

__all__ = [
    "intersect1d", "setdiff1d", "setxor1d", "union1d", "unique_counts", "unique_inverse",
    "unique_values",
]  # fmt: skip


def unique_values(x: TensorLike) -> Any:
    """The different elements in ascending order."""
    return unique(x)


def unique_counts(x: TensorLike) -> Any:
    """The different elements, and how often each occurs."""
    return unique(x, return_counts=True)


def unique_inverse(x: TensorLike) -> tuple[Any, Any]:
    """The different elements, and the place among them of each element, in the shape of ``x``."""
    v = as_variable(x)
    found: Any = unique(v, return_inverse=True)
    values, inverse = found
    return values, inverse.reshape(dims_of(v))


def _set(x: TensorLike) -> Variable:
    found: Any = unique(flatten(as_variable(x), 1))
    return found  # type: ignore[no-any-return]


def _both(*given: TensorLike) -> list[Variable]:
    """Variables, of which Python numbers have the other's dtype."""
    return settled([as_variable(v) for v in given])


def union1d(ar1: TensorLike, ar2: TensorLike) -> Variable:
    """The elements of either, in ascending order, each once."""
    return _set(concatenate([flatten(v, 1) for v in _both(ar1, ar2)]))


def intersect1d(ar1: TensorLike, ar2: TensorLike) -> Variable:
    """The elements of both, in ascending order, each once."""
    a, b = _both(ar1, ar2)
    a = _set(a)
    return a[in1d(a, b)]


def setdiff1d(ar1: TensorLike, ar2: TensorLike) -> Variable:
    """The elements of the first that are not in the second, in ascending order, each once."""
    a, b = _both(ar1, ar2)
    a = _set(a)
    return a[in1d(a, b, invert=True)]


def setxor1d(ar1: TensorLike, ar2: TensorLike) -> Variable:
    """The elements of one alone, in ascending order, each once."""
    a, b = _both(ar1, ar2)
    return _set(concatenate([setdiff1d(a, b), setdiff1d(b, a)]))
