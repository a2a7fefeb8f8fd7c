"""How ranks agree on small things: messages to a thread of rank 0, over TCP.

It moves no arrays. It carries what is needed before and beside the engines (MPI, NCCL): the unique
id of a communicator, lists of collectives that are compared, sums of measures at the end of an
epoch, and the news that a rank has failed, which ends every wait. Messages are bytes in frames that
are authenticated (HMAC, :mod:`multiprocessing.connection`); nothing is unpickled.
"""

from __future__ import annotations

import json
import math
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from symdnn.config import config
from symdnn.errors import CollectiveMismatch, CollectiveTimeout, PeerFailed

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

#: Seconds that rank 0 has at least for an answer: a compiler may keep Python from running.
_LEAST_ANSWER_S = 10.0
#: Seconds after which a rank that says nothing more waits no longer.
_SILENT_S = 2.0
#: Seconds between looks whether all ranks have come.
_LOOK_S = 0.25


class Hub:
    """The meeting point, in rank 0: who of ``size`` waits for what, and who has failed or left."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._gathers: dict[str, dict[int, str]] = {}
        self._read: dict[str, set[int]] = {}
        #: Values that one rank finds for all, and who finds those that are not there yet.
        self._found: dict[str, str] = {}
        self._claims: dict[str, int] = {}
        #: What ranks say that they wait for; since when, and when they said so last.
        self._statuses: dict[int, str] = {}
        self._since: dict[int, float] = {}
        self._heard: dict[int, float] = {}
        self._left: set[int] = set()
        self._come: set[int] = set()
        self._failure: tuple[int, str] | None = None

    def answer(self, rank: int, request: dict[str, Any]) -> dict[str, Any]:
        """What a rank gets for a request."""
        with self._changed:
            what = request["do"]
            if what == "gather":
                return self._gather(rank, request)
            if what == "claim":
                return self._claim(rank, request)
            if what == "tell":
                self._tell(rank, request["name"], request["value"])
            if what == "fail":
                self._fail(rank, request["why"])
            elif what == "leave":
                self._left.add(rank)
                self._release(rank)
            elif what == "status":
                self._hear(rank, request["text"])
            return {**self._news(), **self._told()}

    def _hear(self, rank: int, text: str) -> None:
        now = time.monotonic()
        if self._statuses.get(rank) != text:
            self._statuses[rank], self._since[rank] = text, now
        self._heard[rank] = now

    def _told(self) -> dict[str, dict[str, str]]:
        return {"statuses": {str(r): s for r, s in self._statuses.items()}}

    def _all_wait(self, seconds: float) -> bool:
        """Whether all ranks have waited for the same things for so long, and still do."""
        now = time.monotonic()
        return all(
            self._statuses.get(r)
            and now - self._since[r] >= seconds
            and now - self._heard[r] < _SILENT_S
            for r in set(range(self._size)) - self._left
        )

    def come(self, rank: int, size: int) -> None:
        """A rank has connected, which says how many there are."""
        with self._changed:
            twice, self._come = rank in self._come, {*self._come, rank}
            if size != self._size:
                said = f"it was started as one of {size} processes, and rank 0 as one of"
                self._fail(rank, f"{said} {self._size}")
            elif twice or not 0 < rank < size:
                self._fail(rank, "two processes were started with this rank")

    def complete(self) -> bool:
        """Whether as many have come as there are besides rank 0."""
        return len(self._come) >= self._size - 1

    def lost(self, rank: int) -> None:
        """The connection to a rank broke."""
        with self._changed:
            if rank not in self._left and self._failure is None:
                # Now: a launcher that has seen it, too, is about to kill this process.
                sys.stderr.write(f"symdnn: rank {rank} of {self._size} failed: its process ended\n")
                sys.stderr.flush()
                self._fail(rank, "its process ended")

    def _fail(self, rank: int, why: str) -> None:
        if self._failure is None:
            self._failure = rank, why
        self._release(rank)

    def _release(self, rank: int) -> None:
        """A rank that has ended finds nothing more."""
        self._claims = {name: r for name, r in self._claims.items() if r != rank}
        self._changed.notify_all()

    def _claim(self, rank: int, request: dict[str, Any]) -> dict[str, Any]:
        """The value of a name; without one the rank is to find it, as soon as no other does."""
        name, end = request["name"], time.monotonic() + request["wait"]
        while self._claims.get(name, rank) != rank and not self._failure:
            if (left := end - time.monotonic()) <= 0:
                return {}  # the other one takes too long
            self._changed.wait(left)
        if name in self._found:
            return {"value": self._found[name]}
        if self._failure:
            return self._news()
        self._claims[name] = rank
        return {}

    def _tell(self, rank: int, name: str, value: str | None) -> None:
        if value is not None:
            self._found.setdefault(name, value)
        if self._claims.get(name) == rank:
            del self._claims[name]
        self._changed.notify_all()

    def _news(self) -> dict[str, Any]:
        failure = None if self._failure is None else list(self._failure)
        return {"failure": failure, "left": sorted(self._left)}

    def _gather(self, rank: int, request: dict[str, Any]) -> dict[str, Any]:
        """Wait until all members have given their value, or all ranks wait for different things."""
        name, members, stuck = request["name"], set(request["members"]), request["stuck"]
        if self._failure:
            return {**self._news(), **self._told()}
        values = self._gathers.setdefault(name, {})
        values[rank] = request["value"]
        self._changed.notify_all()
        end = time.monotonic() + request["wait"]
        self._hear(rank, name)
        self._heard[rank] = math.inf  # until it has its answer

        def ended() -> bool:
            return members <= set(values) or bool(self._failure) or bool(members & self._left)

        while not ended() and (left := end - time.monotonic()) > 0:
            self._changed.wait(min(left, stuck / 4))
            if self._all_wait(stuck):
                break
        if members <= set(values):
            self._hear(rank, "")
        else:
            self._heard[rank] = time.monotonic()
        if not members <= set(values):
            late = time.monotonic() >= end
            missing = {"missing": sorted(members - set(values)), "late": late}
            return {**self._news(), **self._told(), **missing}
        read = self._read.setdefault(name, set())
        read.add(rank)
        if read >= members:  # everybody has it
            del self._gathers[name], self._read[name]
        return {"values": [values[r] for r in request["members"]]}


class Store:
    """A rank's side: requests to the hub, each answered before the next."""

    def __init__(self, rank: int, hub: Hub | None = None, line: Connection | None = None) -> None:
        self.rank, self._hub, self._line = rank, hub, line
        #: The machine of rank 0, as the ranks reach it.
        self.address = "127.0.0.1"
        self._lock = threading.Lock()
        self._server: _Server | None = None

    def gather(
        self, name: str, value: str, members: Sequence[int], wait: float, stuck: float = math.inf
    ) -> list[str]:
        """The values of all ``members``, in their order, once each has called this.

        Raises :class:`~symdnn.errors.CollectiveTimeout` that names the missing ranks after
        ``wait`` seconds, and :class:`~symdnn.errors.PeerFailed`. If all ranks have waited for
        ``stuck`` seconds, the missing ones for something else, none of which can end then, raises
        :class:`~symdnn.errors.CollectiveMismatch`.
        """
        found = self._ask({
            "do": "gather", "name": name, "value": value, "members": list(members), "wait": wait,
            "stuck": stuck,
        })  # fmt: skip
        if "values" in found:
            return list(found["values"])
        raise_failure(found, members, name)
        statuses = found["statuses"]
        missing = "; ".join(where(r, statuses.get(str(r), "")) for r in found["missing"])
        if not found["late"]:
            raise CollectiveMismatch(
                f"rank {self.rank} waits in {name}, but {missing}. Do all ranks call the same "
                "functions, in the same order and equally often?"
            )
        raise CollectiveTimeout(
            f"rank {self.rank} waited {wait:g} s in {name}: {missing}. "
            "The flag distributed.timeout has the limit"
        )

    def claim(self, name: str, wait: float) -> str | None:
        """The value that a rank has told for ``name``. None: this rank is to find and tell it.

        Waits for the rank that is finding it, for at most so many seconds. Raises
        :class:`~symdnn.errors.PeerFailed`.
        """
        found = self._ask({"do": "claim", "name": name, "wait": wait})
        if found.get("failure") is not None:
            raise_failure(found, (), name)
        value = found.get("value")
        return None if value is None else str(value)

    def tell(self, name: str, value: str | None) -> None:
        """The value of a name that this rank claimed, None if it found none; the first stays."""
        self._ask({"do": "tell", "name": name, "value": value})

    def fail(self, why: str) -> None:
        """Tell all ranks that this one failed; they raise at their next wait."""
        self._ask({"do": "fail", "why": why})

    def status(self, text: str) -> dict[str, Any]:
        """Say what this rank waits for; returns ``failure``, ``left`` and all ``statuses``."""
        return self._ask({"do": "status", "text": text})

    def leave(self) -> None:
        """End without failure."""
        try:
            self._ask({"do": "leave"})
        except (PeerFailed, CollectiveTimeout):  # rank 0 has ended before
            pass
        with self._lock:
            if self._line is not None:
                self._line.close()

    def close(self, wait: float = 0.0) -> None:
        """End the hub of rank 0, after up to ``wait`` seconds in which others may leave."""
        if self._server is not None:
            self._server.close(wait)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._hub is not None:
            return self._hub.answer(self.rank, request)
        assert self._line is not None, "a store has a hub or a line to it"
        limit = request.get("wait", 0.0) + max(_LEAST_ANSWER_S, float(config.distributed.timeout))
        try:
            with self._lock:
                self._line.send_bytes(json.dumps(request).encode())
                if not self._line.poll(limit):
                    self._line.close()  # the answer to another request could come first
                    raise CollectiveTimeout(
                        f"rank {self.rank} waited {limit:g} s for an answer of rank 0, whose "
                        "process is there and runs no Python. The flag distributed.timeout has "
                        "the limit"
                    )
                found: dict[str, Any] = json.loads(self._line.recv_bytes())
                return found
        except CollectiveTimeout:
            raise
        except (EOFError, OSError) as error:
            raise PeerFailed("rank 0 failed: its process ended, or does not answer") from error


