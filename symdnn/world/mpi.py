"""Arrays of NumPy between ranks by MPI (mpi4py), without blocking calls.

Every transfer is started and then tested until it is done, so that a rank which waits in vain ends
within the time limit. Moves are of bytes: every dtype will do. Reductions of 16-bit floats, which
MPI does not know, are computed in float32 and rounded once.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from symdnn.errors import DistributedError
from symdnn.world.communicator import Array, Arrays, Communicator, Pending, Watch
from symdnn.world.group import Group
from symdnn.world.history import MARKS, History

#: A program that says why MPI can't be loaded.
_LOADS = """
import mpi4py
mpi4py.rc.initialize = False
try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    raise SystemExit(print(str(error).partition("\\n")[0]) or 1)
"""
#: Arrays of fewer bytes are reduced together, in one buffer.
_SMALL_BYTES = 1 << 16


@cache
def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise DistributedError(
            "several processes on CPUs need mpi4py and an MPI: pip install 'symdnn[mpi]'"
        ) from error
    except RuntimeError as error:  # no MPI library
        why = str(error).partition("\n")[0]
        raise DistributedError(f"mpi4py found no MPI: {why}. pip install mpich") from error
    return MPI


def missing() -> str:
    """Why MPI can't be started here; empty if mpi4py and an MPI are installed.

    Another process loads it: here the import would start MPI, which waits for all ranks.
    """
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed: pip install 'symdnn[mpi]'"
    if "mpi4py.MPI" in sys.modules:
        return ""
    done = subprocess.run([sys.executable, "-c", _LOADS], capture_output=True, text=True)
    why = done.stdout.strip() or done.stderr.strip().rpartition("\n")[2]
    return f"mpi4py found no MPI: {why}. pip install mpich" if done.returncode else ""


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """The body starts MPI, which waits for all ranks with Python's lock held, so that no thread of
    Python's can end it: after so many seconds the process ends, and shows where it waits."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def start_once_all_ranks_have_come_to_init(seconds: float) -> tuple[int, int, int, int]:
    """Start MPI, which must take no longer than so many seconds; the name is seen where it does.
    Returns :func:`world_of_mpi`."""
    with ended_after(seconds):
        return world_of_mpi()


def world_of_mpi() -> tuple[int, int, int, int]:
    """Rank and size of all, and those on this machine."""
    mpi = _mpi()
    world = mpi.COMM_WORLD
    here = world.Split_type(mpi.COMM_TYPE_SHARED)
    found = world.Get_rank(), world.Get_size(), here.Get_rank(), here.Get_size()
    here.Free()
    return found


def told_by_first(text: str) -> str:
    """What rank 0 of all says."""
    return str(_mpi().COMM_WORLD.bcast(text, root=0))


def abort() -> None:
    """End all processes; what one that failed does, lest the others wait for it."""
    _mpi().COMM_WORLD.Abort(1)


def communicator(group: Group, rank: int, watch: Watch, number: int) -> MpiCommunicator:
    """A communicator of a group; all its ranks call this. ``number`` differs between groups."""
    mpi = _mpi()
    world = mpi.COMM_WORLD
    members = world.Get_group().Incl(list(group.ranks))
    comm = world.Create_group(members, tag=number % 32000)
    return MpiCommunicator(group, group.index(rank), watch, comm)


