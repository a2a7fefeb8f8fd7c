"""Finding and loading cuDNN: with small libraries built here, each case in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from symdnn import detect
from symdnn.config import config
from symdnn.detect import ABSENT, FOUND, Candidate
from symdnn.gpu.binding import cudnn_library
from tests.gpu.small_cudnn import PARTS
from tests.gpu.with_cudnn import real_cudnn  # noqa: F401

# A process without cuDNN that forks for each case. Nothing is found but what the test has put
# somewhere; what the case prints comes back as one line of JSON.
SERVER = """
import contextlib, io, json, os, sys, traceback
from symdnn import detect
from symdnn.config import config
from symdnn.errors import CudnnError
from symdnn.gpu import libcudnn, detect as gpu
from symdnn.gpu.binding import cudnn_library
detect._wheel_roots = detect._environment_places = lambda: []
detect._by_loader = lambda names: []
cudnn_library._pathfinder_folders = lambda: []

def attempt():
    try:
        found = cudnn_library.library()
    except CudnnError as error:
        print(type(error).__name__, error, sep=": ")
    else:
        print(found, *sorted(found.loaded.values()), sep="\\n")

for line in sys.stdin:
    code, environment = json.loads(line)
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    os.environ.update(environment)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            exec(code)
        except BaseException:
            traceback.print_exc(file=out)
    print(json.dumps(out.getvalue()), flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def run():
    """Runs code in a process where cuDNN is not loaded, and gives what it printed."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CUD", "LD_", "LIBRARY"))}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": kept}
    with subprocess.Popen([sys.executable, "-c", SERVER], **pipes) as server:

        def ask(code, **environment):
            print(json.dumps([code, environment]), file=server.stdin, flush=True)
            return json.loads(server.stdout.readline())

        yield ask
        server.stdin.close()


# --- search: nothing is loaded --------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.setattr(detect, "_wheel_roots", list)
    monkeypatch.setattr(detect, "_environment_places", list)
    monkeypatch.setattr(detect, "_by_loader", lambda names: [])
    monkeypatch.setattr(cudnn_library, "cudnn_candidates", detect.cudnn_candidates)
    monkeypatch.setattr(detect, "mapped_cudnn", list)
    monkeypatch.setattr(cudnn_library, "_pathfinder_folders", list)


def files(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"\x7fELF")
    return folder


WHOLE = ("libcudnn.so.9", *(f"libcudnn_{part}.so.9" for part in PARTS))


@pytest.mark.usefixtures("alone")
def test_a_set_that_lacks_parts_is_passed_over(tmp_path):
    files(tmp_path / "a", "libcudnn.so.9", "libcudnn_ops.so.9")
    files(tmp_path / "b", *WHOLE)
    tried = cudnn_library.search({"LD_LIBRARY_PATH": f"{tmp_path}/a:{tmp_path}/b"})
    missing = "libcudnn_graph.so.9, libcudnn_cnn.so.9, libcudnn_adv.so.9"
    assert [c.state for c in tried] == [f"incomplete: {tmp_path}/a lacks {missing}", FOUND]
    assert cudnn_library.listing(tried).splitlines()[1] == (
        f"  LD_LIBRARY_PATH: {tmp_path}/b/libcudnn.so.9: found"
    )


@pytest.mark.usefixtures("alone")
def test_parts_are_looked_for_beside_the_file_that_a_link_names(tmp_path):
    real = files(tmp_path / "real", *WHOLE)
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "libcudnn.so.9").symlink_to(real / "libcudnn.so.9")
    (tried,) = cudnn_library.search({"LIBRARY_PATH": str(linked)})
    assert tried == Candidate("LIBRARY_PATH", str(linked / "libcudnn.so.9"), FOUND)
    assert cudnn_library._folder(linked / "libcudnn.so.9") == real


@pytest.mark.usefixtures("alone")
def test_parts_may_be_links_to_places_of_their_own(tmp_path):
    linked = tmp_path / "linked"
    linked.mkdir()
    for name in WHOLE:
        (linked / name).symlink_to(files(tmp_path / f"store-{name}", name) / name)
    (tried,) = cudnn_library.search({"LIBRARY_PATH": str(linked)})
    assert tried.found


@pytest.mark.usefixtures("alone")
def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    folder = files(tmp_path, *WHOLE)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may read everything
    (tried,) = cudnn_library.search({"LD_LIBRARY_PATH": str(folder)})
    assert tried.state == "there, but may not be read"


@pytest.mark.usefixtures("alone")
def test_cuda_pathfinder_names_the_folder_of_the_headers(tmp_path, monkeypatch):
    files(tmp_path / "lib", *WHOLE)
    monkeypatch.setattr(cudnn_library, "_pathfinder_folders", lambda: [tmp_path / "lib"])
    (tried,) = cudnn_library.search({})
    assert (tried.source, tried.found) == ("cuda-pathfinder", True)


# --- loading, in a new process --------------------------------------------------------------------


def test_all_parts_come_from_one_folder(run, build, tmp_path):
    folder = build(tmp_path / "cudnn/lib", 91900)
    build(tmp_path / "other")
    out = run("attempt()", CUDNN_PATH=str(tmp_path / "cudnn"), LD_LIBRARY_PATH=f"{tmp_path}/other")
    first, *loaded = out.splitlines()
    assert first == f"cuDNN 9.19.0 at {folder}/libcudnn.so.9 (CUDNN_PATH)"
    assert loaded == sorted(str(path) for path in folder.iterdir())


def test_links_are_resolved(run, build, tmp_path):
    real = build(tmp_path / "real")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/libcudnn.so.9").symlink_to(real / "libcudnn.so.9")
    _, *loaded = run("attempt()", LD_LIBRARY_PATH=str(tmp_path / "linked")).splitlines()
    assert {str(Path(path).parent) for path in loaded} == {str(real)}


def test_without_cudnn_every_place_is_named(run, tmp_path):
    files(tmp_path / "broken/lib", *WHOLE)  # no libraries, though they are called so
    code = "attempt(); print(gpu.dnn_present(), gpu.dnn_present.msg); print(gpu.version(False))"
    out = run(code, CUDNN_PATH=f"{tmp_path}/broken", LIBRARY_PATH="/nowhere", CUDA_ROOT="/cuda")
    assert out.startswith("CudnnNotFound: cuDNN 9 was not found. Tried in this order:")
    assert f"CUDNN_PATH: {tmp_path}/broken/lib/libcudnn.so.9: can't be loaded: " in out
    assert f"  CUDA_ROOT: /cuda/lib64/libcudnn.so.9: {ABSENT}" in out
    assert f"  LIBRARY_PATH: /nowhere/libcudnn.so.9: {ABSENT}" in out
    assert "nvidia-cudnn-cu13" in out
    assert "False cuDNN 9 was not found (7 places tried; `symdnn doctor` lists them)" in out
    assert out.endswith("-1\n")


def test_a_part_that_can_t_be_loaded_is_named(run, build, tmp_path):
    folder = build(tmp_path)
    (folder / "libcudnn_ops.so.9").write_bytes(b"no library")
    (folder / "libcudnn_heuristic.so.9").write_bytes(b"no library")
    out = run("attempt()", LD_LIBRARY_PATH=str(folder))
    assert out.startswith(f"CudnnNotFound: cuDNN at {folder}/libcudnn.so.9 can't be loaded whole")
    assert "  libcudnn_ops.so.9: " in out
    assert "heuristic" not in out  # without that one it works


def test_a_library_that_is_loaded_already_is_used(run, build, tmp_path):
    mine, flagged = build(tmp_path / "mine"), build(tmp_path / "flagged")
    code = f"""
import ctypes
ctypes.CDLL("{mine}/libcudnn_ops.so.9")
attempt()
config.dnn.library_path = "{flagged}"
attempt()
"""
    out = run(code, CUDNN_PATH=str(flagged), LD_LIBRARY_PATH=str(flagged))
    assert f"at {mine}/libcudnn.so.9 (loaded in this process)" in out
    # A flag that names another is an error, and names both.
    refused = next(line for line in out.splitlines() if line.startswith("CudnnMixed"))
    assert f"{mine}/libcudnn" in refused
    assert f"{flagged}/libcudnn.so.9" in refused


def test_a_mixed_set_is_refused(run, build, tmp_path):
    one, other = build(tmp_path / "one"), build(tmp_path / "other")
    code = f"""
import ctypes
ctypes.CDLL("{one}/libcudnn.so.9")
ctypes.CDLL("{other}/libcudnn_graph.so.9")
attempt()
"""
    out = run(code)
    assert out.startswith("CudnnMixed: two sets of cuDNN's libraries are in this process")
    assert f"{one}/libcudnn" in out
    assert f"{other}/libcudnn" in out


@pytest.mark.parametrize(
    ("version", "check", "message"),
    [
        (8907, 0, "cuDNN 8.9.7 at {path} (LD_LIBRARY_PATH): symdnn needs cuDNN 9.0.0 or a newer 9"),
        (100000, 0, "cuDNN 10.0.0 at {path} (LD_LIBRARY_PATH): symdnn needs cuDNN 9.0.0"),
        (92800, 1002, "its part graph is of another version"),
    ],
)
def test_another_version_is_refused(run, build, tmp_path, version, check, message):
    build(tmp_path, version, check)
    out = run("attempt()", LD_LIBRARY_PATH=str(tmp_path))
    assert out.startswith("CudnnVersionError: ")
    assert message.format(path=tmp_path / "libcudnn.so.9") in out


def test_a_function_that_is_absent_names_both_versions(run, build, tmp_path):
    build(tmp_path, 90100)
    code = """
print(len(libcudnn.absent()) == len(libcudnn.FUNCTIONS) - 6)
try:
    libcudnn.cudnnCreateTensorDescriptor()
except CudnnError as error:
    print(error)
"""
    out = run(code, LD_LIBRARY_PATH=str(tmp_path))
    assert out.startswith("True\ncuDNN 9.1.0 at ")
    assert "has no cudnnCreateTensorDescriptor. symdnn's table of functions was made from" in out


def test_nothing_is_loaded_before_the_first_call(run, build, tmp_path):
    build(tmp_path)
    code = """
print(detect.mapped_cudnn())
libcudnn.cudnnGetVersion()
print(len(detect.mapped_cudnn()))
"""
    assert run(code, LD_LIBRARY_PATH=str(tmp_path)) == "[]\n1\n"


# --- the CUDA that the driver serves --------------------------------------------------------------

DRIVER = """
from symdnn.gpu.binding import libcuda
libcuda.version = lambda: {version}
attempt()
"""


@pytest.mark.parametrize(
    ("version", "taken"),
    [((13, 0), "thirteen"), ((13, 2), "thirteen"), ((12, 4), "twelve"), (None, "thirteen")],
)
def test_a_cudnn_that_the_driver_does_not_serve_is_passed_over(
    run, build, tmp_path, version, taken
):
    folders = build(tmp_path / "thirteen"), build(tmp_path / "twelve", cuda=12090)
    path = f"{folders[0]}:{folders[1]}"
    out = run(DRIVER.format(version=version), LD_LIBRARY_PATH=path)
    assert out.splitlines()[0].endswith(f"{tmp_path / taken}/libcudnn.so.9 (LD_LIBRARY_PATH)")


def test_the_error_names_the_wheel_that_the_driver_serves(run, build, tmp_path):
    build(tmp_path)
    out = run(DRIVER.format(version=(12, 4)), LD_LIBRARY_PATH=str(tmp_path))
    assert "libcudnn.so.9: built for CUDA 13, and the driver serves CUDA 12\n" in out
    assert "pip install nvidia-cudnn-cu12" in out


# --- the real one ---------------------------------------------------------------------------------


def test_the_real_library_comes_from_one_folder(real_cudnn):  # noqa: F811
    folders = {str(Path(path).parent) for path in real_cudnn.loaded.values()}
    assert len(folders) == 1
    assert {str(Path(c.path).parent) for c in detect.mapped_cudnn()} == folders
    assert real_cudnn.version >= cudnn_library.MINIMUM
    assert "libcudnn_engines_precompiled.so.9" in real_cudnn.loaded
    for why in real_cudnn.not_loaded.values():
        assert "cannot open shared object file" in why  # libcuda, without a driver


def test_the_real_library_stays(real_cudnn, tmp_path):  # noqa: F811
    assert cudnn_library.library() is real_cudnn
    other = files(tmp_path / "other", *WHOLE)
    with (
        config.change_flags({"dnn.library_path": str(other)}),
        pytest.raises(cudnn_library.CudnnMixed, match=str(other)),
    ):
        cudnn_library.library()
    assert cudnn_library.library() is real_cudnn
