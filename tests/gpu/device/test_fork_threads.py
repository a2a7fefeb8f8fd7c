"""Processes and threads: a fork after CUDA was used is refused clearly, spawned workers work."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from symdnn.gpu.device import context

SETUP = """
import os, sys
import numpy as np
import symdnn, symdnn.tensor as T
from symdnn.gpu.device.context import CudaUnavailable

def build():
    x = T.vector("x")
    with symdnn.config.change_flags(device="cuda"):
        return symdnn.function([x], (x * 2).sum())

VALUE = np.arange(4, dtype="float32")

def in_child(work):
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            text = work()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    os.wait()
    return os.read(read, 10000).decode()
"""


def run(tmp_path, text):
    """The output of a program, which must succeed."""
    program = tmp_path / "program.py"
    program.write_text(SETUP + text)
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "PyCUDA ERROR" not in done.stderr
    return done.stdout


@pytest.mark.gpu
@pytest.mark.usefixtures("card")
def test_a_fork_after_cuda_was_used_is_refused(tmp_path):
    out = run(
        tmp_path,
        """
f, w = build(), symdnn.shared(VALUE)
with symdnn.config.change_flags(device="cuda"):
    step = symdnn.function([], updates=[(w, w + 1)])
assert f(VALUE) == 12
step()
print(in_child(lambda: str(f(VALUE))))
print(in_child(lambda: str(w.get_value())))
print(in_child(lambda: str(build()(VALUE))))
assert f(VALUE) == 12 and w.get_value()[0] == 1
print("the parent goes on")
""",
    )
    *refused, last = out.splitlines()
    assert len(refused) == 3
    assert all(line.startswith("CudaUnavailable: CUDA was used before") for line in refused)
    assert all("spawn" in line for line in refused)
    assert last == "the parent goes on"


@pytest.mark.gpu
@pytest.mark.usefixtures("card")
def test_a_value_that_is_on_the_host_is_read_after_a_fork(tmp_path):
    out = run(
        tmp_path,
        """
w = symdnn.shared(VALUE)
with symdnn.config.change_flags(device="cuda"):
    step = symdnn.function([], updates=[(w, w + 1)])
step()
w.get_value()
print(in_child(lambda: str(w.get_value().sum())))
""",
    )
    assert out.strip() == "10.0"


@pytest.mark.gpu
@pytest.mark.usefixtures("card")
def test_a_fork_before_cuda_was_used_works(tmp_path):
    assert run(tmp_path, "print(in_child(lambda: str(build()(VALUE))))").strip() == "12.0"


@pytest.mark.gpu
@pytest.mark.usefixtures("card")
def test_spawned_workers_work(tmp_path):
    out = run(
        tmp_path,
        """
def work(n):
    return float(build()(VALUE + n))

if __name__ == "__main__":
    import multiprocessing
    assert work(0) == 12
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(work, [0, 1, 2]))
""",
    )
    assert out.strip() == "[12.0, 20.0, 28.0]"


@pytest.mark.gpu
@pytest.mark.usefixtures("card")
def test_threads_that_end_leave_no_context(tmp_path):
    """PyCUDA aborts the process when a thread leaves something on its stack of contexts."""
    out = run(
        tmp_path,
        """
import threading
f = build()
def work():
    assert f(VALUE) == 12
for _ in range(3):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as pool:
    print([float(r) for r in pool.map(f, [VALUE + n for n in range(6)])])
print(float(f(VALUE)))
""",
    )
    assert out.splitlines() == ["[12.0, 20.0, 28.0, 36.0, 44.0, 52.0]", "12.0"]


def test_a_context_is_detached_by_the_thread_that_ends():
    class Primary:
        def __init__(self):
            self.popped_by = None

        def pop(self):
            self.popped_by = threading.get_ident()

    ended, primary = [], Primary()

    def work():
        context._thread.kept[0] = context._Attachment(primary)
        ended.append(threading.get_ident())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [primary.popped_by] == ended
