"""Reductions of which each thread has several outputs, so that it reads some operands once for all.

Either all outputs of a short last kept axis, as of colours with one weight: then neighbouring
threads read neighbouring elements. Or some of an axis along which operands repeat, as of the
distances of pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from symdnn.gpu.codegen.cuda_source import CTYPES
from symdnn.gpu.codegen.launches import View, Views
from symdnn.gpu.codegen.reduce_form import BLOCK_THREADS, Finish, Reducer, Sweep
from symdnn.ops.core.scalar import Builder, ScalarProgram

__all__ = ["Several", "several_outputs"]

#: The most operands and instructions, the most states of a short axis, and its fewest elements.
_MOST_INPUTS, _MOST_STEPS, _MOST_STATES, _LEAST_ELEMENTS = 16, 200, 4, 8
#: Outputs of a thread along an axis where operands repeat, and the elements of all outputs from
#: which on there are threads enough.
_TILES, _LEAST_WORK = (8, 4, 2), 4 * 528 * BLOCK_THREADS


@dataclass(frozen=True)
class Several:
    """A reduction with more states and fewer outputs, each of which finishes several."""

    program: ScalarProgram
    reducers: tuple[Reducer, ...]
    axes: tuple[int, ...]
    views: Views
    shape: tuple[int, ...]
    finish: Finish


def several_outputs(
    program: ScalarProgram, reducers: tuple[Reducer, ...], axes: Sequence[int], views: Views,
    shape: tuple[int, ...], sweep: Sweep | None, by_rows: bool,
) -> Several | None:  # fmt: skip
    """The reduction, which would have ``sweep``, with several outputs for a thread; None where
    that is of no use."""
    found = None
    if sweep is None or sweep.width == 1:
        found = _short_line(program, reducers, axes, views, shape)
    if found is None and (by_rows if sweep is None else not sweep.across):
        found = _tiled(program, reducers, axes, views, shape)
    return found


def _short_line(
    program: ScalarProgram, reducers: tuple[Reducer, ...], axes: Sequence[int], views: Views,
    shape: tuple[int, ...],
) -> Several | None:  # fmt: skip
    """A thread has all outputs of the last kept axis, if that is short and near in memory.

    An operand without that axis is then read once for all of them.
    """
    last = max((d for d, n in enumerate(shape) if d not in axes and n > 1), default=-1)
    if last < 0 or prod(shape[a] for a in axes) < _LEAST_ELEMENTS:
        return None
    near = [
        abs(v.steps[last]) < abs(v.steps[a])
        for v in views for a in axes if v.steps[last] and v.steps[a] and shape[a] > 1
    ]  # fmt: skip
    near += [any(not v.steps[last] and any(v.steps[a] for a in axes) for v in views)]
    count = shape[last]
    few = count * len(reducers) <= _MOST_STATES and _fits(program, views, last, count)
    return _spread(program, reducers, axes, views, shape, last, count) if (
        few and len(near) > 1 and all(near)
    ) else None  # fmt: skip


def _tiled(
    program: ScalarProgram, reducers: tuple[Reducer, ...], axes: Sequence[int], views: Views,
    shape: tuple[int, ...],
) -> Several | None:  # fmt: skip
    """A thread has some outputs of an axis before the last kept one.

    Operands that repeat along that axis, but not along the last one, are read once for all of them.
    """
    kept = [d for d, n in enumerate(shape) if d not in axes and n > 1]
    inside = [any(v.steps[a] for a in axes) for v in views]
    for axis in kept[:-1]:
        repeats = [not v.steps[axis] for v in views]
        shared = any(i and r and v.steps[kept[-1]] for i, r, v in zip(inside, repeats, views))
        if not shared or all(repeats):
            continue
        for count in _TILES:
            enough = prod(shape) // count >= _LEAST_WORK
            few = count * len(reducers) <= max(_TILES) and _fits(program, views, axis, count)
            if shape[axis] % count == 0 and enough and few:
                return _spread(program, reducers, axes, views, shape, axis, count)
    return None


def _fits(program: ScalarProgram, views: Views, axis: int, count: int) -> bool:
    """Whether one kernel may have so many operands and instructions."""
    inputs = sum(count if v.steps[axis] else 1 for v in views)
    return inputs <= _MOST_INPUTS and count * len(program.body) <= _MOST_STEPS


def _spread(
    program: ScalarProgram, reducers: tuple[Reducer, ...], axes: Sequence[int], views: Views,
    shape: tuple[int, ...], axis: int, count: int,
) -> Several:  # fmt: skip
    """Each thread has ``count`` neighbouring outputs along a kept axis."""
    given: list[View] = []
    places: list[list[int]] = [[] for _ in range(count)]
    for v in views:
        for k in range(count):
            if k == 0 or v.steps[axis]:
                given.append(_part(v, axis, k, count))
            places[k].append(len(given) - 1)
    b = Builder([v.dtype for v in given])
    results = [v for own in places for v in b.inline(program, [b.input(i) for i in own])]
    inner = prod(n for d, n in enumerate(shape) if d > axis and d not in axes)
    lines = [
        f"p.y{i}[(at / {inner} * {count} + {k}) * {inner} + at % {inner}] = "
        f"convert<{CTYPES[r.out]}>(s.s{k * len(reducers) + i}.result());"
        for k in range(count) for i, r in enumerate(reducers)
    ]  # fmt: skip
    finish = Finish(tuple(lines), (), 0, tuple(r.out for r in reducers))
    rest = (*shape[:axis], shape[axis] // count, *shape[axis + 1 :])
    return Several(b.program(results), reducers * count, tuple(axes), given, rest, finish)


def _part(v: View, axis: int, first: int, step: int) -> View:
    """Each element ``step`` behind the one before, from ``first`` on; strides of 0 stay."""
    found = v[(*[slice(None)] * axis, slice(first, None, step))]
    own = v.strides[axis] * step
    return replace(found, strides=(*v.strides[:axis], own, *v.strides[axis + 1 :]))
