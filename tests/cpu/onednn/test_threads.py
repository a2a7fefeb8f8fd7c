"""Threads of the CPU's kernels: one pool, the flag's number, several callers, fork and spawn."""

import os
import platform
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.modes.monitor import MonitorMode
from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.launch.scratch import address
from symdnn.cpu.onednn import library
from symdnn.cpu.onednn.matmul import MatmulKernel
from symdnn.cpu.threads import thread_pools, threads
from symdnn.graph.type import TensorType
from symdnn.ops.linalg.dot import Dot
from symdnn.ops.vendor.onednn import OneDnnMatmul
from tests.cpu.harness import call_of
from tests.seeded import new_rng

needs_onednn = pytest.mark.skipif(bool(library.problem()), reason="oneDNN is not installed")

PROGRAM = """
import os, sys
import numpy as np, symdnn, symdnn.tensor as T

def make():
    x, im = T.fmatrix(), T.ftensor4()
    rng = np.random.default_rng(0)
    w, k = rng.normal(size=(300, 300)).astype("f"), rng.normal(size=(16, 16, 3, 3)).astype("f")
    mode = symdnn.Mode(target="cpu")
    f = symdnn.function([x], T.tanh(T.dot(T.exp(-x * x), w)).sum(), mode=mode)
    g = symdnn.function([im], T.nnet.relu(T.nnet.conv2d(im, k)).sum(), mode=mode)
    a, b = np.ones((300, 300), "f"), np.ones((8, 16, 20, 20), "f")
    return lambda: [float(f(a)), float(g(b))]
"""


def ran(text, **environment):
    """Run a program of its own; it must end by itself and well."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + textwrap.dedent(text)],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_the_child_of_a_process_that_used_threads_computes_alone():
    done = ran("""
        run = make()
        before = run()
        if os.fork() == 0:
            same = np.allclose(run(), before, rtol=1e-4) and np.allclose(make()(), before, 1e-4)
            alone = len(os.listdir("/proc/self/task")) == 1
            os._exit(0 if same and alone else 3)
        _, status = os.wait()
        assert np.allclose(run(), before, rtol=1e-4)
        sys.exit(os.waitstatus_to_exitcode(status))
    """, OPENBLAS_NUM_THREADS="1")  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_spawned_process_computes(tmp_path):
    script = tmp_path / "spawn.py"
    script.write_text(
        PROGRAM
        + textwrap.dedent("""
        import multiprocessing

        def work(_):
            return make()()

        if __name__ == "__main__":
            before = make()()
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                (found,) = pool.map(work, [0])
            assert np.allclose(found, before, rtol=1e-4)
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@needs_onednn
def test_the_flag_is_the_most_threads():
    done = ran("""
        make()()
        print(len(os.listdir("/proc/self/task")))
    """, SYMDNN_FLAGS="openmp.threads=1", OPENBLAS_NUM_THREADS="1")  # fmt: skip
    assert done.stdout.strip() == "1", done.stderr
    if len(os.sched_getaffinity(0)) > 1:
        done = ran("""
            make()()
            print(len(os.listdir("/proc/self/task")))
        """, SYMDNN_FLAGS="openmp.threads=2", OPENBLAS_NUM_THREADS="1")  # fmt: skip
        assert done.stdout.strip() == "2", done.stderr


@needs_onednn
def test_another_number_of_threads_gives_the_same_values():
    x, w = T.ftensor4("x"), new_rng().normal(size=(16, 16, 3, 3)).astype("f")
    f = symdnn.function([x], T.nnet.conv2d(x, w), mode=symdnn.Mode(target="cpu"))
    image = new_rng().normal(size=(4, 16, 12, 12)).astype("f")
    found = []
    for count in (1, 2, 3, 1):
        with config.change_flags(**{"openmp.threads": count}):
            found.append(f(image))
            (plan,) = f.plans()
            assert plan.bound.threads == count
    for each in found[1:]:
        np.testing.assert_allclose(each, found[0], atol=1e-4)


