"""Names of Theano's ``dnn`` module that ask cuDNN's library, and that programs read or patch."""

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
    """(version of the headers, version of the library); symdnn's are of the table and the library.

    In Theano an op; here its result is there at once.
    """

    def __call__(self) -> tuple[int, int]:
        major, minor, patch, *_ = (*map(int, cudnn_library.table_version().split(".")), 0, 0)
        return major * 10000 + minor * 100 + patch, version()


@dataclass(frozen=True)
class CUDNNDataType:
    """A C type of cuDNN's, and what frees it."""

    ctype: str
    freefunc: str | None = None


handle_type = CUDNNDataType("cudnnHandle_t", "cudnnDestroy")


def _dnn_lib() -> Any:
    """cuDNN's library, as ctypes has it."""
    return cudnn_library.library().cdll


def _make_handle(ctx: Any) -> Any:
    """A new handle of cuDNN in the current CUDA context."""
    return libcudnn.cudnnCreate()


def _dnn_check_compile() -> tuple[bool, str]:
    """Whether cuDNN is here, and why not. Nothing is compiled for it."""
    return dnn_present(), dnn_present.msg


def _dnn_check_version() -> tuple[bool, str]:
    """Whether its version is one that symdnn can use, and why not."""
    return _dnn_check_compile()


class Aliases:
    """An enum of cuDNN's and Theano's words for its values."""

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
    """Enums with the words that programs write."""

    @property
    def version(self) -> int:
        """Of the library."""
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


#: Theano's name for them.
cudnn = Definitions()
