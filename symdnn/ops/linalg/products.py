"""The two ops of matrix products, and a check of their operands' sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, Shape, common, names_advice, same_dim
from symdnn.graph.op import Axes, Batched, Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType, elements, tensor_type
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.lanes import fold, lanes_of, sizes_of, unfold
from symdnn.ops.elemwise import conjugate, unbroadcast

__all__ = ["BatchedDot", "Dot", "MatchSizes"]


def _check_factors(op: Op, types: Types, ranks: tuple[int, ...], wanted: str) -> None:
    if len(types) != 2 or any(not isinstance(t, TensorType) for t in types):
        raise TypeMismatch(op, wanted, list(types))
    if any(t.ndim not in ranks for t in types):
        raise TypeMismatch(op, wanted, list(types))
    if types[0].dtype != types[1].dtype:
        raise TypeMismatch(op, "factors of one dtype", list(types), "Cast one of them")


def _same_inner(op: Op, a: Dim, b: Dim, shapes: Shapes) -> Dim:
    found = common((a, b))
    if found is None:
        raise ShapeMismatch(
            op,
            "a last dimension of x that equals the contracted dimension of y",
            f"shapes {_text(shapes[0])} and {_text(shapes[1])}",
            names_advice((a, b)),
        )
    return found


def _text(shape: Shape) -> str:
    inner = ", ".join("?" if d is None else str(d) for d in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def _static_product(op: Any, types: Sequence[TensorType]) -> TensorType:
    """The output's type by the op's shape rule; unknown sizes stay unknown."""
    for i, j in op.contracted(types):
        sizes = {types[0].shape[i], types[1].shape[j]} - {None}
        if len(sizes) > 1:
            _same_inner(op, types[0].shape[i], types[1].shape[j], [t.shape for t in types])  # type: ignore[misc]
    return tensor_type(types[0].dtype, tuple(op.out_shape(types, [t.shape for t in types])))


def _product(x: Array, y: Array) -> Array:
    """NumPy's matmul; 16-bit floats are multiplied and summed in float32."""
    if is_narrow_float(x.dtype.name):
        wide = np.matmul(x.astype(np.float32), y.astype(np.float32))
        return np.asarray(wide).astype(x.dtype)
    return np.asarray(np.matmul(x, y)).astype(x.dtype, copy=False)


def _bilinear_jvp(op: Op, inputs: Vars, tangents: Grads) -> Grads:
    (x, y), (dx, dy) = inputs, tangents
    terms = [op(dx, y)] if dx is not None else []
    terms += [op(x, dy)] if dy is not None else []
    return [terms[0] if len(terms) == 1 else terms[0] + terms[1]]


def outer_product(x: Variable, y: Variable) -> Variable:
    return x.dimshuffle(0, "x") * y.dimshuffle("x", 0)


