"""Products of matrices and vectors, and functions that become matrix products by a reshape.

There are two ops, so that a target needs two kernels: ``Dot`` (vectors and matrices) and
``BatchedDot`` (stacks of matrices), both in :mod:`symdnn.ops.linalg.products`. ``dot`` of more
dimensions, ``tensordot``, ``matmul`` and ``einsum`` are these two with transpositions and
reshapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.errors import AxisError, NdimMismatch, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, normal_axis, product
from symdnn.graph.names.torch_words import advises, torch_words
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.python_numbers import alike
from symdnn.ops.core.shape import dims_of
from symdnn.ops.linalg.products import BatchedDot, Dot, MatchSizes, outer_product

__all__ = [
    "BatchedDot", "Dot", "MatchSizes", "batched_dot", "batched_tensordot", "dot", "matmul",
    "outer", "tensordot",
]  # fmt: skip


# -- builders ---------------------------------------------------------------------------------


def factors(name: str, *values: TensorLike) -> list[Variable]:
    """The operands as tensor variables of their common dtype."""
    variables = [as_variable(v) for v in values]
    if any(not isinstance(v.type, TensorType) for v in variables):
        raise TypeMismatch(name, "tensors", [v.type for v in variables])
    return alike(variables)


@advises(
    dim="T.tensordot(a, b, axes) sums given axes", axis="T.tensordot(a, b, axes) sums given axes"
)
def dot(a: TensorLike, b: TensorLike) -> Variable:
    """Product of ``a`` and ``b`` by Theano's rules for any number of dimensions.

    A scalar multiplies; vectors and matrices give the matrix product. With more dimensions, the
    last dimension of ``a`` is summed with the last but one of ``b`` (its only one if it is a
    vector). The dtype is the upcast of both, also for ints.

    Raises :class:`~symdnn.errors.ShapeMismatch`, which names both shapes.
    """
    x, y = factors("dot", a, b)
    if x.type.ndim == 0 or y.type.ndim == 0:
        return x * y
    if x.type.ndim <= 2 and y.type.ndim <= 2:
        return Dot()(x, y)
    return tensordot(x, y, [[x.type.ndim - 1], [max(0, y.type.ndim - 2)]])


def matmul(a: TensorLike, b: TensorLike) -> Variable:
    """``a @ b`` by NumPy's rules: stacks of matrices whose leading dimensions broadcast.

    Only static 1s broadcast. A vector is a row on the left and a column on the right. Scalars are
    refused.
    """
    x, y = factors("matmul", a, b)
    if x.type.ndim == 0 or y.type.ndim == 0:
        raise NdimMismatch("matmul", "no scalars", [x.type, y.type], "Use * to scale")
    if x.type.ndim <= 2 and y.type.ndim <= 2:
        return Dot()(x, y)
    if y.type.ndim <= 2:
        return tensordot(x, y, [[x.type.ndim - 1], [0]])
    if x.type.ndim == 1:
        return tensordot(y, x, [[y.type.ndim - 2], [0]])
    return _stacked_matmul(x, y)


def _stacked_matmul(x: Variable, y: Variable) -> Variable:
    """Matrix product of ``x`` and ``y`` with leading dimensions, at least of ``y``."""
    lead = max(x.type.ndim, y.type.ndim) - 2
    if all(d == 1 for d in y.type.shape[:-2]) and y.type.ndim <= x.type.ndim:
        plain = y.dimshuffle(y.type.ndim - 2, y.type.ndim - 1)
        return tensordot(x, plain, [[x.type.ndim - 1], [0]])
    x, y = _pad(x, lead + 2), _pad(y, lead + 2)
    batch = _broadcast_lead(x, y, lead)
    y = _matched_lead(x, y, lead)
    x3, y3 = _as_stack(x, batch, lead), _as_stack(y, batch, lead)
    return split_dims(BatchedDot()(x3, y3), (*batch, dims_of(x)[-2], dims_of(y)[-1]), [lead, 1, 1])


def _pad(v: Variable, ndim: int) -> Variable:
    missing = ndim - v.type.ndim
    return v.dimshuffle(("x",) * missing + tuple(range(v.type.ndim))) if missing else v


def _broadcast_lead(x: Variable, y: Variable, lead: int) -> tuple[Dim, ...]:
    """Sizes of the leading dimensions of the result."""
    out: list[Dim] = []
    for i, (dx, dy) in enumerate(zip(dims_of(x)[:lead], dims_of(y)[:lead], strict=True)):
        sx, sy = x.type.shape[i], y.type.shape[i]
        if sx is not None and sy is not None and sx != sy and 1 not in (sx, sy):
            raise ShapeMismatch(
                "matmul", "leading dimensions that agree or are 1", f"{x.type} and {y.type}"
            )
        out.append(dy if sx == 1 or (sx is None and sy not in (None, 1)) else dx)
    return tuple(out)


def _matched_lead(x: Variable, y: Variable, lead: int) -> Variable:
    """``y`` with a check of its stack's sizes where the number of matrices does not tell them."""
    sizes = list(zip(x.type.shape[:lead], y.type.shape[:lead], strict=True))
    pairs = tuple((i, i) for i, both in enumerate(sizes) if None in both and 1 not in both)
    return y if len(pairs) < 2 else MatchSizes(pairs)(y, x)


