"""A group: some of the ranks of the world, in an order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from symdnn.errors import OptionError
from symdnn.options import is_int


@dataclass(frozen=True)
class Group:
    """Ranks of the world that exchange arrays with each other; ``ranks[i]`` is number ``i`` of it.

    A plain value: equal groups share a communicator, and groups of equal ranks and different names
    have one each.

    >>> Group((0, 2)).size, str(Group((0, 1, 2, 3), "world"))
    (2, 'world(4)')
    """

    ranks: tuple[int, ...]
    name: str = "group"

    def __post_init__(self) -> None:
        given: Any = self.ranks
        found = tuple(given) if isinstance(given, Iterable) else (None,)
        numbers = all(is_int(r) and r >= 0 for r in found)
        if not numbers or not found or len(set(found)) != len(found):
            raise OptionError(
                f"Group: ranks={given!r}; wanted a list of different ranks, 0 or more"
            )
        object.__setattr__(self, "ranks", tuple(int(r) for r in found))

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return len(self.ranks)

    def index(self, rank: int, what: str = "Group") -> int:
        """The number in the group of a rank of the world; raises ``OptionError`` for another."""
        if rank not in self.ranks:
            raise OptionError(f"{what}: rank {rank} is not in {self}, whose ranks are {self.ranks}")
        return self.ranks.index(rank)

    def __str__(self) -> str:
        return f"{self.name}({self.size})"

    @classmethod
    def of(cls, ranks: Iterable[int], name: str = "group") -> Group:
        """A group of any iterable of ranks."""
        return cls(ranks, name)  # type: ignore[arg-type]
