"""A question that a measurement answers, once for all processes of a machine.

The answer of an earlier process is taken where the library still takes it; else the candidates are
measured, and the answer is kept. Two processes that measure at the same time take the one that was
kept first.
"""

from __future__ import annotations

import threading
import warnings
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, TypeVar

from symdnn.tuning import store
from symdnn.tuning.attempts import Attempt, best_of

__all__ = ["Answer", "Question", "Remembered", "answer", "plain"]

C = TypeVar("C")
V = TypeVar("V")
Record = dict[str, Any]


class Question(ABC, Generic[C]):
    """Which candidate is the best for one signature; each family of kernels has a subclass."""

    #: What kind of question it is, in reports: ``"convolution"``.
    family: str = ""
    #: What the best is: ``"time"``, ``"memory"``, ``"energy"``.
    by: str = "time"
    #: Whether all processes have to give the same answer: what can't be kept is not measured.
    deterministic: bool = False

    @abstractmethod
    def key(self) -> Record | None:
        """All that the answer depends on, as JSON has it: the signature, the device, versions of
        driver and libraries; None: it can't be kept."""

    @abstractmethod
    def measured(self) -> tuple[list[Attempt[C]], str]:
        """The table of what was tried, and why nothing could be."""

    @abstractmethod
    def record(self, best: Attempt[C]) -> Record:
        """What names the candidate for other processes, as JSON has it, with ``ms``."""

    @abstractmethod
    def revived(self, record: Record) -> Attempt[C] | None:
        """The candidate of a record, if the library still takes it."""

    def refused(self, reasons: Sequence[str]) -> None:
        """Say that nothing could be measured."""
        _say_once(f"nothing could be measured, so it is guessed: {'; '.join(reasons)[:300]}")

    def not_allowed(self, reason: str) -> None:
        """Told why nothing is measured."""


_NOT_KEPT = "deterministic=more needs measured choices on disk, and dnn.conv.tuning_cache is off"


@dataclass(frozen=True)
class Answer(Generic[C]):
    """The best candidate, where the answer comes from, and the table where it was measured now."""

    attempt: Attempt[C]
    source: str
    table: tuple[Attempt[C], ...] = field(default=(), compare=False, repr=False)


def answer(question: Question[C]) -> Answer[C] | None:
    """The answer; None where nothing could be measured, or may be."""
    key = question.key()
    if key is not None:
        key = {"family": question.family, **key}
        found = _recalled(question, key)
        if found is not None:
            return found
    if question.deterministic and (key is None or store.folder() is None):
        question.not_allowed(_NOT_KEPT)
        return None
    return _made(question, key)


def _recalled(question: Question[C], key: Record) -> Answer[C] | None:
    record = store.recall(key)
    if record is None:
        return None
    known = question.revived(record)
    if known is None:
        store.forget(key)
        return None
    return Answer(known, f"fastest when it was measured before{_by(question)}")


def _made(question: Question[C], key: Record | None) -> Answer[C] | None:
    """Measure, keep, and take what is kept: another process may have been first."""
    table, problem = question.measured()
    best = best_of(table, question.by)
    if best is None:
        names = (getattr(a.candidate, "name", a.candidate) for a in table)
        reasons = [problem] if problem else [f"{n}: {a.problem}" for n, a in zip(names, table)]
        question.refused(reasons)
        return None
    record = question.record(best)
    kept = None if key is None else store.remember(key, record)
    if kept is not None and kept != record:
        other = question.revived(kept)
        if other is not None:
            source = f"fastest when another process measured it{_by(question)}"
            return Answer(other, source, tuple(table))
    if kept is None and question.deterministic:
        return None
    count = sum(a.usable for a in table)
    return Answer(best, f"fastest of {count} measured{_by(question)}", tuple(table))


def _by(question: Question[Any]) -> str:
    return "" if question.by == "time" else f" (by {question.by})"


@cache
def _say_once(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def plain(value: Any) -> Any:
    """A value as JSON gives it back: tuples are lists."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


class Remembered(Generic[V]):
    """Choices of this process by what they were made for; the ones used longest ago go."""

    def __init__(self, most: int = 4096) -> None:
        self._most, self._lock = most, threading.RLock()
        self._choices: OrderedDict[Hashable, V] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The choice for ``key``, made at most once."""
        with self._lock:
            if key not in self._choices:
                self._choices[key] = make()
                while len(self._choices) > self._most:
                    self._choices.popitem(last=False)
            self._choices.move_to_end(key)
            return self._choices[key]

    def values(self) -> list[V]:
        """All of them, the one used last at the end."""
        with self._lock:
            return list(self._choices.values())

    def clear(self) -> None:
        """Choose anew from now on; what is on disk stays."""
        with self._lock:
            self._choices.clear()
