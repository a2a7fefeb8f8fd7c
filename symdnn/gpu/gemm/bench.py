"""Trials of GEMMs on a call's own operands: both ends of their results, and replays of graphs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.clock import race_ms, replay_ms
from symdnn.graph.typing import Array
from symdnn.tuning.attempts import Bench

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

C = TypeVar("C")


class CallBench(Bench[C]):
    """Runs candidates on the call's operands; ``made``, the results, have memory of their own."""

    #: Elements at each end of a result that are compared.
    compared_elements = 1 << 17

    def __init__(self, env: LaunchEnv, error_limit: float) -> None:
        self.env, self.error_limit = env, error_limit
        self.made: list[RawArray] = []

    @abstractmethod
    def enqueuing(self, candidate: C) -> Callable[[], None]:
        """A function that enqueues a run, with its results in ``made``."""

    def results(self, candidate: C) -> list[Array]:
        """Both ends of each result, with what lies between rows or columns."""
        self.enqueuing(candidate)()
        return [end for out in self.made for end in self._ends(out)]

    def _ends(self, out: RawArray) -> list[Array]:
        count = (out.extent[1] - out.ptr) // out.itemsize
        some = min(count, self.compared_elements)
        parts = [
            RawArray(out.ptr + start * out.itemsize, (some,), out.dtype, owner=out)
            for start in dict.fromkeys((0, count - some))
        ]
        return [self.env.download(part) for part in parts]

    def time(self, candidate: C, good_ms: float) -> float:
        """By replays of a graph."""
        return replay_ms(self.env, self.enqueuing(candidate), good_ms)

    def race(self, candidates: Sequence[C]) -> list[float]:
        """By replays in turn."""
        return race_ms(self.env, [self.enqueuing(c) for c in candidates])