def where(rank: int, status: str) -> str:
    """The last report of a rank that others wait for."""
    return f"rank {rank} waits in {status}" if status else f"rank {rank} did not come"


def raise_failure(news: dict[str, Any], members: Sequence[int], waiting_in: str) -> None:
    """Raise :class:`~symdnn.errors.PeerFailed` if a rank has failed, or one of ``members`` left."""
    if news["failure"] is not None:
        rank, why = news["failure"]
        raise PeerFailed(f"rank {rank} failed: {why}")
    if gone := sorted(set(news["left"]) & set(members)):
        raise PeerFailed(
            f"rank {gone[0]} has ended, while this one waits for it in {waiting_in}: do all ranks "
            "call the same functions equally often?"
        )


class _Server:
    """Threads of rank 0 that answer the other ranks."""

    def __init__(self, hub: Hub, listener: socket.socket, key: bytes) -> None:
        self._hub, self._listener, self._key = hub, listener, key
        self._threads: list[threading.Thread] = []
        self._lines: list[Connection] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        """Until all ranks have come. Each line has a thread: a stranger may say nothing."""
        from multiprocessing.connection import Connection

        while not self._hub.complete():
            try:
                line, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # closed
                return
            line.setblocking(True)
            self._lines.append(Connection(line.detach()))
            thread = threading.Thread(target=self._serve, args=self._lines[-1:], daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, line: Connection) -> None:
        from multiprocessing.connection import answer_challenge, deliver_challenge

        try:
            deliver_challenge(line, self._key)
            answer_challenge(line, self._key)
            rank, size = (int(word) for word in line.recv_bytes().split())
        except Exception:  # a stranger without the key, or close()
            line.close()
            return
        self._hub.come(rank, size)
        try:
            while True:
                request = json.loads(line.recv_bytes())
                line.send_bytes(json.dumps(self._hub.answer(rank, request)).encode())
        except (EOFError, OSError):
            self._hub.lost(rank)
        except TypeError:  # the line was closed here, by close()
            pass
        finally:
            line.close()

    def close(self, wait: float) -> None:
        end = time.monotonic() + wait
        for thread in list(self._threads):
            thread.join(max(0.0, end - time.monotonic()))
        self._listener.close()
        for line in self._lines:
            line.close()


