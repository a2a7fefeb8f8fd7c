"""The choice of cuDNN's algorithm for recurrent layers.

The flag ``dnn.rnn.algo`` or the hint ``algo`` names it. ``standard`` is used without a check. Any
other algorithm first runs a trial of the same sizes on random values, forward and, for training,
backward. Its results must agree with those of ``standard``, because cuDNN 9.19 reports success for
calls that computed nothing. A named algorithm that is refused or wrong is an error; ``guess`` and
``time_once`` try the next one.

A choice is remembered for the process. So a forward pass and its gradients, which share a reserve,
get the same algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any

from symdnn.errors import SymdnnError, UnsupportedAlgorithm
from symdnn.gpu import libcudnn
from symdnn.gpu.cudnn.version import with_version
from symdnn.gpu.device.context import device_key, existing_context
from symdnn.gpu.rnn.signature import ALGORITHMS, RNNSignature
from symdnn.gpu.rnn.trial import Trial
from symdnn.tuning import blocked
from symdnn.tuning.attempts import Attempt, Bench, measure
from symdnn.tuning.question import ChoiceCache, Question, answer, plain

__all__ = ["Choice", "choose", "forget"]

_WORDS = {algo: word for word, algo in ALGORITHMS.items()}


@dataclass(frozen=True)
class Choice:
    """An algorithm and the source of the choice; ``ms`` is its time, if it was measured."""

    algo: str
    source: str
    ms: float | None = None
    tried: tuple[Attempt[str], ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """The flag's word for the algorithm."""
        return _WORDS[self.algo]

    @property
    def why(self) -> str:
        """The source, and the results of all trials."""
        return "; ".join([self.source, *map(_shown, self.tried)])

    def __str__(self) -> str:
        return f"{self.name} ({self.why})"


def _shown(a: Attempt[str]) -> str:
    return f"{a.candidate}: {a.problem or ('right' if a.ms is None else f'{a.ms:.4g} ms')}"


#: The signature, whether sequences have lengths, the flag's word, the device.
_Key = tuple[RNNSignature, bool, str, int]
_choices: ChoiceCache[Choice] = ChoiceCache()


def choose(net: RNNSignature, lengths: bool, wish: str, device: int | None) -> Choice:
    """The algorithm on a device; the named one, unchecked, if ``device`` is None.

    Raises :class:`~symdnn.errors.UnsupportedAlgorithm` for a named one that can't be used.
    """
    if wish == "standard" or device is None:
        return Choice(ALGORITHMS.get(wish, "STANDARD"), "as asked for")
    key: _Key = (net, lengths, wish, device)
    return _choices.get(key, lambda: _chosen(net, lengths, wish, device))


def forget() -> None:
    """Drop all choices; existing plans keep theirs."""
    _choices.clear()


def _chosen(net: RNNSignature, lengths: bool, wish: str, device: int) -> Choice:
    tried = _unless_blocked(net, lengths, Trial(net, lengths, device).tried)
    if wish == "time_once":
        return _fastest(net, lengths, tried)
    if wish == "guess":
        return _first(tried, guesses(net, lengths))
    found = tried(wish, False)
    if found.problem:
        works = [w for w in ALGORITHMS if w != wish and not tried(w, False).problem]
        error = UnsupportedAlgorithm(
            f"the algorithm {wish} can't be taken for {net}: {found.problem}. These can: "
            f"{', '.join(works)}"
        )
        others = (tried(w, False) for w in ALGORITHMS if w not in works)
        error.add_note("\n".join(["  Tried:", *(f"    {_shown(a)}" for a in others)]))
        raise with_version(error)
    return Choice(ALGORITHMS[wish], "the user's choice; its result was checked against standard")


_Try = Callable[[str, bool], Attempt[str]]


def _unless_blocked(net: RNNSignature, lengths: bool, tried: _Try) -> _Try:
    """Trials of algorithms that are not on the block list, where wrong ones are put."""
    here = existing_context()
    if here is None:
        return tried
    arch = ".".join(map(str, here.capability))
    made = {"library": "cudnn", "version": int(libcudnn.cudnnGetVersion()), "arch": arch}
    question = {**made, "net": plain(asdict(net)), "lengths": lengths}

    def one(word: str, timed: bool) -> Attempt[str]:
        if word != "standard" and blocked.error_of(question, word) is not None:
            return Attempt(word, problem="it is on the block list: its result was wrong")
        found = tried(word, timed)
        if found.wrong:
            blocked.add(question, word, word, found.error or 0.0, found.problem)
        return found

    return one


def _fastest(net: RNNSignature, lengths: bool, tried: _Try) -> Choice:
    """The fastest algorithm with a right result; ``standard`` if nothing could be timed."""
    found = answer(_RNNQuestion(net, lengths, tried))
    if found is None:
        return Choice(ALGORITHMS["standard"], "time_once, nothing could be timed")
    source = "time_once" if found.table else "time_once, measured before"
    one = found.attempt
    return Choice(ALGORITHMS[one.candidate], source, one.ms, tuple(found.table))


class _RNNQuestion(Question[str]):
    """The fastest of cuDNN's algorithms for a signature."""

    family = "recurrent network"

    def __init__(self, net: RNNSignature, lengths: bool, tried: _Try) -> None:
        self.net, self.lengths, self.tried = net, lengths, tried

    def key(self) -> dict[str, Any] | None:
        """The signature, the device, cuDNN's version."""
        here = device_key()
        if here is None:
            return None
        net = plain(asdict(self.net))
        version = int(libcudnn.cudnnGetVersion())
        return {**here, "cudnn": version, "net": net, "lengths": self.lengths}

    def measured(self) -> tuple[list[Attempt[str]], str]:
        """Attempts of all four algorithms."""
        return measure(_RNNBench(self.tried), ALGORITHMS), ""

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
        """Nothing: the standard algorithm runs."""


class _RNNBench(Bench[str]):
    """Trials of algorithms, with the results of ``standard`` as the reference."""

    def __init__(self, tried: _Try) -> None:
        self.tried = tried
        self._ms: dict[str, float] = {}

    def check(self, candidate: str, good_ms: float = inf) -> tuple[float, float]:
        """Raises for a wrong result; a right one is timed in the same trial."""
        found = self.tried(candidate, True)
        if found.problem or found.ms is None:
            raise SymdnnError(found.problem or "it could not be timed")
        self._ms[candidate] = found.ms
        return 0.0, 0.0

    def time(self, candidate: str, good_ms: float = inf) -> float:
        """The time from :meth:`check`."""
        return self._ms[candidate]


def _first(tried: _Try, order: Iterator[str]) -> Choice:
    """The first algorithm in this order with a right result."""
    found = []
    for word in order:
        found.append(tried(word, False))
        if not found[-1].problem:
            break
    right = not found[-1].problem
    return Choice(
        ALGORITHMS[found[-1].candidate if right else "standard"], "guess", None, tuple(found)
    )


def guesses(net: RNNSignature, lengths: bool) -> Iterator[str]:
    """Algorithms in the order of measurements on an H200 (cuDNN 9.19), ``standard`` last.

    Up to 128 hidden units ``persist_static_small_h`` was always faster, 1.04 to 9 times. Above,
    captured plans use ``standard``. Plans that are not captured (dropout) pay for each launch; in
    float16 a persistent algorithm makes them twice as fast. Sequences with lengths use
    ``standard`` alone.
    """
    if not lengths and net.shape.hidden_size <= 128:
        yield "persist_static_small_h"
    if not lengths and net.dropout and net.dtype == "float16":
        yield "persist_static"
    yield "standard"
