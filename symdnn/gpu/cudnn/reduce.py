"""Reductions by cuDNN, optionally with the indices of extremes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from symdnn.gpu import libcudnn
from symdnn.gpu.cudnn.descriptor import (
    Descriptor,
    ReduceTensorDescription,
    descriptor,
)
from symdnn.gpu.cudnn.fallback import by_neutral_op, with_fallbacks
from symdnn.gpu.cudnn.kernel import MAX_ELEMENTS, CudnnKernel, aligned, copy, factor, tensor
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.cudnn_device import device_index, query_cudnn
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.dtype import wide_float
from symdnn.ops.vendor.gpudnn import GpuDnnReduction

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

#: Theano's words -> ``cudnnReduceTensorOp_t`` without its prefix.
_OPS = {
    "add": "ADD", "mul": "MUL", "maximum": "MAX", "minimum": "MIN", "absmax": "AMAX", "avg": "AVG",
    "norm1": "NORM1", "norm2": "NORM2",
}  # fmt: skip


@dataclass(frozen=True)
class _Reduction:
    """A reduction at its shapes; ``x`` and ``y`` have equally many dimensions, at least four."""

    op: str
    dtype: str
    indices: bool
    x: tuple[int, ...]
    y: tuple[int, ...]

    def descriptors(self) -> tuple[Descriptor, Descriptor, Descriptor]:
        """The descriptors of the reduction, its operand and its result."""
        how = ReduceTensorDescription(self.op, wide_float(self.dtype), self.indices)
        return descriptor(how), tensor(self.dtype, self.x), tensor(self.dtype, self.y)

    def __str__(self) -> str:
        return f"{self.op} of {self.dtype}{self.x} to {self.y}"


def reduction(call: Call) -> _Reduction:
    """The call's reduction; neighbouring dimensions are merged if both are reduced or both kept."""
    op: Any = call.op
    x = call.inputs[0]
    runs: list[tuple[int, bool]] = []
    for axis, size in enumerate(x.shape):
        gone = axis in op.axis
        if runs and runs[-1][1] == gone:
            runs[-1] = (runs[-1][0] * size, gone)
        else:
            runs.append((size, gone))
    lead = (1,) * (4 - len(runs))
    kept = tuple(1 if gone else n for n, gone in runs)
    whole = tuple(n for n, _ in runs)
    return _Reduction(_OPS[op.red_op], x.dtype, op.return_indices, lead + whole, lead + kept)


@lru_cache(maxsize=1024)
def _bytes(r: _Reduction, device: int | None) -> tuple[int, int]:
    """(workspace, indices) in bytes on a device; an estimate without one."""

    def question(handle: int) -> tuple[int, int]:
        how, x, y = r.descriptors()
        given = (handle, how.handle, x.handle, y.handle)
        space = operator.index(libcudnn.cudnnGetReductionWorkspaceSize(*given))
        where = operator.index(libcudnn.cudnnGetReductionIndicesSize(*given)) if r.indices else 0
        return space, where

    guess = prod(r.x) * numpy_dtype(r.dtype).itemsize // 32
    return query_cudnn(question, (guess, 4 * prod(r.y) if r.indices else 0))


@dataclass(frozen=True)
class ReductionKernel(CudnnKernel[GpuDnnReduction]):
    """``cudnnReduceTensor``; the maximum and the minimum with a NaN are NaN."""

    name: str = "cudnn.reduction"

    def refuses_types(self, call: Call[GpuDnnReduction]) -> str | None:
        """Dtypes of sums or results that cuDNN does not have."""
        op = call.op
        dtype: str = call.inputs[0].dtype
        if op.dtype != dtype or op.acc_dtype != wide_float(dtype):
            return f"cuDNN reduces {dtype} to {dtype} in {wide_float(dtype)}"
        return super().refuses_types(call)

    def refuses_sizes(self, call: Call[GpuDnnReduction]) -> str | None:
        """Empty arrays, too many elements, and reductions over sizes of 1."""
        x = call.inputs[0]
        if 0 in x.shape or prod(x.shape) > MAX_ELEMENTS:
            return f"cuDNN does not reduce {x}"
        r = reduction(call)
        if r.x == r.y:
            return "no dimension that is reduced has more than one element"
        return None

    def workspace_bytes(self, call: Call[GpuDnnReduction]) -> int:
        """cuDNN's workspace, then the indices, which may need more room than the output has."""
        space, where = _bytes(reduction(call), device_index())
        return aligned(space) + where

    def details(self, call: Call[GpuDnnReduction]) -> str:
        """Operation and shapes."""
        return f"{reduction(call)}, workspace {self.workspace_bytes(call)} bytes"

    def launcher(self, call: Call[GpuDnnReduction]) -> Any:
        """One call; indices in the workspace are copied to the output."""
        r = reduction(call)
        how, xd, yd = r.descriptors()
        space, where = _bytes(r, device_index())

        def launch(env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            x, y = inputs[0], outputs[0]
            at: Any = outputs[1].ptr if r.indices else None
            if where > (outputs[1].nbytes if r.indices else 0):
                at = env.workspace + aligned(space)
            libcudnn.cudnnReduceTensor(
                env.cudnn, how.handle, at, where, env.workspace, space, factor(r.dtype, 1.0),
                xd.handle, x.ptr, factor(r.dtype, 0.0), yd.handle, y.ptr,
            )  # fmt: skip
            if r.indices and at != outputs[1].ptr:
                found = RawArray(at, outputs[1].shape, outputs[1].dtype)
                copy(env, found, outputs[1])

        return launch


def _means_the_neutral_op(call: Call) -> bool:
    op: Any = call.op
    return op.red_op in ("add", "mul", "maximum", "minimum") and not op.return_indices


KERNELS: tuple[Row, ...] = (
    with_fallbacks(GpuDnnReduction, ReductionKernel(), by_neutral_op(_means_the_neutral_op)),
)
