"""NCCL behind some ten calls, by NVIDIA's binding nccl4py (extra ``nccl``) or by ctypes.

Operands are addresses, counts and dtypes on a stream; nothing waits. Calls on one communicator have
one order, that of the graph. The unique id goes over the store of :mod:`symdnn.world`.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from symdnn.errors import CudaUnavailable, DistributedError, OutOfDeviceMemory
from symdnn.gpu.binding import libnccl
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.context import Context, existing_context
from symdnn.gpu.device.memory import memory_of
from symdnn.gpu.nccl.settings import Settings
from symdnn.world import process
from symdnn.world.communicator import Pending
from symdnn.world.group import Group

_DTYPES = {
    "int8": 0, "uint8": 1, "bool": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5,
    "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
_OPERATIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "mean": 4}
_BYTES = _DTYPES["uint8"]
#: Defaults of NCCL's environment variables. A captured graph's buffers are not registered: they are
#: mapped in pieces, which NCCL can't export. All connections are made at the start, not in the
#: first call with a new size, which may be a capture.
_SETTINGS = {"NCCL_GRAPH_REGISTER": "0", "NCCL_RUNTIME_CONNECT": "0"}
#: That of copy engines, with which one graph has collectives of two communicators. The events by
#: which NCCL orders those of a graph and others may hang then, as its documentation says; here all
#: are in the order of one stream.
_MIXING = "NCCL_GRAPH_MIXING_SUPPORT", "0"
#: Seconds for which a wait for the device spins, as the driver's does.
_SPINNING_S = 0.25
#: NCCL 2.28, the oldest that is used: it has ``ncclAlltoAll``.
_OLDEST = 22800
#: ``NCCL_WIN_COLL_SYMMETRIC``: operands lie at equal distances from the start on all ranks.
_SYMMETRIC = 1


@cache
def _binding() -> Any:
    """nccl4py's functions, named as NCCL's; the same few by ctypes where it is not installed."""
    try:
        from nccl.bindings import nccl
    except ImportError:
        return libnccl
    return nccl


def problem() -> str | None:
    """Why NCCL can't be used; None if it can."""
    try:
        version = int(_binding().get_version())
    except Exception as error:  # no libnccl.so.2, and whatever loading a broken one raises
        return f"NCCL can't be loaded (pip install 'symdnn[nccl]'): {error}"
    return None if version >= _OLDEST else f"NCCL is {version}; wanted {_OLDEST} or newer"


def takes(dtype: str, reduces: bool) -> bool:
    """Whether NCCL moves this dtype, or reduces it; it moves any as bytes."""
    return not reduces or (dtype in _DTYPES and dtype != "bool")


