"""What launched this process: its rank, and how many there are, from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from symdnn.errors import OptionError

__all__ = ["Launched", "launched_by", "restarts"]


@dataclass(frozen=True)
class Launched:
    """The place of a process among all: ``rank`` of ``size``, ``local_rank`` of ``local_size`` on
    its machine. ``size`` is 0 where only MPI knows it."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    by: str

    @property
    def by_mpi(self) -> bool:
        """Whether MPI's launcher started it, so that MPI joins the processes."""
        return self.by in ("Open MPI", "MPICH", "PMIx")


#: The launcher's name, and its variables of rank, size, rank and size on the machine. The first
#: launcher that is there counts: the later ones may be around it.
_VARIABLES = (
    ("symdnn launch", "SYMDNN_RANK", "SYMDNN_SIZE", "SYMDNN_LOCAL_RANK", "SYMDNN_LOCAL_SIZE"),
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    (
        "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
    ("PMIx", "PMIX_RANK", "", "PMIX_LOCAL_RANK", "PMIX_LOCAL_SIZE"),
)  # fmt: skip


def launched_by(environment: Mapping[str, str]) -> Launched | None:
    """The place that the launcher gave; None for a process that was started alone.

    torchrun sets ``RANK``, Open MPI ``OMPI_COMM_WORLD_RANK``, MPICH's Hydra (and ``srun
    --mpi=pmi2``) ``PMI_RANK``, ``srun`` ``SLURM_PROCID`` in its steps, and PMIx ``PMIX_RANK``.

    >>> launched_by({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    Launched(rank=3, size=8, local_rank=1, local_size=2, by='torchrun')
    >>> launched_by({}) is None
    True
    """
    for by, rank, size, local_rank, local_size in _VARIABLES:
        if rank not in environment or (size and size not in environment):
            continue
        if by == "Slurm" and not _in_a_step(environment):
            continue
        count = _number(environment, size) if size else 0
        inside = _number(environment, local_rank) if local_rank in environment else 0
        if by == "Slurm":
            there = _tasks_here(environment, count)
        else:
            there = _number(environment, local_size) if local_size in environment else count
        found = Launched(_number(environment, rank), count, inside, max(there, 1), by)
        if count and not 0 <= found.rank < count:
            raise OptionError(f"{by}: {rank}={found.rank} and {size}={count}; wanted a rank below")
        return found
    return None


def restarts(environment: Mapping[str, str]) -> int:
    """How often the launcher has started the program again after a failure.

    ``symdnn launch --restarts`` sets ``SYMDNN_RESTARTS``, torchrun ``TORCHELASTIC_RESTART_COUNT``,
    and Slurm ``SLURM_RESTART_COUNT`` in a job that was requeued.

    >>> restarts({"TORCHELASTIC_RESTART_COUNT": "2"}), restarts({})
    (2, 0)
    """
    names = ("SYMDNN_RESTARTS", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    return max(_number(environment, n) if n in environment else 0 for n in names)


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise OptionError(f"{name}={environment[name]!r}: wanted an integer") from None


def _in_a_step(environment: Mapping[str, str]) -> bool:
    """Whether ``srun`` started it: a batch script itself has the variables of a task, too."""
    return "SLURM_STEP_ID" in environment or "SLURM_STEPID" in environment


def _tasks_here(environment: Mapping[str, str], count: int) -> int:
    """Tasks on this node, from ``4(x2),3``: the first four nodes have four each."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", environment.get("SLURM_TASKS_PER_NODE", ""))
    node = int(environment.get("SLURM_NODEID", "0"))
    tasks: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found:
            tasks += [int(found[1])] * int(found[2] or 1)
    return tasks[node] if node < len(tasks) else count
