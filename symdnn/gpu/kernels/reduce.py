"""Generated reductions: of an array, or of the results of a fused elementwise group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

from symdnn.gpu.codegen.cuda_source import CTYPES, print_problem
from symdnn.gpu.codegen.launches import (
    TICKETS,
    WORKSPACE,
    CudaKernel,
    KernelLaunch,
    Pointer,
    View,
    Views,
    blocks_for,
    prefers_cudnn,
)
from symdnn.gpu.codegen.loop_source import Move
from symdnn.gpu.codegen.reduce_form import Finish, Reducer, Sweep, counts_elements
from symdnn.gpu.codegen.reduce_plan import (
    MAX_VECTOR_BYTES,
    MAX_VECTOR_ELEMENTS,
    Lines,
    plan_of,
    scratch_bytes,
)
from symdnn.gpu.codegen.reduce_source import reduction_source, takes_bytes
from symdnn.gpu.codegen.several_outputs import several_outputs
from symdnn.gpu.codegen.sweep_plan import ahead_of, reduces_neighbours, resident, vector_sweep
from symdnn.gpu.kernels.elementwise import elementwise
from symdnn.gpu.kernels.index_space import Selected, together
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import TensorType
from symdnn.graph.values.strides import merged
from symdnn.ops.array.argreduce import ArgExtreme, ArgMax, ArgMin
from symdnn.ops.array.reduce import (
    Accumulate,
    AllTrue,
    AnyTrue,
    LogSumExp,
    Max,
    Min,
    Prod,
    Reduce,
    Sum,
)
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.scalar import Builder, ScalarProgram, identity_program
from symdnn.ops.lowered.fused import FusedElemwiseReduce, FusedReduce
from symdnn.ops.nest.complex_folds import whole_total
from symdnn.ops.nest.monoid import arg_extreme
from symdnn.ops.nest.of_ops import number_dtype, reduction_fold
from symdnn.ops.vendor.gpudnn import GpuDnnReduction

__all__ = [
    "ReductionKernel",
    "reducer_of",
    "reduction",
    "KERNELS",
    "custom_reduction",
]

_source = cache(reduction_source)


def reducer_of(op: Reduce, dtype: str, elements: int = 2**31) -> Reducer:
    """The kind and dtypes of a reduction of so many values of ``dtype``."""
    out = op.out_dtype(dtype)
    if isinstance(op, ArgExtreme):
        (m,) = reduction_fold(op, (dtype,), number_dtype(elements), False).monoids  # type: ignore[union-attr]
        return Reducer(f"{m.name} in {m.number}", m.state[0], out, m)
    work = out if isinstance(op, LogSumExp) else dtype
    if isinstance(op, Accumulate):
        work = op.acc_dtype
        if TensorType(work).is_complex:
            kind = "add" if isinstance(op, Sum) else "mul"
            m = whole_total(kind, dtype, out, number_dtype(elements))
            return Reducer(m.name, m.state[0], out, m)
    return Reducer(type(op).__name__, work_dtype(work), out)


def reduction(
    program: ScalarProgram,
    ops: Sequence[Reduce],
    inputs: Sequence[View | Selected],
    outputs: Views,
    shape: tuple[int, ...],
    written: Views = (),
) -> list[KernelLaunch]:
    """Reduce the results of ``program`` over ``shape``, to which the inputs broadcast.

    Partial results are at the start of the workspace. :func:`custom_reduction` has the rest.
    """
    dtypes = program.output_dtypes
    elements = prod(shape[a] for a in ops[0].axes)
    reducers = tuple(reducer_of(op, d, elements) for op, d in zip(ops, dtypes))
    axes = ops[0].axes
    return custom_reduction(program, reducers, axes, inputs, outputs, shape, written=written)


def custom_reduction(
    program: ScalarProgram,
    reducers: tuple[Reducer, ...],
    axes: Sequence[int],
    inputs: Sequence[View | Selected],
    outputs: Views,
    shape: tuple[int, ...],
    finish: Finish | None = None,
    reads: Views = (),
    numbers: Sequence[float] = (),
    written: Views = (),
) -> list[KernelLaunch]:
    """:func:`reduction` by any reducers over ``axes``, with contiguous outputs.

    ``finish`` computes the outputs from their states, from ``reads`` (one value for each output, or
    one for all) and from ``numbers``. The program's results behind those that are reduced are
    ``written``; the list is empty where no input that is read in vectors has their strides.
    """
    if outputs[0].size == 0:
        return []
    given = together([v.broadcast_to(shape) for v in inputs])
    views, dtypes = given.views, (*program.inputs, *given.dtypes)
    moves = tuple(given.moves) if given.dtypes else ()
    lines = _lines(views, axes)
    wide = _max_index(views) + given.reach >= 2**31 - 2**22
    cuts = not counts_elements(reducers) and not moves
    widest = MAX_VECTOR_BYTES if takes_bytes(program, reducers) else MAX_VECTOR_ELEMENTS
    widest = min([widest, *(max(1, 16 // v.itemsize) for v in written)])
    sweep = vector_sweep(
        dtypes, views, lines, wide, cuts, not written and not moves, widest, moves, given.jumps
    )
    if sweep is not None:
        sweep = replace(sweep, resident=resident(program, reducers, sweep))
        if written:
            whole = [v.broadcast_to(shape) for v in written]
            sweep = replace(sweep, written=_like(whole, views, sweep))
    if written and (sweep is None or sweep.written < 0):
        return []
    by_rows = _by_rows(lines, moves)
    if finish is None and not written and not moves:
        some = several_outputs(program, reducers, axes, views, shape, sweep, by_rows)
        if some is not None:
            of, finish = (some.program, some.reducers, some.axes, some.views), some.finish
            return custom_reduction(*of, outputs, some.shape, finish)
    if sweep is None:
        sweep = Sweep(dtypes, len(lines.kept), len(lines.reduced), by_rows, wide, moves=moves)
    plan = plan_of(lines, sweep)
    sweep = replace(sweep, ahead=ahead_of(views, sweep, plan), warps=plan.in_warps(sweep))
    parameters: list[Any] = [v.pointer for v in (*views, *outputs)]
    parameters += [Pointer(WORKSPACE), TICKETS, plan.outputs, plan.elements, plan.chunks]
    parameters += [(lines.kept if sweep.across else lines.reduced)[-1]] * sweep.loose
    parameters += _counts(lines, sweep) + (given.parameters() if moves else [])
    for v in reads:
        parameters += [v.pointer, int(v.size > 1)]
    parameters += map(float, numbers)
    parameters += [v.pointer for v in written]
    source = _source(program, reducers, sweep, finish)
    tiles = -(-plan.groups // plan.groups_per_block)
    grid = (blocks_for(tiles, 1), plan.chunks)
    return [KernelLaunch(source, "reduce", grid, plan.block, tuple(parameters))]


def _by_rows(lines: Lines, moves: tuple[tuple[Move, ...], ...]) -> bool:
    """Whether neighbouring threads read neighbouring elements of one output."""
    selected = [steps for steps, own in zip(lines.kept_steps, moves) if own]
    if selected:
        return not any(steps[-1] == 1 for steps in selected)
    return reduces_neighbours(lines.kept_steps, lines.reduced_steps)


def _like(written: Views, views: Views, sweep: Sweep) -> int:
    """The first input with the same strides, which is read in vectors; -1: none."""
    if not all(v.aligned_to(min(16, v.itemsize * sweep.width)) for v in written):
        return -1
    found = enumerate(zip(views, sweep.sources, strict=True))
    moving = (i for i, (_, a) in found if a.dense and not a.fixed)
    alike = (i for i in moving if all(v.steps == views[i].steps for v in written))
    return next(alike, -1)


def _lines(views: Views, axes: Sequence[int]) -> Lines:
    others = [d for d in range(len(views[0].shape)) if d not in axes]
    return Lines(*_merged_over(views, others), *_merged_over(views, axes))


def _counts(lines: Lines, sweep: Sweep) -> list[int]:
    """The parameters for sizes and strides; strides along a vector count whole vectors."""
    kept, reduced = list(lines.kept), list(lines.reduced)
    by = 1 if sweep.across else sweep.width
    reduced[-1] //= by
    found = [*kept[1:], *reduced[1:]]
    for k, r in zip(lines.kept_steps, lines.reduced_steps):
        found += [*k, *r[:-1], r[-1] * by]
    return found


def _merged_over(
    views: Views, axes: Sequence[int]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Sizes and strides of these dimensions, merged where possible."""
    sizes = [views[0].shape[a] for a in axes]
    return merged(sizes, [[v.steps[a] for a in axes] for v in views])


