"""The bench on which convolutions are tried: operands of their own, a truth, a clock.

It allocates what it needs from the driver and frees it at the end, so that neither the arena nor a
call in progress sees any of it. A candidate is run once into a result full of NaN and compared with
a trusted algorithm of the legacy API; only then its time is taken, as replays of a captured graph.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt
from typing import Any

import numpy as np

from symdnn.errors import SymdnnError
from symdnn.gpu.array import DeviceArray, c_strides
from symdnn.gpu.capture import CaptureFailed, Graph
from symdnn.gpu.context import Context
from symdnn.gpu.conv_candidate import Candidate, CandidateRun
from symdnn.gpu.conv_search import Search
from symdnn.gpu.conv_signature import DIRECTIONS, ConvSignature
from symdnn.gpu.k_copy import strided_copy
from symdnn.gpu.source import CTYPES, specialised

__all__ = ["Bench", "Clock", "NoRoom", "Overrun", "tolerance"]

_GUARD = 1024  # bytes behind a workspace that nobody may write
_BLOCK = 256
_WARM_UPS = 3
_WINDOWS = 5
_WINDOW_MS = 2.0
_SHORT_MS = 0.05  # below it a graph holds several launches
_REPEATS = 8
#: A largest error of so many times the tolerance is one of a few elements that are wrong.
_OUTLIER = 20


class NoRoom(SymdnnError, MemoryError):
    """The device has no memory left for a measurement."""


class Overrun(SymdnnError):
    """A kernel wrote behind the workspace that it asked for."""


def tolerance(s: ConvSignature) -> float:
    """Largest error of a result, relative in the 2-norm, for operands of random values.

    Twenty times what rounding costs, half of what is lost where float32 is multiplied as TF32
    against the user's wish.
    """
    if s.compute == "float16":
        return 5e-2
    if s.dtype == "float32":
        return 5e-3 if s.allow_tf32 else 1e-4
    return {"float16": 5e-3, "bfloat16": 2e-2, "float64": 1e-9}[s.dtype]


@dataclass
class _Env:
    """A :class:`~symdnn.gpu.env.LaunchEnv` outside of any plan."""

    context: Context
    workspace: int = 0
    node: int = -1

    def __post_init__(self) -> None:
        self.stream, self.error_word = self.context.stream, self.context.error_word
        self.cudnn = self.context.cudnn
        self.module, self.launch = self.context.function, self.context.launch
        self.zero = self.context.zero


class Bench:
    """Operands for one signature on a device. A context manager: leaving it frees everything.

    Raises :class:`NoRoom`.
    """

    def __init__(self, context: Context, signature: ConvSignature) -> None:
        from cuda.bindings import driver

        self._driver: Any = driver
        self.context, self.signature = context, signature
        self._owned: list[int] = []
        self.clock = Clock(context)
        self.result = DIRECTIONS[signature.direction].roles[2]
        self.error_limit = tolerance(signature)

    def __enter__(self) -> Bench:
        try:
            self.arrays = {role: self._array(role) for role in ("x", "w", "y")}
            self.truth = self._array(self.result)
            self._sums = self._allocate(24)
        except NoRoom:
            self.__exit__()
            raise
        for seed, (role, array) in enumerate(self.arrays.items()):
            if role != self.result:
                self._fill(array, seed + 1)
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

    @contextmanager
    def _borrowed(self, nbytes: int) -> Iterator[int]:
        ptr = self._allocate(nbytes)
        try:
            yield ptr
        finally:
            self.context.synchronize()
            self._owned.remove(ptr)
            self._driver.cuMemFree(ptr)

    def _array(self, role: str) -> DeviceArray:
        s = self.signature
        return DeviceArray(self._allocate(s.nbytes(role)), s.in_memory(role), s.dtype)

    @contextmanager
    def _workspace(self, nbytes: int) -> Iterator[_Env]:
        """An env with a workspace; raises :class:`Overrun` if it was written behind."""
        with self._borrowed(nbytes + _GUARD) as ptr:
            env = _Env(self.context, ptr)
            self._driver.cuMemsetD8Async(ptr + nbytes, 0xA5, _GUARD, self.context.stream)
            yield env
            tail = np.empty(_GUARD, np.uint8)
            self.context.synchronize()
            self._driver.cuMemcpyDtoH(tail.ctypes.data, ptr + nbytes, _GUARD)
            if not (tail == 0xA5).all():
                raise Overrun(f"it writes behind the {nbytes} bytes of its workspace")

    # -- values -----------------------------------------------------------------------------------

    def _function(self, name: str, dtype: str, **macros: object) -> Any:
        source = specialised("measure.cu", T=CTYPES[dtype], **macros)
        return self.context.function(source, name)

    def _fill(self, array: DeviceArray, seed: int) -> None:
        function = self._function("fill_random", array.dtype, FILL=1)
        args = (array.ptr, np.int64(array.size), np.int64(seed))
        self.context.launch(function, (_blocks(array.size),), (_BLOCK,), 0, args)

    def _spoil(self, array: DeviceArray) -> None:
        """All bits set: NaN in every float type, so that what is not written shows."""
        self._driver.cuMemsetD8Async(array.ptr, 0xFF, array.nbytes, self.context.stream)

    def trust(self) -> str:
        """Compute the truth; the name of what was trusted. Raises ``SymdnnError`` where nothing
        can be."""
        plain = replace(
            self.signature, allow_tf32=False, layout="NCHW", workspace_limit=0, legacy_only=False,
            deterministic=False,
            compute="float64" if self.signature.dtype == "float64" else "float32",
        )  # fmt: skip
        search = Search(plain, self.context.cudnn)
        words = ["none", "deterministic", "small"]
        if plain.rounds_sums:
            words = ["deterministic", "small"]
        numbers = search.direction.algorithms
        for number in (numbers[w] for w in words if w in numbers):
            candidate = search.named(number)
            if candidate is not None:
                self._compute_truth(plain, candidate)
                return candidate.name
        raise SymdnnError(f"there is no algorithm to compare with: {search.refused}")

    def _compute_truth(self, plain: ConvSignature, candidate: Candidate) -> None:
        run = candidate.prepared(plain, self.context.cudnn)
        with self._workspace(candidate.total_bytes(plain)) as env:
            given = {**self.arrays, self.result: self.truth}
            if self.signature.layout == "NCHW":
                self._spoil(self.truth)
                run(env, given)
                return
            sizes = sum(plain.nbytes(r) for r in given)
            with self._borrowed(sizes + 3 * 256) as ptr:
                self._run_transposed(env, run, given, ptr)

    def _run_transposed(
        self, env: _Env, run: CandidateRun, given: dict[str, DeviceArray], at: int
    ) -> None:
        """Run with channels second on copies of arrays that have them last."""
        plain: dict[str, DeviceArray] = {}
        for role, array in given.items():
            view = _channels_second(array)
            plain[role] = DeviceArray(at, view.shape, view.dtype)
            at += -(-view.nbytes // 256) * 256
            if role != self.result:
                strided_copy(env, view, plain[role])  # type: ignore[arg-type]
        run(env, plain)
        strided_copy(env, plain[self.result], _channels_second(given[self.result]))  # type: ignore[arg-type]
        self.context.synchronize()

    def error(self) -> float:
        """How far the result is from the truth, relative; infinite where single values are."""
        made, truth = self.arrays[self.result], self.truth
        self._driver.cuMemsetD8Async(self._sums, 0, 24, self.context.stream)
        args = (made.ptr, truth.ptr, np.int64(made.size), self._sums)
        function = self._function("difference", made.dtype)
        self.context.launch(function, (_blocks(made.size),), (_BLOCK,), 0, args)
        self.context.synchronize()
        sums = np.empty(3)
        self._driver.cuMemcpyDtoH(sums.ctypes.data, self._sums, 24)
        error, scale, largest = (float(v) for v in sums)
        return relative_error(error, scale, largest, made.size, self.error_limit)

    # -- trying -----------------------------------------------------------------------------------

    def check(self, candidate: Candidate) -> float:
        """Run it once; the error of its result. Raises what cuDNN raises, :class:`NoRoom`,
        :class:`Overrun`."""
        run = candidate.prepared(self.signature, self.context.cudnn)
        self._spoil(self.arrays[self.result])
        with self._workspace(candidate.total_bytes(self.signature)) as env:
            run(env, self.arrays)
        return self.error()

    def time(self, candidate: Candidate, good_ms: float = inf) -> float:
        """Milliseconds of one run; only an estimate where it is far above ``good_ms``."""
        run = candidate.prepared(self.signature, self.context.cudnn)
        with self._workspace(candidate.total_bytes(self.signature)) as env:
            return self.clock.time(lambda: run(env, self.arrays), good_ms)

    @contextmanager
    def repeating(self, candidate: Candidate) -> Iterator[Callable[[], None]]:
        """What enqueues one run, for as long as its workspace lives."""
        run = candidate.prepared(self.signature, self.context.cudnn)
        with self._workspace(candidate.total_bytes(self.signature)) as env:
            yield self.clock.repeated(lambda: run(env, self.arrays), 1)


def relative_error(error: float, scale: float, largest: float, count: int, limit: float) -> float:
    """The 2-norm of an error relative to the truth's, from sums of squares.

    Infinite where it is no number, or where a single value is off by far more than the rest: wrong
    elements among many right ones hardly change a norm.
    """
    norm = sqrt(scale) or 1.0
    found = sqrt(error) / norm if isfinite(error) else inf
    typical = norm / sqrt(max(count, 1))
    return found if isfinite(largest) and largest <= _OUTLIER * limit * typical else inf


class Clock:
    """Device time between events on the compute stream, of what is captured and replayed."""

    def __init__(self, context: Context) -> None:
        from cuda.bindings import driver

        self._driver: Any = driver
        self.context = context

    def time(self, enqueue: Callable[[], None], good_ms: float = inf) -> float:
        """Median milliseconds of one ``enqueue``; a first estimate where that is far from good."""
        replay, count = self.repeated(enqueue, 1), 1
        for _ in range(_WARM_UPS - 1):
            replay()
        rough = self._between(replay, 1)
        if rough > 3 * good_ms:
            return rough
        if rough < _SHORT_MS:
            replay, count = self.repeated(enqueue, _REPEATS), _REPEATS
            replay()
        launches = max(1, min(50, round(_WINDOW_MS / (rough * count))))
        windows = [self._between(replay, launches) for _ in range(_WINDOWS)]
        return statistics.median(windows) / launches / count

    def repeated(self, enqueue: Callable[[], None], count: int) -> Callable[[], None]:
        """A captured graph of ``count`` runs; the runs themselves where it can't be captured."""

        def all_of_them() -> None:
            for _ in range(count):
                enqueue()

        enqueue()  # what is made at a first run must not be captured
        self.context.synchronize()
        try:
            return Graph(self.context, all_of_them).launch
        except CaptureFailed:
            return all_of_them

    def _between(self, replay: Callable[[], None], launches: int) -> float:
        start, end = self._event(), self._event()
        self._driver.cuEventRecord(start, self.context.stream)
        for _ in range(launches):
            replay()
        self._driver.cuEventRecord(end, self.context.stream)
        self._driver.cuEventSynchronize(end)
        _, elapsed = self._driver.cuEventElapsedTime(start, end)
        for event in (start, end):
            self._driver.cuEventDestroy(event)
        return float(elapsed)

    def _event(self) -> Any:
        _, event = self._driver.cuEventCreate(0)
        return event


def _blocks(count: int) -> int:
    return max(1, min(2048, -(-count // _BLOCK)))


def _channels_second(array: DeviceArray) -> DeviceArray:
    """A view of (N, sizes, C) as (N, C, sizes)."""
    order: Sequence[int] = (0, array.ndim - 1, *range(1, array.ndim - 1))
    strides = array.strides or c_strides(array.shape, array.itemsize)
    return replace(
        array, shape=tuple(array.shape[i] for i in order), strides=tuple(strides[i] for i in order)
    )