def _as_stack(v: Variable, batch: tuple[Dim, ...], lead: int) -> Variable:
    """``v`` as a stack of matrices: leading dimensions broadcast and joined into one."""
    sizes = v.type.shape[:lead]
    if all(d == 1 for d in sizes):
        return v if lead == 1 else v.dimshuffle("x", lead, lead + 1)
    partly = any(
        s == 1 and not (isinstance(b, int) and b == 1) for s, b in zip(sizes, batch, strict=True)
    )
    if partly:
        v = operator("alloc")(v, *batch, *dims_of(v)[lead:])
    return join_dims(v, [list(range(lead)), [lead], [lead + 1]])


def join_dims(v: Variable, groups: Sequence[Sequence[int]]) -> Variable:
    """``v`` with dimensions reordered and each group joined into one; empty groups are left out."""
    kept = [list(g) for g in groups if g]
    order = [d for g in kept for d in g]
    v = v.dimshuffle(order)
    if all(len(g) == 1 for g in kept):
        return v
    dims, sizes, at = dims_of(v), [], 0
    for g in kept:
        sizes.append(product(dims[at : at + len(g)]))
        at += len(g)
    return v.reshape(sizes)


def split_dims(v: Variable, dims: Sequence[Dim], counts: Sequence[int]) -> Variable:
    """``v`` reshaped to ``dims``; its dimension ``i`` is split into ``counts[i]`` of these."""
    if all(c == 1 for c in counts if c) and v.type.ndim == len(dims):
        return v
    return v.reshape(list(dims))


@torch_words()
def tensordot(
    a: TensorLike, b: TensorLike, axes: int | Sequence[int | Sequence[int]] = 2
) -> Variable:
    """Sum of products of ``a`` and ``b`` over pairs of dimensions.

    ``axes`` is a number (the last ones of ``a`` with the first ones of ``b``; 0 gives the outer
    product) or a pair of ints or sequences. The result has the rest of ``a``'s dimensions, then
    the rest of ``b``'s. Raises :class:`~symdnn.errors.TypeMismatch` for axes that do not exist
    and :class:`~symdnn.errors.ShapeMismatch` for sizes that differ.
    """
    x, y = factors("tensordot", a, b)
    left, right = _contracted_axes("tensordot", x, y, axes, batch=0)
    if not left:
        pattern = tuple(range(x.type.ndim)) + ("x",) * y.type.ndim
        return x.dimshuffle(pattern) * y
    y = _matched("tensordot", x, y, left, right)
    rest_x = [i for i in range(x.type.ndim) if i not in left]
    rest_y = [i for i in range(y.type.ndim) if i not in right]
    out = Dot()(join_dims(x, [rest_x, left]), join_dims(y, [right, rest_y]))
    dims = [dims_of(x)[i] for i in rest_x] + [dims_of(y)[i] for i in rest_y]
    return split_dims(out, dims, [len(rest_x), len(rest_y)])


def batched_tensordot(
    x: TensorLike, y: TensorLike, axes: int | Sequence[int | Sequence[int]] = 2
) -> Variable:
    """:func:`tensordot` for each index of the first dimension, which is the batch.

    Axes are numbered with the batch as 0, so a list of them contains no 0. A number pairs the last
    dimensions of ``x`` with the first ones of ``y`` after the batch.
    """
    a, b = factors("batched_tensordot", x, y)
    left, right = _contracted_axes("batched_tensordot", a, b, axes, batch=1)
    b = _matched("batched_tensordot", a, b, left, right)
    rest_a = [i for i in range(1, a.type.ndim) if i not in left]
    rest_b = [i for i in range(1, b.type.ndim) if i not in right]
    return _batched_contract(a, b, [0], [0], (left, right), (rest_a, rest_b))


