"""When cuDNN's graph API can be used, and the reasons when it can't."""

import sys
from types import SimpleNamespace

import pytest

from symdnn import detect
from symdnn.errors import CudnnError, CudnnNotFound
from symdnn.gpu.binding import cudnn_library, frontend
from tests.gpu.with_cudnn import real_cudnn  # noqa: F401

OURS = "/opt/one/lib"
THEIRS = "/opt/two/lib"


def a_frontend(number=92800, lacking=()):
    """A module as the package's own looks, without its functions."""
    graph = type("graph", (), {n: None for n in frontend._METHODS if n not in lacking})
    names = {n: None for n in frontend._NAMES if n not in lacking}
    compiled = SimpleNamespace(backend_graph=graph, backend_version=lambda: number, **names)
    return SimpleNamespace(_pybind_module=compiled, __version__="1.32.0")


@pytest.fixture
def process(monkeypatch):
    """A process that has loaded cuDNN 9.28 from one folder, asked for the first time."""
    whole = f"{OURS}/libcudnn.so.9"
    library = cudnn_library.CudnnLibrary(whole, "flag", (9, 28, 0), None, (), {"a": whole}, {})
    maps = SimpleNamespace(files=[whole, f"{OURS}/libcudnn_graph.so.9", "/lib/libc.so.6"])
    monkeypatch.setattr(cudnn_library, "library", lambda: library)
    monkeypatch.setattr(detect, "mapped_files", lambda: maps.files)
    monkeypatch.setattr(frontend, "_problem", None)
    monkeypatch.setitem(sys.modules, "cudnn", a_frontend())
    return maps


@pytest.mark.usefixtures("process")
def test_it_is_on():
    assert frontend.unavailable() == ""
    assert frontend.version() == "1.32.0"
    assert frontend.graph_class() is frontend.compiled().backend_graph


def test_a_second_cudnn_in_the_process(process):
    process.files += [f"{THEIRS}/libcudnn.so.9"]
    why = frontend.unavailable()
    assert OURS in why
    assert THEIRS in why
    with pytest.raises(CudnnError, match="graph API is off.*/opt/two/lib"):
        frontend.compiled()


def test_the_answer_is_kept(process):
    assert frontend.unavailable() == ""
    process.files += [f"{THEIRS}/libcudnn.so.9"]
    assert frontend.unavailable() == ""


@pytest.mark.usefixtures("process")
def test_the_package_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "cudnn", None)  # an import that fails
    assert frontend.unavailable().endswith("is not installed: pip install nvidia-cudnn-frontend")
    assert frontend.version() == ""


@pytest.mark.usefixtures("process")
def test_the_package_fails(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "cudnn")
    (tmp_path / "cudnn.py").write_text("import os\nraise OSError(os.environ['LD_LIBRARY_PATH'])")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", THEIRS)
    # It was led to our library while it was imported, and to nothing else afterwards.
    assert frontend.unavailable().endswith(f"can't be imported: OSError: {OURS}:{THEIRS}")
    assert frontend.os.environ["LD_LIBRARY_PATH"] == THEIRS


@pytest.mark.usefixtures("process")
def test_the_path_is_unset_again(monkeypatch):
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert frontend.unavailable() == ""
    assert "LD_LIBRARY_PATH" not in frontend.os.environ


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("lacking", ["create_execution_plan", "knob_type"])
def test_an_old_package(lacking, monkeypatch):
    monkeypatch.setitem(sys.modules, "cudnn", a_frontend(lacking=(lacking,)))
    assert frontend.unavailable().startswith(f"nvidia-cudnn-frontend 1.32.0 lacks {lacking};")


@pytest.mark.usefixtures("process")
def test_a_package_with_another_cudnn(monkeypatch):
    monkeypatch.setitem(sys.modules, "cudnn", a_frontend(91900))
    assert frontend.unavailable() == "nvidia-cudnn-frontend uses cuDNN 9.19.0, symdnn 9.28.0"


@pytest.mark.usefixtures("process")
def test_a_package_without_a_cudnn(monkeypatch):
    def fail():
        raise RuntimeError("Unable to find symbol cudnnGetVersion")

    broken = a_frontend()
    broken._pybind_module.backend_version = fail
    monkeypatch.setitem(sys.modules, "cudnn", broken)
    assert "does not reach cuDNN: Unable to find symbol" in frontend.unavailable()


def test_without_cudnn(monkeypatch):
    def refuse():
        raise CudnnNotFound("cuDNN 9 was not found. Tried in this order:\n  a: b: c")

    monkeypatch.setattr(frontend, "_problem", None)
    monkeypatch.setattr(cudnn_library, "library", refuse)
    assert frontend.unavailable().startswith("no cuDNN: cuDNN 9 was not found.")
    assert frontend._problem is None  # another flag may help


def test_the_real_one(real_cudnn):  # noqa: F811
    pytest.importorskip("cudnn", reason="nvidia-cudnn-frontend is not installed")
    assert frontend.unavailable() == ""
    major, minor, patch = real_cudnn.version
    assert frontend.compiled().backend_version() == major * 10000 + minor * 100 + patch