class NcclCommunicator:
    """The GPUs of a group, one of which is this process's; ``handle`` is an ``ncclComm_t``.

    With the policy ``zero`` there is a second one, ``engines``, for graphs alone. NCCL numbers the
    transfers of copy engines that are not captured, and counts those that are captured, too. Ranks
    may capture their plans at different times, so that their numbers would differ. In a graph each
    transfer waits for the same number.
    """

    def __init__(
        self,
        group: Group,
        index: int,
        handle: Any,
        settings: Settings | None = None,
        engines: NcclCommunicator | None = None,
    ) -> None:
        self.group, self.index, self._handle = group, index, handle
        self.settings, self.engines = settings or Settings(), engines
        self._nccl = _binding()
        #: Registered memory by its size, and where each size that was asked for lies.
        self._windows: dict[int, int] = {}
        self._registered: dict[int, int] = {}
        #: Why there is no registered memory; empty if there is, or nobody has asked for it.
        self.why_none = ""

    def registered(self, nbytes: int) -> int:
        """The address of so many bytes of NCCL's own allocator that are registered with it, the
        same in each call; 0 if a rank has none. All ranks of the group ask for the same.

        What has room serves several sizes, since calls run one after another. The memory lives as
        long as the process: graphs have its address.
        """
        if nbytes not in self._registered and not self.why_none:
            room = [(size, at) for size, at in self._windows.items() if size >= nbytes]
            if not room:
                # Twice the largest at least: all of them together are twice the largest at most.
                size = max(nbytes, 2 * max(self._windows, default=0))
                room = [(size, self._register(size))]
                self._windows.update(room)
            self._registered[nbytes] = min(room)[1]
        return 0 if self.why_none else self._registered[nbytes]

    def _register(self, nbytes: int) -> int:
        """The address of new memory, or 0: all ranks have it, or none (``ncclMemAlloc``,
        ``ncclCommWindowRegister``)."""
        world, address, failure = process.current(), 0, ""
        name, user = f"registered memory of {nbytes} bytes", self.engines or self
        try:
            address = _allocated(nbytes, lambda: int(self._nccl.mem_alloc(nbytes)))
        except OutOfDeviceMemory as error:
            failure = str(error)
        failure = world.first_said(name, failure, self.group)
        if not failure:
            try:
                with world.blocking(f"ncclCommWindowRegister of {self.group}"):
                    window = self._nccl.comm_window_register(
                        user._handle, address, nbytes, _SYMMETRIC
                    )
                    if window and self.engines is not None and not self._windows:
                        self.engines._start(address, nbytes)
                failure = "" if window else "NCCL has no windows on this machine (it needs cuMem)"
            except Exception as error:
                failure = f"ncclCommWindowRegister: {error}"
            failure = world.first_said(f"{name}, made", failure, self.group)
        self.why_none = failure
        if failure and self.index == 0:
            _warn_once(failure)
        return 0 if failure else address

    def _start(self, address: int, nbytes: int) -> None:
        """Let copy engines move new registered memory, and wait for them: NCCL prepares the ranks'
        meetings in the first transfer, which must not be a captured one.

        There are two transfers. The first leaves the numbers 1 and 2 where ranks meet, and a graph
        waits for 1: it would not wait.
        """
        device = existing_context()
        assert device is not None, "memory is registered on a device"
        part = nbytes // self.group.size
        mine = RawArray(address + self.index * part, (part,), "uint8")
        for _ in range(2):
            stream = device.side.enter()
            self.all_gather(mine, RawArray(address, (part * self.group.size,), "uint8"), stream)
            device.side.leave(address)
            device.side.arrive(address)
            device.synchronize()

    def operation(self, op: str) -> int:
        """The ``ncclRedOp_t`` of a reduction.

        Of one rank the mean is the sum, which NCCL only copies. Its mean of one rank is a kernel
        that leaves out the last elements where the number of its blocks divides the count with a
        rest (``oneRankReduce``, NCCL 2.28: 3 of 196611 float32).
        """
        return _OPERATIONS["sum" if op == "mean" and self.group.size == 1 else op]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Calls inside are one launch (``ncclGroupStart``, ``ncclGroupEnd``)."""
        self._nccl.group_start()
        try:
            yield
        finally:
            self._nccl.group_end()

    def all_reduce(
        self, xs: Sequence[RawArray], outs: Sequence[RawArray], op: str, stream: int
    ) -> None:
        """``ncclAllReduce`` of several arrays, as one launch."""
        with self.together():
            for x, out in zip(xs, outs, strict=True):
                self.all_reduce_at(x.ptr, out.ptr, x.size, x.dtype, op, stream)

    def all_reduce_at(self, x: int, out: int, count: int, dtype: str, op: str, stream: int) -> None:
        """``ncclAllReduce`` by addresses; ``x`` may be ``out``."""
        number = self.operation(op)
        self._nccl.all_reduce(x, out, count, _DTYPES[dtype], number, self._handle, stream)

    def reduce(self, x: RawArray, out: RawArray, op: str, root: int, stream: int) -> None:
        """``ncclReduce``; only the root's ``out`` is written."""
        dtype, number = _DTYPES[x.dtype], self.operation(op)
        self._nccl.reduce(x.ptr, out.ptr, x.size, dtype, number, root, self._handle, stream)

    def reduce_scatter(self, x: RawArray, out: RawArray, op: str, stream: int) -> None:
        """``ncclReduceScatter``."""
        dtype, number = _DTYPES[x.dtype], self.operation(op)
        self._nccl.reduce_scatter(x.ptr, out.ptr, out.size, dtype, number, self._handle, stream)

    def all_gather(self, x: RawArray, out: RawArray, stream: int) -> None:
        """``ncclAllGather``."""
        self._nccl.all_gather(x.ptr, out.ptr, x.nbytes, _BYTES, self._handle, stream)

    def broadcast(self, x: RawArray, out: RawArray, root: int, stream: int) -> None:
        """``ncclBroadcast``."""
        self._nccl.broadcast(x.ptr, out.ptr, x.nbytes, _BYTES, root, self._handle, stream)

    def all_to_all(self, x: RawArray, out: RawArray, stream: int) -> None:
        """``ncclAlltoAll``; the count is that of one part."""
        count = x.nbytes // self.group.size
        self._nccl.allto_all(x.ptr, out.ptr, count, _BYTES, self._handle, stream)

    def send(self, x: RawArray, to: int, stream: int) -> None:
        """``ncclSend``."""
        self._nccl.send(x.ptr, x.nbytes, _BYTES, to, self._handle, stream)

    def recv(self, out: RawArray, source: int, stream: int) -> None:
        """``ncclRecv``."""
        self._nccl.recv(out.ptr, out.nbytes, _BYTES, source, self._handle, stream)

    def abort(self) -> None:
        """``ncclCommAbort``: stop calls in flight after a failure."""
        self._nccl.comm_abort(self._handle)

    def destroy(self) -> None:
        """``ncclCommDestroy``, after all graphs that use it."""
        self._nccl.comm_destroy(self._handle)


