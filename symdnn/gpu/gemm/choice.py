"""Which of cuBLASLt's algorithms runs a product: the heuristics' first, or the fastest.

The flag ``gpu.gemm.algo`` decides: ``guess`` takes what the heuristics expect to be the fastest;
``time`` measures their first ones on the product's own operands when it first runs, the fastest few
once more in turn, and takes the fastest whose result agrees with the first one's. Either is
remembered for the signature, and what was measured is kept on disk too. With
``deterministic=more`` nothing is timed: what is the fastest may differ from one process to the
next, and with it the last bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.gpu.binding.libcublaslt import CublasError
from symdnn.gpu.device.array import DeviceArray
from symdnn.gpu.device.clock import being_captured, race_ms, replay_ms
from symdnn.gpu.gemm.plan import GemmAlgorithm, GemmPlan, GemmSignature, Pointers
from symdnn.gpu.tuning.records import gemm_record, recall_gemm, remember_gemm

__all__ = ["GemmChoice", "choose", "chosen", "forget", "wanted_mode"]

#: How many of the heuristics' algorithms are measured.
CANDIDATES = 24
#: How many of them are measured again, and how much slower than the fastest they may be.
_FINALISTS, _NEAR = 4, 1.15
#: Elements of the result's two ends that are compared.
_COMPARED = 1 << 20
_TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "tf32": 3e-3, "float32": 1e-4, "float64": 1e-10}


@dataclass(frozen=True)
class GemmChoice:
    """What was chosen for a signature, and how: ``guess`` or ``time``.

    ``ms`` are the times of those that were measured, in the heuristics' order (None: it failed or
    its result was wrong); empty for a guess.
    """

    signature: GemmSignature
    mode: str
    algorithm: GemmAlgorithm
    ms: tuple[float | None, ...] = ()

    @property
    def best_ms(self) -> float | None:
        """The time of what was chosen, if it was measured."""
        return min((t for t in self.ms if t is not None), default=None)

    @property
    def why(self) -> str:
        """Where the choice comes from."""
        if self.best_ms is None:
            return f"by {self.mode}"
        known = sum(t is not None for t in self.ms)
        first = "failed" if self.ms[0] is None else f"{self.ms[0] * 1e3:.1f} us"
        best = f"{self.best_ms * 1e3:.1f} us of {known}"
        return f"by {self.mode}: {best}, the first guess {first}"

    def __str__(self) -> str:
        return f"{self.signature}: {self.algorithm}, {self.why}"


_chosen: dict[tuple[int, GemmSignature, str], GemmChoice] = {}
_lock = threading.Lock()


def wanted_mode() -> str:
    """``guess`` or ``time``, as the flags say now."""
    return "guess" if str(config.deterministic) == "more" else str(config.gpu.gemm.algo)


def chosen() -> list[GemmChoice]:
    """All choices of this process, in the order in which they were made."""
    with _lock:
        return list(_chosen.values())


def forget() -> None:
    """Choose again for every signature."""
    with _lock:
        _chosen.clear()


def choose(
    plan: GemmPlan, mode: str, env: Any, at: Pointers, factors: Sequence[float]
) -> GemmChoice:
    """The choice for a product that runs on these addresses; remembered.

    Raises :class:`~symdnn.gpu.binding.libcublaslt.CublasError` where cuBLASLt has none.
    """
    key = (env.cublaslt, plan.signature, mode)
    found = _chosen.get(key)
    if found is not None:
        return found
    if mode == "time" and not being_captured(env):
        made = _recalled(plan) or _kept(_timed(plan, env, at, factors))
    else:
        made = GemmChoice(plan.signature, "guess", plan.algorithms(1)[0])
    if made.mode == mode:
        with _lock:
            _chosen[key] = made
    return made


def _recalled(plan: GemmPlan) -> GemmChoice | None:
    """The choice of an earlier process, if the heuristics still know it."""
    record = recall_gemm(plan.signature, CANDIDATES)
    if record is None:
        return None
    for algorithm in plan.algorithms(CANDIDATES):
        ms = record.get("ms", [])
        if gemm_record(algorithm, tuple(ms)) == record:
            return GemmChoice(plan.signature, "time", algorithm, tuple(ms))
    return None


def _kept(made: GemmChoice) -> GemmChoice:
    remember_gemm(made.signature, CANDIDATES, gemm_record(made.algorithm, made.ms))
    return made


def _timed(plan: GemmPlan, env: Any, at: Pointers, factors: Sequence[float]) -> GemmChoice:
    """Measure on the operands as they are, into memory of its own."""
    candidates = plan.algorithms(CANDIDATES)
    results = _Results(plan.signature, env, at)
    runs = [_enqueuing(plan, a, results.at, factors, env) for a in candidates]
    ms: list[float | None] = []
    for run in runs:
        ms.append(_ms(env, run, min([t for t in ms if t is not None], default=inf)))
    _race(env, runs, ms)
    want: Any = None
    for i in sorted((i for i, t in enumerate(ms) if t is not None), key=lambda i: ms[i] or 0):
        if i == 0:
            break
        if want is None:
            want = results.of(_enqueuing(plan, candidates[0], results.at, factors, env))
        got = results.of(_enqueuing(plan, candidates[i], results.at, factors, env))
        if ms[0] is None or _agree(want, got, plan.signature):
            return GemmChoice(plan.signature, "time", candidates[i], tuple(ms))
        ms[i] = None
    return GemmChoice(plan.signature, "time", candidates[0], tuple(ms))


def _enqueuing(
    plan: GemmPlan, algorithm: GemmAlgorithm, at: Pointers, factors: Sequence[float], env: Any
) -> Callable[[], None]:
    return lambda: plan.run(algorithm, at, factors, env.workspace, env.stream)


def _ms(env: Any, enqueue: Callable[[], None], good_ms: float) -> float | None:
    """Its time, roughly where it is far from good; None where it fails."""
    try:
        return replay_ms(env, enqueue, good_ms)
    except CublasError:
        return None


def _race(env: Any, runs: Sequence[Callable[[], None]], ms: list[float | None]) -> None:
    """Measure the fastest few again, in turn; ``ms`` gets the new times."""
    order = sorted((i for i, t in enumerate(ms) if t is not None), key=lambda i: ms[i] or 0)
    finalists = [i for i in order[:_FINALISTS] if (ms[i] or 0) <= _NEAR * (ms[order[0]] or 0)]
    if len(finalists) > 1:
        for i, again in zip(finalists, race_ms(env, [runs[i] for i in finalists]), strict=True):
            ms[i] = again


class _Results:
    """Memory for the results of trials: those of the program stay as they are."""

    def __init__(self, s: GemmSignature, env: Any, at: Pointers) -> None:
        self.env = env
        size = s.batch * s.d.rows * s.d.columns
        self.d = env.empty((size,), s.result)
        # What the epilogue writes besides: the sums of a factor.
        self.sums = env.empty((s.d.rows,), s.result) if s.epilogue.startswith("bgrad") else None
        bias = at.bias if self.sums is None else self.sums.ptr
        self.at = replace(at, d=self.d.ptr, bias=bias, c=at.c or self.d.ptr)

    def of(self, enqueue: Callable[[], None]) -> list[Any]:
        """What a trial computes: both ends of the result, and the sums."""
        enqueue()
        n = self.d.size
        ends = [self.d] if n <= 2 * _COMPARED else [self._part(0), self._part(n - _COMPARED)]
        return [self.env.download(x) for x in (*ends, self.sums) if x is not None]

    def _part(self, start: int) -> DeviceArray:
        at = self.d.ptr + start * self.d.itemsize
        return DeviceArray(at, (_COMPARED,), self.d.dtype, owner=self.d)


def _agree(want: Sequence[Any], got: Sequence[Any], s: GemmSignature) -> bool:
    """Whether two results are the same but for rounding; what is not finite must be so in both."""
    narrow = s.result in ("float16", "bfloat16")
    tolerance = _TOLERANCE[s.result if narrow else s.compute]
    return all(_close(np.asarray(a), np.asarray(b), tolerance) for a, b in zip(want, got))


def _close(a: Any, b: Any, tolerance: float) -> bool:
    kind = np.complex128 if a.dtype.kind == "c" else np.float64
    a, b = a.astype(kind), b.astype(kind)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)):
        return False
    size = np.abs(a[finite]).max(initial=0.0)
    return bool(np.abs(a[finite] - b[finite]).max(initial=0.0) <= tolerance * size)
