"""How a function is compiled: which rewrites, which target, which checks around each node."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from symdnn.config import config
from symdnn.graph.target import Target
from symdnn.opt.phases import Selection

__all__ = ["Mode", "get_default_mode", "get_mode"]

_OPTIMIZERS: dict[str, frozenset[str]] = {
    "fast_run": frozenset({"fast_run", "fast_compile"}),
    "o4": frozenset({"fast_run", "fast_compile"}),
    "o3": frozenset({"fast_run", "fast_compile"}),
    "o2": frozenset({"fast_run", "fast_compile"}),
    "o1": frozenset({"fast_compile"}),
    "unsafe": frozenset({"fast_run", "fast_compile", "unsafe"}),
    "fast_compile": frozenset({"fast_compile"}),
    "merge": frozenset(),
    "None": frozenset(),
}


def _selection_of_flags() -> Selection:
    return Selection(
        _OPTIMIZERS[str(config.optimizer)] | _names(config.optimizer_including),
        _names(config.optimizer_excluding),
        _names(config.optimizer_requiring),
    )


def _names(flag: Any) -> frozenset[str]:
    return frozenset(n for n in str(flag or "").replace(",", ":").split(":") if n)


@dataclass(frozen=True)
class Mode:
    """A way to compile. ``optimizer`` names a level (``fast_run``, ``fast_compile``, ``None``).

    ``target`` is a :class:`~symdnn.graph.target.Target` or its text (``"cuda:sm_90"`` builds for
    a described GPU). ``including``, ``excluding`` and ``requiring`` take tags or names of
    rewrites and give a new mode. ``linker`` is accepted for Theano's sake.
    """

    linker: Any = None
    optimizer: Any = None
    target: Target | str | None = None
    selection: Selection = field(default_factory=_selection_of_flags)

    def __post_init__(self) -> None:
        if self.optimizer is None:
            return
        name = str(self.optimizer)
        if name not in _OPTIMIZERS:
            raise ValueError(f"optimizer {name!r}: wanted one of {', '.join(_OPTIMIZERS)}")
        chosen = replace(self.selection, include=_OPTIMIZERS[name])
        object.__setattr__(self, "selection", chosen)
        object.__setattr__(self, "optimizer", None)

    def including(self, *tags: str) -> Mode:
        """This mode with more rewrites."""
        return replace(self, selection=self.selection.including(*tags))

    def excluding(self, *tags: str) -> Mode:
        """This mode without some rewrites."""
        return replace(self, selection=self.selection.excluding(*tags))

    def requiring(self, *tags: str) -> Mode:
        """This mode, refusing to compile when these rewrites do not exist."""
        return replace(self, selection=self.selection.requiring(*tags))


def get_mode(mode: Mode | str | None) -> Mode:
    """A mode from its name (``FAST_RUN``, ``FAST_COMPILE``), or the default one."""
    if isinstance(mode, Mode):
        return mode
    name = str(config.mode) if mode is None else str(mode)
    if name == "Mode":
        return Mode()
    if name in ("FAST_RUN", "FAST_COMPILE"):
        return Mode(optimizer=name.lower())
    raise ValueError(f"mode {name!r}: wanted Mode, FAST_RUN or FAST_COMPILE")


def get_default_mode() -> Mode:
    """The mode that the flags describe."""
    return get_mode(None)
