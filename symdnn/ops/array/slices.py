"""Arithmetic on index patterns: their form in an op, and the lengths of the results.

A pattern is a tuple with one entry per dimension: an int, a slice ``(start, stop, step)`` of ints
and None, ``"a"`` (an index array) or ``"x"`` (a new dimension). An int or a bound that is symbolic
is ``"?"``; its value is an input of the op, in the order of the pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from symdnn.errors import IndexOutOfRange
from symdnn.graph.dims import (
    Dim,
    at_least_zero,
    ceil_div,
    dim_max,
    dim_min,
    dim_where,
    is_size,
    known,
)
from symdnn.graph.op import Op
from symdnn.graph.variable import Constant, Variable
from symdnn.ops.elementwise.arithmetic import Add, Cast

Entry = Any  # int | "?" | (start, stop, step) | "a" | "x"
IndexPattern = tuple[Entry, ...]
FULL = (None, None, None)


def is_slice(entry: Entry) -> bool:
    """Whether an entry is a slice."""
    return isinstance(entry, tuple)


def shape_has_end(entry: Entry) -> bool:
    """Whether only the end of a slice is symbolic, so that its length tells what it reads."""
    if not is_slice(entry) or entry[1] != "?" or entry[0] == "?" or entry[2] == "?":
        return False
    return entry[2] is None or bool(entry[2] > 0)


def symbolic_count(pattern: IndexPattern) -> int:
    """The number of symbolic ints and bounds."""
    return sum(e.count("?") if isinstance(e, tuple) else e == "?" for e in pattern)


def fill_in(pattern: IndexPattern, values: Iterable[Any]) -> list[Entry]:
    """The pattern with the symbolic entries replaced by ``values``, in order."""
    rest = iter(values)
    return [
        tuple(_given(b, rest) for b in e) if isinstance(e, tuple) else _given(e, rest)
        for e in pattern
    ]


def _given(bound: object, rest: Iterator[Any]) -> Any:
    return next(rest) if isinstance(bound, str) and bound == "?" else bound


def as_python(entries: Sequence[Entry]) -> tuple[Any, ...]:
    """Filled entries as NumPy's index: ints and slices (no arrays)."""
    return tuple(
        slice(*e) if isinstance(e, tuple) else None if e == "x" else int(e) for e in entries
    )


