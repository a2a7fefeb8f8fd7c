"""Where the vendors' libraries may be, and what is there. Nothing is loaded.

Each ``*_candidates`` function lists every place in the order in which it is searched, with what was
found in it; the first that is ``FOUND`` is the one to load. The lists are also what an error says
when a library can't be used.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from symdnn.config import config

FOUND = "found"
ABSENT = "not there"
LOADED = "loaded in this process"

#: The versions of CUDA whose libraries symdnn can use, the newest first.
CUDA_MAJORS = (13, 12)
CUDNN = ("libcudnn.so.9",)
CUDA_DRIVER = ("libcuda.so.1",)
NVRTC = tuple(f"libnvrtc.so.{n}" for n in CUDA_MAJORS)
CUBLASLT = tuple(f"libcublasLt.so.{n}" for n in CUDA_MAJORS)
ONEDNN = ("libdnnl.so.3",)
NCCL = ("libnccl.so.2",)
# Folders of NVIDIA's wheels, of CUDA 13 and before.
_WHEELS: dict[tuple[str, ...], tuple[str, ...]] = {
    NVRTC: ("cu13", "cuda_nvrtc"),
    CUBLASLT: ("cu13", "cublas"),
    NCCL: ("nccl",),
}

_LOADER_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib")
# libcudnn.so.9, libcudnn_graph.so.9, libcudnn_ops.so.9.28.0: cuDNN itself and its parts.
_CUDNN_FILE = re.compile(r"libcudnn(_\w+)?\.so\.9\b")

Places = Iterator[tuple[str, Path]]  # who named the folder, and the folder


@dataclass(frozen=True)
class Candidate:
    """A place that was looked at: who named it, the file, and what is there."""

    source: str
    path: str
    state: str

    @property
    def found(self) -> bool:
        """Whether a library that can be read is there."""
        return self.state == FOUND


def first_found(candidates: Iterable[Candidate]) -> Candidate | None:
    """The candidate to load: the first whose file is there and can be read."""
    return next((c for c in candidates if c.found), None)


def file_state(path: Path) -> str:
    """What is at ``path``: ``FOUND``, ``ABSENT``, or what is wrong with it."""
    try:
        if path.is_symlink() and not path.exists():
            return f"a link to {path.readlink()}, which is not there"
        if not path.exists():
            return ABSENT
    except PermissionError:
        return "in a folder that may not be entered"
    if path.is_dir():
        return "a folder, not a library"
    if not os.access(path, os.R_OK):
        return "there, but may not be read"
    if os.statvfs(path).f_flag & os.ST_NOEXEC:
        return "there, but may not be executed: its file system is mounted noexec"
    return FOUND


def gpu_seems_there() -> bool:
    """Whether NVIDIA's kernel driver, or that of Windows below WSL, shows itself."""
    return any(os.path.exists(sign) for sign in _SIGNS)


