"""Detection of the GPU and cuDNN, reasons why they can't be used, and the machine as a ``Target``.

``dnn_present()`` and ``dnn_available()`` return a bool and set the reason as ``msg``, as Theano's
do. No Python package of CUDA is needed, and nothing is searched before the first call.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache

from symdnn.config import config
from symdnn.detect import cuda_driver_candidates
from symdnn.errors import CudnnError, GpuNotFound, OptionError
from symdnn.gpu.binding import cuda_version, cudnn_library
from symdnn.gpu.binding.libcuda import Device, driver
from symdnn.graph.place import HOST, Place
from symdnn.graph.target import MINIMUM_COMPUTE_CAPABILITY, Target

__all__ = [
    "GpuNotFound", "MINIMUM_COMPUTE_CAPABILITY", "cuda_target", "cudnn_problem", "dnn_available",
    "dnn_present", "gpu_available", "version", "why_no_gpu", "why_passed_over",
]  # fmt: skip

_VARIABLES = (
    "CUDNN_PATH", "CUDA_ROOT", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH",
)  # fmt: skip
_FLAGS = ("dnn.library_path", "dnn.bin_path", "dnn.base_path", "cuda.root")


class DnnPresent:
    """Whether cuDNN is installed in a version that symdnn can use; ``msg`` says why not.

    ``dnn.enabled=False`` switches cuDNN off; ``no_check`` skips the check.
    """

    avail: bool | None = None
    msg: str = ""

    def __call__(self) -> bool:
        self.avail, self.msg = self._answer()
        return self.avail

    def _answer(self) -> tuple[bool, str]:
        enabled = str(config.dnn.enabled)
        if enabled == "False":
            return False, "cuDNN is switched off by dnn.enabled=False"
        if enabled == "no_check":
            return True, "cuDNN was not looked for: dnn.enabled=no_check"
        error = _why_not(*_state())
        return error is None, "" if error is None else _one_line(error)


class DnnAvailable:
    """Whether cuDNN can be used on a GPU of this machine; ``msg`` says why not.

    The argument is a device's index, or a name such as ``"cuda1"``; None is the first device.
    """

    msg: str = ""

    def __call__(self, context_name: str | int | None = None) -> bool:
        self.msg = self._problem(context_name)
        return not self.msg

    def _problem(self, context_name: str | int | None) -> str:
        if not dnn_present():
            return dnn_present.msg
        try:
            _usable(_index(context_name))
        except GpuNotFound as error:
            return str(error)
        return ""


dnn_present = DnnPresent()
dnn_available = DnnAvailable()


def gpu_available() -> bool:
    """Whether this machine has a GPU that symdnn can use, with or without cuDNN."""
    try:
        _usable(0)
    except GpuNotFound:
        return False
    return True


def version(raises: bool = True) -> int:
    """cuDNN's version as one number, such as 92800 for 9.28.0.

    Without cuDNN it raises, or returns -1 if ``raises`` is false.
    """
    if not raises and _why_not(*_state()) is not None:
        return -1
    major, minor, patch = cudnn_library.library().version
    return major * 10000 + minor * 100 + patch


def cudnn_problem() -> str:
    """Why cuDNN can't be used, with the problem at each place tried; ``""`` if it can be."""
    if dnn_present():
        return ""
    error = None if str(config.dnn.enabled) == "False" else _why_not(*_state())
    return dnn_present.msg if error is None else str(error)


def why_no_gpu(missing_packages: Sequence[str] = ()) -> tuple[str, ...]:
    """All reasons why ``device=auto`` does not use the GPU, each with the places searched."""
    reasons = [f"the Python package {name} is not installed" for name in missing_packages]
    try:
        _usable(0)
    except GpuNotFound as error:
        places = cudnn_library.listing(cuda_driver_candidates())
        reasons.append(f"{error}. The driver was looked for in this order:\n{places}")
    return (*reasons, cudnn_problem() or f"{cudnn_library.library()} could be used")


def why_passed_over(missing_packages: Sequence[str] = ()) -> str:
    """Why ``device=auto`` does not use a GPU, in one line; ``""`` if it uses one."""
    if missing_packages:
        return f"the Python package {missing_packages[0]} is not installed"
    try:
        _usable(0)
    except GpuNotFound as error:
        return str(error).partition("\n")[0]
    return dnn_available.msg if not dnn_available() else ""


def cuda_target(index: int = 0) -> Target:
    """GPU ``index`` of this machine as a target, with the version of cuDNN.

    Without cuDNN the target's ``notes`` list the places tried. Raises :class:`GpuNotFound` if there
    is no such GPU.
    """
    try:
        device = _usable(index)
    except GpuNotFound as error:
        advice = "`symdnn doctor` says what is there; device=cpu, or auto, runs without a GPU"
        raise GpuNotFound(f"{error}. {advice}") from None
    problem = cudnn_problem()
    return Target(
        "cuda",
        index,
        compute_capability=device.compute_capability,
        # no_check skips the check, but the library must be found all the same.
        cudnn=None if problem else cudnn_library.library().version,
        memory_bytes=device.memory_bytes,
        notes=(problem,) if problem else (),
    )


# --- steps ----------------------------------------------------------------------------------------


def _usable(index: int) -> Device:
    """The device. Raises ``GpuNotFound`` if it does not exist, or it or its driver is too old."""
    found = driver()
    if found.problem:
        raise GpuNotFound(f"no GPU: {found.problem}")
    if index >= len(found.devices):
        raise GpuNotFound(f"cuda{index}: this machine has {found}")
    device = found.devices[index]
    if device.compute_capability < MINIMUM_COMPUTE_CAPABILITY:
        have, need = (".".join(map(str, c)) for c in _capabilities(device))
        raise GpuNotFound(f"cuda{index}, {device.name}: compute capability {have}, needs {need}")
    if problem := cuda_version.bindings_problem(found.version):
        raise GpuNotFound(f"cuda{index}, {device.name}: {problem}")
    return device


def _capabilities(device: Device) -> tuple[tuple[int, int], tuple[int, int]]:
    return device.compute_capability, MINIMUM_COMPUTE_CAPABILITY


def _index(context_name: str | int | None) -> int:
    if isinstance(context_name, int) or context_name is None:
        return context_name or 0
    try:
        place = Place.parse(context_name)
    except OptionError as error:
        raise GpuNotFound(str(error)) from None
    if place == HOST:
        raise GpuNotFound(f"{context_name!r} is no GPU: wanted 'cuda', 'cuda0', 'cuda1', ...")
    return place.index


def _state() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The flags and variables that a search depends on: the key of its cached result."""
    flags = tuple(str(config.get(name)) for name in _FLAGS)
    return flags, tuple(os.environ.get(name, "") for name in _VARIABLES)


@lru_cache(maxsize=16)
def _why_not(flags: tuple[str, ...], environment: tuple[str, ...]) -> CudnnError | None:
    """The error that keeps cuDNN from being used, or None."""
    try:
        cudnn_library.library()
    except CudnnError as error:
        return error
    return None


def _one_line(error: CudnnError) -> str:
    first, *places = str(error).splitlines()
    tried = sum(line.startswith("  ") for line in places)
    more = f" ({tried} places tried; `symdnn doctor` lists them)" if tried else ""
    return first.removesuffix(". Tried in this order:") + more
