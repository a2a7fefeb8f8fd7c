"""A row of ``f.dnn_report()``: the user's choice for a node, and the algorithm that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Fallback", "LibraryUse"]


@dataclass(frozen=True)
class Fallback:
    """A replaced algorithm: its name, the name of the one that runs, the reason, and the cost."""

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

    ``requested`` is the user's setting. ``used`` is the name of the algorithm or plan, ``engine``
    its number, and ``api`` the library's API that has it. ``ms`` is its measured time, if any.
    ``precision`` says how numbers are stored, multiplied and summed, and ``why`` where the choice
    comes from. ``fallback`` names the requested algorithm if another one runs. ``check`` is the
    result of the flag ``dnn.check``. ``record`` has JSON values that find the algorithm again in
    another run; it is empty where that is impossible.
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
