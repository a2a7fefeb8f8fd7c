"""Products of a matrix in a compressed format (CSR, or CSC of its transpose) with dense ones.

The matrix is three vectors: ``data``, its elements row by row; ``indices``, their columns; and
``indptr``, the place in both where each row begins. The number of rows is the length of ``indptr``
less one. Each of the two ops is the gradient of the other one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import IndexOutOfRange, NdimMismatch, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, common, product
from symdnn.graph.op import Axes, Batched, Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.shape import as_dim, dims_of, dimshuffle, reshape, shape_i, static_dim
from symdnn.ops.elemwise import conjugate

__all__ = ["SampledDot", "SparseDot", "check_structure", "compressed", "sparse_dot", "wide"]


def compressed(data: Array, indices: Array, indptr: Array, minor: int) -> Any:
    """The matrix as one of SciPy's, with ``minor`` columns; its indices are checked."""
    import scipy.sparse

    check_structure("a sparse matrix", indices, indptr, minor)
    if len(data) != len(indices):
        raise ShapeMismatch("a sparse matrix", f"{len(indices)} elements, as indices", len(data))
    shape = (len(indptr) - 1, minor)
    return scipy.sparse.csr_array((data, indices, indptr), shape=shape)


def check_structure(what: object, indices: Array, indptr: Array, minor: int) -> None:
    """Raise :class:`~symdnn.errors.IndexOutOfRange` for indices that no matrix has."""
    if indices.size and not (indices.min() >= 0 and indices.max() < minor):
        raise IndexOutOfRange(
            f"{what}: wanted indices from 0 to {minor - 1}, got {indices.min()} to {indices.max()}"
        )
    if indptr[0] != 0 or indptr[-1] != len(indices) or np.any(np.diff(indptr) < 0):
        raise IndexOutOfRange(
            f"{what}: wanted an indptr that grows from 0 to {len(indices)}, the number of indices, "
            f"got one from {indptr[0]} to {indptr[-1]}"
        )


def check_vectors(op: Op, *vectors: Any) -> None:
    """Raise where an operand is no vector; the last two are indices and indptr."""
    if not all(isinstance(t, TensorType) and t.ndim == 1 for t in vectors):
        raise NdimMismatch(op, "vectors of elements, indices and indptr", list(vectors))
    indices, indptr = vectors[-2:]
    if indices.dtype not in ("int32", "int64") or indptr.dtype != indices.dtype:
        raise TypeMismatch(op, "indices and indptr of one dtype, int32 or int64", list(vectors))


def wide(x: Array) -> Array:
    """The elements as SciPy can multiply them: those of 16 bits in float32."""
    return x.astype(np.float32) if is_narrow_float(x.dtype.name) else x


class Compressed(Op):
    """Base of the two products."""

    abstract: ClassVar[bool] = True

    def _check_dense(self, dtype: str, *operands: TensorType) -> None:
        for t in operands:
            if not isinstance(t, TensorType) or t.dtype != dtype:
                raise TypeMismatch(self, f"operands of one dtype, {dtype}", list(operands))
            if t.ndim not in (1, 2) or t.ndim != operands[0].ndim:
                raise NdimMismatch(self, "vectors or matrices", list(operands))

    def _same(self, wanted: str, a: Dim | None, b: Dim | None) -> None:
        if a is not None and b is not None and common((a, b)) is None:
            raise ShapeMismatch(self, wanted, f"{a} and {b}")


