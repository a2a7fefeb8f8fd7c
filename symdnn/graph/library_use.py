"""A row of ``f.dnn_report()``: the user's choice for one node, and what a vendor's library runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Fallback", "LibraryUse"]


@dataclass(frozen=True)
class Fallback:
    """What runs instead of what was asked for: both by name, the reason, and the cost in words."""

    asked: str
    got: str
    why: str
    cost: str = ""

    def __str__(self) -> str:
        cost = f"; cost: {self.cost}" if self.cost else ""
        return f"asked for {self.asked}, got {self.got}: {self.why}{cost}"


@dataclass(frozen=True)
class LibraryUse:
    """The answer of a kernel's ``library_use(call)``, which kernels may have.

    ``requested`` is the user's word, ``used`` the algorithm's or plan's own name and ``engine`` its
    number; ``api`` says which of the library's APIs has it. ``ms`` is its time in milliseconds,
    where it was measured; ``precision`` how numbers are stored, multiplied and summed; ``why``
    where the choice comes from. ``fallback`` says what was asked for, where something else runs.
    ``check`` is what the flag ``dnn.check`` found. ``record`` has JSON values that find the
    algorithm again in another run; it is empty where that can't be.
    """

    requested: str
    used: str
    api: str
    engine: str
    workspace_bytes: int
    deterministic: bool
    precision: str
    ms: float | None = None
    why: str = ""
    fallback: Fallback | None = None
    check: str = ""
    record: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
