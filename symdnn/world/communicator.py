"""Calls that move arrays between ranks. An engine implements them: MPI, NCCL, or one process."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symdnn.errors import CollectiveMismatch, CollectiveTimeout
from symdnn.world.group import Group
from symdnn.world.store import Store, raise_failure, where

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = Sequence[Array]


class Pending:
    """A transfer that was started; its operands stay alive and unchanged until it is done."""

    def __init__(
        self, done: Callable[[], bool], finish: Callable[[], None] | None = None, what: str = ""
    ) -> None:
        self._done, self._finish, self.what = done, finish, what
        self._is_done = False

    def test(self) -> bool:
        """Whether it is done; lets the engine make progress."""
        if not self._is_done and self._done():
            self._is_done, self._done = True, _always  # the operands are free
        return self._is_done

    def finish(self) -> None:
        """Write the results; once, after it is done."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()


def _always() -> bool:
    return True


#: Seconds for which a wait only yields the processor; between checks for failed ranks; and until it
#: reports where it waits.
_YIELDING, _LOOKING, _TELLING = 0.002, 0.05, 0.5


class Watch:
    """Waits for transfers, within the time limit, and ends when another rank has failed."""

    def __init__(self, rank: int, store: Store | None, timeout: Callable[[], float]) -> None:
        self.rank, self.store, self.timeout = rank, store, timeout

    def wait(
        self, pending: Pending, group: Group, yielding: float = _YIELDING, alone: bool = False
    ) -> None:
        """Return when it is done. Raises ``CollectiveTimeout`` and ``PeerFailed``.

        In the first ``yielding`` seconds it only yields the processor. With ``alone`` it waits for
        work of this rank, and other ranks may end meanwhile.
        """
        if pending.test():
            return
        start = time.monotonic()
        look, pause = start + _LOOKING, 0.0
        while not pending.test():
            now = time.monotonic()
            if now >= look:
                self._look(pending, group, now - start, alone)
                look = time.monotonic() + _LOOKING
            # Other ranks may need this processor.
            pause = 0.0 if now - start < yielding else min(pause + 2e-5, 1e-3)
            time.sleep(pause)

    def differ(self, latest: Sequence[str], group: Group) -> None:
        """Raise :class:`~symdnn.errors.CollectiveMismatch` on all ranks of a group, which have
        started different transfers; ``latest`` are this rank's."""
        told, name = [json.dumps(latest)] * group.size, f"the comparison of transfers of {group}"
        said, advice = "", (
            ". Do all ranks call the same functions in the same order, with operands of the same "
            "shapes?"
        )  # fmt: skip
        try:
            if self.store is not None:
                told = self.store.gather(name, told[0], group.ranks, self.timeout(), _TELLING)
        except (CollectiveMismatch, CollectiveTimeout) as error:  # others are behind, and wait
            said, advice = f"rank {self.rank} came to {latest[-1]}, and {error}", ""
        texts = [json.loads(t) for t in told]
        number = next((i for i, t in enumerate(zip(*texts)) if len(set(t)) > 1), 0)
        said = said or "; ".join(f"rank {r}: {t[number]}" for r, t in zip(group.ranks, texts))
        raise CollectiveMismatch(f"the ranks of {group} run different collectives, {said}{advice}")

    def _look(self, pending: Pending, group: Group, waited: float, alone: bool) -> None:
        """Look for failures; say where this rank is; give up after the time limit."""
        if self.store is None:
            return
        limit = self.timeout()
        news = self.store.status(pending.what if waited >= min(_TELLING, limit / 2) else "")
        raise_failure(news, () if alone else group.ranks, pending.what)
        if waited < limit:
            return
        others = [r for r in group.ranks if news["statuses"].get(str(r), "") != pending.what]
        places = "; ".join(where(r, news["statuses"].get(str(r), "")) for r in others)
        raise CollectiveTimeout(
            f"rank {self.rank} waited {limit:g} s in {pending.what}: {places or 'nobody knows why'}"
            ". The flag distributed.timeout has the limit"
        )


