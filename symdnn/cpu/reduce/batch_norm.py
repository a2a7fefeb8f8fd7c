"""Statistics and gradient sums of batch normalisation, by compiled reductions.

Activations are read once, in any layout. Moments are sums of x and of x * x in float64. There the
square of a float32 is exact, so that the variance, a difference, keeps enough digits. Statistics of
each channel are computed from the sums by NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.traits import LLVM
from symdnn.cpu.nest.kernels import NestReduceKernel
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row, sized
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.array.reduce import Sum
from symdnn.ops.core.scalar import Builder
from symdnn.ops.lowered.fused import FusedReduce
from symdnn.ops.lowered.norm_parts import BatchMoments, BatchSums


def _refuses(call: Call, inner: Call[FusedReduce]) -> str | None:
    """Reasons of both kernels. Sizes do not matter, since the code serves all of them."""
    types = call.inputs
    if str(config.cpu.compile) == "never":
        return "cpu.compile=never"
    if all(t.is_static for t in types) and any(0 in t.shape for t in types):
        return "there are no elements"
    if not NestReduceKernel().fuses(inner.op):
        return f"there is no code for {inner.op}"
    return jit.problem() or threads.problem() or None


def _count(shape: Sequence[int], axes: Sequence[int]) -> int:
    """The number of elements of each sum."""
    return prod(shape[a] for a in axes)


class _PreparableLaunch(CpuLaunch):
    """A launch with a ``prepare``, which queues the compilation of its code."""

    def __init__(self, launch: Launch[Array], prepare: Callable[..., None]) -> None:
        self._launch, self.prepare = launch, prepare

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        """Run the launch."""
        self._launch(inputs, outputs)


class MomentsKernel(Kernel[BatchMoments]):
    """Mean and 1 / standard deviation of each channel, and new running values."""

    name = "llvm.moments"
    traits = LLVM

    def refuses(self, call: Call[BatchMoments]) -> str | None:
        """Refuses float64, of which squares would lose half of their digits."""
        if call.inputs[0].dtype == "float64":
            return "it sums up squares of float32, not of float64"
        return _refuses(call, _moments(call))

    def bind(self, call: Call[BatchMoments]) -> Launch[Array]:
        """A launch that computes both sums in one pass."""
        op = call.op
        inner = _moments(call)
        run: Any = NestReduceKernel().bind(inner)
        finish = finisher(op, call.inputs[0].shape)
        total, squares = (np.empty(t.shape, np.float64) for t in inner.outputs)

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            run([inputs[0]], [total, squares])
            finish(inputs[1:], outputs, total, squares)

        def prepare(inputs: Arrays, outputs: Arrays) -> None:
            run.prepare([inputs[0]], [total, squares])

        return _PreparableLaunch(launch, prepare)


def finisher(op: BatchMoments, shape: Sequence[int]) -> Callable[..., None]:
    """``finish(inputs after x, outputs, sums of x, sums of x * x)`` for x of a shape.

    The sums, float64 in the outputs' shape, are overwritten.
    """
    m = _count(shape, op.axes)
    spare = np.empty([1 if i in op.axes else n for i, n in enumerate(shape)])

    def finish(inputs: Arrays, outputs: Arrays, total: Array, squares: Array) -> None:
        np.divide(total, m, out=total)
        np.divide(squares, m, out=squares)
        np.multiply(total, total, out=spare)
        variance = np.subtract(squares, spare, out=spare)
        np.maximum(variance, 0, out=variance)
        if op.running:
            _running(inputs, outputs, total, variance, m)
        np.copyto(outputs[0], total)
        np.add(variance, op.epsilon, out=squares)
        np.sqrt(squares, out=squares)
        np.divide(1, squares, out=outputs[1], casting="same_kind")

    return finish


def _running(inputs: Arrays, outputs: Arrays, mean: Array, variance: Array, m: int) -> None:
    """Write the running values after this batch."""
    factor, *old = inputs
    keep, part = 1 - factor, float(factor)
    new = mean * part, variance * (part * m / max(m - 1, 1))
    for before, add, out in zip(old, new, outputs[2:]):
        np.add(before * keep, add, out=out, casting="same_kind")


def _moments(call: Call) -> Call[FusedReduce]:
    """The reduction for the sums of x and x * x."""
    x = call.inputs[0]
    axes = call.op.axes  # type: ignore[attr-defined]
    b = Builder([x.dtype])
    wide = b.input(0).cast("float64")
    program = b.program([wide, wide * wide])
    total = Sum(axes, keepdims=True, dtype="float64", acc_dtype="float64")
    op = FusedReduce(program, (total, total))
    kept = TensorType("float64", call.outputs[0].shape)
    return Call(op, (x,), sized(kept, kept), call.hints)


class SumsKernel(Kernel[BatchSums]):
    """Both sums of batch normalisation's gradient, and their means."""

    name = "llvm.batch_sums"
    traits = LLVM

    def refuses(self, call: Call[BatchSums]) -> str | None:
        """Refuses what reductions refuse, and a third result."""
        if call.op.written:
            return "it writes no third result"
        return _refuses(call, _sums(call))

    def bind(self, call: Call[BatchSums]) -> Launch[Array]:
        """A launch that computes both sums in one pass."""
        op = call.op
        run: Any = NestReduceKernel().bind(_sums(call))
        shape = np.broadcast_shapes(*(t.shape for t in call.inputs))
        m = call.outputs[0].numpy.type(_count(shape, op.axes))

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            run(inputs, outputs[:2])
            np.divide(outputs[0], m, out=outputs[2])
            np.divide(outputs[1], m, out=outputs[3])

        def prepare(inputs: Arrays, outputs: Arrays) -> None:
            run.prepare(inputs, outputs[:2])

        return _PreparableLaunch(launch, prepare)


def _sums(call: Call) -> Call[FusedReduce]:
    op: Any = call.op
    dtype = op.program.output_dtypes[0]
    total = Sum(op.axes, keepdims=True, dtype=dtype, acc_dtype=dtype)
    inner = FusedReduce(op.program, (total, total))
    return Call(inner, call.inputs, call.outputs[:2], call.hints)


KERNELS: tuple[Row, ...] = (
    ((BatchMoments,), (MomentsKernel(),)),
    ((BatchSums,), (SumsKernel(),)),
)