@cache
def _warn_once(why: str) -> None:
    warnings.warn(
        f"NCCL registers no memory here: {why}. Collectives work in other memory, and slower. "
        "With the flag distributed.registered=False nobody asks for it, and NCCL has as many "
        "thread blocks as it likes",
        RuntimeWarning,
        stacklevel=2,
    )


_communicators: dict[tuple[Group, Settings], NcclCommunicator] = {}
#: The collectives of plans, in binding order: candidates for the one that a wait is stuck in.
_bound: dict[str, None] = {}
_MOST_NAMED = 3


def note(collective: str) -> None:
    """A collective that plans have, in words, for the errors of waits."""
    _bound[collective] = None


def _wait_in_words() -> str:
    names = list(_bound)
    more = f" or {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"a wait for the GPU ({' or '.join(names[:_MOST_NAMED])}{more})"


def communicator(group: Group, settings: Settings | None = None) -> NcclCommunicator:
    """The communicator of a group on the current device, made once for each of the settings (those
    of the flags); all its ranks call this.

    It is made before a plan with it is captured. Raises :class:`~symdnn.errors.DistributedError` if
    NCCL can't be used.
    """
    settings = settings or Settings.of_flags()
    found = _communicators.get((group, settings))
    if found is None:
        if why := problem():
            raise DistributedError(f"collectives on GPUs need NCCL: {why}")
        found = _communicators[group, settings] = _new(group, settings)
    return found


def _new(group: Group, settings: Settings) -> NcclCommunicator:
    world = process.current()
    own = [_MIXING] if settings.by_copy_engines else []
    for name, value in (*_SETTINGS.items(), *own):
        os.environ.setdefault(name, value)
    index = group.index(world.place.rank, "NCCL")
    handle, engines = _joined(group, index, settings.with_blocks), None
    if settings.by_copy_engines:
        engines = NcclCommunicator(group, index, _joined(group, index, settings), settings)
    device = existing_context()
    if device is not None and world.store is not None and device.poll is None:
        device.poll = _wait_with_others
        atexit.register(_last_wait, device)
    return NcclCommunicator(group, index, handle, settings, engines)


def _allocated(nbytes: int, attempt: Callable[[], int]) -> int:
    """The address of new memory, which counts as the device's other memory does."""

    def tried() -> int:
        try:
            return attempt()
        except Exception as error:  # nccl4py's own, or ours
            raise OutOfDeviceMemory(f"ncclMemAlloc: {error}") from error

    device = existing_context()
    assert device is not None, "memory is registered on a device"
    budget = memory_of(device).budget
    address = budget.allocate("memory registered with NCCL", nbytes, tried)
    budget.registered_bytes += nbytes
    budget.update_peak()
    return address


def _joined(group: Group, index: int, settings: Settings) -> Any:
    """A new ``ncclComm_t`` of the group."""
    world, nccl = process.current(), _binding()
    own = bytes(nccl.get_unique_id()).hex() if index == 0 else ""
    first = bytearray.fromhex(world.gather("NCCL's unique id", own, group)[0])
    config = settings.config()
    address = 0 if config is None else ctypes.addressof(config)
    with world.blocking(f"ncclCommInitRank of {group}"):
        return nccl.comm_init_rank_scalable(group.size, index, 1, first, address)


def _wait_with_others(done: Callable[[], bool]) -> None:
    """Wait for the device. If another rank has failed or is late, stop calls in flight (which could
    wait for ever), change no variable, and raise.
    """
    if done():
        return
    world, device, what = process.current(), existing_context(), _wait_in_words()
    with world.blocking(what):
        try:
            world.watch.wait(Pending(done, what=what), world.group, _SPINNING_S, alone=True)
        except DistributedError as error:
            world.broken = f"collectives were aborted after {type(error).__name__}: {error}"
            if device is not None:
                device.cancel(lambda: drop_all(failed=True))
            raise


def _last_wait(device: Context) -> None:
    """At the end of the process: calls that free its memory wait for the device in the driver. An
    error ends the process as an uncaught one does.
    """
    try:
        with process.current().blocking("the last wait for the GPU"), device.current():
            device.synchronize()
    except CudaUnavailable:  # a fork, which has no device
        pass
    except DistributedError as error:
        sys.excepthook(type(error), error, error.__traceback__)


def drop_all(failed: bool = False) -> None:
    """Destroy all communicators, after the plans that use them; abort them after a failure.

    NCCL aborts running calls immediately, but returns only when all captured graphs with its
    kernels are gone (``ncclCommAbort``), and these live as long as their functions. So the return
    is not awaited.
    """
    while _communicators:
        _, found = _communicators.popitem()
        for each in (found.engines, found):
            if each is not None and failed:
                threading.Thread(target=each.abort, daemon=True, name="ncclCommAbort").start()
            elif each is not None:
                each.destroy()
