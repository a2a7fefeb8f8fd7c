"""cuDNN's descriptors as values: a frozen dataclass says what one holds, a cache makes it once.

A :class:`Description` is the key, every field named. :func:`descriptor` gives the descriptor that
exists for it; equal descriptions share one. It is destroyed when the last launch that holds it is
dropped, so plans that leave their cache take their descriptors along; :func:`free_all` frees what
is left, and at the end of the process nothing is called any more.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import Any, ClassVar

from symdnn.errors import CudnnError
from symdnn.gpu import libcudnn

__all__ = [
    "ActivationDescription", "CTCLossDescription", "ConvolutionDescription", "DATA_TYPES",
    "Description", "Descriptor", "FilterDescription", "LRNDescription", "PoolingDescription",
    "RNNDataDescription", "RNNDescription", "ReduceTensorDescription",
    "SpatialTransformerDescription", "TensorDescription", "compute_dtype", "descriptor",
    "dropout_descriptor", "free_all",
]  # fmt: skip

#: Names of ``TensorType`` -> ``cudnnDataType_t``.
DATA_TYPES = {
    "float16": "CUDNN_DATA_HALF", "bfloat16": "CUDNN_DATA_BFLOAT16", "float32": "CUDNN_DATA_FLOAT",
    "float64": "CUDNN_DATA_DOUBLE", "int32": "CUDNN_DATA_INT32", "int64": "CUDNN_DATA_INT64",
    "uint8": "CUDNN_DATA_UINT8", "int8": "CUDNN_DATA_INT8",
}  # fmt: skip


def compute_dtype(dtype: str) -> str:
    """In what cuDNN computes with such data, and the type of its scaling factors."""
    return "float64" if dtype == "float64" else "float32"


def packed(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a C-contiguous tensor."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


@dataclass(frozen=True)
class Description:
    """What a descriptor holds. ``kind`` is the word in ``cudnnCreate<kind>Descriptor``."""

    kind: ClassVar[str] = ""

    def fill(self, handle: Any) -> None:
        """Write the fields into the descriptor ``handle``."""
        raise NotImplementedError

    def __str__(self) -> str:
        given = ", ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))
        return f"{self.kind}({given})"


class Descriptor:
    """A descriptor that exists; ``handle`` is cuDNN's. Destroyed when the handle is dropped, so
    that ``f(descriptor(d).handle)`` is safe."""

    def __init__(self, description: Description) -> None:
        self.description = description
        self.handle = getattr(libcudnn, f"cudnnCreate{description.kind}Descriptor")()
        destroy = getattr(libcudnn, f"cudnnDestroy{description.kind}Descriptor")
        self._end = weakref.finalize(self.handle, destroy, int(self.handle))
        self._end.atexit = False  # then the library may be gone, and the memory goes anyway
        try:
            description.fill(self.handle)
        except CudnnError as error:
            error.add_note(f"  descriptor: {description}")
            raise

    def free(self) -> None:
        """Destroy it now."""
        self._end()

    def __str__(self) -> str:
        return str(self.description)


_cache: weakref.WeakValueDictionary[Description, Descriptor] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def descriptor(description: Description) -> Descriptor:
    """The descriptor of ``description``, made at the first call; keep it while it is used."""
    with _lock:
        found = _cache.get(description)
        if found is None:
            found = _cache[description] = Descriptor(description)
        return found


def free_all() -> None:
    """Destroy every cached descriptor; bound launches that hold one must not run any more."""
    with _lock:
        for found in list(_cache.values()):
            found.free()
        _cache.clear()


# -- data -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorDescription(Description):
    """A tensor of three to eight dimensions; ``strides`` are in elements and may be any."""

    kind: ClassVar[str] = "Tensor"
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.strides) != len(self.shape):
            object.__setattr__(self, "strides", packed(self.shape))

    def fill(self, handle: Any) -> None:
        libcudnn.cudnnSetTensorNdDescriptor(
            handle, DATA_TYPES[self.dtype], len(self.shape), self.shape, self.strides
        )

    def __str__(self) -> str:
        gaps = "" if self.strides == packed(self.shape) else f" with strides {self.strides}"
        return f"tensor {self.dtype}{self.shape}{gaps}"


@dataclass(frozen=True)
class FilterDescription(Description):
    """The kernels of a convolution: (out channels, channels / groups, \\*sizes), contiguous."""

    kind: ClassVar[str] = "Filter"
    dtype: str
    shape: tuple[int, ...]
    layout: str = "NCHW"

    def fill(self, handle: Any) -> None:
        libcudnn.cudnnSetFilterNdDescriptor(
            handle, DATA_TYPES[self.dtype], f"CUDNN_TENSOR_{self.layout}", len(self.shape),
            self.shape,
        )  # fmt: skip

    def __str__(self) -> str:
        return f"filter {self.dtype}{self.shape} {self.layout}"


@dataclass(frozen=True)
class RNNDataDescription(Description):
    """Sequences as (time, batch, vector); ``lengths`` has one for each of the batch.

    What lies beyond a sequence's end is filled with 0 where this describes a result.
    """

    kind: ClassVar[str] = "RNNData"
    dtype: str
    steps: int
    batch: int
    vector: int
    lengths: tuple[int, ...]

    def fill(self, handle: Any) -> None:
        libcudnn.cudnnSetRNNDataDescriptor(
            handle, DATA_TYPES[self.dtype], "CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED",
            self.steps, self.batch, self.vector, self.lengths, 0.0,
        )  # fmt: skip

    def __str__(self) -> str:
        shown = "" if set(self.lengths) <= {self.steps} else f", lengths {self.lengths[:8]}"
        return f"sequences {self.dtype}({self.steps}, {self.batch}, {self.vector}){shown}"


# -- operations -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConvolutionDescription(Description):
    """``flip`` mirrors the kernels; ``compute`` is the accumulation dtype, ``math`` the
    ``cudnnMathType_t`` without its prefix (``FMA_MATH`` keeps float32 from TF32)."""

    kind: ClassVar[str] = "Convolution"
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    flip: bool
    compute: str
    math: str

    def fill(self, handle: Any) -> None:
        mode = "CUDNN_CONVOLUTION" if self.flip else "CUDNN_CROSS_CORRELATION"
        libcudnn.cudnnSetConvolutionNdDescriptor(
            handle, len(self.padding), self.padding, self.stride, self.dilation, mode,
            DATA_TYPES[self.compute],
        )  # fmt: skip
        libcudnn.cudnnSetConvolutionMathType(handle, f"CUDNN_{self.math}")
        libcudnn.cudnnSetConvolutionGroupCount(handle, self.groups)

    def __str__(self) -> str:
        mode = "convolution" if self.flip else "cross-correlation"
        return (
            f"{mode}, padding {self.padding}, stride {self.stride}, dilation {self.dilation}, "
            f"groups {self.groups}, in {self.compute}, {self.math}"
        )


@dataclass(frozen=True)
class PoolingDescription(Description):
    """``mode`` is ``cudnnPoolingMode_t`` without its prefix. A NaN in a window is the result."""

    kind: ClassVar[str] = "Pooling"
    mode: str
    window: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]

    def fill(self, handle: Any) -> None:
        libcudnn.cudnnSetPoolingNdDescriptor(
            handle, f"CUDNN_POOLING_{self.mode}", "CUDNN_PROPAGATE_NAN", len(self.window),
            self.window, self.padding, self.stride,
        )  # fmt: skip


@dataclass(frozen=True)
class ActivationDescription(Description):
    """``mode`` is ``cudnnActivationMode_t`` without its prefix; a NaN stays one."""

    kind: ClassVar[str] = "Activation"
    mode: str
    coef: float

    def fill(self, handle: Any) -> None:
        libcudnn.cudnnSetActivationDescriptor(
            handle, f"CUDNN_ACTIVATION_{self.mode}", "CUDNN_PROPAGATE_NAN", self.coef
        )


@dataclass(frozen=True)
class LRNDescription(Description):
    """Local response normalisation over ``n`` channels."""

    kind: ClassVar[str] = "LRN"
    n: int
    alpha: float
    beta: float
    k: float

    def fill(self, handle: Any) -> None:
        libcudnn.cudnnSetLRNDescriptor(handle, self.n, self.alpha, self.beta, self.k)


@dataclass(frozen=True)
class ReduceTensorDescription(Description):
    """``op`` is ``cudnnReduceTensorOp_t`` without its prefix; indices are of 32 bits."""

    kind: ClassVar[str] = "ReduceTensor"
    op: str
    compute: str
    indices: bool

    def fill(self, handle: Any) -> None:
        which = "FLATTENED" if self.indices else "NO"
        libcudnn.cudnnSetReduceTensorDescriptor(
            handle, f"CUDNN_REDUCE_TENSOR_{self.op}", DATA_TYPES[self.compute],
            "CUDNN_PROPAGATE_NAN", f"CUDNN_REDUCE_TENSOR_{which}_INDICES", "CUDNN_32BIT_INDICES",
        )  # fmt: skip


@dataclass(frozen=True)
class SpatialTransformerDescription(Description):
    """A bilinear sampler whose result has ``shape`` (N, C, H, W)."""

    kind: ClassVar[str] = "SpatialTransformer"
    dtype: str
    shape: tuple[int, ...]

    def fill(self, handle: Any) -> None:
        libcudnn.cudnnSetSpatialTransformerNdDescriptor(
            handle, "CUDNN_SAMPLER_BILINEAR", DATA_TYPES[self.dtype], len(self.shape), self.shape
        )


@dataclass(frozen=True)
class CTCLossDescription(Description):
    """A CTC loss of unnormalised scores; gradients beyond a sequence's end are 0."""

    kind: ClassVar[str] = "CTCLoss"
    compute: str
    longest_label: int

    def fill(self, handle: Any) -> None:
        libcudnn.cudnnSetCTCLossDescriptor_v9(
            handle, DATA_TYPES[self.compute], "CUDNN_LOSS_NORMALIZATION_SOFTMAX",
            "CUDNN_CTC_ZERO_OOB_GRADIENTS", self.longest_label,
        )  # fmt: skip


