"""What drives a device: PyCUDA and cuda-bindings make the same calls of the driver.

The driver is a fake one in C (``tests/gpu/fake_libcuda.c``), called by the real cuda-bindings.
PyCUDA is a stand-in that makes its calls (``tests/gpu/fake_pycuda``).
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from symdnn.config import config
from symdnn.errors import CudaUnavailable, OutOfDeviceMemory
from symdnn.gpu.device import driver_api as module
from symdnn.gpu.device.driver_api import CudaError, checked, driver_api
from tests.gpu.fake_libcuda import calls, fake_libcuda

__all__ = ["fake_libcuda"]

BOTH = ("pycuda", "cuda-bindings")

START = """
import numpy as np
from symdnn.gpu.binding import nvrtc
from symdnn.gpu.execution.runtime import runtime

nvrtc.compile_cubin = lambda *_: b"\\x7fELF" + bytes(60)
rt = runtime(0)
context, memory = rt.context, rt.memory
values = np.arange(12, dtype="float32").reshape(3, 4)
"""

# -- both make the same calls ----------------------------------------------------------------------

PROGRAM = (
    START
    + """
import threading

def launch():
    kernel = context.function("source", "k_8_24_4")
    arguments = [x.ptr, np.void(bytes(range(24))), np.int32(7)]
    context.launch(kernel, (2,), (32, 2), 60_000, arguments)

with rt.exclusive():
    x = memory.upload(values, None)
    launch()
    context.zero(x.ptr, 16)
    y = memory.empty((3, 4), "float32")
    memory.copy(x, y)
    context.wait_for(99)
    context.make_wait(2)
thread = threading.Thread(target=lambda: print(memory.download(y).tolist()))
thread.start()
thread.join()
del x
with rt.exclusive():
    memory.free_held()
    rt.queue.event().record()
print(context.name, context.capability, context.total_memory(), rt.memory_use().live)
"""
)


def test_both_make_the_same_calls_in_the_same_order(fake_libcuda, tmp_path):
    runs = {name: calls(fake_libcuda, name, PROGRAM, tmp_path) for name in BOTH}
    assert runs["pycuda"] == runs["cuda-bindings"]
    output, log = runs["cuda-bindings"]
    assert output.splitlines() == [
        "[[0.0, 0.0, 0.0, 0.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]",
        "Fake (9, 0) 268435456 48",
    ]
    stored = bytes(range(24)).hex()
    assert log[:3] == ["retain 0", "push 0x1000", "stream 0"]
    at = log.index(f"launch k_8_24_4 (2, 1, 1) (32, 2, 1) 60000 on 0x2001: 2 {stored} 07000000")
    assert log[at - 3 : at] == [
        "load",
        "function k_8_24_4 of 0x4000",
        "attribute 8 of k_8_24_4: 60000",
    ]
    assert log[at + 1 : at + 3] == ["set 2: 16 bytes 0 on 0x2001", "allocate 512: 4"]
    event = "0x3002"  # the stream was made first
    assert log[at + 4 : at + 8] == [
        "event 2",
        f"record {event} on 0x63",
        f"stream 0x2001 waits for {event}",
        f"destroy {event}",
    ]
    assert log.count("push 0x1000") == 2  # once for each thread, which pops it when it ends
    assert log.count("pop") == 2


REST = (
    START
    + """
import gc
import symdnn
from symdnn.errors import OutOfDeviceMemory
from symdnn.gpu.device.driver_api import CudaError

w = symdnn.shared(values, "w")
w.storage.on(memory)
inside = w.get_value(borrow=True, return_internal_type=True)
print(type(inside).__name__, inside.dtype, inside.shape, inside.get().sum())
assert np.asarray(inside).dtype == "float32" and np.asarray([inside]).shape == (1, 3, 4)
assert type(inside).__module__ in ("pycuda.gpuarray", "symdnn.gpu.device.device_array")
x = memory.upload(values, None)
assert rt.lend(x) is rt.lend(x)
taken = rt.adopt(rt.lend(x), "x")
assert (taken.ptr, taken.shape, taken.dtype) == (x.ptr, x.shape, x.dtype)
assert rt.known(rt.lend(x)).ptr == x.ptr
gc.disable()
before = rt.memory_use().live
rt._known.clear()
memory.synchronize()
del x, taken
print(before - rt.memory_use().live)

