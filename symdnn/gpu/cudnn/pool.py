"""Pooling by cuDNN, and its gradient.

In max pooling, cuDNN gives the gradient to one element of a window. symdnn's :class:`MaxPoolGrad`
(as Theano's on a CPU) gives it to every tie. A kernel of our own does the same on a GPU. cuDNN's
kernel runs for the hint ``backend="cudnn"``, which :func:`symdnn.gpu.dnn.dnn_pool` sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from symdnn.gpu import libcudnn
from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import CudaKernel, KernelLaunch, Views, blocks_for
from symdnn.gpu.cudnn.descriptor import Descriptor, PoolingDescription, descriptor
from symdnn.gpu.cudnn.fallback import with_fallbacks
from symdnn.gpu.cudnn.kernel import (
    ANY_LAYOUT,
    WITH_BFLOAT16,
    CudnnKernel,
    by_pieces,
    factor,
    is_empty,
    layout_of,
    max_rows,
    refuses_layout,
    rows,
    tensor_pieces,
    zero,
)
from symdnn.graph.kernel import Call, Row
from symdnn.ops.vendor.gpudnn import GpuDnnPool, GpuDnnPoolGrad

if TYPE_CHECKING:
    from symdnn.gpu.device.array import RawArray
    from symdnn.gpu.device.env import LaunchEnv

#: Theano's words -> ``cudnnPoolingMode_t`` without its prefix.
_MODES = {
    "max": "MAX",
    "max_deterministic": "MAX_DETERMINISTIC",
    "average_inc_pad": "AVERAGE_COUNT_INCLUDE_PADDING",
    "average": "AVERAGE_COUNT_INCLUDE_PADDING",
    "average_exc_pad": "AVERAGE_COUNT_EXCLUDE_PADDING",
}


def pooling(op: Any) -> Descriptor:
    """The descriptor of a pooling op."""
    return descriptor(PoolingDescription(_MODES[op.mode], op.ws, op.pad, op.stride))


def too_large(*types: Any) -> str | None:
    """The reason to refuse samples with too many elements for 32-bit indices, else None."""
    return None if max_rows(*(t.shape for t in types)) else "an image of 2**31 elements or more"


def _beyond(call: Call, image: Any) -> str | None:
    op: Any = call.op
    return op.beyond_cudnn(image.shape)


@dataclass(frozen=True)
class PoolKernel(CudnnKernel):
    """``cudnnPoolingForward``."""

    name: str = "cudnn.pool"
    dtypes = WITH_BFLOAT16
    layouts = ANY_LAYOUT

    def refuses_sizes(self, call: Call) -> str | None:
        """Windows that are cut off, sums, and samples that are too large."""
        return _beyond(call, call.inputs[0]) or too_large(call.inputs[0])

    def details(self, call: Call) -> str:
        """The window and the operand."""
        return f"{pooling(call.op)} of {call.inputs[0]}"

    def launcher(self, call: Call) -> Any:
        """One call for each piece of the batch."""
        shapes = call.inputs[0].shape, call.outputs[0].shape
        dtype: str = call.inputs[0].dtype
        how = pooling(call.op)
        parts = tensor_pieces(dtype, *shapes, layout=layout_of(call.op))

        one, none = factor(dtype, 1.0), factor(dtype, 0.0)

        def enqueue(env: LaunchEnv, d: Sequence[Descriptor], x: int, y: int) -> None:
            libcudnn.cudnnPoolingForward(
                env.cudnn, how.handle, one, d[0].handle, x, none, d[1].handle, y
            )

        return by_pieces(parts, enqueue)


@dataclass(frozen=True)
class PoolGradKernel(CudnnKernel[GpuDnnPoolGrad]):
    """``cudnnPoolingBackward``: in max pooling one element of a window gets the gradient."""

    name: str = "cudnn.pool_grad"
    dtypes = WITH_BFLOAT16
    layouts = ANY_LAYOUT

    def refuses_types(self, call: Call[GpuDnnPoolGrad]) -> str | None:
        """Max pooling in NHWC, where only one of several ties would get the gradient.

        The hint ``backend="cudnn"`` allows it.
        """
        own = call.hints.backend != "cudnn" and layout_of(call.op) == "NHWC"
        if own and call.op.is_max:
            return "cuDNN gives the gradient to one of several maxima"
        return super().refuses_types(call)

    def refuses_sizes(self, call: Call[GpuDnnPoolGrad]) -> str | None:
        """Windows that are cut off, sums, and samples that are too large."""
        return _beyond(call, call.outputs[0]) or too_large(call.outputs[0])

    def details(self, call: Call[GpuDnnPoolGrad]) -> str:
        """The window and the operand."""
        return f"{pooling(call.op)}, gradient of {call.outputs[0]}"

    def launcher(self, call: Call[GpuDnnPoolGrad]) -> Any:
        """One call for each piece of the batch."""
        op = call.op
        types = call.inputs
        dy = types[2] if op.is_max else types[0]
        dtype, how = dy.dtype, pooling(op)
        shapes = (call.outputs[0].shape, dy.shape)
        parts = tensor_pieces(dtype, *shapes, layout=layout_of(op))

        def launch(env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            dx = outputs[0]
            if not parts:
                zero(env, dx)
            # Average pooling reads no x or y: cuDNN gets any addresses of the right sizes.
            x, y, dy = inputs[:3] if op.is_max else (dx, inputs[0], inputs[0])
            one, none = factor(dtype, 1.0), factor(dtype, 0.0)
            for start, count, (xd, yd) in parts:
                at = [rows(v, start, count).ptr for v in (y, dy, x, dx)]
                libcudnn.cudnnPoolingBackward(
                    env.cudnn, how.handle, one, yd.handle, at[0], yd.handle, at[1], xd.handle,
                    at[2], none, xd.handle, at[3],
                )  # fmt: skip

        return launch


class MaxPoolGradKernel(CudaKernel[GpuDnnPoolGrad]):
    """The gradient of max pooling, which every tie gets."""

    name = "cuda.max_pool_grad"
    dtypes = WITH_BFLOAT16
    contiguous_inputs = True

    def refuses(self, call: Call[GpuDnnPoolGrad]) -> str | None:
        """Average pooling, and NHWC."""
        if not call.op.is_max:
            return "it is for a maximum"
        return refuses_layout(call) or super().refuses(call)

    def launches(
        self, call: Call[GpuDnnPoolGrad], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One thread for each element of x."""
        op = call.op
        (x, y, dy), (dx,) = inputs, outputs
        if is_empty(dx):
            return []
        kind = CTYPES[dx.dtype]
        source = specialised(
            "max_pool_grad.cu", T=kind, A="double" if kind == "double" else "float", DIMS=len(op.ws)
        )
        sizes = zip(dx.shape[2:], dy.shape[2:], op.ws, op.stride, op.pad, strict=True)
        axes = [n for axis in sizes for n in axis]
        total = prod(dx.shape)
        parameters = (x.pointer, y.pointer, dy.pointer, dx.pointer, total, *axes)
        return [
            KernelLaunch(source, "max_pool_grad", (blocks_for(total, 256),), (256,), parameters)
        ]


KERNELS: tuple[Row, ...] = (
    with_fallbacks(GpuDnnPool, PoolKernel()),
    with_fallbacks(GpuDnnPoolGrad, MaxPoolGradKernel(), PoolGradKernel()),
)
