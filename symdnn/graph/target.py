"""A target as plain facts: all that ``opt`` knows of a machine. Detection is elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from symdnn.errors import OptionError
from symdnn.graph.place import Place

if TYPE_CHECKING:
    from symdnn.graph.type import TensorType

__all__ = ["MINIMUM_COMPUTE_CAPABILITY", "Libraries", "Target", "Version"]

#: Turing: the oldest that CUDA 13, and cuDNN 9's builds for it, run on.
MINIMUM_COMPUTE_CAPABILITY = (7, 5)


#: A library's version.
Version = tuple[int, ...]
#: The default of arguments that may be None.
_NOT_GIVEN: Any = object()


class Libraries(Mapping[str, Version]):
    """The libraries of a target by name, with their versions; hashable.

    >>> Libraries({"cudnn": (9, 19), "onednn": None})
    {'cudnn': (9, 19)}
    """

    __slots__ = ("_known",)

    def __init__(self, known: Mapping[str, Version | None] | None = None) -> None:
        self._known = {k: tuple(v) for k, v in sorted((known or {}).items()) if v is not None}

    def __reduce__(self) -> tuple[object, ...]:
        return Libraries, (self._known,)  # protocols 0 and 1 do not write slots

    def __getitem__(self, name: str) -> Version:
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __hash__(self) -> int:
        return hash(tuple(self._known.items()))

    def __repr__(self) -> str:
        return repr(self._known)


@dataclass(frozen=True, init=False)
class Target:
    """The machine that a function is compiled for.

    ``kind`` is ``"cpu"`` or ``"cuda"``; ``libraries`` maps names to versions, without those that
    are absent. ``cudnn=`` and ``onednn=`` set one of them, as any other keyword does.
    ``Target.parse("cuda:sm_90")`` describes a GPU without having one.

    >>> Target("cuda", cudnn=(9, 19)).libraries
    {'cudnn': (9, 19)}
    """

    kind: str = "cpu"
    index: int = 0
    compute_capability: tuple[int, int] | None = None
    libraries: Libraries = field(default_factory=Libraries)
    isa: str | None = None
    threads: int = 1
    memory_bytes: int | None = None
    #: The reasons why libraries are absent, for errors about nodes that demand one.
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __init__(
        self,
        kind: str = "cpu",
        index: int = 0,
        compute_capability: tuple[int, int] | None = None,
        cudnn: Version | None = _NOT_GIVEN,
        onednn: Version | None = _NOT_GIVEN,
        isa: str | None = None,
        threads: int = 1,
        memory_bytes: int | None = None,
        notes: tuple[str, ...] = (),
        *,
        libraries: Mapping[str, Version] | None = None,
        **versions: Version | None,
    ) -> None:
        named = {"cudnn": cudnn, "onednn": onednn, **versions}
        known = {**(libraries or {}), **{k: v for k, v in named.items() if v is not _NOT_GIVEN}}
        for name, version in known.items():
            if version is not None and not isinstance(version, tuple):
                raise OptionError(f"Target: {name}={version!r:.60}; wanted a version (9, 19)")
        given = (kind, index, compute_capability, Libraries(known), isa, threads, memory_bytes)
        for f, value in zip(fields(self), (*given, tuple(notes)), strict=True):
            object.__setattr__(self, f.name, value)

    def has(self, library: str) -> bool:
        """Whether a library, such as ``"cudnn"``, is there."""
        return library in self.libraries

    @property
    def cudnn(self) -> Version | None:
        """cuDNN's version; None without it."""
        return self.libraries.get("cudnn")

    @property
    def onednn(self) -> Version | None:
        """oneDNN's version; None without it."""
        return self.libraries.get("onednn")

    @property
    def place(self) -> Place:
        """The device that it describes."""
        return Place(self.kind, self.index)

    def keeps(self, type_: TensorType) -> bool:
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
        if capability is not None and capability < MINIMUM_COMPUTE_CAPABILITY:
            raise OptionError(
                f"target {text!r}: CUDA 13 and cuDNN 9 need compute capability 7.5 (sm_75) or newer"
            )
        facts.setdefault("cudnn", (9, 0))
        return cls("cuda", int(index or 0), capability, **facts)

    def __str__(self) -> str:
        sm = "" if self.compute_capability is None else ":sm_{}{}".format(*self.compute_capability)
        return f"{self.place}{sm}"
