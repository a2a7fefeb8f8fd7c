"""A mesh: ranks in a grid with named axes, and the groups along each of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from symdnn.errors import OptionError
from symdnn.options import is_int
from symdnn.world import process
from symdnn.world.group import Group

__all__ = ["Mesh"]


class Mesh:
    """All ranks as a grid, with a name for each axis: ``Mesh({"data": 2, "tensor": 4})``.

    Neighbours along the last axis have neighbouring ranks: name last what exchanges most. The
    sizes multiply to the number of processes; one of them may be -1.

    >>> mesh = Mesh({"data": -1, "tensor": 1})
    >>> mesh.sizes, mesh.position, mesh.group("tensor").size
    ({'data': 1, 'tensor': 1}, {'data': 0, 'tensor': 0}, 1)
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        place = process.current().place
        if not isinstance(sizes, Mapping) or not all(is_int(k) for k in sizes.values()):
            raise OptionError(f"Mesh: sizes {sizes!r}; wanted a dict such as {{'data': 2}}")
        self.sizes = _whole({n: int(k) for n, k in sizes.items()}, place.size)
        self._ranks = np.arange(place.size).reshape(tuple(self.sizes.values()))
        where = np.argwhere(self._ranks == place.rank)[0]
        #: This rank's number along each axis.
        self.position = {name: int(i) for name, i in zip(self.sizes, where)}

    def group(self, *names: str) -> Group:
        """The ranks that differ from this one along the named axes only, this one among them.

        Raises :class:`~symdnn.errors.OptionError` for an axis that does not exist.
        """
        if not names or not set(names) <= set(self.sizes):
            raise OptionError(
                f"Mesh.group: names {list(names)}; wanted some, and the axes are "
                f"{', '.join(self.sizes)}"
            )
        index = tuple(slice(None) if n in names else self.position[n] for n in self.sizes)
        return Group.of(self._ranks[index].ravel().tolist(), "x".join(names))

    def __repr__(self) -> str:
        return f"Mesh({self.sizes})"


def _whole(sizes: dict[str, int], count: int) -> dict[str, int]:
    """The sizes with -1 replaced."""
    free = [n for n, k in sizes.items() if k == -1]
    known = int(np.prod([k for k in sizes.values() if k != -1], dtype=int))
    if len(free) == 1 and known > 0 and count % known == 0:
        sizes[free[0]] = count // known
    if int(np.prod(list(sizes.values()), dtype=int)) != count or min(sizes.values(), default=0) < 1:
        raise OptionError(f"Mesh: sizes {sizes} for {count} processes; their product must be that")
    return sizes
