"""The choice of cuBLASLt's algorithm for a GEMM: the heuristics' first, or the fastest.

The flag ``gpu.gemm.algo`` decides. ``guess`` takes the heuristics' first algorithm, or our kernel
of long sums where few results have them (:mod:`symdnn.gpu.gemm.long_sums`). ``time`` measures their
first ones on the GEMM's own operands in its first run, or the second one of shapes that are new to
a function, times the fastest few once more in turn, and takes the fastest whose result agrees with
that of the first. Choices are remembered by signature, and measured ones are kept on disk. With
``deterministic=more`` nothing is timed: the fastest algorithm, and so the last bits, may differ
between processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from symdnn.config import config
from symdnn.gpu.binding import libcublaslt
from symdnn.gpu.device.clock import is_capturing, replay_ms
from symdnn.gpu.device.cudnn_device import device_key, library_key
from symdnn.gpu.gemm.bench import CallBench
from symdnn.gpu.gemm.long_sums import LongSums, long_sums_ways
from symdnn.gpu.gemm.plan import GemmAlgorithm, GemmPlan, GemmSignature, Pointers
from symdnn.gpu.gemm.split import SplitGemm, split_ways
from symdnn.tuning.allowance import postponed
from symdnn.tuning.attempts import Attempt
from symdnn.tuning.question import ChoiceCache, Question, answer, plain

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

#: An algorithm of cuBLASLt, a GEMM of split operands, or our kernel of long sums.
GemmWay = GemmAlgorithm | SplitGemm | LongSums

#: Algorithms of the heuristics that are measured.
_CANDIDATE_COUNT = 24
_TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "tf32": 3e-3, "float32": 1e-4, "float64": 1e-10,
              "int32": 0.0}  # fmt: skip


@dataclass(frozen=True)
class GemmChoice:
    """The choice for a signature, by ``guess`` or ``time``.

    ``ms`` are the times of the measured algorithms, the heuristics' first one first, None for one
    that failed or gave a wrong result; it is empty for a guess.
    """

    signature: GemmSignature
    mode: str
    algorithm: GemmWay
    ms: tuple[float | None, ...] = ()

    @property
    def best_ms(self) -> float | None:
        """The time of the chosen algorithm, if it was measured."""
        return min((t for t in self.ms if t is not None), default=None)

    @property
    def arithmetic(self) -> str:
        """How it multiplies, for reports."""
        way = self.algorithm
        return self.signature.compute if isinstance(way, GemmAlgorithm) else way.arithmetic

    def enqueue(
        self, plan: GemmPlan, env: LaunchEnv, at: Pointers, factors: Sequence[float]
    ) -> None:
        """Enqueue the GEMM of a plan with this signature."""
        _enqueue(self.algorithm, plan, env, at, factors)

    @property
    def why(self) -> str:
        """The reason for the choice, for reports."""
        if self.best_ms is None:
            return f"by {self.mode}"
        known = sum(t is not None for t in self.ms)
        first = "failed" if self.ms[0] is None else f"{self.ms[0] * 1e3:.1f} us"
        best = f"{self.best_ms * 1e3:.1f} us of {known}"
        return f"by {self.mode}: {best}, the first guess {first}"

    def __str__(self) -> str:
        return f"{self.signature}: {self.algorithm}, {self.why}"


def _enqueue(
    way: GemmWay, plan: GemmPlan, env: LaunchEnv, at: Pointers, factors: Sequence[float]
) -> None:
    if isinstance(way, GemmAlgorithm):
        plan.run(way, at, factors, env.workspace, env.stream)
    else:
        way.enqueue(env, at, factors)


_choices: ChoiceCache[GemmChoice] = ChoiceCache()
#: Whether sums over an operand are a kernel of their own.
_apart: ChoiceCache[bool] = ChoiceCache()


def mode_by_flags() -> str:
    """``guess`` or ``time``, by the current flags."""
    return "guess" if str(config.deterministic) == "more" else str(config.gpu.gemm.algo)


def chosen() -> list[GemmChoice]:
    """All choices of this process, the last used one at the end."""
    return _choices.values()


def forget() -> None:
    """Drop all choices of this process."""
    _choices.clear()
    _apart.clear()


def choose(
    plan: GemmPlan, mode: str, env: LaunchEnv, at: Pointers, factors: Sequence[float],
    split_bytes: int = 0,
) -> GemmChoice:  # fmt: skip
    """The choice for a GEMM, which is measured on these addresses, or remembered.

    ``split_bytes`` is the room behind cuBLASLt's workspace for split operands.
    While a graph is captured nothing can be measured: then it is a guess that is not remembered.
    Raises :class:`~symdnn.gpu.binding.libcublaslt.CublasError` where cuBLASLt has no algorithm.
    """
    key = (env.cublaslt, plan.signature, mode, split_bytes)
    if mode != "time":
        return _choices.get(key, lambda: _guessed(plan))
    if key not in _choices and is_capturing(env):
        return _guessed(plan)
    return _choices.get(key, lambda: _timed(_GemmQuestion(plan, env, at, factors, split_bytes)))


def sums_apart(
    plans: tuple[GemmPlan, GemmPlan], env: LaunchEnv, at: Pointers, factors: Sequence[float],
    split_bytes: int, add_up: Callable[[], None],
) -> bool:  # fmt: skip
    """Whether a GEMM and ``add_up``, a kernel of sums, are measured to be faster than one call.

    Of the plans the first has the sums as its epilogue. Only the second one may split operands.
    """
    key = (env.cublaslt, plans[0].signature, split_bytes)
    if key not in _apart and is_capturing(env):
        return False

    def measured() -> bool:
        both = [choose(p, "time", env, at, factors, split_bytes).best_ms for p in plans]
        if postponed():
            return False
        if both[0] is None or both[1] is None or both[1] >= both[0]:
            return both[0] is None
        return both[1] + replay_ms(env, add_up, both[0]) < both[0]

    return _apart.get(key, measured)


def _guessed(plan: GemmPlan) -> GemmChoice:
    """Our kernel for long sums of few results, else the heuristics' first algorithm."""
    ways: Sequence[GemmWay] = long_sums_ways(plan.signature) or plan.algorithms(1)
    return GemmChoice(plan.signature, "guess", ways[0])


