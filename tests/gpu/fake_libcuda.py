"""Programs run on a CUDA driver that is none, by either runtime, and what they called of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.environment import python_path
from tests.forked import forked

__all__ = ["calls", "fake_libcuda"]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="session")
def fake_libcuda(tmp_path_factory):
    """A folder with the fake ``libcuda.so.1``."""
    pytest.importorskip("cuda.bindings.driver")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler for the fake driver")
    folder = tmp_path_factory.mktemp("libcuda")
    source, library = HERE / "fake_libcuda.c", folder / "libcuda.so.1"
    command = [compiler, "-shared", "-fPIC", "-O1", "-w", str(source), "-o", str(library), "-ldl"]
    subprocess.run([*command, "-Wl,-soname,libcuda.so.1"], check=True)
    return folder


def calls(folder, runtime, program, tmp_path):
    """Run a program by ``runtime``; its output, and the driver's calls line by line."""
    log = tmp_path / f"{runtime}.log"
    path = [str(HERE / "fake_pycuda")] if runtime == "pycuda" else []
    env = {
        **os.environ,
        "PYTHONPATH": python_path(*path),
        "SYMDNN_FLAGS": f"gpu.runtime={runtime},base_compiledir={tmp_path / 'cache'}",
        "FAKE_LIBCUDA_LOG": str(log),
    }
    found = f"import ctypes; ctypes.CDLL({str(folder / 'libcuda.so.1')!r})\n"  # then by its name
    done = forked(found + program, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout, log.read_text().splitlines() if log.exists() else []
