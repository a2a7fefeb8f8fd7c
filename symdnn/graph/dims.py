"""Arithmetic on dimensions that are ints at plan time and symbols while the graph is rewritten.

An op has one shape rule (:meth:`Op.shapes`). With ints it returns the shapes of a plan, with
integer scalar variables the graph that computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import index
from typing import TYPE_CHECKING, Any, TypeVar, overload

from symdnn.errors import AxisError, ShapeMismatch
from symdnn.graph.names import dim as named
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Constant, Variable

if TYPE_CHECKING:
    from symdnn.graph.op import Op

__all__ = [
    "Dim",
    "DimT",
    "Shape",
    "Size",
    "SizeT",
    "Unknown",
    "at_least_zero",
    "ceil_div",
    "common",
    "dim_max",
    "dim_min",
    "dim_where",
    "is_size",
    "names_advice",
    "normal_axis",
    "one_size",
    "product",
    "quotient",
    "same_dim",
]

Dim = int | Variable  # the latter an int64 scalar
Shape = tuple[Dim, ...]
#: A dimension of a static shape (None where it is not known), or of one that is computed with.
DimT = TypeVar("DimT", int, int | None, Dim)
#: A dimension that is computed with: of numbers it makes numbers.
SizeT = TypeVar("SizeT", int, Dim)


class Unknown(Variable):
    """An integer of which a shape rule knows nothing; arithmetic with it makes no nodes.

    Shape rules are called with such symbols to propagate names (:mod:`symdnn.graph.names.flow`),
    for which only matters what is a named size: results of arithmetic are unknown, but for
    ``d + 0``, ``d - 0``, ``d * 1`` and ``d // 1``.
    """

    __slots__ = ()

    def __init__(self, name: str = "?") -> None:
        super().__init__(_SCALAR, name)

    def __array_ufunc__(
        self, ufunc: object, method: str, *inputs: object, **options: object
    ) -> Any:
        return Unknown()

    def _sum(self, other: Any) -> Unknown:
        return self if known(other) == 0 else Unknown()

    def _multiple(self, other: Any) -> Unknown:
        return self if known(other) == 1 else Unknown()

    def _result(self, other: object = None) -> Unknown:
        return Unknown()

    __add__ = __radd__ = __sub__ = _sum
    __mul__ = __rmul__ = __floordiv__ = _multiple
    __rsub__ = __rfloordiv__ = __mod__ = __rmod__ = __neg__ = __abs__ = _result
    __lt__ = __le__ = __gt__ = __ge__ = _result


class Size(Unknown):
    """A symbol for an unknown size, with or without a name (``dim``)."""

    __slots__ = ("dim",)

    def __init__(self, dim: named.Dim | None = None) -> None:
        super().__init__("?" if dim is None else str(dim))
        self.dim = dim


_SCALAR = TensorType("int64", ())


def known(d: Dim | None) -> int | None:
    """The size if it is known as a number, else None."""
    if isinstance(d, Constant):
        return int(d.data)
    return None if d is None or isinstance(d, Variable) else int(d)


def normal_axis(op: str, axis: Any, ndim: int) -> int:
    """``axis`` as a number from 0; raises :class:`AxisError` if there is no such axis."""
    given = axis.data if isinstance(axis, Constant) else axis
    try:
        number = index(given)
    except TypeError:
        raise AxisError(op, "an axis that is an int", repr(axis)) from None
    if not -ndim <= number < ndim:
        raise AxisError(op, f"an axis of a tensor of {ndim} dimension(s)", str(number))
    return number % ndim


#: How deep in an expression of sizes :func:`is_size` looks.
_MAX_DEPTH = 8


def is_size(d: Dim, depth: int = _MAX_DEPTH) -> bool:
    """Whether a dimension is known to be a size, and so not negative, whatever its value.

    Sums, products, quotients and the like of sizes are.
    """
    if (number := known(d)) is not None:
        return number >= 0
    if not isinstance(d, Variable) or d.owner is None:
        return isinstance(d, Size)
    if d.owner.op.size_of is not None:
        return True
    needed = d.owner.op.keeps_sizes
    if not needed or not depth or not d.type.is_integer_scalar:
        return False
    sizes = (is_size(v, depth - 1) for v in d.owner.inputs)
    return any(sizes) if needed == "any" else all(sizes)


def at_least_zero(d: Dim) -> Dim:
    """``max(d, 0)``, which is ``d`` itself for a size."""
    return d if is_size(d) else dim_max(d, 0)


def dim_max(a: Dim, b: Dim) -> Dim:
    """The larger of two dimensions."""
    return _extreme("maximum", max, a, b)


def dim_min(a: Dim, b: Dim) -> Dim:
    """The smaller of two dimensions."""
    return _extreme("minimum", min, a, b)


def _extreme(name: str, of_ints: Callable[[int, int], int], a: Dim, b: Dim) -> Dim:
    if a is b:
        return a
    if isinstance(a, Unknown) or isinstance(b, Unknown):
        return Unknown()
    if isinstance(a, Variable) or isinstance(b, Variable):
        return operator(name)(a, b)
    return of_ints(a, b)


def dim_where(condition: Variable | bool, a: Dim, b: Dim) -> Dim:
    """``a`` where ``condition`` (a comparison of dimensions) holds, else ``b``."""
    if isinstance(condition, Unknown):
        return a if a is b else Unknown()
    if isinstance(condition, Variable):
        return operator("switch")(condition, a, b)
    return a if condition else b


def ceil_div(a: SizeT, b: SizeT) -> SizeT:
    """``a / b`` rounded up."""
    return (a + b - 1) // b


@overload
def product(dims: Iterable[int]) -> int: ...


@overload
def product(dims: Iterable[Dim]) -> Dim: ...


def product(dims: Iterable[Dim]) -> Dim:
    """The product of dimensions; 1 for none."""
    return reduce(lambda a, b: a * b, dims, 1)  # type: ignore[arg-type, return-value]


def quotient(total: Sequence[Dim], parts: Sequence[Dim]) -> Dim:
    """The product of ``total`` divided by that of ``parts``; common factors cancel."""
    total, parts = ([f for d in dims for f in _factors(d)] for dims in (total, parts))
    above, below = ([d for d in dims if known(d) is None] for dims in (total, parts))
    for d in below.copy():
        if d in above:
            above.remove(d)
            below.remove(d)
    m, n = (product(known(d) for d in dims if known(d) is not None) for dims in (total, parts))  # type: ignore[misc]
    if below or n == 0 or m % n:
        return product(total) // product(parts)
    return reduce(lambda a, b: a * b, above if m == n and above else [m // n, *above])


def _factors(d: Dim) -> list[Dim]:
    """``d``, or what it was multiplied from."""
    if not isinstance(d, Variable) or d.owner is None or not d.owner.op.multiplies:
        return [d]
    return [f for v in d.owner.inputs for f in _factors(v)]


def common(dims: Sequence[Dim | None]) -> Dim | None:
    """The one size of ``dims``, which are equal: a number, else one with a name, else the first
    that is not None.

    None if they differ: two numbers, or two names.
    """
    number: int | None = None
    named: Size | None = None
    for d in dims:
        if isinstance(d, Size) and d.dim is not None:
            if named is not None and named is not d:
                return None
            named = d
        elif (n := known(d)) is not None:
            if number is not None and number != n:
                return None
            number = n
    if number is not None:
        return number
    return next(d for d in dims if d is not None) if named is None else named


def one_size(dims: Sequence[Dim]) -> Dim:
    """:func:`common` for dimensions that are declared to be equal: it has the names of all."""
    names = [d.dim for d in dims if isinstance(d, Size) and d.dim is not None]
    return Size(named.merged(names)) if len(names) > 1 else common(dims)  # type: ignore[return-value]


def same_dim(op: Op, dims: Sequence[Dim], wanted: str, got: object, do: str = "") -> Dim:
    """The :func:`common` value of ``dims``; raises :class:`ShapeMismatch` when there is none."""
    found = common(dims)
    if found is None:
        raise ShapeMismatch(op, wanted, got, names_advice(dims) or do)
    return found


def names_advice(dims: Sequence[Dim | None]) -> str:
    """The advice of an error about ``dims`` with different names; empty if they have none."""
    found = dict.fromkeys(d.dim for d in dims if isinstance(d, Size) and d.dim is not None)
    if len(found) < 2:
        return ""
    return (
        f"The sizes {' and '.join(map(str, found))} have different names. If they are equal, "
        "declare it: T.specify_shape(x, sizes) with y.shape[i] for the size of x, or "
        f"symdnn.{named.merged(found)!r} in the type of one of them"
    )
