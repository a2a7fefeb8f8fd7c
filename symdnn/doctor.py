"""``symdnn doctor``: what this machine has, what is missing, and for what.

``python -m symdnn.doctor`` is the same command.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from symdnn import detect
from symdnn.compile.execute.targets import resolve_target
from symdnn.config import FLAGS_VARIABLE, THEANOS_VARIABLE, config
from symdnn.cpu.compiler import jit
from symdnn.cpu.onednn import library as libdnnl
from symdnn.detect import Candidate
from symdnn.disk import trust
from symdnn.errors import CudnnError, CudnnNotFound, SymdnnError
from symdnn.gpu.binding import cuda_version, cudnn_library, frontend, libcuda
from symdnn.tuning import blocked

_REQUIRED_PACKAGES = (
    "numpy",
    "scipy",
    "networkx",
    "ml_dtypes",
    "opt_einsum",
    "safetensors",
    "platformdirs",
    "rich",
)
_CUDA_BY_SCRIPT = (
    "make cuda, or tools/install_cuda.sh, in a checkout of symdnn builds it, with g++ and NVIDIA's "
    "wheels; or conda install -c conda-forge pycuda"
)
#: Packages that are not needed: PyCUDA, unless the flag gpu.runtime asks for it, and cuDNN's graph
#: API.
_OPTIONAL_PACKAGES = ("pycuda", frontend.PACKAGE, "nvmath-python")
_CUDA_PACKAGES = (
    "pycuda", "cuda-bindings", "cuda-pathfinder", frontend.PACKAGE, "nvmath-python",
)  # fmt: skip

#: So many entries of the block list are printed.
_MAX_BLOCKED_LINES = 3


@dataclass(frozen=True)
class Library:
    """A vendor's library: its purpose, the paths that were tried, and how to install it."""

    name: str
    needed_for: str
    how_to_get: str
    tried: list[Candidate]
    version: str = ""  # known for libraries that were loaded
    problem: str = ""  # the reason why the found library can't be used

    @property
    def usable(self) -> bool:
        """Whether it was found and no problem is known."""
        return bool(self.path) and not self.problem

    @property
    def path(self) -> str:
        """The file that would be loaded, or ``""``."""
        found = detect.first_found(self.tried)
        return found.path if found else ""


@dataclass(frozen=True)
class Diagnosis:
    """The facts that ``symdnn doctor`` prints."""

    python: str
    platform: str
    packages: dict[str, str]
    problems: dict[str, str]
    blas: str
    threads: int
    cache_folder: str
    cache_state: str
    cuda_packages: dict[str, str]
    kernel_driver: str
    driver_problem: str  # why packages for CUDA do not fit the driver; "" where they do
    gpus: str
    cudnn_wanted: bool
    runtime_wanted: str  # the flag gpu.runtime
    graph_api_problem: str  # why cuDNN's graph API is off; "" where it is on
    llvmlite: str
    llvm_problem: str  # why no loops are compiled for the CPU; "" where they are
    of_theano: list[str]  # places of Theano's flags, which are not read
    runs_on: str  # the target of the flag device here, or why there is none
    cpu_libraries: list[Library] = field(default_factory=list)
    cuda_libraries: list[Library] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)  # algorithms that gave a wrong result

    @property
    def cpu_works(self) -> bool:
        """Whether programs can run on the CPU."""
        return not self.problems

    @property
    def cudnn_refused(self) -> bool:
        """Whether the flag ``dnn.enabled`` demands cuDNN, which can't be used."""
        cudnn = [lib for lib in self.cuda_libraries if lib.name == "cuDNN"]
        return self.cudnn_wanted and not all(lib.usable for lib in cudnn)

    def missing_for_cuda(self) -> list[str]:
        """The missing parts of the CUDA target, in words; empty if it has all files it needs."""
        driver = [] if self.kernel_driver else ["NVIDIA's kernel driver: no /proc/driver/nvidia"]
        driver += [self.driver_problem] if self.driver_problem else []
        libraries = [
            f"{lib.name}, needed for {lib.needed_for}: {lib.problem or lib.how_to_get}"
            for lib in self.cuda_libraries
            if not lib.usable
        ]
        needed = [
            n for n in self.cuda_packages if n not in _OPTIONAL_PACKAGES or n == self.runtime_wanted
        ]
        packages = [
            f"the Python package {name}: {_CUDA_BY_SCRIPT if name == 'pycuda' else _cuda_by_pip()}"
            for name in needed
            if not self.cuda_packages[name]
        ]
        return driver + libraries + packages

    def as_json(self) -> dict[str, Any]:
        """The facts as plain dicts and lists."""
        known = asdict(self)
        for group in ("cpu_libraries", "cuda_libraries"):
            for library, plain in zip(getattr(self, group), known[group], strict=True):
                plain["path"] = library.path
        return known | {"cpu_works": self.cpu_works, "missing_for_cuda": self.missing_for_cuda()}


