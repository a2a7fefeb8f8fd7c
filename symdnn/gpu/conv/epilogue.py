"""The choice for a convolution with an epilogue: one fused kernel of cuDNN, or two kernels.

Two kernels are the convolution by :mod:`symdnn.gpu.conv.launch` and a generated elementwise kernel.
The fused kernel of the graph API is used

* if no algorithm was named, in NHWC, for the epilogues of which cuDNN has precompiled kernels:
  a bias, an addend, and relu. In NCHW with TF32 its first plan took longer than two kernels
  (64x64x56x56, 3x3: 0.167 against 0.162 ms, with an addend 0.209 against 0.174 ms; H200,
  cuDNN 9.19);
* with ``time_*``, if it is measured to be faster and its result agrees with that of two kernels.
  Other activations, for which cuDNN compiles a kernel, are used only after such a measurement.

``deterministic=more`` measures nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from symdnn.errors import SymdnnError, UnsupportedAlgorithm
from symdnn.gpu.conv import blocklist
from symdnn.gpu.conv.bench import Bench
from symdnn.gpu.conv.blocklist import why_blocked
from symdnn.gpu.conv.candidate import Candidate, CandidateRun
from symdnn.gpu.conv.graph_conv import Epilogue, conv_graph
from symdnn.gpu.conv.reference import with_wide
from symdnn.gpu.conv.signature import SEARCH, ConvSignature
from symdnn.gpu.conv.tuning import candidate_record, key_of, plan_of
from symdnn.gpu.cudnn import graph
from symdnn.gpu.cudnn.version import with_version
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.cudnn_device import device_index, free_bytes, queried_context, query_cudnn
from symdnn.tuning import attempts
from symdnn.tuning.attempts import Attempt, short
from symdnn.tuning.question import ChoiceCache, Question, answer, plain
from symdnn.tuning.replay import Recorded

__all__ = ["Fused", "Trial", "choose", "forget"]

#: The number of plans to measure. Later ones of cuDNN's list are hardly ever the fastest.
_MEASURED_PLANS = 6
#: Numbers of plans in turn, of which the first that is allowed is used without a measurement.
_GUESSED_PLANS = (1, 4)
_PRECOMPILED_ACTIVATIONS = ("", "relu")


@dataclass(frozen=True)
class Fused:
    """The fused kernel. ``ms`` is its time, ``unfused_ms`` that of two kernels, if measured."""

    signature: ConvSignature
    epilogue: Epilogue
    candidate: Candidate
    ms: float | None = None
    unfused_ms: float | None = None

    @property
    def total_bytes(self) -> int:
        """The workspace, with room for mirrored filters."""
        return self.candidate.total_bytes(self.signature)

    @property
    def name(self) -> str:
        """The name of cuDNN's plan."""
        return self.candidate.name

    @property
    def is_allowed(self) -> bool:
        """Whether it is within the workspace limit, and not on the block list."""
        s, c = self.signature, self.candidate
        small = not s.workspace_limit or c.workspace_bytes <= s.workspace_limit
        return small and not why_blocked(s, c, self.epilogue)

    def prepared(self, handle: Any) -> CandidateRun:
        """A launch ``run(env, arrays)``; the arrays include ``bias`` and ``residual``."""
        plan = self.candidate.plan
        assert plan is not None, "one kernel is a plan of the graph API"
        form = self.candidate.form(self.signature)
        launch = graph.launch(conv_graph(form, self.epilogue), plan, handle)
        return CandidateRun(
            self.candidate, self.signature, lambda h, at, ws, alpha, beta: launch(h, at, ws)
        )

    @property
    def why(self) -> str:
        """The reason for the choice, for reports."""
        if self.ms is None or self.unfused_ms is None:
            return f"{self.epilogue} in one kernel, by the graph API's heuristics"
        return f"{self.epilogue} in one kernel: {self.ms:.4g} ms, {self.unfused_ms:.4g} ms in two"

    def __str__(self) -> str:
        return f"{self.candidate.name} ({self.why})"


@dataclass(frozen=True)
class Trial:
    """The two unfused kernels for a measurement: workspace, and ``launch(env, arrays by role)``."""

    nbytes: int
    launch: Callable[[Any, Any], Any]
    name: str = "two kernels"

    @property
    def total_bytes(self) -> int:
        """The workspace."""
        return self.nbytes

    def prepared(self, handle: int | None) -> Callable[[Any, Any], Any]:
        """The launch of both."""
        return self.launch


