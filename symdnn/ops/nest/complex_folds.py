"""Folds of complex numbers: programs and states of their parts."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from symdnn.ops.array.cumulative import CumProd, CumSum, LinearRecurrence
from symdnn.ops.array.reduce import Accumulate, Reduce, Sum
from symdnn.ops.core.scalar import Builder, Instruction, Scalar, ScalarProgram
from symdnn.ops.elementwise.complex_formulas import product
from symdnn.ops.elementwise.complex_meaning import complex_copy, part_dtypes
from symdnn.ops.nest.monoid import Monoid, total
from symdnn.ops.nest.nest import Fold
from symdnn.ops.nest.of_ops import Cumulative


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


# -- whole numbers, for printers that have complex instructions -----------------------------------

_WORK = "complex128"


def _instructions(inputs: tuple[str, ...], *steps: tuple[str, tuple[int, ...]]) -> ScalarProgram:
    """The program of instructions on complex numbers, whose results are all of its last ones."""
    body = tuple(Instruction(name, args, _WORK) for name, args in steps)
    return ScalarProgram(inputs, body, (len(inputs) + len(body) - 1,))


def _numbers(*values: int) -> ScalarProgram:
    """Real numbers as complex ones."""
    body: list[Instruction] = []
    for value in values:
        body.append(Instruction("const", (), "float64", float(value).hex()))
        body.append(Instruction("const", (), "float64", float(0).hex()))
        body.append(Instruction("c_make", (len(body) - 2, len(body) - 1), _WORK))
    return ScalarProgram((), tuple(body), tuple(3 * i + 2 for i in range(len(values))))


@lru_cache(maxsize=64)
def whole_total(kind: str, element: str, out: str, number: str = "int64") -> Monoid:
    """The sum (``kind`` ``"add"``) or product (``"mul"``) of complex numbers, in complex128."""
    name = f"c_{kind}"
    step = _instructions((_WORK, element, number), ("cast", (1,)), (name, (0, 3)))
    combine = _instructions((_WORK, _WORK), (name, (0, 1)))
    leave = ScalarProgram((_WORK,), (Instruction("cast", (0,), out),), (1,))
    start = _numbers(0 if kind == "add" else 1)
    return Monoid(f"complex {kind} in {number}", start, step, combine, leave)


@lru_cache(maxsize=8)
def _whole_recurrence(element: str) -> Monoid:
    """:func:`symdnn.ops.nest.monoid.recurrence` of complex numbers, in complex128."""
    steps = (
        ("cast", (2,)),
        ("cast", (3,)),
        ("c_mul", (0, 5)),
        ("c_mul", (5, 1)),
        ("c_add", (8, 6)),
    )
    one = _instructions((_WORK, _WORK, element, element, "int64"), *steps)
    pairs = (("c_mul", (0, 2)), ("c_mul", (2, 1)), ("c_add", (5, 3)))
    two = _instructions((_WORK,) * 4, *pairs)
    return Monoid(
        "complex recurrence",
        _numbers(1, 0),
        replace(one, outputs=(7, 9)),
        replace(two, outputs=(4, 6)),
        ScalarProgram((_WORK, _WORK), (Instruction("cast", (1,), element),), (2,)),
        ordered=True,
    )


def whole_scan_fold(op: Cumulative, dtype: str) -> Fold | None:
    """The fold of a cumulative op of complex numbers, of which each is one value."""
    exclusive = getattr(op, "exclusive", False)
    scan = "exclusive" if exclusive else "inclusive"
    if isinstance(op, LinearRecurrence):
        both = ScalarProgram((dtype, dtype), (), (0, 1))
        return Fold(both, (_whole_recurrence(dtype),), scan)
    if not isinstance(op, CumSum | CumProd):
        return None
    kind = "add" if isinstance(op, CumSum) else "mul"
    return Fold(ScalarProgram((dtype,), (), (0,)), (whole_total(kind, dtype, dtype),), scan)