def diagnose() -> Diagnosis:
    """Examine this machine. It loads cuDNN and oneDNN, and makes no context on a GPU."""
    packages, problems = _imports()
    return Diagnosis(
        python=f"{platform.python_implementation()} {platform.python_version()} {sys.executable}",
        platform=platform.platform(),
        packages=packages,
        problems=problems,
        blas=_blas(),
        threads=_threads(),
        cache_folder=config.base_compiledir,
        cache_state=_folder_state(Path(config.base_compiledir)),
        cuda_packages={name: _version(name) for name in _CUDA_PACKAGES},
        kernel_driver=_kernel_driver(),
        driver_problem=cuda_version.bindings_problem(libcuda.version()),
        gpus=str(libcuda.driver()),
        cudnn_wanted=str(config.dnn.enabled) == "True",
        runtime_wanted=str(config.gpu.runtime),
        graph_api_problem=frontend.unavailable(),
        llvmlite=_version("llvmlite"),
        llvm_problem=jit.problem(),
        of_theano=_of_theano(),
        runs_on=_runs_on(),
        cpu_libraries=[_onednn()],
        cuda_libraries=_cuda_libraries(),
        blocked=[str(entry) for entry in blocked.entries()],
    )


def doctor_report(as_json: bool = False) -> int:
    """Print the report; returns 1 if symdnn cannot run as its flags say, else 0."""
    found = diagnose()
    if as_json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        print("\n".join(_report(found)))
    return 0 if found.cpu_works and not found.cudnn_refused else 1


def _runs_on() -> str:
    """The target that functions would be compiled for now."""
    try:
        target = resolve_target()
    except SymdnnError as error:
        return f"nothing: {str(error).splitlines()[0]}"
    return "the CPU" if target.kind == "cpu" else str(target)


def _of_theano() -> list[str]:
    """The places with flags of Theano and without flags of symdnn."""
    named = os.environ.get("THEANORC")
    files = named.split(os.pathsep) if named else ["~/.theanorc"]
    there = [f for f in files if f and os.path.isfile(os.path.expanduser(f))]
    variables = [THEANOS_VARIABLE] if os.environ.get(THEANOS_VARIABLE) else []
    return [*variables, *there]


def _onednn() -> Library:
    """oneDNN, loaded: only so are its version, its suitability and its instruction set known."""
    tried, version = list(libdnnl.tried()), ""
    problem = libdnnl.problem().partition("\n")[0]
    if not problem:
        found, count = libdnnl.library(), libdnnl.facts()["threads"]
        number = ".".join(map(str, found.version))
        version = f"{number}, {found.runtime}, {found.isa}, {count} thread(s)"
    there = any(c.state != detect.ABSENT for c in tried)
    return Library(
        "oneDNN",
        "oneDNN's kernels on the CPU; NumPy's are used where it is missing",
        "pip install onednn-cpu-gomp, or set the flag onednn.library_path",
        tried,
        version,
        problem if there else "",
    )


def _cuda_by_pip() -> str:
    name = cuda_version.extra()
    return f"pip install 'symdnn[{name}]', or pip install -e '.[{name}]' in a checkout of symdnn"


def _cuda_libraries() -> list[Library]:
    wheel = f"{_cuda_by_pip()}, or set the flag"
    return [
        Library(
            "CUDA driver",
            "everything on a GPU",
            "install NVIDIA's driver",
            detect.cuda_driver_candidates(),
        ),
        Library(
            "NVRTC",
            "kernels that symdnn generates",
            f"{wheel} cuda.root",
            detect.cuda_library_candidates(detect.NVRTC, majors=cuda_version.nvrtc_majors()),
        ),
        Library(
            "cuBLASLt",
            "matrix products on a GPU",
            f"{wheel} cuda.root",
            detect.cuda_library_candidates(detect.CUBLASLT, majors=cuda_version.served()),
        ),
        _cudnn(f"{wheel} dnn.library_path"),
    ]


def _cudnn(how_to_get: str) -> Library:
    """cuDNN, loaded: only so is it known whether its parts fit each other, and their version."""
    tried, version, problem = cudnn_library.search(), "", ""
    try:
        version = ".".join(map(str, cudnn_library.library().version))
    except CudnnNotFound as error:
        tried = error.tried or tried
        problem = str(error).splitlines()[0] if detect.first_found(tried) else ""
    except CudnnError as error:
        problem = str(error)
    needed_for = "convolution, pooling, softmax, batch norm and RNN on a GPU"
    return Library("cuDNN", needed_for, how_to_get, tried, version, problem)


def _imports() -> tuple[dict[str, str], dict[str, str]]:
    """The versions of the packages that symdnn needs, and import errors."""
    packages, problems = {}, {}
    for name in _REQUIRED_PACKAGES:
        try:
            importlib.import_module(name)
            packages[name] = _version(name) or "unknown version"
        except Exception as why:  # a broken binary wheel raises anything
            problems[name] = f"{type(why).__name__}: {why}"
    return packages, problems


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _blas() -> str:
    import numpy as np

    build: Any = np.show_config(mode="dicts")  # type: ignore[call-overload, unused-ignore]
    blas = build.get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()


