"""What is broken or missing on a machine: a program still computes, and one line says what is."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from symdnn.cpu.compiler import jit
from symdnn.cpu.compiler.elf_check import truncation
from symdnn.cpu.onednn import library
from symdnn.cpu.threads import threads as omp
from tests.cpu.harness import needs_compiler
from tests.forked import forked

needs_onednn = pytest.mark.skipif(bool(library.problem()), reason="oneDNN is not installed")

PROGRAM = """
import sys, warnings
import numpy as np, symdnn, symdnn.tensor as T
from symdnn.config import config

def right():
    rng = np.random.default_rng(7)
    im, k = T.ftensor5(), T.ftensor5()
    y = T.tanh(T.nnet.conv3d(im, k)) * 2  # of three dimensions, since oneDNN has these alone
    y = y + T.exp(-y * y).mean(axis=(0, 2, 3, 4), keepdims=True)
    f = symdnn.function([im, k], [y, y.sum(axis=1)], mode=symdnn.Mode(target="cpu"))
    a, w = (rng.normal(size=(4, 4, *s)).astype("f") for s in ((9, 12, 12), (3, 3, 3)))
    windows = np.lib.stride_tricks.sliding_window_view(a, (3, 3, 3), axis=(2, 3, 4))
    z = 2 * np.tanh(np.einsum("ncdhwijk,ocijk->nodhw", windows, w[:, :, ::-1, ::-1, ::-1]))
    z = z + np.exp(-z * z).mean(axis=(0, 2, 3, 4), keepdims=True)
    for _ in range(3):
        found, total = f(a, w)
        np.testing.assert_allclose(found, z, atol=1e-4)
        np.testing.assert_allclose(total, z.sum(axis=1), atol=1e-3)
    return f.lowering_report().kernels()
