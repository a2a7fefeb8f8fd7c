"""Reductions, generated: of an array, or of what a fused elementwise group gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from symdnn.gpu.cuda_source import prints
from symdnn.gpu.k_elemwise import merged
from symdnn.gpu.launches import WORKSPACE, CudaKernel, KernelLaunch, Pointer, View, blocks_for
from symdnn.gpu.reduce_source import Reducer, Sweep, reduction_source
from symdnn.gpu.source import CTYPES
from symdnn.graph.kernel import Call, register_kernel
from symdnn.ops.argreduce import ArgMax, ArgMin
from symdnn.ops.dtype import is_narrow_float
from symdnn.ops.fused import FusedReduce
from symdnn.ops.reduce import Accumulate, AllTrue, AnyTrue, LogSumExp, Max, Min, Prod, Reduce, Sum
from symdnn.ops.scalar import ScalarProgram, identity_program

__all__ = ["ReductionKernel", "reducer_of", "reduction", "register"]

_THREADS = 256
#: Blocks that keep a large device busy, and the fewest elements worth a thread.
_WANTED_BLOCKS, _PER_THREAD = 512, 16
#: No struct of reduce.cuh is larger.
_STATE_BYTES = 16
_source = cache(reduction_source)


def reducer_of(op: Reduce, dtype: str) -> Reducer:
    """How a reduction of values of ``dtype`` works on the device."""
    out = op.out_dtype(dtype)
    work = out if isinstance(op, LogSumExp) else dtype
    if isinstance(op, Accumulate):
        work = op.acc_dtype
    return Reducer(type(op).__name__, "float32" if is_narrow_float(work) else work, out)


def reduction(
    program: ScalarProgram,
    ops: Sequence[Reduce],
    inputs: Sequence[View],
    outputs: Sequence[View],
    shape: tuple[int, ...],
) -> list[KernelLaunch]:
    """Reduce the results of ``program`` over ``shape``, to which the inputs broadcast.

    Partial results lie at the start of the workspace.
    """
    if outputs[0].size == 0:
        return []
    axes = ops[0].axes
    views = [v.broadcast_to(shape) for v in inputs]
    kept, kept_steps = _merged_over(views, [d for d in range(len(shape)) if d not in axes])
    reduced, reduced_steps = _merged_over(views, axes)
    reducers = tuple(reducer_of(op, d) for op, d in zip(ops, program.output_dtypes, strict=True))
    plan = _plan(prod(kept), prod(reduced), _in_rows(views, kept_steps, reduced_steps))
    wide = _reach(views) >= 2**31 - 2**22
    sweep = Sweep(program.inputs, len(kept), len(reduced), plan.rows, wide)
    parameters: list[Any] = [v.pointer for v in (*views, *outputs)]
    parameters += [Pointer(WORKSPACE), plan.outputs, plan.elements, plan.chunks]
    parameters += [*kept[1:], *reduced[1:]]
    for k, r in zip(kept_steps, reduced_steps):
        parameters += [*k, *r]
    source = _source(program, reducers, sweep)
    tiles = -(-plan.outputs // plan.outputs_per_block)
    grid = (blocks_for(tiles, 1), plan.chunks)
    launches = [KernelLaunch(source, "reduce", grid, plan.block, tuple(parameters))]
    if plan.chunks > 1:
        lanes = min(_power_of_two(plan.chunks), _THREADS)
        rows = _THREADS // lanes
        again = (blocks_for(-(-plan.outputs // rows), 1),)
        launches.append(KernelLaunch(source, "combine", again, (lanes, rows), tuple(parameters)))
    return launches


def _merged_over(
    views: Sequence[View], axes: Sequence[int]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Sizes and strides of these dimensions, merged where possible."""
    sizes = [views[0].shape[a] for a in axes]
    return merged(sizes, [[v.steps[a] for a in axes] for v in views])


