"""The choice of cuDNN's algorithm for a convolution, and its workspace.

The op, a hint or a flag ``dnn.conv.algo_*`` names it, by a word or by the number in cuDNN's enum.

* A named algorithm is one of the legacy API. If cuDNN does not support it for these shapes and this
  workspace limit, the flag ``dnn.conv.on_unsupported`` decides: an error, which lists the
  algorithms that work, or another algorithm.
* A flag's default (``small``, ``none``) is replaced in two cases. For 16-bit types and NHWC the
  first plan of the graph API's heuristics is used, because cuDNN 9's other kernels are slow there.
  Where cuDNN does not support the default, the first guess is used.
* ``guess_*`` is the first guess of both APIs (:mod:`symdnn.gpu.conv.search`). ``time_*`` is the
  fastest of all with a right result (:mod:`symdnn.gpu.conv.measure`), kept on disk. ``kept_*`` is
  one that is there already: nothing is measured.
* ``*_on_shape_change`` chooses for each shape, ``*_once`` for the first shape of a node. A node's
  first choice that does not support a later shape is replaced by a guess.

``deterministic=more`` allows only algorithms that give the same bits each time. The choice then
does not depend on free memory, and a measurement is used only if it can be kept on disk, where all
processes find it; otherwise it guesses.

The default ``none`` of the gradient of the filters is replaced by ``deterministic`` for 16-bit
types, because ``none`` sums in the result itself and rounds each partial sum to 16 bits. Over 65543
samples of float16 its error was 3 percent on an H200 (cuDNN 9.19), that of ``deterministic`` 0.02
percent.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

from symdnn.config import config
from symdnn.errors import NoAlgorithm, UnsupportedAlgorithm
from symdnn.gpu.conv import tuning as conv_tuning
from symdnn.gpu.conv.candidate import Candidate
from symdnn.gpu.conv.search import Search
from symdnn.gpu.conv.signature import DIRECTIONS, ConvSignature, Direction
from symdnn.gpu.cudnn.version import with_version
from symdnn.gpu.device.cudnn_device import free_bytes, query_cudnn
from symdnn.graph.library_use import Fallback
from symdnn.graph.type import numpy_dtype
from symdnn.graph.variable import Apply
from symdnn.tuning import fallbacks
from symdnn.tuning.allowance import postponed
from symdnn.tuning.attempts import Attempt
from symdnn.tuning.question import Answer, ChoiceCache
from symdnn.tuning.replay import Recorded

__all__ = [
    "DIRECTIONS", "WAYS", "ConvAlgorithm", "ConvSignature", "Direction", "NoAlgorithm",
    "UnsupportedAlgorithm", "choose", "forget", "reasons", "wanted_algorithm",
]  # fmt: skip


#: Plans of the graph API that the error of a named algorithm lists.
_MAX_LISTED_PLANS = 4


@dataclass(frozen=True)
class ConvAlgorithm:
    """The choice: a candidate, its source, and the name of the algorithm that it replaces.

    ``ms`` is its time, if it was measured; ``measured`` has the attempts of the measurement.
    ``why_not`` says why the user did not get ``instead_of``, ``cost`` what the replacement costs.
    """

    candidate: Candidate
    source: str
    instead_of: str = ""
    ms: float | None = None
    measured: tuple[Attempt[Candidate], ...] = field(default=(), compare=False, repr=False)
    why_not: str = ""
    cost: str = ""

    @property
    def fallback(self) -> Fallback | None:
        """The chosen algorithm that does not run; None if none was chosen, or it runs."""
        if not self.why_not:
            return None
        return Fallback(self.instead_of, self.candidate.name, self.why_not, self.cost)

    @property
    def workspace_bytes(self) -> int:
        """The workspace without room for mirrored filters."""
        return self.candidate.workspace_bytes

    def __str__(self) -> str:
        more = [self.source, f"workspace {self.workspace_bytes} bytes"]
        more += [f"{self.ms:.4g} ms"] if self.ms is not None else []
        more += ["filters flipped by a copy"] * self.candidate.flip_by_copy
        more += [f"instead of {self.instead_of}"] * bool(self.instead_of)
        return f"{self.candidate.name} ({', '.join(more)})"


def wanted_algorithm(direction: str, op_algo: Any, hint: Any) -> str | int:
    """The algorithm by the op (set by lowering), else by the hint, else by the flag."""
    for value in (op_algo, hint):
        if value is not None:
            return value if isinstance(value, str) else operator.index(value)
    return str(getattr(config.dnn.conv, f"algo_{direction}"))


def choose(
    signature: ConvSignature, device: int | None, node: Apply | None = None
) -> ConvAlgorithm:
    """The algorithm for a call on a device; an estimate if ``device`` is None.

    ``*_once`` keeps its first choice for ``node``. Raises :class:`UnsupportedAlgorithm` if a named
    one is unsupported and may not be replaced, or if cuDNN has no algorithm.
    """
    described = _described(signature)
    if device is None:
        return described
    return query_cudnn(
        lambda handle: _remembered.choose(signature, device, handle, node), described
    )


def choose_again(
    signature: ConvSignature, device: int | None, node: Apply | None = None
) -> ConvAlgorithm:
    """Another choice than the remembered one, which is on the block list by now.

    Raises as :func:`choose` does.
    """
    _remembered.drop(signature, device, node)
    return choose(signature, device, node)


def log_fallback(s: ConvSignature, chosen: ConvAlgorithm, node: Apply | None) -> None:
    """Log that a layer does not run the chosen algorithm."""
    if chosen.fallback is not None:
        fallbacks.log(chosen.fallback, s.direction, node)


def forget() -> None:
    """Drop the choices of this process; records on disk stay."""
    _remembered.clear()


class _Remembered:
    """Choices by shape, and the first choice of each node."""

    def __init__(self) -> None:
        self._choices: ChoiceCache[ConvAlgorithm] = ChoiceCache()
        self._first: WeakKeyDictionary[Apply, tuple[Any, Candidate]] = WeakKeyDictionary()

    def clear(self) -> None:
        """Drop all choices."""
        self._choices.clear()
        self._first.clear()

    def drop(self, s: ConvSignature, device: int | None, node: Any) -> None:
        """Drop the choice for a signature, also one from a node's first choice."""
        first_key, first = self._first.pop(node, (None, None)) if node is not None else (None, None)
        key = self._key(s, device)
        self._choices.drop(key)
        if first is not None:
            self._choices.drop((*key, first.key))
            if first_key != key:
                self._first[node] = first_key, first

    @staticmethod
    def _key(s: ConvSignature, device: int | None) -> tuple[Any, ...]:
        return (_general(s), device, str(config.dnn.conv.objective))

    def choose(self, s: ConvSignature, device: int, handle: int, node: Any) -> ConvAlgorithm:
        """The choice for a signature, which is made at most once."""
        once = node is not None and s.way and str(s.wanted).endswith("_once")
        key = self._key(s, device)
        first_key, first = self._first.get(node, (key, None)) if once else (key, None)
        if first is None or key == first_key:
            found = self._choices.get(key, lambda: _Choosing(s, handle).run())
        else:
            candidate = first
            found = self._choices.get(
                (*key, first.key), lambda: _Choosing(s, handle).keep(candidate)
            )  # fmt: skip
        if once and first is None and not postponed():
            self._first[node] = key, found.candidate
        return found


