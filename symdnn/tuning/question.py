"""A question that a measurement answers, once for all processes of a machine.

The stored answer of an earlier process is used if the library still supports it. Otherwise the
candidates are measured and the answer is stored. If two processes measure at the same time, both
use the answer that was stored first.
"""

from __future__ import annotations

import threading
import warnings
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf
from typing import Any, Generic, TypeVar

from symdnn.tuning import allowance, blocked, store
from symdnn.tuning.attempts import Attempt, Bench, Limits, best_of, measure
from symdnn.tuning.budget import front
from symdnn.tuning.ranks import of_all_ranks

C = TypeVar("C")
V = TypeVar("V")
Record = dict[str, Any]


class Question(ABC, Generic[C]):
    """The question which candidate is best for one signature; kernel families have subclasses."""

    #: The kind of question in reports and keys, such as ``"convolution"``.
    family: str = ""
    #: The criterion: ``"time"``, ``"memory"`` or ``"energy"``.
    by: str = "time"
    #: Whether all processes must have the same answer: nothing is measured that cannot be stored.
    deterministic: bool = False
    #: Whether a plan for new shapes guesses, and is made again if they return.
    waits: bool = True
    #: Whether it warns, once, if no candidate is usable.
    warns: bool = True
    #: Everything that the answer depends on, as JSON values: the signature, the device, the
    #: versions of driver and libraries. None if it cannot be stored.
    key: Record | None = None
    #: The question of the block list (:mod:`symdnn.tuning.blocked`): the library, its version, the
    #: architecture and the operation. None: it has none.
    fault: Record | None = None

    @abstractmethod
    def measured(self) -> tuple[list[Attempt[C]], str]:
        """(the table of attempts, why there is none)"""

    @abstractmethod
    def record(self, best: Attempt[C]) -> Record:
        """JSON values that identify the candidate for other processes, with ``ms``."""

    @abstractmethod
    def revived(self, record: Record) -> Attempt[C] | None:
        """The candidate of a stored record; None if the library does not support it any more."""

    def identity(self, candidate: C) -> Any:
        """What identifies a candidate on the block list, as JSON values."""
        return str(candidate)

    def is_blocked(self, candidate: C) -> bool:
        """Whether a candidate is on the block list."""
        fault, which = self.fault, self.identity(candidate)
        return fault is not None and blocked.error_of(fault, which) is not None

    def block(self, wrong: Attempt[C]) -> None:
        """Put the candidate of a wrong result on the block list."""
        c = wrong.candidate
        if self.fault is not None:
            blocked.add(self.fault, self.identity(c), _name(c), wrong.error or 0.0, wrong.problem)

    def attempts(
        self, bench: Bench[C], candidates: Iterable[C], limits: Limits | None = None
    ) -> list[Attempt[C]]:
        """Measure the candidates that are not on the block list; the others are at the end."""
        table = [(c, self.is_blocked(c)) for c in candidates]
        found = measure(bench, [c for c, out in table if not out], limits)
        return [*found, *(Attempt(c, problem=ON_BLOCK_LIST) for c, out in table if out)]

    def refused(self, reasons: Sequence[str]) -> None:
        """Called if no candidate is usable."""
        if self.warns:
            _say_once(f"nothing could be measured, so it is guessed: {'; '.join(reasons)[:300]}")

    def not_allowed(self, reason: str) -> None:
        """Called with the reason if measuring is not allowed."""


#: The problem of candidates on the block list.
ON_BLOCK_LIST = "it is on the block list: its result was wrong"

_NO_STORE = "deterministic=more needs measured choices on disk, and dnn.conv.tuning_cache is off"

_NO_TIME = "the time for all measurements is used up (dnn.conv.time_total)"


@dataclass(frozen=True)
class Answer(Generic[C]):
    """The best candidate, the source of the answer, and the table if it was measured now."""

    attempt: Attempt[C]
    source: str
    table: tuple[Attempt[C], ...] = field(default=(), compare=False, repr=False)


def answer(question: Question[C]) -> Answer[C] | None:
    """The answer, stored or measured now; None if nothing could be measured, or may be."""
    settled = _settled(question)
    if settled is None:
        return None
    attempts, measured, by_other = settled
    source = "when it was measured before"
    if by_other:
        source = "when another process measured it"
    elif measured:
        source = f"of {sum(a.usable for a in measured)} measured"
    note = "" if question.by == "time" else f" (by {question.by})"
    return Answer(attempts[0], f"fastest {source}{note}", measured)


def table(question: Question[C]) -> list[Attempt[C]]:
    """The usable attempts of a question, stored or measured now; empty as :func:`answer` is None.

    Only those of which none is better in time, workspace, error and energy than another.
    """
    settled = _settled(question, every=True)
    return [] if settled is None else settled[0]


#: The picked attempts, all that were measured now, and whether another process picked.
_Settled = tuple[list[Attempt[C]], tuple[Attempt[C], ...], bool]


