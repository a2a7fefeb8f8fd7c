"""This process among all: where it is, its store, and its communicators.

There is one :class:`World`. Before :func:`start` it has one rank.
"""

from __future__ import annotations

import atexit
import faulthandler
import hashlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from symdnn.config import config
from symdnn.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    DistributedError,
    OptionError,
    PeerFailed,
)
from symdnn.options import is_int
from symdnn.world import launcher, mpi, pmi
from symdnn.world.communicator import Communicator, Solo, Watch
from symdnn.world.group import Group
from symdnn.world.launcher import Launched, launched_by
from symdnn.world.store import Store, connect, serve, where
from symdnn.world.watchdog import Watchdog

ALONE = Launched(0, 1, 0, 1, "nothing")
#: Where rank 0's store listens, and the secret of the job, for launchers without MPI.
ADDRESS, PORT, KEY = "MASTER_ADDR", "MASTER_PORT", "SYMDNN_STORE_KEY"


class World:
    """All ranks, as this one sees them."""

    def __init__(self, place: Launched = ALONE, store: Store | None = None, engine: str = "none"):
        self.place, self.store, self.engine = place, store, engine
        self.watch = Watch(place.rank, store, _limit)
        self.watchdog = Watchdog(self._ended)
        #: Why no collective can run any more; empty while they can.
        self.broken = ""
        #: Why no MPI joins the processes, where one was to.
        self.no_mpi = f"{place.by} did not start these processes by MPI"
        self._manager: pmi.Manager | None = None
        self._communicators: dict[Group, Communicator] = {}
        self._gathers: dict[tuple[str, tuple[int, ...]], int] = {}

    @property
    def group(self) -> Group:
        """All ranks."""
        return Group(tuple(range(self.place.size)), "world")

    def communicator(self, group: Group) -> Communicator:
        """The communicator of a group for arrays in the memory of the host; made once.

        Raises :class:`~symdnn.errors.DistributedError` where no engine joins the processes.
        """
        found = self._communicators.get(group)
        if found is None:
            found = self._communicators[group] = self._new_communicator(group)
        return found

    def _new_communicator(self, group: Group) -> Communicator:
        rank = self.place.rank
        if max(group.ranks) >= self.place.size:
            raise DistributedError(
                f"{group} has ranks {group.ranks}, but there are {self.place.size} processes. A "
                "program is built for a number of ranks; was symdnn.distributed.init() called, and "
                "the program started by symdnn launch, mpirun, torchrun or srun?"
            )
        if group.size == 1:
            return Solo(group, group.index(rank), self.watch)
        if self.engine != "mpi":
            raise DistributedError(
                f"{group}: values in the memory of the host are moved by MPI, and {self.no_mpi}. "
                "Use symdnn launch or mpirun"
            )
        words = f"{group.ranks} {group.name}".encode()
        number = int.from_bytes(hashlib.sha256(words).digest()[:4], "big")
        return mpi.communicator(group, rank, self.watch, number)

    def join_by_mpi(self) -> None:
        """Start MPI among processes that a launcher without MPI started; all of them call this.

        Where it can't be (mpi4py or an MPI is missing, or it is another MPI than MPICH), values in
        the memory of the host have no engine.
        """
        import secrets  # here, so that symdnn is imported quickly

        if self.store is None or self.engine != "none" or self.place.size == 1:
            return
        own = [socket.gethostname(), mpi.missing()]
        told = self.gather("MPI on the ranks", own)
        if lacks := _first_said(self.group, [why for _, why in told]):
            self.no_mpi = f"{self.place.by} starts no MPI; {lacks}"
            return
        machines = [machine for machine, _ in told]
        key, port = secrets.token_hex(16), 0
        address = "127.0.0.1" if len(set(machines)) == 1 else self.store.address
        if self.place.rank == 0:
            bind = address if len(set(machines)) == 1 else ""
            self._manager = pmi.Manager(self.place.size, bind, pmi.mapping(machines), key)
            port = self._manager.port
        key, port = self.gather("MPI's manager", [key, port])[0]
        with mpi.ended_after(_limit()):
            pmi.join(self.place.rank, self.place.size, address, port, key)
        _, size, _, _ = mpi.world_of_mpi()
        if size == self.place.size:
            self.engine = "mpi"
        else:
            self.no_mpi = f"{self.place.by} starts no MPI; mpi4py's MPI is not MPICH"

    def gather(
        self, name: str, value: Any, group: Group | None = None, stuck: float = 0.0
    ) -> list[Any]:
        """What each rank of ``group`` (all) gives, by number: small values that JSON can hold.

        Raises :class:`~symdnn.errors.CollectiveMismatch` if all ranks have waited for ``stuck``
        seconds (0: a quarter of the time limit), those that have not come for something else.
        """
        group = group or self.group
        group.index(self.place.rank, name)
        if self.store is None or group.size == 1:
            return [json.loads(json.dumps(value))]
        count = self._gathers[name, group.ranks] = self._gathers.get((name, group.ranks), 0) + 1
        limit = float(config.distributed.timeout)
        full = f"{name} number {count} of {group} with ranks {list(group.ranks)}"
        stuck = stuck or limit / 4
        found = self.store.gather(full, json.dumps(value), group.ranks, limit, stuck)
        return [json.loads(v) for v in found]

    def claim(self, name: str) -> Any:
        """The value that a rank has found for ``name``, which one rank finds for all.

        None: this rank is to find it, and calls :meth:`tell`; so is a rank that has waited half of
        the time limit for another one. Without other ranks it is None.
        """
        if self.store is None:
            return None
        found = self.store.claim(name, float(config.distributed.timeout) / 2)
        return None if found is None else json.loads(found)

    def tell(self, name: str, value: Any) -> None:
        """What this rank has found for a name that it claimed; None if nothing."""
        if self.store is not None:
            self.store.tell(name, None if value is None else json.dumps(value))

    def compare(
        self, group: Group, collectives: Sequence[str], why: str = "", number: int = 0
    ) -> tuple[str, int]:
        """Raise :class:`~symdnn.errors.CollectiveMismatch` unless all ranks of a group are about to
        run the same collectives, in the same order.

        ``why`` is a reason against a captured graph with them. Returns that of the first rank that
        has one, and the largest of all ranks' numbers.
        """
        told = self._compared(group, [list(collectives), why, number])
        for other, (theirs, *_) in zip(group.ranks, told):
            if theirs != list(collectives):
                raise CollectiveMismatch(
                    f"rank {self.place.rank} and rank {other} run different collectives of {group}"
                    f": {_difference(collectives, theirs)}"
                )
        return _first_said(group, [said for _, said, _ in told]), max(n for *_, n in told)

    def first_said(self, name: str, words: str, group: Group) -> str:
        """What the first rank of ``group`` says that says anything."""
        return _first_said(group, self.gather(name, words, group))

    def _compared(self, group: Group, mine: list[Any]) -> list[Any]:
        """All ranks' lists. Some may call an older plan in this call, whose list is known: then
        these wait for the others in one of its collectives."""
        stuck = min(_limit() / 4, _STUCK_S)
        try:
            return self.gather("the comparison of collectives", mine, group, stuck)
        except CollectiveMismatch as error:
            raise CollectiveMismatch(
                f"rank {self.place.rank} has a new list of collectives, and others an older one: "
                f"{error}. The new list is {_shortened(mine[0])}"
            ) from None

    def fail(self, error: BaseException) -> None:
        """Tell the others that this rank failed; does nothing if another one had before."""
        if self.store is None or isinstance(error, PeerFailed):
            return
        try:
            self.store.fail(f"{type(error).__name__}: {error}")
        except DistributedError:  # rank 0 has ended, or does not answer
            pass

    def check(self) -> None:
        """Raise :class:`~symdnn.errors.PeerFailed` if no collective can run any more."""
        if self.broken:
            raise PeerFailed(self.broken)

    @contextmanager
    def blocking(self, what: str) -> Iterator[None]:
        """A call that may block inside of a library until other ranks come: it ends the process
        some seconds after the time limit, and with it all ranks."""
        if self.store is None:
            yield
            return
        with self.watchdog.during(what, _limit() + _SECONDS_TO_RAISE):
            yield

    def _ended(self, why: str) -> None:
        """Say why the watchdog ends this process, and where the other ranks are."""
        rank, store = self.place.rank, self.store
        error = CollectiveTimeout(f"rank {rank}: {why}")
        sys.stderr.write(f"symdnn: rank {rank} of {self.place.size} failed\n")
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        if store is not None:
            statuses = store.status("")["statuses"]
            others = (r for r in self.group.ranks if r != rank)
            sys.stderr.write("; ".join(where(r, statuses.get(str(r), "")) for r in others) + "\n")
            self.fail(error)


