"""``theano.config``: symdnn's flags under Theano's names, with Theano's defaults.

A flag that symdnn has is shared: it has one value here and in ``symdnn.config``. A flag without a
meaning in symdnn stores the value that a program assigns to it.
"""

from __future__ import annotations

import ast
import configparser
import os
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ContextDecorator
from pathlib import Path
from typing import Any

from symdnn.config import ChangeFlags as _Block
from symdnn.config import config as flags
from symdnn.disk.regular import read_regular
from symdnn.errors import ConfigError
from symdnn.flags import FLAGS, WITHOUT_MEANING

__all__ = ["ChangeFlags", "TheanoConfig", "TheanoConfigWarning", "change_flags", "config"]

#: Theano's defaults where symdnn's differ.
DEFAULTS = {"floatX": "float64", "cast_policy": "custom", "device": "cpu"}

_FALSE = """
    openmp force_device gpuarray.single_stream scan.debug cmodule.debug cmodule.warn_no_version
    nocleanup profiling.ignore_first_call experimental.local_alloc_elemwise
    experimental.unpickle_gpu_on_cpu lib.amdlibm reoptimize_unpickled_function conv.assert_shape
    nvcc.fastmath magma.enabled scan.allow_gc print_global_stats experimental.mrg pycuda.init
    cmodule.mac_framework_link ProfileMode.profile_memory
"""
_TRUE = """
    allow_gc scan.allow_output_prealloc unpickle_function pickle_test_value check_input vm.lazy
    cache_optimizations blas.check_openmp cmodule.preload_cache cmodule.remove_gxx_opt
    DebugMode.check_c tensor.local_elemwise_fusion gpu.local_elemwise_fusion cuda.enabled
    enable_initial_driver_test
"""
#: Theano's defaults of flags without a meaning in symdnn; all others are "".
_MEANINGLESS: dict[str, Any] = {
    **dict.fromkeys(_FALSE.split(), False),
    **dict.fromkeys(_TRUE.split(), True),
    "linker": "cvm", "openmp_elemwise_minsize": 200000, "gpuarray.preallocate": 0.0,
    "lib.cnmem": 0.0, "int_division": "int", "compute_test_value_opt": "off",
    "gpuarray.sched": "default", "on_shape_error": "warn", "traceback.compile_limit": 0,
    "compile.timeout": 120, "compile.wait": 5, "numpy.seterr_all": "ignore",
    "tensor.cmp_sloppy": 0, "metaopt.verbose": 0, "optdb.max_use_ratio": 8.0,
    "optdb.position_cutoff": float("inf"), "cycle_detection": "regular",
    "profiling.n_apply": 20, "profiling.n_ops": 20, "profiling.min_memory_size": 1024,
    "profiling.min_peak_memory": False, "profiling.destination": "stderr", "cxx": "",
    "ProfileMode.n_apply_to_print": 15, "ProfileMode.n_ops_to_print": 20,
    "ProfileMode.min_memory_size": 1024, "home": "", "cublas.lib": "cublas",
}  # fmt: skip


class TheanoConfigWarning(UserWarning):
    """A flag of ``THEANO_FLAGS`` or ``.theanorc`` that does not exist, with Theano's warning."""


class _Section:
    """The flags under a prefix: ``theano.config.dnn.conv``."""

    def __init__(self, owner: TheanoConfig, prefix: str) -> None:
        object.__setattr__(self, "_owner", owner)
        object.__setattr__(self, "_prefix", prefix)

    _owner: TheanoConfig
    _prefix: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._owner.read(self._prefix + name)

    def __setattr__(self, name: str, value: object) -> None:
        if self._prefix + name == "device" and value != self._owner.read("device"):
            raise ConfigError(
                f"theano.config.device = {value!r}: as in Theano a program cannot change it. Say "
                f"THEANO_FLAGS=device={value}, or call theano.gpuarray.use({value!r})"
            )
        self._owner.write(self._prefix + name, value)

    def __delattr__(self, name: str) -> None:
        self._owner.forget(self._prefix + name)

    def __dir__(self) -> list[str]:
        rest = [n.removeprefix(self._prefix) for n in self._owner.names() if
                n.startswith(self._prefix)]  # fmt: skip
        return sorted({r.partition(".")[0] for r in rest})


