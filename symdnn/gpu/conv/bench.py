"""Trials of convolution candidates: operands of their own, a reference result, a clock.

Memory comes from the driver and is freed at the end, so that the arena and calls in progress are
not affected. The result is filled with NaN, the candidate runs, and its result is compared with
that of a trusted algorithm of the legacy API. Then the candidate is timed by replays of a graph.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Self

import numpy as np

from symdnn.errors import SymdnnError
from symdnn.gpu.conv.blocklist import tolerance
from symdnn.gpu.conv.candidate import Candidate, CandidateRun
from symdnn.gpu.conv.reference import plain, relative_error, trusted, with_wide
from symdnn.gpu.conv.search import Search
from symdnn.gpu.conv.signature import DIRECTIONS, ConvSignature
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.clock import Clock
from symdnn.gpu.device.context import Context
from symdnn.tuning import attempts

#: Bytes after a workspace, which are checked for writes.
_GUARD_BYTES = 1024
_RACE_WINDOW_MS, _RACE_ROUNDS = 2.0, 5
#: The check runs a candidate only once if the first run takes longer than this, or longer than the
#: time to load kernels and this many times the best time.
_LONG_RUN_MS = 200.0
_LOAD_MS, _HOPELESS_RATIO = 30.0, 10.0


class NoRoom(SymdnnError, MemoryError):
    """The device has no memory left for a measurement."""


class Overrun(SymdnnError):
    """A kernel wrote beyond the end of its workspace."""


@dataclass
class _Env:
    """A :class:`~symdnn.gpu.device.env.LaunchEnv` outside of any plan."""

    context: Context
    workspace: int = 0
    node: int = -1

    def __post_init__(self) -> None:
        self.stream, self.error_word = self.context.stream, self.context.error_word
        self.cudnn = self.context.cudnn
        self.module, self.launch = self.context.function, self.context.launch
        self.zero = self.context.zero

    @property
    def cublaslt(self) -> int:
        """The ``cublasLtHandle_t``."""
        return self.context.cublaslt


class Bench(attempts.Bench[Candidate]):
    """Operands for one signature on a device. A context manager that frees its memory at the end.

    The reference result is computed from the same values in NCHW and float32 (float64 for
    float64). Raises :class:`NoRoom`.
    """

    def __init__(self, context: Context, signature: ConvSignature) -> None:
        from cuda.bindings import driver

        self._driver: Any = driver
        self.context, self.signature = context, signature
        self._owned: list[int] = []
        self._room = (0, 0)  # address and size of the workspace
        self.clock = Clock(context)
        self.result = DIRECTIONS[signature.direction].roles[2]
        self.error_limit = tolerance(signature)
        self._plain = plain(signature, signature.x[0])

    def __enter__(self) -> Self:
        try:
            self.arrays = {r: self._array(self.signature, r) for r in ("x", "w", "y")}
            self.reference = {r: self._array(self._plain, r) for r in ("x", "w", "y")}
            self._sums = self._allocate(24)
        except NoRoom:
            self.__exit__()
            raise
        for seed, role in enumerate(("x", "w", "y")):
            if role != self.result:
                self._fill(self.arrays[role], self.reference[role], seed + 1)
        return self

    def __exit__(self, *_: object) -> None:
        self.context.synchronize()
        for ptr in self._owned:
            self._driver.cuMemFree(ptr)
        self._owned.clear()

    # -- memory -----------------------------------------------------------------------------------

    def _allocate(self, nbytes: int) -> int:
        status, ptr = self._driver.cuMemAlloc(max(nbytes, 16))
        if int(status) == 2:
            raise NoRoom(f"no room for {nbytes} bytes")
        if int(status) != 0:
            raise SymdnnError(f"cuMemAlloc: {status!r}")
        self._owned.append(int(ptr))
        return int(ptr)

    def _free(self, ptr: int) -> None:
        self.context.synchronize()
        self._owned.remove(ptr)
        self._driver.cuMemFree(ptr)

    def _array(self, s: ConvSignature, role: str) -> RawArray:
        return RawArray(self._allocate(s.nbytes(role)), s.in_memory(role), s.dtype)

    def _free_reference_operands(self) -> None:
        """Free the operands of the reference, but not its result."""
        for role, array in self.reference.items():
            if role != self.result:
                self._free(array.ptr)

    @contextmanager
    def _workspace(self, nbytes: int) -> Iterator[_Env]:
        """An env with a workspace; raises :class:`Overrun` for writes beyond its end."""
        ptr = self._workspace_block(nbytes + _GUARD_BYTES)
        self._driver.cuMemsetD8Async(ptr + nbytes, 0xA5, _GUARD_BYTES, self.context.stream)
        yield _Env(self.context, ptr)
        tail = np.empty(_GUARD_BYTES, np.uint8)
        self.context.synchronize()
        self._driver.cuMemcpyDtoH(tail.ctypes.data, ptr + nbytes, _GUARD_BYTES)
        if not (tail == 0xA5).all():
            raise Overrun(f"it writes behind the {nbytes} bytes of its workspace")

    def _workspace_block(self, nbytes: int) -> int:
        """The block for the workspaces of all candidates; a larger one if it is too small."""
        ptr, size = self._room
        if size < nbytes:
            if ptr:
                self._room = (0, 0)
                self._free(ptr)
            ptr = self._allocate(nbytes)
            self._room = (ptr, nbytes)
        return ptr

    # -- values -----------------------------------------------------------------------------------

    def _fill_with_nan(self, array: RawArray) -> None:
        """Set all bits, NaN in every float dtype, so that elements that are not written show."""
        self._driver.cuMemsetD8Async(array.ptr, 0xFF, array.nbytes, self.context.stream)

    def _fill(self, array: RawArray, wide: RawArray, seed: int) -> None:
        """Fill an array and its wide counterpart with the same random values."""
        env, layout = _Env(self.context), self.signature.layout
        with_wide(env, layout, array, wide, "fill_random", np.int64(seed), FILL=1)

    def compute_reference(self, two: Any = None) -> None:
        """Compute the reference result; with an epilogue take that of ``two`` kernels.

        Raises their errors, and ``SymdnnError`` if none of the trusted algorithms runs.
        """
        if two is not None:
            self._compute_by_two(two)
            return
        search = Search(self._plain, self.context.cudnn)
        candidate = next(trusted(search), None)
        if candidate is None:
            raise SymdnnError(f"there is no algorithm to compare with: {search.refused}")
        run = candidate.prepared(self._plain, self.context.cudnn)
        self._fill_with_nan(self.reference[self.result])
        with self._workspace(candidate.total_bytes(self._plain)) as env:
            run(env, self.reference)
        self._free_reference_operands()

    def _compute_by_two(self, two: Any) -> None:
        s, y, wide = self.signature, self.arrays["y"], self.reference["y"]
        bias = (1, s.w[0], *(1 for _ in s.y[2:]))
        for seed, role in enumerate(s.epilogue.roles, 5):
            array = RawArray(0, bias if role == "bias" else y.shape, y.dtype)
            array = self.arrays[role] = replace(array, ptr=self._allocate(array.nbytes))
            room = replace(wide, shape=bias, strides=()) if role == "bias" else wide
            self._fill(array, room, seed)
        with self._workspace(two.total_bytes(s)) as env:
            two.prepared(s, self.context.cudnn)(env, self.arrays)
        with_wide(_Env(self.context), s.layout, y, wide, "take", TAKE=1)
        self._free_reference_operands()

    def error(self) -> float:
        """The relative error of the result; infinite if single elements are wrong."""
        self._driver.cuMemsetD8Async(self._sums, 0, 24, self.context.stream)
        env, got, want = _Env(self.context), self.arrays[self.result], self.reference[self.result]
        with_wide(env, self.signature.layout, got, want, "difference", self._sums)
        self.context.synchronize()
        sums = np.empty(3)
        self._driver.cuMemcpyDtoH(sums.ctypes.data, self._sums, 24)
        error, scale, largest = (float(v) for v in sums)
        count = self.arrays[self.result].size
        return relative_error(error, scale, largest, count, self.error_limit)

    # -- trials -----------------------------------------------------------------------------------

    def check(self, candidate: Candidate, good_ms: float = inf) -> tuple[float, float]:
        """Run a candidate. Returns the error of its result, and the milliseconds of the run.

        It runs twice, unless the first run takes far longer than ``good_ms``. Raises errors of
        cuDNN, :class:`NoRoom`, :class:`Overrun`.
        """
        run = candidate.prepared(self.signature, self.context.cudnn)
        worst, ms = 0.0, inf
        with self._workspace(candidate.total_bytes(self.signature)) as env:
            if isinstance(run, CandidateRun):  # others are two kernels, which have run
                run.load(env)
            for _ in range(2):  # the first run also loads kernels; its result must be right, too
                self._fill_with_nan(self.arrays[self.result])
                ms = self.clock.elapsed_ms(lambda: run(env, self.arrays), 1)
                worst = max(worst, self.error())
                if ms > min(_LONG_RUN_MS, _LOAD_MS + _HOPELESS_RATIO * good_ms):
                    break
        return worst, ms

    def time(self, candidate: Candidate, good_ms: float = inf) -> float:
        """Milliseconds of one run; only an estimate if far above ``good_ms``."""
        with self.repeating(candidate) as enqueue:
            return self.clock.time(enqueue, good_ms)

    def race(self, candidates: Sequence[Candidate], rounds: int = _RACE_ROUNDS) -> list[float]:
        """Median milliseconds of each. Their windows alternate, to run at the same clock rates."""
        most = max(c.total_bytes(self.signature) for c in candidates)
        env = _Env(self.context, self._workspace_block(most + _GUARD_BYTES))
        # Plans must live as long as the graphs that were captured of them.
        runs = [c.prepared(self.signature, self.context.cudnn) for c in candidates]
        replays = [self.clock.captured_runs(partial(run, env, self.arrays), 1) for run in runs]
        times = [[self.clock.elapsed_ms(replay, 1)] for replay in replays]
        launches = max(1, min(50, round(_RACE_WINDOW_MS / min(t[0] for t in times))))
        for _ in range(rounds):
            for replay, own in zip(replays, times, strict=True):
                own.append(self.clock.elapsed_ms(replay, launches) / launches)
        return [statistics.median(own[1:]) for own in times]

    @contextmanager
    def repeating(self, candidate: Candidate) -> Iterator[Callable[[], None]]:
        """A function that enqueues one run; its workspace lives inside of the context."""
        run = candidate.prepared(self.signature, self.context.cudnn)
        with self._workspace(candidate.total_bytes(self.signature)) as env:
            yield lambda: run(env, self.arrays)