def _first_said(group: Group, words: Sequence[str]) -> str:
    return next((f"on rank {r}: {said}" for r, said in zip(group.ranks, words) if said), "")


def _shortened(collectives: Sequence[str]) -> str:
    """The first few, and how many there are."""
    more = f", ... {len(collectives)} in all" if len(collectives) > _MOST_SHOWN else ""
    return ", ".join(collectives[:_MOST_SHOWN]) + more


def _difference(mine: Sequence[str], theirs: Sequence[str]) -> str:
    """The first place where two lists differ."""
    for i, (a, b) in enumerate(zip(mine, theirs)):
        if a != b:
            return f"number {i + 1} is {a} here and {b} there"
    return f"{len(mine)} here and {len(theirs)} there"


def _limit() -> float:
    return float(config.distributed.timeout)


_current = World()


def current() -> World:
    """The world that this process is part of."""
    return _current


def start(given: Launched | None = None, environment: Any = None) -> World:
    """Join the other processes; the second call returns the same world.

    Raises :class:`~symdnn.errors.DistributedError` where the processes can't be joined.
    """
    global _current
    if _current.place is not ALONE:
        return _current
    environment = os.environ if environment is None else environment
    place = given or launched_by(environment) or ALONE
    if place.size != 1:
        _end_all_on_errors(place)
    if place.by == "symdnn launch":  # which ends ranks that hang so: where they are
        faulthandler.register(signal.SIGTERM, file=2, all_threads=True, chain=True)
    engine, no_mpi = "none", ""
    if place.by_mpi:
        try:
            place, store = _joined_by_mpi(place)
            engine = "mpi"
        except DistributedError as error:
            if place.size < 1 or not all(name in environment for name in (ADDRESS, PORT)):
                raise
            no_mpi = str(error)
    if engine != "mpi":
        place, store = _joined_by_address(place, environment)
    if place.size == 1:
        place = Launched(0, 1, 0, 1, place.by)
    _current = World(place, store, engine)
    _current.no_mpi = no_mpi or _current.no_mpi
    return _current


