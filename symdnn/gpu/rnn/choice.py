"""Which of cuDNN's algorithms runs a recurrent net.

The wish is a word of the flag ``dnn.rnn.algo`` or of the hint ``algo``. ``standard`` is taken as it
is. Any other algorithm first computes a net of the same sizes with values of ours, forward and, for
training, backward, and must agree with ``standard``: cuDNN 9.19 answers success where it computed
nothing. A named one that is refused or wrong is an error; ``guess`` and ``time_once`` go on.

A choice is kept for the process: a forward pass and its gradients, which share a reserve, ask with
the same net and get the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import Any

from symdnn.errors import SymdnnError
from symdnn.gpu import libcudnn
from symdnn.gpu.conv.algorithm import UnsupportedAlgorithm
from symdnn.gpu.device.context import card
from symdnn.gpu.rnn.net import Net
from symdnn.tuning.attempts import Attempt, Bench, measure
from symdnn.tuning.question import ChoiceCache, Question, answer, plain

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
_choices: ChoiceCache[Choice] = ChoiceCache()


def choose(net: Net, lengths: bool, wish: str, device: int | None) -> Choice:
    """The algorithm for a net on a device; what was named, unchecked, where ``device`` is None.

    Raises :class:`~symdnn.gpu.conv.algorithm.UnsupportedAlgorithm` for a named one that can't be
    taken.
    """
    if wish == "standard" or device is None:
        return Choice(ALGORITHMS.get(wish, "STANDARD"), "as asked for")
    key: _Key = (net, lengths, wish, device)
    return _choices.get(key, lambda: _chosen(net, lengths, wish, device))


def forget() -> None:
    """Drop what was chosen; plans that exist keep theirs."""
    _choices.clear()


def _chosen(net: Net, lengths: bool, wish: str, device: int) -> Choice:
    from symdnn.gpu.rnn.trial import Trial  # it needs a device

    trial = Trial(net, lengths, device)
    if wish == "time_once":
        return _fastest(net, lengths, trial.tried)
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


def _fastest(net: Net, lengths: bool, tried: _Try) -> Choice:
    """The fastest of those whose result is right; ``standard`` where nothing could be timed."""
    found = answer(_NetQuestion(net, lengths, tried))
    if found is None:
        return Choice(ALGORITHMS["standard"], "time_once, nothing could be timed")
    source = "time_once" if found.table else "time_once, measured before"
    table = tuple(Tried(a.candidate, a.ms, a.problem) for a in found.table)
    return Choice(ALGORITHMS[found.attempt.candidate], source, found.attempt.ms, table)


class _NetQuestion(Question[str]):
    """Which algorithm of cuDNN's is the fastest for a net."""

    family = "recurrent net"

    def __init__(self, net: Net, lengths: bool, tried: _Try) -> None:
        self.net, self.lengths, self.tried = net, lengths, tried

    def key(self) -> dict[str, Any] | None:
        """The net, the card, cuDNN's version."""
        here = card()
        if here is None:
            return None
        net = plain(asdict(self.net))
        version = int(libcudnn.cudnnGetVersion())
        return {**here, "cudnn": version, "net": net, "lengths": self.lengths}

    def measured(self) -> tuple[list[Attempt[str]], str]:
        """All four."""
        return measure(_NetBench(self.tried), ALGORITHMS), ""

    def record(self, best: Attempt[str]) -> dict[str, Any]:
        """The flag's word."""
        return {"name": best.candidate, "ms": best.ms}

    def revived(self, record: dict[str, Any]) -> Attempt[str] | None:
        """The algorithm, if its result is right."""
        word = str(record.get("name"))
        if word not in ALGORITHMS or self.tried(word, False).problem:
            return None
        return Attempt(word, float(record["ms"]))

    def refused(self, reasons: Any) -> None:
        """The standard algorithm runs."""


class _NetBench(Bench[str]):
    """A net with values of ours; right is what the standard algorithm gives."""

    def __init__(self, tried: _Try) -> None:
        self.tried = tried
        self._ms: dict[str, float] = {}

    def check(self, candidate: str, good_ms: float = inf) -> tuple[float, float]:
        """Raises what is wrong; what is right is timed at once."""
        found = self.tried(candidate, True)
        if found.problem or found.ms is None:
            raise SymdnnError(found.problem or "it could not be timed")
        self._ms[candidate] = found.ms
        return 0.0, 0.0

    def time(self, candidate: str, good_ms: float = inf) -> float:
        """As plans launch it."""
        return self._ms[candidate]


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