def _general(s: ConvSignature) -> ConvSignature:
    """The signature with one word for ``*_once`` and ``*_on_shape_change``, which share choices."""
    return replace(s, wanted=f"{s.way}_on_shape_change") if s.way else s


_remembered = _Remembered()


class _Choosing:
    """One choice."""

    def __init__(self, signature: ConvSignature, handle: int) -> None:
        self.signature = signature
        self.direction = DIRECTIONS[signature.direction]
        searching = signature.way and not signature.deterministic
        self.search = Search(signature, handle, free_bytes() if searching else 0)

    def run(self) -> ConvAlgorithm:
        """The choice for ``signature.wanted``."""
        s = self.signature
        if isinstance(s.wanted, Recorded):
            return self._replayed(s.wanted)
        if s.way in WAYS:
            found = WAYS[s.way](self.search)
            return self._not_demoted(found) if found else self._guess()
        if not s.named and (s.is_narrow or s.layout == "NHWC"):
            plan = next(self.search.planned(), None)
            if plan is not None:
                found = ConvAlgorithm(plan, "the graph API's heuristics", str(s.wanted))
                return self._not_demoted(found)
        return self._named(_word(self.direction, s.wanted))

    def _not_demoted(self, found: ConvAlgorithm) -> ConvAlgorithm:
        """The choice, with the better one that had too large a workspace, if there is one."""
        larger = self.search.too_large
        if larger is None or (found.why_not and larger[0] != found.instead_of):
            return replace(found, cost=_cost(found)) if found.why_not else found
        name, nbytes, why = larger
        return replace(found, instead_of=name, why_not=why, cost=_cost(found, nbytes))

    def _replayed(self, wanted: Recorded) -> ConvAlgorithm:
        """The algorithm of a report's row, which cuDNN must still support."""
        if wanted.record.get("epilogue"):  # its kernel has the epilogue, too: this one is not run
            return self._guess()
        found = conv_tuning.replayed(self.search, wanted)
        if found is not None:
            return ConvAlgorithm(found, f"replayed from {wanted.source}")
        if self.signature.on_unsupported == "raise":
            raise self._unsupported(wanted.name)
        return self._guess(wanted.name)

    def keep(self, first: Candidate) -> ConvAlgorithm:
        """A node's first choice for another shape, or a guess."""
        found = self.search.again(first.key)
        if found is not None:
            return ConvAlgorithm(found, "the node's first choice")
        return self._guess(f"{first.name}, the node's first choice")

    def _named(self, word: str) -> ConvAlgorithm:
        s, default = self.signature, self.direction.default
        asked = s.wanted if isinstance(s.wanted, int) else -1
        number = self.direction.algorithms.get(word, asked)
        if s.rounds_sums and word == default and not s.named:
            other = self.search.named(self.direction.algorithms["deterministic"])
            if other is not None:
                return ConvAlgorithm(other, "for its sums in 32 bits", word)
        found = self.search.named(number)
        if found is not None:
            return ConvAlgorithm(found, "as asked" if s.named else "the flag's default")
        if s.named and s.on_unsupported == "raise":
            raise self._unsupported(word)
        return self._guess(word)

    def _guess(self, instead_of: str = "") -> ConvAlgorithm:
        found = next(self.search.guesses(), None)
        if found is None:
            why = reasons(self.search.refused)
            raise self._explained(
                NoAlgorithm(f"cuDNN has no algorithm for this convolution: {why}")
            )
        refused = self.search.refused.get(instead_of.partition(",")[0], ())
        why = (
            "; ".join(refused) if self.signature.named else ""
        )  # a default was not chosen by the user
        guess = ConvAlgorithm(found, "cuDNN's heuristics", instead_of, why_not=why)
        return self._not_demoted(guess)

    def _unsupported(self, word: str) -> UnsupportedAlgorithm:
        direction = self.signature.direction
        why = reasons({w: r for w, r in self.search.refused.items() if w == word})
        found = self.search.working()
        working = ", ".join(c.name for c in found) or "none of them"
        found += islice(self.search.planned(), _MAX_LISTED_PLANS)
        return self._explained(
            UnsupportedAlgorithm(
                f"algorithm {word!r} can't be used: {why}. Of the named ones these work here: "
                f"{working}. Name one of them (flag dnn.conv.algo_{direction}, or algo=), let "
                "guess_once or time_once choose, or set dnn.conv.on_unsupported=fallback"
            ),
            found,
        )

    def _explained(
        self, error: UnsupportedAlgorithm, working: Sequence[Candidate] = ()
    ) -> UnsupportedAlgorithm:
        """The error with the convolution, cuDNN's version, and the answer for each candidate."""
        s = self.signature
        error.add_note(f"  {s}; layout {s.layout}")
        with_version(error)
        lines = [f"    {c.name}: works, {c.workspace_bytes} bytes of workspace" for c in working]
        lines += [f"    {name}: {'; '.join(why)}" for name, why in self.search.refused.items()]
        error.add_note("\n".join(["  Tried:", *lines]))
        return error


