"""A rank that fails ends all, in time, with its number and error; and no variable has changed."""

import argparse
import itertools
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from safetensors import safe_open

from symdnn.commands import launch
from symdnn.world import launcher
from tests.distributed import harness
from tests.distributed.harness import run
from tests.environment import environment
from tests.processes import ended

PROGRAM = harness.ROOT / "tests" / "distributed" / "faulty_program.py"
FIT = PROGRAM.with_name("faulty_fit.py")


def faulty(fault, count=2, limit=3, program=PROGRAM):
    done = harness.run(count, program, fault, limit=limit, timeout=60)
    assert done.returncode != 0, done.stdout
    assert "DONE" not in done.stdout
    assert "UNCHANGED=False" not in done.stdout
    return done.stdout, done.stderr


@pytest.mark.slow
def test_no_fault():
    done = harness.run(2, PROGRAM, "none")
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"RANK \d DONE", done.stdout)) == ["RANK 0 DONE", "RANK 1 DONE"]


def test_a_rank_that_raises_is_named_with_its_error():
    out, err = faulty("raises")
    assert "RANK 0 PeerFailed: rank 1 failed: RuntimeError: the disk is full" in out
    assert "symdnn: rank 1 of 2 failed" in err


@pytest.mark.parametrize("place", ["data", *(
    pytest.param(p, marks=pytest.mark.slow)
    for p in ("optimiser", "criterion", "on_step", "callback", "validation", "afterwards")
)])  # fmt: skip
def test_a_rank_that_raises_anywhere_in_a_training_ends_all(place):
    """While the others are in a step, an epoch's end, an evaluation, or read sharded values."""
    out, err = faulty(place, limit=20, program=FIT)
    assert f"RANK 1 RuntimeError: nothing goes in {place}" in out
    assert "symdnn: rank 1 of 2 failed" in err


@pytest.mark.parametrize("fault", ["raise ValueError('no such file')", "time.sleep(1000)"])
def test_a_rank_that_does_not_come_to_init_ends_all(fault, tmp_path):
    """The others wait inside of MPI's start, where no thread of Python runs."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, time\n"
        "import symdnn.distributed as dist\n"
        f"if os.environ['PMI_RANK'] == '1': {fault}\n"
        "dist.init()\n"
    )
    if "sleep" in fault:  # MPICH's launcher waits for it
        program.write_text(program.read_text().replace("1000", "8"))
    done = run(2, program, limit=3)
    assert done.returncode != 0
    assert "in start_once_all_ranks_have_come_to_init" in done.stderr


def test_the_launcher_is_the_one_that_counts(monkeypatch):
    """Whatever the variables around it say; and MPI's starts all on this machine."""
    found = {}
    monkeypatch.setattr(launch, "_by_mpi", lambda command, e: found.update(e) or 0)
    monkeypatch.setattr(launch, "_mpiexec", lambda: "mpiexec")
    around = {
        "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "1", "PMIX_RANK": "3", "SYMDNN_RANK": "2", "SYMDNN_SIZE": "3",
        "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0", "MY_OWN": "kept",
    }  # fmt: skip
    for name, value in around.items():
        monkeypatch.setenv(name, value)
    args = argparse.Namespace(n=2, engine="mpi", restarts=0, script=__file__, arguments=[])
    assert launch.run(args) == 0
    assert launcher.launched_by(found) is None  # until MPI's launcher has set its own
    assert found["MY_OWN"] == "kept"
    assert (found["HYDRA_LAUNCHER"], found["HYDRA_RMK"]) == ("fork", "user")


def test_the_launcher_says_that_processes_of_mpi_failed(monkeypatch, capfd):
    monkeypatch.setattr(launch, "_mpiexec", lambda: "/bin/false")
    args = argparse.Namespace(n=2, engine="mpi", restarts=0, script=__file__, arguments=[])
    assert launch.run(args) == 1
    assert "symdnn launch: mpiexec exited with 1" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["label", "late"])
def test_a_data_error_on_one_rank_stops_all_before_variables_change(fault):
    out, _ = faulty(fault)
    error = {"label": "IndexOutOfRange", "late": "AssertionFailed"}[fault]
    assert re.search(rf"RANK 1 {error}.*UNCHANGED=True", out, re.DOTALL)
    assert f"RANK 0 PeerFailed: rank 1 failed: {error}" in out


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_after_the_time_limit():
    out, _ = faulty("hangs")
    assert "RANK 0 CollectiveTimeout: rank 0 waited 3 s" in out
    assert "rank 1 did not come" in out


@pytest.mark.slow
def test_ranks_that_die_or_leave_end_all():
    for fault in ("dies", "killed", "exits"):
        faulty(fault)


@pytest.mark.slow
def test_different_collectives_are_an_error_before_the_first_launch():
    out, _ = faulty("mismatch")
    assert "CollectiveMismatch" in out
    assert "different collectives of world(2)" in out


@pytest.mark.parametrize("fault", ["sizes", pytest.param("functions", marks=pytest.mark.slow)])
def test_calls_that_differ_though_both_were_made_before_are_shown(fault):
    """Of a function with other sizes at once, of another one before a variable changes."""
    out, err = faulty(fault, limit=12)
    sizes = r"rank 0: all_gather.*\(4, 3\).*; rank 1: all_gather.*\(2, 3\)"
    said = sizes if fault == "sizes" else "rank 0: all_reduce.*; rank 1: all_to_all"
    assert re.search(f"CollectiveMismatch: the ranks of .* run different.*{said}", out + err)


