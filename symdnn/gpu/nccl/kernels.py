"""Collectives as steps of a plan on a GPU: NCCL on the plan's stream, captured with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from symdnn.config import config
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.env import LaunchEnv
from symdnn.gpu.kernels.copy import strided_copy
from symdnn.gpu.nccl.communicator import NcclCommunicator, communicator, takes
from symdnn.graph.kernel import Call, Kernel, Row, Traits
from symdnn.ops.collective.base import Collective, Reducing
from symdnn.ops.collective.moves import AllToAll, Permute, Recv, Send
from symdnn.ops.collective.overlapped import AllReduceStart, AllSucceeded, MoveStart
from symdnn.ops.collective.reductions import (
    AllGather,
    AllReduce,
    Broadcast,
    Reduce,
    ReduceScatter,
)

__all__ = ["KERNELS", "NcclKernel"]

Run = Callable[[NcclCommunicator, LaunchEnv, Sequence[RawArray], Sequence[RawArray]], None]
#: Elements of the error word.
_WORDS = 4


class NcclKernel(Kernel[Collective]):
    """A collective by NCCL; of one rank a copy, or zeros where nothing goes to it (or by NCCL, with
    the flag ``distributed.single_rank``)."""

    name = "nccl"
    traits = Traits("nccl")
    contiguous_inputs = True

    def refuses(self, call: Call[Collective]) -> str | None:
        """Reductions of dtypes that NCCL does not know; the halves that a CPU runs."""
        op = call.op
        if isinstance(op, AllReduceStart | MoveStart):
            return "on a GPU a reduction is one step"
        if isinstance(op, Reducing) and not all(takes(t.dtype, True) for t in call.inputs):
            return f"NCCL reduces no {call.inputs[0].dtype}"
        return None

    def bind(self, call: Call[Collective]) -> Any:
        """The communicator is made now, before a graph is captured."""
        op = call.op
        run = _RUNS[type(op)](op)
        by_nccl = op.group.size > 1 or str(config.distributed.single_rank) == "nccl"
        comm = communicator(op.group) if by_nccl else None
        empty = not any(prod(t.shape) for t in (*call.inputs, *call.outputs))

        def launch(env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            if comm is not None:
                if not empty:
                    run(comm, env, inputs, outputs)
                return
            for x, out in zip(inputs, outputs):
                if isinstance(op, Permute) and not op.pairs:
                    env.zero(out.ptr, out.nbytes)
                elif x.shape == out.shape:
                    strided_copy(env, x, out)

        return launch


def _all_reduce(op: AllReduce) -> Run:
    def run(comm: NcclCommunicator, env: LaunchEnv, xs: Any, outs: Any) -> None:
        pairs = [(x, out) for x, out in zip(xs, outs) if x.size]
        comm.all_reduce([x for x, _ in pairs], [out for _, out in pairs], op.op, env.stream)

    return run


def _reduce(op: Reduce) -> Run:
    def run(comm: NcclCommunicator, env: LaunchEnv, xs: Any, outs: Any) -> None:
        if comm.index != op.root:  # NCCL writes nothing there
            env.zero(outs[0].ptr, outs[0].nbytes)
        comm.reduce(xs[0], outs[0], op.op, op.root, env.stream)

    return run


def _reduce_scatter(op: ReduceScatter) -> Run:
    return lambda comm, env, xs, outs: comm.reduce_scatter(xs[0], outs[0], op.op, env.stream)


def _all_gather(op: AllGather) -> Run:
    return lambda comm, env, xs, outs: comm.all_gather(xs[0], outs[0], env.stream)


def _broadcast(op: Broadcast) -> Run:
    return lambda comm, env, xs, outs: comm.broadcast(xs[0], outs[0], op.root, env.stream)


def _all_to_all(op: AllToAll) -> Run:
    return lambda comm, env, xs, outs: comm.all_to_all(xs[0], outs[0], env.stream)


def _permute(op: Permute) -> Run:
    to, source = dict(op.pairs), {b: a for a, b in op.pairs}

    def run(comm: NcclCommunicator, env: LaunchEnv, xs: Any, outs: Any) -> None:
        if comm.index not in source:
            env.zero(outs[0].ptr, outs[0].nbytes)
        with comm.together():  # else a send could wait for its receipt for ever
            if comm.index in to:
                comm.send(xs[0], to[comm.index], env.stream)
            if comm.index in source:
                comm.recv(outs[0], source[comm.index], env.stream)

    return run


def _send(op: Send) -> Run:
    return lambda comm, env, xs, outs: comm.send(xs[0], op.peer, env.stream)


def _recv(op: Recv) -> Run:
    return lambda comm, env, xs, outs: comm.recv(outs[0], op.peer, env.stream)


def _all_succeeded(op: AllSucceeded) -> Run:
    """The error words of all ranks become one, which all updates test: none of them changes a
    variable if a kernel of one rank has met an error."""

    def run(comm: NcclCommunicator, env: LaunchEnv, xs: Any, outs: Any) -> None:
        with comm.together():
            comm.all_reduce_at(xs[0].ptr, outs[0].ptr, xs[0].size, xs[0].dtype, "max", env.stream)
            word = env.error_word
            comm.all_reduce_at(word, word, _WORDS, "int32", "max", env.stream)

    return run


_RUNS: dict[type[Any], Callable[[Any], Run]] = {
    AllReduce: _all_reduce, Reduce: _reduce, ReduceScatter: _reduce_scatter,
    AllGather: _all_gather, Broadcast: _broadcast, AllToAll: _all_to_all, Permute: _permute,
    Send: _send, Recv: _recv, AllSucceeded: _all_succeeded,
}  # fmt: skip

KERNELS: tuple[Row, ...] = (((Collective,), (NcclKernel(),)),)
