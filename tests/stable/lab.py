"""One program of the table in one variant: right or not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.stable.dialects import MOVES, REDUCTIONS, Dialect
from tests.stable.forms import FORMS, Form
from tests.stable.truth import excess, known_truth, leaves, noise

DTYPES = ("float32", "float64")
FACTORS = (1.0, -1.0, 3.0)


@dataclass(frozen=True)
class Case:
    """A form with how it is moved, reduced and scaled."""

    form: Form
    dtype: str
    move: str = "none"
    how: str = "sum"
    factor: float = 1.0

    def __str__(self) -> str:
        return f"{self.form.text} | {self.dtype} {self.move} {self.factor:g} * {self.how}"

    @property
    def key(self) -> tuple[Any, ...]:
        """The arguments of :func:`truth`."""
        return (self.form.text, self.form.points, self.dtype, self.move, self.how == "pick")

    def judge(self, dialect: Dialect) -> tuple[str, str]:
        """The faults of values and gradient; empty if there are none."""
        points = leaves(self.form.points, self.dtype)
        dialect.move = self.move
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                value, slope = dialect.run(self.form.text, points, self.how, self.factor)
        except NotImplementedError as error:
            return (f"{type(error).__name__}: {error}",) * 2
        key = self.key
        right, rises = known_truth(*key)
        factor = self.factor / (right.size if self.how == "mean" else 1)
        wrong = excess(value, right, 1, self.dtype, lambda: noise(*key)[0])
        bent = excess(slope, rises, factor, self.dtype, lambda: noise(*key)[1])
        return _told(wrong, points, value, right), _told(bent, points, slope, rises * factor)


def _told(wrong: list[int], points: Any, got: Any, want: Any) -> str:
    if not wrong:
        return ""
    i = wrong[0]
    return f"{len(wrong)} wrong; element {i}: {np.ravel(got)[i]}, is {float(np.ravel(want)[i])!r}"


def plain() -> Iterator[Case]:
    """Each form as it is written."""
    yield from (Case(form, dtype) for form in FORMS for dtype in DTYPES)


def short() -> Iterator[Case]:
    """Each form in both dtypes; forms that can be moved, once unmoved and once moved.

    The variants take turns; ``whole`` has all of them.
    """
    for i, form in enumerate(FORMS):
        as_written, other = DTYPES[i // 6 % 2 - 1], DTYPES[i // 6 % 2]
        yield Case(form, as_written)
        if form.movable:
            move, how, factor = MOVES[1 + i % 6], REDUCTIONS[i % 3], FACTORS[1 + i % 2]
            yield Case(form, other, move, how, factor)
        else:
            yield Case(form, other)


def whole() -> Iterator[Case]:
    """All forms, moves, reductions and factors."""
    for form in FORMS:
        for dtype in DTYPES:
            for move in MOVES if form.movable else ("none",):
                for how in REDUCTIONS:
                    for factor in FACTORS:
                        yield Case(form, dtype, move, how, factor)
