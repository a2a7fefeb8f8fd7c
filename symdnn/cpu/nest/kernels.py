"""Kernels of nests: reductions, alone and fused with what is before them, and cumulative ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.elementwise.elementwise import elementwise_launch
from symdnn.cpu.ir.loops_ir import LoopOperand
from symdnn.cpu.ir.scalar_ir import has_code, refusal
from symdnn.cpu.launch.contiguous_launch import compile_refusal
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.series_launch import Part, SeriesLaunch
from symdnn.cpu.launch.strided_launch import StridedBlock, StridedLaunch
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS, NUMPY
from symdnn.cpu.nest.first_ir import LEAST_LENGTH, FirstPlan, first_ir, first_words
from symdnn.cpu.nest.nest_ir import nest_ir
from symdnn.cpu.nest.schedule import scheduled, word_names
from symdnn.cpu.reference.kernels import ReferenceKernel
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.op import Op
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.typing import Array, Arrays, OpT
from symdnn.graph.values.strides import merged
from symdnn.ops.array.argreduce import ArgMax, ArgMin
from symdnn.ops.array.reduce import Accumulate, AllTrue, AnyTrue, Extreme, Max, Prod, Reduce, Sum
from symdnn.ops.core.scalar import ScalarProgram, identity_program
from symdnn.ops.elementwise.complex_meaning import part_dtypes
from symdnn.ops.linalg.products import BatchedDot, Dot
from symdnn.ops.lowered.fused import FusedReduce
from symdnn.ops.nest.complex_folds import (
    complex_product_fold,
    complex_reduction_fold,
    complex_scan_fold,
)
from symdnn.ops.nest.nest import Fold, Nest
from symdnn.ops.nest.of_ops import (
    CUMULATIVE,
    Cumulative,
    number_dtype,
    product_fold,
    reduction_fold,
    reduction_nest,
    scan_fold,
    scan_nest,
)

#: With less work in all, counted in additions, NumPy is faster than compiling.
_MIN_ADDITIONS_TO_COMPILE = 1 << 14
#: Products of numbers up to which a compiled loop multiplies matrices faster than a call of BLAS:
#: in all (complex ones: half), and for each matrix of a stack. So it does for stacks of any number
#: of terms up to so many, and for rows and columns.
_MAX_PRODUCTS_OF_FLOATS, _MAX_PRODUCTS_OF_EACH, _MAX_TERMS = 1 << 15, 64, 4
#: Rows, terms and columns from which columns of the second operand are turned before.
_MIN_TURNED = 32
#: Work for which waking up another thread pays, in additions.
_ADDITIONS_PER_THREAD = 1 << 16
#: Booleans that are looked at, for which it does.
_BYTES_PER_THREAD = 1 << 22


def block_of(nest: Nest) -> StridedBlock:
    """The compiled loops of a nest, and their block of words without the operands' addresses."""
    nest = nest.merged()
    count = threads.threads(prod(nest.sizes) * _cost(nest.fold), _ADDITIONS_PER_THREAD)
    schedule, words = scheduled(nest, count)
    names = word_names(schedule)
    run = threads.kernel(nest_ir, nest.fold, schedule)
    words["threads"] = count
    lanes = words["W"] if schedule.shape == "columns" and not schedule.meet else schedule.beside
    states = sum(len(m.state) for m in nest.fold.monoids)
    room = words["tasks"] * states * lanes if words["F"] > 1 else 1
    chunks = np.empty(room, np.int64)
    words["partial"] = chunks.ctypes.data
    operands = [f"x{i}" for i in range(len(nest.reads))]
    operands += [f"y{i}" for i in range(len(nest.writes))]
    values = [words.get(n, 0) for n in names]
    return StridedBlock(run, values, [names.index(n) for n in operands], chunks)


def _cost(fold: Fold) -> int:
    """Work of an element, in additions."""
    return max(1, sum(p.cost for p in (fold.program, *(m.step for m in fold.monoids))))


def _operands(arrays: Arrays) -> list[tuple[str, tuple[int, ...]]]:
    return [(a.dtype.name, a.strides) for a in arrays]


