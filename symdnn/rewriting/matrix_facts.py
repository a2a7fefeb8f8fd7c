"""What the expression of a matrix says about it: triangular, diagonal, equal to its own adjoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from symdnn.graph.variable import Constant, Variable
from symdnn.ops.array.create import AllocDiag, ARange
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.core.shape import DimShuffle
from symdnn.ops.elementwise.arithmetic import Abs, Add, Cast, Mul, Neg, Sqr, Sub
from symdnn.ops.elementwise.comparison import Eq, Ge, Gt, Le, Lt, Switch
from symdnn.ops.elementwise.complexes import Conj
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.matrix.cholesky import Cholesky
from symdnn.ops.matrix.qr import QR
from symdnn.ops.matrix.solve import MatrixInverse
from symdnn.rewriting.facts import made_by, node_of, number

#: How deep an expression is looked at.
_MAX_DEPTH = 8


class Plain(NamedTuple):
    """A matrix as ``matrix``, transposed and conjugated or not."""

    matrix: Variable
    transposed: bool
    conjugated: bool


def is_transposition(v: Variable) -> bool:
    """Whether ``v`` is a stack of matrices, each transposed."""
    if not made_by(v, DimShuffle) or v.type.ndim < 2:
        return False
    n = v.type.ndim
    return bool(node_of(v).op.pattern == (*range(n - 2), n - 1, n - 2))


def plain(v: Variable) -> Plain:
    """``v`` without the transpositions and conjugates around it."""
    transposed = conjugated = False
    while True:
        if is_transposition(v):
            transposed = not transposed
        elif made_by(v, Conj):
            conjugated = not conjugated
        else:
            return Plain(v, transposed, conjugated)
        v = node_of(v).inputs[0]


# -- its own adjoint ------------------------------------------------------------------------------


def self_adjoint(v: Variable, depth: int = 0) -> bool:
    """Whether each matrix of ``v`` is known to equal its adjoint, up to rounding.

    So are a product with its own adjoint (``x.T @ x``, ``x.T @ w @ x`` with such a ``w``), diagonal
    matrices, and sums and multiples of such. Of real numbers also a column and the same numbers as
    a row, added, squares of their differences, sums of these over further axes, and functions of
    the elements of such matrices.
    """
    if depth > _MAX_DEPTH or v.type.ndim < 2 or v.type.is_discrete:
        return False
    v = plain(v).matrix
    if isinstance(v, Constant):
        return _constant_is_self_adjoint(v)
    if v.owner is None:
        return False
    op, inputs = v.owner.op, v.owner.inputs
    if isinstance(op, Dot | BatchedDot):
        return _is_mirrored(_factors(v), depth)
    if isinstance(op, Add) and _are_adjoint(*inputs):
        return True
    if isinstance(op, MatrixInverse):
        return self_adjoint(inputs[0], depth + 1)
    if isinstance(op, AllocDiag):
        return op.offset == 0 and not v.type.is_complex and _square(v)
    if isinstance(op, Cast) and _is_identity(inputs[0]) and not v.type.is_complex:
        return True
    if _are_turned(v, v, v.type.ndim - 2, v.type.ndim - 1, depth):
        return True
    real = isinstance(op, Elemwise) and not v.type.is_complex
    by_elements = real or isinstance(op, Add | Sub | Mul | Neg)
    return by_elements and all(_is_number(w) or self_adjoint(w, depth + 1) for w in inputs)


def _are_turned(x: Variable, y: Variable, i: int, j: int, depth: int) -> bool:
    """Whether real ``y`` is known to be ``x`` with the axes ``i`` and ``j`` exchanged."""
    if depth > _MAX_DEPTH or x.type.is_complex or y.type.is_complex:
        return False
    if x is y and x.type.shape[i] == x.type.shape[j] == 1:
        return True
    if x.owner is None or y.owner is None:
        return False
    op, one, other = x.owner.op, x.owner.inputs, y.owner.inputs
    if isinstance(op, DimShuffle):
        turned = [*op.pattern]
        turned[i], turned[j] = turned[j], turned[i]
        return one[0] is other[0] and y.owner.op == replace(op, pattern=tuple(turned))
    if op != y.owner.op:
        return False
    if isinstance(op, Reduce):
        left = [d for d in range(one[0].type.ndim) if op.keepdims or d not in op.axes]
        return _are_turned(one[0], other[0], left[i], left[j], depth + 1)
    if not isinstance(op, Elemwise):
        return False
    even = isinstance(op, Sqr | Abs) and not x.type.is_discrete  # unsigned numbers wrap around
    if x is y and even and made_by(one[0], Sub):
        first, second = node_of(one[0]).inputs
        return _are_turned(first, second, i, j, depth + 1)
    orders = [other, other[::-1]] if x is y and op.commutative else [other]
    return any(
        all(_are_turned(a, b, i, j, depth + 1) for a, b in zip(one, order)) for order in orders
    )


def _square(v: Variable) -> bool:
    owner = node_of(v)
    n, m = owner.inputs[1:]
    return n is m or (v.type.shape[-1] is not None and v.type.shape[-1] == v.type.shape[-2])


def _constant_is_self_adjoint(v: Constant) -> bool:
    a = v.data
    if a.shape[-1] != a.shape[-2] or a.size > 1 << 16:
        return False
    return bool(np.array_equal(a, np.swapaxes(a, -1, -2).conj()))


def _is_number(v: Variable) -> bool:
    """Whether all elements of a matrix are one real number."""
    return not v.type.is_complex and all(d == 1 for d in v.type.shape[-2:])


def _are_adjoint(x: Variable, y: Variable) -> bool:
    a, b = plain(x), plain(y)
    conjugate = a.conjugated != b.conjugated or not x.type.is_complex
    return a.matrix is b.matrix and a.transposed != b.transposed and conjugate


def _factors(v: Variable) -> list[Variable]:
    """The factors of a product of matrices, from left to right."""
    if made_by(v, Dot, BatchedDot) and v.type.ndim >= 2:
        x, y = node_of(v).inputs
        if x.type.ndim == y.type.ndim == v.type.ndim:
            return [*_factors(x), *_factors(y)]
    return [v]


def _is_mirrored(factors: list[Variable], depth: int) -> bool:
    pairs = zip(factors, reversed(factors[len(factors) // 2 :]))
    outer = list(pairs)[: len(factors) // 2]
    if len(factors) < 2 or not all(_are_adjoint(x, y) for x, y in outer):
        return False
    return len(factors) % 2 == 0 or self_adjoint(factors[len(factors) // 2], depth + 1)


# -- triangles ------------------------------------------------------------------------------------


def triangle_of(v: Variable) -> str | None:
    """``"lower"``, ``"upper"`` or ``"diagonal"`` where all other elements are known to be 0."""
    found = plain(v)
    word = _triangle(found.matrix)
    if found.transposed and word in ("lower", "upper"):
        return "upper" if word == "lower" else "lower"
    return word


def _triangle(v: Variable) -> str | None:
    if v.owner is None or v.type.ndim < 2:
        return None
    op: Any = v.owner.op
    if isinstance(op, Cholesky):
        return "lower" if op.lower else "upper"
    if isinstance(op, QR):
        return "upper" if v.index == len(v.owner.outputs) - 1 else None
    if isinstance(op, AllocDiag):
        return "diagonal" if op.offset == 0 else None
    if isinstance(op, Switch):
        condition, _, other = v.owner.inputs
        return _masked(condition) if number(other) == 0 else None
    return None


def _masked(condition: Variable) -> str | None:
    """The triangle where a comparison of row and column numbers holds, up to the diagonal."""
    if not made_by(condition, Ge, Gt, Le, Lt):
        return None
    x, y = (_place(w) for w in node_of(condition).inputs)
    if x is None or y is None or {x[0], y[0]} != {"row", "column"}:
        return None
    greater = made_by(condition, Ge, Gt)
    # row + k >= column: at most the diagonal k.
    lower = greater == (x[0] == "row")
    offset = x[1] - y[1] if x[0] == "row" else y[1] - x[1]
    return ("lower" if offset <= 0 else None) if lower else ("upper" if offset >= 0 else None)


def _is_identity(condition: Variable) -> bool:
    """Whether a comparison holds on the diagonal alone."""
    if not made_by(condition, Eq):
        return False
    x, y = (_place(w) for w in node_of(condition).inputs)
    return x is not None and y is not None and x[0] != y[0] and x[1] == y[1]


def _place(v: Variable) -> tuple[str, int] | None:
    """``("row", k)`` for row numbers plus k, broadcast over columns; or ``("column", k)``."""
    offset = 0
    while made_by(v, Add):
        x, y = node_of(v).inputs
        constant = next((w for w in (x, y) if number(w) is not None), None)
        if constant is None:
            return None
        offset += int(number(constant))
        v = y if constant is x else x
    if made_by(v, DimShuffle):
        order = [d for d in node_of(v).op.pattern if d != "x"]
        at = [i - v.type.ndim for i, d in enumerate(node_of(v).op.pattern) if d != "x"]
        inner = node_of(v).inputs[0]
        if len(order) == 1 and inner.type.ndim == 1 and at[0] in (-1, -2):
            found = _counted(inner)
            word = "column" if at[0] == -1 else "row"
            return None if found is None else (word, offset + found)
    if isinstance(v, Constant) and v.type.ndim >= 2:
        return _constant_place(v.data, offset)
    return None


def _counted(v: Variable) -> int | None:
    """The k of ``arange(n) + k``."""
    if made_by(v, ARange):
        start, _, step = node_of(v).inputs
        found = number(start)
        return int(found) if number(step) == 1 and found is not None else None
    if isinstance(v, Constant) and v.data.ndim == 1 and v.data.size:
        k = int(v.data[0])
        return k if np.array_equal(v.data, np.arange(v.data.size) + k) else None
    return None


def _constant_place(a: Any, offset: int) -> tuple[str, int] | None:
    rows, columns = a.shape[-2:]
    if a.size != max(rows, columns) or min(rows, columns) != 1 or a.size < 2:
        return None
    k = int(a.reshape(-1)[0])
    if not np.array_equal(a.reshape(-1), np.arange(a.size) + k):
        return None
    return ("column" if rows == 1 else "row", offset + k)