def _timed(found: Answer[Candidate] | None) -> ConvAlgorithm | None:
    """The measured choice; None if there is none."""
    if found is None:
        return None
    one = found.attempt
    return ConvAlgorithm(one.candidate, found.source, ms=one.ms, measured=found.table)


#: The ways to choose, by the values of ``dnn.conv.algo_*`` without ``_once`` or
#: ``_on_shape_change``. If a way finds nothing, the first guess is used.
WAYS: dict[str, Callable[[Search], ConvAlgorithm | None]] = {
    "guess": lambda search: None,
    "time": lambda search: _timed(conv_tuning.measured(search)),
    "kept": lambda search: _timed(conv_tuning.kept(search)),
}


def _cost(got: ConvAlgorithm, asked_bytes: int | None = None) -> str:
    """The cost of a replacement, in words."""
    instead = "" if asked_bytes is None else f" instead of {asked_bytes}"
    time = "time not measured" if got.ms is None else f"{got.ms:.4g} ms"
    return f"{got.workspace_bytes} bytes of workspace{instead}, {time}"


def reasons(refused: dict[str, list[str]]) -> str:
    """Why candidates were refused, in words."""
    return "; ".join(f"{name}: {why}" for name, found in refused.items() for why in found)


def _word(direction: Direction, wanted: str | int | Recorded) -> str:
    if isinstance(wanted, int):
        return direction.word(wanted)
    if isinstance(wanted, Recorded) or wanted not in direction.algorithms:
        ways = (f"{way}_{when}" for way in WAYS for when in ("once", "on_shape_change"))
        known = [*direction.algorithms, *ways]
        error = UnsupportedAlgorithm(
            f"algorithm {wanted!r} of cudnnConvolution{direction.stem}: "
            f"wanted one of {', '.join(known)}"
        )
        raise with_version(error)
    return wanted


