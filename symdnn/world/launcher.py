"""What launched this process: its rank, and how many there are, from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from symdnn.errors import OptionError


@dataclass(frozen=True)
class Launched:
    """The place of a process among all: ``rank`` of ``size``, ``local_rank`` of ``local_size`` on
    its machine. ``size`` is 0 where only MPI knows it, ``local_rank`` is -1 and ``local_size`` 0
    where nobody has said them: :meth:`among` finds them."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    by: str

    @property
    def by_mpi(self) -> bool:
        """Whether MPI's launcher started it, so that MPI joins the processes."""
        return self.by in ("Open MPI", "MPICH", "PMIx")

    def among(self, machines: Sequence[str]) -> Launched:
        """The place on its machine, from the names of the machines of all ranks.

        >>> Launched(2, 3, -1, 0, "torchrun").among(["a", "b", "a"])
        Launched(rank=2, size=3, local_rank=1, local_size=2, by='torchrun')
        """
        here = [r for r, machine in enumerate(machines) if machine == machines[self.rank]]
        inside = here.index(self.rank) if self.local_rank < 0 else self.local_rank
        return replace(self, local_rank=inside, local_size=self.local_size or len(here))


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
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
    ("PMIx", "PMIX_RANK", "", "PMIX_LOCAL_RANK", "PMIX_LOCAL_SIZE"),
)  # fmt: skip
#: What torchrun's agent sets besides: without it a script has set ``RANK`` and ``WORLD_SIZE``.
_TORCHRUN = "TORCHELASTIC_RUN_ID"


def variables() -> list[str]:
    """The variables of all launchers that say a place."""
    return [name for _, *names in _VARIABLES for name in names if name]


def launched_by(environment: Mapping[str, str]) -> Launched | None:
    """The place that the launcher gave; None for a process that was started alone.

    torchrun sets ``RANK``, Open MPI ``OMPI_COMM_WORLD_RANK``, MPICH's Hydra (and ``srun
    --mpi=pmi2``) ``PMI_RANK``, ``srun`` ``SLURM_PROCID`` in its steps, and PMIx ``PMIX_RANK``.
    ``RANK`` and ``WORLD_SIZE`` that a script has set to what another launcher says are that one.

    Raises :class:`~symdnn.errors.OptionError` for variables that make no sense, are missing, or
    contradict each other.

    >>> launched_by({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    Launched(rank=3, size=8, local_rank=1, local_size=2, by='torchrun')
    >>> launched_by({}) is None
    True
    """
    places = (_place(environment, *names) for names in _VARIABLES)
    there = (place for place in places if place is not None)
    first = next(there, None)
    if first is None:
        _check_half(environment)
        return None
    if first.by != "torchrun" or _TORCHRUN in environment:
        return first
    other = next(there, None)
    if other is None or (first.rank, first.size) == (other.rank, other.size):
        return other or first
    if first.size <= other.size:  # a script may start several processes in one of the launcher's
        raise OptionError(
            f"RANK={first.rank} and WORLD_SIZE={first.size}, but {other.by} started rank "
            f"{other.rank} of {other.size}: unset RANK and WORLD_SIZE, or set them for each "
            "process; one that is to be alone may call init(rank=0, size=1)"
        )
    return first


def _place(
    environment: Mapping[str, str], by: str, rank: str, size: str, inside: str, there: str
) -> Launched | None:
    """The place that one launcher gave, by its variables; None if it is not there."""
    if rank not in environment or (by == "Slurm" and not _in_a_step(environment)):
        return None
    if by == "Slurm" and size not in environment:
        size = "SLURM_NTASKS"
    if size and size not in environment:
        if by == "torchrun":  # programs have variables of such names
            return None
        raise OptionError(f"{by}: {rank}={environment[rank]}, but {size} is not set")
    count = number_in(environment, size) if size else 0
    local_rank = number_in(environment, inside) if inside in environment else -1
    if by == "Slurm":
        local_size = _tasks_here(environment)
    else:
        local_size = number_in(environment, there) if there in environment else 0
    found = Launched(number_in(environment, rank), count, local_rank, local_size, by)
    if size and not 0 <= found.rank < count:
        raise OptionError(f"{by}: {rank}={found.rank} and {size}={count}; wanted a rank below")
    if there in environment and inside in environment and not 0 <= local_rank < local_size:
        raise OptionError(
            f"{by}: {inside}={local_rank} and {there}={local_size}; wanted a rank below"
        )
    if by == "Slurm" and "PMIX_RANK" in environment and "MASTER_ADDR" not in environment:
        return replace(found, by="PMIx")  # srun --mpi=pmix, which says no size
    return found


def _check_half(environment: Mapping[str, str]) -> None:
    """Raise if one of torchrun's variables is missing where others are meant for several ranks."""
    names = ("RANK", "WORLD_SIZE")
    there = [n for n in names if n in environment]
    alone = environment.get("WORLD_SIZE") == "1"
    if "MASTER_ADDR" in environment and len(there) == 1 and not alone:
        (missing,) = set(names) - set(there)
        raise OptionError(
            f"{there[0]}={environment[there[0]]} and MASTER_ADDR are set, but {missing} is not: "
            "set it for each process, or unset the others"
        )


def restarts(environment: Mapping[str, str]) -> int:
    """How often the launcher has started the program again after a failure.

    ``symdnn launch --restarts`` sets ``SYMDNN_RESTARTS``, torchrun ``TORCHELASTIC_RESTART_COUNT``,
    and Slurm ``SLURM_RESTART_COUNT`` in a job that was requeued.

    >>> restarts({"TORCHELASTIC_RESTART_COUNT": "2"}), restarts({})
    (2, 0)
    """
    names = ("SYMDNN_RESTARTS", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    return max(number_in(environment, n) if n in environment else 0 for n in names)


def number_in(environment: Mapping[str, str], name: str) -> int:
    """The value of a variable; raises :class:`~symdnn.errors.OptionError` if it is no integer."""
    try:
        return int(environment[name])
    except ValueError:
        raise OptionError(f"{name}={environment[name]!r}: wanted an integer") from None


def _in_a_step(environment: Mapping[str, str]) -> bool:
    """Whether ``srun`` started it: a batch script itself has the variables of a task, too."""
    return "SLURM_STEP_ID" in environment or "SLURM_STEPID" in environment


def _tasks_here(environment: Mapping[str, str]) -> int:
    """Tasks on this node, from ``4(x2),3``: the first four nodes have four each. 0: not said."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", environment.get("SLURM_TASKS_PER_NODE", ""))
    node = number_in(environment, "SLURM_NODEID") if "SLURM_NODEID" in environment else 0
    tasks: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found:
            tasks += [int(found[1])] * int(found[2] or 1)
    return tasks[node] if node < len(tasks) else 0