def _max_index(views: Views) -> int:
    """The largest value of an index or an offset."""
    offsets = [sum(abs(s) * (n - 1) for s, n in zip(v.steps, v.shape)) for v in views]
    return max(*offsets, prod(views[0].shape))


class ReductionKernel(CudaKernel):
    """A reduction, or several over the same axes of a scalar program's results."""

    name = "cuda.reduce"
    reads_any_order = True
    dtypes = frozenset(CTYPES)

    def refuses(self, call: Call) -> str | None:
        """Unsupported dtypes, and programs that cannot be printed as CUDA C."""
        if reason := super().refuses(call):
            return reason
        for op in self.parts(call)[1]:
            wrong = any(t.is_complex for t in call.inputs) and not isinstance(op, Accumulate)
            if wrong:
                return "complex numbers are only added and multiplied"
        return print_problem(self.parts(call)[0])

    def parts(self, call: Call) -> tuple[ScalarProgram, tuple[Reduce, ...]]:
        """The program of the elements and the reductions of its results."""
        op: Any = call.op
        if isinstance(op, FusedReduce):
            return op.program, op.reductions
        return identity_program(call.inputs[0].dtype), (op,)

    def full_shape(self, call: Call) -> tuple[int, ...]:
        """The shape before the reduction."""
        shapes = [t.shape for t in call.inputs]
        return tuple(next((n for n in dims if n != 1), 1) for dims in zip(*shapes))

    def workspace_bytes(self, call: Call) -> int:
        """Partial results of the chunks."""
        outputs = prod(call.outputs[0].shape)
        elements = prod(self.full_shape(call)) // max(outputs, 1)
        return scratch_bytes(outputs, elements, len(self.parts(call)[1]))

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """One kernel."""
        program, ops = self.parts(call)
        return reduction(program, ops, inputs, outputs, self.full_shape(call))