_choices: ChoiceCache[Fused | None] = ChoiceCache()


def forget() -> None:
    """Drop the choices of this process."""
    _choices.clear()


def choose(s: ConvSignature, epilogue: Epilogue, unfused: Callable[[], Trial]) -> Fused | None:
    """The fused kernel for a call; None for two kernels, and without a device.

    ``unfused`` makes the two kernels for a measurement.
    """
    device = device_index()
    timed = s.wanted in SEARCH and str(s.wanted).startswith("time") and not s.deterministic
    replayed = isinstance(s.wanted, Recorded)
    if device is None or not (timed or replayed or _guessed(s, epilogue)):
        return None

    def chosen(handle: int) -> Fused | None:
        if replayed:
            return _replayed(s, epilogue, handle)
        if timed:
            return _timed(s, epilogue, handle, unfused)
        return _first_fused(s, epilogue, handle)

    key = (replace(s, on_unsupported=""), epilogue, device)
    return _choices.get(key, lambda: query_cudnn(chosen, None))


def _replayed(s: ConvSignature, epilogue: Epilogue, handle: int) -> Fused | None:
    """The fused kernel of a report's row; None if that had two kernels.

    Raises :class:`~symdnn.errors.UnsupportedAlgorithm` if cuDNN does not support it any more, and
    the flag ``dnn.conv.on_unsupported`` demands it.
    """
    assert isinstance(s.wanted, Recorded)
    if not s.wanted.record.get("epilogue"):
        return None
    fused = _of_record(s, epilogue, s.wanted.record)
    try:
        fused.prepared(handle)  # builds it
        problem = "" if fused.is_allowed else "its workspace, or the block list"
    except (SymdnnError, RuntimeError) as error:
        problem = short(error)
    if not problem:
        return fused
    if s.on_unsupported == "raise":
        refused = UnsupportedAlgorithm(f"{s.wanted} can't be used: {problem}")
        refused.add_note(f"  {s}; layout {s.layout}")
        raise with_version(refused)
    return None


def _guessed(s: ConvSignature, epilogue: Epilogue) -> bool:
    """Whether the fused kernel is used without a measurement."""
    free = not s.named or s.wanted in SEARCH
    return free and epilogue.activation in _PRECOMPILED_ACTIVATIONS and s.layout == "NHWC"


def _fused(s: ConvSignature, epilogue: Epilogue, handle: int, most: int) -> list[Fused]:
    """Fused kernels within the limits, of the first ``most`` by cuDNN's heuristics."""
    for form in [s, replace(s, flip=False)][: 1 + s.flip]:
        plans, _ = graph.plans(conv_graph(form, epilogue), handle, most=most)
        flip = form.flip != s.flip
        found = [Fused(s, epilogue, Candidate.of_plan(plan, flip)) for plan in plans]
        if found:
            return [f for f in found if f.is_allowed]
    return []


def _first_fused(s: ConvSignature, epilogue: Epilogue, handle: int) -> Fused | None:
    """The first fused kernel that is allowed; None for two kernels."""
    found = (f for most in _GUESSED_PLANS for f in _fused(s, epilogue, handle, most))
    return next(found, None)


def _of_record(s: ConvSignature, epilogue: Epilogue, record: dict[str, Any]) -> Fused:
    """The fused kernel of a record, which is not built yet."""
    flip = bool(record["flip_by_copy"])
    return Fused(s, epilogue, Candidate.of_plan(plan_of(record["plan"]), flip))


def _timed(
    s: ConvSignature, epilogue: Epilogue, handle: int, unfused: Callable[[], Trial]
) -> Fused | None:
    """The fastest of all fused kernels; None if two kernels are faster."""
    found = answer(_EpilogueQuestion(s, epilogue, handle, unfused))
    chosen = None if found is None else found.attempt.candidate
    return chosen if isinstance(chosen, Fused) else None


