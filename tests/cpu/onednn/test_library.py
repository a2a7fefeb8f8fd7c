"""oneDNN's library: which one is taken, and what is said where none serves."""

from types import SimpleNamespace

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import doctor
from symdnn.cpu.onednn import library as libdnnl
from symdnn.cpu.threads import threads
from symdnn.detect import ABSENT, FOUND, Candidate
from symdnn.graph.target import Target
from symdnn.libraries.onednn import rules as lower_onednn

needs_onednn = pytest.mark.skipif(bool(libdnnl.problem()), reason="oneDNN is not installed")


@pytest.fixture
def forget():
    """Look for the library anew, and once more afterwards."""
    libdnnl._state.cache_clear()
    yield
    libdnnl._state.cache_clear()


class FakeLibrary:
    """A libdnnl that says which version it is, and what its CPU runtime is."""

    def __init__(self, version=(3, 2, 0), runtime=2):
        self.dnnl_version = lambda: SimpleNamespace(
            contents=SimpleNamespace(
                major=version[0], minor=version[1], patch=version[2], cpu_runtime=runtime
            )
        )
        self.dnnl_get_effective_cpu_isa = lambda: 0x7


def with_candidates(monkeypatch, **libraries):
    """``onednn_candidates`` are these, by name; each is a library, or what loading it raises."""
    places = [Candidate("test", name, FOUND if lib else ABSENT) for name, lib in libraries.items()]
    monkeypatch.setattr(libdnnl, "onednn_candidates", lambda: places)

    def load(path, *_):
        if isinstance(libraries[path], Exception):
            raise libraries[path]
        return libraries[path]

    monkeypatch.setattr(libdnnl.ctypes, "CDLL", load)


@pytest.mark.parametrize(
    ("library", "why"),
    [
        (FakeLibrary((2, 6, 3)), "it is oneDNN 2.6.3; version 3 is wanted"),
        (FakeLibrary(runtime=512), "its CPU runtime is SYCL; OpenMP is wanted"),
        (FakeLibrary(runtime=4), "its CPU runtime is TBB; OpenMP is wanted"),
        (OSError("file too short"), "file too short"),
        (AttributeError("undefined symbol: dnnl_version"), "undefined symbol: dnnl_version"),
        (OSError("libgomp.so.1: cannot open shared object file"), "apt install libgomp1"),
        (None, "libdnnl.so.3 is not there; pip install onednn-cpu-gomp"),
    ],
)
def test_a_library_that_does_not_serve_is_one_clear_line(forget, monkeypatch, library, why):
    with_candidates(monkeypatch, first=library)
    line, *_ = libdnnl.problem().splitlines()
    assert line.startswith("oneDNN can't be used: ")
    assert why in line
    with pytest.raises(libdnnl.OnednnNotFound, match="can't be used"):
        libdnnl.library()
    assert libdnnl.facts()["notes"] == (libdnnl.problem(),)
    assert "onednn" not in libdnnl.facts()


def test_the_first_that_serves_is_taken(forget, monkeypatch):
    good = FakeLibrary((3, 9, 1))
    with_candidates(monkeypatch, absent=None, old=FakeLibrary((2, 6, 3)), good=good, later=good)
    found = libdnnl.library()
    assert (found.path, found.version, found.isa) == ("good", (3, 9, 1), "AVX2")
    assert libdnnl.facts() | {"threads": 0} == {
        "onednn": (3, 9, 1), "isa": "AVX2", "threads": 0, "notes": (),
    }  # fmt: skip
    states = {c.path: c.state for c in libdnnl.tried()}
    assert states["old"] == "it is oneDNN 2.6.3; version 3 is wanted"
    assert (states["absent"], states["later"]) == (ABSENT, FOUND)


def test_doctor_says_which_onednn_and_why_not(forget, monkeypatch):
    with_candidates(monkeypatch, old=FakeLibrary((2, 6, 3)), good=FakeLibrary())
    library = doctor._onednn()
    assert library.usable
    assert library.path == "good"
    assert library.version.startswith("3.2.0, OpenMP, AVX2, ")
    libdnnl._state.cache_clear()
    with_candidates(monkeypatch, only=OSError("libgomp.so.1: cannot open shared object file"))
    library = doctor._onednn()
    assert not library.usable
    assert "apt install libgomp1" in library.problem
    libdnnl._state.cache_clear()
    with_candidates(monkeypatch, none=None)
    assert doctor._onednn().problem == ""
    assert not doctor._onednn().usable


def test_a_program_runs_without_it_and_says_so_once(forget, monkeypatch, capsys):
    monkeypatch.setattr(lower_onednn, "_notes_printed", set())
    with_candidates(monkeypatch, old=FakeLibrary((2, 6, 3)))
    x, w = T.ftensor4("x"), np.ones((2, 3, 2, 2), "float32")
    for _ in range(2):
        f = symdnn.function([x], T.nnet.conv2d(x, w), mode=symdnn.Mode(target="cpu"))
    np.testing.assert_allclose(f(np.ones((1, 3, 4, 4), "float32")), 12)
    assert f.stages.target == Target("cpu", threads=threads.allowed())
    (line,) = capsys.readouterr().err.splitlines()
    assert "oneDNN can't be used: old: it is oneDNN 2.6.3" in line
    assert "NumPy" in line


def test_nothing_is_said_where_onednn_would_not_serve(forget, monkeypatch, capsys):
    monkeypatch.setattr(lower_onednn, "_notes_printed", set())
    with_candidates(monkeypatch, none=None)
    x = T.fvector("x")
    symdnn.function([x], T.exp(x), mode=symdnn.Mode(target="cpu"))
    y = T.dtensor4("y")
    symdnn.function([y], T.nnet.conv2d(y, np.ones((2, 3, 2, 2))), mode=symdnn.Mode(target="cpu"))
    assert capsys.readouterr().err == ""


@needs_onednn
def test_the_library_says_what_it_is():
    found = libdnnl.library()
    assert found.version[0] == 3
    assert found.runtime == "OpenMP"
    assert str(found).startswith("oneDNN 3.")


@needs_onednn
def test_a_refused_primitive_is_an_error_with_the_status():
    from symdnn.cpu.onednn.objects import ALG, PROP, Layout, primitive

    x = Layout((1, 3, 4, 4), "float32")
    with pytest.raises(libdnnl.OnednnError, match="dnnl_eltwise_forward_primitive_desc_create"):
        primitive("eltwise_forward", PROP["inference"], ALG["max"], x, x, 0.0, 0.0)
