"""``associative_scan``: all prefixes under an associative function.

What the function does to each leaf is found as a polynomial of its leaves. Sums, products, extremes
and linear recurrences, which are the prefixes of ``(a, b), (c, d) -> (a c, c b + d)``, are ops with
kernels (``ops/array/cumulative.py``). Other functions are applied to whole arrays: to neighbours,
whose prefixes are every second one, and so on (Blelloch, "Prefix sums and their applications",
1990), which is 2 n applications. A length that only a call knows has a few such levels, and what
is left takes log2 rounds (Hillis and Steele, "Data parallel algorithms", 1986).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symdnn.errors import AxisError, ShapeMismatch, TypeMismatch
from symdnn.graph.operators import operator
from symdnn.graph.tracing import tracing
from symdnn.graph.values.tree import flatten, unflatten
from symdnn.graph.variable import Constant, Variable, as_variable, constant
from symdnn.ops.array.advanced_index import AdvancedSubtensor
from symdnn.ops.array.cumulative import CumMax, CumMin, CumProd, CumSum, LinearRecurrence
from symdnn.ops.control.loops import fori_loop
from symdnn.ops.core.shape import DimShuffle, shape_i
from symdnn.ops.elementwise.arithmetic import Add, Maximum, Minimum, Mul, Neg, Sqr, Sub
from symdnn.ops.linalg.products import MatchSizes
from symdnn.options import as_function

#: A polynomial: its coefficient of each monomial, a sorted tuple of variables (by number).
Polynomial = dict[tuple[int, ...], Any]
_MAX_TERMS = 64
#: Levels of halving, each with two applications of the function in the graph: of a length that is
#: not known they leave one entry in 16, and no more than so many are written out of a known one.
_LEVELS, _MOST_LEVELS = 4, 12


def associative_scan(
    fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0
) -> Any:
    """The results of ``fn`` over the first 1, 2, ... entries along ``axis`` of the leaves.

    ``fn(a, b)`` is associative. It takes two trees like ``elems`` (``a`` the earlier one) with any
    number of entries along ``axis``, and returns one, entry by entry. ``reverse`` begins with the
    last entry. Result k is ``fn(...fn(fn(x0, x1), x2)..., xk)``. (``jax.lax.associative_scan``.)

    Leaves of ``fn`` that are a sum, a product, a maximum, a minimum, or ``c * b + d`` with ``c`` a
    leaf that is multiplied, are computed by one kernel at the speed of memory. Others apply ``fn``
    to some 2 n entries in all, and are written out as a graph without a loop where the length is
    known. It has derivatives in both modes, in the same way.

    >>> import numpy as np
    >>> import symdnn
    >>> from symdnn import control
    >>> def decay(x, y):
    ...     return x[0] * y[0], y[0] * x[1] + y[1]
    >>> f = symdnn.jit(lambda a, b: control.associative_scan(decay, (a, b))[1])
    >>> f(np.full(4, 0.5), np.ones(4))
    array([1.   , 1.5  , 1.75 , 1.875])
    """
    as_function("associative_scan", fn, "two entries")
    given, tree = flatten(elems)
    leaves = [as_variable(v) for v in given]
    if not leaves:
        return elems
    ndim = min(v.type.ndim for v in leaves)
    if not -ndim <= axis < ndim:
        raise AxisError("associative_scan", f"an axis of {ndim} dimensions", axis)
    axis %= ndim
    sizes = {n for v in leaves if (n := v.type.shape[axis]) is not None}
    if len(sizes) > 1:
        raise ShapeMismatch("associative_scan", "leaves of equal length along the axis", sizes)
    a, b = ([_entries(v, axis) for v in leaves] for _ in range(2))
    with tracing("the function of associative_scan"):
        outputs, structure = flatten(fn(unflatten(tree, a), unflatten(tree, b)))
    if structure != tree:
        raise TypeMismatch("associative_scan", f"a result of the structure {tree}", structure)
    results = [as_variable(v) for v in outputs]
    for v, x in zip(results, leaves, strict=True):
        if v.type.ndim != x.type.ndim:
            raise TypeMismatch("associative_scan", f"a result of {x.type.ndim} dimensions", v.type)
    found = _recognised(results, a, b, leaves, axis, reverse)
    if found is None:
        found = _by_levels(fn, leaves, tree, axis, reverse)
    return unflatten(tree, found)


def _entries(v: Variable, axis: int) -> Variable:
    """A variable for some entries of a leaf."""
    shape = list(v.type.shape)
    shape[axis] = None
    made: Variable = v.type.with_shape(shape)(v.name)
    return made


# -- functions with kernels -----------------------------------------------------------------------


def _recognised(
    results: Sequence[Variable],
    a: Sequence[Variable],
    b: Sequence[Variable],
    leaves: Sequence[Variable],
    axis: int,
    reverse: bool,
) -> list[Variable] | None:
    """The results by kernels; None unless each leaf is of a known kind."""
    count = len(leaves)
    numbers = {v: i for i, v in enumerate([*a, *b])}
    known = [_kind(v, i, numbers, count) for i, v in enumerate(results)]
    found: list[Variable] = []
    for i, (kind, x) in enumerate(zip(known, leaves, strict=True)):
        if kind is None:
            return None
        if kind in _PLAIN:
            y = _PLAIN[kind](axis, reverse)(x)
        else:
            factor = int(kind)
            if known[factor] != "mul" or not x.type.is_float:
                return None
            y = _recurrence(leaves[factor], x, axis, reverse)
        if y.type.ndim != results[i].type.ndim:
            return None
        found.append(
            y if y.type.dtype == results[i].type.dtype else y.astype(results[i].type.dtype)
        )
    return found


_PLAIN: dict[str, Any] = {"add": CumSum, "mul": CumProd, "max": CumMax, "min": CumMin}


def _kind(v: Variable, i: int, numbers: dict[Variable, int], count: int) -> str | None:
    """The kind of leaf ``i``: a name, or the number of the leaf that is its factor."""
    node = v.owner
    if node is not None and isinstance(node.op, Maximum | Minimum):
        mine = {numbers.get(x) for x in node.inputs} == {i, count + i}
        return ("max" if isinstance(node.op, Maximum) else "min") if mine else None
    p = _polynomial(v, numbers)
    if p is None or any(c != 1 for c in p.values()):
        return None
    terms = set(p)
    if terms == {(i, count + i)}:
        return "mul"
    if terms == {(i,), (count + i,)}:
        return "add"
    rest = terms - {(count + i,)}
    if len(terms) == 2 and len(rest) == 1:
        (term,) = rest
        if len(term) == 2 and term[0] == i and count <= term[1] != count + i:
            return str(term[1] - count)
    return None


def _polynomial(v: Variable, numbers: dict[Variable, int]) -> Polynomial | None:
    """``v`` as a polynomial of the numbered variables; None if it is none, or too large."""
    if v in numbers:
        return {(numbers[v],): 1}
    if isinstance(v, Constant):
        return {(): v.data.reshape(-1)[0].item()} if v.data.size == 1 else None
    node = v.owner
    if node is None:
        return None
    if isinstance(node.op, DimShuffle):
        inner = node.inputs[0]
        return _polynomial(inner, numbers) if isinstance(inner, Constant) else None
    if not isinstance(node.op, Add | Sub | Mul | Neg | Sqr):
        return None
    parts = [_polynomial(x, numbers) for x in node.inputs]
    known = [p for p in parts if p is not None]
    if len(known) != len(parts):
        return None
    if isinstance(node.op, Neg):
        found = _times(known[0], {(): -1})
    elif isinstance(node.op, Mul | Sqr):
        found = _times(known[0], known[-1])
    else:
        found = _plus(known[0], known[1], -1 if isinstance(node.op, Sub) else 1)
    return found if len(found) <= _MAX_TERMS else None


def _plus(p: Polynomial, q: Polynomial, sign: int) -> Polynomial:
    found = dict(p)
    for term, c in q.items():
        found[term] = found.get(term, 0) + sign * c
    return {t: c for t, c in found.items() if c != 0}


def _times(p: Polynomial, q: Polynomial) -> Polynomial:
    found: Polynomial = {}
    for s, c in p.items():
        for t, d in q.items():
            term = tuple(sorted(s + t))
            found[term] = found.get(term, 0) + c * d
    return {t: c for t, c in found.items() if c != 0}


def _recurrence(a: Variable, b: Variable, axis: int, reverse: bool) -> Variable:
    dtype = b.type.dtype
    if a.type.dtype != dtype:
        a = a.astype(dtype)
    if a.type.broadcastable != b.type.broadcastable:
        ones_a, ones_b = operator("ones_like")(a), operator("ones_like")(b)
        a, b = a * ones_b, b * ones_a
    return LinearRecurrence(axis, reverse)(a, b)


# -- any function ---------------------------------------------------------------------------------


def _by_levels(
    fn: Callable[[Any, Any], Any], leaves: Sequence[Variable], tree: Any, axis: int, reverse: bool
) -> list[Variable]:
    def joined(a: list[Variable], b: list[Variable]) -> list[Variable]:
        found = flatten(fn(unflatten(tree, a), unflatten(tree, b)))[0]
        return [as_variable(v).astype(x.type.dtype) for v, x in zip(found, b, strict=True)]

    first, same = leaves[0], MatchSizes(((axis, axis),))
    size = first.type.shape[axis]
    known = [size is not None and v.type.shape[axis] is not None for v in leaves[1:]]
    leaves = [first, *(v if k else same(v, first) for v, k in zip(leaves[1:], known, strict=True))]
    levels = _LEVELS if size is None else min(max(size - 1, 0).bit_length(), _MOST_LEVELS)
    found = _prefixes(joined, [_flipped(v, axis) if reverse else v for v in leaves], axis, levels)
    return [_flipped(v, axis) if reverse else v for v in found]


Joined = Callable[[list[Variable], list[Variable]], list[Variable]]


def _prefixes(joined: Joined, values: list[Variable], axis: int, levels: int) -> list[Variable]:
    """The odd ones are the prefixes of joined pairs; an even one is joined to the one before."""
    size = values[0].type.shape[axis]
    if size is not None and size < 2:
        return values
    if not levels:
        return _rounds(joined, values, axis)
    length = shape_i(values[0], axis) if size is None else size

    def part(of: list[Variable], at: slice) -> list[Variable]:
        return [v[(*[slice(None)] * axis, at)] for v in of]

    pairs = joined(part(values, slice(0, -1, 2)), part(values, slice(1, None, 2)))
    odd = _prefixes(joined, pairs, axis, levels - 1)
    put = operator("set_subtensor")
    made = list(map(put, part(values, slice(1, None, 2)), odd))
    if size == 2:
        return made
    even = joined(part(odd, slice(0, (length - 1) // 2)), part(values, slice(2, None, 2)))
    return list(map(put, part(made, slice(2, None, 2)), even))


def _rounds(joined: Joined, start: list[Variable], axis: int) -> list[Variable]:
    """In round k entry i takes in entry ``i - 2**k``, which stands for the ``2**k`` before it."""
    size = start[0].type.shape[axis]
    length = shape_i(start[0], axis) if size is None else as_variable(size)
    numbers = operator("arange")(length)

    def one_round(k: Variable, values: list[Variable]) -> list[Variable]:
        distance = operator("left_shift")(1, k)
        before = operator("maximum")(numbers - distance, 0)
        earlier = [_taken(v, before, axis) for v in values]
        taken = operator("ge")(numbers, distance)
        both = joined(earlier, values)
        return [_chosen(taken, x, v, axis) for x, v in zip(both, values, strict=True)]

    # One at least, which changes a single entry by nothing: a loop without steps is not compiled.
    rounds = (size - 1).bit_length() if size is not None else _bits(length - 1)
    found: list[Variable] = fori_loop(0, rounds, one_round, start)
    return found


def _taken(v: Variable, places: Variable, axis: int) -> Variable:
    """Entries at places that there are."""
    whole = (None, None, None)
    index = tuple("a" if d == axis else whole for d in range(v.type.ndim))
    found: Variable = AdvancedSubtensor(index, in_bounds=True)(v, places)
    return found


def _flipped(v: Variable, axis: int) -> Variable:
    return v[(*[slice(None)] * axis, slice(None, None, -1))]


def _chosen(taken: Variable, new: Variable, old: Variable, axis: int) -> Variable:
    """``new`` where an entry takes one in, else ``old``; of the type of ``old``."""
    rest = ["x"] * (old.type.ndim - axis - 1)
    wide = taken.dimshuffle(*["x"] * axis, 0, *rest)
    chosen = operator("switch")(wide, new, old)
    same = chosen.type.broadcastable == old.type.broadcastable
    return chosen if same else operator("specify_type")(chosen, old.type)


def _bits(n: Variable) -> Variable:
    """The number of binary digits of a size, at least 1."""
    powers = constant(2 ** np.arange(62, dtype="int64"))
    return operator("maximum")(operator("ge")(n, powers).sum(dtype="int64"), 1)