"""


def ran(text, folder, flags="", timeout=300, **environment):
    """A program of its own with its cache in ``folder``; (kernels and other words, lines)."""
    flags = ",".join(filter(None, [f"base_compiledir={folder}", flags]))
    code = PROGRAM + textwrap.dedent(text or "print(sorted(right()))")
    env = {**os.environ, "SYMDNN_FLAGS": flags, **environment}
    done = forked(code, env=env, seconds=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.splitlines()


# -- oneDNN ---------------------------------------------------------------------------------------


@needs_onednn
@pytest.mark.parametrize("kind", ["text", "cut", "another"])
def test_a_library_that_is_no_onednn_is_passed_over(tmp_path, kind):
    path = tmp_path / "libdnnl.so.3"
    if kind == "text":
        path.write_text("no library")
    elif kind == "cut":
        path.write_bytes(Path(library.library().path).read_bytes()[: 1 << 20])
    else:
        path.write_bytes(Path(omp_library()).read_bytes())
    out, said = ran(
        """
        print(sorted(right()))
        from symdnn.cpu.onednn import library as libdnnl
        print(libdnnl.tried()[0].state)
        """,
        tmp_path / "cache", f"onednn.library_path={path}",
    )  # fmt: skip
    assert "onednn" in out.splitlines()[0]  # that of the wheel
    assert out.splitlines()[1] not in ("", "found")
    assert said == []


def omp_library():
    """The file of libgomp."""
    omp.openmp()
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in lines if "libgomp" in line)


@needs_onednn
def test_an_old_instruction_set_gives_the_right_results(tmp_path):
    out, said = ran(
        """
        print(sorted(right()))
        from symdnn.cpu.onednn import library as libdnnl
        print(libdnnl.library().isa)
        x, w = T.fmatrix(), T.fmatrix()
        im = T.ftensor4()
        a = np.random.default_rng(1).normal(size=(33, 47)).astype("f")
        c = np.random.default_rng(1).normal(size=(3, 5, 9, 11)).astype("f")
        outputs = [T.nnet.relu(T.dot(x, x.T) + 1), T.nnet.softmax(T.dot(x.T, x))]
        pool = T.signal.pool.pool_2d(im, (2, 2), ignore_border=True)
        outputs += [pool, T.grad((pool**2).sum(), im)]
        results = []
        for mode in (symdnn.Mode(target="cpu"), symdnn.Mode(target="cpu").excluding("onednn")):
            f = symdnn.function([x, im], outputs, mode=mode)
            results.append(f(a, c))
            print(any(k.startswith("onednn") for k in f.lowering_report().kernels()))
        for found, wanted in zip(*results):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        """,
        tmp_path, ONEDNN_MAX_CPU_ISA="AVX2",
    )  # fmt: skip
    kernels, isa, *used = out.splitlines()
    assert "onednn" in kernels
    assert (isa, used) == ("AVX2", ["True", "False"])
    assert said == []


# -- LLVM -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raises", "line"),
    [
        ("ModuleNotFoundError('No module named llvmlite')", "llvmlite is missing"),
        ("ImportError('half of it')", "llvmlite cannot be loaded (half of it)"),
        ("OSError('libLLVM.so: no such file')", "llvmlite cannot be loaded (libLLVM.so: no such"),
    ],
)
def test_programs_run_without_llvm_and_say_so_once(tmp_path, raises, line):
    broken = tmp_path / "llvmlite"
    broken.mkdir()
    (broken / "__init__.py").write_text("")
    (broken / "binding.py").write_text(f"raise {raises}\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    out, said = ran("", tmp_path / "cache", "cpu.compile=always", PYTHONPATH=path)
    assert "llvm" not in out
    (only,) = said
    assert only.startswith(f"symdnn: {line}")


# -- the folder of compiled code ------------------------------------------------------------------

KEY = "0" * 64


def whole(entry: Path) -> bool:
    return jit.OBJECTS.content(entry.stem, entry.read_bytes()) is not None


@needs_compiler
def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    out, said = ran("", blocked / "cache", "cpu.compile=always")
    assert "llvm" in out
    assert [line for line in said if "cannot be kept in" in line] == [said[0]]
    assert len(said) <= 2  # the second is the line of code that Python shows


@needs_compiler
def test_a_full_disk_is_one_warning(tmp_path):
    out, said = ran(
        """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))  # longer files cannot be written
        sys.stdout.write(str(sorted(right())))
        """,
        tmp_path, "cpu.compile=always",
    )  # fmt: skip
    assert "llvm" in out
    assert sum("cannot be kept in" in line for line in said) == 1
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


@needs_compiler
def test_damaged_entries_are_dropped_and_made_anew(tmp_path):
    """Cut off, emptied and changed in the middle."""
    ran("", tmp_path, "cpu.compile=always")
    entries = sorted(tmp_path.rglob("*.o"))[:3]
    for entry, damage in zip(entries, ("cut", "emptied", "changed"), strict=True):
        good = entry.read_bytes()
        half, rest = good[: len(good) // 2], good[len(good) // 2 :]
        entry.write_bytes({"cut": half, "emptied": b"", "changed": half + b"x" + rest}[damage])
    out, said = ran("", tmp_path, "cpu.compile=always")
    assert "llvm" in out
    dropped = [line for line in said if "is damaged: dropped, compiled anew" in line]
    assert [sum(entry.name in line for line in dropped) for entry in entries] == [1, 1, 1]
    assert all(map(whole, entries))  # whole again


def test_a_damaged_entry_in_a_folder_that_is_only_read(tmp_path, monkeypatch):
    entry = tmp_path / f"{KEY}.o"
    entry.write_bytes(b"nonsense")

    def refuse(self, missing_ok=False):
        raise PermissionError("read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.warns(RuntimeWarning, match="is damaged"):
        assert jit.OBJECTS.get(KEY, tmp_path) is None


@needs_compiler
@pytest.mark.slow
def test_processes_that_compile_one_graph_at_once_and_two_are_killed(tmp_path):
    code = PROGRAM + "print(sorted(right()), flush=True)"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment["SYMDNN_FLAGS"] = f"base_compiledir={tmp_path},cpu.compile=always"
    running = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", code], env=environment,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(16)
    ]  # fmt: skip
    while not list(tmp_path.rglob("*.o")) and any(p.poll() is None for p in running):
        time.sleep(0.005)  # until somebody compiles
    alive = [p for p in running if p.poll() is None]
    for process in random.sample(alive, 2):
        process.send_signal(signal.SIGKILL)
    ended = [p.communicate(timeout=300) for p in running]
    codes = [p.returncode for p in running]
    assert codes.count(-signal.SIGKILL) == 2, codes
    assert codes.count(0) == 14, [e for (_, e), c in zip(ended, codes) if c > 0]
    assert all("llvm" in out for (out, _), c in zip(ended, codes) if c == 0)
    for entry in tmp_path.rglob("*.o"):
        assert whole(entry)
    out, said = ran("", tmp_path, "cpu.compile=always")
    assert "llvm" in out
    assert said == []


# -- fork -----------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize(
    "module", ["cpu.compiler.jit", "cpu.compiler.object_cache", "cpu.launch.scratch"]
)
def test_a_child_compiles_though_another_thread_had_a_lock_when_it_was_forked(module, tmp_path):
    out, _ = ran(
        f"""
        import os, threading, time
        from symdnn.cpu.compiler import jit
        import symdnn.{module} as module
        jit.problem()
        held = threading.Event()

        def hold():
            with module._lock:
                held.set()
                time.sleep(0.3)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if child == 0:
            os._exit(0 if "llvm.elementwise" in right() else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        thread.join()
        """,
        tmp_path, "cpu.compile=always", timeout=120,
    )  # fmt: skip
    assert out.strip() == "0"


@needs_compiler
def test_a_child_computes_though_another_thread_was_in_a_call_when_it_was_forked(tmp_path):
    out, _ = ran(
        """
        import os, threading
        right()
        stop = threading.Event()

        def work():
            while not stop.is_set():
                right()

        thread = threading.Thread(target=work)
        thread.start()
        warnings.simplefilter("ignore", DeprecationWarning)
        codes = []
        for _ in range(5):
            child = os.fork()
            if child == 0:
                right()
                os._exit(0)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        stop.set()
        thread.join()
        print(codes)
        """,
        tmp_path, timeout=120,
    )  # fmt: skip
    assert out.strip() == str([0] * 5)


@needs_compiler
def test_a_child_compiles_though_another_thread_was_inside_of_llvm_when_it_was_forked(tmp_path):
    out, _ = ran(
        """
        import os, threading, time
        stop = threading.Event()

        def computed(seed):
            x = T.fvector("x")
            y = x
            for k in range(seed % 7 + 3):
                y = T.tanh(T.sin(y) * (k + seed)) + T.erf(y)
            symdnn.function([x], y, mode=symdnn.Mode(target="cpu"))(np.ones(9, "f"))

        def compile_on():
            seed = 1
            while not stop.is_set():
                computed(seed)
                seed += 1

        computed(0)
        thread = threading.Thread(target=compile_on)
        thread.start()
        warnings.simplefilter("ignore", DeprecationWarning)
        codes = []
        for k in range(4):
            time.sleep(0.1)
            child = os.fork()
            if child == 0:
                computed(1000 + k)
                os._exit(0)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        stop.set()
        thread.join()
        print(codes)
        """,
        tmp_path, "cpu.compile=always,openmp.threads=1", timeout=120,
    )  # fmt: skip
    assert out.strip() == str([0] * 4)


@pytest.mark.skipif(bool(omp.problem()), reason="libgomp is missing")
def test_which_files_are_cut_off(tmp_path):
    whole = Path(omp_library()).read_bytes()
    path = tmp_path / "library.so"
    for length, cut in ((len(whole), False), (len(whole) // 2, True), (100, True), (10, False)):
        path.write_bytes(whole[:length])
        assert bool(truncation(str(path))) is cut
    path.write_bytes(b"text" * 100)
    assert truncation(str(path)) == ""  # the loader says what it is
    assert truncation(str(tmp_path / "absent.so")) == ""
