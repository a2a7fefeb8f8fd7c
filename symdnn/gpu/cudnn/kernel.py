"""Base of the kernels that call cuDNN: checks, scaling factors, pieces of a batch, errors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from symdnn.errors import CudnnError
from symdnn.gpu.cudnn.descriptor import (
    Descriptor,
    TensorDescription,
    descriptor,
    packed,
)
from symdnn.gpu.cudnn.version import with_version
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.kernels.copy import strided_copy
from symdnn.graph.kernel import Call, Kernel, Traits
from symdnn.graph.type import TensorType
from symdnn.graph.typing import OpT
from symdnn.ops.core.dtype import wide_float
from symdnn.ops.nn.channels_last import LAYOUTS, first_shape

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

CUDNN = Traits("cudnn")

FLOATS = frozenset({"float16", "float32", "float64"})
WITH_BFLOAT16 = FLOATS | {"bfloat16"}
NCHW_ONLY = frozenset({"NCHW"})
ANY_LAYOUT = frozenset(LAYOUTS)
#: Limits of one call: cuDNN's indices have 32 bits, and its grids 65535 blocks along the batch.
MAX_ELEMENTS = 2**31 - 1
MAX_ROWS = 65535


class CudnnKernel(Kernel[OpT]):
    """Base of the kernels; see :class:`symdnn.graph.kernel.Kernel`.

    ``dtypes`` are the supported dtypes of float operands, ``layouts`` the supported layouts.
    """

    traits = CUDNN
    contiguous_inputs = True
    dtypes: frozenset[str] = FLOATS
    layouts: frozenset[str] = NCHW_ONLY

    def refuses(self, call: Call[OpT]) -> str | None:
        """Why cuDNN cannot run this call. Without known sizes only types are checked."""
        reason = refuses_layout(call, self.layouts) or self.refuses_types(call)
        return reason or (self.refuses_sizes(call) if call.has_sizes else None)

    def refuses_types(self, call: Call[OpT]) -> str | None:
        """Why cuDNN cannot run calls of these types: here, dtypes."""
        for t in (*call.inputs, *call.outputs):
            if isinstance(t, TensorType) and t.is_float and t.dtype not in self.dtypes:
                return f"cuDNN has no such function for {t.dtype}"
        return None

    def refuses_sizes(self, call: Call[OpT]) -> str | None:
        """Why cuDNN cannot run calls of these sizes: here, None."""
        return None

    def bind(self, call: Call[OpT]) -> Any:
        """:meth:`launcher`, with :meth:`details` added to errors of cuDNN."""
        return with_details(self.launcher(call), lambda: f"{self.name}: {self.details(call)}")

    def launcher(self, call: Call[OpT]) -> Callable[..., Any]:
        """A function ``launch(env, inputs, outputs)`` that enqueues the call."""
        raise NotImplementedError


def refuses_layout(call: Call, layouts: frozenset[str] = NCHW_ONLY) -> str | None:
    """The reason to refuse an op in another layout than these, else None."""
    layout = layout_of(call.op)
    return None if layout in layouts else f"it has no {layout}"


def with_details(launch: Callable[..., Any], describe: Callable[[], str]) -> Callable[..., Any]:
    """``launch``, with ``describe()`` and cuDNN's version added to errors of cuDNN."""

    def run(env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> Any:
        try:
            return launch(env, inputs, outputs)
        except CudnnError as error:
            error.add_note(f"  {describe()}")
            with_version(error)
            raise

    return run


# -- helpers --------------------------------------------------------------------------------------


def tensor(dtype: str, shape: Sequence[int], layout: str = "NCHW") -> Descriptor:
    """The descriptor of a contiguous tensor; NHWC is described by (N, C, \\*sizes) and strides."""
    if layout == "NCHW":
        return descriptor(TensorDescription(dtype, tuple(shape)))
    strides = first_shape(packed(shape))
    return descriptor(TensorDescription(dtype, first_shape(shape), strides))


def layout_of(op: object) -> str:
    """The layout of an op, ``NCHW`` or ``NHWC``."""
    return str(getattr(op, "layout", "NCHW"))


@cache
def factor(dtype: str, value: float) -> Any:
    """alpha or beta for data of ``dtype``, as a pointer, which needs no query of a descriptor."""
    kind = ctypes.c_double if wide_float(dtype) == "float64" else ctypes.c_float
    return ctypes.pointer(kind(value))


def is_empty(*arrays: Any) -> bool:
    """Whether one of the arrays (or types) has no elements."""
    return any(0 in a.shape for a in arrays)


def aligned(nbytes: int) -> int:
    """The next multiple of 256."""
    return -(-nbytes // 256) * 256


def zero(env: LaunchEnv, array: RawArray) -> None:
    """Enqueue filling a contiguous array with zeros."""
    if not is_empty(array):
        env.zero(array.ptr, array.nbytes)


def on_host(env: LaunchEnv, value: Any) -> Any:
    """A value that cuDNN reads on the host, as a NumPy array; waits for one on the device."""
    return env.download(value) if isinstance(value, RawArray) else np.asarray(value)


def copy(env: LaunchEnv, source: RawArray, target: RawArray) -> None:
    """Enqueue a copy, unless both are the same memory."""
    if source.ptr != target.ptr and not is_empty(source):
        strided_copy(env, source, target)


# -- pieces of a batch ----------------------------------------------------------------------------


def max_rows(*shapes: Sequence[int]) -> int:
    """The largest leading dimension of one call for tensors of these shapes; 0: not even 1."""
    largest = max((prod(s[1:]) for s in shapes), default=1)
    return min(MAX_ROWS, MAX_ELEMENTS // max(largest, 1))


def pieces(batch: int, most: int) -> Iterator[tuple[int, int]]:
    """(start, count) of the pieces of a batch, of at most ``most`` samples."""
    for start in range(0, batch, most):
        yield start, min(most, batch - start)


def tensor_pieces(
    dtype: str, *shapes: Sequence[int], layout: str = "NCHW"
) -> list[tuple[int, int, list[Descriptor]]]:
    """(start, count, descriptors) of the calls for a batch of tensors; none for empty ones."""
    if any(0 in s for s in shapes):
        return []
    return [
        (start, count, [tensor(dtype, (count, *s[1:]), layout) for s in shapes])
        for start, count in pieces(shapes[0][0], max_rows(*shapes))
    ]


def rows(x: RawArray, start: int, count: int) -> RawArray:
    """``x[start : start + count]`` of a contiguous array."""
    step = x.itemsize * prod(x.shape[1:])
    return replace(x, ptr=x.ptr + start * step, shape=(count, *x.shape[1:]), strides=())


def by_pieces(
    parts: Sequence[tuple[int, int, Any]], enqueue: Callable[..., None], reads: int = 1
) -> Callable[..., None]:
    """A launch with one call for each piece of a batch; without pieces the results are 0.

    ``parts`` are (start, count, descriptors). ``enqueue(env, descriptors, *addresses)`` gets the
    addresses of a piece in the first ``reads`` inputs and in the results.
    """

    def launch(env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
        if not parts:
            for out in outputs:
                zero(env, out)
        for start, count, d in parts:
            arrays = (*inputs[:reads], *outputs)
            enqueue(env, d, *(rows(v, start, count).ptr for v in arrays))

    return launch
