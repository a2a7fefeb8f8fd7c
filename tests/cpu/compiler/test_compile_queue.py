"""Modules that another process compiles meanwhile."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time

import pytest

from symdnn.cpu.compiler import compile_queue, jit
from symdnn.errors import KernelCompileError
from tests.cpu.all_proven import AllProven

pytestmark = pytest.mark.skipif(bool(jit.problem()), reason="no LLVM")


@pytest.fixture
def queue(monkeypatch):
    """A queue of its own, for which there are two processors."""
    monkeypatch.setattr(compile_queue, "_may_use_second_processor", lambda: True)
    made = compile_queue.Queue()
    monkeypatch.setattr(jit, "_queue", made)
    yield made
    worker = made._worker
    made.close()
    if worker is not None:
        worker.join(30)
        assert not worker.is_alive()


def text_of(number: int) -> str:
    """A module that is not compiled yet: it stores this number."""
    name = f"unlike any other {os.getpid()} {number} {threading.get_ident()}"
    return f"; {name}\ndefine void @f(ptr %w) {{\n store i64 {number}, ptr %w\n ret void\n}}\n"


def begun(number: int) -> jit.Code:
    return jit.compile_generated(text_of, (number,), "f", ctypes.c_void_p)


def stored(code: jit.Code) -> int:
    word = ctypes.c_int64(0)
    code(ctypes.byref(word))
    return word.value


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch, nothing_compiled):
    monkeypatch.setattr(jit, "_proven", AllProven)


def test_the_other_process_compiles_what_waits(queue):
    codes = [begun(n) for n in range(4)]
    jobs = [c._job for c in codes]
    for job in jobs:
        job.wait()
    assert all(job.code for job in jobs)
    assert [stored(c) for c in codes] == [0, 1, 2, 3]


def test_this_process_does_what_is_not_begun(queue, monkeypatch):
    monkeypatch.setattr(queue, "wake", lambda: None)
    codes = [begun(n) for n in range(10, 13)]
    assert [stored(c) for c in codes] == [10, 11, 12]
    assert queue.take() is None


def test_while_it_waits_it_does_what_is_left(queue, monkeypatch):
    monkeypatch.setattr(queue, "wake", lambda: None)
    codes = [begun(n) for n in range(20, 23)]
    first = queue.next()  # as the other process does
    assert first is codes[0]._job
    later = threading.Timer(0.2, lambda: first.end(None))
    later.start()
    assert stored(codes[0]) == 20
    assert codes[1]._job.ended
    assert codes[2]._job.ended
    assert [stored(c) for c in codes[1:]] == [21, 22]


def test_a_process_that_is_killed_leaves_its_work_to_this_one(queue):
    codes = [begun(n) for n in range(30, 32)]
    for code in codes:
        code._job.wait()
    queue._worker._process.kill()
    more = [begun(n) for n in range(32, 35)]
    assert [stored(c) for c in (*codes, *more)] == [30, 31, 32, 33, 34]


def test_ctrl_c_of_a_terminal_does_not_end_the_process(queue):
    codes = [begun(n) for n in range(80, 82)]
    for code in codes:
        code._job.wait()
    process = queue._worker._process
    os.kill(process.pid, signal.SIGINT)
    more = [begun(n) for n in range(82, 84)]
    for code in more:
        code._job.wait()
    assert all(code._job.code for code in more)
    assert process.poll() is None


def test_work_for_another_kernel_that_ctrl_c_ends_is_done_later(queue, monkeypatch):
    monkeypatch.setattr(queue, "wake", lambda: None)
    codes = [begun(n) for n in range(90, 92)]
    first = queue.next()  # the other process has begun it: this one does the rest

    def interrupted(text):
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(jit, "_compile", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stored(codes[0])
    assert codes[1]._job.ended  # no wait is endless
    first.end(None)
    assert [stored(c) for c in codes] == [90, 91]


def ended_well(child: int, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def test_a_child_that_ends_leaves_the_process_and_its_locks_alone(queue):
    """As a child does that was forked while other threads used both."""
    for code in [begun(n) for n in range(100, 102)]:
        code._job.wait()
    worker = queue._worker
    taken, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with queue._changed:
            taken.set()
            leave.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    child = os.fork()
    if child == 0:
        worker._stop_at_exit()  # of atexit
        os._exit(0)
    leave.set()
    holder.join()
    assert ended_well(child)
    assert worker._process.poll() is None


def test_a_process_that_cannot_be_started_is_not_missed(queue, monkeypatch):
    monkeypatch.setattr(compile_queue.sys, "executable", "/nowhere/python")
    codes = [begun(n) for n in range(40, 43)]
    assert [stored(c) for c in codes] == [40, 41, 42]


@pytest.mark.parametrize(("executable", "frozen"), [("/opt/app/blender", False), ("", False),
                                                    ("/usr/bin/python3", True)])  # fmt: skip
def test_a_program_that_is_no_python_is_not_started_again(queue, monkeypatch, executable, frozen):
    monkeypatch.setattr(compile_queue.sys, "executable", executable)
    monkeypatch.setattr(compile_queue.sys, "frozen", frozen, raising=False)
    assert compile_queue._start_process() is None
    codes = [begun(n) for n in range(70, 73)]
    assert [stored(c) for c in codes] == [70, 71, 72]


def bad_text(number: int, more: str = "") -> str:
    return f"; {number}\nthis is no module\n"


def test_what_llvm_refuses_is_an_error_where_it_is_needed(queue):
    good = [begun(n) for n in range(50, 52)]
    bad = jit.compile_generated(bad_text, (os.getpid(),), "f", ctypes.c_void_p)
    with pytest.raises(KernelCompileError, match="LLVM refused a kernel"):
        stored(bad)
    assert [stored(c) for c in good] == [50, 51]


def test_what_llvm_refuses_is_an_error_each_time(queue, monkeypatch):
    """With no other process to compile it, and though none waits for it any more."""
    monkeypatch.setattr(compile_queue, "_may_use_second_processor", lambda: False)
    bad = jit.compile_generated(bad_text, (os.getpid(), "again"), "f", ctypes.c_void_p)
    for _ in range(3):
        with pytest.raises(KernelCompileError, match="LLVM refused a kernel"):
            stored(bad)


def test_results_are_kept(queue, tmp_path):
    codes = [begun(n) for n in range(60, 63)]
    assert [stored(c) for c in codes] == [60, 61, 62]
    assert len(list(tmp_path.rglob("*.o"))) == 3
    jit._functions.clear()
    again = [begun(n) for n in range(60, 63)]
    assert [c._job for c in again] == [None] * 3
    assert [stored(c) for c in again] == [60, 61, 62]
