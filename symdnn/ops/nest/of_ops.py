"""Nests of ops: arg-reductions with their fused elementwise nodes, and cumulative ops."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

from symdnn.graph.type import TensorType
from symdnn.ops.array.argreduce import ArgExtreme, ArgMax
from symdnn.ops.array.cumulative import (
    CumExtreme,
    CumMax,
    CumMin,
    CumProd,
    CumSum,
    ForwardFill,
    LinearRecurrence,
)
from symdnn.ops.array.reduce import (
    Accumulate,
    AllTrue,
    AnyTrue,
    Extreme,
    LogSumExp,
    Max,
    Reduce,
    Sum,
)
from symdnn.ops.core.dtype import accumulator, is_narrow_float, work_dtype
from symdnn.ops.core.scalar import Builder, ScalarProgram, identity_program
from symdnn.ops.lowered.fused import FusedReduce
from symdnn.ops.nest.monoid import (
    Monoid,
    arg_extreme,
    extreme,
    last_number,
    log_sum_exp,
    recurrence,
    total,
    truth,
)
from symdnn.ops.nest.nest import Access, Fold, Nest

#: The ops of :func:`scan_fold`.
CUMULATIVE = (CumSum, CumProd, CumMax, CumMin, ForwardFill, LinearRecurrence)
Cumulative: TypeAlias = CumSum | CumProd | CumMax | CumMin | ForwardFill | LinearRecurrence


def number_dtype(elements: int) -> str:
    """The dtype of the indices of this many elements."""
    return "int32" if elements < 2**31 else "int64"


def _added_in(dtype: str, exact: bool) -> str:
    """The accumulator's dtype of sums: with ``exact``, float64 for float32."""
    return "float64" if exact and work_dtype(dtype) == "float32" else work_dtype(dtype)


@lru_cache(maxsize=1024)
def reduction_fold(
    op: Reduce | FusedReduce, dtypes: tuple[str, ...], number: str, exact: bool
) -> Fold | None:
    """The fold of a reduction, or of a ``FusedReduce``, of operands of these dtypes.

    None if one of them is not a monoid here (complex sums). ``exact`` adds float32 in float64.
    """
    if isinstance(op, FusedReduce):
        program, reductions = op.program, op.reductions
    else:
        program, reductions = identity_program(dtypes[0]), (op,)
    monoids = [
        _monoid(r, dtype, number, exact)
        for r, dtype in zip(reductions, program.output_dtypes, strict=True)
    ]
    found = [m for m in monoids if m is not None]
    return Fold(program, tuple(found)) if len(found) == len(monoids) else None


def _monoid(r: Reduce, dtype: str, number: str, exact: bool) -> Monoid | None:
    out = r.out_dtype(dtype)
    if isinstance(r, ArgExtreme):
        return arg_extreme(isinstance(r, ArgMax), dtype, work_dtype(dtype), out, number)
    if isinstance(r, Extreme):
        kind = "max" if isinstance(r, Max) else "min"
        return extreme(kind, dtype, work_dtype(dtype), out, number)
    if isinstance(r, AllTrue | AnyTrue):
        return truth("or" if isinstance(r, AnyTrue) else "and", dtype, number)
    if isinstance(r, LogSumExp):
        return log_sum_exp(dtype, work_dtype(out), out, number)
    if isinstance(r, Accumulate) and not TensorType(r.acc_dtype).is_complex:
        kind = "add" if isinstance(r, Sum) else "mul"
        through = "" if is_narrow_float(r.acc_dtype) else r.acc_dtype
        # Of 16 bits four numbers are added in float32, whose error is 2^-23 of them, and then in
        # float64: that takes half of the conversions.
        narrow = exact and isinstance(r, Sum) and is_narrow_float(dtype)
        first = "float32" if narrow and work_dtype(r.acc_dtype) == "float32" else ""
        return total(kind, dtype, _added_in(r.acc_dtype, exact), out, through, number, first)
    return None


@lru_cache(maxsize=64)
def product_fold(dtype: str) -> Fold | None:
    """The fold of sums of products of two operands, as BLAS adds them; of 16 bits in float32."""
    kind, work = TensorType(dtype), work_dtype(dtype)
    if kind.is_complex or dtype == "bool":
        return None
    b = Builder([dtype, dtype])
    program = b.program([b.call("mul", b.cast(b.input(0), work), b.cast(b.input(1), work))])
    return Fold(program, (total("add", work, work, dtype),))


@lru_cache(maxsize=256)
def scan_fold(op: Cumulative, dtype: str, exact: bool) -> Fold:
    """The fold of a cumulative op (:data:`CUMULATIVE`) of operands of ``dtype``."""
    out = accumulator(dtype)[0] if isinstance(op, CumSum | CumProd) else dtype
    if isinstance(op, CumExtreme):
        kind = "max" if isinstance(op, CumMax) else "min"
        monoid, program = extreme(kind, dtype, work_dtype(dtype), out), identity_program(dtype)
    elif isinstance(op, ForwardFill):
        monoid, program = last_number(dtype, work_dtype(dtype), out), identity_program(dtype)
    elif isinstance(op, LinearRecurrence):
        monoid = recurrence(dtype, _added_in(dtype, exact), out)
        program = ScalarProgram((dtype, dtype), (), (0, 1))
    else:
        kind = "add" if isinstance(op, CumSum) else "mul"
        work = _added_in(accumulator(dtype)[1], exact)
        monoid, program = total(kind, dtype, work, out), identity_program(dtype)
    exclusive = getattr(op, "exclusive", False)
    return Fold(program, (monoid,), "exclusive" if exclusive else "inclusive")


def reduction_nest(
    fold: Fold,
    sizes: Sequence[int],
    axes: Sequence[int],
    reads: Sequence[tuple[str, Sequence[int]]],
    writes: Sequence[tuple[str, Sequence[int]]],
) -> Nest:
    """The nest of a reduction of operands (dtype, strides in bytes), which broadcast.

    Results have all axes, or only those that stay.
    """

    def spread(steps: Sequence[int]) -> tuple[int, ...]:
        if len(steps) == len(sizes):
            return tuple(0 if d in axes else s for d, s in enumerate(steps))
        left = iter(steps)
        return tuple(0 if d in axes else next(left) for d in range(len(sizes)))

    return Nest(
        tuple(sizes),
        tuple(axes),
        tuple(Access(dtype, tuple(steps)) for dtype, steps in reads),
        tuple(Access(dtype, spread(steps)) for dtype, steps in writes),
        fold,
    )


def scan_nest(
    op: Cumulative,
    fold: Fold,
    sizes: Sequence[int],
    reads: Sequence[tuple[str, Sequence[int]]],
    writes: Sequence[tuple[str, Sequence[int]]],
) -> Nest:
    """The nest of a cumulative op of operands (dtype, strides in bytes) of shape ``sizes``."""
    x, y = (tuple(Access(d, tuple(s)) for d, s in group) for group in (reads, writes))
    nest = Nest(tuple(sizes), (op.axis,), x, y, fold)
    return nest.reversed() if op.reverse else nest
