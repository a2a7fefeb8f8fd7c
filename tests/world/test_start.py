"""Joining the processes, by what the launcher and the installation have."""

import os
import subprocess
import sys

import pytest

from symdnn.errors import DistributedError, OptionError
from symdnn.world import process
from symdnn.world.launcher import Launched

MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2"}
ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture
def without_mpi(monkeypatch):
    """MPI's launcher started the process, and mpi4py is missing."""

    def missing(place):
        raise DistributedError("several processes on CPUs need mpi4py")

    monkeypatch.setattr(process, "_joined_by_mpi", missing)
    monkeypatch.setattr(process, "_joined_by_address", lambda place, env: (place, "the store"))
    monkeypatch.setattr(process, "_end_all_on_errors", lambda place: None)
    monkeypatch.setattr(process, "_current", process.World())


def test_without_mpi_ranks_meet_at_the_address(without_mpi):
    world = process.start(environment={**MPICH, **ADDRESS})
    assert (world.place, world.store) == (Launched(1, 2, -1, 0, "MPICH"), "the store")
    assert world.engine == "none"
    assert "need mpi4py" in world.no_mpi


def test_without_mpi_and_an_address_there_is_no_way(without_mpi):
    with pytest.raises(DistributedError, match="need mpi4py"):
        process.start(environment=MPICH)


@pytest.mark.parametrize("port", ["x", "0", "70000"])
def test_ports_that_are_none(port):
    place = Launched(0, 2, 0, 2, "torchrun")
    with pytest.raises(OptionError, match=f"MASTER_PORT='?{port}"):
        process._joined_by_address(place, {**ADDRESS, "MASTER_PORT": port})


def test_ranks_that_a_script_has_numbered_are_counted_by_machine(free_port):
    code = (
        "from symdnn.world import process; p = process.start().place; "
        "print(p.rank, p.local_rank, p.local_size)"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "SLURM", "LOCAL"))}
    env |= {**ADDRESS, "MASTER_PORT": str(free_port), "WORLD_SIZE": "3"}
    command = [sys.executable, "-c", code]
    started = [
        subprocess.Popen(command, env={**env, "RANK": str(r)}, stdout=subprocess.PIPE, text=True)
        for r in range(3)
    ]
    assert [p.communicate(timeout=60)[0] for p in started] == ["0 0 3\n", "1 1 3\n", "2 2 3\n"]


@pytest.fixture
def free_port():
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