#: Theano's word for a reduction -> the map of elements before it, the reduction, and the format of
#: the output from its result.
_CUDNN_REDUCTIONS: dict[str, tuple[str, type[Any], str]] = {
    "add": ("", Sum, ""), "mul": ("", Prod, ""), "maximum": ("", Max, ""),
    "minimum": ("", Min, ""), "absmax": ("abs", Max, ""), "norm1": ("abs", Sum, ""),
    "norm2": ("sqr", Sum, "s_sqrt({})"), "avg": ("", Sum, "{} / ({})p.c0"),
}  # fmt: skip


class DnnReductionKernel(ReductionKernel):
    """The reductions of ``GpuDnnReduction``, with the index of an extreme if it is asked for."""

    def refuses(self, call: Call) -> str | None:
        """Ops for cuDNN by ``gpu.prefer``."""
        return CudaKernel.refuses(self, call) or prefers_cudnn(call)

    def parts(self, call: Call) -> tuple[ScalarProgram, tuple[Reduce, ...]]:
        """The reduction of elements, their absolutes or squares."""
        op: Any = call.op
        before, kind, _ = _CUDNN_REDUCTIONS[op.red_op]
        dtype: str = call.inputs[0].dtype
        extreme = kind in (Max, Min)
        reduce = kind(op.axis) if extreme else kind(op.axis, False, op.dtype, op.acc_dtype)
        if not before:
            return identity_program(dtype), (reduce,)
        builder = Builder((dtype,))
        x = builder.input(0).cast(op.acc_dtype)
        return builder.program([x.call("abs") if before == "abs" else x * x]), (reduce,)

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """The reduction."""
        op: Any = call.op
        shape = inputs[0].shape
        if op.return_indices:
            return _with_index(op, inputs[0], outputs)
        program, (reduce,) = self.parts(call)
        reducer = reducer_of(reduce, program.output_dtypes[0])
        kind, work = (CTYPES[d] for d in (op.dtype, reducer.work))
        after = _CUDNN_REDUCTIONS[op.red_op][2] or "{}"
        line = f"p.y0[at] = convert<{kind}>({after.format('s.s0.result()', work)});"
        count = float(prod(shape[a] for a in op.axis))
        finish = Finish((line,), (), 1, (op.dtype,))
        return custom_reduction(
            program, (reducer,), op.axis, inputs, outputs, shape, finish, (), [count]
        )