def _batched_contract(
    a: Variable,
    b: Variable,
    batch_a: list[int],
    batch_b: list[int],
    summed: tuple[list[int], list[int]],
    rest: tuple[list[int], list[int]],
) -> Variable:
    """Contract ``summed``; the result has the batch, the rest of a, the rest of b."""
    dims_a, dims_b = dims_of(a), dims_of(b)
    a3 = _three(join_dims(a, [batch_a, rest[0], summed[0]]), bool(rest[0]), bool(summed[0]))
    b3 = _three(join_dims(b, [batch_b, summed[1], rest[1]]), bool(summed[1]), bool(rest[1]))
    out: Variable = BatchedDot()(a3, b3)
    shared = [
        dims_a[i] if a.type.shape[i] is not None else dims_b[j]
        for i, j in zip(batch_a, batch_b, strict=True)
    ]
    dims = [*shared, *(dims_a[i] for i in rest[0]), *(dims_b[i] for i in rest[1])]
    if len(batch_a) == 1 and len(rest[0]) <= 1 and len(rest[1]) <= 1:
        return out.dimshuffle(0, *([1] if rest[0] else []), *([2] if rest[1] else []))
    return out.reshape(dims)


def _three(v: Variable, second: bool, third: bool) -> Variable:
    """``v`` with a dimension of size 1 for its second or third group, if that is empty."""
    rest = iter(range(1, v.type.ndim))
    return v.dimshuffle(0, next(rest) if second else "x", next(rest) if third else "x")


def _matched(
    name: str, x: Variable, y: Variable, left: Sequence[int], right: Sequence[int]
) -> Variable:
    """``y`` with its contracted sizes checked against those of ``x``."""
    for i, j in zip(left, right, strict=True):
        m, n = x.type.shape[i], y.type.shape[j]
        if m is not None and n is not None and m != n:
            raise ShapeMismatch(
                name, f"equal sizes in dimension {i} of a and {j} of b", f"{x.type} and {y.type}"
            )
    pairs = tuple((j, i) for i, j in zip(left, right, strict=True))
    known = all(
        x.type.shape[i] is not None and y.type.shape[j] is not None
        for i, j in zip(left, right, strict=True)
    )
    return y if len(pairs) < 2 or known else MatchSizes(pairs)(y, x)


def _contracted_axes(
    name: str, x: Variable, y: Variable, axes: int | Sequence[int | Sequence[int]], batch: int
) -> tuple[list[int], list[int]]:
    """The pairs of dimensions of ``x`` and ``y`` in ``axes``, as non-negative ints."""
    nx, ny = x.type.ndim, y.type.ndim
    if isinstance(axes, int | np.integer):
        count = int(axes)
        if not 0 <= count <= min(nx, ny) - batch:
            raise AxisError(
                name, f"axes between 0 and {min(nx, ny) - batch} for {x.type} and {y.type}", count
            )
        return list(range(nx - count, nx)), list(range(batch, batch + count))
    left, right = _axes_pair(name, axes)
    if len(left) != len(right):
        raise AxisError(name, "as many axes of a as of b", f"{left} and {right}")
    return _normal(name, left, x, batch), _normal(name, right, y, batch)


def _axes_pair(name: str, axes: Any) -> tuple[list[int], list[int]]:
    if not isinstance(axes, list | tuple | np.ndarray) or len(axes) != 2:
        raise AxisError(name, "axes as a number or a pair", repr(axes))
    left, right = (list(a) if isinstance(a, list | tuple | np.ndarray) else [a] for a in axes)
    return left, right


def _normal(name: str, axes: Sequence[int], v: Variable, batch: int) -> list[int]:
    ndim = v.type.ndim
    out = [normal_axis(name, a, ndim) for a in axes]
    if len(set(out)) != len(out):
        raise AxisError(name, "each axis once", str(list(axes)))
    if any(a < batch for a in out):
        raise AxisError(name, "axes other than the shared dimension 0", str(list(axes)))
    return out


def batched_dot(a: TensorLike, b: TensorLike) -> Variable:
    """Product of ``a[i]`` and ``b[i]`` for each ``i``: stacks of matrices, vectors or scalars.

    As in Theano, the elements of a vector operand scale the items of the other. With more than
    three dimensions, the last of ``a`` is summed with the last but one of ``b``.
    """
    x, y = factors("batched_dot", a, b)
    if x.type.ndim == 0 or y.type.ndim == 0:
        raise NdimMismatch("batched_dot", "at least one dimension each", [x.type, y.type])
    if x.type.ndim == 1:
        return x.dimshuffle(0, *("x",) * (y.type.ndim - 1)) * y
    if y.type.ndim == 1:
        return x * y.dimshuffle(0, *("x",) * (x.type.ndim - 1))
    return batched_tensordot(x, y, [[x.type.ndim - 1], [max(1, y.type.ndim - 2)]])


def outer(x: TensorLike, y: TensorLike) -> Variable:
    """The product of each element of ``x`` with each of ``y``; more dimensions are flattened."""
    a, b = factors("outer", x, y)
    return outer_product(*(v if v.type.ndim == 1 else v.reshape([-1]) for v in (a, b)))


OPERATORS = {"dot": dot, "matmul": matmul, "tensordot": tensordot}
