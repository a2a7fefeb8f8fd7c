"""Winograd's one-dimensional transformations at six points and their transposes, as LLVM IR.

The interpolation points are 0, infinity and the square roots of 1/2 and 2 with both signs. Products
of these points are small numbers, so that errors are about twice those of plain sums. The usual
points 0, 1, -1, 2, -2 have errors three times as large.

Forward, pixels and weights become 6 values each, and their 6 products become results. A gradient
takes the transposes: gradients of results become 6 values, which become pixels or weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import sqrt

from symdnn.cpu.ir.builder import Builder

#: The positive points, each with the product of its differences from all other points.
_POINTS = ((sqrt(0.5), -1.5), (sqrt(2.0), 6.0))


Way = Callable[[Sequence[str]], list[str]]


def both_directions(
    size: int, way: Way, value: Callable[[int, int], str]
) -> Iterator[tuple[int, int, str]]:
    """(row, column, transformed value) of ``size`` x ``size`` values, by a transformation ``way``.

    All columns are transformed first, then one row at a time as the iterator advances.
    """
    columns = [way([value(i, j) for i in range(size)]) for j in range(size)]
    return _of_columns(columns, way)


def _of_columns(columns: list[list[str]], way: Way) -> Iterator[tuple[int, int, str]]:
    for i in range(len(columns[0])):
        for j, made in enumerate(way([c[i] for c in columns])):
            yield i, j, made


# -- forward --------------------------------------------------------------------------------------


def transform_pixels(s: Builder, d: Sequence[str]) -> list[str]:
    """The 6 values of 6 pixels."""
    first = s.scale_add(-2.5, d[2], s.add(d[4], d[0]))
    found = [first]
    for point, other in ((_POINTS[0][0], 2.0), (_POINTS[1][0], 0.5)):
        even, odd = s.scale_add(-other, d[2], d[4]), s.scale_add(-other, d[1], d[3])
        found += [s.scale_add(point, odd, even), s.scale_add(-point, odd, even)]
    return [*found, s.scale_add(-2.5, d[3], s.add(d[5], d[1]))]


def transform_filter(s: Builder, g: Sequence[str]) -> list[str]:
    """The 6 values of r weights."""
    return _values(s, g, lambda point, norm, i: point**i / norm)


def inverse_transform(s: Builder, p: Sequence[str], m: int) -> list[str]:
    """The m results of 6 products."""
    sums = s.add(p[1], p[2]), s.add(p[3], p[4])
    differences = s.sub(p[1], p[2]), s.sub(p[3], p[4])
    found = []
    for i in range(m):
        a, b = differences if i % 2 else sums
        value = (
            s.add(a, b)
            if i == 0
            else s.scale_add(_POINTS[1][0] ** i, b, s.scaled(a, _POINTS[0][0] ** i))
        )
        if i == 0:
            value = s.add(value, p[0])
        found.append(s.add(value, p[5]) if i == m - 1 else value)
    return found


# -- transposes -----------------------------------------------------------------------------------


def transform_result_gradient(s: Builder, y: Sequence[str]) -> list[str]:
    """The 6 values of the gradients of m results."""
    return _values(s, y, lambda point, _, i: point**i)


def pixel_gradient(s: Builder, t: Sequence[str]) -> list[str]:
    """The gradients of 6 pixels by 6 values."""
    (a, _), (b, _) = _POINTS
    sums = s.add(t[1], t[2]), s.add(t[3], t[4])
    differences = s.sub(t[1], t[2]), s.sub(t[3], t[4])
    first = s.scale_add(-2.0 * a, differences[0], s.scale_add(-0.5 * b, differences[1], t[5]))
    second = s.scale_add(-2.5, t[0], s.scale_add(-2.0, sums[0], s.scaled(sums[1], -0.5)))
    third = s.scale_add(a, differences[0], s.scale_add(b, differences[1], s.scaled(t[5], -2.5)))
    return [t[0], first, second, third, s.add(t[0], s.add(*sums)), t[5]]


def filter_gradient(s: Builder, q: Sequence[str], r: int) -> list[str]:
    """The gradients of r weights by 6 sums."""
    halves = [(s.add(q[i], q[i + 1]), s.sub(q[i], q[i + 1])) for i in (1, 3)]
    found = []
    for i in range(r):
        value = q[0] if i == 0 else ""
        for (point, norm), pair in zip(_POINTS, halves, strict=True):
            factor = point**i / norm
            value = (
                s.scale_add(factor, pair[i % 2], value) if value else s.scaled(pair[i % 2], factor)
            )
        found.append(s.add(value, q[5]) if i == r - 1 else value)
    return found


def _values(
    s: Builder, g: Sequence[str], factor: Callable[[float, float, int], float]
) -> list[str]:
    """Sums of ``factor(point, norm, i) * g[i]`` at all points: a polynomial's values."""
    found = [g[0]]
    for point, norm in _POINTS:
        halves = []
        for first in (0, 1):
            value = s.scaled(g[first], factor(point, norm, first))
            for i in range(first + 2, len(g), 2):
                value = s.scale_add(factor(point, norm, i), g[i], value)
            halves.append(value)
        found += [s.add(*halves), s.sub(*halves)]
    return [*found, g[-1]]
