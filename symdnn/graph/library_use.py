"""What a vendor's library was asked for one node, and what it runs: a row of ``f.dnn_report()``."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LibraryUse"]


@dataclass(frozen=True)
class LibraryUse:
    """The answer of a kernel's ``library_use(call)``, which kernels may have.

    ``requested`` is the user's word, ``used`` the algorithm's or plan's own name and ``engine`` its
    number; ``api`` says which of the library's APIs has it. ``ms`` is its time in milliseconds,
    where it was measured; ``precision`` how numbers are stored, multiplied and summed; ``why``
    where the choice comes from.
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
