"""Dynamic batching: requests that come at about one time are rows of one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Call = Callable[[Sequence[Array]], list[Array]]


class TooManyWaiting(Exception):
    """As many requests wait as may."""


@dataclass
class _Request:
    arrays: list[Array]
    answer: asyncio.Future[list[Array]]

    @property
    def rows(self) -> int:
        """The size of the first dimension; 1 where there is none."""
        return max([a.shape[0] for a in self.arrays if a.ndim], default=1)

    @property
    def kind(self) -> Any:
        """Requests of one kind differ in their number of rows alone."""
        return tuple((a.shape[1:], a.dtype) for a in self.arrays)


@dataclass
class Batcher:
    """Calls ``call`` in one thread, with requests one after the other or joined.

    Requests are joined along the first dimension of all arrays until there are ``max_batch`` rows,
    or the first of them has waited for ``max_delay_s``. With a ``max_batch`` of 1 they are not.
    """

    call: Call
    max_batch: int = 1
    max_delay_s: float = 0.005
    max_waiting: int = 1000
    calls: int = 0
    requests: int = 0
    _queue: asyncio.Queue[_Request] = field(default_factory=asyncio.Queue)
    _held: _Request | None = None
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    async def submit(self, arrays: list[Array]) -> list[Array]:
        """The results for a request; raises what the call raises, and :class:`TooManyWaiting`."""
        if self._queue.qsize() >= self.max_waiting:
            raise TooManyWaiting
        answer: asyncio.Future[list[Array]] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Request(arrays, answer))
        return await answer

    async def run(self) -> None:
        """Serve requests until cancelled; those that wait then are cancelled, too."""
        try:
            while True:
                await self._answer(await self._collect())
        finally:
            while not self._queue.empty():
                self._queue.get_nowait().answer.cancel()
            self._thread.shutdown(wait=False)

    async def _collect(self) -> list[_Request]:
        """The requests of the next call."""
        first, self._held = self._held or await self._queue.get(), None
        found, rows = [first], first.rows
        loop = asyncio.get_running_loop()
        until = loop.time() + self.max_delay_s
        while rows < self.max_batch:
            try:
                timeout = max(until - loop.time(), 0)
                following = await asyncio.wait_for(self._queue.get(), timeout)
            except TimeoutError:
                break
            if following.kind != first.kind or rows + following.rows > self.max_batch:
                self._held = following  # it is the first of the next call
                break
            found.append(following)
            rows += following.rows
        return found

    async def _answer(self, requests: list[_Request]) -> None:
        waiting = [r for r in requests if not r.answer.done()]  # the others' clients have gone
        if not waiting:
            return
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._thread, self._joined, waiting)
        except Exception as error:
            if len(waiting) == 1:
                waiting[0].answer.set_exception(error)
                return
            for each in waiting:  # so that the error goes to the one at fault
                await self._answer([each])
            return
        for each, results in zip(waiting, found, strict=True):
            if not each.answer.done():
                each.answer.set_result(results)

    def _joined(self, requests: list[_Request]) -> list[list[Array]]:
        self.calls += 1
        self.requests += len(requests)
        if len(requests) == 1:
            return [self.call(requests[0].arrays)]
        columns = zip(*(r.arrays for r in requests))
        results = self.call([np.concatenate(column) for column in columns])
        ends = np.cumsum([r.rows for r in requests])
        if any(r.shape[0] != ends[-1] for r in results):
            raise ValueError("a result has not as many rows as its inputs")
        parts = [np.split(r, ends[:-1]) for r in results]
        return [list(each) for each in zip(*parts)]
