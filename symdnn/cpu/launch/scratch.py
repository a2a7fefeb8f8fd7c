"""Scratch memory of launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["Scratch", "address", "aligned"]


def address(array: Any) -> int:
    """Where an array's data begins."""
    at: int = array.__array_interface__["data"][0]
    return at


def aligned(nbytes: int) -> int:
    """The next multiple of 64."""
    return -(-nbytes // 64) * 64


class Scratch:
    """Parts of so many bytes, of which each begins at a multiple of 64.

    They lie in the plan's workspace. Where that is missing, or was made for fewer threads, they lie
    in memory of their own, which is kept.
    """

    def __init__(self, parts: Sequence[int]) -> None:
        #: Where each part is, and how many bytes all are.
        self.places: list[int] = []
        self.nbytes = 0
        for part in parts:
            self.places.append(aligned(self.nbytes))
            self.nbytes = self.places[-1] + part
        self._own: Any = None

    def begin(self, workspace: Any) -> int:
        """The address of the first part."""
        if workspace is not None and workspace.nbytes >= self.nbytes:
            return address(workspace)
        return aligned(address(self.own()))

    def own(self) -> Any:
        """Memory of its own, with room to align it."""
        if self._own is None:
            self._own = np.empty(self.nbytes + 64, np.uint8)
        return self._own
