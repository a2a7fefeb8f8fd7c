"""Gathers: an array indexed by integer arrays along some axes, as an embedding or along an axis.

Slices and new axes beside the arrays are a view, and complex numbers have an axis of two parts, so
that the code has arrays and whole axes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from symdnn.cpu.elementwise.gather_ir import gather_ir
from symdnn.cpu.elementwise.indexed_ir import FLAG, LANES_OF_TASK, GatherPlan, gather_words
from symdnn.cpu.elementwise.scatter_ir import scatter_ir
from symdnn.cpu.ir.loops_ir import LoopOperand, inner
from symdnn.cpu.ir.scalar_ir import VALUES, has_code
from symdnn.cpu.launch.contiguous_launch import compile_refusal
from symdnn.cpu.launch.series_launch import Part, SeriesLaunch, Viewed
from symdnn.cpu.launch.strided_launch import StridedBlock, StridedLaunch
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.typing import Array, Arrays
from symdnn.graph.values.strides import merged
from symdnn.ops.array.advanced_index import AdvancedSubtensor
from symdnn.ops.array.slices import as_python, symbolic_count

#: With fewer elements NumPy is as fast.
_MIN_ELEMENTS_TO_COMPILE = 1 << 10
#: Elements for which waking up another thread pays: copied in rows, or one by one.
_COPIED_PER_THREAD, _ELEMENTS_PER_THREAD = 1 << 15, 1 << 13
#: Rows of up to so many bytes have a constant length: LLVM makes a few loads and stores of them.
_MAX_CONSTANT_BYTES = 512
#: The most rows for which indices are looked at once.
_MAX_ROWS_OF_TASK = 32
#: Rows of a task, at most, and the least along an axis that is divided into tasks.
_MAX_ROWS_OF_LINE, _MIN_ROWS_OF_LINE = 128, 16
#: Rows of up to so many elements that are gathered one by one have a constant length.
_MAX_LANES = 32
_ALL = (None, None, None)


class GatherKernel(Kernel[AdvancedSubtensor]):
    """``x[i, :, j]`` for integer arrays along any axes, the others whole."""

    name = "llvm.gather"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[AdvancedSubtensor]) -> str | None:
        """Needs slices of known bounds."""
        x, y, count = call.inputs[0], call.outputs[0], len(call.op.arrays)
        if reason := unfit(call.op, x.dtype, [t.dtype for t in call.inputs[1 : 1 + count]]):
            return reason
        if x.is_static and 0 in x.shape:
            return "there are no elements"
        return compile_refusal((y,), lambda: prod(y.shape), _MIN_ELEMENTS_TO_COMPILE)

    def bind(self, call: Call[AdvancedSubtensor]) -> Launch[Array]:
        """A launch for any strides; an index out of range is an error."""
        shape, plain = call.inputs[0].shape, PlainIndex.of(call.op)

        def failed(inputs: Arrays) -> None:
            call.op.numpy_index(shape, inputs[1:])

        launch = StridedLaunch(partial(_gather_block, plain.op), failed=failed)
        if plain.is_all:
            return launch
        index, result = range(1, len(call.inputs)), Viewed(len(call.inputs), plain.parts)
        return SeriesLaunch([Part(launch, (Viewed(0, plain.view), *index), (result,))])


@dataclass(frozen=True)
class PlainIndex:
    """An index of arrays and whole axes, of a view of the operand."""

    op: AdvancedSubtensor
    #: The view by slices and new axes; None if it is the operand itself.
    basic: tuple[Any, ...] | None
    #: Whether both parts of complex numbers have an axis.
    in_parts: bool

    @classmethod
    def of(cls, op: AdvancedSubtensor, in_parts: bool = False) -> PlainIndex:
        """Of an index whose slices have known bounds; ``in_parts``: of both parts of numbers."""
        entries = tuple("a" if e == "a" else _ALL for e in op.index)
        whole = all(e in ("a", _ALL) for e in op.index)
        basic = [_ALL if e == "a" else e for e in op.index]
        plain = replace(op, index=(*entries, _ALL) if in_parts else entries)
        return cls(plain, None if whole else tuple(as_python(basic)), in_parts)

    @property
    def is_all(self) -> bool:
        """Whether operands are taken as they are."""
        return self.basic is None and not self.in_parts

    def view(self, x: Array) -> Array:
        """What of the operand the arrays index."""
        return self.parts(self.part(x))

    def part(self, x: Array) -> Array:
        """The view by slices and new axes."""
        return x if self.basic is None else x[self.basic]

    def parts(self, x: Array) -> Array:
        """An array itself, or both parts of its numbers along a last axis."""
        if not self.in_parts:
            return x
        real = x.real
        steps = (*x.strides, real.itemsize)
        return as_strided(real, (*x.shape, 2), steps, writeable=x.flags.writeable)


def unfit(op: AdvancedSubtensor, dtype: str, index_dtypes: Sequence[str]) -> str | None:
    """Why an index has no code; None if it has."""
    if symbolic_count(op.index):
        return "it takes slices of known bounds"
    if any(d not in VALUES for d in index_dtypes) or not has_code(dtype):
        return "there is no code for the dtype"
    return None


def _gather_block(op: AdvancedSubtensor, inputs: Arrays, outputs: Arrays) -> StridedBlock:
    return indexed_block(op, "gather", inputs[0], inputs[1:], outputs[0])


def indexed_block(
    op: AdvancedSubtensor, what: str, x: Array, arrays: Arrays, y: Array
) -> StridedBlock:
    """The block of (x, \\*arrays, y) that does ``what`` (:class:`GatherPlan`) to ``x[arrays]``."""
    steps = [*_steps(op, x, arrays, y.ndim), y.strides]
    sizes, found = merged(y.shape, steps)

    def operand(a: Array, k: int, written: bool = False) -> LoopOperand:
        return LoopOperand(a.dtype.name, inner(found[k][-1], a.itemsize, written))

    plan = GatherPlan(
        len(sizes) - 1, operand(x, 0), tuple(operand(a, 1 + k) for k, a in enumerate(arrays)),
        operand(y, -1, what == "gather"), what,
        tuple(x.strides[axis] == x.itemsize for axis in op.arrays),
    )  # fmt: skip
    row_bytes = sizes[-1] * y.itemsize
    if plan.copies_rows and row_bytes <= _MAX_CONSTANT_BYTES:
        plan = replace(plan, row_bytes=row_bytes)
    parts = -(-sizes[-1] // LANES_OF_TASK)
    joined = _joined(plan, found[1:-1], sizes[-1])
    lanes = sizes[-1] if joined and sizes[-1] <= _MAX_LANES else 0
    in_lines = bool(plan.row_bytes) and len(sizes) > 1 and sizes[-2] >= _MIN_ROWS_OF_LINE
    if in_lines:
        steps_ = zip(found[1:-1], arrays, strict=True)
        plan = replace(plan, in_lines=tuple(inner(s[-2], a.itemsize) for s, a in steps_))
    plan = replace(plan, one_part=parts == 1, joined=joined, lanes=lanes)
    per_thread = _COPIED_PER_THREAD if plan.copies_rows else _ELEMENTS_PER_THREAD
    count, rows = threads.threads(y.size, per_thread), prod(sizes[:-1])
    each = _rows_of_task(plan, found[1:-1], sizes, count)
    tasks = count if plan.changes else -(-rows // each) * parts
    words: dict[str, int] = {"threads": count, "one": 1, "n": sizes[-1]}
    if in_lines:
        each = max(1, min(_MAX_ROWS_OF_LINE, sizes[-2], rows // (4 * count)))
        words["pieces"] = -(-sizes[-2] // each)
        tasks = words["pieces"] * prod(sizes[:-2])
    words["tasks"] = tasks
    words |= {"parts": parts, "all": rows * parts, "rows": rows, "each": each}
    words |= {f"n{d}": n for d, n in enumerate(sizes[:-1])}
    for (name, _), own in zip(plan.named, found, strict=True):
        words |= {f"{name}.i": own[-1]} | {f"{name}.k{d}": s for d, s in enumerate(own[:-1])}
    for k, axis in enumerate(op.arrays):
        words |= {f"a{k}.size": x.shape[axis], f"a{k}.step": x.strides[axis]}
    names = gather_words(plan)
    run = threads.kernel(scatter_ir if plan.changes else gather_ir, plan)
    at = [names.index(name) for name, _ in plan.named]
    return StridedBlock(run, [words.get(n, 0) for n in names], at, status=FLAG)


def _rows_of_task(
    plan: GatherPlan, steps: Sequence[Sequence[int]], sizes: Sequence[int], threads_: int
) -> int:
    """Rows of a task: short ones that are copied, or those whose indices along the lanes are the
    same or joined, and looked at once."""
    if (
        not plan.joined
        and not plan.row_bytes
        and (plan.copies_rows or any(any(own[:-1]) for own in steps if own[-1]))
    ):
        return 1
    most = LANES_OF_TASK // sizes[-1] if plan.joined else _MAX_ROWS_OF_TASK
    return max(1, min(most, _MAX_ROWS_OF_TASK, prod(sizes[:-1]) // (4 * threads_)))


def _joined(plan: GatherPlan, steps: Sequence[Sequence[int]], n: int) -> bool:
    """Whether rows are short, and their indices along the lanes follow those of the row before."""
    if plan.what != "gather" or plan.outer != 1 or n > LANES_OF_TASK // 4:
        return False
    varying = [(o, own) for o, own in zip(plan.index, steps, strict=True) if o.inner != "one"]
    return bool(varying) and all(own[0] == n * own[1] for _, own in varying)


def _steps(op: AdvancedSubtensor, x: Array, arrays: Arrays, ndim: int) -> list[tuple[int, ...]]:
    """Strides along the result's axes: of ``x`` along those without an index, and of the arrays."""
    kept = [s for d, s in enumerate(x.strides) if d not in op.arrays]
    common: Any = np.broadcast_arrays(*arrays)
    at, depth = (op.arrays[0] if op.side_by_side else 0), common[0].ndim
    before, after = (0,) * at, (0,) * (ndim - at - depth)
    spread = [(*before, *a.strides, *after) for a in common]
    return [(*kept[:at], *(0,) * depth, *kept[at:]), *spread]


KERNELS: tuple[Row, ...] = (((AdvancedSubtensor,), (GatherKernel(),)),)