def serve(size: int, key: bytes, host: str = "127.0.0.1", port: int = 0) -> tuple[Store, int]:
    """Rank 0's store, and the port on which it listens for the others."""
    listener = socket.create_server((host, port), backlog=size)
    listener.settimeout(_LOOK_S)
    store = Store(0, hub := Hub(size))
    store.address = host or "127.0.0.1"
    store._server = _Server(hub, listener, key)
    return store, int(listener.getsockname()[1])


def connect(rank: int, host: str, port: int, key: bytes, wait: float, size: int) -> Store:
    """The store of another rank of ``size``; tries for up to ``wait`` seconds, as rank 0 may come
    later, and that of a run that has failed may still be there.

    Raises :class:`~symdnn.errors.CollectiveTimeout`.
    """
    from multiprocessing import AuthenticationError  # here, so that symdnn is imported quickly

    end = time.monotonic() + wait
    while True:
        try:
            line = _connected(host, port, key, end)
        except (OSError, EOFError, AuthenticationError) as error:
            if time.monotonic() > end:
                why = str(error) or "it ends the connection"
                raise CollectiveTimeout(
                    f"rank {rank} waited {wait:g} s for rank 0 at {host}:{port}: {why}"
                ) from error
            time.sleep(0.05)
            continue
        line.send_bytes(f"{rank} {size}".encode())
        store = Store(rank, line=line)
        store.address = host
        return store


def _connected(host: str, port: int, key: bytes, end: float) -> Connection:
    """A line to rank 0, which knows the key; what listens there may be another program."""
    from multiprocessing.connection import Client, answer_challenge, deliver_challenge

    line = Client((host, port))
    try:
        if not line.poll(max(1.0, end - time.monotonic())):
            raise TimeoutError("what listens there does not answer as a rank 0 does")
        answer_challenge(line, key)
        deliver_challenge(line, key)
    except BaseException:
        line.close()
        raise
    return line
