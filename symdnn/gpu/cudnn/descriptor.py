"""cuDNN's descriptors as values: a frozen dataclass describes one, and a cache creates it.

A :class:`Description` is the key. :func:`descriptor` returns the descriptor for it; equal
descriptions share one. It is destroyed some time after the last launch that holds it has gone, for
example when a plan is evicted: the last ones that were made are kept, since the choice of an
algorithm, its launch and its check ask for the same ones in turn. :func:`free_all` destroys those
that are left. At the end of the process none is.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import TYPE_CHECKING, ClassVar

from symdnn.errors import CudnnError
from symdnn.gpu import libcudnn

if TYPE_CHECKING:
    from symdnn.gpu.binding.cudnn_types import Handle

#: Names of ``TensorType`` -> ``cudnnDataType_t``.
DATA_TYPES = {
    "float16": "CUDNN_DATA_HALF", "bfloat16": "CUDNN_DATA_BFLOAT16", "float32": "CUDNN_DATA_FLOAT",
    "float64": "CUDNN_DATA_DOUBLE", "int32": "CUDNN_DATA_INT32", "int64": "CUDNN_DATA_INT64",
    "uint8": "CUDNN_DATA_UINT8", "int8": "CUDNN_DATA_INT8",
}  # fmt: skip


def packed(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a C-contiguous tensor."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


@dataclass(frozen=True)
class Description:
    """The contents of a descriptor. ``kind`` is the word in ``cudnnCreate<kind>Descriptor``."""

    kind: ClassVar[str] = ""

    def fill(self, handle: Handle) -> None:
        """Write the fields into the descriptor ``handle``."""
        raise NotImplementedError

    def __str__(self) -> str:
        given = ", ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))
        return f"{self.kind}({given})"


class Descriptor:
    """A descriptor; ``handle`` is cuDNN's.

    It is destroyed when the handle is garbage collected, so ``f(descriptor(d).handle)`` is safe.
    """

    def __init__(self, description: Description) -> None:
        self.description = description
        self.handle = getattr(libcudnn, f"cudnnCreate{description.kind}Descriptor")()
        destroy = getattr(libcudnn, f"cudnnDestroy{description.kind}Descriptor")
        self._end = weakref.finalize(self.handle, destroy, int(self.handle))
        self._end.atexit = False  # the library may be unloaded already at the end of the process
        try:
            description.fill(self.handle)
        except CudnnError as error:
            error.add_note(f"  descriptor: {description}")
            raise

    def free(self) -> None:
        """Destroy the descriptor."""
        self._end()

    def __str__(self) -> str:
        return str(self.description)


#: So many descriptors are kept without a launch that holds them.
_RECENT_COUNT = 64

_recent: deque[Descriptor] = deque(maxlen=_RECENT_COUNT)
_cache: weakref.WeakValueDictionary[Description, Descriptor] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def descriptor(description: Description) -> Descriptor:
    """The descriptor of ``description``, created if needed. The caller keeps it while in use."""
    with _lock:
        found = _cache.get(description)
        if found is None:
            found = _cache[description] = Descriptor(description)
            _recent.append(found)
        return found


def free_all() -> None:
    """Destroy all cached descriptors. Bound launches that hold one must not run afterwards."""
    with _lock:
        for found in list(_cache.values()):
            found.free()
        _cache.clear()
        _recent.clear()


# -- data -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorDescription(Description):
    """A tensor of three to eight dimensions with any ``strides``, in elements."""

    kind: ClassVar[str] = "Tensor"
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.strides) != len(self.shape):
            object.__setattr__(self, "strides", packed(self.shape))

    def fill(self, handle: Handle) -> None:
        libcudnn.cudnnSetTensorNdDescriptor(
            handle, DATA_TYPES[self.dtype], len(self.shape), self.shape, self.strides
        )

    def __str__(self) -> str:
        gaps = "" if self.strides == packed(self.shape) else f" with strides {self.strides}"
        return f"tensor {self.dtype}{self.shape}{gaps}"


@dataclass(frozen=True)
class FilterDescription(Description):
    """The filters of a convolution: (out channels, channels / groups, \\*sizes), contiguous."""

    kind: ClassVar[str] = "Filter"
    dtype: str
    shape: tuple[int, ...]
    layout: str = "NCHW"

    def fill(self, handle: Handle) -> None:
        libcudnn.cudnnSetFilterNdDescriptor(
            handle, DATA_TYPES[self.dtype], f"CUDNN_TENSOR_{self.layout}", len(self.shape),
            self.shape,
        )  # fmt: skip

    def __str__(self) -> str:
        return f"filter {self.dtype}{self.shape} {self.layout}"


@dataclass(frozen=True)
class RNNDataDescription(Description):
    """Sequences as (time, batch, vector), with a length for each of the batch.

    In a result, the elements beyond a sequence's end are set to 0.
    """

    kind: ClassVar[str] = "RNNData"
    dtype: str
    steps: int
    batch: int
    vector: int
    lengths: tuple[int, ...]

    def fill(self, handle: Handle) -> None:
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
    """A convolution. ``flip`` mirrors the filters, ``compute`` is the accumulation dtype.

    ``math`` is the ``cudnnMathType_t`` without its prefix; ``FMA_MATH`` avoids TF32 for float32.
    """

    kind: ClassVar[str] = "Convolution"
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    flip: bool
    compute: str
    math: str

    def fill(self, handle: Handle) -> None:
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
    """A pooling by ``mode``, a ``cudnnPoolingMode_t`` without its prefix. NaN propagates."""

    kind: ClassVar[str] = "Pooling"
    mode: str
    window: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]

    def fill(self, handle: Handle) -> None:
        libcudnn.cudnnSetPoolingNdDescriptor(
            handle, f"CUDNN_POOLING_{self.mode}", "CUDNN_PROPAGATE_NAN", len(self.window),
            self.window, self.padding, self.stride,
        )  # fmt: skip


@dataclass(frozen=True)
class ActivationDescription(Description):
    """An activation by ``mode``, a ``cudnnActivationMode_t`` without its prefix. NaN propagates."""

    kind: ClassVar[str] = "Activation"
    mode: str
    coef: float

    def fill(self, handle: Handle) -> None:
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

    def fill(self, handle: Handle) -> None:
        libcudnn.cudnnSetLRNDescriptor(handle, self.n, self.alpha, self.beta, self.k)


@dataclass(frozen=True)
class ReduceTensorDescription(Description):
    """A reduction by ``op``, a ``cudnnReduceTensorOp_t`` without its prefix. Indices are int32."""

    kind: ClassVar[str] = "ReduceTensor"
    op: str
    compute: str
    indices: bool

    def fill(self, handle: Handle) -> None:
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

    def fill(self, handle: Handle) -> None:
        libcudnn.cudnnSetSpatialTransformerNdDescriptor(
            handle, "CUDNN_SAMPLER_BILINEAR", DATA_TYPES[self.dtype], len(self.shape), self.shape
        )


@dataclass(frozen=True)
class CTCLossDescription(Description):
    """A CTC loss of unnormalised scores; gradients beyond a sequence's end are 0."""

    kind: ClassVar[str] = "CTCLoss"
    compute: str
    longest_label: int

    def fill(self, handle: Handle) -> None:
        libcudnn.cudnnSetCTCLossDescriptor_v9(
            handle, DATA_TYPES[self.compute], "CUDNN_LOSS_NORMALIZATION_SOFTMAX",
            "CUDNN_CTC_ZERO_OOB_GRADIENTS", self.longest_label,
        )  # fmt: skip


@dataclass(frozen=True)
class RNNDescription(Description):
    """Recurrent layers; the fields' names are those of :class:`symdnn.ops.nn.rnn_params.RNNShape`.

    ``dropout`` is the handle of a dropout descriptor that outlives this one, or 0.
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

    def fill(self, handle: Handle) -> None:
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
    """An empty dropout descriptor: to fill it enqueues work, and its state changes at each use."""

    kind: ClassVar[str] = "Dropout"

    def fill(self, handle: Handle) -> None:
        """Does nothing: each launch calls ``cudnnSetDropoutDescriptor``."""


def dropout_descriptor() -> Descriptor:
    """A new empty dropout descriptor, which is not shared."""
    return Descriptor(_Dropout())