@pytest.mark.slow
def test_a_new_list_of_collectives_where_others_have_an_old_one_is_shown():
    """Before the time limit: no rank can go on."""
    _, err = faulty("new", limit=12)
    assert "CollectiveMismatch: rank 1 has a new list of collectives" in err
    assert re.search(r"but rank 0 waits in all_gather number \d+ of world\(2\)", err)
    assert "The new list is AllGather(float32 [9, 3])" in err


@pytest.mark.slow
@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_to_the_launcher_alone_ends_processes_of_mpi(signal_):
    """Nothing starts again then, and no rank is left behind."""
    pytest.importorskip("mpi4py")
    file = harness.ROOT / "tests" / "distributed" / "sleeper.py"
    launch = ["launch", "-n", "2", "--engine", "mpi", "--restarts", "1", str(file)]
    command = [sys.executable, "-m", "symdnn", *launch]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=harness.ROOT, start_new_session=True, **pipes) as found:
        assert [found.stdout.readline(), found.stdout.readline()] == ["UP\n", "UP\n"]
        os.kill(found.pid, signal_)
        assert found.wait(20) == 128 + signal_
        found.stdout.read()  # ends with the last rank, which has the pipe, too


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["mpi", "nccl"])
def test_ctrl_c_ends_all(engine):
    """``symdnn launch`` with both ways to start processes; only host values, so no engine runs."""
    file = harness.ROOT / "tests" / "distributed" / "sleeper.py"
    command = [sys.executable, "-m", "symdnn", "launch", "-n", "2", "--engine", engine, str(file)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=harness.ROOT, start_new_session=True, **pipes) as found:
        assert [found.stdout.readline(), found.stdout.readline()] == ["UP\n", "UP\n"]
        os.killpg(found.pid, signal.SIGINT)
        assert found.wait(20) != 0


INTERRUPTED = harness.ROOT / "tests" / "distributed" / "interrupted.py"


def stopped_after(path):
    """(epochs, steps) of a checkpoint."""
    with safe_open(path, "numpy") as file:
        found = json.loads(file.metadata()["symdnn"])["metadata"]
    progress = found["training"]["progress"]
    return progress["epoch"], progress["step"]


def test_ctrl_c_of_one_rank_stops_all_after_the_same_step(tmp_path):
    done = harness.run(2, INTERRUPTED, tmp_path / "run.safetensors", 1)
    said = re.findall(r"RANK \d INTERRUPTED", done.stdout)
    assert sorted(said) == ["RANK 0 INTERRUPTED", "RANK 1 INTERRUPTED"], done.stderr
    assert done.returncode != 0
    assert stopped_after(tmp_path / "run.safetensors") == (1, 7)  # 4 steps an epoch


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["mpi", "nccl"])
def test_ctrl_c_in_a_terminal_leaves_a_checkpoint(engine, tmp_path):
    """All processes of the terminal get it, the launcher too, which passes it on once."""
    pytest.importorskip("mpi4py")
    path = tmp_path / "run.safetensors"
    launch = ["launch", "-n", "2", "--engine", engine, str(INTERRUPTED), str(path), "outside"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    env = environment(SYMDNN_FLAGS="device=cpu,distributed.timeout=20", OMP_NUM_THREADS="1")
    command = [sys.executable, "-m", "symdnn", *launch]
    with subprocess.Popen(command, env=env, start_new_session=True, **pipes) as found:
        before = "".join(itertools.takewhile(lambda line: line != "GO\n", found.stdout))
        os.killpg(found.pid, signal.SIGINT)
        said, _ = found.communicate(timeout=60)
    assert found.returncode == 130, before + said
    assert said.count("INTERRUPTED") == 2, before + said
    assert stopped_after(path) in ((1, 6), (1, 7))


#: Rank 1 is killed when MPI runs on both.
KILLED = """
import os, sys, time
import symdnn.distributed as dist
dist.init()
names = {line.split()[-1] for line in open("/proc/self/maps") if "/dev/shm/mpich" in line}
print("MAPPED", *names, flush=True)
dist.barrier()
time.sleep(1)
if dist.rank() == 1 and "killed" in sys.argv:
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("engine", ["mpi", "nccl"])
def test_killed_ranks_leave_no_shared_memory(engine, tmp_path):
    """MPICH's files in ``/dev/shm``; the other engine starts MPI by symdnn's own manager."""
    pytest.importorskip("mpi4py")
    if harness.launcher() is None:
        pytest.skip("there is no mpiexec")
    file = tmp_path / "killed.py"
    file.write_text(KILLED)
    command = [sys.executable, "-m", "symdnn", "launch", "-n", "2", "--engine", engine, file]
    env = environment(SYMDNN_FLAGS="device=cpu,distributed.timeout=10", OMP_NUM_THREADS="1")
    status, said = ended([*map(str, command), "killed"], 60, env=env)
    assert status != 0, said
    names = set(re.findall(r"/dev/shm/mpich\w+", said))
    if not names:
        pytest.skip("this MPI has no such files")
    assert not [name for name in names if os.path.exists(name)], said


@pytest.mark.parametrize(
    "move",
    ["all_to_all", *(pytest.param(m, marks=pytest.mark.slow) for m in (
        "reduce", "reduce_scatter", "all_gather", "broadcast", "permute"))],
)  # fmt: skip
@pytest.mark.parametrize("wide", [3, pytest.param(20_000, marks=pytest.mark.slow)])
def test_each_collective_notices_other_sizes(move, wide):
    """Small ones and large ones, at once: nothing else is reduced later."""
    program = harness.ROOT / "tests" / "distributed" / "differing_program.py"
    done = harness.run(2, program, move, wide, limit=12, timeout=60)
    assert done.returncode != 0
    wanted = rf"rank 0: {move}.*\(4, {wide}\).*; rank 1: {move}.*\(8, {wide}\)"
    assert re.search(f"the ranks of .* run different collectives, {wanted}", done.stdout)
