"""Dicts by name that are iterated over as what PyTorch's methods of these names yield."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

V = TypeVar("V")


class Pairs(dict[str, V]):
    """A dict of which a loop has the pairs ``(name, value)``; ``name in``, ``[name]`` are a dict's.

    >>> found = Pairs(a=1, b=2)
    >>> [name for name, value in found], found["b"], "a" in found
    (['a', 'b'], 2, True)
    """

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items())

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self.items())


class Values(dict[str, V]):
    """A dict of which a loop has the values; ``name in`` and ``[name]`` are a dict's.

    >>> found = Values(a=1, b=2)
    >>> list(found), found["b"], "a" in found
    ([1, 2], 2, True)
    """

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values())

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self.values())
