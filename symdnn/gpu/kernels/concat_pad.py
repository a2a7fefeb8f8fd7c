"""Joining, rolling, padding, diagonals, ranges, vectors of scalars, assertions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import (
    ERROR_WORD,
    NODE,
    CudaKernel,
    KernelLaunch,
    Pointer,
    View,
    blocks_for,
)
from symdnn.gpu.kernels.copy import along, bits_of, copies, fill, parts_of, seen_by
from symdnn.gpu.kernels.scan import count_type
from symdnn.graph.kernel import Call, Row
from symdnn.graph.values.strides import merged
from symdnn.ops.array.create import AllocDiag, ARange, Diagonal
from symdnn.ops.array.join import Join, Roll
from symdnn.ops.array.pad import Pad
from symdnn.ops.core.gradient_control import Assert
from symdnn.ops.core.make_vector import MakeVector

__all__ = ["KERNELS"]

_BLOCK = 256
#: Pointers that fit among a kernel's parameters.
_MOST_SCALARS = 400


class JoinKernel(CudaKernel):
    """A copy for each tensor."""

    name = "cuda.copy"

    def launches(
        self, call: Call, inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """The copies."""
        places = parts_of(outputs[0], inputs, call.op.axis)  # type: ignore[attr-defined]
        return [k for x, part in zip(inputs, places) for k in copies(x, part)]


class RollKernel(CudaKernel):
    """Two copies."""

    name = "cuda.copy"

    def launches(
        self, call: Call, inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """What moves forward and what comes round."""
        axis: int = call.op.axis  # type: ignore[attr-defined]
        (x, shift), (y,) = inputs, outputs
        n = x.shape[axis]
        if y.size == 0:
            return []
        k = shift % n
        moved = copies(x[along(axis, 0, n - k)], y[along(axis, k, n)])
        return moved + copies(x[along(axis, n - k, n)], y[along(axis, 0, k)])


class PadKernel(CudaKernel):
    """The value everywhere, then the tensor inside."""

    name = "cuda.copy"

    def launches(
        self, call: Call, inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """The two copies."""
        (x, value, *widths), (y,) = inputs, outputs
        inside = tuple(slice(w, w + n) for w, n in zip(widths[::2], x.shape))
        around = [] if x.shape == y.shape else copies(value, y)
        return around + copies(x, y[inside])


class AllocDiagKernel(CudaKernel):
    """Zeros, then the diagonal."""

    name = "cuda.copy"

    def launches(
        self, call: Call, inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """A fill and a copy."""
        (y,) = outputs
        if y.size == 0:
            return []
        x = inputs[0]
        diagonal = seen_by(Diagonal(call.op.offset), y, x.shape, ())  # type: ignore[attr-defined]
        assert diagonal is not None
        return fill(y, 0) + copies(x, diagonal)


class RangeKernel(CudaKernel):
    """A thread for each number."""

    name = "cuda.range"
    dtypes = frozenset(CTYPES)

    def launches(
        self, call: Call, inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """One kernel."""
        (y,) = outputs
        if y.size == 0:
            return []
        start, _, step = inputs
        source = specialised("make.cu", RANGE=1, T=CTYPES[y.dtype])
        parameters = (y.pointer, y.size, start, step)
        return [KernelLaunch(source, "range", (blocks_for(y.size, _BLOCK),), (_BLOCK,), parameters)]


class VectorKernel(CudaKernel):
    """One block that reads all scalars."""

    name = "cuda.vector"

    def launches(
        self, call: Call, inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """One kernel, several where the scalars are very many."""
        y = bits_of(outputs[0])
        if y.itemsize * y.size != outputs[0].itemsize * outputs[0].size or len(y.shape) > 1:
            return [k for i, x in enumerate(inputs) for k in copies(x, outputs[0][(i,)])]
        found = []
        for first in range(0, len(inputs), _MOST_SCALARS):
            some = inputs[first : first + _MOST_SCALARS]
            source = specialised("make.cu", VECTOR=len(some), T=CTYPES[y.dtype])
            parameters = (y[(slice(first, None),)].pointer, *(x.pointer for x in some))
            found.append(KernelLaunch(source, "vector_of", (1,), (_BLOCK,), parameters))
        return found


class AssertKernel(CudaKernel):
    """Checks the conditions; the value is copied unless it is there already."""

    name = "cuda.assert"

    def refuses(self, call: Call) -> str | None:
        """Conditions are of real dtypes."""
        for t in call.inputs[1:]:
            if t.dtype not in CTYPES:
                return f"it has no code for {t}"
        return None

    def launches(
        self, call: Call, inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """A kernel for each condition, and the copy."""
        found: list[KernelLaunch] = []
        for i, x in enumerate(inputs[1:]):
            if x.size == 0:
                continue
            sizes, (steps,) = merged(x.shape, [x.steps])
            source = specialised(
                "lines.cuh", "make.cu", T=CTYPES[x.dtype], D=len(sizes), COUNT=count_type([x])
            )
            parameters = (
                x.pointer, x.size, Pointer(ERROR_WORD), Pointer(NODE), i, *sizes, *steps,
            )  # fmt: skip
            grid = (blocks_for(x.size, _BLOCK),)
            found.append(KernelLaunch(source, "check", grid, (_BLOCK,), parameters))
        there = outputs[0].twin == inputs[0].slot
        return found if there else found + copies(inputs[0], outputs[0])


KERNELS: tuple[Row, ...] = (
    ((Join,), (JoinKernel(),)),
    ((Roll,), (RollKernel(),)),
    ((Pad,), (PadKernel(),)),
    ((AllocDiag,), (AllocDiagKernel(),)),
    ((ARange,), (RangeKernel(),)),
    ((MakeVector,), (VectorKernel(),)),
    ((Assert,), (AssertKernel(),)),
)
