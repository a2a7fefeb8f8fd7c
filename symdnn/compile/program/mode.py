"""How a function is compiled: which rewrites, which target, which checks around each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

from symdnn.config import config
from symdnn.errors import OptionError
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.runtime import Watcher
from symdnn.graph.target import Target
from symdnn.graph.variable import Apply, Variable
from symdnn.libraries.words import check_words
from symdnn.opt.engine import Observer
from symdnn.opt.phases import Selection

__all__ = ["Audit", "Mode", "Watch", "Watches"]

_ALL = frozenset({"fast_run", "fast_compile"})
_OPTIMIZERS: dict[str, frozenset[str]] = {
    "fast_run": _ALL,
    "o4": _ALL,
    "o3": _ALL,
    "o2": _ALL,
    "o1": frozenset({"fast_compile"}),
    "unsafe": _ALL | {"unsafe"},
    "fast_compile": frozenset({"fast_compile"}),
    "merge": frozenset(),
    "None": frozenset(),
}


_SWITCHES = ("check_isfinite", "check_py_code", "require_matching_strides")


def _selection_of_flags() -> Selection:
    return Selection(
        _OPTIMIZERS[str(config.optimizer)] | _names("optimizer_including"),
        _names("optimizer_excluding"),
        _names("optimizer_requiring"),
    )


def _names(flag: str) -> frozenset[str]:
    words = str(config.get(flag) or "").replace(",", ":").split(":")
    found = frozenset(w.strip() for w in words if w.strip())
    if found and flag != "optimizer_requiring":  # of which compiling says what is missing
        check_words(sorted(found), flag)
    return found


class Watch(Watcher):
    """Sees one call from inside: called around each node, then told the results."""

    def finish(self, results: Sequence[Any]) -> None:
        """The values of the graph's outputs, before any update is applied."""


class Audit:
    """Sees one compilation: told of each replacement before it happens, then that it is over."""

    @property
    def observer(self) -> Observer | None:
        """What the rewriting engine is given."""
        return None

    def finish(self, fgraph: FunctionGraph) -> None:
        """The rewriting is over."""


@dataclass(unsafe_hash=True)
class Mode:
    """A way to compile. ``optimizer`` names a level (``fast_run``, ``fast_compile``, None for no
    rewriting at all); the default is that of the flags.

    ``target`` is a :class:`~symdnn.graph.target.Target` or its text (``"cuda:sm_90"`` builds for
    a described GPU). ``including``, ``excluding`` and ``requiring`` take tags or names of
    rewrites and give a new mode. ``linker`` is accepted for Theano's sake. A mode stays as it was
    made, but for the switches of checks (``mode.check_isfinite = False``).
    """

    linker: Any = None
    optimizer: Any = "default"
    target: Target | str | None = None
    selection: Selection = field(default_factory=_selection_of_flags)

    def __post_init__(self) -> None:
        if self.optimizer == "default":
            return
        name = str(self.optimizer)
        if name not in _OPTIMIZERS:
            raise OptionError(f"optimizer {name!r}: wanted one of {', '.join(_OPTIMIZERS)}")
        chosen = replace(self.selection, include=_OPTIMIZERS[name])
        object.__setattr__(self, "selection", chosen)
        object.__setattr__(self, "optimizer", "default")  # it is in the selection now

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__ and name not in _SWITCHES:
            raise FrozenInstanceError(f"{name} of a mode; use including, excluding, or a new mode")
        object.__setattr__(self, name, value)

    def including(self, *tags: str) -> Mode:
        """This mode with more rewrites.

        Raises :class:`~symdnn.errors.ConfigError` for a word that names none, with the nearest.
        """
        check_words(tags, "Mode.including")
        return replace(self, selection=self.selection.including(*tags))

    def excluding(self, *tags: str) -> Mode:
        """This mode without some rewrites; raises as :meth:`including` does."""
        check_words(tags, "Mode.excluding")
        return replace(self, selection=self.selection.excluding(*tags))

    def requiring(self, *tags: str) -> Mode:
        """This mode, refusing to compile when these rewrites do not exist."""
        return replace(self, selection=self.selection.requiring(*tags))

    # -- what modes that check add ------------------------------------------------------------

    def audit(self, fgraph: FunctionGraph, target: Target) -> Audit | None:
        """What sees the rewriting of ``fgraph`` for ``target``; None: nobody."""
        return None

    def watch(self, stages: Any, values: Mapping[Variable, Any]) -> Watch | None:
        """What sees a call on ``values`` (inputs and shared variables); None: nobody.

        ``values`` are arrays of the host, as they are when one asks.
        """
        return None


class Watches(Watch):
    """Tells several."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self.watches = watches
        self.garbage = any(w.garbage for w in watches)

    def __call__(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[Any] | None) -> None:
        for w in self.watches:
            w(node, inputs, outputs)

    def finish(self, results: Sequence[Any]) -> None:
        for w in self.watches:
            w.finish(results)