@dataclass(frozen=True)
class Dot(Op):
    """Product of matrices and vectors ``(m, k) (k, n)``; a vector lacks ``m`` or ``n``.

    float16 and bfloat16 are accumulated in float32. (cuBLASLt matmul, oneDNN matmul; Theano's
    ``Dot``.)
    """

    never_fails: ClassVar[bool] = True

    def contracted(self, types: Sequence[TensorType]) -> list[tuple[int, int]]:
        """The pair of dimensions that are summed over."""
        return [(-1, 0)]

    def out_shape(self, types: Types, shapes: Sequence[Sequence[Dim | None]]) -> tuple[Any, ...]:
        """``(m, n)``, without those that a vector lacks."""
        x, y = shapes
        return (*x[:-1], *y[1:])

    def infer(self, *types: TensorType) -> TensorType:
        _check_factors(self, types, (1, 2), "two vectors or matrices")
        return _static_product(self, types)

    def reference(self, x: Array, y: Array) -> Array:
        _same_inner(self, x.shape[-1], y.shape[0], [x.shape, y.shape])
        return _product(x, y)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        _same_inner(self, shapes[0][-1], shapes[1][0], shapes)
        return [self.out_shape(types, shapes)]

    def multiplications(self, inputs: Types, outputs: Types) -> float:
        return elements(outputs[0]) * (inputs[0].shape[-1] or 0)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x, y), (g,) = inputs, cotangents
        if not g.type.is_differentiable:
            return [None, None]
        x, y = conjugate(x), conjugate(y)
        ranks = x.type.ndim, y.type.ndim
        if ranks == (2, 2):
            return [Dot()(g, y.dimshuffle(1, 0)), Dot()(x.dimshuffle(1, 0), g)]
        if ranks == (2, 1):
            return [outer_product(g, y), Dot()(g, x)]
        if ranks == (1, 2):
            return [Dot()(y, g), outer_product(x, g)]
        return [g * y, g * x]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return _bilinear_jvp(self, inputs, tangents)

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        (x, y), (a, b) = inputs, axes
        ranks = x.type.ndim - (a == 0), y.type.ndim - (b == 0)
        if a == 0 and b == 0:
            return [_dot_of_stacks(x, y, ranks)], [0]
        if a == 0:
            return [_stack_by_one(x, y)], [0]
        if ranks[1] == 1:
            return [_stack_by_one(y, x.dimshuffle(*reversed(range(ranks[0]))))], [0]
        found = BatchedDot()(x.dimshuffle("x", *(("x", 0) if ranks[0] == 1 else (0, 1))), y)
        return [found.dimshuffle(0, 2) if ranks[0] == 1 else found], [0]


@dataclass(frozen=True)
class BatchedDot(Op):
    """Products of two stacks of matrices ``(b, m, k) (b, k, n) -> (b, m, n)``.

    A ``b`` that is statically 1 broadcasts: one matrix serves the whole stack. float16 and
    bfloat16 are accumulated in float32. (Strided-batched cuBLASLt matmul, oneDNN matmul; Theano's
    ``BatchedDot``.)
    """

    never_fails: ClassVar[bool] = True

    def contracted(self, types: Sequence[TensorType]) -> list[tuple[int, int]]:
        """Pairs of dimensions that must be of equal size."""
        stacked = types[0].shape[0] != 1 and types[1].shape[0] != 1
        return [(2, 1), (0, 0)] if stacked else [(2, 1)]

    def out_shape(self, types: Types, shapes: Sequence[Sequence[Dim | None]]) -> tuple[Any, ...]:
        """``(b, m, n)``."""
        (x, y), (tx, ty) = shapes, types
        b = y[0] if tx.shape[0] == 1 or (x[0] is None and ty.shape[0] != 1) else x[0]
        return (b, x[1], y[2])

    def infer(self, *types: TensorType) -> TensorType:
        _check_factors(self, types, (3,), "two stacks of matrices (3 dimensions)")
        return _static_product(self, types)

    def reference(self, x: Array, y: Array) -> Array:
        _same_inner(self, x.shape[2], y.shape[1], [x.shape, y.shape])
        return _product(x, y)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        x, y = shapes
        _same_inner(self, x[2], y[1], shapes)
        b, m, n = self.out_shape(types, shapes)
        if (0, 0) in self.contracted(types):
            b = same_dim(
                self, (x[0], y[0]), "stacks of equal length (only a static 1 broadcasts)",
                f"shapes {_text(x)} and {_text(y)}",
            )  # fmt: skip
        return [(b, m, n)]

    def multiplications(self, inputs: Types, outputs: Types) -> float:
        return elements(outputs[0]) * (inputs[0].shape[2] or 0)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x, y), (g,) = inputs, cotangents
        if not g.type.is_differentiable:
            return [None, None]
        dx = BatchedDot()(g, conjugate(y).dimshuffle(0, 2, 1))
        dy = BatchedDot()(conjugate(x).dimshuffle(0, 2, 1), g)
        return [_unstack(dx, x), _unstack(dy, y)]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return _bilinear_jvp(self, inputs, tangents)

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        (x, y), lanes = inputs, lanes_of(inputs, axes)
        if axes[0] is None:
            return [unfold(self(x, fold(y, 2)), 2, lanes, sizes_of(y)[3])], [0]
        if axes[1] is None:
            return [unfold(self(fold(x, 1), y), 1, lanes, sizes_of(x)[2])], [0]
        one = x.type.shape[1] == 1, y.type.shape[1] == 1
        length = sizes_of(y if one[0] else x)[1]
        if one[0] != one[1]:  # the one matrix of a lane multiplies its whole stack
            x, y = (_repeated(v, length) if o else v for v, o in zip((x, y), one))
        return [unfold(self(fold(x, 0), fold(y, 0)), 0, lanes, length)], [0]