# -- without a device -----------------------------------------------------------------------------


def _described(s: ConvSignature) -> ConvAlgorithm:
    """The algorithm that would be tried first, with an estimated workspace."""
    direction = DIRECTIONS[s.direction]
    free = s.way in WAYS or isinstance(s.wanted, Recorded)
    word = direction.default if free else _word(direction, s.wanted)
    if (s.deterministic and word in direction.random) or (
        s.rounds_sums and word == direction.default
    ):
        word = "deterministic"
    number = direction.algorithms.get(word, s.wanted if isinstance(s.wanted, int) else 0)
    fixed = word not in direction.random
    candidate = Candidate("legacy", word, estimated_bytes(s, word), fixed, number)
    return ConvAlgorithm(candidate, "not asked of a device")


def estimated_bytes(s: ConvSignature, word: str) -> int:
    """An estimate of an algorithm's workspace, for plans of described devices."""
    item = numpy_dtype(s.dtype).itemsize
    columns = prod(s.w[1:]) * prod(s.y[2:]) * item
    padded = prod(2 * n + k for n, k in zip(s.x[2:], s.w[2:])) * 8
    spectra = padded * (s.x[0] * s.x[1] + s.w[0] * s.w[1] + s.y[0] * s.y[1])
    tiles = 4 * item * (prod(s.x) + prod(s.y) + 4 * prod(s.w))
    sizes = {
        "small": 4 * prod(s.w[1:]) + 1024, "large": columns, "fft": spectra, "fft_tiling": spectra,
        "winograd_non_fused": tiles,
    }  # fmt: skip
    return sizes.get(word, 0)