class _NestKernel(Kernel[OpT]):
    """A kernel that compiles its nest for each set of strides, when it first occurs."""

    name = "llvm.nest"
    traits = LLVM_ASKS_THREADS

    def fold(self, call: Call[OpT], elements: int) -> Fold | None:
        """The fold of a call over so many elements; None where there is no code."""
        raise NotImplementedError

    def sizes(self, call: Call[OpT]) -> tuple[int, ...]:
        """The sizes of the nest's axes."""
        return np.broadcast_shapes(*(t.shape for t in call.inputs))

    def refuses(self, call: Call[OpT]) -> str | None:
        """Needs code for the dtypes and the program, and enough elements."""
        types = (*call.inputs, *call.outputs)
        if not all(has_code(getattr(t, "dtype", "")) for t in types):
            return "there is no code for these dtypes"
        fold = self.fold(call, 1)
        if fold is None:
            return f"there is no code for {call.op} of these dtypes"
        if fold.result_dtypes != tuple(d for t in call.outputs for d in part_dtypes(t.dtype)):
            return "flags that dtypes depend on have changed since the node was made"
        missing = next(filter(None, map(refusal, fold.programs)), None)

        each = _cost(fold)

        def work() -> int:
            return prod(self.sizes(call)) * each

        return missing or compile_refusal(types, work, _MIN_ADDITIONS_TO_COMPILE)

    def never_fails(self, call: Call[OpT]) -> bool:
        """Whether shared variables may be updated before it: always, since it cannot fail."""
        return True


class NestReduceKernel(_NestKernel[Reduce | FusedReduce]):
    """Reductions over any axes, alone or several of a scalar program in one pass."""

    def fold(self, call: Call[Reduce | FusedReduce], elements: int) -> Fold | None:
        """The fold, with floats added in float64; None where there is no code."""
        return _reduction(call.op, tuple(t.dtype for t in call.inputs), elements)

    def fuses(self, op: Op) -> bool:
        """Whether ``opt`` may fuse elementwise ops into this reduction."""
        if not isinstance(op, FusedReduce) or compile_refusal((), lambda: 1, 0):
            return False
        fold = _reduction(op, op.program.inputs, 1)
        return fold is not None and not any(map(refusal, fold.programs))

    def bind(self, call: Call[Reduce | FusedReduce]) -> Launch[Array]:
        """A launch for any strides."""
        op = call.op
        shape = np.broadcast_shapes(*(t.shape for t in call.inputs))
        axes = (op.reductions[0] if isinstance(op, FusedReduce) else op).axes
        elements = prod(shape[a] for a in axes)
        fold = self.fold(call, elements)
        assert fold is not None
        block: Callable[..., StridedBlock] = partial(reduction_block, fold, shape, axes)
        if isinstance(op, Sum) and call.inputs[0].is_complex:
            block = partial(_parts_block, fold, shape, axes)
        if isinstance(op, FusedReduce):
            if len(op.reductions) == 1 and op.program.output_dtypes == ("bool",):
                return StridedLaunch(partial(_first_block, op.reductions[0], op.program, block))
        elif call.inputs[0].dtype == "bool":
            return StridedLaunch(partial(_first_block, op, None, block))
        return StridedLaunch(block)


def _first_block(
    op: Reduce, program: ScalarProgram | None, otherwise: Callable[..., StridedBlock],
    inputs: Arrays, outputs: Arrays,
) -> StridedBlock:  # fmt: skip
    """The block that finds the first element that decides, where the folded axes are a line.

    The elements are what the ``program`` makes of the inputs, or a single input.
    """
    shape, (y,) = np.broadcast_shapes(*(a.shape for a in inputs)), outputs
    reads = [np.broadcast_to(a, shape) for a in inputs]
    sought = isinstance(op, AnyTrue | Max | ArgMax)
    inner = [d for d, n in enumerate(shape) if n > 1 and d in op.axes]
    outer = [d for d, n in enumerate(shape) if n > 1 and d not in op.axes]
    length, lines = prod(shape[d] for d in inner), prod(shape[d] for d in outer)
    kinds = [_line_kind([shape[d] for d in inner], [a.strides[d] for d in inner], a) for a in reads]
    size = prod(shape) * max(a.itemsize for a in reads)
    count = threads.threads(size, _BYTES_PER_THREAD)
    fits = length >= LEAST_LENGTH and lines and "dense" in kinds and all(kinds)
    if isinstance(op, Accumulate) or not fits or count > lines:
        return otherwise(inputs, outputs)
    kept = [d for d in range(len(shape)) if d not in op.axes]
    steps = y.strides if y.ndim == len(kept) else [y.strides[d] for d in kept]
    places = [s for d, s in zip(kept, steps, strict=True) if d in outer]
    own = [[a.strides[d] for d in outer] for a in reads]
    sizes, found = merged([shape[d] for d in outer], [*own, places])
    operands = tuple(LoopOperand(a.dtype.name, k) for a, k in zip(reads, kinds, strict=True))
    plan = FirstPlan(
        sought, isinstance(op, ArgMax | ArgMin), len(sizes), program, operands if program else ()
    )
    words = {"threads": count, "tasks": lines, "one": 1, "n": length}
    words |= {f"kn{d}": n for d, n in enumerate(sizes)}
    for name, each in zip(plan.names, found, strict=True):
        words |= {f"{name}.k{d}": s for d, s in enumerate(each)}
    names = first_words(plan)
    at = [names.index(n) for n in plan.names]
    return StridedBlock(threads.kernel(first_ir, plan), [words.get(n, 0) for n in names], at)