def _settled(question: Question[C], every: bool = False) -> _Settled[C] | None:
    """What is picked for a question: the best attempt, or ``every`` one that may be the best.

    What another rank of a program of several processes has picked is used. None if nothing could
    be measured.
    """
    family = f"{question.family}, all ways" if every else question.family
    key = None if question.key is None else {"family": family, **question.key}
    with of_all_ranks(key) as shared:
        if shared.told is not None and (others := _read(question, shared.told)):
            return others, (), True
        settled = _settled_here(question, key, every)
        if settled is not None:
            shared.found = _written(question, settled[0], every)
        return settled


def _settled_here(question: Question[C], key: Record | None, every: bool) -> _Settled[C] | None:
    """:func:`_settled` by this process, whatever other ranks choose.

    A stored record is used that can be read. Otherwise candidates are measured, and what is picked
    is stored, unless another process was first.
    """
    kept = None if key is None else store.recall(key)
    if key is not None and kept is not None:
        if stored := _read(question, kept):
            return stored, (), False
        store.forget(key)
    if not _may_measure(question, key):
        return None
    with allowance.spending():
        measured, problem = question.measured()
    if key is not None:
        _block_wrong(question, measured)
    picked = _picked(question, measured, every)
    if not picked:
        reasons = [f"{_name(a.candidate)}: {a.problem}" for a in measured]
        question.refused([problem] if problem else reasons)
        return None
    record = _written(question, picked, every)
    kept = None if key is None else store.remember(key, record)
    if kept is None and question.deterministic:
        return None
    others = [] if kept is None or kept == record else _read(question, kept)
    return others or picked, tuple(measured), bool(others)


def _picked(question: Question[C], measured: Sequence[Attempt[C]], every: bool) -> list[Attempt[C]]:
    """The best attempt, or all usable ones that are no worse than another."""
    if every:
        usable = [a for a in measured if a.usable]
        return [usable[i] for i in front([_coordinates(a) for a in usable])]
    best = best_of(measured, question.by)
    return [] if best is None else [best]


def _written(question: Question[C], picked: Sequence[Attempt[C]], every: bool) -> Record:
    records = [question.record(a) for a in picked]
    return {"name": f"{len(picked)} ways", "ways": records} if every else records[0]


def _read(question: Question[C], record: Record) -> list[Attempt[C]]:
    """The attempts of a record that the library still supports."""
    found = map(question.revived, record.get("ways", [record]))
    return [a for a in found if a is not None]


def _coordinates(a: Attempt[Any]) -> tuple[float, ...]:
    values = (a.ms, a.error, a.millijoules)
    return (getattr(a.candidate, "workspace_bytes", 0), *(inf if v is None else v for v in values))


def _may_measure(question: Question[Any], key: Record | None) -> bool:
    """Whether the question may be measured now.

    With ``deterministic=more`` neither the time that is left nor the order of shapes may matter.
    """
    if question.deterministic:
        if key is None or store.folder() is None:
            question.not_allowed(_NO_STORE)
            return False
        return True
    if not allowance.left_ms():
        question.not_allowed(_NO_TIME)
        return False
    return not question.waits or allowance.may_measure()


def _block_wrong(question: Question[C], table: Sequence[Attempt[C]]) -> None:
    """Put wrong candidates on the block list, unless most disagree with the trusted result."""
    wrong = [a for a in table if a.wrong]
    if len(wrong) < sum(a.usable for a in table):
        for a in wrong:
            question.block(a)


def _name(candidate: object) -> str:
    return str(getattr(candidate, "name", candidate))


@cache
def _say_once(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def plain(value: object) -> Any:
    """A value as JSON returns it: tuples become lists."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


class ChoiceCache(Generic[V]):
    """A least-recently-used cache of this process's choices, for several threads."""

    def __init__(self, most: int = 4096) -> None:
        self._most, self._lock = most, threading.RLock()
        self._choices: OrderedDict[Hashable, V] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The choice for ``key``; ``make`` is called if there is none yet.

        A choice without a measurement that was put off (:mod:`symdnn.tuning.allowance`) is not
        kept.
        """
        with self._lock:
            if key not in self._choices:
                made = make()
                if allowance.postponed():
                    return made
                self._choices[key] = made
                while len(self._choices) > self._most:
                    self._choices.popitem(last=False)
            self._choices.move_to_end(key)
            return self._choices[key]

    def __contains__(self, key: Hashable) -> bool:
        return key in self._choices

    def drop(self, key: Hashable) -> None:
        """Drop the choice for ``key``, if there is one."""
        with self._lock:
            self._choices.pop(key, None)

    def values(self) -> list[V]:
        """All choices, the last used one at the end."""
        with self._lock:
            return list(self._choices.values())

    def clear(self) -> None:
        """Empty the cache; choices on disk stay."""
        with self._lock:
            self._choices.clear()
