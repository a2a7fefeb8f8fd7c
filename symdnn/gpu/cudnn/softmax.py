"""Softmax, log-softmax, their gradients, and activations by cuDNN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from symdnn.gpu import libcudnn
from symdnn.gpu.cudnn.descriptor import ActivationDescription, descriptor
from symdnn.gpu.cudnn.fallback import with_fallbacks
from symdnn.gpu.cudnn.kernel import (
    WITH_BFLOAT16,
    CudnnKernel,
    factor,
    max_rows,
    pieces,
    rows,
    tensor,
    tensor_pieces,
)
from symdnn.gpu.cudnn.pool import too_large
from symdnn.graph.kernel import Call, Row
from symdnn.ops.vendor.gpudnn import GpuDnnActivation, GpuDnnSoftmax, GpuDnnSoftmaxGrad

if TYPE_CHECKING:
    from symdnn.gpu.device.array import RawArray
    from symdnn.gpu.device.env import LaunchEnv

_ACTIVATIONS = {
    "relu": "RELU", "sigmoid": "SIGMOID", "tanh": "TANH", "elu": "ELU",
    "clipped_relu": "CLIPPED_RELU",
}  # fmt: skip
_STRIP_ELEMENTS = 1 << 20  # of an activation, in one row of its descriptor


def folded(op: Any, shape: Sequence[int]) -> tuple[int, int, int, int]:
    """The four dimensions for cuDNN; it normalises over the second one."""
    if op.mode == "instance":
        return shape[0], prod(shape[1:]), 1, 1
    return prod(shape[: op.axis]), shape[op.axis], prod(shape[op.axis + 1 :]), 1


def _algorithm_and_mode(op: Any) -> tuple[str, str]:
    # For mode "instance" all dimensions of an instance are channels here (see ``folded``).
    return f"CUDNN_SOFTMAX_{op.algo.upper()}", "CUDNN_SOFTMAX_MODE_CHANNEL"


def _reshaped(x: Any, shape: tuple[int, ...]) -> Any:
    """A contiguous array with another shape."""
    return type(x)(x.ptr, shape, x.dtype, owner=x.owner)


@dataclass(frozen=True)
class _Rows(CudnnKernel):
    """Base of both directions: one call for each piece of the leading dimension."""

    dtypes = WITH_BFLOAT16

    def refuses_sizes(self, call: Call) -> str | None:
        """Rows that are too large."""
        return too_large(call.inputs[0])

    def details(self, call: Call) -> str:
        """Algorithm, mode and dimensions."""
        shape = call.inputs[0].shape
        how = " ".join(_algorithm_and_mode(call.op))
        return f"{how} of {call.inputs[0]} as {folded(call.op, shape)}"

    def enqueue(self, how: tuple[Any, ...], one: Any, none: Any, d: Any, *at: int) -> None:
        """Call cuDNN: ``how`` is handle, algorithm and mode, ``at`` the operands' addresses."""
        raise NotImplementedError

    def launcher(self, call: Call) -> Any:
        """A launch for which only addresses are missing."""
        shape = folded(call.op, call.inputs[0].shape)
        parts = tensor_pieces(call.outputs[0].dtype, shape)
        words = _algorithm_and_mode(call.op)
        dtype: str = call.inputs[0].dtype

        def launch(env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            one, none = factor(dtype, 1.0), factor(dtype, 0.0)
            for start, count, (d,) in parts:
                at = (rows(_reshaped(v, shape), start, count).ptr for v in (*inputs, outputs[0]))
                self.enqueue((env.cudnn, *words), one, none, d.handle, *at)

        return launch


@dataclass(frozen=True)
class SoftmaxKernel(_Rows):
    """``cudnnSoftmaxForward``."""

    name: str = "cudnn.softmax"

    def enqueue(self, how: tuple[Any, ...], one: Any, none: Any, d: Any, *at: int) -> None:
        """From x to y."""
        x, y = at
        libcudnn.cudnnSoftmaxForward(*how, one, d, x, none, d, y)


@dataclass(frozen=True)
class SoftmaxGradKernel(_Rows):
    """``cudnnSoftmaxBackward`` of (dy, y)."""

    name: str = "cudnn.softmax_grad"

    def enqueue(self, how: tuple[Any, ...], one: Any, none: Any, d: Any, *at: int) -> None:
        """From dy and y to dx."""
        dy, y, dx = at
        libcudnn.cudnnSoftmaxBackward(*how, one, d, y, d, dy, none, d, dx)


@dataclass(frozen=True)
class ActivationKernel(CudnnKernel[GpuDnnActivation]):
    """``cudnnActivationForward`` on an array of any shape, as rows of ``_STRIP_ELEMENTS``."""

    name: str = "cudnn.activation"

    def details(self, call: Call[GpuDnnActivation]) -> str:
        """The activation function and its coefficient."""
        op = call.op
        return f"{op.mode} ({op.coef}) of {call.inputs[0]}"

    def launcher(self, call: Call[GpuDnnActivation]) -> Any:
        """Calls for strips of equal length, and one for the rest."""
        op = call.op
        how = descriptor(ActivationDescription(_ACTIVATIONS[op.mode], op.coef))
        dtype: str = call.inputs[0].dtype
        total = prod(call.inputs[0].shape)
        parts = list(_strips(dtype, total))

        def launch(env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            one, none = factor(dtype, 1.0), factor(dtype, 0.0)
            for start, d in parts:
                x, y = (v.ptr + start * v.itemsize for v in (inputs[0], outputs[0]))
                libcudnn.cudnnActivationForward(
                    env.cudnn, how.handle, one, d.handle, x, none, d.handle, y
                )

        return launch


def _strips(dtype: str, total: int) -> Any:
    """(first element, descriptor) of the calls for ``total`` elements."""
    whole, rest = divmod(total, _STRIP_ELEMENTS)
    for start, count in pieces(whole, max_rows((1, _STRIP_ELEMENTS))):
        yield start * _STRIP_ELEMENTS, tensor(dtype, (count, _STRIP_ELEMENTS, 1, 1))
    if rest:
        yield whole * _STRIP_ELEMENTS, tensor(dtype, (1, rest, 1, 1))


KERNELS: tuple[Row, ...] = (
    with_fallbacks(GpuDnnSoftmax, SoftmaxKernel()),
    with_fallbacks(GpuDnnSoftmaxGrad, SoftmaxGradKernel()),
    with_fallbacks(GpuDnnActivation, ActivationKernel()),
)
