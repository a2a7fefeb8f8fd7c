"""The place of values and nodes: a device of this process, by kind and index."""

from __future__ import annotations

import re
from typing import NamedTuple

from symdnn.errors import OptionError

__all__ = ["HOST", "Place", "check_one_gpu"]


class Place(NamedTuple):
    """A device. Kernels are looked up by its ``kind``; storages, segments and plans have the place.

    It is a tuple, since each call looks storages up by it, which has to be fast.

    >>> print(Place("cuda", 1), Place.parse("cuda"), HOST)
    cuda1 cuda0 cpu
    """

    kind: str
    index: int = 0  # type: ignore[assignment]  # hides tuple.index

    @classmethod
    def parse(cls, text: str) -> Place:
        """A place from its name: ``cpu``, ``cuda`` (the first GPU), ``cuda1``.

        Raises :class:`~symdnn.errors.OptionError` for any other text.
        """
        found = re.fullmatch(r"(cpu)|(cuda)(\d*)", text)
        if found is None:
            raise OptionError(f"{text!r} is no device: wanted 'cpu', 'cuda', 'cuda0', 'cuda1', ...")
        return HOST if found[1] else cls(found[2], int(found[3] or 0))

    def __str__(self) -> str:
        return self.kind if self == HOST else f"{self.kind}{self.index}"

    def __repr__(self) -> str:
        return str(self)


HOST = Place("cpu")


def check_one_gpu(own: Place, other: Place, what: str) -> None:
    """Raise :class:`~symdnn.errors.OptionError` if a function at ``own`` needs another GPU."""
    if HOST not in (own, other) and own != other:
        raise OptionError(
            f"{what} is on {other}, the function on {own}, and a function runs on one GPU. Compile "
            f"a function for each, by the flag device={other} or Mode(target={str(other)!r})"
        )
