"""Need 1: cuDNN is found wherever it is, and a failure says what was tried.

The containers are folders laid out as those of the images are. A process of its own sees such a
folder as its machine: its wheels, what its loader knows, its environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.small_cudnn import build  # noqa: F401

MACHINE = """
import json, pathlib, runpy, sys
from symdnn import detect
from symdnn.gpu.binding import cudnn_library
wheels, loader, script = json.loads(sys.argv.pop())
detect._wheel_roots = lambda: wheels
detect._LOADER_FOLDERS = ()
found = {f.name: str(f) for d in reversed(loader) for f in sorted(pathlib.Path(d).glob("*.so*"))}
detect._loader_cache = lambda: found
cudnn_library._pathfinder_folders = lambda: []
if script:
    exec(script)
else:
    runpy.run_module("symdnn.doctor", run_name="__main__")
"""
SCRIPT = """
import numpy as np, symdnn, symdnn.tensor as T
x = T.tensor4("x")
y = T.nnet.conv2d(x, np.ones((2, 3, 3, 3), "float32"))
print(symdnn.function([x], y)(np.ones((1, 3, 5, 5), "float32")).sum())
"""


def run(wheels=(), loader=(), script="", **environment):
    """What ``python -m symdnn.doctor``, or a script, gives on such a machine."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("CUD", "LD_", "LIBRARY", "NV"))
    }
    return subprocess.run(
        [sys.executable, "-c", MACHINE, json.dumps([list(map(str, wheels)),
         list(map(str, loader)), script])],
        env={**kept, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def stub(folder: Path, *names: str) -> None:
    """Libraries that are only looked at."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"\x7fELF")


def searched(text: str) -> list[str]:
    """Who named the places of cuDNN, in order."""
    after = text[text.index("\ncuDNN ") + 1 :].splitlines()[1:]
    places = after[: next(i for i, line in enumerate(after) if not line.startswith("    "))]
    return list(dict.fromkeys(line.strip().split(": ")[0] for line in places))


# --- the four containers of the acceptance test -------------------------------------------------


def test_a_wheel_alone(build, tmp_path):  # noqa: F811
    there = build(tmp_path / "site-packages/nvidia/cudnn/lib", 91400)
    out = run([tmp_path / "site-packages"]).stdout
    assert f"cuDNN       {there}/libcudnn.so.9, version 9.14.0" in out
    assert searched(out)[:2] == ["loaded in this process", "Python wheel"]


def test_a_system_library_alone(build, tmp_path):  # noqa: F811
    there = build(tmp_path / "usr/lib/x86_64-linux-gnu")
    out = run(loader=[there]).stdout
    assert f"cuDNN       {there}/libcudnn.so.9, version 9.28.0" in out
    assert f"loader: {there}/libcudnn.so.9: found" in out


@pytest.mark.parametrize("below", ["", "lib", "lib64"])
def test_cudnn_path_alone(build, tmp_path, below):  # noqa: F811
    there = build(tmp_path / "cudnn" / below)
    out = run(CUDNN_PATH=str(tmp_path / "cudnn")).stdout
    assert f"cuDNN       {there}/libcudnn.so.9, version 9.28.0" in out
    assert f"CUDNN_PATH: {there}/libcudnn.so.9: found" in out


def test_none(tmp_path):
    done = run([tmp_path], SYMDNN_FLAGS="device=auto")
    assert done.returncode == 0
    assert "cuDNN       not found" in done.stdout
    flags = {"SYMDNN_FLAGS": "device=auto"}
    script = run([tmp_path], script=SCRIPT, NVIDIA_VISIBLE_DEVICES="all", **flags)
    assert (script.returncode, float(script.stdout)) == (0, 486.0)
    (line,) = script.stderr.splitlines()  # where a card was to be expected; one line
    assert line.startswith("symdnn: this container is of an image for GPUs")


def test_none_where_cudnn_is_demanded(tmp_path):
    flags = {"SYMDNN_FLAGS": "dnn.enabled=True", "CUDNN_PATH": str(tmp_path / "cudnn")}
    doctor = run([tmp_path / "site"], **flags)
    script = run([tmp_path / "site"], script=SCRIPT, **flags)
    assert doctor.returncode
    assert script.returncode
    places = [f"cudnn/{d}" for d in ("lib64", "lib", "targets/x86_64-linux/lib")]
    for place in (*places, "site/nvidia/cudnn/lib"):
        assert f"{tmp_path / place}/libcudnn.so.9: not there" in doctor.stdout
        assert f"{tmp_path / place}/libcudnn.so.9: not there" in script.stderr
    assert "CudnnRequired" in script.stderr


# --- the images that people use -----------------------------------------------------------------


def test_the_cuda_image(build, tmp_path):  # noqa: F811
    """``nvidia/cuda:13.0.0-cudnn-runtime-ubuntu24.04``: cuDNN is Debian's package."""
    system, cuda = tmp_path / "usr/lib/x86_64-linux-gnu", tmp_path / "usr/local/cuda-13.0"
    real = build(tmp_path / "versioned")
    system.mkdir(parents=True)
    for file in real.iterdir():  # files with the whole version, and links to them
        file.rename(system / f"{file.name}.28.0")
        (system / file.name).symlink_to(f"{file.name}.28.0")
    stub(cuda / "targets/x86_64-linux/lib", "libnvrtc.so.13", "libcublasLt.so.13")
    (cuda / "lib64").symlink_to("targets/x86_64-linux/lib")
    (tmp_path / "usr/local/cuda").symlink_to("cuda-13.0")
    library_path = f"/usr/local/nvidia/lib:{tmp_path}/usr/local/cuda/lib64"
    out = run(loader=[system], LD_LIBRARY_PATH=library_path, NVIDIA_VISIBLE_DEVICES="all").stdout
    assert f"cuDNN       {system}/libcudnn.so.9.28.0, version 9.28.0" in out
    assert f"loader: {system}/libcudnn.so.9: found" in out
    assert f"cuBLASLt    {tmp_path}/usr/local/cuda/lib64/libcublasLt.so.13" in out
    assert f"NVRTC       {tmp_path}/usr/local/cuda/lib64/libnvrtc.so.13" in out


@pytest.mark.parametrize("where", ["nvidia/cudnn/lib", "torch/lib"])
def test_the_pytorch_image(build, tmp_path, where):  # noqa: F811
    """``pytorch/pytorch:*-runtime``: a conda Python with PyTorch's wheels, or its own builds."""
    site = tmp_path / "opt/conda/lib/python3.11/site-packages"
    there = build(site / where)
    stub(site / "nvidia/cu13/lib", "libnvrtc.so.13", "libcublasLt.so.13")
    out = run([site], LD_LIBRARY_PATH="/usr/local/nvidia/lib:/usr/local/nvidia/lib64").stdout
    assert f"cuDNN       {there}/libcudnn.so.9, version 9.28.0" in out
    assert f"cuBLASLt    {site}/nvidia/cu13/lib/libcublasLt.so.13" in out
