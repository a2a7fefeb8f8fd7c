"""Names of ``theano.configdefaults``: what its flags accept, and what their defaults are."""

from __future__ import annotations

import os
import platform
import re
import socket
import struct
from typing import Any

import numpy as np

from symdnn.compat.theano import settings
from symdnn.compat.theano.names.dnn_names import (
    SUPPORTED_DNN_CONV_ALGO_BWD_DATA,
    SUPPORTED_DNN_CONV_ALGO_BWD_FILTER,
    SUPPORTED_DNN_CONV_ALGO_FWD,
    SUPPORTED_DNN_CONV_ALGO_RUNTIME,
    SUPPORTED_DNN_CONV_PRECISION,
)
from symdnn.compat.theano.names.flags.configparser import ConfigParam
from symdnn.compat.theano.names.top import __version__
from symdnn.compat.theano.settings import config
from symdnn.compile.program.mode import Mode
from symdnn.flags import FLAGS

__all__ = [
    "ContextsParam", "DeviceParam", "SUPPORTED_DNN_CONV_ALGO_BWD_DATA",
    "SUPPORTED_DNN_CONV_ALGO_BWD_FILTER", "SUPPORTED_DNN_CONV_ALGO_FWD",
    "SUPPORTED_DNN_CONV_ALGO_RUNTIME", "SUPPORTED_DNN_CONV_PRECISION", "compiledir_format_dict",
    "compiledir_format_keys", "default_compiledir", "default_compiledir_format",
    "default_compiledirname", "default_cuda_include", "default_dnn_base_path",
    "default_dnn_bin_path", "default_dnn_inc_path", "default_dnn_lib_path", "default_openmp",
    "deprecated_gpuarray_sync", "filter_base_compiledir", "filter_compiledir", "filter_mode",
    "filter_vm_lazy", "floatX_convert", "gcc_version_str", "get_cuda_root", "get_home_dir",
    "good_seed_param", "is_valid_check_preallocated_output_param", "local_bitwidth",
    "python_int_bitwidth", "safe_no_dnn_algo_bwd", "safe_no_dnn_workmem",
    "safe_no_dnn_workmem_bwd", "short_platform", "split_version", "warn_cxx", "warn_default",
]  # fmt: skip


# -- what flags accept ----------------------------------------------------------------------------


def floatX_convert(s: str) -> str:
    """``"32"`` means ``"float32"``; other words mean themselves."""
    return f"float{s}" if s in ("16", "32", "64") else s


class DeviceParam(ConfigParam):
    """A flag of a device: its default, or a word that begins with ``cuda`` or ``opencl``."""

    def __init__(self, default: str, *options: object, allow_override: bool = True) -> None:
        super().__init__(default, self._device, allow_override)

    def _device(self, value: str) -> str:
        if value == self.default or value.startswith(("cuda", "opencl")):
            return value
        hint = "; the devices of Theano's first GPU code are cuda* now" if "gpu" in value else ""
        raise ValueError(
            f"theano.config.{self.fullname} = {value!r}: wanted {self.default!r}, opencl* or "
            f"cuda*{hint}"
        )

    def __str__(self) -> str:
        return f"{self.fullname} ({self.default}, opencl*, cuda*) "


class ContextsParam(ConfigParam):
    """A flag of names of devices: ``name->cuda0;other->cuda1``."""

    def __init__(self) -> None:
        super().__init__("", self._contexts, allow_override=False)

    def _contexts(self, value: str) -> str:
        for part in value.split(";") if value else ():
            name, *device = part.split("->")
            if len(device) != 1:
                raise ValueError(f"contexts: {part!r}: wanted name->device")
            if name == "cpu" or name.startswith(("cuda", "opencl")):
                raise ValueError(f"contexts: {name!r} is a device, and cannot be a name of one")
        return value


def filter_mode(val: Any) -> Any:
    """A mode, or the name of one of Theano's; others are a ``ValueError``."""
    words = ("Mode", "DebugMode", "FAST_RUN", "NanGuardMode", "FAST_COMPILE", "DEBUG_MODE")
    if isinstance(val, Mode) or val in words:
        return val
    raise ValueError(f"mode={val!r}: wanted a Mode, or one of {', '.join(words)}")


def filter_vm_lazy(val: object) -> bool | None:
    """True, False or None, which may be written as text."""
    for meant in (True, False, None):
        if val is meant or val == str(meant):
            return meant
    raise ValueError(f"vm.lazy={val!r}: wanted True, False or None")


def good_seed_param(seed: Any) -> bool:
    """Whether ``seed`` is an integer or ``"random"``."""
    try:
        return seed == "random" or isinstance(int(seed), int)
    except (TypeError, ValueError, OverflowError):
        return False


def is_valid_check_preallocated_output_param(param: object) -> bool:
    """Whether ``param`` is text of words of ``DebugMode.check_preallocated_output``."""
    words = ["initial", "previous", "c_contiguous", "f_contiguous", "strided", "wrong_size", "ALL"]
    return isinstance(param, str) and set(param.split(":")) <= {*words, ""}


def warn_cxx(val: object) -> bool:
    """True: any compiler may be named, since none is used."""
    return True


def _removed(flag: str, now: str) -> Any:
    def safe(value: object) -> bool:
        if value:
            raise RuntimeError(f"{flag}={value!r}: Theano 1.0 has no such flag; use {now}")
        return True

    safe.__doc__ = f"True of an empty value; ``{flag}`` is ``{now}`` now."
    return safe


safe_no_dnn_workmem = _removed("dnn.conv.workmem", "dnn.conv.algo_fwd")
_BWD = "dnn.conv.algo_bwd_filter and dnn.conv.algo_bwd_data"
safe_no_dnn_workmem_bwd = _removed("dnn.conv.workmem_bwd", _BWD)
safe_no_dnn_algo_bwd = _removed("dnn.conv.algo_bwd", _BWD)


