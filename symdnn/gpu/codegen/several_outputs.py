"""Reductions of which each thread has several outputs, so that it reads some operands once for all.

Either all outputs of a short last kept axis, as of colours: then neighbouring threads read
neighbouring elements. Or some of an axis along which operands repeat, as of the distances of pairs.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import NamedTuple

from symdnn.gpu.codegen.launches import View, Views
from symdnn.gpu.codegen.reduce_form import BLOCK_THREADS, Finish, Reducer, Sweep
from symdnn.ops.core.scalar import Builder, ScalarProgram

__all__ = ["Several", "several_outputs"]

#: The most operands and instructions, the most states of a short axis, and its fewest elements.
_MOST_INPUTS, _MOST_STEPS, _MOST_STATES, _LEAST_ELEMENTS = 16, 200, 4, 8
#: Outputs of a thread along an axis where operands repeat, and the elements of all outputs from
#: which on there are threads enough.
_TILES, _LEAST_WORK = (8, 4, 2), 4 * 528 * BLOCK_THREADS


class Several(NamedTuple):
    """A reduction: of the results of a program, over ``axes`` of ``shape``, to which views have
    been broadcast. ``finish`` stores several outputs, or is None."""

    program: ScalarProgram
    reducers: tuple[Reducer, ...]
    axes: tuple[int, ...]
    views: Views
    shape: tuple[int, ...]
    finish: Finish | None = None


def several_outputs(
    of: Several, numbers: int, sweep: Sweep | None, by_rows: bool
) -> Several | None:
    """The reduction, which would have ``sweep``, with more states and fewer outputs, each of which
    finishes several; None where that is of no use."""
    found = None
    if sweep is None or sweep.width == 1:
        found = _short_line(of)
    if found is None and (by_rows if sweep is None else not sweep.across):
        found = _tiled(of)
    return None if found is None else _spread(of, numbers, *found)


def _short_line(of: Several) -> tuple[int, int] | None:
    """The last kept axis and its size, if that is short and near in memory."""
    last = max((d for d, n in enumerate(of.shape) if d not in of.axes and n > 1), default=-1)
    if last < 0 or prod(of.shape[a] for a in of.axes) < _LEAST_ELEMENTS:
        return None
    near = [
        abs(v.steps[last]) < abs(v.steps[a])
        for v in of.views for a in of.axes if v.steps[last] and v.steps[a] and of.shape[a] > 1
    ]  # fmt: skip
    count = of.shape[last]
    few = count * len(of.reducers) <= _MOST_STATES and _fits(of, last, count)
    return (last, count) if few and near and all(near) else None


def _tiled(of: Several) -> tuple[int, int] | None:
    """An axis before the last kept one, and how many of its outputs a thread should have.

    Operands that repeat along that axis, but not along the last one, are read once for all of them.
    """
    kept = [d for d, n in enumerate(of.shape) if d not in of.axes and n > 1]
    inside = [any(v.steps[a] for a in of.axes) for v in of.views]
    for axis in kept[:-1]:
        repeats = [not v.steps[axis] for v in of.views]
        shared = any(i and r and v.steps[kept[-1]] for i, r, v in zip(inside, repeats, of.views))
        if not shared or all(repeats):
            continue
        for count in _TILES:
            enough = prod(of.shape) // count >= _LEAST_WORK
            few = count * len(of.reducers) <= max(_TILES) and _fits(of, axis, count)
            if of.shape[axis] % count == 0 and enough and few:
                return axis, count
    return None


def _fits(of: Several, axis: int, count: int) -> bool:
    """Whether one kernel may have so many operands and instructions."""
    inputs = sum(count if v.steps[axis] else 1 for v in of.views)
    return inputs <= _MOST_INPUTS and count * len(of.program.body) <= _MOST_STEPS


def _spread(of: Several, numbers: int, axis: int, count: int) -> Several:
    """Each thread has ``count`` neighbouring outputs along a kept axis."""
    given: list[View] = []
    places: list[list[int]] = [[] for _ in range(count)]
    for v in of.views:
        for k in range(count):
            if k == 0 or v.steps[axis]:
                given.append(_part(v, axis, k, count))
            places[k].append(len(given) - 1)
    b = Builder([v.dtype for v in given])
    results = [v for own in places for v in b.inline(of.program, [b.input(i) for i in own])]
    inner = prod(n for d, n in enumerate(of.shape) if d > axis and d not in of.axes)
    lines = [
        f"p.y{i}[(at / {inner} * {count} + {k}) * {inner} + at % {inner}] = "
        f"{r.stored(f's.s{k * len(of.reducers) + i}')};"
        for k in range(count) for i, r in enumerate(of.reducers)
    ]  # fmt: skip
    finish = Finish(tuple(lines), (), numbers, tuple(r.out for r in of.reducers))
    shape = (*of.shape[:axis], of.shape[axis] // count, *of.shape[axis + 1 :])
    return Several(b.program(results), of.reducers * count, of.axes, given, shape, finish)


def _part(v: View, axis: int, first: int, step: int) -> View:
    """Each element ``step`` behind the one before, from ``first`` on; strides of 0 stay."""
    found = v[(*[slice(None)] * axis, slice(first, None, step))]
    own = v.strides[axis] * step
    return replace(found, strides=(*v.strides[:axis], own, *v.strides[axis + 1 :]))
