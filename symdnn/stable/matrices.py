"""Stable forms of linear algebra: logarithms of determinants, and inverses that are multiplied."""

from __future__ import annotations

from dataclasses import replace

from symdnn.graph.pattern import Match, any_of, pattern_vars
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.core.shape import DimShuffle
from symdnn.ops.elementwise.arithmetic import abs, sqr
from symdnn.ops.elementwise.math import log
from symdnn.ops.elemwise import like
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.matrix.base import column, transposed
from symdnn.ops.matrix.determinant import Det, SLogDet
from symdnn.ops.matrix.solve import MatrixInverse, Solve
from symdnn.rewriting.facts import made_by, node_of
from symdnn.rewriting.matrix_facts import is_transposition
from symdnn.rewriting.rewrite import Context, Family, reads

__all__ = ["RULES"]

FAMILY = Family("stabilize", ("numerics", "stabilize"))
rule, on = FAMILY.rule, FAMILY.on
(a,) = pattern_vars("a")
#: Right sides for each row of a matrix whose inverse is multiplied by them.
_MANY = 8


def log_modulus(m: Match) -> Variable:
    return SLogDet()(m.a)[1]


def twice_log_modulus(m: Match) -> Variable:
    value = SLogDet()(m.a)[1]
    return value * like(2, value)


def log_of_sign(m: Match) -> Variable:
    """NaN for a negative determinant, as the logarithm of the determinant is."""
    sign, value = SLogDet()(m.a)
    return log(sign) + value


def _real(m: Match) -> bool:
    return not m.a.type.is_complex


LOGARITHMS = [
    rule("log_of_abs_of_det", log(abs(Det()(a))), log_modulus),
    rule("log_of_square_of_det", log(any_of(sqr(Det()(a)), Det()(a) * Det()(a), Det()(a) ** 2)),
         twice_log_modulus, when=_real),
    rule("log_of_det", log(Det()(a)), log_of_sign),
]  # fmt: skip


@on(Dot, BatchedDot, names=("inv_as_solve",), admits=reads(MatrixInverse, DimShuffle))
def inverse_times(node: Apply, context: Context) -> Variable | None:
    """``inv(a) @ b`` is the solution of ``a x = b``, where nothing else reads the inverse."""
    x, b = node.inputs
    found = _inverted(x, context)
    if found is None or (b.type.ndim > 1 and _are_many(b.type.shape[-1], x)):
        return None
    op, a = found
    if b.type.ndim == 1:
        return op(a, column(b)).dimshuffle(0)
    return op(a, b)


@on(Dot, BatchedDot, names=("inv_as_solve",), admits=reads(MatrixInverse, DimShuffle))
def times_inverse(node: Apply, context: Context) -> Variable | None:
    """``b @ inv(a)`` is the transpose of the solution of ``a.T x = b.T``."""
    b, y = node.inputs
    found = None if _inverted(b, context) else _inverted(y, context)
    if found is None or (b.type.ndim > 1 and _are_many(b.type.shape[-2], y)):
        return None
    op, a = found
    op = replace(op, transposed=not op.transposed)
    if b.type.ndim == 1:
        return op(a, column(b)).dimshuffle(0)
    return transposed(op(a, transposed(b)))


def _are_many(columns: int | None, inverse: Variable) -> bool:
    """Whether so many right sides are known that the inverse is the smaller part of the work.

    A product takes the time of multiplications alone then; triangles are solved row after row.
    """
    n = inverse.type.shape[-1]
    return columns is not None and n is not None and columns >= _MANY * n


def _inverted(v: Variable, context: Context) -> tuple[Solve, Variable] | None:
    """How to solve in place of a product with ``v``, an inverse that nothing else reads."""
    turned = is_transposition(v)
    inverse = node_of(v).inputs[0] if turned else v
    if not made_by(inverse, MatrixInverse):
        return None
    if not context.only_reader(v) or not context.only_reader(inverse):
        return None
    node = node_of(inverse)
    return Solve(transposed=turned, on_error=node.op.on_error), node.inputs[0]


RULES = (*LOGARITHMS, inverse_times, times_inverse)
