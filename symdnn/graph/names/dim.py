"""Names of sizes that are known in a call only: equal names are equal sizes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from symdnn.errors import InputError


@dataclass(frozen=True, init=False)
class Dim:
    """The name of a size: ``Dim("batch")``, or of one size that has several: ``Dim("b", "n")``.

    It takes the place of an unknown size in a shape, as a plain string does. Sizes agree if they
    have a name in common. Two objects with the same names are equal.

    Raises :class:`~symdnn.errors.InputError` for a name that is no Python identifier.
    """

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        if not names or not all(isinstance(n, str) and n.isidentifier() for n in names):
            what = ", ".join(map(repr, names)) or "none"
            raise InputError(f"Dim: wanted names such as 'batch' (letters, digits, _), got {what}")
        object.__setattr__(self, "names", tuple(sorted(set(names))))

    def agrees(self, other: Dim) -> bool:
        """Whether both are names of one size."""
        return not set(self.names).isdisjoint(other.names)

    def __str__(self) -> str:
        return "=".join(self.names)

    def __repr__(self) -> str:
        return f"Dim({', '.join(map(repr, self.names))})"


#: An entry of a shape as users give it: True is a size of 1 that broadcasts, None an unknown one.
SizeOrName = int | bool | str | Dim | None


def merged(dims: Iterable[Dim]) -> Dim:
    """One size with the names of all of ``dims``."""
    return Dim(*(n for d in dims for n in d.names))


def one_for_each(dims: Iterable[Dim]) -> list[Dim]:
    """The different sizes among ``dims``, each with all its names."""
    found: list[Dim] = []
    for d in dims:
        same = [f for f in found if f.agrees(d)]
        found = [f for f in found if f not in same] + [merged([d, *same])]
    return found