def test_several_python_threads_call_at_once(rng):
    x, w = T.ftensor4("x"), rng.normal(size=(8, 3, 3, 3)).astype("f")
    y = T.tanh(T.nnet.conv2d(x, w)).sum(axis=(1, 2, 3))
    fs = [symdnn.function([x], y, mode=symdnn.Mode(target="cpu")) for _ in range(2)]
    images = [rng.normal(size=(n, 3, 10, 10)).astype("f") for n in (1, 2, 3, 4)]
    wanted, wrong = [fs[0](a) for a in images], []

    def work(i):
        for k in range(30):
            j = (i + k) % 4
            if not np.allclose(fs[k % 2](images[j]), wanted[j], atol=1e-4):
                wrong.append((i, k))

    callers = [threading.Thread(target=work, args=[i]) for i in range(4)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert not wrong


@pytest.mark.skipif(not thread_pools.blas(), reason="NumPy's BLAS is not OpenBLAS")
def test_blas_has_one_thread_inside_of_a_call_and_its_own_number_after():
    blas = thread_pools.blas()[0]
    blas.threads = 2
    seen = []

    def listen(*_):
        seen.append(blas.threads)
        if len(seen) == 9:
            raise ValueError("wanted")

    x = T.dmatrix("x")  # oneDNN has no float64
    mode = MonitorMode(pre_func=listen, post_func=listen, target="cpu")
    f = symdnn.function([x], T.tanh(T.dot(x, x)).sum(), mode=mode)
    a = np.ones((300, 300))
    f(a)
    assert any(p.bound.threaded for p in f.plans())
    with pytest.raises(ValueError, match="wanted"):
        [f(a) for _ in range(9)]
    assert set(seen) == {1}
    assert blas.threads == 2


def test_the_number_is_told_to_each_thread(monkeypatch):
    told = []

    class Library:
        def omp_set_num_threads(self, count):
            told.append((threading.get_ident(), count.value))

    monkeypatch.setattr(threads, "openmp", Library)
    monkeypatch.setattr(thread_pools, "_last_setting", thread_pools._LastSetting())
    for _ in range(2):
        thread_pools.set_threads()
    other = threading.Thread(target=thread_pools.set_threads)
    other.start()
    other.join()
    assert [count for _, count in told] == [threads.allowed()] * 2
    assert len({ident for ident, _ in told}) == 2


def test_threads_that_wait_sleep_soon_unless_the_user_says_otherwise():
    """What libgomp is told when it is loaded, seen in a fresh process."""
    program = (
        "import ctypes, os\n"
        "from symdnn.cpu.threads import threads\n"
        "seen = []\n"
        "load = ctypes.CDLL\n"
        "def watched(name, *rest):\n"
        "    if 'gomp' in str(name): seen.append(os.environ.get('GOMP_SPINCOUNT'))\n"
        "    return load(name, *rest)\n"
        "ctypes.CDLL = watched\n"
        "threads.openmp()\n"
        "print(seen[0], os.environ.get('GOMP_SPINCOUNT'))\n"
    )

    def told(**more):
        own = {
            k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
        }
        done = subprocess.run([sys.executable, "-c", program], env={**own, **more}, check=True,
                              capture_output=True, text=True)  # fmt: skip
        return done.stdout.split()

    if platform.machine() in ("x86_64", "AMD64") and not jit.problem():
        rounds, after = told()
        assert 100 < int(rounds) < 100_000
        assert after == "None"
    assert told(GOMP_SPINCOUNT="777") == ["777", "777"]
    assert told(OMP_WAIT_POLICY="active") == ["None", "None"]


@needs_onednn
@pytest.mark.parametrize("shape", [(3, 3, 513), (513, 64, 200), (40, 513, 30)])
def test_a_product_with_another_number_of_threads_has_enough_scratch_memory(rng, shape):
    """A plan's is of its own number of threads, and fewer may need more."""
    m, k, n = shape
    kernel, dtype = MatmulKernel(), T.tensor("bfloat16", ()).type.numpy
    a, b = (rng.normal(size=s).astype(dtype) for s in ((m, k), (k, n)))
    call = call_of(OneDnnMatmul(Dot()), [a, b], TensorType("bfloat16", (m, n)))
    if kernel.refuses(call) is not None or not kernel.workspace_bytes(call):
        pytest.skip("this processor's primitive has no scratch memory")
    memory, out = np.full(1 << 20, 7, np.uint8), np.empty((m, n), dtype)
    part = memory[-address(memory) % 64 :][:64]
    kernel.bind(call)([a, b], [out], part)
    assert (memory == 7).all()
    wanted = a.astype("float32") @ b.astype("float32")
    np.testing.assert_allclose(out.astype("float32"), wanted, rtol=1e-2, atol=0.3)
