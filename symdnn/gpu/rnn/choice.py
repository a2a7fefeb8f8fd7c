"""Which of cuDNN's algorithms runs a recurrent net.

The wish is a word of the flag ``dnn.rnn.algo`` or of the hint ``algo``. ``standard`` is taken as it
is. Any other algorithm first computes a net of the same sizes with values of ours, forward and, for
training, backward, and must agree with ``standard``: cuDNN 9.19 answers success where it computed
nothing. A named one that is refused or wrong is an error; ``guess`` and ``time_once`` go on.

A choice is kept for the process: a forward pass and its gradients, which share a reserve, ask with
the same net and get the same answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from symdnn.errors import SymdnnError
from symdnn.gpu.conv.algorithm import UnsupportedAlgorithm
from symdnn.gpu.rnn.net import Net
from symdnn.gpu.tuning.records import recall_rnn, remember_rnn

__all__ = ["ALGORITHMS", "Choice", "Tried", "choose", "forget"]

#: Words of the flag, and ``cudnnRNNAlgo_t`` without its prefix.
ALGORITHMS = {
    "standard": "STANDARD",
    "persist_static": "PERSIST_STATIC",
    "persist_dynamic": "PERSIST_DYNAMIC",
    "persist_static_small_h": "PERSIST_STATIC_SMALL_H",
}
_WORDS = {algo: word for word, algo in ALGORITHMS.items()}


@dataclass(frozen=True)
class Tried:
    """An algorithm that was tried: its milliseconds, or why it can't be taken."""

    name: str
    ms: float | None = None
    problem: str = ""

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.problem or ('right' if self.ms is None else f'{self.ms:.4g} ms')}"
        )


@dataclass(frozen=True)
class Choice:
    """An algorithm and where it comes from; ``ms`` is its time, where it was measured."""

    algo: str
    source: str
    ms: float | None = None
    tried: tuple[Tried, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """The flag's word for it."""
        return _WORDS[self.algo]

    @property
    def why(self) -> str:
        """The source, and what the others did."""
        return "; ".join([self.source, *map(str, self.tried)])

    def __str__(self) -> str:
        return f"{self.name} ({self.why})"


#: What a question is: the net, whether sequences have lengths, the wish, the device.
_Key = tuple[Net, bool, str, int]
_choices: dict[_Key, Choice] = {}
_lock = threading.RLock()


def choose(net: Net, lengths: bool, wish: str, device: int | None) -> Choice:
    """The algorithm for a net on a device; what was named, unchecked, where ``device`` is None.

    Raises :class:`~symdnn.gpu.conv.algorithm.UnsupportedAlgorithm` for a named one that can't be
    taken.
    """
    if wish == "standard" or device is None:
        return Choice(ALGORITHMS.get(wish, "STANDARD"), "as asked for")
    key = (net, lengths, wish, device)
    with _lock:
        if key not in _choices:
            _choices[key] = _chosen(net, lengths, wish, device)
        return _choices[key]


def forget() -> None:
    """Drop what was chosen; plans that exist keep theirs."""
    with _lock:
        _choices.clear()


def _chosen(net: Net, lengths: bool, wish: str, device: int) -> Choice:
    from symdnn.gpu.rnn.trial import Trial  # it needs a device

    trial = Trial(net, lengths, device)
    if wish == "time_once":
        return _recalled(net, lengths, trial.tried) or _kept(net, lengths, _fastest(trial.tried))
    if wish == "guess":
        return _first(trial.tried, guesses(net, lengths))
    found = trial.tried(wish, False)
    if found.problem:
        works = [w for w in ALGORITHMS if w != wish and not trial.tried(w, False).problem]
        raise UnsupportedAlgorithm(
            f"the algorithm {wish} can't be taken for {net}: {found.problem}. These can: "
            f"{', '.join(works)}"
        )
    return Choice(ALGORITHMS[wish], "as asked for; its result was checked against standard")


_Try = Callable[[str, bool], Tried]


def _recalled(net: Net, lengths: bool, tried: _Try) -> Choice | None:
    """What an earlier process measured as the fastest, if its result is right."""
    record = recall_rnn(net, lengths)
    word = "" if record is None else str(record.get("algorithm"))
    if record is None or word not in ALGORITHMS or tried(word, False).problem:
        return None
    return Choice(ALGORITHMS[word], "time_once, measured before", float(record["ms"]))


def _kept(net: Net, lengths: bool, made: Choice) -> Choice:
    if made.ms is not None:
        remember_rnn(net, lengths, made.name, made.ms)
    return made


def _fastest(tried: _Try) -> Choice:
    """All timed, those whose result is wrong left out."""
    found = [tried(word, True) for word in ALGORITHMS]
    good = [t for t in found if not t.problem and t.ms is not None]
    best = min(good, key=lambda t: t.ms or 0.0, default=Tried("standard"))
    return Choice(ALGORITHMS[best.name], "time_once", best.ms, tuple(found))


def _first(tried: _Try, order: Iterator[str]) -> Choice:
    """The first in the order whose result is right."""
    found = []
    for word in order:
        found.append(tried(word, False))
        if not found[-1].problem:
            break
    right = not found[-1].problem
    return Choice(ALGORITHMS[found[-1].name if right else "standard"], "guess", None, tuple(found))


def guesses(net: Net, lengths: bool) -> Iterator[str]:
    """Words in the order of what was measured on an H200 (cuDNN 9.19), ``standard`` last.

    Up to 128 hidden units the small ones were faster everywhere, 1.04 to 9 times. Above, captured
    plans have ``standard``; uncaptured ones (dropout), for which each launch costs, are twice as
    fast in float16 with a persistent one. Sequences with lengths have ``standard`` alone.
    """
    if not lengths and net.shape.hidden_size <= 128:
        yield "persist_static_small_h"
    if not lengths and net.dropout and net.dtype == "float16":
        yield "persist_static"
    yield "standard"


def problem_of(error: SymdnnError | RuntimeError | MemoryError) -> str:
    """An error in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def with_algo(net: Net, word: str) -> Net:
    """The net by another algorithm."""
    return replace(net, algo=ALGORITHMS[word])