def _line_kind(sizes: Sequence[int], steps: Sequence[int], a: Array) -> str:
    """``dense`` or ``one`` by how an operand lies along axes that are a line; "" for others."""
    dense, step = True, a.itemsize
    for n, own in zip(reversed(sizes), reversed(steps), strict=True):
        dense, step = dense and own == step, step * n
    return "dense" if dense else "" if any(steps) else "one"


def _reduction(op: Reduce | FusedReduce, dtypes: tuple[str, ...], elements: int) -> Fold | None:
    if isinstance(op, Reduce) and len(part_dtypes(dtypes[0])) > 1:
        return complex_reduction_fold(op, dtypes[0], number_dtype(elements))
    fold = reduction_fold(op, dtypes, number_dtype(elements), True)
    if fold is None:
        return None
    reductions = op.reductions if isinstance(op, FusedReduce) else (op,)
    values = zip(reductions, fold.program.output_dtypes, strict=True)
    return fold if all(_has_code(r, dtype) for r, dtype in values) else None


def _has_code(r: Reduce, dtype: str) -> bool:
    """Whether elements of this dtype are reduced in one that can hold them."""
    if not isinstance(r, Accumulate):
        return True
    real = TensorType(r.acc_dtype).is_float
    return r.acc_dtype != "bool" and (real or not TensorType(dtype).is_float)


def reduction_block(
    fold: Fold, shape: tuple[int, ...], axes: tuple[int, ...], inputs: Arrays,
    outputs: Arrays,
) -> StridedBlock:  # fmt: skip
    """The block of a fold over ``axes`` of operands that broadcast to ``shape``."""
    whole = [np.broadcast_to(a, shape) for a in inputs]
    return block_of(reduction_nest(fold, shape, axes, _operands(whole), _operands(outputs)))