def _reach(views: Sequence[View]) -> int:
    """The largest number that an index or an offset takes."""
    offsets = [sum(abs(s) * (n - 1) for s, n in zip(v.steps, v.shape)) for v in views]
    return max(*offsets, prod(views[0].shape))


def _in_rows(
    views: Sequence[View],
    kept: Sequence[tuple[int, ...]],
    reduced: Sequence[tuple[int, ...]],
) -> bool:
    """Whether neighbours in memory are elements of one output, in the input that moves most."""
    spread = [sum(s != 0 for s in (*k, *r)) for k, r in zip(kept, reduced)]
    most = spread.index(max(spread))
    across = [abs(s) for s in kept[most] if s]
    along = [abs(s) for s in reduced[most] if s]
    return not across or (bool(along) and min(along) <= min(across))


@dataclass(frozen=True)
class _Plan:
    """How the work is cut: threads of a block, outputs that it works on, chunks of elements."""

    outputs: int
    elements: int
    rows: bool
    block: tuple[int, int]
    outputs_per_block: int
    chunks: int


def _plan(outputs: int, elements: int, rows: bool) -> _Plan:
    if rows:
        lanes = min(_power_of_two(elements), _THREADS)
    else:
        across = min(_power_of_two(outputs), 32 if elements >= 32 else _THREADS)
        lanes = _THREADS // across
    per_block = _THREADS // lanes
    tiles = -(-outputs // per_block)
    chunks = max(1, min(_WANTED_BLOCKS // tiles, elements // (lanes * _PER_THREAD)))
    block = (lanes, per_block) if rows else (per_block, lanes)
    return _Plan(outputs, elements, rows, block, per_block, chunks)


def _power_of_two(n: int) -> int:
    """The smallest power of two that is not below ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def scratch_bytes(outputs: int, elements: int, reductions: int) -> int:
    """Room for partial results, however the operands lie."""
    if elements < 2 * _PER_THREAD:
        return 0
    return _STATE_BYTES * reductions * _WANTED_BLOCKS * min(outputs, _THREADS)


class ReductionKernel(CudaKernel):
    """A reduction, or several over the same axes of a scalar program's results."""

    name = "cuda.reduce"
    dtypes = frozenset(CTYPES)

    def refuses(self, call: Call) -> str | None:
        """Takes what a scalar program expresses."""
        if reason := super().refuses(call):
            return reason
        for op in self.parts(call)[1]:
            if isinstance(op, Accumulate) and op.acc_dtype not in CTYPES:
                return f"it has no code for {op.acc_dtype}"
        return prints(self.parts(call)[0])

    def parts(self, call: Call) -> tuple[ScalarProgram, tuple[Reduce, ...]]:
        """The program of the elements and the reductions of its results."""
        op: Any = call.op
        if isinstance(op, FusedReduce):
            return op.program, op.reductions
        return identity_program(call.inputs[0].dtype), (op,)  # type: ignore[attr-defined]

    def whole(self, call: Call) -> tuple[int, ...]:
        """The shape that is reduced."""
        shapes = [t.shape for t in call.inputs]  # type: ignore[attr-defined]
        return tuple(next((n for n in dims if n != 1), 1) for dims in zip(*shapes))

    def workspace_bytes(self, call: Call) -> int:
        """Partial results of the chunks."""
        outputs = prod(call.outputs[0].shape)  # type: ignore[attr-defined]
        elements = prod(self.whole(call)) // max(outputs, 1)
        return scratch_bytes(outputs, elements, len(self.parts(call)[1]))

    def launches(
        self, call: Call, inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """One kernel, or two where the elements of an output are cut into chunks."""
        program, ops = self.parts(call)
        return reduction(program, ops, inputs, outputs, self.whole(call))


def register() -> None:
    """Enter the kernels into the table."""
    kernel = ReductionKernel()
    for op in (Sum, Prod, Max, Min, AllTrue, AnyTrue, LogSumExp, ArgMax, ArgMin, FusedReduce):
        register_kernel(op, "cuda", kernel)
