import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from symdnn import detect
from symdnn.config import config
from symdnn.detect import ABSENT, FOUND, Candidate


@pytest.fixture(autouse=True)
def no_loader_cache(monkeypatch):
    """This machine's own libraries play no part."""
    monkeypatch.setattr(detect, "_loader_cache", dict)
    monkeypatch.setattr(detect, "_LOADER_FOLDERS", ())
    monkeypatch.setattr(detect, "mapped_cudnn", list)  # another test may have loaded it
    wheels = lambda: ["/wheels", *(p for p in sys.path if "site-packages" not in p)]  # noqa: E731
    monkeypatch.setattr(detect, "_wheel_roots", wheels)


def library(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"\x7fELF")
    return folder / name


def sources(candidates: list[Candidate]) -> list[str]:
    return list(dict.fromkeys(c.source for c in candidates))


def test_cudnn_is_searched_in_the_documented_order(tmp_path):
    environment = {
        "CUDNN_PATH": "/a",
        "CUDA_ROOT": "/b",
        "LD_LIBRARY_PATH": "/c:/d",
        "LIBRARY_PATH": "/e",
    }
    changes = {"dnn.library_path": "/l", "dnn.bin_path": "/m", "dnn.base_path": "/n"}
    with config.change_flags(changes):
        candidates = detect.cudnn_candidates(environment)
    assert sources(candidates) == [
        "flag dnn.library_path",
        "flag dnn.bin_path",
        "flag dnn.base_path",
        "CUDNN_PATH",
        "Python wheel",
        "Python environment",
        "CUDA_ROOT",
        "LD_LIBRARY_PATH",
        "LIBRARY_PATH",
        "loader",
    ]
    paths = [c.path for c in candidates]
    assert "/l/libcudnn.so.9" in paths
    assert "/a/lib64/libcudnn.so.9" in paths
    assert "/d/libcudnn.so.9" in paths
    assert all(c.state == ABSENT for c in candidates if c.path.startswith("/l"))


def test_the_first_that_is_there_counts(tmp_path):
    first = library(tmp_path / "one", "libcudnn.so.9")
    library(tmp_path / "two", "libcudnn.so.9")
    environment = {"LD_LIBRARY_PATH": f"{tmp_path}/none:{tmp_path}/one:{tmp_path}/two"}
    found = detect.first_found(detect.cudnn_candidates(environment))
    assert found == Candidate("LD_LIBRARY_PATH", str(first), FOUND)


def test_flag_comes_before_the_environment(tmp_path):
    library(tmp_path / "env/lib", "libcudnn.so.9")
    mine = library(tmp_path / "mine", "libcudnn.so.9")
    with config.change_flags({"dnn.library_path": str(tmp_path / "mine")}):
        found = detect.first_found(detect.cudnn_candidates({"CUDNN_PATH": str(tmp_path / "env")}))
    assert found is not None
    assert found.path == str(mine)


def test_wheels_are_found_on_the_path(tmp_path, monkeypatch):
    there = library(tmp_path / "nvidia/cudnn/lib", "libcudnn.so.9")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = detect.first_found(detect.cudnn_candidates({}))
    assert found == Candidate("Python wheel", str(there), FOUND)


def test_cuda_libraries_in_wheels_and_roots(tmp_path, monkeypatch):
    wheel = library(tmp_path / "nvidia/cu13/lib", "libnvrtc.so.13")
    root = library(tmp_path / "cuda/lib64", "libcublasLt.so.12")
    monkeypatch.setattr(detect, "_mapped", lambda names: [])  # other tests may have loaded NVRTC
    monkeypatch.syspath_prepend(str(tmp_path))
    nvrtc = detect.first_found(detect.cuda_library_candidates(detect.NVRTC, {}))
    environment = {"CUDA_HOME": str(tmp_path / "cuda")}
    lt = detect.first_found(detect.cuda_library_candidates(detect.CUBLASLT, environment))
    assert nvrtc is not None
    assert nvrtc.path == str(wheel)
    assert lt == Candidate("CUDA_HOME", str(root), FOUND)


def test_a_library_of_another_cuda_is_passed_over(tmp_path, monkeypatch):
    folder = tmp_path / "both"
    library(folder, "libcublasLt.so.13")
    older = library(folder, "libcublasLt.so.12")
    environment = {"LD_LIBRARY_PATH": str(folder)}
    tried = detect.cuda_library_candidates(detect.CUBLASLT, environment, majors=[12])
    assert detect.first_found(tried) == Candidate("LD_LIBRARY_PATH", str(older), FOUND)
    passed = next(c for c in tried if c.path == str(folder / "libcublasLt.so.13"))
    assert passed.state == "there, of CUDA 13, and CUDA 12 is wanted"


def test_cuda_driver_and_loader(tmp_path, monkeypatch):
    there = library(tmp_path, "libcuda.so.1")
    monkeypatch.setattr(detect, "_loader_cache", lambda: {"libcuda.so.1": str(there)})
    found = detect.first_found(detect.cuda_driver_candidates({}))
    assert found == Candidate("loader", str(there), FOUND)