with rt.exclusive():
    for attempt in (
        lambda: memory.empty((1 << 27,), "uint8"),
        lambda: context._api.module(b"text"),
    ):
        try:
            attempt()
        except (OutOfDeviceMemory, CudaError) as error:
            print(type(error).__name__, str(error)[:27])
nvrtc.forget_cubin = lambda *_: print("forgotten")
nvrtc.compile_cubin = lambda *_: b"text"
try:
    context.function("source", "k")
except CudaError:
    print("refused twice")
"""
)


@pytest.mark.parametrize(("runtime", "array"), list(zip(BOTH, ["GPUArray", "DeviceArray"])))
def test_what_users_get_and_failures(fake_libcuda, tmp_path, runtime, array):
    output, _ = calls(fake_libcuda, runtime, REST, tmp_path)
    inside, freed, room, refused, *rest = output.splitlines()
    assert inside == f"{array} float32 (3, 4) 66.0"
    assert freed == "48"  # at once, without the collector
    assert room == "OutOfDeviceMemory no room for 134217728 more "
    assert refused.startswith("CudaError ")
    assert rest == ["forgotten", "refused twice"]


# -- the array of cuda-bindings' users -------------------------------------------------------------


STREAMS = (
    START
    + """
with rt.exclusive():
    a = rt.lend(memory.upload(values, None))
    print(a.__dlpack_device__(), a.__cuda_array_interface__["stream"] == context.stream)
    for stream in (None, 1, 2, 77, -1, context.stream):
        a.__dlpack__(stream=stream)
"""
)


def test_the_consumers_stream_waits_for_the_values(fake_libcuda, tmp_path):
    output, log = calls(fake_libcuda, "cuda-bindings", STREAMS, tmp_path)
    assert output.strip() == "(2, 0) True"
    assert sum(line.startswith("record ") for line in log) == 4
    waits = [line for line in log if " waits for " in line]
    assert waits == [
        f"stream {stream} waits for 0x300{n}"
        for n, stream in enumerate(("0x1", "0x1", "0x2", "0x4d"), 2)
    ]


# -- a second stream, and waits that look around --------------------------------------------------


SIDE = (
    START
    + """
with rt.exclusive():
    side = context.side
    assert side is context.side
    print(f"{context.stream:#x} {side.stream:#x}")
    assert side.enter() == side.stream
    side.leave(64)
    assert side.enter() == side.stream
    side.leave(128, ["kept"])
    side.arrive(64)
    side.arrive(128)

    def poll(done):
        asked = 0
        while not done():
            asked += 1
        print("asked", asked)

    context.poll = poll
    context.synchronize()
    event = memory.queue.event()
    event.record()
    event.wait()
    context.cancel(lambda: print("ended"))
