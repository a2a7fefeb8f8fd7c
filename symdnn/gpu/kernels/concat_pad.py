"""Concatenation, rolls, padding and its gradient, diagonals, ranges, vectors, assertions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import (
    ERROR_WORD,
    NODE,
    CudaKernel,
    KernelLaunch,
    Pointer,
    Views,
    alignment_of,
    blocks_for,
)
from symdnn.gpu.kernels.copy import (
    axis_slice,
    bits_of,
    copies,
    copies_together,
    fill,
    split_views,
    view_by_op,
)
from symdnn.gpu.kernels.scan import count_type
from symdnn.graph.kernel import Call, Row
from symdnn.graph.values.strides import merged
from symdnn.ops.array.create import AllocDiag, ARange, Diagonal
from symdnn.ops.array.join import Join, Roll
from symdnn.ops.array.pad import Pad
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.gradient_control import Assert
from symdnn.ops.core.make_vector import MakeVector
from symdnn.ops.lowered.gathered import ListedSums
from symdnn.ops.lowered.of_values import SomeChosen

_THREADS = 256
#: Their pointers fit into a kernel's parameters.
_MAX_SCALARS = 400


class JoinKernel(CudaKernel[Join]):
    """A copy of each tensor."""

    name = "cuda.copy"

    def writes(self, call: Call[Join], index: int, array: Any) -> bool:
        """True: a copy writes any layout."""
        return True

    def launches(
        self, call: Call[Join], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """The copies."""
        return copies_together(zip(inputs, split_views(outputs[0], inputs, call.op.axis)))


class RollKernel(CudaKernel[Roll]):
    """Two copies."""

    name = "cuda.copy"

    def launches(
        self, call: Call[Roll], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """The elements that move forward, and those that wrap around."""
        axis: int = call.op.axis
        (x, shift), (y,) = inputs, outputs
        n = x.shape[axis]
        if y.size == 0:
            return []
        k = shift % n
        moved = copies(x[axis_slice(axis, 0, n - k)], y[axis_slice(axis, k, n)])
        return moved + copies(x[axis_slice(axis, n - k, n)], y[axis_slice(axis, 0, k)])


class PadKernel(CudaKernel):
    """A fill with the value, then a copy of the tensor inside."""

    name = "cuda.copy"

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """The two copies."""
        (x, value, *widths), (y,) = inputs, outputs
        inside = tuple(slice(w, w + n) for w, n in zip(widths[::2], x.shape))
        around = [] if x.shape == y.shape else copies(value, y)
        return around + copies(x, y[inside])


class AllocDiagKernel(CudaKernel[AllocDiag]):
    """Zeros, then the diagonal."""

    name = "cuda.copy"

    def launches(
        self, call: Call[AllocDiag], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """A fill and a copy."""
        (y,) = outputs
        if y.size == 0:
            return []
        x = inputs[0]
        diagonal = view_by_op(Diagonal(call.op.offset), y, x.shape, ())
        assert diagonal is not None
        return fill(y, 0) + copies(x, diagonal)


class RangeKernel(CudaKernel):
    """One thread per element."""

    name = "cuda.range"
    dtypes = frozenset(CTYPES)

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """One kernel."""
        (y,) = outputs
        if y.size == 0:
            return []
        start, _, step = inputs
        source = specialised("make.cu", RANGE=1, T=CTYPES[y.dtype])
        parameters = (y.pointer, y.size, start, step)
        return [
            KernelLaunch(source, "range", (blocks_for(y.size, _THREADS),), (_THREADS,), parameters)
        ]


class VectorKernel(CudaKernel):
    """One block that reads all scalars."""

    name = "cuda.vector"

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """One kernel per ``_MAX_SCALARS`` scalars."""
        y = bits_of(outputs[0])
        if y.itemsize * y.size != outputs[0].itemsize * outputs[0].size or len(y.shape) > 1:
            return [k for i, x in enumerate(inputs) for k in copies(x, outputs[0][(i,)])]
        found = []
        for first in range(0, len(inputs), _MAX_SCALARS):
            some = inputs[first : first + _MAX_SCALARS]
            source = specialised("make.cu", VECTOR=len(some), T=CTYPES[y.dtype])
            parameters = (y[(slice(first, None),)].pointer, *(x.pointer for x in some))
            found.append(KernelLaunch(source, "vector_of", (1,), (_THREADS,), parameters))
        return found


class AssertKernel(CudaKernel):
    """Checks the conditions, and copies the value unless the output aliases it."""

    name = "cuda.assert"

    def refuses(self, call: Call) -> str | None:
        """Conditions of complex dtypes."""
        for t in call.inputs[1:]:
            if t.dtype not in CTYPES:
                return f"it has no code for {t}"
        return None

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """One kernel per condition, and the copy."""
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
            grid = (blocks_for(x.size, _THREADS),)
            found.append(KernelLaunch(source, "check", grid, (_THREADS,), parameters))
        there = outputs[0].alias_of == inputs[0].slot
        return found if there else found + copies(inputs[0], outputs[0])


class ListedSumsKernel(CudaKernel[ListedSums]):
    """A thread for each vector of the result; its terms are added in their order."""

    name = "cuda.listed_sums"
    dtypes = frozenset(CTYPES)
    writes_any_layout = True

    def launches(
        self, call: Call[ListedSums], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel."""
        (x, *lists), (y,), axes = inputs, outputs, call.op.axes
        if y.size == 0:
            return []
        kept = [0 if d in axes else s for d, s in enumerate(x.steps)]
        rows = [
            [t.steps[0] if d == a else 0 for d in range(len(y.shape))]
            for a, t in zip(axes, lists, strict=True)
        ]
        sizes, (x_step, y_step, *row_steps) = merged(y.shape, [kept, y.steps, *rows])
        jumps = [x.steps[a] for a in axes]
        width = 1
        if x_step[-1] == y_step[-1] == 1 and not any(s[-1] for s in row_steps):
            numbers = (sizes[-1], *jumps, *x_step[:-1], *y_step[:-1])
            width = max(1, min(16 // x.itemsize, alignment_of(x, y) // x.itemsize))
            while any(n % width for n in numbers):
                width //= 2
        sizes = (*sizes[:-1], sizes[-1] // width)
        x_step, y_step = ((*(n // width for n in s[:-1]), s[-1]) for s in (x_step, y_step))
        count = prod(sizes)
        source = specialised(
            "lines.cuh", "listed_sums.cu", T=CTYPES[x.dtype], A=CTYPES[work_dtype(x.dtype)],
            V=width, AXES=len(axes), D=len(sizes), COUNT="u32" if count < 2**31 else "u64",
        )  # fmt: skip
        parameters = (
            x.pointer, y.pointer, count, *(t.pointer for t in lists),
            *(t.shape[1] for t in lists), *(t.steps[1] for t in lists),
            *(j // width for j in jumps), *sizes, *x_step, *y_step,
            *(n for s in row_steps for n in s),
        )  # fmt: skip
        grid = (blocks_for(count, _THREADS),)
        return [KernelLaunch(source, "listed_sums", grid, (_THREADS,), parameters)]


KERNELS: tuple[Row, ...] = (
    ((ListedSums,), (ListedSumsKernel(),)),
    ((Join,), (JoinKernel(),)),
    ((Roll,), (RollKernel(),)),
    ((Pad,), (PadKernel(),)),
    ((AllocDiag,), (AllocDiagKernel(),)),
    ((ARange,), (RangeKernel(),)),
    ((MakeVector,), (VectorKernel(),)),
    ((Assert, SomeChosen), (AssertKernel(),)),
)
