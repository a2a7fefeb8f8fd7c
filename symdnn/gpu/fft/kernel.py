"""The kernel of Fourier transforms: one call of cuFFT."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from symdnn.gpu.cudnn.fallback import HostKernel
from symdnn.gpu.cudnn.kernel import aligned
from symdnn.gpu.device.array import RawArray, c_strides
from symdnn.gpu.device.context import existing_context
from symdnn.gpu.fft.plan import Signature, plan_for, problem
from symdnn.gpu.kernels.copy import strided_copy, strided_zero
from symdnn.graph.kernel import Call, Kernel, Row, Traits
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.libraries.cufft.rules import MOST_AXES
from symdnn.ops.fourier.transform import (
    FFT,
    REAL_OF,
    InverseRealFFT,
    RealFFT,
    Transform,
)

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv


class CufftKernel(Kernel[Transform]):
    """``cufftExec*`` along the last axes, by a plan without a work area of its own."""

    name = "cufft"
    traits = Traits("cufft")
    contiguous_inputs = True

    def refuses(self, call: Call[Transform]) -> str | None:
        """Transforms that the rewrites for cuFFT have not changed, and lines without elements."""
        op, x = call.op, call.inputs[0]
        most = 1 if isinstance(op, InverseRealFFT) else MOST_AXES
        if op.norm != "none" or op.axes != tuple(range(x.ndim - len(op.axes), x.ndim)):
            return "cuFFT takes unscaled transforms along the last axes"
        if len(op.axes) > most or (isinstance(op, FFT) and not x.is_complex):
            return f"cuFFT takes at most {most} axes, and complex numbers"
        if not call.has_sizes:
            return None
        if not prod(signature_of(call).sizes):
            return "there are no elements"
        return problem() if existing_context() is not None else None

    def workspace_bytes(self, call: Call[Transform]) -> int:
        """The work area, and a copy of what an inverse to real numbers overwrites."""
        found = existing_context()
        if not prod(call.outputs[0].shape):
            return 0
        if found is None:
            work = _bytes(call.outputs[0])
        else:
            with found.current():
                work = plan_for(signature_of(call)).workspace_bytes
        return aligned(work) + (_bytes(call.inputs[0]) if _overwrites(call.op) else 0)

    def bind(self, call: Call[Transform]) -> Any:
        """A launch with the plan, which is made here: not while a graph is recorded.

        Without lines there is nothing to do.
        """
        if not prod(call.outputs[0].shape):
            return lambda env, inputs, outputs: None
        plan = plan_for(signature_of(call))
        inverse = isinstance(call.op, FFT) and call.op.inverse
        size = call.outputs[0].shape[-1]

        def launch(env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            (x, *_), (y,) = inputs, outputs
            source = x.ptr
            if _overwrites(call.op):
                source = _hermitian(env, x, size, env.workspace + aligned(plan.workspace_bytes))
            plan.run(source, y.ptr, inverse, env.workspace, env.stream)

        return launch


def _overwrites(op: Transform) -> bool:
    """Whether cuFFT may overwrite the operand, and takes it to be the half of a Hermitian one."""
    return isinstance(op, InverseRealFFT)


def _hermitian(env: LaunchEnv, z: RawArray, size: int, to: int) -> int:
    """Copy frequencies to an address; imaginary parts that no real signal has become 0.

    These are of the first frequency of each line, and of the last one if ``size`` is even.
    """
    copy = RawArray(to, z.shape, z.dtype, c_strides(z.shape, z.itemsize))
    strided_copy(env, z, copy)
    real, last = REAL_OF[z.dtype], z.shape[-1] - 1
    half = numpy_dtype(real).itemsize
    for k in {0, last} if size % 2 == 0 else {0}:
        at = to + k * z.itemsize + half
        strided_zero(env, RawArray(at, z.shape[:-1], real, copy.strides[:-1]))
    return to


def signature_of(call: Call[Transform]) -> Signature:
    """What cuFFT computes in a call."""
    (x, *_), (y,), count = call.inputs, call.outputs, len(call.op.axes)
    full = y if isinstance(call.op, InverseRealFFT) else x
    sizes = full.shape[full.ndim - count :]
    return Signature(x.dtype, y.dtype, sizes, prod(full.shape[: full.ndim - count]))


def _bytes(t: TensorType) -> int:
    return prod(int(d or 0) for d in t.shape) * t.numpy.itemsize


class InverseRealKernel(CufftKernel):
    """That of an inverse to real numbers: it copies the operand, which may have any strides."""

    contiguous_inputs = False


_kernel, _to_real = CufftKernel(), InverseRealKernel()
KERNELS: tuple[Row, ...] = (
    ((FFT, RealFFT), (_kernel, HostKernel((_kernel,)))),
    ((InverseRealFFT,), (_to_real, HostKernel((_to_real,)))),
)