def _threads() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _folder_state(folder: Path) -> str:
    untrusted = trust.why_not(folder / trust.KINDS[0], own_levels=2)
    if untrusted:
        return f"not used: {untrusted}"
    nearest = next(p for p in (folder, *folder.parents) if p.exists())
    if not nearest.is_dir():
        return f"{nearest} is not a folder"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"{nearest} may not be written: nothing is kept between runs"
    return "can be written" if nearest == folder else "will be made when needed"


def _kernel_driver() -> str:
    try:
        lines = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return lines[0] if lines else ""


# --- the report -----------------------------------------------------------------------------------


def _report(found: Diagnosis) -> Iterator[str]:
    yield f"Python      {found.python}"
    yield f"Platform    {found.platform}"
    yield f"Packages    {', '.join(f'{name} {v}' for name, v in found.packages.items())}"
    yield from (
        f"            {name} can't be imported: {why}" for name, why in found.problems.items()
    )
    yield f"BLAS        {found.blas} (NumPy's)"
    yield f"Threads     {found.threads}"
    yield f"Cache       {found.cache_folder}: {found.cache_state}"
    if found.of_theano:
        yield f"Theano      {', '.join(found.of_theano)}: not read; symdnn's flags are in"
        yield f"            {FLAGS_VARIABLE} and ~/.symdnnrc, written the same way"
    yield f"LLVM        {_llvm(found)}"
    for library in found.cpu_libraries:
        yield from _library(library)
    yield ""
    yield f"GPU driver  {found.kernel_driver or 'none'}"
    yield f"GPUs        {found.gpus}"
    packages = (f"{name} {version or 'missing'}" for name, version in found.cuda_packages.items())
    yield f"Packages    {', '.join(packages)}"
    yield f"Runtime     {_runtime(found)}"
    for library in found.cuda_libraries:
        yield from _library(library)
    yield f"Graph API   {_graph_api(found)}"
    yield f"Block list  {len(found.blocked) or 'no'} algorithm(s) with wrong results"
    yield from (f"            {entry}" for entry in found.blocked[:_MAX_BLOCKED_LINES])
    if len(found.blocked) > _MAX_BLOCKED_LINES:
        yield "            ... (symdnn algos --blocked lists all)"
    yield ""
    yield from _verdict(found)


def _llvm(found: Diagnosis) -> str:
    """A line on whether loops are compiled for the CPU, or why not."""
    if found.llvm_problem:
        return f"off, elementwise work is NumPy's: {found.llvm_problem}"
    return f"on, llvmlite {found.llvmlite}"


def _graph_api(found: Diagnosis) -> str:
    """A line on cuDNN's graph API: the package that serves it, or why it is off."""
    if found.graph_api_problem:
        return f"off: {found.graph_api_problem.removesuffix('. Tried in this order:')}"
    return f"on, nvidia-cudnn-frontend {found.cuda_packages['nvidia-cudnn-frontend']}"


def _runtime(found: Diagnosis) -> str:
    """Lines on the package that runs a GPU, and on PyCUDA if it is missing."""
    pycuda, bindings = found.cuda_packages["pycuda"], found.cuda_packages["cuda-bindings"]
    asked = f"(gpu.runtime={found.runtime_wanted})"
    if found.runtime_wanted == "pycuda" or (found.runtime_wanted == "auto" and pycuda):
        return f"PyCUDA {pycuda or 'missing'} {asked}"
    without = "" if pycuda else f"; without PyCUDA and its GPUArray: {_CUDA_BY_SCRIPT}"
    return f"cuda-bindings {bindings or 'missing'} {asked}{without}"


def _library(library: Library) -> Iterator[str]:
    version = f", version {library.version}" if library.version else ""
    yield f"{library.name:<11} {library.path or 'not found'}{version}"
    if library.problem:
        yield f"            can't be used: {library.problem}"
    yield from (f"            {c.source}: {c.path}: {c.state}" for c in library.tried)


def _verdict(found: Diagnosis) -> Iterator[str]:
    yield "CPU:  works" if found.cpu_works else "CPU:  does not work; see the packages above"
    for library in found.cpu_libraries:
        if not library.path:
            yield f"      {library.name} not found, for {library.needed_for}"
    missing = found.missing_for_cuda()
    yield "CUDA: can't be used" if missing else "CUDA: all files are there"
    yield from (f"      missing: {each}" for each in missing)
    if found.cudnn_refused:
        yield "      and dnn.enabled=True insists on cuDNN"
    yield f"Functions run on {found.runs_on} (device={config.device})"


if __name__ == "__main__":
    sys.exit(doctor_report("--json" in sys.argv[1:]))
