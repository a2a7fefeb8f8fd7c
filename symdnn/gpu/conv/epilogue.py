"""The choice for a convolution with an epilogue: one fused kernel of cuDNN, or two kernels.

Two kernels are the convolution by :mod:`symdnn.gpu.conv.launch` and a generated elementwise kernel.
The fused kernel of the graph API is used

* if no algorithm was named, in NHWC, for the epilogues of which cuDNN has precompiled kernels:
  a bias, an addend, and relu. In NCHW with TF32 its first plan took longer than two kernels
  (64x64x56x56, 3x3: 0.167 against 0.162 ms, with an addend 0.209 against 0.174 ms; H200,
  cuDNN 9.19);
* with ``time_*``, if it is measured to be faster and its result agrees with that of two kernels.
  Other activations, for which cuDNN compiles a kernel, are used only after such a measurement.

``deterministic=more`` measures nothing here. A program's own way to choose takes two kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from symdnn.config import config
from symdnn.errors import UnsupportedAlgorithm
from symdnn.gpu.conv.algorithm import ConvAlgorithm, reasons
from symdnn.gpu.conv.candidate import Candidate
from symdnn.gpu.conv.measure import measure
from symdnn.gpu.conv.search import Search
from symdnn.gpu.conv.signature import ConvSignature
from symdnn.gpu.conv.tuning import ConvQuestion, replayed
from symdnn.gpu.cudnn.version import with_version
from symdnn.gpu.device.cudnn_device import device_index, free_bytes, queried_context, query_cudnn
from symdnn.tuning.attempts import Attempt
from symdnn.tuning.question import Answer, ChoiceCache, answer
from symdnn.tuning.replay import Recorded

#: The number of plans to measure. Later ones of cuDNN's list are hardly ever the fastest.
_MEASURED_PLANS = 6
#: The number of plans of which the first that is allowed is used without a measurement.
_GUESSED_PLANS = 4
_PRECOMPILED_ACTIVATIONS = ("", "relu")
#: Ways to choose with which a fused kernel may run. Another one chooses among plain convolutions.
_WAYS = ("", "guess", "time", "kept")


@dataclass(frozen=True)
class TwoKernels:
    """The convolution and the elementwise kernel, as a candidate of a measurement.

    ``launch(env, arrays by role)`` runs both.
    """

    workspace_bytes: int
    launch: Callable[[Any, Any], Any]
    name: str = "two kernels"

    @property
    def key(self) -> str:
        """The key on the block list."""
        return self.name

    def total_bytes(self, s: ConvSignature) -> int:
        """The workspace."""
        return self.workspace_bytes

    def prepared(self, s: ConvSignature, handle: Any) -> Callable[[Any, Any], Any]:
        """The launch of both."""
        return self.launch


_choices: ChoiceCache[ConvAlgorithm | None] = ChoiceCache()


def forget() -> None:
    """Drop the choices of this process."""
    _choices.clear()


def choose(s: ConvSignature, unfused: Callable[[], TwoKernels]) -> ConvAlgorithm | None:
    """The fused kernel for a call; None for two kernels, and without a device.

    ``unfused`` makes the two kernels for a measurement.
    """
    device = device_index()
    only_kept = s.way == "kept"
    timed = (only_kept or s.way == "time") and not s.deterministic
    wanted = s.wanted
    if device is None or not (timed or isinstance(wanted, Recorded) or _guessed(s)):
        return None

    def chosen(handle: int) -> ConvAlgorithm | None:
        search = Search(s, handle, free_bytes() if timed else 0)
        if isinstance(wanted, Recorded):
            return _replayed(search, wanted)
        if timed:
            question = _EpilogueQuestion(search, unfused, only_kept)
            found = answer(question)
            if found is not None or not (only_kept and _guessed(s)):
                return _fastest(question, found)
        return _in_one(s, next(search.planned(_GUESSED_PLANS), None), _BY_HEURISTICS)

    key = (replace(s, on_unsupported=""), device)
    return _choices.get(key, lambda: query_cudnn(chosen, None))


_BY_HEURISTICS = ", by the graph API's heuristics"


def _in_one(
    s: ConvSignature, candidate: Candidate | None, why: str, ms: float | None = None
) -> ConvAlgorithm | None:
    """The choice of a fused kernel; None if there is none."""
    if candidate is None:
        return None
    return ConvAlgorithm(candidate, f"{s.epilogue} in one kernel{why}", ms=ms)


def _guessed(s: ConvSignature) -> bool:
    """Whether the fused kernel is used without a measurement."""
    precompiled = s.epilogue.activation in _PRECOMPILED_ACTIVATIONS and s.layout == "NHWC"
    return not s.names_one and s.way in _WAYS and precompiled


def _replayed(search: Search, wanted: Recorded) -> ConvAlgorithm | None:
    """The fused kernel of a report's row; None if that had two kernels.

    Raises :class:`~symdnn.errors.UnsupportedAlgorithm` if cuDNN does not support it any more, and
    the flag ``dnn.conv.on_unsupported`` demands it.
    """
    s = search.signature
    if not wanted.record.get("epilogue"):
        return None
    found = replayed(search, wanted)
    if found is None and s.on_unsupported == "raise":
        refused = UnsupportedAlgorithm(f"{wanted} can't be used: {reasons(search.refused)}")
        refused.add_note(f"  {s}; layout {s.layout}")
        raise with_version(refused)
    return _in_one(s, found, f", replayed from {wanted.source}")


def _fastest(question: _EpilogueQuestion, found: Answer[Any] | None) -> ConvAlgorithm | None:
    """The fastest of all fused kernels; None if two kernels are faster, or nothing is known."""
    if found is None or not isinstance(found.attempt.candidate, Candidate):
        return None
    ms, two_ms = found.attempt.ms, question.two_ms
    times = (
        _BY_HEURISTICS if ms is None or two_ms is None else f": {ms:.4g} ms, {two_ms:.4g} ms in two"
    )
    return _in_one(question.search.signature, found.attempt.candidate, times, ms)


class _EpilogueQuestion(ConvQuestion):
    """The fastest of two unfused kernels and all fused ones."""

    family = "convolution with an epilogue"

    def __init__(self, search: Search, unfused: Callable[[], TwoKernels], only_kept: bool) -> None:
        super().__init__(search, "time", only_kept=only_kept)
        self.warns = False  # two kernels run
        self.unfused = unfused
        #: The time of the two kernels, if measured.
        self.two_ms: float | None = None
        self.key |= {"plans": _MEASURED_PLANS}

    def measured(self) -> tuple[list[Attempt[Any]], str]:
        """Attempts of two kernels, whose result is the reference, then of the fused ones."""
        if self.only_kept:
            return super().measured()
        two: Any = self.unfused()
        fused = [*self.search.planned(_MEASURED_PLANS), *self.search.folded()]
        if not fused:
            return [Attempt(two, 0.0)], ""
        budget_ms = float(config.dnn.conv.time_budget)
        table, problem = measure(
            queried_context(), self.search.signature, [two, *fused], budget_ms, two=two
        )
        self.two_ms = table[0].ms if table else None
        return table, problem

    def record(self, best: Attempt[Any]) -> dict[str, Any]:
        """The plan, None for two kernels, and the time of those."""
        one = isinstance(best.candidate, Candidate)
        own = super().record(best) if one else {"plan": None, "name": best.candidate.name}
        return {**own, "ms": best.ms, "two_ms": self.two_ms}

    def revived(self, record: dict[str, Any]) -> Attempt[Any] | None:
        """The plan, if cuDNN still builds it."""
        self.two_ms = record.get("two_ms")
        if "plan" in record and record["plan"] is None:
            return Attempt(TwoKernels(0, lambda env, arrays: None), record.get("ms"))
        return super().revived({"error": None, **record})
