"""What ``x == y`` of variables is: a truth for Python, and nothing for an expression."""

from __future__ import annotations

from typing import Final, NoReturn, cast

from symdnn.errors import SymbolicValueError

__all__ = ["DIFFERENT", "SAME"]

_ADVICE = "== and != tell whether two variables are one: write T.eq(x, y), T.neq(x, y) for elements"


class _Sameness:
    """Whether two variables are one object: as a bool, but no number and no array."""

    __slots__ = ("_same",)

    def __init__(self, same: bool) -> None:
        self._same = same

    def __bool__(self) -> bool:
        return self._same

    def __int__(self) -> int:
        return int(self._same)

    def __eq__(self, other: object) -> bool:
        return self._same == (bool(other) if isinstance(other, _Sameness) else other)

    def __hash__(self) -> int:
        return hash(self._same)

    def __repr__(self) -> str:
        return repr(self._same)

    def __format__(self, spec: str) -> str:
        return format(self._same, spec)

    def __reduce__(self) -> tuple[object, ...]:
        return bool, (self._same,)  # files and other processes have the truth alone

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"x == y has no {name!r}: {_ADVICE}")

    def __array__(self, *args: object, **options: object) -> NoReturn:
        raise SymbolicValueError(f"x == y is no array: {_ADVICE}")

    def _refused(self, *others: object) -> NoReturn:
        raise SymbolicValueError(f"x == y is no expression: {_ADVICE}")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _refused
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refused
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _refused
    __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = _refused
    __neg__ = __pos__ = __abs__ = __invert__ = __index__ = _refused


# For a checker of types they are the bools that Python's == has.
SAME: Final = cast("bool", _Sameness(True))
DIFFERENT: Final = cast("bool", _Sameness(False))
