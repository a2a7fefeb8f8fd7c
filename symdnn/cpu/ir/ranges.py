"""Between which numbers the integers of a scalar program are, by its dtypes and constants.

So a remainder by 1000 of a sum of two bytes needs no code for negative numbers, and a quotient of
small numbers of 64 bits is one of 32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from symdnn.graph.type import TensorType
from symdnn.ops.core.scalar import Instruction, ScalarProgram

__all__ = ["Range", "value_ranges"]

#: The least and the largest number; no range of a float.
Range = tuple[int, int]


def value_ranges(program: ScalarProgram) -> list[Range | None]:
    """The range of each value of a program."""
    found = [_of_dtype(dtype) for dtype in program.inputs]
    for step in program.body:
        whole = _of_dtype(step.dtype)
        part = None if whole is None else _of_step(step, [found[a] for a in step.args])
        inside = part is not None and whole is not None and _contains(whole, part)
        found.append(part if inside else whole)
    return found


def _of_dtype(dtype: str) -> Range | None:
    if dtype == "bool":
        return 0, 1
    if not TensorType(dtype).is_discrete:
        return None
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _contains(whole: Range, part: Range) -> bool:
    return whole[0] <= part[0] and part[1] <= whole[1]


def _of_step(step: Instruction, args: Sequence[Range | None]) -> Range | None:
    """The range if nothing overflows; None where it is not known."""
    if step.name == "const":
        return int(step.value), int(step.value)
    given = [a for a in args[step.name == "select" :] if a is not None]
    rule = _RULES.get(step.name)
    if rule is None or step.dtype == "bool" or len(given) < len(args) - (step.name == "select"):
        return None
    return rule(*given)


def _corners(f: Callable[[int, int], int]) -> Callable[[Range, Range], Range]:
    """The range of a function that has its extremes at those of its arguments."""

    def of(a: Range, b: Range) -> Range:
        values = [f(x, y) for x in a for y in b]
        return min(values), max(values)

    return of


def _quotient(a: Range, b: Range) -> Range | None:
    return (a[0] // b[0], a[1] // b[0]) if b[0] == b[1] > 0 else None


def _remainder(a: Range, b: Range) -> Range | None:
    if not b[0] == b[1] > 0:
        return None
    return a if a[0] >= 0 and a[1] < b[0] else (0, b[0] - 1)


def _bits_of_both(a: Range, b: Range) -> Range | None:
    least = [r[1] for r in (a, b) if r[0] >= 0]
    return (0, min(least)) if least else None


def _shifted(a: Range, b: Range) -> Range | None:
    return (a[0] >> b[0], a[1] >> b[0]) if b[0] == b[1] and 0 <= b[0] < 64 else None


def _size(a: Range) -> Range:
    ends = sorted(map(abs, a))
    return (0 if a[0] <= 0 <= a[1] else ends[0]), ends[1]


_RULES: dict[str, Callable[..., Range | None]] = {
    "cast": lambda a: a, "neg": lambda a: (-a[1], -a[0]), "abs": _size,
    "select": lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]), "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _corners(lambda x, y: x * y), "max": _corners(max), "min": _corners(min),
    "floor_div": _quotient, "mod": _remainder, "and": _bits_of_both, "shr": _shifted,
}  # fmt: skip
