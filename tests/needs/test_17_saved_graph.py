"""A graph that survives saving: functions and parameters, with a GPU or without.

Save graph and parameters on a GPU, load on a computer without CUDA, outputs agree to 1e-5; the file
is not a pickle, has a version, and loads after an upgrade.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import zipfile

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode, nn
from symdnn.saving import container, functions
from tests.seeded import new_rng

#: A computer without CUDA: nothing of it can be imported or loaded.
WITHOUT_CUDA = """
    import ctypes, sys

    class Refuses:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("cuda", "pycuda", "cudnn", "nvidia"):
                raise ModuleNotFoundError(name)

    sys.meta_path.insert(0, Refuses())
    real = ctypes.CDLL.__init__

    def loads(self, name, *args, **kwargs):
        if name and any(w in str(name) for w in ("libcuda", "libcudnn", "libnv")):
            raise OSError(f"{name}: not here")
        real(self, name, *args, **kwargs)

    ctypes.CDLL.__init__ = loads
    import numpy as np, symdnn
    f = symdnn.load(sys.argv[1])
    assert f.stages.target.kind == "cpu"
    x = np.load(sys.argv[2])
    np.savez(sys.argv[3], y=f(x), **{v.name: v.get_value() for v in f.get_shared()})
"""


def network():
    """A convolutional network in training: outputs, and running statistics that it updates."""
    x = T.tensor("float32", ("batch", 3, 12, 12), name="x")
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(8 * 36, 5),
    )  # fmt: skip
    return x, T.nnet.softmax(net(x))


def loaded_elsewhere(path, x, folder):
    """What the file's function gives in a new process on a computer without CUDA."""
    np.save(folder / "x.npy", x)
    code = textwrap.dedent(WITHOUT_CUDA)
    arguments = [str(path), str(folder / "x.npy"), str(folder / "y.npz")]
    environment = {k: v for k, v in os.environ.items() if k != "SYMDNN_FLAGS"}
    command = [sys.executable, "-c", code, *arguments]
    subprocess.run(command, check=True, timeout=300, env=environment)
    return np.load(folder / "y.npz")


@pytest.mark.cpu
def test_compiled_for_a_gpu_and_loaded_without_cuda(tmp_path):
    x, y = network()
    f = symdnn.function([x], y, mode=Mode(target="cuda:sm_90"))
    assert any(type(n.op).__name__.startswith("GpuDnn") for n in f.fgraph.nodes)
    on_cpu = symdnn.function([x], y, mode=Mode(target="cpu"))
    value = new_rng().standard_normal((4, 3, 12, 12)).astype("float32")
    path = tmp_path / "network.symdnn"
    symdnn.save(f, path)
    found = loaded_elsewhere(path, value, tmp_path)
    np.testing.assert_array_equal(found["y"], on_cpu(value))
    for v in f.get_shared():  # which the call on the CPU has updated, as that in the other process
        np.testing.assert_array_equal(found[v.name], v.get_value())


@pytest.mark.gpu
def test_saved_on_a_gpu_and_loaded_without_cuda(tmp_path):
    x, y = network()
    f = symdnn.function([x], y, mode=Mode(target="cuda"))
    value = new_rng().standard_normal((4, 3, 12, 12)).astype("float32")
    path = tmp_path / "network.symdnn"
    symdnn.save(f, path)
    found = loaded_elsewhere(path, value, tmp_path)
    np.testing.assert_allclose(found["y"], f(value), rtol=0, atol=1e-5)
    for v in f.get_shared():
        np.testing.assert_allclose(found[v.name], v.get_value(), rtol=0, atol=1e-5)


@pytest.mark.gpu
def test_saved_on_a_cpu_and_loaded_on_a_gpu(tmp_path):
    x, y = network()
    f = symdnn.function([x], y, mode=Mode(target="cpu"))
    symdnn.save(f, tmp_path / "f")
    value = new_rng().standard_normal((4, 3, 12, 12)).astype("float32")
    g = symdnn.load(tmp_path / "f", target="cuda")
    np.testing.assert_allclose(g(value), f(value), rtol=0, atol=1e-5)


def test_it_is_no_pickle_and_has_a_version(tmp_path):
    x, y = network()
    symdnn.save(symdnn.function([x], y), tmp_path / "f")
    with zipfile.ZipFile(tmp_path / "f") as archive:
        assert set(archive.namelist()) == {"graph.json", "values.safetensors"}
        assert json.loads(archive.read("graph.json"))["version"] == functions.VERSION
    code = (
        "import sys, pickle\n"
        "def never(*a, **k): raise AssertionError('unpickled')\n"
        "pickle.loads = pickle.load = pickle.Unpickler = pickle._Unpickler = never\n"
        "import symdnn; symdnn.load(sys.argv[1], target='cpu')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "f")], check=True, timeout=300)


def test_it_loads_after_an_upgrade(tmp_path, monkeypatch):
    """In a later symdnn: of another version, whose ops have fields and versions that are new."""
    from dataclasses import dataclass

    from symdnn.ops.linalg.products import Dot
    from symdnn.saving import ops

    x = T.fmatrix("x")
    w = symdnn.shared(np.float32([[1, 2], [3, 4]]), name="w")
    f = symdnn.function([x], T.dot(x, w))
    contents = functions.contents_of(f)
    contents.document["symdnn"] = "0.0.1"
    (tmp_path / "f").write_bytes(container.pack(contents))

    @dataclass(frozen=True)
    class Later(Dot):
        saved_version = 2
        conjugate: bool = False

        @classmethod
        def upgraded(cls, version, fields):
            assert version == 1
            return {**fields, "conjugate": False}

    known = {**ops._own(), "Dot": Later}
    monkeypatch.setattr(ops, "_own", lambda: known)
    loaded = symdnn.load(tmp_path / "f", mode=Mode(optimizer=None))
    assert any(isinstance(n.op, Later) for n in loaded.fgraph.nodes)
    value = np.float32([[1, 1], [2, 0]])
    np.testing.assert_array_equal(loaded(value), f(value))
