"""``make cuda``: what is installed with a compiler, without one, and when PyCUDA's build fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "install_cuda.sh"

#: Stands for the environment's Python: notes what pip is asked for.
PYTHON = """#!/bin/sh
echo "$@" >> "{log}"
case "$*" in
    *sysconfig*) echo "{folder}" ;;
    *nvidia.cu13*) echo "{folder}/cu13" ;;
    *show*) exit {absent} ;;
    *pycuda*) exit {built} ;;
esac
"""


def run(tmp_path, compiler=True, headers=True, there=False, built=True):
    """The script's output, and the extras and packages that pip was asked for."""
    log, tools = tmp_path / "log", tmp_path / "tools"
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "cu13" / "lib").mkdir(parents=True)
    tools.mkdir()
    python = tmp_path / "env" / "bin" / "python"
    python.write_text(
        PYTHON.format(log=log, folder=tmp_path, absent=int(not there), built=int(not built))
    )
    python.chmod(0o755)
    for name in ("dirname", "ln", "cat"):
        found = next(d for d in ("/usr/bin", "/bin") if Path(d, name).exists())
        (tools / name).symlink_to(Path(found, name))
    for name in ("g++", "gcc") if compiler else ():
        (tools / name).write_text("#!/bin/sh\ntrue\n")
        (tools / name).chmod(0o755)
    if headers:
        (tmp_path / "Python.h").touch()
    env = {"PATH": str(tools), "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        ["/bin/sh", str(SCRIPT), str(tmp_path / "env")], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    asked = [line for line in log.read_text().splitlines() if " install " in line]
    return done.stderr, asked


def test_pycuda_is_built_where_there_is_a_compiler(tmp_path):
    told, asked = run(tmp_path)
    assert told == ""
    assert [line.split()[-1] for line in asked] == [".[cuda]", "nvidia-curand==10.*", ".[pycuda]"]


@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        ({"compiler": False}, "no C++ compiler (g++)"),
        ({"headers": False}, "Python.h (python3-dev)"),
    ],
)
def test_without_a_compiler_it_goes_on_and_says_so(tmp_path, lacks, says):
    told, asked = run(tmp_path, **lacks)
    assert says in told
    assert "cuda-bindings drives the GPU" in told
    assert [line.split()[-1] for line in asked] == [".[cuda]"]


def test_a_build_that_fails_is_told(tmp_path):
    told, asked = run(tmp_path, built=False)
    assert "its build failed" in told
    assert asked[-1].endswith(".[pycuda]")


def test_pycuda_that_is_there_is_kept(tmp_path):
    told, asked = run(tmp_path, there=True)
    assert (told, len(asked)) == ("", 1)
