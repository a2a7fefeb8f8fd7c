"""Monoids: what a reduction or a scan keeps while it goes, as scalar programs.

A state is one or several numbers. ``step`` takes in one more element, ``combine`` two states of
neighbouring stretches, so a schedule may split an axis anywhere. Both are programs of
:mod:`symdnn.ops.core.scalar`, so each target prints them as it prints elementwise code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.core.scalar import Builder, Scalar, ScalarProgram

#: The most elements of a brief stretch.
BRIEF = 1 << 13
#: What sums of so many integers fit, of which a vector has more than of 64 bits.
_BRIEF_SUMS = {
    "bool": "int16", "int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "int32",
}  # fmt: skip


@dataclass(frozen=True)
class Monoid:
    """How elements are folded.

    ``start()`` gives the state of no elements, ``step(*state, *elements, number)`` the state after
    one more, whose number along the folded axes is larger than those before.
    ``combine(*state, *state)`` is the state of two stretches: of any two sets of elements, or if it
    is ``ordered`` of neighbours, the earlier one first. ``leave(*state)`` gives the results.
    """

    name: str
    start: ScalarProgram
    step: ScalarProgram
    combine: ScalarProgram
    leave: ScalarProgram
    ordered: bool = False
    #: A monoid for a few elements at a time, faster and less exact: its result is a state of this.
    few: Monoid | None = None
    #: A monoid for up to :data:`BRIEF` elements, as exact; its result is a state of this.
    brief: Monoid | None = None
    #: The monoid of the value alone, where the state is one and the number of its first element.
    sought: Monoid | None = None

    @property
    def state(self) -> tuple[str, ...]:
        """The dtypes of the state."""
        return self.start.output_dtypes

    @property
    def elements(self) -> tuple[str, ...]:
        """The dtypes of what a step takes in: one element, or one of each operand."""
        return self.step.inputs[len(self.state) : -1]

    @property
    def number(self) -> str:
        """The dtype of an element's number."""
        return self.step.inputs[-1]

    @property
    def programs(self) -> tuple[ScalarProgram, ...]:
        """All its programs, for a printer that must have code for each instruction."""
        return self.start, self.step, self.combine, self.leave

    def stepwise(self) -> Monoid:
        """The monoid without numbers that only ``combine`` needs, where all is done step by step.

        Its ``combine`` is not to be used.
        """
        needed = set(reads_of(self.leave, self.leave.outputs))
        count = len(self.state)
        while True:
            more = {
                v for v in reads_of(self.step, [self.step.outputs[i] for i in needed]) if v < count
            }
            if more <= needed:
                break
            needed |= more
        kept = sorted(needed)
        if len(kept) == count:
            return self
        inputs = [*kept, *range(count, len(self.step.inputs))]
        step = picked(self.step, inputs, kept)
        return replace(
            self, start=picked(self.start, [], kept), step=step,
            leave=picked(self.leave, kept, range(len(self.leave.outputs))),
        )  # fmt: skip


def reads_of(program: ScalarProgram, values: Sequence[int]) -> set[int]:
    """The inputs that these values of a program depend on."""
    count, found, rest = len(program.inputs), set[int](), list(values)
    while rest:
        v = rest.pop()
        if v not in found:
            found.add(v)
            rest += program.body[v - count].args if v >= count else ()
    return {v for v in found if v < count}


def picked(program: ScalarProgram, inputs: Sequence[int], outputs: Sequence[int]) -> ScalarProgram:
    """The program with some of its inputs, which are all that these outputs depend on."""
    b = Builder([program.inputs[i] for i in inputs])
    given = {i: b.input(n) for n, i in enumerate(inputs)}
    zero = [given.get(i) or b.const(0, d) for i, d in enumerate(program.inputs)]
    results = b.inline(program, zero)
    return b.program([results[i] for i in outputs])


def lowest(dtype: str, largest: bool = True) -> Any:
    """The number that no other is below; with ``largest`` False the one that none is above."""
    kind = TensorType(dtype)
    if kind.is_float:
        return -np.inf if largest else np.inf
    if dtype == "bool":
        return not largest
    limits = np.iinfo(numpy_dtype(dtype))
    return limits.min if largest else limits.max


def _constants(*pairs: tuple[Any, str]) -> ScalarProgram:
    b = Builder(())
    return b.program([b.const(value, dtype) for value, dtype in pairs])


def _leave(state: str, out: str, through: str = "") -> ScalarProgram:
    b = Builder([state])
    x = b.input(0)
    return b.program([b.cast(b.cast(x, through) if through else x, out)])


