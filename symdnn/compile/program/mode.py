"""Modes: with which rewrites, for which target and with which checks a function is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any, ClassVar

from symdnn.config import config
from symdnn.errors import NanDetected, OptionError
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.runtime import Watcher
from symdnn.graph.target import Target
from symdnn.graph.values.guard import ValueGuard
from symdnn.graph.variable import Apply, Variable
from symdnn.libraries.words import meant_words
from symdnn.opt.engine import Observer
from symdnn.opt.phases import Selection

_ALL_LEVELS = frozenset({"fast_run", "fast_compile"})
_LEVELS_OF_OPTIMIZER: dict[str, frozenset[str]] = {
    "fast_run": _ALL_LEVELS,
    "o4": _ALL_LEVELS,
    "o3": _ALL_LEVELS,
    "o2": _ALL_LEVELS,
    "o1": frozenset({"fast_compile"}),
    "unsafe": _ALL_LEVELS | {"unsafe"},
    "fast_compile": frozenset({"fast_compile"}),
    "merge": frozenset(),
    "None": frozenset(),
}


_MUTABLE_FIELDS = ("check_isfinite", "check_py_code", "require_matching_strides")


def _selection_of_flags() -> Selection:
    return Selection(
        _LEVELS_OF_OPTIMIZER[str(config.optimizer)] | _names("optimizer_including"),
        _names("optimizer_excluding"),
        _names("optimizer_requiring"),
    )


def _names(flag: str) -> frozenset[str]:
    words = str(config.get(flag) or "").replace(",", ":").split(":")
    found = frozenset(w.strip() for w in words if w.strip())
    if found and flag != "optimizer_requiring":  # checked when a function is compiled
        return frozenset(meant_words(sorted(found), flag))
    return found


class Watch(Watcher):
    """Watches one call: it is called before and after each node, then with the results."""

    def finish(self, results: Sequence[Any]) -> None:
        """The values of the graph's outputs, before any update is applied."""


class Audit:
    """Watches one compilation: each replacement before it happens, and the end."""

    @property
    def observer(self) -> Observer | None:
        """The observer for the rewriting engine, or None."""
        return None

    def finish(self, fgraph: FunctionGraph) -> None:
        """Called when rewriting has ended, with the rewritten graph."""


@dataclass(unsafe_hash=True)
class Mode:
    """How a function is compiled.

    ``optimizer`` names a level of rewriting (``fast_run``, ``fast_compile``, None for no rewriting
    at all); the default is that of the flags. ``target`` is a
    :class:`~symdnn.graph.target.Target` or its text (``"cuda:sm_90"`` compiles for a described
    GPU). ``including``, ``excluding`` and ``requiring`` take tags or names of rewrites and return a
    new mode. ``linker`` is accepted for compatibility with Theano and ignored. A mode is immutable,
    except for the switches of checks (``mode.check_isfinite = False``).

    Raises :class:`~symdnn.errors.OptionError` for an unknown ``optimizer``.
    """

    linker: Any = None
    optimizer: Any = "default"
    target: Target | str | None = None
    selection: Selection = field(default_factory=_selection_of_flags)

    #: Tags of rewrites that a kind of mode never has.
    excluded: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if isinstance(self.linker, str) and self.linker.lower() in _LEVELS_OF_OPTIMIZER:
            raise OptionError(
                f"Mode({self.linker!r}): the first argument is Theano's linker, which is ignored; "
                f"use Mode(optimizer={self.linker.lower()!r})"
            )
        if isinstance(self.linker, str) and self.linker.startswith(("cpu", "cuda", "gpu")):
            raise OptionError(
                f"Mode({self.linker!r}): the first argument is Theano's linker, which is ignored; "
                "use Mode(target='cuda') or Mode(target='cpu')"
            )
        object.__setattr__(self, "selection", self.selection.excluding(*self.excluded))
        if self.optimizer == "default":
            return
        name = str(self.optimizer)
        if name not in _LEVELS_OF_OPTIMIZER:
            raise OptionError(
                f"optimizer {name!r}: wanted one of {', '.join(_LEVELS_OF_OPTIMIZER)}"
            )
        chosen = replace(self.selection, include=_LEVELS_OF_OPTIMIZER[name])
        object.__setattr__(self, "selection", chosen)
        object.__setattr__(self, "optimizer", "default")  # the selection has it

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.__dict__ and name not in _MUTABLE_FIELDS:
            raise FrozenInstanceError(f"{name} of a mode; use including, excluding, or a new mode")
        object.__setattr__(self, name, value)

    def including(self, *tags: str) -> Mode:
        """This mode with more rewrites.

        Raises :class:`~symdnn.errors.ConfigError` for a word that names none, with the nearest.
        """
        words = meant_words(tags, "Mode.including")
        return replace(self, selection=self.selection.including(*words))

    def excluding(self, *tags: str) -> Mode:
        """This mode without some rewrites; raises as :meth:`including` does."""
        words = meant_words(tags, "Mode.excluding")
        return replace(self, selection=self.selection.excluding(*words))

    def requiring(self, *tags: str) -> Mode:
        """This mode, refusing to compile when these rewrites do not exist."""
        return replace(self, selection=self.selection.requiring(*tags))

    # -- overridden by modes that check -------------------------------------------------------

    @property
    def guard(self) -> ValueGuard | None:
        """What kernels' results are checked for in each call; None for no checks."""
        return None

    def audit(self, fgraph: FunctionGraph, target: Target) -> Audit | None:
        """The audit of the rewriting of ``fgraph`` for ``target``; None for none."""
        return None

    def watch(self, stages: object, values: Mapping[Variable, Any]) -> Watch | None:
        """The watch of a call on ``values`` (inputs and shared variables); None for none.

        ``values`` are arrays on the host, read when they are accessed.
        """
        return None

    def run_again(
        self, stages: Any, devices: Any, values: Mapping[Variable, Any], error: NanDetected
    ) -> list[Any]:
        """The outputs of a call in which the :attr:`guard` found a fault; may raise another error.

        ``devices`` are the function's runtimes, ``values`` what the call began with.
        """
        raise error


class OnHost(Mapping[Variable, Any]):
    """The values of a call as arrays on the host, copied there when they are read."""

    def __init__(self, values: Mapping[Variable, Any], to_host: Callable[[Any], Any]) -> None:
        self._values, self._to_host = values, to_host

    def __getitem__(self, v: Variable) -> Any:
        return self._to_host(self._values[v])

    def __iter__(self) -> Iterator[Variable]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Watches(Watch):
    """Several watches as one."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self.watches = watches
        self.garbage = any(w.garbage for w in watches)
        self.reads_values = any(w.reads_values for w in watches)

    def __call__(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[Any] | None) -> None:
        for w in self.watches:
            w.device_seconds = self.device_seconds
            w(node, inputs, outputs)
        self.device_seconds = None

    def finish(self, results: Sequence[Any]) -> None:
        for w in self.watches:
            w.finish(results)
