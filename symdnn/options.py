"""Options that are Python values, not expressions: taken, or refused with what was wanted."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any, TypeGuard

import numpy as np

from symdnn.errors import InputError

__all__ = ["as_function", "as_int", "as_kind", "as_list", "as_number", "as_numbers", "is_int"]


def is_int(value: object) -> TypeGuard[int]:
    """Whether it is an integer, of Python or NumPy, and no bool.

    >>> is_int(np.int8(3)), is_int(True), is_int(3.0)
    (True, False, False)
    """
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def as_int(what: str, value: object) -> int:
    """``value`` as an int. ``what`` names the function and the option, as in ``"diff: n"``.

    >>> as_int("diff: n", "two")
    Traceback (most recent call last):
    ...
    symdnn.errors.InputError: diff: n='two'; wanted an int
    """
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InputError(f"{what}={value!r:.60}; wanted an int") from None


def as_number(what: str, value: Any) -> float:
    """``value`` as a float. A text is none, even one of digits."""
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise InputError(f"{what}={value!r:.60}; wanted a number")


def as_numbers(what: str, value: Any, dtype: str) -> np.ndarray[Any, np.dtype[Any]]:
    """``value``, a number or nested lists of them, as an array of this dtype."""
    try:
        return np.asarray(value, np.dtype(dtype))
    except (TypeError, ValueError):
        raise InputError(f"{what}={value!r:.60}; wanted a number, or an array of them") from None


def as_list(what: str, value: object, of: str) -> list[Any]:
    """The entries of a list, a tuple or another iterable; ``of`` says what they are."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return list(value)
    raise InputError(f"{what}={value!r:.60}; wanted a list or tuple of {of}")


def as_kind(what: str, value: Any, kind: type | tuple[type, ...], wanted: str) -> Any:
    """``value`` if it is an instance of ``kind``, which ``wanted`` names in words."""
    if isinstance(value, kind):
        return value
    raise InputError(f"{what}: wanted {wanted}, got {value!r:.60}")


def as_function(what: str, value: Any, of: str = "arrays") -> Any:
    """``value`` if it can be called; ``of`` says what it is a function of."""
    if callable(value):
        return value
    raise InputError(f"{what}: wanted a function of {of}, got {value!r:.60}")