@lru_cache(maxsize=256)
def total(
    kind: str, element: str, work: str, out: str, through: str = "", number: str = "int64",
    first: str = "",
) -> Monoid:  # fmt: skip
    """The sum (``kind`` ``"add"``) or product (``"mul"``), in ``work``; the result as ``out``.

    ``through`` is a dtype to which the total is rounded before. A few elements may be added in the
    dtype ``first`` before.
    """
    begin = {"add": -0.0 if TensorType(work).is_float else 0, "mul": 1}[kind]
    s = Builder([work, element, number])
    step = s.program([s.call(kind, s.input(0), s.cast(s.input(1), work))])
    c = Builder([work, work])
    combine = c.program([c.call(kind, c.input(0), c.input(1))])
    name = {"add": "sum", "mul": "prod"}[kind]
    few = total(kind, element, first, work, number=number) if first else None
    narrow = _BRIEF_SUMS.get(element, "") if kind == "add" and work in ("int64", "uint64") else ""
    brief = total(kind, element, narrow, work, number=number) if narrow else None
    start, leave = _constants((begin, work)), _leave(work, out, through)
    return Monoid(name, start, step, combine, leave, few=few, brief=brief)


@lru_cache(maxsize=256)
def extreme(kind: str, element: str, work: str, out: str, number: str = "int64") -> Monoid:
    """The largest (``kind`` ``"max"``) or smallest (``"min"``) element; NaN where one is."""
    s = Builder([work, element, number])
    step = s.program([s.call(kind, s.input(0), s.cast(s.input(1), work))])
    c = Builder([work, work])
    combine = c.program([c.call(kind, c.input(0), c.input(1))])
    start = _constants((lowest(work, kind == "max"), work))
    return Monoid(kind, start, step, combine, _leave(work, out))


@lru_cache(maxsize=64)
def last_number(element: str, work: str, out: str) -> Monoid:
    """The last element that is no NaN; NaN before the first one."""

    def later(b: Builder, y: Scalar, x: Scalar) -> Scalar:
        return b.select(b.call("eq", x, x), x, y)

    s, c = Builder([work, element, "int64"]), Builder([work, work])
    step = s.program([later(s, s.input(0), s.cast(s.input(1), work))])
    combine = c.program([later(c, c.input(0), c.input(1))])
    start = _constants((float("nan"), work))
    return Monoid("last", start, step, combine, _leave(work, out), ordered=True)


@lru_cache(maxsize=64)
def truth(kind: str, element: str, number: str = "int64") -> Monoid:
    """Whether some (``kind`` ``"or"``) or every (``"and"``) element is not zero."""
    s = Builder(["bool", element, number])
    step = s.program([s.call(kind, s.input(0), s.cast(s.input(1), "bool"))])
    c = Builder(["bool", "bool"])
    combine = c.program([c.call(kind, c.input(0), c.input(1))])
    start = _constants((kind == "and", "bool"))
    return Monoid({"or": "any", "and": "all"}[kind], start, step, combine, _leave("bool", "bool"))


def beats(b: Builder, y: Scalar, x: Scalar, largest: bool) -> Scalar:
    """Whether ``y`` comes before ``x`` in the order of extremes: a NaN before all, ties never."""
    not_after = b.call("le", y, x) if largest else b.call("le", x, y)
    better = b.call("not", not_after)
    if not TensorType(x.dtype).is_float:
        return better
    return b.call("and", better, b.call("eq", x, x))


def ranks_before(b: Builder, y: Scalar, x: Scalar, largest: bool) -> Scalar:
    """Whether ``y`` comes before ``x`` in a sorted line: a NaN is larger than all, ties never."""
    if largest:
        return beats(b, y, x, True)
    better = b.call("not", b.call("le", x, y))
    return b.call("and", better, b.call("eq", y, y)) if TensorType(x.dtype).is_float else better


