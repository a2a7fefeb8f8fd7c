"""Reductions by compiled loops, alone or fused with the elementwise ops before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.ir.loops_ir import LoopOperand, inner
from symdnn.cpu.ir.scalar_ir import VALUES, refusal
from symdnn.cpu.launch.strided_launch import StridedBlock, StridedLaunch
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS, NUMPY
from symdnn.cpu.reduce.reduce_ir import BLOCK_COLUMNS, Combined, ReduceShape, reduce_ir, word_names
from symdnn.cpu.reference.kernels import ReferenceKernel
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.op import Op
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.values.strides import merged
from symdnn.ops.array.reduce import Accumulate, AllTrue, AnyTrue, Extreme, Max, Prod, Reduce, Sum
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.scalar import Builder, ScalarProgram, identity_program
from symdnn.ops.lowered.fused import FusedReduce

__all__ = ["ReduceKernel", "KERNELS"]

#: With less work in all, counted in additions, NumPy is faster than compiling.
_MIN_ADDITIONS_TO_COMPILE = 1 << 14
#: Work for which waking up another thread pays, in additions.
_ADDITIONS_PER_THREAD = 1 << 16
#: Elements that vector lanes add up before their sum is added to the total in float64.
_PART_ELEMENTS = 2048
#: A long reduction is cut into up to so many tasks, of at least so many elements each.
_WANTED_TASKS, _MIN_TASK_ELEMENTS = 64, 1 << 14

_KINDS: dict[type, str] = {Sum: "add", Prod: "mul", AnyTrue: "or", AllTrue: "and"}


@dataclass(frozen=True)
class _ReducePlan:
    """A program of elements, and how each of its results is reduced."""

    program: ScalarProgram
    combined: tuple[Combined, ...]


def _combined(r: Reduce, dtype: str) -> tuple[str, Combined] | None:
    """(dtype of the values that are combined, the reduction); None where there is no code."""
    kind = _KINDS.get(type(r)) or ("max" if isinstance(r, Max) else "min")
    if isinstance(r, Accumulate):
        acc = "float32" if is_narrow_float(r.acc_dtype) else r.acc_dtype
        real = TensorType(acc).is_float
        if acc == "bool" or (TensorType(dtype).is_float and not real):
            return None
        total = "float64" if real else acc
    elif isinstance(r, Extreme):
        acc = "float32" if is_narrow_float(dtype) else dtype
        total = acc
    elif type(r) in _KINDS:
        acc = total = "bool"
    else:
        return None
    b = Builder([total])
    finish = b.program([b.cast(b.cast(b.input(0), acc), r.out_dtype(dtype))])
    # Sums and products of floats are computed in float64.
    element = total if kind in ("add", "mul") else acc
    return element, Combined(kind, element, total, finish)


@lru_cache(maxsize=1024)
def _planned(op: Any, dtypes: tuple[str, ...]) -> _ReducePlan | None:
    """The plan of a reduction of operands of these dtypes; None where there is no code."""
    fused = isinstance(op, FusedReduce)
    program = op.program if fused else identity_program(dtypes[0])
    reductions = op.reductions if fused else (op,)
    b = Builder(program.inputs)
    values = b.inline(program, [b.input(i) for i in range(len(program.inputs))])
    results, how = [], []
    for r, v in zip(reductions, values, strict=True):
        if v.dtype not in VALUES:
            return None
        found = _combined(r, v.dtype)
        if found is None:
            return None
        results.append(v if v.dtype == found[0] else b.cast(v, found[0]))
        how.append(found[1])
    return _ReducePlan(b.program(results), tuple(how))


class ReduceKernel(Kernel):
    """Sums, products, maxima, minima, any and all over any axes, up to four in one pass."""

    name = "llvm.reduce"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call) -> str | None:
        """Needs code for the dtypes, at least one element, and enough work."""
        types = (*call.inputs, *call.outputs)
        if not all(isinstance(t, TensorType) and t.dtype in VALUES for t in types):
            return "there is no code for these dtypes"
        mode = str(config.cpu.compile)
        if mode == "never":
            return "cpu.compile=never"
        plan = _planned(call.op, tuple(t.dtype for t in types[: len(call.inputs)]))
        if plan is None:
            return f"there is no code for {call.op} of these dtypes"
        if any(c.finish.output_dtypes[0] != t.dtype for c, t in zip(plan.combined, call.outputs)):
            return "flags that dtypes depend on have changed since the node was made"
        if all(t.is_static for t in types):
            size = prod(_whole_shape(call.inputs))
            if size == 0:
                return "there are no elements"
            if mode == "auto" and size * max(plan.program.cost, 1) < _MIN_ADDITIONS_TO_COMPILE:
                return "it is too little to compile for"
        programs = (plan.program, *(c.finish for c in plan.combined))
        missing = next(filter(None, map(refusal, programs)), None)
        return missing or jit.problem() or threads.problem() or None

    def fuses(self, op: Op) -> bool:
        """Whether ``opt`` may fuse elementwise ops into this reduction."""
        plan = _planned(op, op.program.inputs) if isinstance(op, FusedReduce) else None
        compiles = str(config.cpu.compile) != "never" and jit.installed()
        return compiles and plan is not None and refusal(plan.program) is None

    def never_fails(self, call: Call) -> bool:
        """Whether shared variables may be updated before it: always, since it cannot fail."""
        return True

    def bind(self, call: Call) -> Launch[Array]:
        """A launch that compiles a loop for each set of strides when it first occurs."""
        plan = _planned(call.op, tuple(t.dtype for t in call.inputs))
        assert plan is not None
        op: Any = call.op
        axes = (op.reductions[0] if isinstance(op, FusedReduce) else op).axes
        return StridedLaunch(partial(_block, plan, tuple(_whole_shape(call.inputs)), axes))


class NumpyFusedReduceKernel(Kernel):
    """``FusedReduce`` by NumPy, for arrays that are too small to compile for."""

    name = "numpy.program"
    traits = NUMPY

    def bind(self, call: Call) -> Launch[Array]:
        """The launch of the op's reference."""
        return ReferenceKernel().bind(call)