class TheanoConfig(_Section):
    """``theano.config``.

    Unknown flags raise ``AttributeError``, wrong values ``ValueError``, as in Theano.
    """

    _own: dict[str, Any]
    #: Texts of THEANO_FLAGS and .theanorc whose flags no one has added yet.
    _unclaimed: dict[str, str]
    #: Of a program's own flags: what makes their values of what is assigned.
    _filters: dict[str, Callable[[Any], Any]]
    #: Defaults of a program's own flags that are functions, called when they are first read.
    _later: dict[str, Callable[[], Any]]
    _device: str

    def __init__(self) -> None:
        super().__init__(self, "")
        for table in ("_own", "_unclaimed", "_filters", "_later"):
            object.__setattr__(self, table, {})
        object.__setattr__(self, "_device", "cpu")

    # -- reading and assigning ----------------------------------------------------------------

    def read(self, name: str) -> Any:
        """The value of a flag, or the group of flags of that name."""
        if name in self._later:
            self.write(name, self._later[name]())
        if name in self._own:
            return self._own[name]
        if name in _MEANINGLESS:
            return _MEANINGLESS[name]
        if name == "device":
            # Theano's word: where functions run by default. A program that set "gpu" reads "gpu".
            device = "cpu" if flags.device == "auto" else str(flags.device)
            return self._device if self._device.replace("gpu", "cuda") == device else device
        if name == "compiledir":
            return flags.base_compiledir
        if name in FLAGS:
            return flags.get(name)
        if any(n.startswith(name + ".") for n in self.names()):
            return _Section(self, name + ".")
        if name in WITHOUT_MEANING:
            return ""
        if "__" in name:  # as Theano-PyMC spells it
            return self.read(name.replace("__", "."))
        raise AttributeError(f"theano.config has no flag {name!r}")

    def write(self, name: str, value: object) -> None:
        """Assign a flag, for all threads."""
        for each, setting in self.translated(name, value).items():
            if each in FLAGS:
                flags.set(each, setting)
            else:
                self._later.pop(each, None)
                self._own[each] = setting

    def forget(self, name: str) -> None:
        """Undo the last assignment."""
        if name in FLAGS:
            flags.undo(name)
        else:
            self._own.pop(name, None)

    def names(self) -> Iterator[str]:
        """The names of all flags."""
        yield from FLAGS
        yield from WITHOUT_MEANING
        yield from (n for n in _MEANINGLESS if n not in WITHOUT_MEANING)
        yield from self._own

    def __str__(self) -> str:
        """All flags and their values, as ``print(theano.config)`` has them."""
        return "".join(f"{n}\n    Value:  {self.read(n)}\n\n" for n in sorted({*self.names()}))

    def add(
        self, name: str, default: object, made: Callable[[Any], Any] = lambda value: value
    ) -> None:
        """A flag of the program's own (``AddConfigVar``), unless it was set already.

        ``made`` gives its value of what is assigned, or raises ``ValueError``.
        """
        if name in FLAGS:
            return
        self._filters[name] = made
        if name in self._unclaimed:
            self.write(name, self._unclaimed.pop(name))
        elif name not in self._own:
            if callable(default):
                self._later[name] = default
            self._own[name] = None if callable(default) else made(default)

    def translated(self, name: str, value: object) -> dict[str, Any]:
        """The flags and values that an assignment of Theano's means."""
        if name in ("device", "init_gpu_device") and isinstance(value, str):
            if value.startswith("opencl"):
                raise ConfigError(f"device={value!r}: GPUs other than NVIDIA's are not offered")
            device = value.replace("gpu", "cuda") or "cpu"
            if name == "device":
                object.__setattr__(self, "_device", value)
            return {"device": device} if name == "device" else {name: value}
        if name == "mode" and value == "ProfileMode":
            return {"mode": "Mode", "profile": True}
        if name == "dnn.conv.algo_bwd" or name in FLAGS:
            return {name: value}
        if name in self._filters:
            return {name: self._filters[name](value)}
        if name in WITHOUT_MEANING or name in self._own or name in _MEANINGLESS:
            return {name: _parsed(value) if isinstance(value, str) else value}
        if "__" in name:
            return self.translated(name.replace("__", "."), value)
        raise AttributeError(f"theano.config has no flag {name!r}")

    def change_flags(
        self, changes: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), **more: object
    ) -> ChangeFlags:
        """As ``theano.change_flags``."""
        return ChangeFlags(changes, **more)

    # -- where values come from ---------------------------------------------------------------

    def start(self, environment: Mapping[str, str]) -> None:
        """Theano's defaults for unset flags, then ``.theanorc`` and ``THEANO_FLAGS``."""
        for name, value in DEFAULTS.items():
            if flags.setting(name) is None:
                flags.set(name, value)
        for path in _files(environment):
            for name, value in _of_file(path):
                self._set_from(name, value, str(path))
        for name, value in _of_text(environment.get("THEANO_FLAGS", "")):
            self._set_from(name, value, "THEANO_FLAGS")

    def _set_from(self, name: str, value: str, origin: str) -> None:
        folder = name in ("compiledir", "base_compiledir")
        try:
            if folder:
                flags.begin("base_compiledir", os.path.expanduser(value), origin)
            else:
                self.write(name, value)
        except AttributeError:
            self._own[name] = _parsed(value)  # it may be a flag that the program adds
            self._unclaimed[name] = value
            text = f"{origin}: theano.config has no flag {name!r}"
            warnings.warn(text, TheanoConfigWarning, stacklevel=4)