class Communicator(ABC):
    """The ranks of a group, one of which this process is: number ``index`` of ``size``.

    Arrays may have any strides. A method returns when its transfer has been started. Inputs have
    been read, or copied, then (of other calls than :meth:`all_reduce` and :meth:`send`: after
    :meth:`wait`); outputs are written by :meth:`wait`, so that the list ``outs`` of
    :meth:`all_reduce` may be filled before it.
    """

    def __init__(self, group: Group, index: int, watch: Watch) -> None:
        self.group, self.index, self.watch = group, index, watch
        #: How many transfers were started: the number of the next one.
        self.count = 0

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.group.size

    def wait(self, pending: Pending) -> None:
        """Return when a transfer is done."""
        self.watch.wait(pending, self.group)
        pending.finish()

    def told(self, kind: str, arrays: Arrays) -> str:
        """The next transfer in words, for errors."""
        self.count += 1
        shapes = ", ".join(f"{a.dtype} {a.shape}" for a in arrays[:3])
        more = f" and {len(arrays) - 3} more" if len(arrays) > 3 else ""
        return f"{kind} number {self.count} of {self.group} ({shapes}{more})"

    @abstractmethod
    def all_reduce(self, xs: Arrays, outs: Arrays, op: str) -> Pending:
        """``outs[i]``: the sum (mean, prod, max, min) of all ranks' ``xs[i]``."""

    @abstractmethod
    def reduce(self, x: Array, out: Array, op: str, root: int) -> Pending:
        """The reduction of one array, only on rank ``root``; zeros elsewhere."""

    @abstractmethod
    def reduce_scatter(self, x: Array, out: Array, op: str) -> Pending:
        """The same, of which each rank gets its own part along the first axis."""

    @abstractmethod
    def all_gather(self, x: Array, out: Array) -> Pending:
        """``out``: the arrays of all ranks, joined along the first axis."""

    @abstractmethod
    def broadcast(self, x: Array, out: Array, root: int) -> Pending:
        """``out``: the array of rank ``root``."""

    @abstractmethod
    def all_to_all(self, x: Array, out: Array) -> Pending:
        """Part i along the first axis goes to rank i; ``out`` has the parts from all ranks."""

    @abstractmethod
    def permute(self, x: Array, out: Array, to: int | None, source: int | None) -> Pending:
        """``x`` goes to one rank, and ``out`` comes from one (None: zeros)."""

    @abstractmethod
    def send(self, x: Array, to: int, tag: int) -> Pending:
        """Send ``x`` to a rank. ``x`` may be overwritten afterwards."""

    @abstractmethod
    def recv(self, out: Array, source: int, tag: int) -> Pending:
        """``out`` comes from a rank."""


class Solo(Communicator):
    """A group of one rank: copies."""

    def all_reduce(self, xs: Arrays, outs: Arrays, op: str) -> Pending:
        """Copies."""
        kept = [x.copy() for x in xs]

        def finish() -> None:
            for x, out in zip(kept, outs, strict=True):
                np.copyto(out, x)

        return Pending(_always, finish)

    def reduce(self, x: Array, out: Array, op: str, root: int) -> Pending:
        """A copy."""
        return self.all_reduce([x], [out], op)

    def reduce_scatter(self, x: Array, out: Array, op: str) -> Pending:
        """A copy."""
        return self.all_reduce([x], [out], op)

    def all_gather(self, x: Array, out: Array) -> Pending:
        """A copy."""
        return self.all_reduce([x], [out], "sum")

    def broadcast(self, x: Array, out: Array, root: int) -> Pending:
        """A copy."""
        return self.all_reduce([x], [out], "sum")

    def all_to_all(self, x: Array, out: Array) -> Pending:
        """A copy."""
        return self.all_reduce([x], [out], "sum")

    def permute(self, x: Array, out: Array, to: int | None, source: int | None) -> Pending:
        """A copy, or zeros."""
        if source is None:
            out[...] = 0
            return Pending(_always)
        return self.all_reduce([x], [out], "sum")

    def send(self, x: Array, to: int, tag: int) -> Pending:
        """Keep a copy for :meth:`recv`."""
        self._sent.setdefault(tag, []).append(x.copy())
        return Pending(_always)

    def recv(self, out: Array, source: int, tag: int) -> Pending:
        """The oldest copy."""
        kept = self._sent.get(tag)
        if not kept:
            raise CollectiveTimeout(f"recv from rank {source}, itself, which has sent nothing")
        np.copyto(out, kept.pop(0))
        return Pending(_always)

    def __init__(self, group: Group, index: int, watch: Watch) -> None:
        super().__init__(group, index, watch)
        self._sent: dict[int, list[Array]] = {}
