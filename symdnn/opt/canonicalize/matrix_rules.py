"""Matrices whose expression shows a property: transposed, triangular, equal to their adjoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.create import Diagonal
from symdnn.ops.array.reduce import Sum
from symdnn.ops.array.reduce import prod as prod_
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.matrix.base import adjoint, transposed
from symdnn.ops.matrix.cholesky import Cholesky
from symdnn.ops.matrix.determinant import Det, SLogDet, sign_and_log
from symdnn.ops.matrix.eigen import Eig, Eigh, Eigvalsh
from symdnn.ops.matrix.solve import MatrixInverse, Solve
from symdnn.rewriting.facts import made_by, node_of
from symdnn.rewriting.matrix_facts import is_transposition, self_adjoint, triangle_of
from symdnn.rewriting.rewrite import Context, Family

FAMILY = Family("canonicalize", ("algebra",))
on = FAMILY.on

_TRANSPOSED = {"lower_triangular": "upper_triangular", "upper_triangular": "lower_triangular"}


@on(MatrixInverse)
def inverse_of_transposed(node: Apply, context: Context) -> Variable | None:
    """``inv(a.T) -> inv(a).T``"""
    (a,) = node.inputs
    return transposed(node.op(node_of(a).inputs[0])) if is_transposition(a) else None


@on(MatrixInverse)
def inverse_of_inverse(node: Apply, context: Context) -> Variable | None:
    """``inv(inv(a)) -> a`` where a singular ``a`` is no error, which this would hide."""
    (a,) = node.inputs
    if not made_by(a, MatrixInverse) or node_of(a).op.on_error == "raise":
        return None
    return node_of(a).inputs[0]  # type: ignore[no-any-return]


@on(Det, SLogDet)
def det_of_transposed(node: Apply, context: Context) -> Sequence[Variable] | None:
    """``det(a.T) -> det(a)``"""
    (a,) = node.inputs
    if not is_transposition(a):
        return None
    return node.op.make_node(node_of(a).inputs[0]).outputs


@on(Solve)
def solve_of_transposed(node: Apply[Solve], context: Context) -> Variable | None:
    """The solution of ``a.T x = b`` by an op that reads ``a``, so that factors are shared."""
    a, b = node.inputs
    op = node.op
    if not is_transposition(a) or op.A_structure in ("hermitian", "positive_definite"):
        return None
    structure = _TRANSPOSED.get(op.A_structure, op.A_structure)
    turned = replace(op, A_structure=structure, transposed=not op.transposed)
    return turned(node_of(a).inputs[0], b)


# -- triangles ------------------------------------------------------------------------------------


@on(Det)
def det_of_triangle(node: Apply, context: Context) -> Variable | None:
    """The product of the diagonal."""
    (a,) = node.inputs
    return None if triangle_of(a) is None else prod_(Diagonal()(a), axis=-1)


@on(SLogDet)
def slogdet_of_triangle(node: Apply, context: Context) -> Sequence[Variable] | None:
    """The sum of the logarithms of the diagonal's moduli."""
    (a,) = node.inputs
    if triangle_of(a) is None:
        return None
    return sign_and_log(Diagonal()(a))


@on(Solve)
def solve_of_triangle(node: Apply[Solve], context: Context) -> Variable | None:
    """A general system whose matrix is a triangle."""
    a, b = node.inputs
    word = triangle_of(a) if node.op.A_structure == "general" else None
    if word is None:
        return None
    structure = "upper_triangular" if word == "upper" else "lower_triangular"
    return replace(node.op, A_structure=structure)(a, b)


# -- matrices that equal their adjoint ------------------------------------------------------------


@on(Solve)
def solve_of_symmetric(node: Apply[Solve], context: Context) -> Variable | None:
    """A general solve with ``x.T @ x`` or a similar product: its kernels try a Cholesky factor
    first.
    """
    a, b = node.inputs
    op = node.op
    if op.A_structure != "general" or triangle_of(a) is not None or not self_adjoint(a):
        return None
    if op.transposed and a.type.is_complex:
        return None
    return replace(op, A_structure="hermitian", lower=True, transposed=False)(a, b)


@on(Cholesky, Solve)
def lower_of_symmetric(node: Apply, context: Context) -> Variable | None:
    """The lower triangle of a matrix whose upper one is its adjoint is read, so that one Cholesky
    factor serves ``cholesky(a)`` and ``solve(a, b, "pos")``.
    """
    op: Any = node.op
    structured = isinstance(op, Cholesky) or op.A_structure in ("hermitian", "positive_definite")
    if op.lower or not structured or not self_adjoint(node.inputs[0]):
        return None
    found = replace(op, lower=True)(*node.inputs)
    return adjoint(found) if isinstance(op, Cholesky) else found


@on(Eig)
def eig_of_symmetric(node: Apply[Eig], context: Context) -> Sequence[Variable] | None:
    """Eigenvalues of ``x.T @ x`` and similar products are real, and their vectors orthonormal."""
    (a,) = node.inputs
    if not self_adjoint(a):
        return None
    dtype = node.outputs[0].type.dtype
    if not node.op.compute_v:
        return [Eigvalsh("L", node.op.on_error)(a).astype(dtype)]
    found = Eigh("L", node.op.on_error).make_node(a).outputs
    return [v.astype(dtype) for v in found]


# -- products -------------------------------------------------------------------------------------


@on(Sum)
def trace_of_product(node: Apply[Sum], context: Context) -> Variable | None:
    """``trace(x @ y) -> sum(x * y.T)``, if nothing else reads the product."""
    (diagonal,) = node.inputs
    if not made_by(diagonal, Diagonal) or node_of(diagonal).op.offset != 0:
        return None
    (product,) = node_of(diagonal).inputs
    last = product.type.ndim - 2
    if node.op.axes != (last,) or node.op.keepdims or not made_by(product, Dot, BatchedDot):
        return None
    x, y = node_of(product).inputs
    if not context.only_reader(product) or not context.only_reader(diagonal):
        return None
    same = context.shapes.same(context.shapes.dims(x)[-2], context.shapes.dims(y)[-1])
    if x.type.ndim != product.type.ndim or y.type.ndim != product.type.ndim or not same:
        return None
    return replace(node.op, axes=(last, last + 1))(x * transposed(y))


@on(BatchedDot)
def products_of_vectors(node: Apply[BatchedDot], context: Context) -> Variable | None:
    """Stacks of ``column @ row`` are products, and of ``row @ column`` their sums.

    A 16-bit product would be rounded before it is added, so sums of those stay. So does one of a
    single term with an open number of terms, which would broadcast.
    """
    x, y = node.inputs
    single = x.type.shape[2] == 1, y.type.shape[1] == 1
    if all(single):
        return x * y
    if any(single):
        return None
    dtype = node.outputs[0].type.dtype
    if x.type.shape[1] == y.type.shape[2] == 1 and dtype in ("float32", "float64"):
        return Sum((2,), True, dtype, dtype)(x * transposed(y))
    return None


RULES = (
    inverse_of_transposed, inverse_of_inverse, det_of_transposed, solve_of_transposed,
    det_of_triangle, slogdet_of_triangle, solve_of_triangle, solve_of_symmetric, lower_of_symmetric,
    eig_of_symmetric, trace_of_product, products_of_vectors,
)  # fmt: skip