class _EpilogueQuestion(Question[Any]):
    """The fastest of two unfused kernels and all fused ones."""

    family = "convolution with an epilogue"
    warns = False  # two kernels run

    def __init__(
        self, s: ConvSignature, epilogue: Epilogue, handle: int, unfused: Callable[[], Trial]
    ) -> None:
        self.signature, self.epilogue, self.handle, self.unfused = s, epilogue, handle, unfused
        self._two_ms: float | None = None

    def key(self) -> dict[str, Any]:
        """The convolution's key, and the epilogue."""
        more = {"epilogue": asdict(self.epilogue), "plans": _MEASURED_PLANS}
        return {**key_of(self.signature, "time"), **more}

    def fault(self) -> dict[str, Any]:
        """The convolution with its epilogue, cuDNN's version, the architecture."""
        return blocklist.question(self.signature, self.epilogue)

    def identity(self, candidate: Any) -> Any:
        """The plan's key; the two kernels have none."""
        return plain(candidate.candidate.key) if isinstance(candidate, Fused) else candidate.name

    def measured(self) -> tuple[list[Attempt[Any]], str]:
        """Attempts of two kernels, whose result is the reference, then of the fused ones."""
        most, two = free_bytes(), self.unfused()
        fused = _fused(self.signature, self.epilogue, self.handle, _MEASURED_PLANS)
        fused = [f for f in fused if f.total_bytes <= most]
        if not fused:
            return [Attempt(two, 0.0)], ""
        try:
            with _EpilogueBench(queried_context(), self.signature, self.epilogue) as bench:
                bench.compute_reference_by(two)
                trials: list[Any] = [two, *fused]
                table = attempts.measure(bench, trials)
        except (SymdnnError, RuntimeError) as error:
            return [], short(error)
        self._two_ms = table[0].ms
        return [replace(a, candidate=self._timed(a.candidate, a.ms)) for a in table], ""

    def _timed(self, candidate: Any, ms: float | None) -> Any:
        """A fused kernel with both times, for reports; any other candidate unchanged."""
        fused = isinstance(candidate, Fused)
        return replace(candidate, ms=ms, unfused_ms=self._two_ms) if fused else candidate

    def record(self, best: Attempt[Any]) -> dict[str, Any]:
        """The plan, None for two kernels."""
        c = best.candidate
        way = candidate_record(c.candidate) if isinstance(c, Fused) else {"plan": None}
        return {**way, "name": c.name, "ms": best.ms, "two_ms": self._two_ms}

    def revived(self, record: dict[str, Any]) -> Attempt[Any] | None:
        """The plan, if cuDNN still builds it."""
        try:
            self._two_ms, ms = record["two_ms"], record["ms"]
            if record["plan"] is None:
                return Attempt(Trial(0, lambda env, arrays: None), ms)
            found = _of_record(self.signature, self.epilogue, record)
            fused = replace(found, ms=ms, unfused_ms=self._two_ms)
            if fused.total_bytes > free_bytes():
                return None
            fused.prepared(self.handle)  # builds it
        except (KeyError, TypeError, ValueError, SymdnnError, RuntimeError):
            return None
        return Attempt(fused, ms)


class _EpilogueBench(Bench):
    """A bench with an epilogue's operands, and the result of two kernels as the reference."""

    def __init__(self, context: Any, s: ConvSignature, epilogue: Epilogue) -> None:
        super().__init__(context, s)
        self.epilogue = epilogue

    def compute_reference_by(self, two: Trial) -> None:
        """Draw the epilogue's operands, and take the result of the two kernels.

        Raises their errors, and :class:`~symdnn.gpu.conv.bench.NoRoom`.
        """
        s, y, wide = self.signature, self.arrays["y"], self.reference["y"]
        bias = (1, s.w[0], *(1 for _ in s.y[2:]))
        for seed, role in enumerate(self.epilogue.roles, 5):
            array = RawArray(0, bias if role == "bias" else y.shape, y.dtype)
            array = self.arrays[role] = replace(array, ptr=self._allocate(array.nbytes))
            room = replace(wide, shape=bias, strides=()) if role == "bias" else wide
            self._fill(array, room, seed)
        with self._workspace(two.total_bytes) as env:
            two.launch(env, self.arrays)
        with_wide(env, s.layout, y, wide, "take", TAKE=1)
        self._free_reference_operands()

    def _run(self, candidate: Any) -> Any:
        return candidate.prepared(self.context.cudnn)

    def _nbytes(self, candidate: Any) -> int:
        return int(candidate.total_bytes)
