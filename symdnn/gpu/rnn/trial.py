"""Trials of cuDNN's algorithms for recurrent layers on random values."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
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
from symdnn.graph.typing import Array
from symdnn.ops.vendor.gpudnn import GpuDnnRNNGradInputs, GpuDnnRNNGradWeights, GpuDnnRNNOp
from symdnn.tuning.attempts import Bench

#: The largest difference from the standard algorithm, relative to the largest value.
_MAX_RELATIVE_ERROR = {
    "float16": 2e-2, "bfloat16": 1e-1, "tf32": 1e-2, "float32": 1e-3, "float64": 1e-9,
}  # fmt: skip
_TIMED_RUNS, _TIMED_WINDOWS = 5, 3


class Trial(Bench[str]):
    """Random operands of one signature; results are compared with the standard algorithm's.

    With ``lengths`` the sequences end at different steps. Errors of the memory pool go to the
    caller.
    """

    def __init__(self, net: RNNSignature, lengths: bool, device: int) -> None:
        self.net, self.device = net, device
        self._context = context(device)
        self._memory = memory_of(self._context)
        self.ragged = lengths
        exact = net.dtype != "float32" or not net.allow_tf32
        self.error_limit = _MAX_RELATIVE_ERROR[net.dtype if exact else "tf32"]
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

    def check(self, candidate: str, good_ms: float = inf) -> tuple[float, float]:
        """The largest relative error of a result. Raises SymdnnError for what can't be used."""
        net = self.net.with_algorithm(candidate)
        if net.algo == "PERSIST_DYNAMIC" and net.dropout:
            raise SymdnnError("its kernels would be compiled again at each call")
        if elsewhere := layout_problem(net, self.device):
            raise SymdnnError(elsewhere)
        if candidate == "standard":
            return 0.0, 0.0
        if self.trusted is None:
            self.trusted = self.results("standard")
        return super().check(candidate, good_ms)

    def results(self, candidate: str) -> list[Array]:
        """y and the states behind the last step, for training the gradients."""
        return [self._memory.download(a) for a in self._launches(candidate)()]

    def time(self, candidate: str, good_ms: float = inf) -> float:
        """The time as in plans: from a CUDA graph, unless each call needs the host."""
        memory, enqueue = self._memory, self._launches(candidate)
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

    # -- operands, launches ------------------------------------------------------------------------

    def _drawn(self, shape: tuple[int, ...], scale: float = 1.0) -> RawArray:
        values = self._rng.uniform(-scale, scale, shape).astype(numpy_dtype(self.net.dtype))
        return self._memory.upload(values, None)

    def _empty(self, *like: RawArray) -> list[RawArray]:
        return [self._memory.empty(a.shape, a.dtype) for a in like]

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