"""
)


def test_a_second_stream_and_a_wait_that_looks_around(fake_libcuda, tmp_path):
    output, log = calls(fake_libcuda, "cuda-bindings", SIDE, tmp_path)
    streams, *said = output.strip().splitlines()
    first, second = streams.split()
    assert said == ["asked 2", "asked 2", "ended"]
    (made,) = [i for i, line in enumerate(log) if line.startswith("stream 1 of priority -5")]
    work = [line for line in log[made + 1 :] if " on " in line or " waits for " in line]
    # Two ways in and two ways out; then the event, and the error word set and cleared.
    ends = [line.split()[-1] for line in work[:4:2]]
    assert ends == [first, second]
    into, out = f"stream {second} waits", f"stream {first} waits"
    assert [line[: len(into)] for line in work if " waits for " in line] == [
        into, into, out, out,
    ]  # fmt: skip
    assert [line.split(" on ")[0].split(": ")[1] for line in work[-2:]] == [
        "1 times 11", "4 times 0",
    ]  # fmt: skip
    assert work[-1].endswith(first)


# -- which of them ---------------------------------------------------------------------------------


@pytest.fixture
def fresh():
    driver_api.cache_clear()
    yield
    driver_api.cache_clear()


@pytest.mark.parametrize(
    ("flag", "there", "wanted"),
    [
        ("auto", True, "PyCuda"),
        ("auto", False, "CudaBindings"),
        ("pycuda", True, "PyCuda"),
        ("pycuda", False, "PyCuda"),
        ("cuda-bindings", True, "CudaBindings"),
        ("cuda-bindings", False, "CudaBindings"),
    ],
)
def test_the_flag_and_what_is_installed_choose(fresh, monkeypatch, flag, there, wanted):
    monkeypatch.setattr(module, "bindings", lambda: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if there else None)
    for name in ("PyCuda", "CudaBindings"):
        monkeypatch.setattr(module, name, lambda name=name: name)
    with config.change_flags({"gpu.runtime": flag}):
        assert driver_api() == wanted


@pytest.mark.skipif(importlib.util.find_spec("pycuda") is not None, reason="PyCUDA is here")
def test_pycuda_is_missing_only_where_it_is_asked_for(fresh):
    pytest.importorskip("cuda.bindings.driver")
    missing = "PyCUDA is missing.*gpu.runtime=pycuda.*install_cuda.sh.*conda-forge"
    with (
        config.change_flags({"gpu.runtime": "pycuda"}),
        pytest.raises(CudaUnavailable, match=missing),
    ):
        driver_api()


def test_cuda_bindings_is_needed_in_any_case(fresh, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    for flag in ("auto", "pycuda", "cuda-bindings"):
        with (
            config.change_flags({"gpu.runtime": flag}),
            pytest.raises(CudaUnavailable, match=r"cuda-bindings is missing: pip install 'symdnn"),
        ):
            driver_api()


def test_a_driver_that_is_not_there_is_told(fresh, monkeypatch):
    def refuse():
        raise RuntimeError("libcuda.so.1: not found")

    monkeypatch.setattr(module, "bindings", lambda: None)
    monkeypatch.setattr(module, "CudaBindings", refuse)
    with (
        config.change_flags({"gpu.runtime": "cuda-bindings"}),
        pytest.raises(CudaUnavailable, match=r"the CUDA driver does not start: libcuda\.so\.1"),
    ):
        driver_api()


def test_a_status_is_an_exception():
    assert checked((0,)) is None
    assert checked((0, "value")) == "value"
    with pytest.raises(OutOfDeviceMemory):
        checked((2, None))
    with pytest.raises(CudaError, match="CUDA driver: 700"):
        checked((700,))


# -- what is called exists -------------------------------------------------------------------------


def called():
    """Every name of ``cuda.bindings.driver`` that symdnn uses: with how many arguments, where."""
    import symdnn.gpu

    for path in Path(symdnn.gpu.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        counts = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and not any(
                isinstance(a, ast.Starred) for a in node.args
            ):
                counts[id(node.func)] = len(node.args)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr.startswith(("cu", "CU")):
                holder = ast.unparse(node.value)
                if holder.endswith("driver"):  # ctypes' library is called lib
                    yield node.attr, counts.get(id(node)), f"{path.name}:{node.lineno}"


def test_the_bindings_have_what_is_called_with_as_many_arguments():
    driver = pytest.importorskip("cuda.bindings.driver")
    found = list(called())
    assert {"cuMemAlloc", "cuLaunchKernel", "cuGraphLaunch", "cuMemMap"} <= {n for n, *_ in found}
    for name, count, where in found:
        assert hasattr(driver, name), f"{where}: {name}"
        if count is not None and name.startswith("cu"):
            assert count == arity(getattr(driver, name)), f"{where}: {name}"


def arity(function):
    """How many arguments a function of Cython takes, by the first line of its docstring."""
    signature = function.__doc__.splitlines()[0].partition("(")[2].rpartition(")")[0]
    depth, commas = 0, 0
    for c in signature:
        depth += c in "[("
        depth -= c in "])"
        commas += c == "," and depth == 0
    return commas + 1 if signature.strip() else 0
