"""``nccl.bindings.nccl`` on this machine's memory: calls of all ranks are recorded, then done.

It keeps NCCL's rules: ranks call the same collectives with the same counts in the same order, calls
between group_start and group_end are one launch, a send and its receipt meet, and ``reduce`` writes
on the root alone.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

DTYPES = [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32,
          np.float64, ml_dtypes.bfloat16]  # fmt: skip
OPERATIONS = [np.sum, np.prod, np.max, np.min, np.mean]


def memory(address: int, count: int, dtype: int) -> np.ndarray:
    kind = np.dtype(DTYPES[dtype])
    raw = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(raw, kind)


@dataclass
class FakeNccl:
    """Stands for the module; ``rank`` is the one whose calls are recorded now."""

    size: int
    rank: int = 0
    launches: list[list[list[tuple[Any, ...]]]] = field(default_factory=list)
    depth: int = 0
    version: int = 22809

    def __post_init__(self) -> None:
        #: An abort has begun; and what it waits for.
        self.ending, self.held = threading.Event(), threading.Event()
        self.held.set()
        self.launches = [[] for _ in range(self.size)]
        #: The communicators of all calls.
        self.handles: list[Any] = []

    def get_version(self) -> int:
        return self.version

    def get_unique_id(self) -> bytes:
        return bytes(range(128))

    def comm_init_rank_scalable(self, *given: Any) -> str:
        self.joined = given
        return "comm"

    def comm_destroy(self, comm: Any) -> None:
        self.ended = ("destroyed", comm)

    def comm_abort(self, comm: Any) -> None:
        self.ended = ("aborted", comm)
        self.ending.set()
        self.held.wait()

    def group_start(self) -> None:
        if not self.depth:
            self.launches[self.rank].append([])
        self.depth += 1

    def group_end(self) -> None:
        self.depth -= 1

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> None:
            *given, comm, stream = given
            assert stream == 7
            self.handles.append(comm)
            if not self.depth:
                self.launches[self.rank].append([])
            self.launches[self.rank][-1].append((name, *given))

        return call

    def run(self) -> None:
        """Do what all ranks have recorded; they must have made as many launches."""
        assert len({len(mine) for mine in self.launches}) == 1
        for launch in zip(*self.launches):
            self._point_to_point([[c for c in mine if c[0] in ("send", "recv")] for mine in launch])
            rest = [[c for c in mine if c[0] not in ("send", "recv")] for mine in launch]
            for calls in zip(*rest, strict=True):
                assert len({c[0] for c in calls}) == 1, calls
                getattr(self, "_" + calls[0][0])(calls)
        self.__post_init__()

    def _same(self, calls: Any, at: int) -> None:
        """All ranks give the same counts, dtypes, operations and roots."""
        assert len({c[at:] for c in calls}) == 1, calls

    def _all_reduce(self, calls: Any) -> None:
        self._same(calls, 3)
        (*_, count, dtype, op) = calls[0]
        total = OPERATIONS[op]([memory(c[1], count, dtype) for c in calls], axis=0)
        for c in calls:
            memory(c[2], count, dtype)[:] = total

    def _reduce(self, calls: Any) -> None:
        self._same(calls, 3)
        (*_, count, dtype, op, root) = calls[0]
        total = OPERATIONS[op]([memory(c[1], count, dtype) for c in calls], axis=0)
        memory(calls[root][2], count, dtype)[:] = total

    def _reduce_scatter(self, calls: Any) -> None:
        self._same(calls, 3)
        (*_, count, dtype, op) = calls[0]
        every = [memory(c[1], count * self.size, dtype) for c in calls]
        for c, part in zip(calls, np.split(OPERATIONS[op](every, axis=0), self.size)):
            memory(c[2], count, dtype)[:] = part

    def _all_gather(self, calls: Any) -> None:
        self._same(calls, 3)
        (*_, count, dtype) = calls[0]
        joined = np.concatenate([memory(c[1], count, dtype) for c in calls])
        for c in calls:
            memory(c[2], joined.size, dtype)[:] = joined

    def _broadcast(self, calls: Any) -> None:
        self._same(calls, 3)
        (*_, count, dtype, root) = calls[0]
        value = memory(calls[root][1], count, dtype).copy()
        for c in calls:
            memory(c[2], count, dtype)[:] = value

    def _allto_all(self, calls: Any) -> None:
        self._same(calls, 3)
        (*_, count, dtype) = calls[0]
        parts = [np.split(memory(c[1], count * self.size, dtype), self.size) for c in calls]
        for i, c in enumerate(calls):
            memory(c[2], count * self.size, dtype)[:] = np.concatenate([p[i] for p in parts])

    def _point_to_point(self, launch: Any) -> None:
        for rank, calls in enumerate(launch):
            for name, address, count, dtype, peer in calls:
                if name == "send":
                    (receipt,) = [c for c in launch[peer] if (c[0], c[4]) == ("recv", rank)]
                    assert receipt[2:4] == (count, dtype)
                    memory(receipt[1], count, dtype)[:] = memory(address, count, dtype)
                else:
                    assert [c for c in launch[peer] if (c[0], c[4]) == ("send", rank)]
