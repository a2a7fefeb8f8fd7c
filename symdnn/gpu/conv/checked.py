"""Launches whose first run is checked (flag ``dnn.check``), and what replaces a wrong algorithm.

The first run of an algorithm at a shape is compared with a trusted one on the call's own operands
(:mod:`symdnn.gpu.conv.reference`). An algorithm that is wrong goes to the block list, and the
choice is made again: in the same call the next algorithm runs, and is checked, too. If the user
named the wrong one, the flag ``dnn.conv.on_unsupported`` decides, as where cuDNN refuses it.

A plan's first run is never captured, so captured graphs have checked algorithms and no check.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from symdnn.config import config
from symdnn.errors import SymdnnError
from symdnn.gpu.conv import algorithm, blocklist, reference
from symdnn.gpu.conv.algorithm import ConvAlgorithm
from symdnn.gpu.conv.candidate import Candidate, CandidateRun
from symdnn.gpu.conv.reference import Undecided
from symdnn.gpu.conv.signature import DIRECTIONS, ConvSignature
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.clock import is_capturing
from symdnn.gpu.device.cudnn_device import device_index, query_cudnn
from symdnn.graph.variable import Apply

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

#: Checks without a decision, because values are not finite, after which there are no more.
_MAX_UNDECIDED = 3

Arrays = Mapping[str, RawArray]
_right: set[Hashable] = set()


def forget() -> None:
    """Drop which algorithms were found right."""
    _right.clear()


class Checked:
    """When a check is due: once for an algorithm at a shape, at each call, or never."""

    def __init__(self, key: Hashable) -> None:
        self.key, self.mode = key, str(config.dnn.check)
        self.pending = self.mode == "always" or (self.mode == "once" and key not in _right)
        self._undecided = 0

    def due(self, env: LaunchEnv) -> bool:
        """Whether to check now; nothing can be checked while a graph is captured.

        Raises :class:`~symdnn.errors.SymdnnError` if the first run is captured, since the call
        before failed: then the plan is not captured.
        """
        if not is_capturing(env):
            return True
        if not self._undecided:
            raise SymdnnError("its algorithm has not been checked yet (dnn.check)")
        return False

    def verdict(self, found: float | str, limit: float, spent_ms: float) -> str | None:
        """Note an error, or why there is none, and say what was found; None if it is wrong."""
        if isinstance(found, str):
            self._undecided += 1
            self.pending = self.mode == "always" or self._undecided < _MAX_UNDECIDED
            return f"not checked: {found}"
        if not found <= limit:
            return None
        _right.add(self.key)
        self.pending = self.mode == "always"
        return f"checked, off by {found:.1g}, in {spent_ms:.3g} ms"


@dataclass
class InUse:
    """The algorithm of one call of cuDNN, and what the check said of it, for reports."""

    algorithm: ConvAlgorithm
    check: str = ""


class CheckedConv:
    """A launch ``run(env, arrays by role, alpha, beta)`` of one convolution.

    ``room_bytes`` is the workspace that the plan gives; an algorithm that replaces a wrong one
    allocates its own where it needs more.
    """

    def __init__(
        self, s: ConvSignature, in_use: InUse, node: Apply | None, room_bytes: int
    ) -> None:
        self.signature, self.in_use, self.node, self.room_bytes = s, in_use, node, room_bytes
        self.result = DIRECTIONS[s.direction].roles[2]
        self._own: RawArray | None = None
        self._take(in_use.algorithm.candidate)

    def _take(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.run = prepared(candidate, self.signature)
        self.checked = Checked((blocklist.asked(self.signature), candidate.key, device_index()))

    def __call__(
        self, env: LaunchEnv, arrays: Arrays, alpha: float = 1.0, beta: float = 0.0
    ) -> None:
        """Enqueue ``alpha * convolution + beta * result``; the first run is checked.

        Raises :class:`~symdnn.errors.UnsupportedAlgorithm` if a named algorithm is wrong and may
        not be replaced.
        """
        if self.checked.pending and self.checked.due(env):  # after the first run False
            plain = (alpha, beta) == (1.0, 0.0)
            self._check(env, arrays if plain else self._elsewhere(env, arrays))
            if plain:
                return
        self._enqueue(env, arrays, alpha, beta)

    def _enqueue(
        self, env: LaunchEnv, arrays: Arrays, alpha: float = 1.0, beta: float = 0.0
    ) -> None:
        if self.candidate.total_bytes(self.signature) > self.room_bytes:
            if self._own is None:
                nbytes = self.candidate.total_bytes(self.signature)
                self._own = reference.workspace(env, nbytes)
            env = reference.at_workspace(env, self._own)
        self.run(env, arrays, alpha, beta)

    def _elsewhere(self, env: LaunchEnv, arrays: Arrays) -> Arrays:
        """The arrays with another result: what the call adds to must stay."""
        out = arrays[self.result]
        return {**arrays, self.result: env.empty(out.shape, out.dtype)}

    def _check(self, env: LaunchEnv, arrays: Arrays) -> None:
        """Run algorithms until one is right, and leave its result in ``arrays``."""
        while True:
            start = time.perf_counter()
            found = checked_error(
                env, self.signature, arrays, self.candidate, lambda: self._enqueue(env, arrays),
            )  # fmt: skip
            spent_ms = (time.perf_counter() - start) * 1e3
            said = self.checked.verdict(found, blocklist.limit(self.signature), spent_ms)
            if said is not None:
                self.in_use.check = said
                return
            assert not isinstance(found, str)
            self._replace(found, spent_ms)

    def _replace(self, error: float, spent_ms: float) -> None:
        """Block the algorithm, and take the next one that is allowed."""
        s, wrong = self.signature, self.in_use.algorithm
        blocklist.block(s, self.candidate, error)
        found = algorithm.choose_again(s, device_index(), self.node)
        why = blocklist.why_wrong(s, error)
        cost = f"{spent_ms:.3g} ms for its run and the check"
        self.in_use.algorithm = replace(
            found, instead_of=wrong.candidate.name, why_not=why, cost=cost
        )
        algorithm.log_fallback(s, self.in_use.algorithm, self.node)
        self._own = None
        self._take(found.candidate)


def checked_error(
    env: LaunchEnv,
    s: ConvSignature,
    arrays: Arrays,
    candidate: Candidate,
    enqueue: Callable[[], object],
) -> float | str:
    """Run ``enqueue`` on a result filled with NaN: its relative error, or why there is none."""
    reference.spoil(env, arrays[DIRECTIONS[s.direction].roles[2]])
    enqueue()
    try:
        return reference.result_error(env, s, arrays, candidate, blocklist.limit(s))
    except Undecided as error:
        return str(error)
    except MemoryError:
        return "there is no room for a trusted result"


def prepared(candidate: Candidate, s: ConvSignature) -> CandidateRun:
    """The launch of a candidate. A plan of the graph API is built for the device's handle."""
    if candidate.plan is None:
        return candidate.prepared(s, None)
    found = query_cudnn(lambda handle: candidate.prepared(s, handle), None)
    assert found is not None, "a plan was chosen without a device"
    return found
