"""cuDNN in this process: found, loaded from one folder with all its parts, its version checked.

:func:`symdnn.detect.cudnn_candidates` is the only place that says where it is searched.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from symdnn.config import config
from symdnn.detect import (
    CUDA_MAJORS,
    CUDNN,
    LOADED,
    Candidate,
    cudnn_candidates,
    cudnn_flag_candidates,
    mapped_cudnn,
)
from symdnn.errors import CudnnMixed, CudnnNotFound, CudnnVersionError
from symdnn.gpu.binding import cuda_version
from symdnn.gpu.binding.libcudnn_version import VERSION

MINIMUM = (9, 0, 0)

_REQUIRED_PARTS = ("graph", "ops", "cnn", "adv")
_VERSION_CHECKS = ("Graph", "Ops", "Cnn", "Adv")
_FLAGS = ("dnn.library_path", "dnn.bin_path", "dnn.base_path", "cuda.root")


@dataclass(frozen=True)
class CudnnLibrary:
    """cuDNN as this process uses it. ``cdll`` is ctypes' handle of ``libcudnn.so.9``."""

    path: str
    source: str
    version: tuple[int, int, int]
    cdll: ctypes.CDLL
    tried: tuple[Candidate, ...]
    # By file name of a part: the path it was loaded from, or why it could not be loaded.
    loaded: Mapping[str, str]
    not_loaded: Mapping[str, str]

    def __str__(self) -> str:
        return f"cuDNN {'.'.join(map(str, self.version))} at {self.path} ({self.source})"


_lock = threading.RLock()
_library: CudnnLibrary | None = None
_checked: tuple[str, ...] = ()


def library() -> CudnnLibrary:
    """The cuDNN of this process, found and loaded on the first call.

    Raises :class:`CudnnNotFound` with every place tried, :class:`CudnnMixed` or
    :class:`CudnnVersionError`.
    """
    global _library, _checked
    flags = tuple(config.get(name) for name in _FLAGS)
    with _lock:
        if _library is None:
            _library = _load(search())
        elif flags != _checked:
            _refuse_another()
        _checked = flags
    return _library


def search(environment: Mapping[str, str] = os.environ) -> list[Candidate]:
    """Every place in order, with its problem if it has one; the first one found is to be loaded."""
    candidates = cudnn_candidates(environment, _pathfinder_folders())
    whole = [_whole(c) if c.found and c.source != LOADED else c for c in candidates]
    return _served_first(whole)


def listing(tried: list[Candidate] | tuple[Candidate, ...]) -> str:
    """The places tried and their problems, one per line."""
    return "\n".join(f"  {c.source}: {c.path}: {c.state}" for c in tried)


def table_version() -> str:
    """The version of the headers that the table of functions was made from."""
    return ".".join(map(str, VERSION))


# --- finding --------------------------------------------------------------------------------------


def _whole(candidate: Candidate) -> Candidate:
    """The candidate, or with the state "incomplete" if cuDNN's parts are not beside it."""
    path = Path(candidate.path)
    missing = [n for n in map(_part, _REQUIRED_PARTS) if not (_folder(path) / n).exists()]
    if not missing:
        return candidate
    where = f"{_folder(path)} lacks {', '.join(missing)}"
    return replace(candidate, state=f"incomplete: {where}")


def _served_first(candidates: list[Candidate]) -> list[Candidate]:
    """The candidates; those before the first that the driver serves say why they are not it."""
    checked, majors = list(candidates), cuda_version.served()
    if CUDA_MAJORS[0] in majors:
        return checked
    for index, candidate in enumerate(checked):
        if not candidate.found:
            continue
        built = cuda_version.built_for(candidate.path)
        if built is None or built in majors or candidate.source == LOADED:
            break
        state = f"built for CUDA {built}, and the driver serves CUDA {max(majors)}"
        checked[index] = replace(candidate, state=state)
    return checked


def _folder(path: Path) -> Path:
    """The folder of the parts: that of the file itself, or of the link to it."""
    real = path.resolve().parent
    return real if (real / _part("graph")).exists() else path.absolute().parent


def _part(name: str) -> str:
    return f"libcudnn_{name}.so.9"


def _pathfinder_folders() -> list[Path]:
    """The folder that cuda-pathfinder finds, if that package is installed.

    Its search for a library would also load it. Its search for headers only returns a folder, and
    in wheels and conda the libraries are in ``lib`` beside that.
    """
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError:
        return []
    try:
        headers = find_nvidia_header_directory("cudnn")
    except (RuntimeError, ValueError, OSError):  # the package is older, or damaged
        return []
    return [Path(headers).parent / "lib"] if headers else []


# --- loading --------------------------------------------------------------------------------------


