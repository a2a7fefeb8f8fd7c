"""Joining and leaving the other processes of a program, and this one's place among them."""

from __future__ import annotations

import os
from collections.abc import Iterable

from symdnn.config import config
from symdnn.errors import OptionError
from symdnn.ops.collective.functions import group_of
from symdnn.world import launcher, process
from symdnn.world.group import Group
from symdnn.world.launcher import Launched

__all__ = [
    "barrier", "finalize", "init", "is_main", "local_rank", "local_size", "new_group", "rank",
    "restarts", "size",
]  # fmt: skip


def init(
    rank: int | None = None, size: int | None = None, local_rank: int | None = None,
    local_size: int | None = None,
) -> None:  # fmt: skip
    """Join the other processes that a launcher started; a process that is alone is rank 0 of 1.

    The place comes from the variables of torchrun, Open MPI, MPICH, PMIx or ``srun``, or from the
    arguments, with the machine of rank 0 in ``MASTER_ADDR`` and ``MASTER_PORT``. What is not said
    of the place on the machine follows from the machines' names. Arrays in the
    memory of the host are moved by MPI (``pip install 'symdnn[mpi]'``), those of GPUs by NCCL
    (``symdnn[nccl]``). On CPUs MPI is started here if the launcher has started none. With
    ``device=auto`` or ``cuda`` each process takes a GPU: number ``local_rank``, or 0 where it sees
    only one. Call it before the first function is compiled; a second call does nothing.

    An error that nobody catches ends all ranks from then on, and one that waits for another rank
    longer than the flag ``distributed.timeout`` says raises
    :class:`~symdnn.errors.CollectiveTimeout`.

    >>> init(); rank(), size(), is_main()
    (0, 1, True)
    """
    given = None
    if (rank is None) != (size is None):
        raise OptionError(f"init: rank={rank}, size={size}; wanted both or neither")
    if rank is not None and size is not None:
        process.check_rank(rank, size, "init: rank")
        if local_rank is not None:
            process.check_rank(local_rank, local_size or size, "init: local_rank")
        inside = -1 if local_rank is None else local_rank
        given = Launched(rank, size, inside, local_size or 0, "init's arguments")
    world = process.start(given)
    if world.place.size > 1 and not _take_gpu(world.place):
        world.join_by_mpi()


def _take_gpu(place: Launched) -> bool:
    """Let ``device=auto`` and ``device=cuda`` mean this process's GPU; whether it has one."""
    if str(config.device) not in ("auto", "cuda"):
        return str(config.device) != "cpu"
    from symdnn.gpu.binding import libcuda

    count = len(libcuda.driver().devices)
    if count > 1:
        if place.local_rank >= count:
            raise OptionError(
                f"init: {place.local_size} processes on a machine with {count} GPUs; start one "
                "for each GPU, or set the flag device"
            )
        config.device = f"cuda{place.local_rank}"
    elif count == 1 and str(config.device) == "cuda":
        config.device = "cuda0"
    return count > 0 or str(config.device) == "cuda"


def rank() -> int:
    """The number of this process, from 0."""
    return process.current().place.rank


def size() -> int:
    """The number of processes."""
    return process.current().place.size


def local_rank() -> int:
    """The number of this process on its machine, from 0."""
    return process.current().place.local_rank


def local_size() -> int:
    """The number of processes on this machine."""
    return process.current().place.local_size


def restarts() -> int:
    """How often the launcher has started this program again: by ``symdnn launch --restarts N``,
    torchrun's ``--max-restarts``, or ``srun --requeue``.

    Programs that resume from a checkpoint need not ask.

    >>> restarts()
    0
    """
    return launcher.restarts(os.environ)


def is_main() -> bool:
    """Whether this is rank 0, which prints and writes files."""
    return rank() == 0


def barrier(group: Group | None = None) -> None:
    """Return when all ranks of ``group`` (all) have called it."""
    process.current().gather("barrier", None, group_of(group))


def finalize() -> None:
    """Leave the other processes; happens at the end of the program by itself.

    Compiled functions with collectives can't be called afterwards.
    """
    process.end()


def new_group(ranks: Iterable[int], name: str = "") -> Group:
    """A group of some ranks, which exchange arrays by ``group=``; others need not call this.

    >>> new_group([0]).size
    1
    """
    group = Group.of(ranks)
    for r in group.ranks:
        process.check_rank(r, size(), "new_group: rank")
    return Group(group.ranks, name or "group " + "-".join(map(str, group.ranks)))
