"""Loops of small steps as one kernel: its text run on a CPU, against the steps one by one."""

import ctypes
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.compile.call.fast_loops import LoopCalls
from symdnn.config import config
from symdnn.cpu.execution import whole_loop
from symdnn.gpu.binding import nvrtc
from symdnn.gpu.execution import whole_loop as gpu
from symdnn.graph.values.tree import flatten
from symdnn.ops.control.scan import Scan
from tests.cpu.steps.drawn_loops import drawn
from tests.gpu import emulator
from tests.gpu.emulator import HostEnv, on_device
from tests.seeded import new_rng

pytestmark = pytest.mark.skipif(not emulator.AVAILABLE, reason="needs g++")


def held(array):
    """A NumPy array's memory as a device's, which views of it keep alive."""
    return replace(on_device(array), owner=[array])


def seen(a):
    """A copy of a device's array."""
    memory = (ctypes.c_char * max(a.nbytes, 1)).from_address(a.ptr)
    return np.frombuffer(memory, a.dtype, a.size).reshape(a.shape).copy()


class Env(HostEnv):
    """A launch environment that keeps the sources of kernels."""

    def __init__(self, backwards):
        super().__init__(backwards=backwards)
        self.sources = []

    def module(self, source, name, options=()):
        self.sources.append(source)
        return super().module(source, name, options)


class Device:
    """What a loop's function asks of a device: this machine's memory. It counts the loops."""

    def __init__(self, backwards):
        self.memory = SimpleNamespace(
            captures_host_values=False,
            empty=lambda shape, dtype: held(np.zeros(shape, np.dtype(dtype))),
            upload=lambda array, _: held(np.array(array)), download=seen,
        )  # fmt: skip
        self.host, self.ran = Env(backwards), []

    def env(self):
        return self.host


@pytest.fixture(params=["at once", "in stretches"])
def device(request, monkeypatch):
    """The CPU's loops run by the kernel for GPUs.

    In stretches of few steps the threads run in the other order, which shows other races.
    """
    made = Device(request.param == "in stretches")
    if made.host.backwards:
        monkeypatch.setattr(gpu, "_FIRST_CAPACITY_STEPS", 2)
        monkeypatch.setattr(gpu, "_WORK_AT_ONCE", 0)
        monkeypatch.setattr(gpu, "_LEAST_AT_ONCE", 5)

    class Emulated:
        def __init__(self, op: Scan, inputs):
            self.of = gpu.GpuLoopFunction(made, op, [self.placed(a) for a in inputs])

        @staticmethod
        def placed(a):
            return a if not a.shape and a.dtype.kind in "iu" else held(np.asarray(a))

        def fits(self, inputs):
            return self.of.fits([self.placed(a) for a in inputs])

        def run(self, inputs):
            found = self.of.run([self.placed(a) for a in inputs])
            made.ran.append(found is not None)
            return found and [a if isinstance(a, np.ndarray) else seen(a) for a in found]

    monkeypatch.setattr(whole_loop, "_Function", Emulated)
    monkeypatch.setattr(LoopCalls, "at_first", lambda *args: None)  # else whole calls have none
    return made


def results(kind, seed, dtype, gradient):
    d = drawn(seed, dtype, gradient)
    f = symdnn.jit(d.loss(kind) if gradient else d.loop(kind))
    leaves = d.leaves[1:] if gradient else d.leaves
    return [np.asarray(v) for v in flatten(f(leaves, d.xs, d.w))[0]]


def check(kind, seed, dtype, gradient, device):
    found = {}
    for mode in ("never", "always"):
        with config.change_flags(**{"cpu.compile": mode}):
            found[mode] = results(kind, seed, dtype, gradient)
    assert device.ran
    assert all(device.ran)
    tolerance = 1e-8 if dtype == "float64" else 3e-3
    for wanted, got in zip(found["never"], found["always"], strict=True):
        np.testing.assert_allclose(got, wanted, tolerance, tolerance)


@pytest.mark.parametrize(
    ("kind", "seed", "gradient"), [("fori", 8, False), ("while", 3, False), ("scan", 9, True)]
)
def test_drawn_bodies(kind, seed, gradient, device):
    check(kind, seed, "float64", gradient, device)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_many_drawn_bodies(seed, device):
    for kind in ("fori", "while", "scan"):
        for dtype, gradient in (("float32", False), ("float64", True)):
            check(kind, seed, dtype, gradient, device)


