"""Ranks that are killed in the middle of epochs: launchers start all again, and the training ends
with the bits of one without a fault.

torchrun's agent and Slurm's requeue are played here, by their variables; where there is a torchrun,
it runs the same.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from symdnn.world import pmi
from tests.distributed import harness
from tests.environment import environment, python_path
from tests.processes import ended

PROGRAM = harness.ROOT / "tests" / "distributed" / "restarted.py"
FLAGS = "device=cpu,distributed.timeout=30,deterministic=more"
#: In the first run rank 1 is killed, in the second one rank 0, both in the middle of an epoch.
FAULTS = ("1:8", "0:9")
COUNT = 2
_TO_END_S = 10


def launched(folder, *faults):
    """What ``symdnn launch`` says of the training."""
    pytest.importorskip("mpi4py")
    launch = ["launch", "-n", COUNT, "--engine", "mpi", "--restarts", len(faults), PROGRAM]
    command = [sys.executable, "-m", "symdnn", *launch, folder / "run.safetensors", *faults]
    status, said = ended(command, 100, env=environment(SYMDNN_FLAGS=FLAGS))
    assert status == 0, said
    return said


@pytest.fixture(scope="module")
def without_fault(tmp_path_factory):
    """The digest of the training that nothing interrupts."""
    said = launched(tmp_path_factory.mktemp("whole"))
    (digest,) = re.findall(r"RESTARTS 0 EPOCHS 4 (\w+)", said)
    return digest


def ends_alike(said, digest):
    """The training was interrupted twice, and has the bits of the other one."""
    assert re.findall(r"KILLED (\d) in epoch (\d)", said) == [("1", "1"), ("0", "2")], said
    assert f"RESTARTS 2 EPOCHS 4 {digest}" in said


@pytest.mark.slow
def test_by_symdnn_launch(tmp_path, without_fault):
    said = launched(tmp_path, *FAULTS)
    assert "restart 2 of 2" in said
    ends_alike(said, without_fault)


class Job:
    """Processes of one run of a job, which end together when one fails."""

    def __init__(self, folder, variables):
        command = [sys.executable, "-W", "error", PROGRAM, folder / "run.safetensors", *FAULTS]
        self.running = [
            subprocess.Popen(
                list(map(str, command)), text=True, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, env=environment(SYMDNN_FLAGS=FLAGS, **variables(rank)),
            )
            for rank in range(COUNT)
        ]  # fmt: skip

    def wait(self):
        """(whether all ended well, what they said)."""
        end = time.monotonic() + 100
        while all(p.poll() is None for p in self.running) and time.monotonic() < end:
            time.sleep(0.05)
        while any(p.poll() is None for p in self.running) and not any(
            p.poll() for p in self.running
        ):
            time.sleep(0.05)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for p in self.running:
                with contextlib.suppress(ProcessLookupError):
                    if p.poll() is None:
                        p.send_signal(number)
            end = time.monotonic() + _TO_END_S
            while any(p.poll() is None for p in self.running) and time.monotonic() < end:
                time.sleep(0.05)
        said = ""
        for p in self.running:
            with p.stdout:
                said += p.stdout.read()
        return all(p.returncode == 0 for p in self.running), said


def free_ports():
    """A port that is free, and so is the next one."""
    while True:
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            two.bind(("127.0.0.1", port + 1))
            return port


def of_torchrun(port, run):
    def variables(rank):
        return {
            "RANK": str(rank), "WORLD_SIZE": str(COUNT), "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(COUNT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": str(run),
            "TORCHELASTIC_MAX_RESTARTS": "2",
        }  # fmt: skip

    return variables


def of_slurm(port, run):
    """A requeued job keeps its number; the count of restarts is missing in the first run."""

    def variables(rank):
        again = {"SLURM_RESTART_COUNT": str(run)} if run else {}
        return {
            "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank),
            "SLURM_NTASKS": str(COUNT), "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0",
            "SLURM_STEP_TASKS_PER_NODE": str(COUNT), "MASTER_ADDR": socket.gethostname(),
            "MASTER_PORT": str(port), **again,
        }  # fmt: skip

    return variables


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [of_torchrun, of_slurm])
def test_by_a_launcher_that_starts_no_mpi(launcher, tmp_path, without_fault):
    """The port is the same in all runs; MPI is started by symdnn."""
    port, said = free_ports(), ""
    for run in range(3):
        well, found = Job(tmp_path, launcher(port, run)).wait()
        said += found
        assert well == (run == 2), said
    ends_alike(said, without_fault)


@pytest.mark.slow
def test_by_torchrun_itself(tmp_path, without_fault):
    """``SYMDNN_TORCHRUN`` may name one of another environment."""
    beside = Path(sys.executable).parent / "torchrun"
    found = os.environ.get("SYMDNN_TORCHRUN") or shutil.which(beside) or shutil.which("torchrun")
    if not found:
        pytest.skip("there is no torchrun")
    command = [
        found, "--nnodes", 1, "--nproc-per-node", COUNT, "--max-restarts", 2, "--no-python",
        sys.executable, PROGRAM, tmp_path / "run.safetensors", *FAULTS,
    ]  # fmt: skip
    status, said = ended(command, 150, env=environment(SYMDNN_FLAGS=FLAGS))
    assert status == 0, said
    ends_alike(said, without_fault)


# -- the process manager --------------------------------------------------------------------------


#: Python ends, and then the process waits, as MPI's end does for other ranks.
ENDS_LATE = """
import ctypes
from symdnn.world import pmi
made = pmi.Manager(1, "127.0.0.1", pmi.mapping(["a"]), "secret")
ctypes.pythonapi.Py_AtExit(ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p))
print(made.port, flush=True)
"""


def test_the_manager_is_there_at_the_end_of_mpi_which_comes_after_pythons():
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", ENDS_LATE], stdout=pipe, text=True) as one:
        port = int(one.stdout.readline())
        time.sleep(1)
        try:
            assert one.poll() is None
            with socket.create_connection(("127.0.0.1", port)) as line:
                line.sendall(b"secret\ncmd=finalize\n")
                assert line.recv(100) == b"cmd=finalize_ack rc=0\n"
        finally:
            one.kill()


@pytest.fixture
def manager():
    made = pmi.Manager(2, "127.0.0.1", pmi.mapping(["a", "a"]), "secret")
    yield made
    os.close(made.writes)
    assert made._process.wait(10) == 0  # as at the end of rank 0's process
    made._process.stdout.close()


def asked(manager, key, *lines):
    """The answers to some lines."""
    with socket.create_connection(("127.0.0.1", manager.port)) as line:
        line.settimeout(10)
        line.sendall(f"{key}\n".encode() + "".join(f"{w}\n" for w in lines).encode())
        line.shutdown(socket.SHUT_WR)
        return line.makefile("r").read().splitlines()


def test_values_of_one_rank_are_found_by_the_other(manager):
    found = asked(
        manager, "secret", "cmd=init pmi_version=1 pmi_subversion=1", "cmd=get_my_kvsname"
    )
    assert found[0] == "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
    name = found[1].split("kvsname=")[1].split()[0]
    put = asked(manager, "secret", f"cmd=put kvsname={name} key=card0 value=a=b c")
    assert put == ["cmd=put_result rc=0 msg=success"]
    lines = [f"cmd=get kvsname={name} key={k}" for k in ("card0", "none", "PMI_process_mapping")]
    values = [line.split("value=", 1)[1] for line in asked(manager, "secret", *lines)]
    assert values == ["a=b c", "unknown", "(vector,(0,1,2))"]


def test_the_manager_stays_until_the_last_rank_has_taken_its_leave():
    """MPICH does so as a process ends, and reads through a bad pointer if nobody answers."""
    made = pmi.Manager(2, "127.0.0.1", pmi.mapping(["a", "a"]), "secret")
    with socket.create_connection(("127.0.0.1", made.port)) as line, line.makefile("r") as lines:
        line.settimeout(10)
        line.sendall(b"secret\ncmd=get_appnum\n")
        assert lines.readline() == "cmd=appnum appnum=0 rc=0\n"
        os.close(made.writes)  # as at the end of rank 0's process
        with pytest.raises(subprocess.TimeoutExpired):
            made._process.wait(0.5)
        line.sendall(b"cmd=finalize\n")
        assert lines.readline() == "cmd=finalize_ack rc=0\n"
    assert made._process.wait(10) == 0
    made._process.stdout.close()


def test_a_stranger_gets_no_answer(manager):
    assert asked(manager, "guess", "cmd=get_my_kvsname") == []


def test_each_run_has_a_name_of_its_own():
    """MPICH names shared memory by it: two runs with one name would write into each other's."""
    names = {pmi._Answers(2, "").to("cmd=get_my_kvsname") for _ in range(2)}
    assert len(names) == 2