@dataclass(frozen=True)
class SparseDot(Compressed):
    """``A x`` for a sparse ``A`` and a dense vector or matrix ``x``; ``transposed``: ``A' x``.

    Inputs: data, indices, indptr, ``x``, and the number of columns of ``A``, an integer scalar
    whose value is ``minor`` where it is known. (``cusparseSpMM``, Theano's ``StructuredDot``.)
    """

    host_inputs: ClassVar[tuple[int, ...]] = (4,)
    transposed: bool = False
    minor: int | None = None

    def infer(
        self, data: TensorType, indices: TensorType, indptr: TensorType, x: TensorType, n: Any
    ) -> TensorType:
        check_vectors(self, data, indices, indptr)
        self._check_dense(data.dtype, x)
        shape = self._shape(data.shape, indices.shape, indptr.shape, x.shape, self.minor)
        return TensorType(data.dtype, shape)

    def _shape(self, data: Any, indices: Any, indptr: Any, x: Any, minor: Any) -> tuple[Any, ...]:
        self._same("as many elements as indices", data[0], indices[0])
        major = None if indptr[0] is None else indptr[0] - 1
        if self.transposed:
            self._same("as many rows of A as of x", major, x[0])
            return (minor, *x[1:])
        self._same("as many columns of A as rows of x", minor, x[0])
        return (major, *x[1:])

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        minor = host[4] if self.minor is None else self.minor
        data, indices, indptr, x, _ = shapes
        return [self._shape(data, indices, indptr, x, minor)]

    def reference(self, *inputs: Array) -> Array:
        data, indices, indptr, x, minor = inputs
        a = compressed(wide(data), indices, indptr, int(minor))
        y = (a.T if self.transposed else a) @ wide(x)
        return np.asarray(y).astype(data.dtype, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (data, indices, indptr, x, minor), (dy,) = inputs, cotangents
        rows, columns = (x, dy) if self.transposed else (dy, x)
        rows, columns = (
            (conjugate(rows), columns) if self.transposed else (rows, conjugate(columns))
        )
        slope = SampledDot()(indices, indptr, rows, columns)
        back = replace(self, transposed=not self.transposed)
        return [slope, None, None, back(conjugate(data), indices, indptr, dy, minor), None]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        data, indices, indptr, x, minor = inputs
        of_data, of_x = tangents[0], tangents[3]
        terms = []
        if of_data is not None:
            terms.append(self(of_data, indices, indptr, x, minor))
        if of_x is not None:
            terms.append(self(data, indices, indptr, of_x, minor))
        return [operator("add")(*terms) if len(terms) == 2 else terms[0] if terms else None]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        data, indices, indptr, x, minor = inputs
        if any(axes[i] is not None for i in (0, 1, 2, 4)):
            return None
        # The columns of all lanes beside each other are those of one matrix.
        lanes, size, *width = dims_of(x)
        order = [1, 0, *range(2, x.type.ndim)]
        beside = reshape(dimshuffle(x, order), [size, product([lanes, *width])])
        y = self(data, indices, indptr, beside, minor)
        apart = reshape(y, [dims_of(y)[0], lanes, *width])
        return [dimshuffle(apart, order)], [0]


@dataclass(frozen=True)
class SampledDot(Compressed):
    """``u v'`` at the elements of a sparse matrix: ``y[k] = sum_p u[row(k), p] v[column(k), p]``.

    Inputs: indices and indptr of the matrix, ``u`` with its rows, ``v`` with its columns; both
    dense, vectors or matrices. The result is the vector of its elements. (``cusparseSDDMM``)
    """

    def infer(
        self, indices: TensorType, indptr: TensorType, u: TensorType, v: TensorType
    ) -> TensorType:
        check_vectors(self, indices, indptr)
        self._check_dense(u.dtype, u, v)
        return TensorType(u.dtype, self._shape(indices.shape, indptr.shape, u.shape, v.shape))

    def _shape(self, indices: Any, indptr: Any, u: Any, v: Any) -> tuple[Any, ...]:
        self._same("as many rows of u as of the matrix", u[0], indptr[0] and indptr[0] - 1)
        if len(u) == 2:
            self._same("as many columns of u as of v", u[1], v[1])
        return (indices[0],)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [self._shape(*shapes)]

    def reference(self, *inputs: Array) -> Array:
        indices, indptr, u, v = inputs
        check_structure(self, indices, indptr, len(v))
        rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        products = wide(u)[rows] * wide(v)[indices]
        total = products if u.ndim == 1 else products.sum(axis=1)
        return np.asarray(total).astype(u.dtype, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (indices, indptr, u, v), (dy,) = inputs, cotangents
        minor = shape_i(v, 0)
        du = sparse_dot(dy, indices, indptr, conjugate(v), minor)
        dv = sparse_dot(dy, indices, indptr, conjugate(u), minor, transposed=True)
        return [None, None, du, dv]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        indices, indptr, u, v = inputs
        terms = []
        if tangents[2] is not None:
            terms.append(self(indices, indptr, tangents[2], v))
        if tangents[3] is not None:
            terms.append(self(indices, indptr, u, tangents[3]))
        return [operator("add")(*terms) if len(terms) == 2 else terms[0] if terms else None]


def sparse_dot(
    data: Variable, indices: Variable, indptr: Variable, x: Variable, minor: Dim,
    transposed: bool = False,
) -> Variable:  # fmt: skip
    """:class:`SparseDot` with ``minor`` columns, an int or an integer scalar."""
    n = as_dim(minor)
    return SparseDot(transposed, static_dim(n))(data, indices, indptr, x, n)