def deprecated_gpuarray_sync(val: object) -> bool:
    """False of an empty value; ``gpuarray.sync`` is no flag any more."""
    return not _removed("gpuarray.sync", "gpuarray.single_stream")(val)


# -- versions -------------------------------------------------------------------------------------


def split_version(version: str) -> tuple[int, ...]:
    """``"0.10.1"`` as (0, 10, 1)."""
    return tuple(int(part) for part in version.split("."))


def warn_default(version: str) -> bool:
    """Whether ``warn.ignore_bug_before`` asks for warnings about faults mended in ``version``."""
    before = config.warn.ignore_bug_before
    if before in ("None", "all"):
        return bool(before == "None")
    return split_version(before) < split_version(version)


# -- folders and libraries ------------------------------------------------------------------------


def get_home_dir() -> str:
    """The user's home."""
    return os.path.expanduser("~")


def get_cuda_root() -> str:
    """The folder of CUDA: ``CUDA_ROOT``, ``CUDA_PATH``, or where ``PATH`` has nvcc; else ""."""
    named = os.environ.get("CUDA_ROOT") or os.environ.get("CUDA_PATH")
    if named:
        return named
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if os.path.exists(os.path.join(folder, "nvcc")):
            return os.path.dirname(os.path.abspath(folder))
    return ""


def _below(root: str, folder: str) -> str:
    return os.path.join(root, folder) if root else ""


def default_cuda_include() -> str:
    """The folder of CUDA's headers, where ``cuda.root`` is known."""
    return _below(config.cuda.root, "include")


def default_dnn_base_path() -> str:
    """The folder ``cuda.root``, where it has cuDNN's header; else ""."""
    root: str = config.cuda.root
    return root if os.path.exists(_below(root, "include/cudnn.h")) else ""


def default_dnn_inc_path() -> str:
    """The folder of cuDNN's headers, where ``dnn.base_path`` is known."""
    return _below(config.dnn.base_path, "include")


def default_dnn_lib_path() -> str:
    """The folder of cuDNN's libraries, where ``dnn.base_path`` is known."""
    return _below(config.dnn.base_path, "lib64")


def default_dnn_bin_path() -> str:
    """``dnn.library_path``, where ``dnn.base_path`` is known."""
    return str(config.dnn.library_path) if config.dnn.base_path else ""


# -- the folder of what is compiled ---------------------------------------------------------------

default_openmp = False
#: Theano's word where there is no compiler; none is used.
gcc_version_str = "GCC_NOT_FOUND"


def local_bitwidth() -> int:
    """The bits of a pointer of this Python."""
    return struct.calcsize("P") * 8


def python_int_bitwidth() -> int:
    """The bits of a C long."""
    return struct.calcsize("l") * 8


def short_platform(r: str | None = None, p: str | None = None) -> str:
    """The platform ``p``, whose release ``r`` is shortened to what changes what is compiled.

    >>> short_platform("2.6.32-504.el6.x86_64", "Linux-2.6.32-504.el6.x86_64-x86_64-with-redhat")
    'Linux-2.6-el6.x86_64-x86_64-with-redhat'
    """
    release, whole = r or platform.release(), p or platform.platform()
    kernel, *rest = release.split("-")
    numbers = kernel.split(".")
    if not rest or len(numbers) < 3:
        return whole
    words = rest[0].split(".")
    while words and words[0].isdigit():
        del words[0]
    short = [".".join(numbers[:2]), ".".join(words), *rest[1:]]
    return whole.replace(release, "-".join(short))


compiledir_format_dict = {
    "platform": platform.platform(),
    "processor": platform.processor(),
    "python_version": platform.python_version(),
    "python_bitwidth": local_bitwidth(),
    "python_int_bitwidth": python_int_bitwidth(),
    "theano_version": __version__,
    "numpy_version": np.__version__,
    "gxx_version": gcc_version_str,
    "hostname": socket.gethostname(),
    "short_platform": short_platform(),
    "device": config.device,
}
compiledir_format_keys = ", ".join(sorted(compiledir_format_dict))
default_compiledir_format = (
    "compiledir_%(short_platform)s-%(processor)s-%(python_version)s-%(python_bitwidth)s"
)


def default_compiledirname() -> str:
    """The name of this machine's folder, by ``compiledir_format``."""
    form = config.compiledir_format or default_compiledir_format
    return re.sub(r"[()\s,]+", "_", form % compiledir_format_dict)


def default_compiledir() -> str:
    """The folder of what is compiled. It is ``base_compiledir``: no other is made in it."""
    return str(config.compiledir)


def filter_base_compiledir(path: object) -> str:
    """``path`` with ``~`` written out."""
    return os.path.expanduser(str(path))


def filter_compiledir(path: object) -> str:
    """The real path of ``path``, which is made unless it is there; ``ValueError`` where it cannot
    be made, read or written."""
    real = os.path.realpath(filter_base_compiledir(path))
    try:
        os.makedirs(real, 0o770, exist_ok=True)
    except OSError as why:
        raise ValueError(f"compiledir {real!r} cannot be made: {why}") from why
    if not os.access(real, os.R_OK | os.W_OK | os.X_OK):
        raise ValueError(f"compiledir {real!r}: wanted rights to read, list and write it")
    return real


def _timeout_default() -> int:
    return int(config.compile.wait) * 24


def __getattr__(name: str) -> Any:
    if name == "default_base_compiledir":
        default = FLAGS["base_compiledir"].default
        return default() if callable(default) else default
    if name == "THEANO_FLAGS_DICT":
        return getattr(settings, name)
    raise AttributeError(name)
