"""Shapes and strides of operands that a loop reads together, element by element."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["merged"]


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
