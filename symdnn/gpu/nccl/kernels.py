"""Collectives as steps of a plan on a GPU: NCCL on a second stream, captured with the plan's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from symdnn.config import config
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.env import LaunchEnv
from symdnn.gpu.kernels.copy import strided_copy
from symdnn.gpu.nccl.communicator import NcclCommunicator, communicator, note, takes
from symdnn.gpu.nccl.registered import (
    RegisteredMemory,
    as_slots,
    by_copies,
    reduce_by_copies,
    regions,
    scratch_bytes,
)
from symdnn.gpu.nccl.settings import registers
from symdnn.graph.kernel import Call, Kernel, OperandMemory, Row, Traits
from symdnn.ops.collective.base import Collective, Reducing
from symdnn.ops.collective.moves import AllToAll, Permute, Recv, Send
from symdnn.ops.collective.overlapped import (
    AllReduceStart,
    AllSucceeded,
    MoveStart,
    StreamStart,
    StreamWait,
)
from symdnn.ops.collective.reductions import (
    AllGather,
    AllReduce,
    Broadcast,
    Reduce,
    ReduceScatter,
)
from symdnn.world import process

Run = Callable[[NcclCommunicator, LaunchEnv, int, Sequence[RawArray], Sequence[RawArray]], None]
#: Elements of the error word.
_WORDS = 4
#: Fewer bytes take no longer where they are not registered.
_LEAST_REGISTERED_BYTES = 64 << 10
_overlaps = config.reader("distributed.overlap")


class NcclKernel(Kernel[Collective]):
    """A collective by NCCL. With one rank it is a copy, or zeros where the rank receives nothing
    (the flag ``distributed.single_rank`` uses NCCL there too); sends and receipts are on the CPU.

    All calls of NCCL are on the device's second stream, so that they have one order whatever their
    communicators. The first stream waits for them immediately, or at an :class:`ArrivalKernel` if a
    :class:`~symdnn.ops.collective.overlapped.StreamStart` is in front.
    """

    name = "nccl"
    traits = Traits("nccl")
    contiguous_inputs = True

    def refuses(self, call: Call[Collective]) -> str | None:
        """Reductions of dtypes that NCCL does not know; the halves that a CPU runs; sends of a
        single rank."""
        op = _whole(call.op)
        if isinstance(op, AllReduceStart | MoveStart):
            return "its halves are those of a CPU"
        if isinstance(op, Reducing) and not all(takes(t.dtype, True) for t in call.inputs):
            return f"NCCL reduces no {call.inputs[0].dtype}"
        if isinstance(op, Send | Recv) and not _by_nccl(op):
            return "what a single rank sends to itself waits on the CPU"
        return None

    def operand_memory(self, call: Call[Collective]) -> tuple[OperandMemory, int, bool] | None:
        """That of NCCL's own allocator, for large operands, by a flag. Sums replace what they are
        of."""
        op = _whole(call.op)
        moved = isinstance(op, AllReduce | AllGather | ReduceScatter) and _by_nccl(op)
        if not (registers() and moved):
            return None
        if sum(prod(t.shape) * t.numpy.itemsize for t in call.inputs) < _LEAST_REGISTERED_BYTES:
            return None
        memory, scratch = RegisteredMemory.of_flags(op.group), scratch_bytes(op, call.inputs)
        return memory, scratch, isinstance(op, AllReduce)

    def bind(self, call: Call[Collective]) -> Any:
        """The communicator is made now, before a graph is captured."""
        op = _whole(call.op)
        goes_on = isinstance(call.op, StreamStart)
        run = _RUNS[type(op)](op)
        comm = communicator(op.group) if _by_nccl(op) else None
        words = f"{op.text(call.inputs)} of {op.group}"
        if op.group.size > 1:
            note(words)
        empty = not any(prod(t.shape) for t in (*call.inputs, *call.outputs))

        def launch(env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            if comm is None or env.alone:
                _alone(op, env, inputs, outputs)
                if goes_on and not empty and _overlaps():
                    env.side.came(_place(outputs))
            elif not empty:
                if _writes_nothing(op, comm.index):
                    env.zero(outputs[0].ptr, outputs[0].nbytes)
                xs, outs = inputs, outputs
                if env.slots:
                    xs, outs = as_slots(env, inputs, outputs)
                    _copy_moved(env, inputs, xs)
                stream = env.side.enter() if _overlaps() else env.stream
                by = comm.engines if comm.engines and env.slots and env.captures else comm
                with process.current().blocking(words):
                    run(by, env, stream, xs, outs)
                if env.slots:
                    _copy_moved(env if stream == env.stream else env.on(stream), outs, outputs)
                if stream != env.stream:
                    place = _place(outputs)
                    env.side.leave(place, inputs)
                    if not goes_on:
                        env.side.arrive(place)

        return launch


class ArrivalKernel(Kernel[StreamWait]):
    """Lets the first stream wait for a collective; its results are in their places."""

    name = "nccl.wait"
    traits = Traits("nccl")

    def never_fails(self, call: Call[StreamWait]) -> bool:
        """The host raises nothing there."""
        return True

    def bind(self, call: Call[StreamWait]) -> Any:
        """Copy results to where the plan wants them."""
        count = call.op.count
        empty = not any(prod(t.shape) for t in call.inputs)

        def launch(env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            if env.load_only:  # it may be among updates
                return
            if not empty and _overlaps():
                env.side.arrive(_place(inputs[:count]))
            for place, out in zip(inputs[:count], outputs, strict=True):
                if place.ptr != out.ptr and place.size:
                    strided_copy(env, place, out)

        return launch


def _whole(op: Any) -> Any:
    """The collective that an op is, or whose first half it is."""
    return op.of if isinstance(op, StreamStart) else op


def _by_nccl(op: Any) -> bool:
    return op.group.size > 1 or str(config.distributed.single_rank) == "nccl"


def _place(outputs: Sequence[RawArray]) -> int:
    """The key of a collective in flight: the address of its first result."""
    return next((out.ptr for out in outputs if out.size), 0)


def _copy_moved(env: LaunchEnv, xs: Sequence[RawArray], places: Sequence[RawArray]) -> None:
    """Copy what the plan could not make in registered memory, or wants elsewhere."""
    for x, place in zip(xs, places, strict=True):
        if x.ptr != place.ptr and x.size:
            strided_copy(env, x, place)


def _alone(
    op: Any, env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]
) -> None:
    """A collective of one rank, or without the other ones."""
    for i, out in enumerate(outputs):
        x = inputs[i] if i < len(inputs) else None
        if x is None or x.shape != out.shape or (isinstance(op, Permute) and not op.pairs):
            env.zero(out.ptr, out.nbytes)
        elif x.ptr != out.ptr:
            strided_copy(env, x, out)


def _writes_nothing(op: Any, index: int) -> bool:
    """Whether NCCL does not write this rank's result, which then is zeros."""
    if isinstance(op, Permute):
        return index not in {b for _, b in op.pairs}
    return isinstance(op, Reduce) and index != op.root