@pytest.mark.parametrize("count", [3, 4])
def test_more_ranks_exchange_arrays(count, tmp_path):
    """By the variables of torchrun: MPI's collectives of all ranks, and of groups."""
    pytest.importorskip("mpi4py")
    port = free_ports()
    checks = "check_large_values_in_all_calls_of_a_step"
    command = [sys.executable, "-m", "tests.distributed.run_checks", tmp_path / "f", checks]
    running = []
    for rank in range(count):
        sizes = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        own = {**of_torchrun(port, 0)(rank), **sizes}
        env = environment(SYMDNN_FLAGS=FLAGS, OMP_NUM_THREADS="1", **own)
        running.append(
            subprocess.Popen(list(map(str, [*command, "ops_checks"])), env=env, cwd=harness.ROOT)
        )
    assert [p.wait(100) for p in running] == [0] * count
    assert np.all([(tmp_path / f"f.{r}").exists() for r in range(count)])


# -- mpi4py without an MPI ------------------------------------------------------------------------


ASKS = """
import numpy as np, symdnn, symdnn.distributed as dist, symdnn.tensor as T
dist.init()
dist.barrier()
print("rank", dist.rank(), "of", dist.size())
x = T.fvector("x")
print(symdnn.function([x], dist.all_reduce(x, "sum"))(np.ones(2, "float32")))
"""


