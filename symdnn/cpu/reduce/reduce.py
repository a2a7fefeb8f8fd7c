"""Reductions, alone and with the elementwise ops before them, by compiled loops."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.ir.loops_ir import Operand, inner
from symdnn.cpu.ir.scalar_ir import VALUES, prints
from symdnn.cpu.launch.fastcall import Native
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.traits import LLVM_ASKING, NUMPY
from symdnn.cpu.reduce.reduce_ir import COLUMNS, Combined, ReduceShape, reduce_ir, word_names
from symdnn.cpu.reference.kernels import ReferenceKernel
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.op import Op
from symdnn.graph.type import TensorType
from symdnn.graph.values.strides import merged
from symdnn.ops.array.reduce import Accumulate, AllTrue, AnyTrue, Extreme, Max, Prod, Reduce, Sum
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.scalar import Builder, ScalarProgram, identity_program
from symdnn.ops.vendor.fused import FusedReduce

__all__ = ["ReduceKernel", "KERNELS"]

#: Below so many additions in all, compiling costs more than NumPy ever would.
_LEAST_WORK = 1 << 14
#: Additions for which another thread is worth waking.
_WORK_OF_A_THREAD = 1 << 16
#: Elements of a row that vector lanes add up before the sum goes to the total.
_PART = 2048
#: A long reduction is cut until there are so many tasks, of so many elements at least.
_TASKS, _LEAST_TASK = 64, 1 << 14

_Words = ctypes.c_int64
_KINDS: dict[type, str] = {Sum: "add", Prod: "mul", AnyTrue: "or", AllTrue: "and"}


@dataclass(frozen=True)
class _Plan:
    """What is computed of elements, and how it is combined."""

    program: ScalarProgram
    combined: tuple[Combined, ...]


def _combined(r: Reduce, dtype: str) -> tuple[str, Combined] | None:
    """(dtype that elements are combined in, how); None where there is no code."""
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
    # Every addition is of float64: a float32 sum is right to its last digit or so.
    element = total if kind in ("add", "mul") else acc
    return element, Combined(kind, element, total, finish)


@lru_cache(maxsize=1024)
def _planned(op: Any, dtypes: tuple[str, ...]) -> _Plan | None:
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
    return _Plan(b.program(results), tuple(how))


class ReduceKernel(Kernel):
    """Sums, products, extremes, any and all over any axes, up to four at once."""

    name = "llvm.reduce"
    traits = LLVM_ASKING

    def refuses(self, call: Call) -> str | None:
        """Needs code for the dtypes, elements, and enough to do."""
        types: Any = (*call.inputs, *call.outputs)
        if not all(isinstance(t, TensorType) and t.dtype in VALUES for t in types):
            return "there is no code for these dtypes"
        wish = str(config.cpu.compile)
        if wish == "never":
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
            if wish == "auto" and size * max(plan.program.cost, 1) < _LEAST_WORK:
                return "it is too little to compile for"
        programs = (plan.program, *(c.finish for c in plan.combined))
        missing = next(filter(None, map(prints, programs)), None)
        return missing or jit.problem() or threads.problem() or None

    def fuses(self, op: Op) -> bool:
        """Whether ``opt`` may make this op."""
        plan = _planned(op, op.program.inputs) if isinstance(op, FusedReduce) else None
        wanted = str(config.cpu.compile) != "never" and jit.installed()
        return wanted and plan is not None and prints(plan.program) is None

    def never_fails(self, call: Call) -> bool:
        """Whether shared variables may be written before it: once compiled it finds no fault."""
        return True

    def bind(self, call: Call) -> Launch:
        """Compiled for the strides of the first launch, and for others as they come."""
        plan = _planned(call.op, tuple(t.dtype for t in call.inputs))
        assert plan is not None
        op: Any = call.op
        axes = (op.reductions[0] if isinstance(op, FusedReduce) else op).axes
        return _Launcher(plan, tuple(_whole_shape(call.inputs)), axes)


class ColdReduceKernel(Kernel):
    """``FusedReduce`` by NumPy: what is too little to be worth compiling."""

    name = "numpy.program"
    traits = NUMPY

    def bind(self, call: Call) -> Launch:
        """The reference."""
        return ReferenceKernel().bind(call)


def _whole_shape(inputs: Sequence[Any]) -> tuple[int, ...]:
    return np.broadcast_shapes(*(t.shape for t in inputs))


class _Launcher(CpuLaunch):
    """``launch(inputs, outputs)``: blocks of parameters are kept by the operands' strides."""

    def __init__(self, plan: _Plan, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
        self._plan, self._shape, self._axes = plan, shape, axes
        self._blocks: dict[Any, _Block] = {}

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute every result."""
        self._block(inputs, outputs).run([*inputs, *outputs])

    def prepare(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Have the code made for operands that lie as these do."""
        self._block(inputs, outputs)

    def native(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Native:
        """For operands that lie as these do."""
        return self._block(inputs, outputs).native()

    def _block(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> _Block:
        key = tuple([a.strides for a in (*inputs, *outputs)])
        block = self._blocks.get(key)
        if block is None:
            block = _Block(self._plan, self._shape, self._axes, inputs, outputs)
            self._blocks[key] = block
        return block


class _Block:
    """A compiled reduction and its parameters for operands of certain strides."""

    def __init__(
        self,
        plan: _Plan,
        shape: tuple[int, ...],
        axes: tuple[int, ...],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
    ) -> None:
        dims = _Dims(shape, axes, inputs, outputs)
        self._values = values = dims.values()
        reads = tuple(
            Operand(a.dtype.name, inner(steps[dims.last], a.itemsize))
            for a, steps in zip(inputs, dims.reads)
        )
        dense = all(s[dims.last] == o.itemsize for s, o in zip(dims.writes, outputs))
        self._run = _compiled(plan, dims.structure, reads, dense)
        work = prod(dims.sizes) * max(plan.program.cost, 1)
        values["threads"] = threads.threads(work, _WORK_OF_A_THREAD)
        count = values["outputs"] * values["C"] if values["C"] > 1 else 1
        self._partial = [np.empty(count, np.int64) for _ in outputs]
        values |= {f"p{i}": p.ctypes.data for i, p in enumerate(self._partial)}
        names = word_names(dims.structure, len(inputs), len(outputs))
        self._words = (_Words * len(names))(*(values.get(n, 0) for n in names))
        operands = [f"x{i}" for i in range(len(inputs))] + [f"y{i}" for i in range(len(outputs))]
        self._at = [names.index(n) for n in operands]

    def run(self, arrays: Sequence[Any]) -> None:
        """Say which arrays, run the loops."""
        words = self._words
        for at, a in zip(self._at, arrays):
            words[at] = id(a)
        self._run(words)

    def native(self) -> Native:
        """The loops as they are called from compiled code."""
        return Native.of(self._run, self._words, self._at, keep=self._partial)


def _compiled(plan: _Plan, structure: ReduceShape, reads: Any, dense: bool) -> Any:
    given = (plan.program, plan.combined, structure, reads, dense)
    return threads.kernel(reduce_ir, *given)


class _Dims:
    """The dimensions in the order of memory, merged; which are kept, which reduced."""

    def __init__(
        self, shape: tuple[int, ...], axes: tuple[int, ...], inputs: Any, outputs: Any
    ) -> None:
        read = [np.broadcast_to(a, shape).strides for a in inputs]
        write = [_spread(o, len(shape), axes) for o in outputs]
        flag = [0 if d in axes else 1 for d in range(len(shape))]
        order = sorted(range(len(shape)), key=lambda d: -sum(abs(s[d]) for s in read))
        steps = [tuple(s[d] for d in order) for s in (*read, *write)]
        sizes = [shape[d] for d in order]
        # A stride that tells kept dimensions from reduced ones, so that they never merge.
        tells, at = [], 1
        for d, n in zip(reversed(order), reversed(sizes)):
            tells.append(at if flag[d] else 0)
            at *= n
        self.sizes, found = merged(sizes, [*steps, tuple(reversed(tells))])
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
        """The words of the block but those that depend on addresses."""
        sizes, columns = self.sizes, self.structure.columns
        outer = prod(sizes[d] for d in self.kept)
        rows = prod(sizes[d] for d in self.reduced)
        n, m = (1, sizes[-1]) if columns else (sizes[-1], 1)
        part = n if n <= 2 * _PART else _PART
        parts_of_row = -(-n // part)
        parts = rows * parts_of_row
        blocks = -(-m // COLUMNS)
        each = parts * min(part, n) * min(m, COLUMNS)
        wanted = min(-(-_TASKS // (outer * blocks)), max(1, each // _LEAST_TASK))
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


def _spread(out: Any, ndim: int, axes: Sequence[int]) -> tuple[int, ...]:
    """Strides of a result with 0 along the axes that are gone."""
    if out.ndim == ndim:
        return tuple(0 if d in axes else s for d, s in enumerate(out.strides))
    left = iter(out.strides)
    return tuple(0 if d in axes else next(left) for d in range(ndim))


KERNELS: tuple[Row, ...] = (
    ((Sum, Prod, Extreme, AnyTrue, AllTrue), (ReduceKernel(),)),
    ((FusedReduce,), (ReduceKernel(), ColdReduceKernel())),
)