def _all_reduce(op: AllReduce) -> Run:
    def run(comm: NcclCommunicator, env: LaunchEnv, stream: int, xs: Any, outs: Any) -> None:
        if by_copies(comm, op, env, xs):
            x, out = regions(env, xs)
            mine = reduce_by_copies(comm, op, env, stream, x, out)
            comm.all_gather(mine, out, stream)
            return
        if env.slots and len({x.dtype for x in xs}) == 1:
            xs, outs = ([one] for one in regions(env, xs))
        pairs = [(x, out) for x, out in zip(xs, outs) if x.size]
        comm.all_reduce([x for x, _ in pairs], [out for _, out in pairs], op.op, stream)

    return run


def _reduce(op: Reduce) -> Run:
    return lambda comm, env, stream, xs, outs: comm.reduce(xs[0], outs[0], op.op, op.root, stream)


def _reduce_scatter(op: ReduceScatter) -> Run:
    def run(comm: NcclCommunicator, env: LaunchEnv, stream: int, xs: Any, outs: Any) -> None:
        if by_copies(comm, op, env, xs):
            reduce_by_copies(comm, op, env, stream, xs[0], outs[0])
        else:
            comm.reduce_scatter(xs[0], outs[0], op.op, stream)

    return run


def _all_gather(op: AllGather) -> Run:
    return lambda comm, env, stream, xs, outs: comm.all_gather(xs[0], outs[0], stream)


def _broadcast(op: Broadcast) -> Run:
    return lambda comm, env, stream, xs, outs: comm.broadcast(xs[0], outs[0], op.root, stream)


def _all_to_all(op: AllToAll) -> Run:
    return lambda comm, env, stream, xs, outs: comm.all_to_all(xs[0], outs[0], stream)


def _permute(op: Permute) -> Run:
    to, source = dict(op.pairs), {b: a for a, b in op.pairs}

    def run(comm: NcclCommunicator, env: LaunchEnv, stream: int, xs: Any, outs: Any) -> None:
        with comm.together():  # else a send could wait for its receipt for ever
            if comm.index in to:
                comm.send(xs[0], to[comm.index], stream)
            if comm.index in source:
                comm.recv(outs[0], source[comm.index], stream)

    return run


def _send(op: Send) -> Run:
    return lambda comm, env, stream, xs, outs: comm.send(xs[0], op.peer, stream)


def _recv(op: Recv) -> Run:
    return lambda comm, env, stream, xs, outs: comm.recv(outs[0], op.peer, stream)


def _all_succeeded(op: AllSucceeded) -> Run:
    """Reduce the error words of all ranks to one, which all updates test: if a kernel of any rank
    failed, no rank changes a variable.
    """

    def run(comm: NcclCommunicator, env: LaunchEnv, stream: int, xs: Any, outs: Any) -> None:
        with comm.together():
            comm.all_reduce_at(xs[0].ptr, outs[0].ptr, xs[0].size, xs[0].dtype, "max", stream)
            word = env.error_word
            comm.all_reduce_at(word, word, _WORDS, "int32", "max", stream)

    return run


_RUNS: dict[type[Any], Callable[[Any], Run]] = {
    AllReduce: _all_reduce, Reduce: _reduce, ReduceScatter: _reduce_scatter,
    AllGather: _all_gather, Broadcast: _broadcast, AllToAll: _all_to_all, Permute: _permute,
    Send: _send, Recv: _recv, AllSucceeded: _all_succeeded,
}  # fmt: skip

KERNELS: tuple[Row, ...] = (
    ((Collective,), (NcclKernel(),)),
    ((StreamWait,), (ArrivalKernel(),)),
)
