"""Finds the target for a flag or a name, and its runtimes. Only this module loads targets."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache, cached_property
from typing import Any

from symdnn.compile.plan.specialise import Oracle, TableOracle
from symdnn.config import config
from symdnn.detect import container_asks_for_gpus, gpu_seems_there
from symdnn.graph.kernel import enter, load_by
from symdnn.graph.place import HOST, Place, check_one_gpu
from symdnn.graph.runtime import Runtime
from symdnn.graph.target import Target
from symdnn.graph.variable import Variable


def resolve_target(wanted: Target | str | None = None, explain: bool = False) -> Target:
    """The target ``wanted``; without one the target of the flag ``device``.

    ``"cuda1"`` is a GPU of this machine, ``"cuda"`` the one that the flag ``device`` names, else
    the first, ``"cuda:sm_90"`` a described one.
    ``auto`` is a GPU that can be used, else the CPU; with ``explain`` its ``notes`` say why.
    """
    if isinstance(wanted, Target):
        return wanted
    if wanted is not None:
        described = Target.parse(wanted)
        if described.kind == "cpu":
            return cpu_target()
        here = described.kind != "cpu" and described.compute_capability is None
        if not here:
            return described
        own = str(config.device)
        named = own if wanted == "cuda" and own.startswith("cuda") else wanted
        made: Target = _detect().cuda_target(Place.parse(named).index)
        return made
    device = str(config.device)
    if device == "cpu":
        return cpu_target()
    if device == "auto" and not _gpu_is_ready():
        if explain:
            return cpu_target(_detect().why_no_gpu(_missing_packages()))
        _print_why_not()
        return cpu_target()
    if device == "auto":
        device = "cuda"
    found: Target = _detect().cuda_target(Place.parse(device).index)
    return found


def cpu_target(notes: tuple[str, ...] = ()) -> Target:
    """The target for this machine's CPU: versions of libraries, instruction set, threads."""
    from symdnn.libraries.table import LIBRARIES

    facts: dict[str, Any] = {}
    for library in LIBRARIES:
        if library.backend.kind == "cpu" and library.detected_by:
            found = dict(importlib.import_module(library.detected_by).facts())
            notes += tuple(found.pop("notes", ()))
            facts |= found
    return Target("cpu", notes=notes, **facts)


def _gpu_is_ready() -> bool:
    """Whether ``device=auto`` uses the GPU: there is one, with cuDNN and the Python packages."""
    if _missing_packages():
        return False
    detect = _detect()
    return bool(detect.gpu_available() and detect.dnn_available())


def _missing_packages() -> list[str]:
    """Python packages that are needed for a GPU and not installed."""
    needed = ["cuda.bindings"]
    if str(config.gpu.runtime) == "pycuda":  # otherwise PyCUDA is optional
        needed.insert(0, "pycuda")
    return [p for p in needed if not _installed(p)]


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


def _detect() -> Any:
    return importlib.import_module("symdnn.gpu.detect")


def load_kernels(target: Target) -> None:
    """Register the kernels of a target, without use of the device."""
    importlib.import_module("symdnn.cpu.execution.runtime")
    _load_library_kernels("cpu")
    if target.kind == "cuda":
        importlib.import_module("symdnn.gpu.registry").load()
        _load_library_kernels("cuda")


@cache
def _load_library_kernels(kind: str) -> None:
    """Enter the kernels that stand in the rooms of libraries."""
    from symdnn.libraries.table import LIBRARIES

    for library in LIBRARIES:
        if library.backend.kind == kind and library.kernels:
            enter(kind, importlib.import_module(library.kernels).KERNELS)


load_by(lambda kind: load_kernels(Target(kind)))


class Devices:
    """The runtimes that the segments of one function run on, loaded on first use.

    Besides the target's device there is always the CPU, for nodes without a kernel there.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._runtimes: dict[Place, Runtime] = {}

    @cached_property
    def main(self) -> Runtime:
        """The runtime of the target."""
        return self.runtime(self.target.place)

    def runtime(self, place: Place) -> Runtime:
        """The runtime of the host or of the target's device.

        Raises :class:`~symdnn.errors.OptionError` for another device.
        """
        if place not in self._runtimes:
            self._runtimes[place] = self._load(place)
        return self._runtimes[place]

    def _load(self, place: Place) -> Runtime:
        check_one_gpu(self.target.place, place, "a segment of its program")
        if place == HOST:
            made: Runtime = importlib.import_module("symdnn.cpu.execution.runtime").runtime()
            return made
        runtime = importlib.import_module("symdnn.gpu.execution.runtime").runtime(place.index)
        if config.print_active_device:
            print_device_once(self.target)
        return runtime  # type: ignore[no-any-return]

    def oracle(self, place: Place) -> Oracle:
        """The oracle that chooses kernels of that device."""
        return TableOracle(place.kind)

    def home(self, shared: Variable) -> Runtime:
        """The runtime where a shared variable is stored: of the host for integer scalars."""
        return self.main if self.target.keeps(shared.type) else self.runtime(HOST)


def _print_why_not() -> None:
    """Print once to stderr why ``device=auto`` uses the CPU where a GPU was to be expected."""
    here = "there is a GPU" if gpu_seems_there() else ""
    if not here and container_asks_for_gpus():
        here = "this container is of an image for GPUs (start it with --gpus all)"
    if "auto" in _printed or not here:
        return
    _printed.add("auto")
    reason = _detect().why_passed_over(_missing_packages())
    if reason:
        print(
            f"symdnn: {here}, and device=auto uses the CPU: {reason}. `symdnn doctor` says "
            "more; device=cpu silences this",
            file=sys.stderr,
        )


_printed: set[str] = set()


def print_device_once(target: Target) -> None:
    """Print to stderr which GPU is used, at its first use."""
    if str(target.place) not in _printed:
        _printed.add(str(target.place))
        cudnn = ".".join(map(str, target.cudnn)) if target.cudnn else "absent"
        print(f"symdnn uses {target}, cuDNN {cudnn}", file=sys.stderr)
