"""The place of a process, from the variables of each launcher."""

import pytest

from symdnn.errors import OptionError
from symdnn.world.launcher import Launched, launched_by

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "5", "SLURM_NTASKS": "7", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "3(x2),1",
}  # fmt: skip
AGENT = {"TORCHELASTIC_RUN_ID": "none"}
#: A shell by salloc on four nodes.
SHELL = {
    "SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "4294967290",
    "SLURM_TASKS_PER_NODE": "4(x4)",
}  # fmt: skip


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        (TORCHRUN, Launched(5, 8, 1, 4, "torchrun")),
        (OPEN_MPI, Launched(2, 4, 0, 2, "Open MPI")),
        (MPICH, Launched(1, 2, 1, 2, "MPICH")),
        (SLURM, Launched(5, 7, 1, 3, "Slurm")),
        ({**SLURM, "SLURM_NODEID": "2"}, Launched(5, 7, 1, 1, "Slurm")),
        ({"PMIX_RANK": "3"}, Launched(3, 0, -1, 0, "PMIx")),
        ({"SYMDNN_RANK": "0", "SYMDNN_SIZE": "2"}, Launched(0, 2, -1, 0, "symdnn launch")),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Launched(1, 2, -1, 0, "torchrun")),
        # The inner launcher counts.
        ({**SLURM, **TORCHRUN}, Launched(5, 8, 1, 4, "torchrun")),
        ({**SLURM, **MPICH}, Launched(1, 2, 1, 2, "MPICH")),
        ({**MPICH, **AGENT, "RANK": "0", "WORLD_SIZE": "1"}, Launched(0, 1, -1, 0, "torchrun")),
        # A script that starts several processes in each of the launcher's.
        ({**MPICH, "RANK": "6", "WORLD_SIZE": "8"}, Launched(6, 8, -1, 0, "torchrun")),
        # A script that says again what the launcher has said.
        ({**MPICH, "RANK": "1", "WORLD_SIZE": "2"}, Launched(1, 2, 1, 2, "MPICH")),
        ({**SLURM, "RANK": "5", "WORLD_SIZE": "7"}, Launched(5, 7, 1, 3, "Slurm")),
        ({**SLURM, "WORLD_SIZE": "7", "MASTER_ADDR": "a"}, Launched(5, 7, 1, 3, "Slurm")),
        # srun's numbers are those of the step, whatever the job's are; its MPI is that of PMIx.
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "6"}, Launched(5, 6, 1, 3, "Slurm")),
        ({**SLURM, "PMIX_RANK": "5"}, Launched(5, 7, 1, 3, "PMIx")),
        ({**SLURM, "PMIX_RANK": "5", "MASTER_ADDR": "a"}, Launched(5, 7, 1, 3, "Slurm")),
        ({**SHELL, "SLURM_STEP_NUM_TASKS": "1"}, Launched(0, 1, 0, 4, "Slurm")),
        # A batch script has a task's variables and is no step; a rank alone is no launcher's.
        ({k: v for k, v in SLURM.items() if k != "SLURM_STEP_ID"}, None),
        ({"RANK": "3"}, None),
        ({"WORLD_SIZE": "1", "MASTER_ADDR": "a"}, None),
        ({}, None),
    ],
)
def test_place(variables, place):
    assert launched_by(variables) == place


@pytest.mark.parametrize(("variables", "said"), [
    ({"RANK": "3", "MASTER_ADDR": "a"}, "RANK=3 and MASTER_ADDR are set, but WORLD_SIZE is not"),
    ({"WORLD_SIZE": "3", "MASTER_ADDR": "a"}, "but RANK is not"),
    ({"OMPI_COMM_WORLD_RANK": "1"}, "Open MPI: OMPI_COMM_WORLD_RANK=1, but OMPI_COMM_WORLD_SIZE"),
    ({"PMI_RANK": "1"}, "MPICH: PMI_RANK=1, but PMI_SIZE is not set"),
    ({"SYMDNN_RANK": "1"}, "SYMDNN_SIZE is not set"),
    ({k: v for k, v in SLURM.items() if k != "SLURM_NTASKS"}, "SLURM_NTASKS is not set"),
    ({**SLURM, "SLURM_NODEID": "a"}, "SLURM_NODEID='a': wanted an integer"),
    ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK=0 and WORLD_SIZE=0"),
    ({**TORCHRUN, "LOCAL_RANK": "4"}, "LOCAL_RANK=4 and LOCAL_WORLD_SIZE=4"),
    ({**TORCHRUN, "LOCAL_RANK": "-1"}, "LOCAL_RANK=-1 and LOCAL_WORLD_SIZE=4"),
    # Left over from something else: each of the processes would be that rank.
    ({**MPICH, "RANK": "0", "WORLD_SIZE": "1"}, "but MPICH started rank 1 of 2: unset RANK"),
    ({**OPEN_MPI, "RANK": "0", "WORLD_SIZE": "4"}, "but Open MPI started rank 2 of 4"),
    ({**SLURM, "RANK": "0", "WORLD_SIZE": "2"}, "but Slurm started rank 5 of 7"),
])  # fmt: skip
def test_variables_that_are_missing_or_contradict_each_other(variables, said):
    with pytest.raises(OptionError, match=said):
        launched_by(variables)


def test_what_is_not_said_of_the_machine_follows_from_its_name():
    machines = ["a", "b", "b", "a", "b"]
    found = [Launched(r, 5, -1, 0, "torchrun").among(machines) for r in range(5)]
    assert [(p.local_rank, p.local_size) for p in found] == [(0, 2), (0, 3), (1, 3), (1, 2), (2, 3)]
    assert Launched(2, 5, 0, 0, "torchrun").among(machines).local_rank == 0  # as was said
    assert Launched(2, 5, 0, 1, "torchrun").among(machines) == Launched(2, 5, 0, 1, "torchrun")


def test_what_joins_the_processes():
    assert launched_by(MPICH).by_mpi
    assert launched_by(OPEN_MPI).by_mpi
    assert not launched_by(TORCHRUN).by_mpi
    assert not launched_by(SLURM).by_mpi


def test_values_that_make_no_sense():
    with pytest.raises(OptionError, match="RANK='x': wanted an integer"):
        launched_by({**TORCHRUN, "RANK": "x"})
    with pytest.raises(OptionError, match="RANK=9 and WORLD_SIZE=8"):
        launched_by({**TORCHRUN, "RANK": "9"})