class MpiCommunicator(Communicator):
    """A group whose arrays MPI moves."""

    def __init__(self, group: Group, index: int, watch: Watch, comm: Any) -> None:
        super().__init__(group, index, watch)
        self._comm = comm
        self._history = History(self.size)
        #: Sends whose copies are not yet delivered.
        self._sends: list[tuple[Any, Array]] = []
        #: Transfers that have been started and may need calls of MPI to go on.
        self._open: list[Pending] = []

    def all_reduce(self, xs: Arrays, outs: Arrays, op: str) -> Pending:
        """One transfer for each large array, and one for the small ones of each dtype."""
        what, parts = self.told(f"all_reduce({op})", xs), _parts(xs)
        kinds = [_reduced_in(xs[part[0]].dtype) for part in parts]
        marks = [self._history.mark(kind, op) for kind in kinds]
        buffers = [_packed([xs[i] for i in part], m) for part, m in zip(parts, marks)]
        start = self._comm.Iallreduce
        requests = [start(_mpi().IN_PLACE, b, op=_operation(op)) for b in buffers]

        def finish() -> None:
            for part, b, mark in zip(parts, buffers, marks):
                self._compare(b[:MARKS], self._history.reduced(mark, op))
                _unpack(_mean(b[MARKS:], op, self.size), [outs[i] for i in part])

        return self._pending(requests, finish, what)

    def reduce(self, x: Array, out: Array, op: str, root: int) -> Pending:
        """To one rank."""
        what, given = self.told(f"reduce({op}, {root})", [x]), _packed([x])
        found, same = np.zeros_like(given), self._compared()
        request = self._comm.Ireduce(given, found, op=_operation(op), root=root)

        def finish() -> None:
            _unpack(_mean(found, op, self.size), [out])

        return self._pending([request], finish, what, given, same=same)

    def reduce_scatter(self, x: Array, out: Array, op: str) -> Pending:
        """Blocks of equal size."""
        what, given = self.told(f"reduce_scatter({op})", [x]), _packed([x])
        found, same = np.empty(out.size, given.dtype), self._compared()
        request = self._comm.Ireduce_scatter_block(given, found, op=_operation(op))

        def finish() -> None:
            _unpack(_mean(found, op, self.size), [out])

        return self._pending([request], finish, what, given, same=same)

    def all_gather(self, x: Array, out: Array) -> Pending:
        """Bytes."""
        what, given = self.told("all_gather", [x]), _bytes(x)
        if x.nbytes < _SMALL_BYTES:
            return self._all_gather_small(what, given, out)
        (found, finish), same = _received(out), self._compared()
        request = self._comm.Iallgather(given, found)
        return self._pending([request], finish, what, given, same=same)

    def _all_gather_small(self, what: str, own: Array, out: Array) -> Pending:
        """The same behind a mark."""
        mark = self._history.mark(np.dtype(np.int64), "sum").view(np.uint8)
        given, at = np.concatenate([mark, own]), mark.size
        found = np.empty((self.size, given.size), np.uint8)

        def finish() -> None:
            for others in found[:, :at]:
                self._compare(others, mark)
            whole, rest = _received(out)
            whole.reshape(self.size, -1)[...] = found[:, at:]
            if rest is not None:
                rest()

        request = self._comm.Iallgather(given, found)
        return self._pending([request], finish, what, given)

    def broadcast(self, x: Array, out: Array, root: int) -> Pending:
        """Bytes."""
        what = self.told(f"broadcast({root})", [x])
        if self.index == root:
            np.copyto(out, x)
        (found, finish), same = _received(out, filled=self.index == root), self._compared()
        return self._pending([self._comm.Ibcast(found, root=root)], finish, what, same=same)

    def all_to_all(self, x: Array, out: Array) -> Pending:
        """Bytes."""
        what = self.told("all_to_all", [x])
        given, (found, finish), same = _bytes(x), _received(out), self._compared()
        request = self._comm.Ialltoall(given, found)
        return self._pending([request], finish, what, given, same=same)

    def permute(self, x: Array, out: Array, to: int | None, source: int | None) -> Pending:
        """A send and a receipt."""
        what, requests = self.told("permute", [x]), []
        given, (found, finish), same = _bytes(x), _received(out), self._compared()
        tag = _PERMUTE + self.count % 1000
        if source is None:
            found[...] = 0
        else:
            requests.append(self._comm.Irecv(found, source=source, tag=tag))
        if to is not None:
            requests.append(self._comm.Isend(given, dest=to, tag=tag))
        return self._pending(requests, finish, what, given, same=same)

    def send(self, x: Array, to: int, tag: int) -> Pending:
        """Of a copy, which is kept until it has arrived."""
        self._sends = [(r, a) for r, a in self._sends if not r.Test()]
        copy = np.array(_bytes(x), copy=True)
        self._sends.append((self._comm.Isend(copy, dest=to, tag=tag), copy))
        return self._pending([], None, f"send to number {to} of {self.group}")

    def recv(self, out: Array, source: int, tag: int) -> Pending:
        """Bytes."""
        found, finish = _received(out)
        request = self._comm.Irecv(found, source=source, tag=tag)
        what = f"recv from number {source} of {self.group} ({out.dtype} {out.shape})"
        return self._pending([request], finish, what)

    def told(self, kind: str, arrays: Arrays) -> str:
        """Keeps it in mind."""
        what = super().told(kind, arrays)
        self._history.add(f"{what}: {sum(a.size for a in arrays)} elements")
        return what

    def _compare(self, came: Array, wanted: Array) -> None:
        """Raise :class:`~symdnn.errors.CollectiveMismatch` if other ranks have run other
        collectives: MPI moves what it gets."""
        if came.tobytes() != wanted.tobytes():
            self.watch.differ(list(self._history.latest), self.group)

    def _compared(self) -> Callable[[], bool]:
        """Start an exchange of marks; whether it has ended, with an error where marks differ.

        For transfers that have no mark in what they move: a rank whose size differs gets an error
        of MPI, or waits for ever.
        """
        mark = self._history.mark(np.dtype(np.int64), "sum").view(np.uint8)
        found = np.empty((self.size, mark.size), np.uint8)
        request = self._comm.Iallgather(mark, found)

        def same() -> bool:
            if not request.Test():
                return False
            for others in found:
                self._compare(others, mark)
            return True

        return same

    def _pending(
        self, requests: Sequence[Any], finish: Callable[[], None] | None, what: str, *kept: Array,
        same: Callable[[], bool] = lambda: True,
    ) -> Pending:  # fmt: skip
        """A started transfer; ``kept`` stays alive until it is done, which needs what is ``same``.

        The ones before it are tested: MPICH moves bytes only inside of calls, so that each start
        lets those that overlap with computation go on.
        """
        requests = list(requests)
        operands = [kept]

        def done() -> bool:
            found = same() and bool(_mpi().Request.Testall(requests))
            if found:
                operands.clear()
            return found

        pending = Pending(done, finish, what)
        self._open = [p for p in self._open if not p.test()]
        if not pending.test():
            self._open.append(pending)
        return pending


