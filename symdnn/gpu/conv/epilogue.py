"""A convolution with what follows it, in one kernel of cuDNN's graph API or in two kernels.

Two are the convolution as :mod:`symdnn.gpu.conv.launch` runs it, and a generated elementwise
kernel. One is taken

* where no algorithm was named, channels are last, and cuDNN has such a kernel ready made: for a
  bias, an addend, and relu. With channels second and TF32 its first choice took longer than two
  kernels (64x64x56x56, 3x3: 0.167 against 0.162 ms, with an addend 0.209 against 0.174 ms; H200,
  cuDNN 9.19);
* with ``time_*`` where the measurement finds it faster, its result agreeing with that of the two.
  Other activations, for which cuDNN compiles a kernel, are measured only.

``deterministic=more`` measures nothing here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from symdnn.errors import CudnnError, SymdnnError
from symdnn.gpu.conv import graph_conv
from symdnn.gpu.conv.bench import Bench
from symdnn.gpu.conv.candidate import Candidate, CandidateRun
from symdnn.gpu.conv.graph_conv import Epilogue
from symdnn.gpu.conv.signature import ConvSignature
from symdnn.gpu.device.array import DeviceArray
from symdnn.gpu.device.cudnn_device import ask, asked, device_index, free_bytes
from symdnn.graph.type import numpy_dtype

__all__ = ["Fused", "Trial", "choose", "forget"]

#: Plans that are measured: later ones of cuDNN's list hardly ever win.
_MEASURED = 6
#: Activations for which cuDNN has kernels ready made.
_READY = ("", "relu")
_COMPARED = 1 << 20
_MOST_REMEMBERED = 4096


@dataclass(frozen=True)
class Fused:
    """The kernel that does all of it. ``ms`` is its time, ``apart_ms`` that of the two kernels,
    where they were measured."""

    signature: ConvSignature
    epilogue: Epilogue
    candidate: Candidate
    ms: float | None = None
    apart_ms: float | None = None

    @property
    def total_bytes(self) -> int:
        """Workspace, with room for mirrored kernels."""
        return self.candidate.total_bytes(self.signature)

    def prepared(self, handle: Any) -> CandidateRun:
        """What launches it: ``run(env, arrays)`` with ``bias`` and ``residual`` among them."""
        plan = self.candidate.plan
        assert plan is not None, "one kernel is a plan of the graph API"
        form = self.candidate.form(self.signature)
        launch = graph_conv.launch(form, plan, handle, self.epilogue)
        return CandidateRun(
            self.candidate, self.signature, lambda h, at, ws, alpha, beta: launch(h, at, ws)
        )

    @property
    def why(self) -> str:
        """Where the choice comes from."""
        if self.ms is None or self.apart_ms is None:
            return f"{self.epilogue} in one kernel, by the graph API's heuristics"
        return f"{self.epilogue} in one kernel: {self.ms:.4g} ms, {self.apart_ms:.4g} ms in two"

    def __str__(self) -> str:
        return f"{self.candidate.name} ({self.why})"


#: The two kernels, for a measurement: workspace bytes, and a launch of (env, arrays by role).
@dataclass(frozen=True)
class Trial:
    """What one kernel is measured against."""

    nbytes: int
    launch: Callable[[Any, Any], Any]

    def total_bytes(self, s: ConvSignature) -> int:
        """As a candidate has it."""
        return self.nbytes

    def prepared(self, s: ConvSignature, handle: Any) -> Callable[[Any, Any], Any]:
        """As a candidate has it."""
        return self.launch


_choices: OrderedDict[Any, Fused | None] = OrderedDict()


def forget() -> None:
    """Choose anew from now on."""
    _choices.clear()


def choose(s: ConvSignature, epilogue: Epilogue, apart: Callable[[], Trial]) -> Fused | None:
    """The one kernel for a call; None where two are taken. ``apart`` makes these for a measurement.

    None where there is no device to ask.
    """
    device = device_index()
    timed = str(s.wanted).startswith("time") and not s.deterministic
    if device is None or not (timed or _guessed(s, epilogue)):
        return None
    key = (replace(s, on_unsupported=""), epilogue, device)
    if key not in _choices:
        _choices[key] = ask(
            lambda handle: (
                _timed(s, epilogue, handle, apart)
                if timed
                else next(iter(_fused(s, epilogue, handle, 1)), None)
            ),
            None,
        )
        while len(_choices) > _MOST_REMEMBERED:
            _choices.popitem(last=False)
    return _choices[key]


def _guessed(s: ConvSignature, epilogue: Epilogue) -> bool:
    """Whether one kernel is taken without a measurement."""
    free = not s.named or str(s.wanted).startswith(("guess", "time"))
    return free and epilogue.activation in _READY and s.layout == "NHWC"


def _fused(s: ConvSignature, epilogue: Epilogue, handle: Any, most: int) -> list[Fused]:
    """Up to so many kernels that do all of it, the most promising first."""
    for form in [s, replace(s, flip=False)][: 1 + s.flip]:
        plans, _ = graph_conv.plans(form, handle, epilogue, most=most)
        found = [
            Candidate(
                "graph", p.name, p.workspace_bytes, p.deterministic, plan=p,
                flip_by_copy=form.flip != s.flip,
            )
            for p in plans
        ]  # fmt: skip
        if found:
            return [Fused(s, epilogue, c) for c in found]
    return []


def _timed(
    s: ConvSignature, epilogue: Epilogue, handle: Any, apart: Callable[[], Trial]
) -> Fused | None:
    """The fastest of one kernel and of two; None for two."""
    most, two = free_bytes(), apart()
    fused = [f for f in _fused(s, epilogue, handle, _MEASURED) if f.total_bytes <= most]
    if not fused:
        return None
    try:
        with _EpilogueBench(asked(), s, epilogue) as bench:
            apart_ms = bench.time(_as_candidate(two))
            best = bench.fastest(fused, _as_candidate(two), apart_ms)
            return None if best is None else replace(best, apart_ms=apart_ms)
    except (SymdnnError, RuntimeError):
        return None


def _as_candidate(what: Any) -> Candidate:
    """What a bench asks of a candidate, a trial has."""
    found: Candidate = what
    return found


class _Whole:
    """One kernel as a bench asks it."""

    def __init__(self, fused: Fused) -> None:
        self.fused = fused

    def total_bytes(self, s: ConvSignature) -> int:
        """Its workspace."""
        return self.fused.total_bytes

    def prepared(self, s: ConvSignature, handle: Any) -> CandidateRun:
        """What launches it."""
        return self.fused.prepared(handle)


class _EpilogueBench(Bench):
    """A bench with the operands of an epilogue besides."""

    def __init__(self, context: Any, s: ConvSignature, epilogue: Epilogue) -> None:
        super().__init__(context, s)
        self.epilogue = epilogue

    def __enter__(self) -> _EpilogueBench:
        super().__enter__()
        s, y = self.signature, self.arrays["y"]
        if self.epilogue.bias:
            shape = (1, s.w[0], *(1 for _ in s.y[2:]))
            self.arrays["bias"] = self._values(shape, y.dtype, seed=5)
        if self.epilogue.residual:
            self.arrays["residual"] = self._values(y.shape, y.dtype, seed=6)
        return self

    def _values(self, shape: tuple[int, ...], dtype: str, seed: int) -> DeviceArray:
        """Random values, repeated where there are many."""
        array = DeviceArray(0, shape, dtype)
        array = replace(array, ptr=self._allocate(array.nbytes))
        rng = np.random.default_rng(seed)
        some = rng.standard_normal(min(array.size, _COMPARED)).astype(numpy_dtype(dtype))
        for start in range(0, array.size, some.size):
            part = some[: array.size - start]
            self._driver.cuMemcpyHtoD(
                array.ptr + start * array.itemsize, part.ctypes.data, part.nbytes
            )
        return array

    def fastest(self, fused: Sequence[Fused], two: Candidate, limit_ms: float) -> Fused | None:
        """The fastest that takes less time than ``limit_ms`` and computes what ``two`` do."""
        want, found = self._result(two), []
        for f in fused:
            whole = _as_candidate(_Whole(f))
            try:
                if self._agrees(self._result(whole), want):
                    found.append(replace(f, ms=self.time(whole, limit_ms)))
            except (CudnnError, SymdnnError, RuntimeError):
                continue
        best = min(found, key=lambda f: f.ms or 0.0, default=None)
        return best if best is not None and (best.ms or 0.0) < limit_ms else None

    def _result(self, candidate: Candidate) -> Any:
        """The head and the tail of what a run gives."""
        run = candidate.prepared(self.signature, self.context.cudnn)
        y = self.arrays["y"]
        self._spoil(y)
        with self._workspace(candidate.total_bytes(self.signature)) as env:
            run(env, self.arrays)
        n = min(y.size, _COMPARED)
        parts = []
        for start in {0, y.size - n}:
            part = np.empty(n, numpy_dtype(y.dtype))
            self._driver.cuMemcpyDtoH(part.ctypes.data, y.ptr + start * y.itemsize, part.nbytes)
            parts.append(part.astype(np.float64))
        return np.concatenate(parts)

    def _agrees(self, got: Any, want: Any) -> bool:
        scale = float(np.linalg.norm(want)) or 1.0
        return float(np.linalg.norm(got - want)) <= self.error_limit * scale
