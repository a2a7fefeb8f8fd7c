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


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        (TORCHRUN, Launched(5, 8, 1, 4, "torchrun")),
        (OPEN_MPI, Launched(2, 4, 0, 2, "Open MPI")),
        (MPICH, Launched(1, 2, 1, 2, "MPICH")),
        (SLURM, Launched(5, 7, 1, 3, "Slurm")),
        ({**SLURM, "SLURM_NODEID": "2"}, Launched(5, 7, 1, 1, "Slurm")),
        ({"PMIX_RANK": "3"}, Launched(3, 0, 0, 1, "PMIx")),
        ({"SYMDNN_RANK": "0", "SYMDNN_SIZE": "2"}, Launched(0, 2, 0, 2, "symdnn launch")),
        # The inner launcher counts.
        ({**SLURM, **TORCHRUN}, Launched(5, 8, 1, 4, "torchrun")),
        ({**SLURM, **MPICH}, Launched(1, 2, 1, 2, "MPICH")),
        # A batch script has a task's variables and is no step; a rank alone is no launcher's.
        ({k: v for k, v in SLURM.items() if k != "SLURM_STEP_ID"}, None),
        ({"RANK": "3"}, None),
        ({}, None),
    ],
)
def test_place(variables, place):
    assert launched_by(variables) == place


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