#: Tags of permutations begin here; those of ``send`` are below.
_PERMUTE = 1 << 14


@cache
def _operation(op: str) -> Any:
    mpi = _mpi()
    return {"sum": mpi.SUM, "mean": mpi.SUM, "prod": mpi.PROD, "max": mpi.MAX, "min": mpi.MIN}[op]


def _mean(total: Array, op: str, size: int) -> Array:
    if op == "mean":
        total *= total.dtype.type(1 / size)
    return total


def _parts(xs: Arrays) -> list[list[int]]:
    """Indices of the arrays that are reduced in one buffer."""
    small: dict[str, list[int]] = {}
    parts: list[list[int]] = []
    for i, x in enumerate(xs):
        if x.nbytes < _SMALL_BYTES:
            small.setdefault(x.dtype.name, []).append(i)
        else:
            parts.append([i])
    return [*parts, *small.values()]


def _packed(xs: Arrays, *before: Array) -> Array:
    """The elements of arrays of one dtype, in the dtype in which they are reduced."""
    given, at = [*before, *xs], 0
    found = np.empty(sum(x.size for x in given), _reduced_in(xs[0].dtype))
    for x in given:
        np.copyto(found[at : at + x.size].reshape(x.shape), x, casting="unsafe")
        at += x.size
    return found


def _reduced_in(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype == np.bool_:
        return np.dtype(np.uint8)
    kept = dtype.kind in "iufc" and dtype.name != "float16"
    return dtype if kept else np.dtype(np.float32)


def _unpack(values: Array, outs: Arrays) -> None:
    at = 0
    for out in outs:
        np.copyto(out, values[at : at + out.size].reshape(out.shape), casting="unsafe")
        at += out.size


def _bytes(x: Array) -> Array:
    """The elements in C order, as bytes; a view where they lie so."""
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


def _received(out: Array, filled: bool = False) -> tuple[Array, Callable[[], None] | None]:
    """Bytes to receive ``out`` into, and what to do then; ``filled``: with its elements."""
    if out.flags.c_contiguous:
        return out.reshape(-1).view(np.uint8), None
    found = np.array(out, order="C", copy=True) if filled else np.empty(out.shape, out.dtype)

    def finish() -> None:
        np.copyto(out, found)

    return found.reshape(-1).view(np.uint8), finish
