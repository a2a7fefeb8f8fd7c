"""A target as plain facts: what ``opt`` may know of a machine. Detection fills it in elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from symdnn.errors import OptionError
from symdnn.graph.place import Place

__all__ = ["Target"]


@dataclass(frozen=True)
class Target:
    """The machine that a function is compiled for.

    ``kind`` is ``"cpu"`` or ``"cuda"``; versions are tuples, None where the library is absent.
    ``Target.parse("cuda:sm_90")`` describes a GPU without having one.
    """

    kind: str = "cpu"
    index: int = 0
    compute_capability: tuple[int, int] | None = None
    cudnn: tuple[int, ...] | None = None
    onednn: tuple[int, ...] | None = None
    isa: str | None = None
    threads: int = 1
    memory_bytes: int | None = None
    #: Why a library is absent, as detection found it: printed where one is asked for.
    notes: tuple[str, ...] = field(default=(), compare=False)

    def has(self, library: str) -> bool:
        """Whether ``"cudnn"`` or ``"onednn"`` is there."""
        return getattr(self, library, None) is not None

    @property
    def place(self) -> Place:
        """The device that it describes."""
        return Place(self.kind, self.index)

    def keeps(self, type_: Any) -> bool:
        """Whether a shared variable of this type lives on the device.

        Integer scalars feed shapes, bounds and counters, which the host computes.
        """
        return self.kind == "cpu" or not type_.is_integer_scalar

    @classmethod
    def parse(cls, text: str, **facts: Any) -> Target:
        """A target from ``"cpu"`` or ``"cuda:sm_90"`` (a described GPU with cuDNN 9)."""
        if text == "cpu":
            return cls(**facts)
        found = re.fullmatch(r"cuda(\d*)(?::sm_(\d+)(\d))?", text)
        if not found:
            raise OptionError(f"target {text!r}: wanted 'cpu', 'cuda' or 'cuda:sm_90'")
        index, major, minor = found.groups()
        capability = (int(major), int(minor)) if major else None
        facts.setdefault("cudnn", (9, 0))
        return cls("cuda", int(index or 0), capability, **facts)

    def __str__(self) -> str:
        sm = "" if self.compute_capability is None else ":sm_{}{}".format(*self.compute_capability)
        return f"{self.place}{sm}"