@pytest.fixture
def without_mpi(tmp_path):
    """An environment whose mpi4py is there, and finds no library."""
    package = tmp_path / "packages" / "mpi4py"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("class rc: pass\n")
    words = "cannot load MPI library\\nlibmpi.so: no such file"
    (package / "MPI.py").write_text(f'raise RuntimeError("{words}")\n')
    return {"PYTHONPATH": python_path(package.parent), "SYMDNN_FLAGS": FLAGS}


def test_ranks_without_an_mpi_go_on_and_say_what_to_install(without_mpi):
    """Values of the host alone need MPI: those of GPUs are moved by NCCL."""
    port = free_ports()
    running = [
        subprocess.Popen(
            [sys.executable, "-c", ASKS], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env={**os.environ, **of_torchrun(port, 0)(rank), **without_mpi},
        ) for rank in range(COUNT)
    ]  # fmt: skip
    said = [p.communicate(timeout=60)[0] for p in running]
    for rank, text in enumerate(said):
        assert f"rank {rank} of {COUNT}" in text, text
    words = "on rank 0: mpi4py found no MPI: cannot load MPI library. pip install mpich"
    assert any(words in text for text in said), said


@pytest.mark.parametrize("by", [
    {}, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
    {"PMI_RANK": "0", "PMI_SIZE": "1"},
])  # fmt: skip
def test_one_process_needs_no_mpi(by, without_mpi):
    status, said = ended([sys.executable, "-c", ASKS], 60, env={**os.environ, **without_mpi, **by})
    assert status == 0, said
    assert "rank 0 of 1" in said
    assert "[1. 1.]" in said
