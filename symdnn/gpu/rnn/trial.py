"""Trials of cuDNN's algorithms for recurrent layers on random values."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import inf, isfinite
from typing import Any

import numpy as np

from symdnn.errors import SymdnnError
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.clock import Clock
from symdnn.gpu.device.context import context
from symdnn.gpu.device.env import Env
from symdnn.gpu.device.memory import memory_of
from symdnn.gpu.rnn.launch import Forward, GradInputs, GradWeights
from symdnn.gpu.rnn.signature import RNNSignature, layout_problem, sizes
from symdnn.graph.type import numpy_dtype
from symdnn.ops.vendor.gpudnn import GpuDnnRNNGradInputs, GpuDnnRNNGradWeights, GpuDnnRNNOp
from symdnn.tuning.attempts import Attempt, short

__all__ = ["Trial"]

#: The largest difference from the standard algorithm, relative to the largest value.
_MAX_RELATIVE_ERROR = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-3, "float64": 1e-9}
_TF32_MAX_RELATIVE_ERROR = 1e-2
_TIMED_RUNS, _TIMED_WINDOWS = 5, 3


class Trial:
    """Random operands of one signature, and the standard algorithm's results for them.

    With ``lengths`` the sequences end at different steps. Errors of the memory pool go to the
    caller.
    """

    def __init__(self, net: RNNSignature, lengths: bool, device: int) -> None:
        self.net, self.device = net, device
        self._context = context(device)
        self._memory = memory_of(self._context)
        self.ragged = lengths
        self._limit = (
            _TF32_MAX_RELATIVE_ERROR
            if net.allow_tf32 and net.dtype == "float32"
            else _MAX_RELATIVE_ERROR[net.dtype]
        )
        self._rng = np.random.default_rng(0)
        s = net.shape
        self.cell = s.rnn_mode == "lstm"
        states = (s.num_layers * s.directions, net.batch, s.hidden_size)
        out = (net.steps, net.batch, s.output_size)
        self.lengths = self._rng.permutation(np.linspace(1, net.steps, net.batch).astype(np.int64))
        self.w = self._drawn((net.parameters,), s.hidden_size**-0.5)
        self.x = self._drawn((net.steps, net.batch, net.features))
        self.hx, self.cx, self.dhy, self.dcy = (self._drawn(states) for _ in range(4))
        self.dy = self._drawn(out)
        self.expected = cache(lambda: self._results("standard"))

    def tried(self, word: str, timed: bool) -> Attempt[str]:
        """Whether an algorithm is right, and its time if ``timed``."""
        net = self.net.with_algorithm(word)
        try:
            if net.algo == "PERSIST_DYNAMIC" and net.dropout:
                return Attempt(word, problem="its kernels would be compiled again at each call")
            if elsewhere := layout_problem(net, self.device):
                return Attempt(word, problem=elsewhere)
            error, wrong = self._difference(word) if word != "standard" else (0.0, "")
            if wrong:
                return Attempt(word, error=error, problem=wrong)
            return Attempt(word, self._milliseconds(word) if timed else None)
        except (SymdnnError, RuntimeError, MemoryError) as error:
            return Attempt(word, problem=short(error))

    # -- values ------------------------------------------------------------------------------------

    def _drawn(self, shape: tuple[int, ...], scale: float = 1.0) -> RawArray:
        values = self._rng.uniform(-scale, scale, shape).astype(numpy_dtype(self.net.dtype))
        return self._memory.upload(values, None)

    def _empty(self, *like: RawArray) -> list[RawArray]:
        return [self._memory.empty(a.shape, a.dtype) for a in like]

    def _difference(self, word: str) -> tuple[float, str]:
        """The relative error of an algorithm's first wrong result, and in words; else 0, ``""``."""
        for name, got, want in zip(self._names(), self._results(word), self.expected()):
            error = float(np.abs(got - want).max(initial=0))
            scale = float(np.abs(want).max(initial=0))
            if not error <= self._limit * scale:
                found = error / scale if scale and isfinite(error) else inf
                return found, f"{name} differs from standard's by {error:.2g} of {scale:.2g}"
        return 0.0, ""

    def _names(self) -> list[str]:
        cell = ["cy"] * self.cell
        grads = ["dx", "dhx", *["dcx"] * self.cell, "dw"] if self.net.training else []
        return ["y", "hy", *cell, *grads]

    def _results(self, word: str) -> list[Any]:
        made = [self._memory.download(a) for a in self._launches(word)()]
        with np.errstate(invalid="ignore"):  # elements that were not written may be any NaN
            return [a.astype(np.float64) for a in made]

    # -- launches ----------------------------------------------------------------------------------

    def _launches(self, word: str) -> Callable[[], list[RawArray]]:
        """A function that enqueues forward, and for training backward, and returns the results."""
        net = self.net.with_algorithm(word)
        scratch = self._memory.empty((sizes(net, self.device).all_scratch,), "uint8")
        env = Env(self._context, scratch.ptr, -1, self._memory)
        y, hy, cy = self._empty(self.dy, self.hx, self.cx)
        dx, dhx, dcx, dw = self._empty(self.x, self.hx, self.cx, self.w)
        one, two, three = self._ops()
        forward, data, weights = Forward(one, net), GradInputs(two, net), GradWeights(three, net)
        given, cell = [self.w, self.x, self.hx], self.cell
        ends = [self.lengths] * self.ragged
        state = [np.array([1, 0], np.uint64)] * forward.random

        def enqueue() -> list[RawArray]:
            assert scratch is not None  # keeps the workspace alive
            out = [y, hy, *[cy] * cell, *[None] * len(state), *[None] * net.training]
            made = forward(env, [*given, *[self.cx] * cell, *ends, *state], out)
            if not net.training:
                return [y, hy, *[cy] * cell]
            back = [*[self.cx] * cell, *ends, y, self.dy, self.dhy, *[self.dcy] * cell, made[-1]]
            reserve = data(env, [*given, *back], [dx, dhx, *[dcx] * cell, None])[-1]
            weights(env, [*given, *ends, y, reserve], [dw])
            return [y, hy, *[cy] * cell, dx, dhx, *[dcx] * cell, dw]

        return enqueue

    def _ops(self) -> tuple[GpuDnnRNNOp, GpuDnnRNNGradInputs, GpuDnnRNNGradWeights]:
        s = self.net.shape
        words: dict[str, Any] = {
            "rnn_mode": s.rnn_mode, "direction_mode": s.direction_mode,
            "hidden_size": s.hidden_size, "num_layers": s.num_layers, "input_mode": s.input_mode,
            "dropout": self.net.rate, "lengths": self.ragged,
        }  # fmt: skip
        forward = GpuDnnRNNOp(**words, keeps_reserve=self.net.training)
        return forward, GpuDnnRNNGradInputs(**words), GpuDnnRNNGradWeights(**words)

    def _milliseconds(self, word: str) -> float:
        """The time as in plans: from a CUDA graph, unless each call needs the host."""
        memory, enqueue = self._memory, self._launches(word)
        clock = Clock(self._context)
        with memory.keeping() as kept:
            enqueue()
            memory.synchronize()
            on_host = self.ragged or self.net.dropout
            launch = enqueue if on_host else clock.captured_runs(enqueue, 1)
            launch()
            spans = [clock.elapsed_ms(launch, _TIMED_RUNS) for _ in range(_TIMED_WINDOWS)]
            kept.clear()
        return min(spans) / _TIMED_RUNS