def container_asks_for_gpus(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is a container of an image that asks for GPUs, as NVIDIA's images do."""
    return environment.get("NVIDIA_VISIBLE_DEVICES", "") not in ("", "void", "none")


_SIGNS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")


# --- one function for each library ----------------------------------------------------------------


def cudnn_candidates(
    environment: Mapping[str, str] = os.environ, wheel_folders: Iterable[Path] = ()
) -> list[Candidate]:
    """Places of cuDNN 9: mapped already, flags, ``CUDNN_PATH``, wheels, PyTorch's, this Python's,
    CUDA, paths, loader.

    ``wheel_folders`` are further folders of wheels, which cuda-pathfinder knows.
    """
    wheels = list(_wheel_places("cudnn"))
    known = {folder.resolve() for _, folder in wheels}
    places = [
        *_root_places("CUDNN_PATH", environment.get("CUDNN_PATH", "")),
        *_own_place("CUDNN_PATH", environment.get("CUDNN_PATH", "")),
        *wheels,
        *(("cuda-pathfinder", f) for f in wheel_folders if f.resolve() not in known),
        *_torch_places(),
        *_environment_places(),
        *_cuda_places(environment),
        *_path_places(environment, "LD_LIBRARY_PATH", "LIBRARY_PATH"),
    ]
    return [
        *mapped_cudnn(),
        *cudnn_flag_candidates(),
        *_in_places(CUDNN, places),
        *_by_loader(CUDNN),
    ]


def cudnn_flag_candidates() -> list[Candidate]:
    """Places of cuDNN 9 that flags name: a folder, or the library itself."""
    named = [
        candidate
        for flag in ("library_path", "bin_path")
        for candidate in _file_or_folder(f"flag dnn.{flag}", config.get(f"dnn.{flag}"), CUDNN)
    ]
    return named + _in_places(CUDNN, _root_places("flag dnn.base_path", config.dnn.base_path))


def mapped_cudnn() -> list[Candidate]:
    """cuDNN 9 in this process: a candidate for each folder that any part of it came from."""
    files = [Path(path) for path in mapped_files() if _CUDNN_FILE.match(Path(path).name)]
    whole = {f.parent: f for f in files if f.name.startswith(CUDNN)}
    places = {f.parent: whole.get(f.parent, f.parent / CUDNN[0]) for f in files}
    return [Candidate(LOADED, str(file), _mapped_state(file)) for file in places.values()]


def cuda_library_candidates(
    names: tuple[str, ...],
    environment: Mapping[str, str] = os.environ,
    majors: Sequence[int] = CUDA_MAJORS,
) -> list[Candidate]:
    """Places of a library with CUDA: ``NVRTC``, ``CUBLASLT``, ``NCCL``; only ``majors`` are used.

    A library of another version is listed with that as its state.
    """
    places = [
        *_wheel_places(*_WHEELS[names]),
        *_environment_places(),
        *_cuda_places(environment),
        *_path_places(environment, "LD_LIBRARY_PATH", "LIBRARY_PATH"),
    ]
    every = [*_mapped(names), *_in_places(names, places), *_by_loader(names)]
    return [_of_majors(c, majors) for c in every]


def _of_majors(candidate: Candidate, majors: Sequence[int]) -> Candidate:
    number = re.search(r"\.so\.(\d+)", Path(candidate.path).name)
    if not candidate.found or not number or int(number[1]) in majors:
        return candidate
    wanted = " or ".join(map(str, majors))
    return replace(candidate, state=f"there, of CUDA {number[1]}, and CUDA {wanted} is wanted")


def cuda_driver_candidates(environment: Mapping[str, str] = os.environ) -> list[Candidate]:
    """Places of the driver's library, which comes with the driver and never with a wheel."""
    places = [*_path_places(environment, "LD_LIBRARY_PATH"), ("WSL", Path("/usr/lib/wsl/lib"))]
    return [*_mapped(CUDA_DRIVER), *_in_places(CUDA_DRIVER, places), *_by_loader(CUDA_DRIVER)]


def onednn_candidates(environment: Mapping[str, str] = os.environ) -> list[Candidate]:
    """Places of oneDNN 3: flag, this Python's environment (wheels), conda, paths, loader."""
    flag = _file_or_folder("flag onednn.library_path", config.onednn.library_path, ONEDNN)
    places = [
        *_environment_places(),
        *_root_places("CONDA_PREFIX", environment.get("CONDA_PREFIX", ""), "lib"),
        *_path_places(environment, "LD_LIBRARY_PATH"),
    ]
    return [*flag, *_in_places(ONEDNN, places), *_by_loader(ONEDNN)]


# --- places ---------------------------------------------------------------------------------------


def _cuda_places(environment: Mapping[str, str]) -> Places:
    yield from _root_places("flag cuda.root", config.cuda.root)
    for name in ("CUDA_ROOT", "CUDA_HOME", "CUDA_PATH"):
        yield from _root_places(name, environment.get(name, ""))


def _root_places(source: str, root: str, *folders: str) -> Places:
    """The library folders of an installation under ``root``."""
    if root:
        for folder in folders or ("lib64", "lib", "targets/x86_64-linux/lib"):
            yield source, Path(os.path.expanduser(root)) / folder


def _own_place(source: str, root: str) -> Places:
    """The folder itself, where a library is in it and not in one below."""
    if root and (Path(os.path.expanduser(root)) / CUDNN[0]).exists():
        yield source, Path(os.path.expanduser(root))


def _wheel_places(*packages: str) -> Places:
    """The ``nvidia/*/lib`` folders that NVIDIA's wheels share."""
    for package in packages:
        for index, root in enumerate(_wheel_roots()):
            folder = Path(root) / "nvidia" / package / "lib"
            if index == 0 or folder.is_dir():  # name one place where a wheel would put it
                yield "Python wheel", folder


def _torch_places() -> Places:
    """PyTorch's own folder, where its builds without NVIDIA's wheels put cuDNN."""
    for root in _wheel_roots():
        folder = Path(root) / "torch" / "lib"
        if (folder / CUDNN[0]).exists():
            yield "PyTorch", folder


def _environment_places() -> Places:
    """The libraries of this Python's environment: conda's, and wheels that put theirs there."""
    yield "Python environment", Path(sys.prefix) / "lib"


def _wheel_roots() -> list[str]:
    """Where Python packages are, this environment's own first."""
    own = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return list(dict.fromkeys([*own, *sys.path]))


def _path_places(environment: Mapping[str, str], *variables: str) -> Places:
    for variable in variables:
        for folder in environment.get(variable, "").split(os.pathsep):
            if folder:
                yield variable, Path(folder)


# --- candidates -----------------------------------------------------------------------------------


def _in_places(names: tuple[str, ...], places: Iterable[tuple[str, Path]]) -> list[Candidate]:
    paths = [(source, folder / name) for source, folder in places for name in names]
    return [Candidate(source, str(path), file_state(path)) for source, path in paths]


def _file_or_folder(source: str, value: str, names: tuple[str, ...]) -> list[Candidate]:
    if not value:
        return []
    path = Path(os.path.expanduser(value))
    if path.is_dir() or ".so" not in path.name:
        return _in_places(names, [(source, path)])
    return [Candidate(source, str(path), file_state(path))]


def _mapped(names: tuple[str, ...]) -> list[Candidate]:
    """Libraries that this process has loaded already: these are used, whatever the order."""
    mapped = [p for p in mapped_files() if Path(p).name.startswith(names)]
    return [Candidate(LOADED, path, FOUND) for path in mapped]


def _mapped_state(file: Path) -> str:
    gone = file.name.endswith("(deleted)")
    return "loaded, and its file was replaced since: restart the process" if gone else FOUND


def mapped_files() -> list[str]:
    """The files that this process has mapped; the kernel adds ``(deleted)`` to those gone since."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return []
    return list(dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "/" in line))


def _by_loader(names: tuple[str, ...]) -> list[Candidate]:
    """What the dynamic loader finds: by its cache, else in the folders that it always searches."""
    known = _loader_cache()
    found = [Candidate("loader", known[n], file_state(Path(known[n]))) for n in names if n in known]
    if found:
        return found
    in_folders = _in_places(names, (("loader", Path(folder)) for folder in _LOADER_FOLDERS))
    there = [c for c in in_folders if c.state != ABSENT]
    return there or [Candidate("loader", name, ABSENT) for name in names]


def _loader_cache() -> dict[str, str]:
    """File name to path, of the libraries that ``ldconfig`` knows; the first of a name counts."""
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"):
        try:
            done = subprocess.run([program, "-p"], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            continue
        known: dict[str, str] = {}
        for line in done.stdout.splitlines():
            name, arrow, path = line.strip().partition(" => ")
            if arrow:
                known.setdefault(name.split()[0], path)
        return known
    return {}
