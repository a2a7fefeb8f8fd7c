"""Shapes and strides of operands that a loop reads together, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def merged(
    shape: Sequence[int], steps: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Sizes and strides with neighbouring dimensions merged if all operands' strides permit it.

    ``steps`` are the strides of each operand, in one unit. Dimensions of size 1 are dropped; one
    dimension always stays.
    """
    sizes: list[int] = []
    found: list[list[int]] = [[] for _ in steps]
    for d, n in enumerate(shape):
        if n == 1:
            continue
        if sizes and all(f[-1] == s[d] * n for f, s in zip(found, steps)):
            sizes[-1] *= n
            for f, s in zip(found, steps):
                f[-1] = s[d]
        else:
            sizes.append(n)
            for f, s in zip(found, steps):
                f.append(s[d])
    if not sizes:
        return (1,), [(1,) for _ in steps]
    return tuple(sizes), [tuple(f) for f in found]


def reshaped(
    shape: Sequence[int], strides: Sequence[int], new: Sequence[int]
) -> tuple[int, ...] | None:
    """Strides with which the same memory, in C order, has the shape ``new``.

    None where elements would have to be copied. Both shapes have as many elements, and some.

    >>> reshaped((8, 6), (24, 1), (4, 2, 3, 2)), reshaped((8, 6), (24, 1), (48,))
    ((48, 24, 2, 1), None)
    """
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    found = [1] * len(new)
    at = 0
    while old:
        end, size = at, 1
        taken = [old.pop(0)]
        total = taken[0][0]
        while size != total:
            if size < total:
                size *= new[end]
                end += 1
            else:
                taken.append(old.pop(0))
                total *= taken[-1][0]
        if any(a != n * b for (_, a), (n, b) in pairwise(taken)):
            return None
        step = taken[-1][1]
        for d in reversed(range(at, end)):
            found[d], step = step, step * new[d]
        at = end
    return tuple(found)
