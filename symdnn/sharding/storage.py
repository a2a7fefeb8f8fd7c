"""The value of a shared variable that several ranks keep together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import DistributedError
from symdnn.graph.values.storage import DeviceMemory, Placed, Storage
from symdnn.graph.variable import Shared, Variable
from symdnn.world.group import Group

Array = np.ndarray[Any, Any]


class Layout(ABC):
    """How the ranks of a group keep the values of some shared variables, its ``members``."""

    members: tuple[Shared, ...]
    group: Group

    @property
    @abstractmethod
    def own(self) -> Shared:
        """What this rank has."""

    @abstractmethod
    def whole(self, member: Shared) -> Array:
        """The value of a member; all ranks of the group call this."""

    @abstractmethod
    def keep(self, member: Shared, array: Array) -> None:
        """Replace this rank's part of a member's value."""


class InParts(Storage):
    """A storage that reads and writes parts on several ranks.

    Reading is a collective: all ranks of the group read the same variables in the same order.
    """

    #: How many were ever made: 0 lets compilation pass without a look.
    made: ClassVar[list[int]] = [0]

    def __init__(self, layout: Layout, member: Shared, shape: Sequence[int], dtype: Any) -> None:
        super().__init__(np.empty(0, dtype), borrow=True)
        self.layout, self.member, self._shape = layout, member, tuple(shape)
        self.made[0] += 1

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def version_on(self, place: Any) -> int | None:
        return None

    def host(self) -> Array:
        return self.layout.whole(self.member)

    def get(
        self, borrow: bool = False, internal: bool = False, home: DeviceMemory | None = None
    ) -> Any:
        return self.host()

    def _hand_out(self) -> Array:
        return self.host()

    def set(self, array: Array, borrow: bool = False) -> None:
        if array.shape != self._shape:
            raise DistributedError(
                f"{self.member}: its value is kept in parts by several ranks, so its shape "
                f"{self._shape} stays; got {array.shape}"
            )
        self.layout.keep(self.member, array)

    def take(self, placed: Placed, borrow: bool = False) -> None:
        self.set(np.asarray(placed.memory.download(placed.copied(None)), self.dtype))

    def on(self, memory: DeviceMemory) -> Any:
        raise DistributedError(
            f"{self.member} is kept in parts by several ranks since a function that reads it was "
            "compiled. Compile the function again"
        )


def layout_of(v: Variable) -> Layout | None:
    """How the value of ``v`` is kept by several ranks; None: each has the whole."""
    if isinstance(v, Shared) and isinstance(v.storage, InParts):
        return v.storage.layout
    return None