def _unstack(g: Variable, like: Variable) -> Variable:
    """``g`` summed over the stack if ``like`` is one matrix, which was broadcast over it."""
    if like.type.shape[0] == 1 and g.type.shape[0] != 1:
        return g.sum(axis=0, keepdims=True)
    return unbroadcast(g, like)


@dataclass(frozen=True)
class MatchSizes(Op):
    """``x`` with a check that pairs of dimensions of ``x`` and ``y`` have equal sizes. A view.

    It reads only the shape of ``y``. Contractions over several dimensions need the check, since
    after their reshape (2, 3) would match (3, 2).
    """

    shape_inputs: ClassVar[tuple[int, ...]] = (1,)
    views: ClassVar[Mapping[int, int]] = {0: 0}
    linear_in_first: ClassVar[bool] = True
    pairs: tuple[tuple[int, int], ...]

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        sizes = list(x.shape)
        for i, j in self.pairs:
            if sizes[i] is None:
                sizes[i] = y.shape[j]
        self.shapes([x, y], [x.shape, y.shape], {})  # type: ignore[list-item]
        return x.with_shape(sizes)

    def reference(self, x: Array, y: Array) -> Array:
        self.shapes([], [x.shape, y.shape], {})
        return x

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        x, y = shapes
        sizes = list(x)
        for i, j in self.pairs:
            if x[i] is not None and y[j] is not None:
                sizes[i] = same_dim(
                    self, (y[j], x[i]), f"dimension {i} of x equal to dimension {j} of y",
                    f"shapes {_text(x)} and {_text(y)}",
                )  # fmt: skip
        return [tuple(sizes)]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [cotangents[0], None]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        a, b = (axis == 0 for axis in axes)
        return [MatchSizes(tuple((i + a, j + b) for i, j in self.pairs))(*inputs)], [axes[0]]


# -- a batch of products -------------------------------------------------------------------------


def _stack_by_one(x: Variable, y: Variable) -> Variable:
    """A stack of vectors or matrices by one matrix or vector: a single product."""
    if x.type.ndim == 2:
        return Dot()(x, y)
    lanes, rows, inner = sizes_of(x)
    found = Dot()(x.reshape((lanes * rows, inner)), y)
    return found.reshape((lanes, rows, *sizes_of(found)[1:]))


def _dot_of_stacks(x: Variable, y: Variable, ranks: tuple[int, int]) -> Variable:
    if ranks == (1, 1):
        return (x * y).sum(axis=1, dtype=x.type.dtype)
    left = x if ranks[0] == 2 else x.dimshuffle(0, "x", 1)
    right = y if ranks[1] == 2 else y.dimshuffle(0, 1, "x")
    found = BatchedDot()(left, right)
    kept = [0, *([1] if ranks[0] == 2 else []), *([2] if ranks[1] == 2 else [])]
    return found.dimshuffle(*kept) if len(kept) < 3 else found


def _repeated(v: Variable, length: Dim) -> Variable:
    """Each lane's one matrix, ``length`` times."""
    lanes, _, rows, columns = sizes_of(v)
    return operator("alloc")(v, lanes, length, rows, columns)
