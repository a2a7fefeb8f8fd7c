"""Records of collectives in a world of one rank; ``tests/distributed`` has real ones."""

from __future__ import annotations

from typing import Any

import numpy as np

import symdnn.distributed as dist
from symdnn.ops.collective.moves import AllToAll, Permute, Recv, Send
from symdnn.ops.collective.overlapped import (
    AllReduceStart,
    AllReduceWait,
    AllSucceeded,
    MoveStart,
    MoveWait,
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
from symdnn.ops.collective.replicated import Replicated
from symdnn.world.group import Group
from tests.op_table.record import OpCase, distinct, integers, normal

ONE = Group((0,), "one")


def same(*xs: Any) -> Any:
    return xs[0] if len(xs) == 1 else list(xs)


def halves(x: Any, y: Any) -> Any:
    return AllReduceWait(2)(AllReduceStart(ONE, "sum")(x, y), x, y)


def moved_by_halves(x: Any) -> Any:
    return MoveWait()(*MoveStart(ONE, AllGather(ONE))(x))


def halves_on_a_stream(x: Any, y: Any) -> Any:
    places = StreamStart(ONE, AllReduce(ONE, "sum"))(x, y)
    return StreamWait(2)(*places, x, y)


def to_itself(x: Any) -> Any:
    return dist.recv(x.shape, x.type.dtype, 0, after=dist.send(x, 0))


CASES = [
    *(
        OpCase(
            f"all_reduce_{op}", (AllReduce,), lambda x, op=op: dist.all_reduce(x, op),
            (distinct(3, 4),), same,
        )
        for op in ("sum", "mean", "max", "min", "prod")
    ),
    OpCase(
        "all_reduce_bucket", (AllReduce,), lambda x, y: dist.all_reduce([x, y], "mean"),
        (normal(3), normal(2, 0)), same,
    ),
    OpCase(
        "all_reduce_ints", (AllReduce,), dist.all_reduce, (integers(0, 9, 4),), same, grad=False
    ),
    OpCase("all_reduce_halves", (AllReduceStart, AllReduceWait), halves,
           (normal(3), normal(2, 2)), same, grad=False),
    OpCase("move_halves", (MoveStart, MoveWait), moved_by_halves, (normal(3, 2),), same,
           grad=False),
    OpCase("stream_halves", (StreamStart, StreamWait), halves_on_a_stream,
           (normal(3), normal(2, 2)), same, grad=False),
    OpCase("reduce_to_root", (Reduce,), dist.reduce, (normal(2, 3),), same),
    OpCase("reduce_mean_to_root", (Reduce,), lambda x: dist.reduce(x, "mean"),
           (normal(2, 3),), same),
    OpCase("broadcast_of_root", (Broadcast,), dist.broadcast, (normal(2, 3),), same),
    OpCase("all_gather_rows", (AllGather,), dist.all_gather, (normal(3, 2),), same),
    OpCase("all_gather_columns", (AllGather,), lambda x: dist.all_gather(x, axis=-1),
           (normal(3, 2),), same),
    OpCase("all_gather_scalars", (AllGather,), dist.all_gather, (normal(),),
           lambda x: np.reshape(x, 1)),
    OpCase("reduce_scatter_rows", (ReduceScatter,), dist.reduce_scatter, (normal(4, 2),), same),
    OpCase("reduce_scatter_mean", (ReduceScatter,), lambda x: dist.reduce_scatter(x, "mean", 1),
           (normal(4, 2),), same),
    OpCase("all_to_all_rows", (AllToAll,), dist.all_to_all, (normal(4, 2),), same),
    OpCase("all_to_all_axes", (AllToAll,), lambda x: dist.all_to_all(x, 1, 0), (normal(4, 2),),
           same),
    OpCase("permute_to_itself", (Permute,), lambda x: dist.permute(x, [(0, 0)]), (normal(4, 2),),
           same),
    OpCase("permute_nothing", (Permute,), lambda x: dist.permute(x, []), (normal(4, 2),),
           np.zeros_like),
    OpCase("send_and_recv", (Send, Recv), to_itself, (normal(4, 2),), same),
    OpCase("replicated", (Replicated,), dist.replicated, (normal(2, 3),), same),
    OpCase("all_succeeded", (AllSucceeded,), AllSucceeded(ONE), (normal(),), same, grad=False),
]  # fmt: skip