def _parts_block(
    fold: Fold, shape: tuple[int, ...], axes: tuple[int, ...], inputs: Arrays,
    outputs: Arrays,
) -> StridedBlock:  # fmt: skip
    """The block of a sum of complex numbers: of real ones, with an axis of two that stays."""
    own, _ = fold.monoids

    def parts(arrays: Arrays) -> list[tuple[str, tuple[int, ...]]]:
        found = zip((part_dtypes(a.dtype.name)[0] for a in arrays), arrays)
        return [(part, (*a.strides, a.itemsize // 2)) for part, a in found]

    one = Fold(identity_program(own.elements[0]), (own,))
    whole = [np.broadcast_to(a, shape) for a in inputs]
    return block_of(reduction_nest(one, (*shape, 2), axes, parts(whole), parts(outputs)))


class NestScanKernel(_NestKernel[Cumulative]):
    """Cumulative ops along an axis: in NumPy's order, float32 added in float64."""

    def fold(self, call: Call[Cumulative], elements: int) -> Fold | None:
        """The fold of the op, step by step; None where there is no code."""
        dtype = call.inputs[0].dtype
        if len(part_dtypes(dtype)) > 1:
            return complex_scan_fold(call.op, dtype)
        return scan_fold(call.op, dtype, True).stepwise()

    def bind(self, call: Call[Cumulative]) -> Launch[Array]:
        """A launch for any strides."""
        fold = self.fold(call, 1)
        assert fold is not None
        return StridedLaunch(partial(_scan_block, call.op, fold))


def _scan_block(op: Cumulative, fold: Fold, inputs: Arrays, outputs: Arrays) -> StridedBlock:
    sizes = outputs[0].shape
    return block_of(scan_nest(op, fold, sizes, _operands(inputs), _operands(outputs)))


class NestProductKernel(_NestKernel[Dot | BatchedDot]):
    """Products with a vector, of matrices of integers, and of small or thin ones of float64 and of
    complex numbers: sums over the axis that both have."""

    def refuses(self, call: Call[Dot | BatchedDot]) -> str | None:
        """Needs a vector, or integers, which BLAS and oneDNN have not, or little to do."""
        x, y = call.inputs
        if x.ndim == y.ndim > 1 and not x.is_integer:
            many = call.has_sizes and self._is_for_blas(call)
            if (x.dtype != "float64" and not x.is_complex) or many:
                return "libraries multiply matrices of floats"
        return super().refuses(call)

    def _is_for_blas(self, call: Call[Dot | BatchedDot]) -> bool:
        """Whether matrices of floats are so large that BLAS multiplies them faster."""
        *stack, rows, terms, columns = self.sizes(call)
        each, share = rows * terms * columns, 2 if call.inputs[0].is_complex else 1
        thin = min(rows, columns) == 1 or (stack and terms <= _MAX_TERMS)
        small = stack and each <= _MAX_PRODUCTS_OF_EACH
        return not thin and not small and prod(stack) * each * share > _MAX_PRODUCTS_OF_FLOATS

    def fold(self, call: Call[Dot | BatchedDot], elements: int) -> Fold | None:
        """The fold: integers wrap in their dtype, floats are added as sums are."""
        dtype = call.inputs[0].dtype
        return complex_product_fold(dtype) or product_fold(dtype)

    def sizes(self, call: Call[Dot | BatchedDot]) -> tuple[int, ...]:
        """Those of x, then those of y that x does not have."""
        x, y = (tuple(t.shape) for t in call.inputs)
        if isinstance(call.op, Dot):
            return (*x, *y[1:])
        return (call.outputs[0].shape[0], *x[1:], y[2])

    def bind(self, call: Call[Dot | BatchedDot]) -> Launch[Array]:
        """A launch for any strides."""
        fold = self.fold(call, 1)
        assert fold is not None
        beside = call.inputs[1].ndim - 1 if isinstance(call.op, Dot) else 1
        along, sizes = call.inputs[0].ndim - 1, self.sizes(call)
        whole = StridedLaunch(product_maker(fold, sizes, along, beside))
        x, y = call.inputs
        if isinstance(call.op, Dot) and y.ndim == 2 and y.is_integer and x.ndim == 2:
            return whole if min(sizes) < _MIN_TURNED else _TurnedLaunch(whole, y.dtype, sizes[1:])
        return whole


class _TurnedLaunch(CpuLaunch):
    """A launch of products whose second operand is turned before if its columns are contiguous.

    A sum for each pair of rows would have its lanes along the terms. Of turned columns lanes are
    along the results, and each of many rows reads them.
    """

    def __init__(self, whole: StridedLaunch, dtype: str, shape: tuple[int, ...]) -> None:
        turned = np.empty(shape, numpy_dtype(dtype))
        copy = elementwise_launch(identity_program(dtype), shape)
        self._whole = whole
        self._turned = SeriesLaunch([Part(copy, (1,), (turned,)), Part(whole, (0, turned), (2,))])

    def _for(self, y: Array) -> StridedLaunch | SeriesLaunch:
        return self._turned if abs(y.strides[0]) < abs(y.strides[1]) else self._whole

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        """Compute the product."""
        self._for(inputs[1])(inputs, outputs)

    def prepare(self, inputs: Arrays, outputs: Arrays) -> None:
        """Queue the compilation of the code for operands with these strides."""
        self._for(inputs[1]).prepare(inputs, outputs)

    def native(self, inputs: Arrays, outputs: Arrays) -> Any:
        """For operands with these strides."""
        return self._for(inputs[1]).native(inputs, outputs)


def product_maker(
    fold: Fold, sizes: tuple[int, ...], along: int, beside: int
) -> Callable[[Arrays, Arrays], StridedBlock]:
    """What makes blocks of products whose sums go over axis ``along`` of ``sizes``.

    The second operand, or each of its stack, has ``beside`` axes that the first has not.
    """
    return partial(_product_block, fold, sizes, along, beside)


def _product_block(
    fold: Fold, sizes: tuple[int, ...], along: int, beside: int, inputs: Arrays,
    outputs: Arrays,
) -> StridedBlock:  # fmt: skip
    x, y = inputs
    x = x[(..., *[None] * beside)]  # it lacks the columns, and y the rows
    if y.ndim == 3:
        y = y[:, None]
    return reduction_block(fold, sizes, (along,), [x, y], outputs)


class NumpyFusedReduceKernel(Kernel[FusedReduce]):
    """``FusedReduce`` by NumPy, for arrays that are too small to compile for."""

    name = "numpy.program"
    traits = NUMPY

    def bind(self, call: Call[FusedReduce]) -> Launch[Array]:
        """The launch of the op's reference."""
        return ReferenceKernel().bind(call)


KERNELS: tuple[Row, ...] = (
    ((Sum, Prod, Extreme, AnyTrue, AllTrue, ArgMax, ArgMin), (NestReduceKernel(),)),
    ((FusedReduce,), (NestReduceKernel(), NumpyFusedReduceKernel())),
    (CUMULATIVE, (NestScanKernel(),)),
    ((Dot, BatchedDot), (NestProductKernel(),)),
)