def _timed(question: _GemmQuestion) -> GemmChoice:
    """The fastest on these operands; the heuristics' first if none could be timed."""
    found = answer(question)
    if found is None:
        return replace(_guessed(question.plan), mode="time", ms=(None,))
    algorithm: GemmWay = found.attempt.candidate
    return GemmChoice(question.plan.signature, "time", algorithm, question.ms)


class _GemmQuestion(Question[GemmWay]):
    """The fastest of the heuristics' first algorithms, and of our ways."""

    family = "matrix product"
    warns = False  # the heuristics' first algorithm runs, and reports its own errors

    def __init__(
        self, plan: GemmPlan, env: Any, at: Pointers, factors: Sequence[float], split_bytes: int
    ) -> None:
        self.plan, self._operands, self.split_bytes = plan, (env, at, factors), split_bytes
        version, product = libcublaslt.version(), plain(asdict(plan.signature))
        made_by = {"cublaslt": version, "candidates": _CANDIDATE_COUNT}
        split = {"split_bytes": split_bytes} if split_bytes else {}
        ours = {"long_sums": 1} if long_sums_ways(plan.signature) else {}
        self.key = device_key(**made_by, **split, **ours, product=product)
        self.fault = library_key("cublaslt", version, product=product)
        #: Milliseconds of all measured algorithms, in the heuristics' order.
        self.ms: tuple[float | None, ...] = ()

    def identity(self, candidate: GemmWay) -> Any:
        """The algorithm's data."""
        return candidate.words["algorithm"]

    def _ways(self) -> list[GemmWay]:
        """The heuristics' first algorithm, which is the trusted one, the others, and theirs.

        Those of ours come early: the budget of time ends after few large products.
        """
        first, *others = self.plan.algorithms(_CANDIDATE_COUNT)
        split = split_ways(self.plan, self.split_bytes)
        return [first, *long_sums_ways(self.plan.signature), *split, *others]

    def measured(self) -> tuple[list[Attempt[GemmWay]], str]:
        """All candidates, with the result of the first as the reference."""
        bench = _GemmBench(self.plan, *self._operands)
        table = self.attempts(bench, self._ways())
        self.ms = tuple(a.ms if a.usable else None for a in table)
        return table, ""

    def record(self, best: Attempt[GemmWay]) -> dict[str, Any]:
        """The algorithm's data, and the times of all candidates."""
        return {**best.candidate.words, "ms": best.ms, "all_ms": list(self.ms)}

    def revived(self, record: dict[str, Any]) -> Attempt[GemmWay] | None:
        """The algorithm, if the heuristics still list it."""
        for algorithm in self._ways():
            if algorithm.words.items() <= record.items() and not self.is_blocked(algorithm):
                self.ms = tuple(record.get("all_ms", ()))
                return Attempt(algorithm, record.get("ms"))
        return None


class _GemmBench(CallBench[GemmWay]):
    """Runs the algorithms of a plan."""

    def __init__(
        self, plan: GemmPlan, env: LaunchEnv, at: Pointers, factors: Sequence[float]
    ) -> None:
        s = plan.signature
        narrow = s.result in ("float16", "bfloat16")
        limit = _TOLERANCE[s.result if narrow else s.compute]
        # Tensor cores add products of float8 with about 14 bits.
        super().__init__(env, max(limit, 3e-3) if s.scaled else limit)
        self.plan, self.factors = plan, factors
        d = env.empty((max(s.d.ld * s.d.columns, s.batch * s.d.batch_offset),), s.result)
        if s.d.ld > s.d.rows:
            env.zero(d.ptr, d.nbytes)  # what lies between columns is compared too
        self.made, self.at = [d], replace(at, d=d.ptr, c=at.c or d.ptr)
        if s.epilogue.startswith("bgrad"):  # it also writes sums over an operand
            size = s.d.rows if s.epilogue == "bgrada" else s.d.columns
            self.made.append(env.empty((size,), s.result))
            self.at = replace(self.at, bias=self.made[1].ptr)

    def enqueuing(self, candidate: GemmWay) -> Callable[[], None]:
        """A function that enqueues the GEMM by an algorithm."""
        return lambda: _enqueue(candidate, self.plan, self.env, self.at, self.factors)
