"""Generated device text: NVRTC takes it, it is the same each time, cubins are kept on disk."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from symdnn.errors import KernelCompileError
from symdnn.gpu.binding import nvrtc
from symdnn.gpu.codegen.cuda_source import constant_text, print_problem
from symdnn.ops.core.scalar import Builder
from tests.environment import environment
from tests.gpu.codegen.test_kernels import reduced, scanned
from tests.gpu.recorder import CAPABILITIES, recorded, sources
from tests.gpu.table import Try, concrete, tries

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed")

SOURCE = 'extern "C" __global__ void k(float* x) { x[0] = 1; }'


def families() -> list[Try]:
    """A few tries of each kind of kernel."""
    wanted = {
        "Add", "Sigmoid", "Cast", "Sum", "ArgMax", "LogSumExp", "FusedElemwise", "FusedReduce",
        "Alloc", "Join", "AdvancedSubtensor", "AdvancedIncSubtensor", "OneHot", "TopK", "CumSum",
        "CumMax", "LinearRecurrence", "SoftmaxCrossentropy", "PickLabel", "RandomNormal",
        "RandomIntegers", "Dropout", "PolyGamma", "ARange", "SearchSorted", "SparseDot",
        "SampledDot",
    }  # fmt: skip
    found: dict[str, Try] = {}
    for one in tries():
        found.setdefault(type(one.call.op).__name__, one)
    return [t for name, t in found.items() if name in wanted]


def targets() -> list[tuple[int, int]]:
    known = nvrtc.supported_architectures()
    return [c for c in ((8, 0), (9, 0), (10, 0)) if c in known]


def test_architectures_that_the_design_names_are_known():
    assert {(8, 0), (9, 0)} <= set(targets())


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
def test_a_sample_compiles(capability):
    checked = 0
    for one in families():
        for source in sources(one):
            cubin = nvrtc.compile_cubin(source, capability)
            assert cubin[:4] == b"\x7fELF"
            checked += 1
    assert checked >= 25


def test_kernels_of_all_families_may_be_launched_early():
    for source in dict.fromkeys(s for one in families() for s in sources(one)):
        made = nvrtc.waiting(source, (9, 0))
        assert made.count("griddepcontrol.wait") == source.count("__global__") > 0


@pytest.mark.slow
@pytest.mark.parametrize("capability", targets(), ids=str)
def test_the_whole_table_compiles(capability):
    found = dict.fromkeys(s for one in tries() for s in sources(one))
    assert len(found) > 400
    for source in found:
        nvrtc.compile_cubin(source, capability)


@pytest.mark.parametrize("made", [reduced, scanned], ids=lambda f: f.__name__)
def test_kernels_in_several_steps_compile(made):
    kernel, call, arrays = made()
    env = recorded(kernel, call, arrays, call.op.compute(*arrays))
    chunks = env.launches[0][1][1:]
    assert len(env.modules) > 1 or chunks[0] > 1
    for source, _ in env.modules:
        nvrtc.compile_cubin(source, (9, 0))


# -- text -----------------------------------------------------------------------------------------


def test_text_does_not_depend_on_sizes():
    from symdnn.ops.elementwise.arithmetic import Add

    def text(n, m):
        arrays = [np.zeros((n, m), np.float32), np.zeros((1, m), np.float32)]
        call = concrete(Add(), arrays)
        one = Try("", call, arrays, [np.zeros((n, m), np.float32)], 0)
        return sources(one)

    assert text(8, 16) == text(1000, 64)
    assert text(8, 16) != text(8, 15)  # no vectors of 4


def hashes():
    """A line for each text of some kernels."""
    chosen = tries("arithmetic", "shaping", "softmax")
    texts = [(one.id, s) for one in chosen for s in sources(one)]
    return [f"{name} {hashlib.sha256(s.encode()).hexdigest()}" for name, s in texts]


_PRINT = """
from tests.gpu.codegen.test_codegen import hashes
print(*hashes(), sep="\\n")
"""


def test_text_is_the_same_in_every_process():
    root = str(Path(__file__).parents[3])
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    env = environment(PYTHONHASHSEED=seed)
    done = subprocess.run(
        [sys.executable, "-c", _PRINT], env=env, cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    wanted = hashes()
    assert done.stdout.splitlines()[-len(wanted) :] == wanted  # ops that print did so before


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (1.5, "float32", "0x1.8000000000000p+0f"),
        (-0.0, "float64", "-0x0.0p+0"),
        (float("inf"), "float32", "INF_f"),
        (float("-inf"), "float64", "-INF_d"),
        (float("nan"), "float32", "NAN_f"),
        (-(2**63), "int64", "(-9223372036854775807ll - 1)"),
        (2**64 - 1, "uint64", "18446744073709551615ull"),
        (True, "bool", "true"),
        (-7, "int8", "(i8)-7ll"),
    ],
)
def test_constants_are_exact(value, dtype, text):
    builder = Builder(())
    program = builder.program([builder.const(value, dtype)])
    assert constant_text(program.body[0].value, dtype) == text


def test_a_function_that_cuda_lacks_is_named():
    builder = Builder(("float64", "float64"))
    program = builder.program([builder.input(0).call("gammaincinv", builder.input(1))])
    assert "gammaincinv" in (print_problem(program) or "")


# -- the cache ------------------------------------------------------------------------------------


def test_a_cubin_is_compiled_once(tmp_path, monkeypatch):
    first = nvrtc.compile_cubin(SOURCE, (9, 0), folder=tmp_path)
    monkeypatch.setattr(nvrtc, "_compile", None)  # calling it would raise
    assert nvrtc.compile_cubin(SOURCE, (9, 0), folder=tmp_path) == first
    with pytest.raises(TypeError):
        nvrtc.compile_cubin(SOURCE, (8, 0), folder=tmp_path)
    with pytest.raises(TypeError):
        nvrtc.compile_cubin(SOURCE, (9, 0), ("--use_fast_math",), folder=tmp_path)


def test_another_version_of_nvrtc_compiles_anew(tmp_path, monkeypatch):
    nvrtc.compile_cubin(SOURCE, (9, 0), folder=tmp_path)
    monkeypatch.setattr(nvrtc, "version", lambda: (99, 9))
    nvrtc.compile_cubin(SOURCE, (9, 0), folder=tmp_path)
    assert len(list(tmp_path.rglob("*.cubin"))) == 2


@pytest.mark.parametrize("damage", [lambda d: d[:-1] + b"?", lambda d: d[:40], lambda d: b""])
def test_a_damaged_entry_is_dropped_with_a_warning(tmp_path, damage):
    cubin = nvrtc.compile_cubin(SOURCE, (9, 0), folder=tmp_path)
    (path,) = tmp_path.rglob("*.cubin")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert nvrtc.compile_cubin(SOURCE, (9, 0), folder=tmp_path) == cubin
    assert nvrtc.compile_cubin(SOURCE, (9, 0), folder=tmp_path) == cubin  # whole again


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("not a folder")
    with pytest.warns(RuntimeWarning, match="base_compiledir"):
        cubin = nvrtc.compile_cubin(SOURCE, (9, 0), folder=occupied)
    assert nvrtc.compile_cubin(SOURCE, (9, 0), folder=occupied) == cubin  # and no second warning


def test_several_threads_may_compile_one_kernel(tmp_path):
    found: list[bytes] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(nvrtc.compile_cubin(SOURCE, (9, 0), folder=tmp_path))
        )
        for _ in range(8)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert not list(tmp_path.rglob("*.part"))


def test_nvrtcs_log_is_in_the_error(tmp_path):
    with pytest.raises(KernelCompileError, match="identifier") as caught:
        nvrtc.compile_cubin(
            'extern "C" __global__ void k() { nothing = 1; }', (9, 0), folder=tmp_path
        )
    assert "nothing" in caught.value.source
    assert not list(tmp_path.rglob("*.cubin"))
