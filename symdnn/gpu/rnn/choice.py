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

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from symdnn.errors import UnsupportedAlgorithm
from symdnn.gpu.cudnn.version import version_number, with_version
from symdnn.gpu.device.cudnn_device import device_key, library_key
from symdnn.gpu.rnn.signature import ALGORITHMS, RNNSignature
from symdnn.gpu.rnn.trial import Trial
from symdnn.tuning.attempts import Attempt, Bench
from symdnn.tuning.question import ON_BLOCK_LIST, ChoiceCache, Question, answer, plain


@dataclass(frozen=True)
class Choice:
    """An algorithm by the flag's word, and the source of the choice; ``ms`` if it was measured."""

    name: str
    source: str
    ms: float | None = None
    tried: tuple[Attempt[str], ...] = field(default=(), compare=False)

    @property
    def algo(self) -> str:
        """cuDNN's name of the algorithm."""
        return ALGORITHMS[self.name]

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
        return Choice(wish if wish in ALGORITHMS else "standard", "as asked for")
    key: _Key = (net, lengths, wish, device)
    return _choices.get(key, lambda: _chosen(net, lengths, wish, device))


def forget() -> None:
    """Drop all choices; existing plans keep theirs."""
    _choices.clear()


def _chosen(net: RNNSignature, lengths: bool, wish: str, device: int) -> Choice:
    question = _RNNQuestion(net, lengths, Trial(net, lengths, device))
    if wish == "time_once":
        return _fastest(question)
    if wish == "guess":
        return _first(question, guesses(net, lengths))
    table = {wish: question.checked(wish)}
    if table[wish].problem:
        table |= {w: question.checked(w) for w in ALGORITHMS if w != wish}
        error = UnsupportedAlgorithm(
            f"the algorithm {wish} can't be taken for {net}: {table[wish].problem}. These can: "
            f"{', '.join(w for w in ALGORITHMS if not table[w].problem)}"
        )
        wrong = (f"    {_shown(a)}" for a in table.values() if a.problem)
        error.add_note("\n".join(["  Tried:", *wrong]))
        raise with_version(error)
    return Choice(wish, "the user's choice; its result was checked against standard")


def _fastest(question: _RNNQuestion) -> Choice:
    """The fastest algorithm with a right result; ``standard`` if nothing could be timed."""
    found = answer(question)
    if found is None:
        return Choice("standard", "time_once, nothing could be timed")
    source = "time_once" if found.table else "time_once, measured before"
    one = found.attempt
    return Choice(one.candidate, source, one.ms, found.table)


def _first(question: _RNNQuestion, order: Iterator[str]) -> Choice:
    """The first algorithm in this order with a right result."""
    found = []
    for word in order:
        found.append(question.checked(word))
        if not found[-1].problem:
            break
    best = "standard" if found[-1].problem else found[-1].candidate
    return Choice(best, "guess", None, tuple(found))


class _RNNQuestion(Question[str]):
    """The fastest of cuDNN's algorithms for a signature, by the flag's words."""

    family = "recurrent network"
    warns = False  # the standard algorithm runs

    def __init__(self, net: RNNSignature, lengths: bool, trial: Bench[str]) -> None:
        self.trial, asked = trial, {"net": plain(asdict(net)), "lengths": lengths}
        self.key = device_key(cudnn=version_number(), **asked)
        self.fault = library_key("cudnn", version_number(), **asked)

    def checked(self, word: str) -> Attempt[str]:
        """The attempt of an algorithm that is not timed; a wrong one goes to the block list."""
        if self.is_blocked(word):
            return Attempt(word, problem=ON_BLOCK_LIST)
        found = self.trial.tried(word, timed=False)
        if found.wrong:
            self.block(found)
        return found

    def measured(self) -> tuple[list[Attempt[str]], str]:
        """Attempts of all four algorithms."""
        return self.attempts(self.trial, ALGORITHMS), ""

    def record(self, best: Attempt[str]) -> dict[str, Any]:
        """The flag's word."""
        return {"name": best.candidate, "ms": best.ms}

    def revived(self, record: dict[str, Any]) -> Attempt[str] | None:
        """The algorithm, if its result is right."""
        word = str(record.get("name"))
        if word not in ALGORITHMS or self.checked(word).problem:
            return None
        return Attempt(word, float(record["ms"]))


def guesses(net: RNNSignature, lengths: bool) -> Iterator[str]:
    """Algorithms in the order of measurements on an H200 (cuDNN 9.19), ``standard`` last.

    Up to 128 hidden units ``persist_static_small_h`` was always faster, 1.04 to 9 times. Above,
    captured plans use ``standard``. Plans that are not captured (dropout) pay for each launch; in
    16 bits a persistent algorithm makes them twice as fast. Sequences with lengths use
    ``standard`` alone.
    """
    if not lengths and net.shape.hidden_size <= 128:
        yield "persist_static_small_h"
    if not lengths and net.dropout and net.dtype in ("float16", "bfloat16"):
        yield "persist_static"
    yield "standard"