def _joined_by_mpi(place: Launched) -> tuple[Launched, Store | None]:
    try:
        rank, size, local_rank, local_size = mpi.start_once_all_ranks_have_come_to_init(_limit())
    except DistributedError:
        if place.size == 1:  # it needs none
            return place, None
        raise
    if place.size and (rank, size) != (place.rank, place.size):
        raise DistributedError(
            f"{place.by} started rank {place.rank} of {place.size}, but mpi4py's MPI says rank "
            f"{rank} of {size}: it is another MPI than the launcher's. Start the program by the "
            "launcher of that MPI (symdnn launch finds it), or set MASTER_ADDR and MASTER_PORT"
        )
    place = Launched(rank, size, local_rank, local_size, place.by)
    if size == 1:
        return place, None
    if rank == 0:
        import secrets

        key = secrets.token_hex(16)
        host = "127.0.0.1" if local_size == size else socket.gethostname()
        store, port = serve(size, key.encode(), "127.0.0.1" if local_size == size else "")
        mpi.told_by_first(f"{host} {port} {key}")
        return place, store
    host, port_text, key = mpi.told_by_first("").split()
    return place, connect(rank, host, int(port_text), key.encode(), _limit(), size)


def _joined_by_address(place: Launched, environment: Any) -> tuple[Launched, Store | None]:
    if place.size <= 1:
        return place, None
    if missing := [name for name in (ADDRESS, PORT) if name not in environment]:
        raise DistributedError(
            f"{place.by} started rank {place.rank} of {place.size}: {' and '.join(missing)} must "
            "name the machine of rank 0 and a free port there"
        )
    # torchrun's own store listens at the port that it names.
    host, port = environment[ADDRESS], launcher.number_in(environment, PORT)
    if not 0 < port < (1 << 16) - 1:
        raise OptionError(f"{PORT}={environment[PORT]}: wanted a port from 1 to {(1 << 16) - 2}")
    port += place.by == "torchrun"
    job = environment.get("TORCHELASTIC_RUN_ID", environment.get("SLURM_JOB_ID", ""))
    # A rank of a run that has failed must not meet the next one's rank 0 at the same port.
    run = f"symdnn {job} {launcher.restarts(environment)}"
    key = environment.get(KEY, run).encode()
    if place.rank:
        store = connect(place.rank, host, port, key, _limit(), place.size)
    else:
        try:
            bind = "127.0.0.1" if host in ("127.0.0.1", "localhost") else ""
            store, _ = serve(place.size, key, bind, port)
        except OSError as error:
            raise DistributedError(f"rank 0 can't listen at {host}:{port}: {error}") from error
    name, all_ranks = "the machines of the ranks", range(place.size)
    machines = store.gather(name, socket.gethostname(), all_ranks, _limit())
    return place.among(machines), store


def end() -> None:
    """Leave the world. Ranks that still wait for this one get an error."""
    global _current
    world, _current = _current, World()
    if world.store is not None:
        world.store.leave()
        # Rank 0 answers the others until they have left, too.
        world.store.close(wait=float(config.distributed.timeout) if world.place.rank == 0 else 0)


# -- errors that end all --------------------------------------------------------------------------


def _end_all_on_errors(place: Launched) -> None:
    """Let an error that nobody catches end all ranks, and a normal end leave the world."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        world = _current
        sys.stderr.write(f"symdnn: rank {place.rank} of {world.place.size} failed\n")
        (traceback.print_exception if before is sys.__excepthook__ else before)(kind, error, trace)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        world.fail(error)
        if place.by_mpi:
            time.sleep(_SECONDS_FOR_OTHERS)  # in which others raise, with this error's text
            mpi.abort()
        os._exit(1)  # no clean-up: it could wait for ranks that do not come

    sys.excepthook = hook
    atexit.register(end)


_SECONDS_FOR_OTHERS = 1.0
#: Seconds after which ranks that wait for different things are taken to run different collectives.
_STUCK_S = 30.0
#: Collectives of a list that an error shows.
_MOST_SHOWN = 4
#: Seconds after the time limit in which a wait raises, before the watchdog ends the process.
_SECONDS_TO_RAISE = 8.0


def check_rank(rank: Any, size: int, what: str) -> int:
    """``rank``, if it is one of ``size``; raises :class:`~symdnn.errors.OptionError`."""
    if not is_int(rank) or not 0 <= rank < size:
        raise OptionError(f"{what}={rank!r}; wanted from 0 to {size - 1}")
    return int(rank)
