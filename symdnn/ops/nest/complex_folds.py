"""Folds of complex numbers: programs and states of their parts."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from symdnn.ops.array.cumulative import CumProd, CumSum
from symdnn.ops.array.reduce import Accumulate, Reduce, Sum
from symdnn.ops.core.scalar import Builder, Scalar
from symdnn.ops.elementwise.complex_formulas import product
from symdnn.ops.elementwise.complex_meaning import complex_copy, part_dtypes
from symdnn.ops.nest.monoid import Monoid, total
from symdnn.ops.nest.nest import Fold
from symdnn.ops.nest.of_ops import Cumulative

__all__ = ["complex_product_fold", "complex_reduction_fold", "complex_scan_fold", "complex_sum"]


@lru_cache(maxsize=256)
def complex_sum(dtype: str, out: str = "", exact: bool = False, number: str = "int64") -> Fold:
    """The sum of complex numbers, which may be real ones, as ``out``; ``exact``: in float64."""
    program, (part, *_) = complex_copy(dtype), part_dtypes(out or dtype)
    work = "float64" if exact else part
    own = total("add", program.inputs[0], work, part, number=number)
    return Fold(program, (own, own))


@lru_cache(maxsize=256)
def _product(dtype: str, out: str, number: str) -> Monoid:
    """The product of complex numbers, in float64."""
    own, (part, *_) = part_dtypes(dtype), part_dtypes(out)

    def multiplied(b: Builder, values: list[Scalar]) -> list[Scalar]:
        a, c, x, y = (v.cast("float64") for v in values)
        return list(product((a, c), (x, y)))

    one = Builder(())
    start = one.program([one.const(1, "float64"), one.const(0, "float64")])
    s = Builder(["float64", "float64", *own, number])
    step = s.program(multiplied(s, [s.input(k) for k in range(4)]))
    c = Builder(["float64"] * 4)
    combine = c.program(multiplied(c, [c.input(k) for k in range(4)]))
    leave = Builder(["float64", "float64"])
    result = leave.program([leave.input(k).cast(part) for k in (0, 1)])
    return Monoid("complex product", start, step, combine, result)


def complex_reduction_fold(op: Reduce, dtype: str, number: str) -> Fold | None:
    """The fold of a sum or product of complex numbers, in float64; None of another reduction."""
    if not isinstance(op, Accumulate) or len(part_dtypes(dtype)) < 2:
        return None
    out = op.out_dtype(dtype)
    if len(part_dtypes(out)) < 2:
        return None
    if isinstance(op, Sum):
        return complex_sum(dtype, out, True, number)
    return Fold(complex_copy(dtype), (_product(dtype, out, number),))


def complex_scan_fold(op: Cumulative, dtype: str) -> Fold | None:
    """The fold of a running sum or product of complex numbers; None of another scan."""
    if not isinstance(op, CumSum | CumProd) or len(part_dtypes(dtype)) < 2:
        return None
    if isinstance(op, CumSum):
        return replace(complex_sum(dtype, exact=True), scan="inclusive")
    kind = "exclusive" if op.exclusive else "inclusive"
    return Fold(complex_copy(dtype), (_product(dtype, dtype, "int64"),), kind)


@lru_cache(maxsize=64)
def complex_product_fold(dtype: str) -> Fold | None:
    """The fold of sums of products of two complex operands; None of real ones."""
    own = part_dtypes(dtype)
    if len(own) < 2:
        return None
    b = Builder([*own, *own])
    a, c, x, y = (b.input(k) for k in range(4))
    each = total("add", own[0], own[0], own[0])
    return Fold(b.program(product((a, c), (x, y))), (each, each))