def part_function(pattern: IndexPattern, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """``part(x, *values)``: NumPy's view of ``x`` at the pattern filled with values.

    It is generated code for small views. Where an index is wrong, ``otherwise`` is called, too.
    """
    names = [f"i{k}" for k in range(symbolic_count(pattern))]
    parts = [
        ":".join("" if b is None else str(b) for b in e) if isinstance(e, tuple)
        else "None" if e == "x" else f"int({e})"
        for e in fill_in(pattern, names)
    ]  # fmt: skip
    given = ", ".join(("x", *names))
    lines = [f"def part({given}):", f" try: return x[{', '.join((*parts, '...'))}]",
             f" except IndexError: return otherwise({given})"]  # fmt: skip
    # The text consists of numbers and the words above; it has nothing from the user.
    scope: dict[str, Any] = {"otherwise": otherwise}
    exec(compile("\n".join(lines), "<index>", "exec"), scope)
    made: Callable[..., Any] = scope["part"]
    return made


def check_index(op: Op, index: Dim, size: Dim | None, axis: int) -> None:
    """Raise :class:`IndexOutOfRange` when a known index lies outside of a known size."""
    i, n = known(index), None if size is None else known(size)
    if i is not None and n is not None and not -n <= i < n:
        raise IndexOutOfRange(f"{op}: index {i} is out of range for axis {axis} of size {n}")


def static_length(size: int | None, entry: Any) -> int | None:
    """The static length of a slice of a dimension of static ``size``."""
    if entry == FULL:
        return size
    if size is None or "?" in entry:
        return None
    return len(range(*slice(*entry).indices(size)))


def is_short(start: Any, stop: Any, step: Any) -> bool:
    """Whether a slice has at most one element by its form: ``:1``, ``-1:``, ``i : i + 1``.

    One that has surely none, such as ``2:2``, is another matter.
    """
    if isinstance(step, Variable) or (step is not None and step < 0):
        return False
    if isinstance(start, Variable) or isinstance(stop, Variable):
        return _is_next(stop, start)
    if stop is None:
        return bool(start == -1)
    first = start or 0
    return (first < 0) == (stop < 0) and len(range(first, stop, step or 1)) == 1


def _is_next(v: object, before: object) -> bool:
    """Whether a bound was written as the other one plus 1."""
    node = v.owner if isinstance(v, Variable) else None
    if node is None or not isinstance(node.op, Add) or len(node.inputs) != 2:
        return False
    plain = [_uncast(u) for u in node.inputs]
    ones = [u for u in plain if isinstance(u, Constant) and u.data.size == 1 and u.data == 1]
    return len(ones) == 1 and any(before is u for u in (*node.inputs, *plain))


def _uncast(v: Variable) -> Variable:
    return v.owner.inputs[0] if v.owner is not None and isinstance(v.owner.op, Cast) else v


def slice_length(size: Dim, start: Any, stop: Any, step: Any) -> Dim:
    """The length of ``slice(start, stop, step)`` of a dimension, clamped as Python does.

    Bounds are ints, integer scalars or None. Ints give an int; static knowledge about scalars
    simplifies the expression.
    """
    numbers = [None if b is None else known(b) for b in (size, start, stop, step)]
    given = [b for b in (size, start, stop, step) if b is not None]
    if all(known(b) is not None for b in given):
        return len(range(*slice(*numbers[1:]).indices(int(numbers[0] or 0))))
    stride = 1 if step is None else step
    sign = known(stride)
    if sign is None:
        forward = _forward(size, start, stop, stride)
        return dim_where(stride > 0, forward, _backward(size, start, stop, -1 * stride))
    if sign > 0:
        return _forward(size, start, stop, sign)
    return _backward(size, start, stop, -sign)


def _forward(size: Dim, start: Dim | None, stop: Dim | None, step: Dim) -> Dim:
    first = 0 if start is None else start
    if known(first) == 0 and stop is None:
        return _steps(size, step)
    if stop is None and (k := known(first)) is not None and k < 0:
        return _steps(dim_min(size, -k), step)  # the last k elements
    # The start needs no upper clamp: after the end the difference is negative anyway.
    low = at_least_zero(_wrap(first, size))
    high = size if stop is None else _wrap(stop, size)
    if not (stop is None or _is_negative(stop)):
        high = dim_min(high, size)
    if known(low) == 0 and is_size(high):
        return _steps(high, step)
    if known(low) == 0 and stop is not None and is_size(stop):
        return _steps(high, step)  # the minimum of two sizes
    return _steps(dim_max(high if known(low) == 0 else high - low, 0), step)


def _backward(size: Dim, start: Dim | None, stop: Dim | None, step: Dim) -> Dim:
    if start is None and stop is None:
        return _steps(size, step)
    last = size - 1
    high = last if start is None else dim_min(_wrap(start, size), last)
    low: Dim = -1 if stop is None else dim_max(_wrap(stop, size), -1)
    return _steps(dim_max(high - low, 0), step)


def _steps(length: Dim, step: Dim) -> Dim:
    return length if known(step) == 1 else ceil_div(length, step)


def _is_negative(bound: Dim) -> bool:
    number = known(bound)
    return number is not None and number < 0


def _wrap(bound: Dim, size: Dim) -> Dim:
    """A bound counted from the start."""
    if is_size(bound):
        return bound
    if _is_negative(bound):
        return size + known(bound)  # type: ignore[operator]
    return dim_where(bound < 0, bound + size, bound)


def pattern_text(pattern: IndexPattern) -> str:
    """The pattern as written between brackets: ``0, 1:?, ::2``; an index array is ``a``."""
    names = {"a": "a", "x": "None", "?": "?"}
    return ", ".join(
        _slice_text(e) if isinstance(e, tuple) else names.get(e, str(e)) for e in pattern
    )


def _slice_text(entry: tuple[Any, ...]) -> str:
    start, stop, step = ("" if b is None else str(b) for b in entry)
    return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"