def _parsed(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _files(environment: Mapping[str, str]) -> list[Path]:
    named = environment.get("THEANORC")
    if named is None:
        home = environment.get("HOME")
        return [] if home is None else [p for p in [Path(home) / ".theanorc"] if p.is_file()]
    paths = [Path(os.path.expanduser(n)) for n in named.split(os.pathsep) if n]
    return [p for p in paths if p.is_file()]  # as Theano, which ignores missing files


def _of_file(path: Path) -> Iterator[tuple[str, str]]:
    parser = configparser.ConfigParser(interpolation=None, strict=False, default_section="")
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # floatX keeps its X
    try:
        parser.read_string(read_regular(path, 1 << 20).decode(), str(path))
    except (OSError, UnicodeDecodeError, configparser.Error) as why:
        raise ConfigError(f"{path} can't be read: {why}") from why
    for section in parser.sections():
        for key, value in parser.items(section):
            yield (key if section == "global" else f"{section}.{key}"), value


def _of_text(text: str) -> Iterator[tuple[str, str]]:
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = ",", True, ""
    for item in lexer:
        name, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"THEANO_FLAGS: {item!r} has no '=': wanted name=value,name=value")
        yield name.strip(), value.strip()


class ChangeFlags(ContextDecorator):
    """``theano.change_flags``: other values within a ``with`` block or a decorated function.

    ``changes`` are a mapping or pairs.
    """

    def __init__(
        self, changes: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **more: Any
    ) -> None:
        settings: dict[str, Any] = {}
        for name, value in {**dict(changes or ()), **more}.items():
            settings |= config.translated(name, value)
        self._flags = {n: v for n, v in settings.items() if n in FLAGS}
        self._own = {n: v for n, v in settings.items() if n not in FLAGS}
        self._open: list[tuple[_Block, dict[str, Any]]] = []

    def __enter__(self) -> None:
        block = flags.change_flags(self._flags)
        block.__enter__()
        self._open.append((block, {n: config.read(n) for n in self._own}))
        config._own.update(self._own)

    def __exit__(self, *error: object) -> None:
        if not self._open:
            return  # left twice: Theano assigns the former values once more
        block, before = self._open.pop()
        config._own.update(before)
        block.__exit__(*error)


config = TheanoConfig()


def _config_print(thing: object, buf: Any, print_doc: bool = True) -> None:
    """Write the names and the values of all flags to ``buf``."""
    print(config, file=buf, end="")


change_flags, THEANO_FLAGS = ChangeFlags, os.environ.get("THEANO_FLAGS", "")


class _Named:
    """A flag as ``_config_var_list`` has it: its name, and descriptor methods for its value."""

    def __init__(self, fullname: str) -> None:
        self.fullname = fullname

    def __get__(self, *owner: object) -> Any:
        return config.read(self.fullname)

    def __set__(self, owner: object, value: object) -> None:
        config.write(self.fullname, value)


def __getattr__(name: str) -> Any:
    if name == "THEANO_FLAGS_DICT":  # what of them no flag has taken
        return dict(config._unclaimed)
    if name == "_config_var_list":  # what programs look flags up in
        return [_Named(n) for n in config.names()]
    raise AttributeError(name)