def _load(candidates: list[Candidate]) -> CudnnLibrary:
    tried = list(candidates)
    for index, candidate in enumerate(tried):
        if not candidate.found:
            continue
        _refuse_another()
        try:
            return _open(candidate, tried)
        except OSError as error:
            tried[index] = replace(candidate, state=f"can't be loaded: {error}")
    text = f"cuDNN 9 was not found. Tried in this order:\n{listing(tried)}\n{_advice()}"
    raise CudnnNotFound(text, tried)


def _open(candidate: Candidate, tried: list[Candidate]) -> CudnnLibrary:
    """Load cuDNN and its parts from one folder; OSError where the first file can't be loaded."""
    path = Path(candidate.path)
    folder = _folder(path)
    main = path.resolve() if path.exists() else folder / CUDNN[0]
    cdll = ctypes.CDLL(str(main), mode=ctypes.RTLD_GLOBAL)
    loaded, not_loaded = {main.name: str(main)}, {}
    for part in _parts(folder):
        try:
            # By its full path, before cuDNN opens it by its bare name: the loader then finds it.
            ctypes.CDLL(str(part.resolve()), mode=ctypes.RTLD_GLOBAL)
            loaded[part.name] = str(part.resolve())
        except OSError as error:
            not_loaded[part.name] = str(error)
    _refuse_without(candidate, not_loaded, tried)
    version = _version(cdll, candidate)  # cuDNN opens its parts here, by bare names
    _refuse_mixed(set(loaded.values()))
    return CudnnLibrary(
        candidate.path, candidate.source, version, cdll, tuple(tried), loaded, not_loaded
    )


def _parts(folder: Path) -> list[Path]:
    """cuDNN's sub-libraries in the order in which they need each other."""
    first = [folder / _part(name) for name in _REQUIRED_PARTS]
    return [*first, *sorted(p for p in folder.glob("libcudnn_*.so.9") if p not in first)]


def _refuse_without(
    candidate: Candidate, not_loaded: Mapping[str, str], tried: list[Candidate]
) -> None:
    wrong = [f"  {n}: {not_loaded[n]}" for n in map(_part, _REQUIRED_PARTS) if n in not_loaded]
    if wrong:
        lines = "\n".join(wrong)
        raise CudnnNotFound(f"cuDNN at {candidate.path} can't be loaded whole:\n{lines}", tried)


def _refuse_mixed(own: set[str]) -> None:
    """Raise :class:`CudnnMixed` if the process also has parts of another cuDNN 9."""
    folders = {str(Path(path).parent) for path in own}
    for other in mapped_cudnn():
        if not other.found or str(Path(other.path).resolve().parent) not in folders:
            raise CudnnMixed(
                f"two sets of cuDNN's libraries are in this process: {sorted(own)[0]} and "
                f"{other.path}. Keep one of them: unset LD_LIBRARY_PATH, or set the flag "
                "dnn.library_path to the folder of the other"
            )


def _refuse_another() -> None:
    """Raise :class:`CudnnMixed` if a flag names another cuDNN than the one in this process."""
    mapped = [c.path for c in mapped_cudnn()]
    named = next((c for c in cudnn_flag_candidates() if c.found), None)
    if mapped and named and _real_folder(named.path) not in map(_real_folder, mapped):
        raise CudnnMixed(
            f"the {named.source} names {named.path}, but this process has loaded {mapped[0]}. "
            "Use cuDNN through symdnn before what loads the other is imported, or unset the flag"
        )


def _real_folder(path: str) -> Path:
    return _folder(Path(path)).resolve()


def _advice() -> str:
    wheel = f"nvidia-cudnn-cu{max(cuda_version.served(), default=CUDA_MAJORS[-1])}"
    return f"pip install {wheel}, or set the flag dnn.library_path or CUDNN_PATH to its folder"


def _version(cdll: ctypes.CDLL, candidate: Candidate) -> tuple[int, int, int]:
    cdll.cudnnGetVersion.restype = ctypes.c_size_t
    number = int(cdll.cudnnGetVersion())
    version = (number // 10000, number % 10000 // 100, number % 100)
    if number < 90000:  # cuDNN 8 counted in thousands
        version = (number // 1000, number % 1000 // 100, number % 100)
    shown = f"cuDNN {'.'.join(map(str, version))} at {candidate.path} ({candidate.source})"
    if version < MINIMUM or version[0] != MINIMUM[0]:
        raise CudnnVersionError(
            f"{shown}: symdnn needs cuDNN {'.'.join(map(str, MINIMUM))} or a newer 9; its table "
            f"of functions was made from cuDNN {table_version()}. {_advice()}"
        )
    for part in _VERSION_CHECKS:
        check = getattr(cdll, f"cudnn{part}VersionCheck", None)
        if check is not None and check():
            raise CudnnVersionError(f"{shown}: its part {part.lower()} is of another version")
    return version