def test_loader_folders_are_searched_without_a_cache(tmp_path, monkeypatch):
    there = library(tmp_path, "libcuda.so.1")
    monkeypatch.setattr(detect, "_LOADER_FOLDERS", ("/gone", str(tmp_path)))
    found = detect.first_found(detect.cuda_driver_candidates({}))
    assert found == Candidate("loader", str(there), FOUND)


def test_a_flag_may_name_the_file_of_cudnn(tmp_path):
    there = library(tmp_path, "libcudnn.so.9.28.0")
    with config.change_flags({"dnn.library_path": str(there)}):
        first = detect.cudnn_candidates({})[0]
    assert first == Candidate("flag dnn.library_path", str(there), FOUND)


def test_cuda_pathfinder_comes_after_our_own_look(tmp_path):
    there = library(tmp_path, "libcudnn.so.9")
    candidates = detect.cudnn_candidates({"CUDA_ROOT": "/c"}, [tmp_path])
    order = ["Python wheel", "cuda-pathfinder", "Python environment", "CUDA_ROOT"]
    assert sources(candidates)[:4] == order
    assert detect.first_found(candidates) == Candidate("cuda-pathfinder", str(there), FOUND)


@pytest.mark.parametrize(
    ("mapped", "path", "usable"),
    [
        (["/a/libcudnn.so.9", "/a/libcudnn_ops.so.9"], "/a/libcudnn.so.9", True),
        (["/a/libcudnn_graph.so.9.14.0"], "/a/libcudnn.so.9", True),
        (["/a/libcudnn.so.9.1.0 (deleted)"], "/a/libcudnn.so.9.1.0 (deleted)", False),
    ],
)
def test_cudnn_in_this_process_is_known_by_any_part(monkeypatch, mapped, path, usable):
    monkeypatch.undo()
    monkeypatch.setattr(detect, "mapped_files", lambda: ["/usr/lib/libc.so.6", *mapped])
    (candidate,) = detect.mapped_cudnn()
    assert (candidate.path, candidate.found) == (path, usable)


def test_other_libraries_are_not_cudnn(monkeypatch):
    monkeypatch.undo()
    others = [
        "/a/libcudnn.so.8",
        "/a/libcudnn.so.90",
        "/a/libcudnn_frontend.so",
        "/a/xlibcudnn.so.9",
    ]
    monkeypatch.setattr(detect, "mapped_files", lambda: others)
    assert detect.mapped_cudnn() == []


def test_onednn_flag_may_be_a_file_or_a_folder(tmp_path):
    there = library(tmp_path, "libdnnl.so.3")
    for value in (there, tmp_path):
        with config.change_flags({"onednn.library_path": str(value)}):
            first = detect.onednn_candidates({})[0]
        assert first == Candidate("flag onednn.library_path", str(there), FOUND)
    with config.change_flags({"onednn.library_path": str(tmp_path / "gone.so")}):
        assert detect.onednn_candidates({})[0].state == ABSENT


def test_onednn_in_a_conda_environment(tmp_path):
    there = library(tmp_path / "lib", "libdnnl.so.3")
    candidates = detect.onednn_candidates({"CONDA_PREFIX": str(tmp_path)})
    assert Candidate("CONDA_PREFIX", str(there), FOUND) in candidates


def test_what_is_wrong_is_named(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    good = library(tmp_path, "good")
    assert detect.file_state(tmp_path / "gone") == ABSENT
    assert detect.file_state(tmp_path / "folder") == "a folder, not a library"
    assert detect.file_state(tmp_path / "link") == "a link to nowhere, which is not there"
    assert detect.file_state(good) == FOUND
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may read everything
    assert detect.file_state(good) == "there, but may not be read"


def test_a_file_system_without_execution(tmp_path, monkeypatch):
    good = library(tmp_path, "good")
    real = os.statvfs(good)
    mounted = SimpleNamespace(f_flag=real.f_flag | os.ST_NOEXEC)
    monkeypatch.setattr(os, "statvfs", lambda _: mounted)
    assert "mounted noexec" in detect.file_state(good)


def test_a_folder_that_may_not_be_entered(monkeypatch):
    def refuse(self: Path) -> bool:
        raise PermissionError

    monkeypatch.setattr(Path, "is_symlink", refuse)
    assert detect.file_state(Path("/x")) == "in a folder that may not be entered"


def test_libraries_of_this_process_come_first():
    mapped = [c for c in detect._mapped(("libc.so", "libc-")) if c.found]
    if Path("/proc/self/maps").exists():
        assert all(c.source == "loaded in this process" for c in mapped)
        assert all(Path(c.path).name.startswith("libc") for c in mapped)
    assert detect._mapped(("no-such-library",)) == []


def test_loader_cache_of_this_machine(monkeypatch):
    monkeypatch.undo()
    known = detect._loader_cache()
    assert all(Path(path).is_absolute() for path in known.values())


def test_cudnn_path_may_be_the_librarys_own_folder(tmp_path):
    file = library(tmp_path / "anywhere", "libcudnn.so.9")
    found = detect.first_found(detect.cudnn_candidates({"CUDNN_PATH": str(tmp_path / "anywhere")}))
    assert found is not None
    assert (found.source, found.path) == ("CUDNN_PATH", str(file))
