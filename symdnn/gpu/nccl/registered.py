"""Collectives of operands in registered memory, and reductions whose bytes copy engines move.

NCCL's copy engines move bytes, and reduce none. So with the policy ``zero`` a reduction is an
exchange of parts, a kernel that adds the parts of all ranks in the order of the ranks, and, for an
all-reduce, a gathering. Both moves take no thread blocks of the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from symdnn.gpu.codegen.launches import KernelLaunch, view_of
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.context import existing_context
from symdnn.gpu.device.env import LaunchEnv
from symdnn.gpu.kernels.elementwise import elementwise
from symdnn.gpu.nccl.communicator import NcclCommunicator, communicator, problem
from symdnn.gpu.nccl.settings import Settings
from symdnn.graph.type import numpy_dtype
from symdnn.ops.collective.base import Reducing
from symdnn.ops.collective.reductions import AllReduce, ReduceScatter
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.world import process
from symdnn.world.group import Group

#: A region is whole pages: so many ranks have equal parts of it.
_PAGE = 4096
_PART_OF_PAGE = _PAGE // 16
_FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class RegisteredMemory:
    """Memory that a group's ranks have registered with NCCL, by communicators of these settings."""

    group: Group
    settings: Settings

    @classmethod
    def of_flags(cls, group: Group) -> RegisteredMemory:
        """With the settings of the flags."""
        return cls(group, Settings.of_flags())

    def address(self, nbytes: int) -> int:
        """:meth:`~symdnn.gpu.nccl.communicator.NcclCommunicator.registered`."""
        return 0 if _nobody() else communicator(self.group, self.settings).registered(nbytes)

    @property
    def why_none(self) -> str:
        """Why there is none."""
        return _nobody() or communicator(self.group, self.settings).why_none


def _nobody() -> str:
    """Why nobody here has such memory; empty if NCCL and a GPU are there."""
    return problem() or ("" if existing_context() else "no GPU is in use")


def scratch_bytes(op: Any, types: Sequence[Any]) -> int:
    """Bytes for the parts of all ranks, beside those of the operands."""
    if not _may_go_by_copies(op, Settings.of_flags(), [t.dtype for t in types]):
        return 0
    sizes = [prod(t.shape) * int(t.numpy.itemsize) for t in types]
    return sum(n + 64 for n in sizes) + 4096  # as much as operands and what lies between them


def as_slots(
    env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]
) -> tuple[Sequence[RawArray], Sequence[RawArray]]:
    """The operands' places in registered memory."""
    found = [
        RawArray(at, x.shape, x.dtype) if x.size else x
        for x, at in zip((*inputs, *outputs), env.slots)
    ]
    return found[: len(inputs)], found[len(inputs) :]


def regions(env: LaunchEnv, xs: Sequence[RawArray]) -> tuple[RawArray, RawArray]:
    """All inputs as one vector of whole pages, with what lies between them, and all outputs, which
    may be in the same places; of one dtype."""
    begin, out, dtype = env.slots[0], env.slots[len(xs)], xs[0].dtype
    nbytes = env.slots[len(xs) - 1] + xs[-1].nbytes - begin
    count = -(-nbytes // _PAGE) * _PAGE // int(numpy_dtype(dtype).itemsize)
    return RawArray(begin, (count,), dtype), RawArray(out, (count,), dtype)


def by_copies(comm: NcclCommunicator, op: Reducing, env: LaunchEnv, xs: Sequence[RawArray]) -> bool:
    """Whether copy engines move the bytes of a reduction."""
    return bool(env.slots) and _may_go_by_copies(op, comm.settings, [x.dtype for x in xs])


def _may_go_by_copies(op: Any, settings: Settings, dtypes: Sequence[str]) -> bool:
    """The answer is the same on all ranks: it depends on the collective and on flags, and on
    whether all are on one machine, whose copy engines reach all cards."""
    place = process.current().place
    equal = isinstance(op, ReduceScatter) or _PART_OF_PAGE % op.group.size == 0
    adds = isinstance(op, AllReduce | ReduceScatter) and op.op in ("sum", "mean")
    one_float = len(set(dtypes)) == 1 and dtypes[0] in _FLOATS
    engines = settings.by_copy_engines and place.local_size == place.size
    return adds and equal and one_float and engines and op.group.size > 1


def reduce_by_copies(
    comm: NcclCommunicator, op: Reducing, env: LaunchEnv, stream: int, x: RawArray, out: RawArray
) -> RawArray:
    """Reduce this rank's part of ``x`` to ``out``, or to its place in it; where the part is."""
    ranks = comm.group.size
    count, itemsize = x.size // ranks, x.nbytes // max(x.size, 1)
    parts = RawArray(env.slots[-1], (x.size,), x.dtype)
    comm.all_to_all(x, parts, stream)
    at = out.ptr + (comm.index * count * itemsize if out.size > count else 0)
    mine = RawArray(at, (count,), x.dtype)
    given = [RawArray(parts.ptr + r * count * itemsize, (count,), x.dtype) for r in range(ranks)]
    addresses = [*(g.ptr for g in given), mine.ptr, env.node, env.error_word, 0]
    views = tuple(view_of(i, a) for i, a in enumerate((*given, mine)))
    there = env if stream == env.stream else env.on(stream)
    for k in _launches(views, op.op):
        k.enqueue(there, np.array(addresses, np.int64))
    return mine


@lru_cache(maxsize=256)
def _launches(views: tuple[Any, ...], op: str) -> list[KernelLaunch]:
    return elementwise(_sum(views[0].dtype, len(views) - 1, op), views[:-1], views[-1:])


def _sum(dtype: str, ranks: int, op: str) -> ScalarProgram:
    """The sum or mean of so many values, in float32 if they have 16 bits."""
    builder = Builder([dtype] * ranks)
    work = "float32" if is_narrow_float(dtype) else dtype
    total = builder.input(0).cast(work)
    for i in range(1, ranks):
        total = total + builder.input(i).cast(work)
    if op == "mean":
        total = total * (1.0 / ranks)
    return builder.program([total.cast(dtype)])