def _whole_shape(inputs: Sequence[Any]) -> tuple[int, ...]:
    return np.broadcast_shapes(*(t.shape for t in inputs))


def _block(
    plan: _ReducePlan, shape: tuple[int, ...], axes: tuple[int, ...], inputs: Sequence[Array],
    outputs: Sequence[Array],
) -> StridedBlock:  # fmt: skip
    """The compiled reduction and its block of words, for operands with these strides."""
    dims = _MergedDims(shape, axes, inputs, outputs)
    values = dims.values()
    reads = tuple(
        LoopOperand(a.dtype.name, inner(steps[dims.last], a.itemsize))
        for a, steps in zip(inputs, dims.reads)
    )
    dense = all(s[dims.last] == o.itemsize for s, o in zip(dims.writes, outputs))
    run = threads.kernel(reduce_ir, plan.program, plan.combined, dims.structure, reads, dense)
    work = prod(dims.sizes) * max(plan.program.cost, 1)
    values["threads"] = threads.threads(work, _ADDITIONS_PER_THREAD)
    count = values["outputs"] * values["C"] if values["C"] > 1 else 1
    partial_results = [np.empty(count, np.int64) for _ in outputs]
    values |= {f"p{i}": p.ctypes.data for i, p in enumerate(partial_results)}
    names = word_names(dims.structure, len(inputs), len(outputs))
    operands = [f"x{i}" for i in range(len(inputs))] + [f"y{i}" for i in range(len(outputs))]
    words = [values.get(n, 0) for n in names]
    return StridedBlock(run, words, [names.index(n) for n in operands], partial_results)


