"""Where a node was made: the user's own lines, kept through every rewrite."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields
from itertools import count
from types import CodeType
from typing import Any, Protocol, SupportsIndex

from symdnn.config import config
from symdnn.errors import OptionError
from symdnn.flag_types import is_new_way
from symdnn.flags import FLAGS

__all__ = [
    "NOWHERE", "NO_HINTS", "Hints", "LayerCall", "Origin", "Written", "current_hints",
    "current_module", "here", "hinted", "inherit", "inheriting", "is_inherited",
    "make_origin", "make_written", "noting", "within",
]  # fmt: skip

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_Frames = tuple[tuple[CodeType, int], ...]

#: The values of hints. An ``algo_*`` may be a word of another direction: gradients inherit it.
_ALGORITHMS = dict.fromkeys(
    word for d in ("fwd", "bwd_data", "bwd_filter") for word in FLAGS[f"dnn.conv.algo_{d}"].choices
)
_WORDS = {
    "algo_fwd": _ALGORITHMS,
    "algo_bwd_data": _ALGORITHMS,
    "algo_bwd_filter": _ALGORITHMS,
    "precision": (*FLAGS["dnn.conv.precision"].choices, "bfloat16"),
    "algo": FLAGS["dnn.rnn.algo"].choices,
}


@dataclass(frozen=True)
class Hints:
    """Choices for one node that do not change what it computes.

    ``name`` labels the node in reports; ``backend`` prefers kernels (``"nn"``, ``"cudnn"``,
    ``"onednn"``, ``"llvm"``); the ``algo_*`` values are those of the flags
    ``dnn.conv.algo_*``, ``algo`` is one of ``dnn.rnn.algo``; ``workspace_limit`` is in bytes.
    Equal nodes with different hints are not merged; gradient nodes and replacements inherit them.
    Raises ValueError for an algorithm or a precision that no flag knows.
    """

    name: str | None = None
    backend: str | None = None
    algo_fwd: str | int | None = None
    algo_bwd_data: str | int | None = None
    algo_bwd_filter: str | int | None = None
    precision: str | None = None
    workspace_limit: int | None = None
    algo: str | None = None

    def __post_init__(self) -> None:
        for name, allowed in _WORDS.items():
            value = getattr(self, name)
            number = isinstance(value, SupportsIndex) and not isinstance(value, bool)
            free = name.startswith("algo_") and (number or is_new_way(value, allowed))
            if value is None or value in allowed or free:
                continue
            raise OptionError(f"Hints: {name}={value!r}; wanted one of {', '.join(allowed)}")

    def __bool__(self) -> bool:
        return self is not NO_HINTS and any(getattr(self, f.name) is not None for f in fields(self))

    def __str__(self) -> str:
        given = ((f.name, getattr(self, f.name)) for f in fields(self))
        return ", ".join(f"{k}={v}" for k, v in given if v is not None)


NO_HINTS = Hints()


class LayerCall(Protocol):
    """A call of a module, as errors of the nodes that it made tell of it."""

    @property
    def tensors(self) -> Sequence[Any]:
        """The tensors among its inputs."""

    def told(self, shapes: Sequence[tuple[int, ...]]) -> tuple[str, str]:
        """The module with these shapes of its tensors, and its error for such inputs, or ""."""


class Origin:
    """The user's call stack at the moment a node was made, innermost line first.

    ``parts`` are the names and origins of the nodes that a rewrite joined in this one. ``module``
    is the path of the module whose call made the node, such as ``ResNet.layer1.0``, or empty;
    ``calls`` are that call, and those of the joined nodes, in their order: they are not saved.
    ``note`` says what else a report should: that an op was written out, say.
    """

    __slots__ = ("_frames", "calls", "module", "note", "parts")

    def __init__(
        self,
        frames: tuple[Any, ...],
        parts: Sequence[tuple[str, Origin]] = (),
        module: str = "",
        note: str = "",
        calls: tuple[LayerCall, ...] = (),
    ) -> None:
        self._frames = frames
        self.parts = tuple(parts)
        self.module = module
        self.note = note
        self.calls = calls

    @classmethod
    def of_several(cls, parts: Sequence[tuple[str, Origin]]) -> Origin:
        """The origin of a node made of several: its lines are those of the last one."""
        flat: list[tuple[str, Origin]] = []
        for name, origin in parts:
            flat += origin.parts or [(name, origin)]
        last = parts[-1][1]
        several = len({str(o) for _, o in flat}) > 1
        note = next((o.note for _, o in flat if o.note), "")
        calls = tuple(dict.fromkeys(c for _, o in parts for c in o.calls))
        return cls(last._frames, flat if several else (), last.module, note, calls)

    def noted(self, note: str) -> Origin:
        """The same origin with another note."""
        return Origin(self._frames, self.parts, self.module, note, self.calls)

    def called_in(self, module: str, name: str) -> Origin:
        """The origin of a node that was inside of one of ``module``: in its part ``name``."""
        inner = self.module.removeprefix(module).removeprefix(".")
        path = ".".join(filter(None, (module, name, inner)))
        return Origin(self._frames, self.parts, path, self.note, self.calls)

    @property
    def lines(self) -> list[tuple[str, int, str]]:
        """``(file, line, function)`` of each kept frame, innermost first."""
        return [
            (f[0], f[1], f[2]) if len(f) == 3 else (f[0].co_filename, f[1], f[0].co_name)
            for f in self._frames
        ]

    def __bool__(self) -> bool:
        return bool(self._frames or self.module)

    def __str__(self) -> str:
        if not self._frames:
            return self.module or "(origin unknown)"
        file, line, _ = self.lines[0]
        return f"{file}:{line}"

    def text(self) -> str:
        """The stack as a traceback prints it, innermost line last."""
        out = []
        for file, line, name in reversed(self.lines):
            out.append(f'  File "{file}", line {line}, in {name}')
            if source := linecache.getline(file, line).strip():
                out.append(f"    {source}")
        for (file, line, function), names in self._parts_of_lines().items():
            out.append(f"  of which {', '.join(names)}:")
            out.append(f'  File "{file}", line {line}, in {function}')
        return "\n".join(out)

    def _parts_of_lines(self) -> dict[tuple[str, int, str], dict[str, None]]:
        """The names of the parts that each line made, each once, in the order of the parts."""
        found: dict[tuple[str, int, str], dict[str, None]] = {}
        for name, origin in self.parts:
            if origin.lines:
                found.setdefault(origin.lines[0], {})[name] = None
        return found

    def __reduce__(self) -> tuple[type[Origin], tuple[object, ...]]:
        # Code objects do not pickle.
        return Origin, (tuple(self.lines), self.parts, self.module, self.note)


NOWHERE = Origin(())
_limit = config.reader("traceback.limit")

#: The position of a node in the order in which nodes of its graph were written: a growing number. A
#: node of an inner graph that replaced a node has that node's number, and then its own.
Written = tuple[int, ...]

_module: ContextVar[tuple[str, tuple[LayerCall, ...]]] = ContextVar("module", default=("", ()))


class within:
    """Nodes made inside are made by the module of this path, in ``call`` or the one around it."""

    __slots__ = ("_entered", "_token")

    def __init__(self, path: str, call: LayerCall | None = None) -> None:
        self._entered = path, _module.get()[1] if call is None else (call,)

    def __enter__(self) -> None:
        self._token = _module.set(self._entered)

    def __exit__(self, *_: object) -> None:
        _module.reset(self._token)


def current_module() -> str:
    """The path of the module whose call makes nodes now; empty outside of calls."""
    return _module.get()[0]


_Inherited = tuple[Origin | None, Hints, Written | None]
_inherited: ContextVar[_Inherited | None] = ContextVar("inherited", default=None)
_numbers = count()


class inherit:
    """Nodes made inside take this origin and these hints (rewrites, gradients).

    With ``written`` they take the order number of the node that they replace; other nodes are new.
    """

    __slots__ = ("_given", "_token")

    def __init__(self, origin: Origin, hints: Hints, written: Written | None = None) -> None:
        self._given = (origin, hints, written)

    def __enter__(self) -> None:
        self._token = _inherited.set(self._given)

    def __exit__(self, *_: object) -> None:
        _inherited.reset(self._token)


@contextlib.contextmanager
def inheriting() -> Iterator[Callable[[Origin, Hints, Written], None]]:
    """:class:`inherit` for several nodes in turn, each begun by a call of the function it gives."""
    token = _inherited.set(_inherited.get())

    def take_after(origin: Origin, hints: Hints, written: Written) -> None:
        _inherited.set((origin, hints, written))

    try:
        yield take_after
    finally:
        _inherited.reset(token)


@contextlib.contextmanager
def noting(note: str) -> Iterator[None]:
    """Nodes made inside have this note; the rest of their origin and their hints is inherited."""
    inherited = _inherited.get()
    hints, written = inherited[1:] if inherited else (NO_HINTS, None)
    token = _inherited.set((make_origin().noted(note), hints, written))
    try:
        yield
    finally:
        _inherited.reset(token)


@contextlib.contextmanager
def hinted(hints: Hints) -> Iterator[None]:
    """Nodes made inside take these hints if they get none; each has its own origin.

    Inside of another such block, or of a rewrite, the origin is inherited as before, and these
    hints replace the others.
    """
    inherited = _inherited.get()
    origin, written = (inherited[0], inherited[2]) if inherited else (None, None)
    token = _inherited.set((origin, hints, written))
    try:
        yield
    finally:
        _inherited.reset(token)


def current_hints() -> Hints:
    """The hints of a node that is made now without any."""
    inherited = _inherited.get()
    return inherited[1] if inherited else NO_HINTS


def is_inherited() -> bool:
    """Whether a node that is made now replaces another one, whose origin it takes."""
    inherited = _inherited.get()
    return inherited is not None and inherited[0] is not None


def make_written() -> Written:
    """The order number of a node that is made now: the inherited one, else a new one."""
    inherited = _inherited.get()
    if inherited is not None and inherited[2] is not None:
        return inherited[2]
    return (next(_numbers),)


def make_origin() -> Origin:
    """The inherited origin, else the lines of the user's code that led here."""
    inherited = _inherited.get()
    if inherited is not None and inherited[0] is not None:
        return inherited[0]
    return here()


def here() -> Origin:
    """The lines of the user's code that led here, whatever is inherited."""
    limit, (module, calls) = _limit(), _module.get()
    if not limit and not module:
        return NOWHERE
    return Origin(_user_frames(limit) if limit else (), (), module, "", calls)


def by_user(depth: int) -> bool:
    """Whether the function that is ``depth`` calls above the caller is the user's."""
    return not sys._getframe(depth + 1).f_code.co_filename.startswith((_PACKAGE, "<"))


def _user_frames(limit: int) -> _Frames:
    frame = sys._getframe(2)
    kept: list[tuple[CodeType, int]] = []
    while frame is not None and len(kept) < limit:
        if not frame.f_code.co_filename.startswith((_PACKAGE, "<frozen ")):
            kept.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(kept)