def _with_index(op: GpuDnnReduction, x: View, outputs: Views) -> Sequence[KernelLaunch]:
    """An extreme and the number of its element."""
    number = number_dtype(prod(x.shape[a] for a in op.axis))
    work = work_dtype(x.dtype)
    m = arg_extreme(op.red_op == "maximum", x.dtype, work, "uint32", number, op.dtype)
    reducer = Reducer(f"{m.name} in {number}", work, op.dtype, m)
    finish = Finish(("s.s0.leave(p.y0[at], p.y1[at]);",), (), 0, m.leave.output_dtypes)
    program = identity_program(x.dtype)
    return custom_reduction(program, (reducer,), op.axis, [x], outputs, x.shape, finish)


def _is_in_order(v: View) -> bool:
    """Whether its axes are in memory as in its shape, but for those along which it repeats."""
    steps = [abs(s) for s, n in zip(v.steps, v.shape) if n > 1 and s]
    return steps == sorted(steps, reverse=True)


class ElementwiseReductionKernel(CudaKernel[FusedElemwiseReduce]):
    """Reductions, and values that are stored, of one pass."""

    name = "cuda.elementwise_reduce"
    dtypes = frozenset(CTYPES)
    pads_rows = True
    writes_any_layout = True

    def refuses(self, call: Call[FusedElemwiseReduce]) -> str | None:
        """Programs that cannot be printed as CUDA C."""
        return super().refuses(call) or print_problem(call.op.program)

    def workspace_bytes(self, call: Call[FusedElemwiseReduce]) -> int:
        """Partial results of the chunks."""
        count = len(call.op.reductions)
        results, elements = (prod(call.outputs[i].shape) for i in (0, count))
        return scratch_bytes(results, elements // max(results, 1), count)

    def launches(
        self, call: Call[FusedElemwiseReduce], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel; two where it cannot write as it reads. The second may overwrite inputs."""
        op, shape = call.op, call.outputs[-1].shape
        folds, whole = outputs[: len(op.reductions)], outputs[len(op.reductions) :]
        if all(_is_in_order(v.broadcast_to(shape)) for v in inputs):
            found = reduction(op.program, op.reductions, inputs, folds, shape, whole)
            if found:
                return found
        found = reduction(op.reduced.program, op.reductions, inputs, folds, shape)
        return [*found, *elementwise(op.stored.program, inputs, whole, whole=True)]


KERNELS: tuple[Row, ...] = (
    ((FusedElemwiseReduce,), (ElementwiseReductionKernel(),)),
    ((GpuDnnReduction,), (DnnReductionKernel(),)),
    (
        (Sum, Prod, Max, Min, AllTrue, AnyTrue, LogSumExp, ArgMax, ArgMin, FusedReduce),
        (ReductionKernel(),),
    ),
)