def test_narrow_numbers_infinities_and_counts(device):
    """What folds and states of other dtypes do, and a number of the host that steps read."""

    def step(i, v):
        h, top, count, odd = v
        return (T.sin(h * 1.5) + 0.1, T.maximum(top, T.log(h.sum())), count * 3 + n,
                T.xor(odd, (h > 0).any()))  # fmt: skip

    x, n = T.vector("x", dtype="float16"), T.lscalar("n")
    values = control.fori_loop(0, 9, step, (x, np.float32(-np.inf), n * 0, T.eq(n, 2)))
    found = []
    for mode in ("never", "always"):
        with config.change_flags(**{"cpu.compile": mode}):
            f = symdnn.function([x, n], list(values), mode=symdnn.Mode(target="cpu"))
            found.append(f(np.linspace(-2, 2, 5, dtype="float16"), 7))
    assert device.ran == [True]
    for wanted, got in zip(*found, strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, 2e-3)


def test_complex_numbers(device):
    z = T.TensorType("complex64", (None,))("z")
    step = lambda i, c: c * z - T.conj(c) / (2 + T.abs(c)) + c.sum(axis=0, keepdims=True) / 9  # noqa: E731
    made = control.fori_loop(0, 9, step, z)
    given, found = np.exp(1j * np.arange(5)).astype("complex64"), []
    for mode in ("never", "always"):
        with config.change_flags(**{"cpu.compile": mode}):
            found.append(symdnn.function([z], made, mode=symdnn.Mode(target="cpu"))(given))
    assert device.ran == [True]
    np.testing.assert_allclose(*found, 1e-4)


def by_both(x, step, steps, device):
    """The leaves after so many steps: by single steps, by the kernel."""
    found = []
    for mode in ("never", "always"):
        with config.change_flags(**{"cpu.compile": mode}):
            f = symdnn.jit(lambda v: control.fori_loop(0, steps, step, v))
            found.append([np.asarray(v) for v in flatten(f(x))[0]])
    assert device.ran == [True]
    return zip(*found, strict=True)


@pytest.mark.parametrize("n", [3, 40, 300, 700])
def test_folds_by_lanes_of_a_warp_and_of_several(n, device):
    """One sum that all threads share, many sums, and states of two numbers."""

    def step(i, v):
        h, place = v
        w = T.outer(h[:3], h[:40] + i)
        h = T.tanh(h / 2 + h.sum() / n + T.sin(h.sum()) + w.sum() + h.max())
        h = T.concatenate([h[:1] + w.sum(1).max(), h[1:]])
        return h, place + T.argmax(h) * (i + 1) + T.argmin(w, axis=1).sum()

    x = new_rng().normal(size=n), np.int64(0)
    for wanted, got in by_both(x, step, 7, device):
        np.testing.assert_allclose(got, wanted, 1e-10)


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_sorts(dtype, device):
    """Lines with equal elements and NaN: in order, their places, the best of them."""

    def step(i, v):
        h, places = v
        best = T.topk(h, 2, 0).sum(0) + T.topk(h, -3, 1).sum()
        places = places + T.argsort(h, 0) * (i + 1) + T.argtopk(h, 1, 1)
        h = T.sort(h, 1)[::-1] if dtype == "int32" else T.sort(T.sqrt(h + 1), 0) - best * 0.1
        return h.astype(dtype), places

    x = np.round(new_rng().normal(size=(4, 17)) * 3).astype(dtype)
    assert len(np.unique(x)) < x.size
    for wanted, got in by_both((x, np.zeros((4, 17), "int64")), step, 4, device):
        assert np.isnan(wanted).any() == (wanted.dtype.kind == "f")
        np.testing.assert_array_equal(got, wanted)


def test_they_compile(device):
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed")
    with config.change_flags(**{"cpu.compile": "always"}):
        results("scan", 9, "float32", True)
    assert len(device.host.sources) >= 2
    for source in device.host.sources:
        for capability in nvrtc.supported_architectures()[-1:]:
            assert nvrtc.compile_cubin(source, capability)