@lru_cache(maxsize=256)
def arg_extreme(
    largest: bool,
    element: str,
    work: str,
    out: str = "int64",
    number: str = "int64",
    value: str = "",
) -> Monoid:
    """The number of the largest (or smallest) element: of equal ones the first, the first NaN.

    It begins with element 0, of the lowest value: if nothing is above that, 0 is the answer. With
    ``value``, a dtype, the element itself is the first result.
    """
    s = Builder([work, number, element, number])
    best, at, x, k = s.input(0), s.input(1), s.cast(s.input(2), work), s.input(3)
    take = beats(s, x, best, largest)
    step = s.program([s.select(take, x, best), s.select(take, k, at)])
    c = Builder([work, number, work, number])
    a, i, b, j = (c.input(n) for n in range(4))
    tie = c.call("eq", a, b)
    if TensorType(work).is_float:
        tie = c.call("or", tie, c.call("and", c.call("ne", a, a), c.call("ne", b, b)))
    other = c.call("or", beats(c, b, a, largest), c.call("and", tie, c.call("lt", j, i)))
    combine = c.program([c.select(other, b, a), c.select(other, j, i)])
    leave = Builder([work, number])
    results = [leave.cast(leave.input(0), value)] if value else []
    result = leave.program([*results, leave.cast(leave.input(1), out)])
    start = _constants((lowest(work, largest), work), (0, number))
    kind, name = ("max", "argmax") if largest else ("min", "argmin")
    sought = None if work == "bool" else extreme(kind, element, work, work, number)
    return Monoid(name, start, step, combine, result, sought=sought)


@lru_cache(maxsize=64)
def log_sum_exp(element: str, work: str, out: str, number: str = "int64") -> Monoid:
    """``log(sum(exp(x)))`` in one pass: the largest so far, and the sum relative to it."""

    def merged(b: Builder, top: Scalar, sum_: Scalar, x: Scalar, more: Scalar) -> list[Scalar]:
        most, least = b.call("max", top, x), b.call("min", top, x)
        finite = b.call("isfinite", most)
        base = b.select(finite, most, 0)  # inf - inf would be NaN
        # Of the two factors exp(top - base) and exp(x - base) one is exp(0), but for infinities.
        low = b.call("exp", least - base)
        high = b.select(finite, 1, b.select(b.call("eq", most, b.const(-np.inf, work)), 0, most))
        later = b.call("lt", top, x)
        first, second = b.select(later, low, high), b.select(later, high, low)
        return [most, first * sum_ + second * more]

    s = Builder([work, work, element, number])
    x = s.cast(s.input(2), work)
    step = s.program(merged(s, s.input(0), s.input(1), x, s.const(1, work)))
    c = Builder([work] * 4)
    combine = c.program(merged(c, c.input(0), c.input(1), c.input(2), c.input(3)))
    leave = Builder([work, work])
    top, sum_ = leave.input(0), leave.input(1)
    base = leave.select(leave.call("isfinite", top), top, 0)
    result = leave.program([leave.cast(base + leave.call("log", sum_), out)])
    return Monoid("logsumexp", _constants((-np.inf, work), (0, work)), step, combine, result)


@lru_cache(maxsize=64)
def moments(element: str, work: str, out: str, number: str = "int64") -> Monoid:
    """Mean and variance (of the population) in one pass, after Welford; NaN of no elements."""
    s = Builder([work, work, work, element, number])
    count, mean, square, x = s.input(0) + 1, s.input(1), s.input(2), s.cast(s.input(3), work)
    apart = x - mean
    centre = mean + apart / count
    step = s.program([count, centre, square + apart * (x - centre)])
    c = Builder([work] * 6)
    n, mean, square, m, mean2, square2 = (c.input(i) for i in range(6))
    both = n + m
    share = c.select(c.call("eq", both, c.const(0, work)), both, m / both)
    apart = mean2 - mean
    combine = c.program([both, mean + apart * share, square + square2 + apart * apart * share * n])
    leave = Builder([work] * 3)
    n, mean, square = (leave.input(i) for i in range(3))
    nothing = leave.call("eq", n, leave.const(0, work))
    mean = leave.select(nothing, np.nan, mean)
    result = leave.program([leave.cast(mean, out), leave.cast(square / n, out)])
    return Monoid("moments", _constants(*[(0, work)] * 3), step, combine, result)


@lru_cache(maxsize=64)
def recurrence(element: str, work: str, out: str, number: str = "int64") -> Monoid:
    """``s = a * s + b`` from 0, of the elements a and b; the state of a stretch is such a pair."""
    s = Builder([work, work, element, element, number])
    a, b = s.cast(s.input(2), work), s.cast(s.input(3), work)
    step = s.program([s.input(0) * a, a * s.input(1) + b])
    c = Builder([work] * 4)
    combine = c.program([c.input(0) * c.input(2), c.input(2) * c.input(1) + c.input(3)])
    leave = Builder([work, work])
    result = leave.program([leave.cast(leave.input(1), out)])
    start = _constants((1, work), (0, work))
    return Monoid("recurrence", start, step, combine, result, ordered=True)