@dataclass(frozen=True)
class RNNDescription(Description):
    """A recurrent net; the words are those of :class:`symdnn.ops.nn.rnn_params.RNNShape`.

    ``dropout`` is the handle of a dropout descriptor that outlives this one, 0 for none.
    """

    kind: ClassVar[str] = "RNN"
    algo: str
    mode: str
    direction: str
    input_mode: str
    dtype: str
    compute: str
    math: str
    input_size: int
    hidden_size: int
    layers: int
    dropout: int = 0

    def fill(self, handle: Any) -> None:
        libcudnn.cudnnSetRNNDescriptor_v8(
            handle,
            f"CUDNN_RNN_ALGO_{self.algo}",
            f"CUDNN_{self.mode.upper()}",
            "CUDNN_RNN_DOUBLE_BIAS",
            f"CUDNN_{self.direction.upper()}",
            f"CUDNN_{self.input_mode.upper()}_INPUT",
            DATA_TYPES[self.dtype],
            DATA_TYPES[self.compute],
            f"CUDNN_{self.math}",
            self.input_size,
            self.hidden_size,
            self.hidden_size,  # no projection: it has the size of the hidden state
            self.layers,
            self.dropout or None,
            1,  # CUDNN_RNN_PADDED_IO_ENABLED
        )


class _Dropout(Description):
    """Made empty: filling it in enqueues work, and its state changes at each use."""

    kind: ClassVar[str] = "Dropout"

    def fill(self, handle: Any) -> None:
        """Nothing: ``cudnnSetDropoutDescriptor`` comes with each launch."""


def dropout_descriptor() -> Descriptor:
    """An empty dropout descriptor of one's own, never shared."""
    return Descriptor(_Dropout())
