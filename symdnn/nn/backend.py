"""Whole networks between backends, and the modes of cudnn.torch.

::

    net = nn.Sequential(nn.SpatialConvolution(3, 96, 11, 11, 3, 3), nn.ReLU())
    nn.convert(net, "cudnn")
    nn.cudnn.benchmark = True

A backend is the library to which the ops of a module may be lowered: ``auto`` symdnn's choice,
``nn`` no vendor's library, ``cudnn`` the library for NVIDIA's GPUs, ``onednn`` that for CPUs. It is
a hint for expressions that are built after it was set. A function for another target ignores it:
``cudnn`` has no effect on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from symdnn.config import Setting, config
from symdnn.errors import CudnnRequired, InputError, UnknownWord
from symdnn.nn.layers.activation import ELU, ClippedReLU, ReLU, Sigmoid, Tanh
from symdnn.nn.layers.conv import (
    SpatialConvolution,
    SpatialFullConvolution,
    TemporalConvolution,
    VolumetricConvolution,
    VolumetricFullConvolution,
)
from symdnn.nn.layers.linear import Bilinear, Linear
from symdnn.nn.layers.norm import BatchNormalization, LayerNorm, SpatialCrossMapLRN
from symdnn.nn.layers.pooling import (
    SpatialAveragePooling,
    SpatialMaxPooling,
    TemporalAveragePooling,
    TemporalMaxPooling,
    VolumetricAveragePooling,
    VolumetricMaxPooling,
)
from symdnn.nn.layers.recurrent import Recurrent
from symdnn.nn.layers.softmax import (
    LogSoftMax,
    SoftMax,
    SpatialLogSoftMax,
    SpatialSoftMax,
    VolumetricLogSoftMax,
    VolumetricSoftMax,
)
from symdnn.nn.layers.table import MM
from symdnn.nn.losses.criterion import (
    CTCCriterion,
    SpatialCrossEntropyCriterion,
    VolumetricCrossEntropyCriterion,
)
from symdnn.nn.modules.modes import BENCHMARK, FASTEST, ConvolutionModes
from symdnn.nn.modules.module import BACKENDS, Module
from symdnn.nn.modules.torch_class import has_pytorchs_name

__all__ = ["CONVERTIBLE", "Cudnn", "convert", "cudnn"]

Exclude = Callable[[Module], Any]

_BOTH = (
    SpatialConvolution, SpatialFullConvolution, TemporalConvolution, VolumetricConvolution,
    VolumetricFullConvolution, SpatialMaxPooling, SpatialAveragePooling, TemporalMaxPooling,
    TemporalAveragePooling, VolumetricMaxPooling, VolumetricAveragePooling, BatchNormalization,
)  # fmt: skip

#: The modules for which a vendor's library has ops; subclasses count, too.
CONVERTIBLE: dict[str, tuple[type[Module], ...]] = {
    "cudnn": (
        *_BOTH, ReLU, ClippedReLU, Tanh, Sigmoid, ELU, SpatialCrossMapLRN, Recurrent, SoftMax,
        LogSoftMax, SpatialSoftMax, SpatialLogSoftMax, VolumetricSoftMax, VolumetricLogSoftMax,
        CTCCriterion,
        # As in cudnn.torch; here one kernel of symdnn does both of their steps.
        SpatialCrossEntropyCriterion, VolumetricCrossEntropyCriterion,
    ),
    "onednn": (*_BOTH, LayerNorm, Linear, Bilinear, MM),
}  # fmt: skip


def convert(
    net: Module,
    backend: object,
    exclude: Exclude | None = None,
    *,
    benchmark: bool | None = None,
    fastest: bool | None = None,
    required: bool = False,
) -> Module:
    """Set the backend of all modules of ``net`` that it supports; returns ``net``.

    ``backend`` is ``"auto"``, ``"nn"``, ``"cudnn"``, ``"onednn"``, or :data:`cudnn`, or the module
    ``symdnn.nn``. Nothing is copied: parameters remain the same variables. ``exclude(module)`` is
    called for every module inside, also for containers. If it is true, that module is not changed,
    but modules inside of it may be. A module with another library's backend that ``backend`` does
    not support gets ``"auto"``. A user's class declares libraries for its ops by
    ``vendors = ("cudnn", "onednn")``.

    ``benchmark`` and ``fastest`` set the mode of this network's convolutions, as their methods of
    these names do. With ``required`` a missing library is an error that lists the paths that were
    searched: :class:`~symdnn.errors.CudnnRequired`, for oneDNN
    :class:`~symdnn.cpu.onednn.library.OnednnNotFound`. Otherwise functions run by other kernels.
    """
    name = _backend_name(backend)
    if not isinstance(net, Module):
        raise InputError(f"convert: wanted a module, got {net!r}")
    if required:
        _require(name)
    modules = [module for _, module in net.named_modules()]
    excluded = {id(m) for m in modules if exclude is not None and exclude(m)}
    for module in modules:
        if id(module) in excluded:
            continue
        module.backend = name if _has(name, module, excluded) else "auto"
        if isinstance(module, ConvolutionModes):
            _set_modes(module, benchmark, fastest)
    return net


def _backend_name(backend: object) -> str:
    if isinstance(backend, Cudnn):
        return "cudnn"
    name = "nn" if getattr(backend, "__name__", None) == "symdnn.nn" else backend
    if not isinstance(name, str) or name not in BACKENDS:
        raise UnknownWord(f"convert: backend {backend!r}; wanted one of {', '.join(BACKENDS)}")
    return name


def _has(backend: str, module: Module, excluded: set[int]) -> bool:
    """Whether the backend supports this module.

    ``nn`` supports all. But modules inside inherit it, so a module with an excluded one inside does
    not get it.
    """
    if backend == "nn":
        return not any(id(m) in excluded for _, m in module.named_modules())
    known = CONVERTIBLE.get(backend, ())
    return isinstance(module, known) or backend in getattr(module, "vendors", ())


def _set_modes(module: ConvolutionModes, benchmark: bool | None, fastest: bool | None) -> None:
    if benchmark is not None:
        module.benchmark(benchmark)
    if fastest is not None:
        module.fastest(fastest)


def _require(backend: str) -> None:
    """Raise unless the library can be used here."""
    if backend == "cudnn":
        from symdnn.gpu import detect

        if not detect.dnn_available():
            text = "convert(net, 'cudnn', required=True): cuDNN can't be used"
            raise CudnnRequired("\n".join([text, *detect.why_no_gpu()]))
    if backend == "onednn":
        from symdnn.cpu.onednn import library

        library.library()


#: The flags that the modes set.
_ALGORITHMS = ("dnn.conv.algo_fwd", "dnn.conv.algo_bwd_data", "dnn.conv.algo_bwd_filter")
_LIMIT = "dnn.conv.workspace_limit"


class Cudnn:
    """``nn.cudnn``: cudnn.torch's global modes, and its modules, as attributes.

    ``benchmark = True`` measures all algorithms of a convolution for each new shape and takes the
    fastest; ``fastest = True`` takes cuDNN's first guess, with any workspace. Both set the flags
    ``dnn.conv.algo_*`` (and ``dnn.conv.workspace_limit``) for functions that are compiled later,
    and ``False`` restores the flags. If both are true, ``benchmark`` has precedence.
    ``verbose = True`` is the flag ``dnn.verbose``: for each new plan of a function the kernels of
    its nodes and the chosen algorithms are printed to the standard error.

    ``cudnn.SpatialConvolution(...)`` makes the module of that name with the backend ``cudnn``;
    there is such a function for each module that cuDNN supports.
    """

    def __init__(self) -> None:
        self._modes = {"benchmark": False, "fastest": False}
        self._before: dict[str, Setting | None] = {}

    @property
    def benchmark(self) -> bool:
        """Whether convolutions are measured."""
        return self._modes["benchmark"]

    @benchmark.setter
    def benchmark(self, value: bool) -> None:
        self._set("benchmark", value)

    @property
    def fastest(self) -> bool:
        """Whether convolutions take the fastest guess, without a limit of workspace."""
        return self._modes["fastest"]

    @fastest.setter
    def fastest(self, value: bool) -> None:
        self._set("fastest", value)

    @property
    def verbose(self) -> bool:
        """Whether new plans print their kernels: the flag ``dnn.verbose``."""
        return bool(config.dnn.verbose)

    @verbose.setter
    def verbose(self, value: bool) -> None:
        config.dnn.verbose = bool(value)

    def _set(self, mode: str, value: bool) -> None:
        """Set the flags by the modes."""
        for name, setting in self._before.items():
            config.restore(name, setting)
        self._modes[mode] = bool(value)
        wanted: dict[str, Any] = {}
        if self.fastest:
            wanted = {**dict.fromkeys(_ALGORITHMS, FASTEST), _LIMIT: 0}
        if self.benchmark:
            wanted |= dict.fromkeys(_ALGORITHMS, BENCHMARK)
        self._before = {name: config.setting(name) for name in wanted}
        for name, flag in wanted.items():
            config.set(name, flag)

    def convert(
        self, net: Module, backend: Any, exclude: Exclude | None = None, **more: Any
    ) -> Module:
        """:func:`convert`, under cudnn.torch's name."""
        return convert(net, backend, exclude, **more)

    def __getattr__(self, name: str) -> Callable[..., Module]:
        kind = _modules().get(name)
        if kind is None:
            raise AttributeError(f"nn.cudnn has no {name!r}; its modules: {', '.join(_modules())}")

        def make(*args: object, **kwargs: object) -> Module:
            module = kind(*args, **kwargs)
            module.backend = "cudnn"
            return module

        make.__name__, make.__doc__ = name, kind.__doc__
        return make

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_modules()})

    def __repr__(self) -> str:
        modes = {**self._modes, "verbose": self.verbose}
        return f"<nn.cudnn: {', '.join(f'{k}={v}' for k, v in modes.items())}>"


def _modules() -> dict[str, type[Module]]:
    """The classes that cuDNN supports, by name."""
    found: dict[str, type[Module]] = {}

    def add(kind: type[Module]) -> None:
        ours = kind.__module__.startswith("symdnn.nn.") and not has_pytorchs_name(kind)
        if ours and not kind.__name__.startswith("_"):
            found.setdefault(kind.__name__, kind)
        for derived in kind.__subclasses__():
            add(derived)

    for kind in CONVERTIBLE["cudnn"]:
        add(kind)
    found.pop("Recurrent")
    return dict(sorted(found.items()))


#: cudnn.torch's namespace: ``nn.cudnn.benchmark = True``, ``nn.cudnn.convert(net, nn.cudnn)``.
cudnn = Cudnn()
