"""Names of Theano's ``dnn`` module that query cuDNN's library, and that programs read or patch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from symdnn.gpu import libcudnn
from symdnn.gpu.binding import cudnn_library
from symdnn.gpu.detect import dnn_present, version

__all__ = [
    "CUDNNDataType", "Definitions", "DnnVersion", "_dnn_check_compile", "_dnn_check_version",
    "_dnn_lib", "_make_handle", "cudnn", "handle_type",
]  # fmt: skip


@dataclass(frozen=True)
class DnnVersion:
    """The versions of headers and library; for symdnn, those of the table and the library.

    In Theano it is an op. Here a call returns the versions.
    """

    def __call__(self) -> tuple[int, int]:
        major, minor, patch, *_ = (*map(int, cudnn_library.table_version().split(".")), 0, 0)
        return major * 10000 + minor * 100 + patch, version()


@dataclass(frozen=True)
class CUDNNDataType:
    """A C type of cuDNN, and the function that frees it."""

    ctype: str
    freefunc: str | None = None


handle_type = CUDNNDataType("cudnnHandle_t", "cudnnDestroy")


def _dnn_lib() -> Any:
    """cuDNN's library, a ctypes ``CDLL``."""
    return cudnn_library.library().cdll


def _make_handle(ctx: Any) -> Any:
    """A new ``cudnnHandle_t`` in the current CUDA context."""
    return libcudnn.cudnnCreate()


def _dnn_check_compile() -> tuple[bool, str]:
    """Whether cuDNN is installed, and why not. Unlike Theano's, it compiles nothing."""
    return dnn_present(), dnn_present.msg


def _dnn_check_version() -> tuple[bool, str]:
    """Whether symdnn can use cuDNN's version, and why not."""
    return _dnn_check_compile()


class Aliases:
    """An enum of cuDNN with Theano's words for its values."""

    def __init__(self, enum: str, words: dict[str, str]) -> None:
        self.enum, self.words = enum, words

    def get_aliases(self) -> tuple[str, ...]:
        """The words."""
        return tuple(self.words)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("CUDNN_"):
            return getattr(libcudnn, self.enum)[name]
        raise AttributeError(name)


def _prefixed(prefix: str, words: str) -> dict[str, str]:
    return {w: f"CUDNN_{prefix}_{w.upper()}" for w in words.split()}


class Definitions:
    """cuDNN's enums with Theano's words."""

    @property
    def version(self) -> int:
        """The version of the library."""
        return version()

    cudnnConvolutionMode_t = Aliases(
        "cudnnConvolutionMode", {"conv": "CUDNN_CONVOLUTION", "cross": "CUDNN_CROSS_CORRELATION"}
    )
    cudnnPoolingMode_t = Aliases(
        "cudnnPoolingMode",
        {
            "max": "CUDNN_POOLING_MAX",
            "average_inc_pad": "CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING",
            "average_exc_pad": "CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING",
            "max_deterministic": "CUDNN_POOLING_MAX_DETERMINISTIC",
        },
    )
    cudnnSoftmaxAlgorithm_t = Aliases(
        "cudnnSoftmaxAlgorithm", _prefixed("SOFTMAX", "fast accurate log")
    )
    cudnnSoftmaxMode_t = Aliases("cudnnSoftmaxMode", _prefixed("SOFTMAX_MODE", "instance channel"))


#: Theano's name for the definitions.
cudnn = Definitions()