class _MergedDims:
    """The dimensions by decreasing stride, merged where possible; which are kept, which reduced."""

    def __init__(
        self, shape: tuple[int, ...], axes: tuple[int, ...], inputs: Any, outputs: Any
    ) -> None:
        read = [np.broadcast_to(a, shape).strides for a in inputs]
        write = [_spread(o, len(shape), axes) for o in outputs]
        flag = [0 if d in axes else 1 for d in range(len(shape))]
        order = sorted(range(len(shape)), key=lambda d: -sum(abs(s[d]) for s in read))
        steps = [tuple(s[d] for d in order) for s in (*read, *write)]
        sizes = [shape[d] for d in order]
        # Strides of an imaginary operand (0: reduced), so that kept and reduced ones never merge.
        marks, at = [], 1
        for d, n in zip(reversed(order), reversed(sizes)):
            marks.append(at if flag[d] else 0)
            at *= n
        self.sizes, found = merged(sizes, [*steps, tuple(reversed(marks))])
        kept = [bool(s) for s in found[-1]]
        if prod(self.sizes) == 1:
            kept = [False]
        self.reads, self.writes = found[: len(read)], found[len(read) : -1]
        self.last = len(self.sizes) - 1
        columns = kept[-1]
        self.kept = [d for d in range(self.last) if kept[d]]
        self.reduced = [d for d in range(self.last) if not kept[d]]
        self.structure = ReduceShape(columns, len(self.kept), len(self.reduced))

    def values(self) -> dict[str, int]:
        """The words of the block, without those that depend on addresses."""
        sizes, columns = self.sizes, self.structure.columns
        outer = prod(sizes[d] for d in self.kept)
        rows = prod(sizes[d] for d in self.reduced)
        n, m = (1, sizes[-1]) if columns else (sizes[-1], 1)
        part = n if n <= 2 * _PART_ELEMENTS else _PART_ELEMENTS
        parts_of_row = -(-n // part)
        parts = rows * parts_of_row
        blocks = -(-m // BLOCK_COLUMNS)
        each = parts * min(part, n) * min(m, BLOCK_COLUMNS)
        wanted = min(-(-_WANTED_TASKS // (outer * blocks)), max(1, each // _MIN_TASK_ELEMENTS))
        chunk = -(-parts // wanted)
        chunks = -(-parts // chunk)
        values = {
            "tasks": outer * blocks * chunks, "one": 1, "C": chunks, "Q": chunk, "QT": parts,
            "S": parts_of_row, "seg": part, "n": n, "m": m, "JB": blocks, "outputs": outer * m,
        }  # fmt: skip
        for kind, dims in (("k", self.kept), ("r", self.reduced)):
            values |= {f"{kind}n{i}": sizes[d] for i, d in enumerate(dims) if i}
            for j, steps in enumerate(self.reads):
                values |= {f"x{j}.{kind}{i}": steps[d] for i, d in enumerate(dims)}
        for j, steps in enumerate(self.reads):
            values[f"x{j}.i"] = steps[-1]
        for j, steps in enumerate(self.writes):
            values |= {f"y{j}.k{i}": steps[d] for i, d in enumerate(self.kept)}
            values[f"y{j}.i"] = steps[-1]
        return values


def _spread(out: Array, ndim: int, axes: Sequence[int]) -> tuple[int, ...]:
    """Strides of a result for all ``ndim`` axes: 0 along the reduced ones."""
    if out.ndim == ndim:
        return tuple(0 if d in axes else s for d, s in enumerate(out.strides))
    left = iter(out.strides)
    return tuple(0 if d in axes else next(left) for d in range(ndim))


KERNELS: tuple[Row, ...] = (
    ((Sum, Prod, Extreme, AnyTrue, AllTrue), (ReduceKernel(),)),
    ((FusedReduce,), (ReduceKernel(), NumpyFusedReduceKernel())),
)
