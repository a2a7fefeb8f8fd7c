"""The structure of results: of the transpose, of a sum, and of a product of sparse matrices.

Structures are integers, which have no gradient. Elements move into their places by gathers and
scatters, which have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, common
from symdnn.graph.op import Grads, Host, MultiOp, Op, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable, constant
from symdnn.ops.array.create import arange
from symdnn.ops.array.getitem import getitem
from symdnn.ops.array.sort import searchsorted
from symdnn.ops.core.shape import as_dim, shape_i, static_dim
from symdnn.ops.elemwise import conjugate
from symdnn.ops.sparse.products import check_vectors, compressed, wide

__all__ = [
    "SameSize", "SparseMatMul", "SparseTranspose", "SparseUnion", "keys_of", "major_of", "rows_of",
    "same_size", "sampled_at", "transposed_structure",
]  # fmt: skip


def _vector(dtype: str, length: int | None = None) -> TensorType:
    return TensorType(dtype, (length,))


@dataclass(frozen=True)
class SparseTranspose(MultiOp):
    """The structure of the transpose: the order of its elements among those of the matrix
    (int64), its indices, its indptr.

    Inputs: indices, indptr, and the number of columns, an integer scalar whose value is ``minor``
    where it is known. The elements of a row of the result are in ascending order if the matrix has
    each element once. (``scipy.sparse.csr_array.tocsc``)
    """

    no_gradients: ClassVar[bool] = True
    host_inputs: ClassVar[tuple[int, ...]] = (2,)
    run_time_inputs: ClassVar[tuple[int, ...]] = ()
    minor: int | None = None

    def infer(self, indices: TensorType, indptr: TensorType, n: Any) -> tuple[TensorType, ...]:
        check_vectors(self, indices, indptr)
        length = None if self.minor is None else self.minor + 1
        (count,) = indices.shape
        return _vector("int64", count), indices.with_shape((count,)), indptr.with_shape((length,))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        minor = host[2] if self.minor is None else self.minor
        return [shapes[0], shapes[0], (minor + 1,)]

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        indices, indptr, minor = inputs
        places = np.arange(len(indices))
        found = compressed(places, indices, indptr, int(minor)).tocsc()
        kind = indices.dtype
        return found.data, found.indices.astype(kind), found.indptr.astype(kind)


@dataclass(frozen=True)
class SparseUnion(MultiOp):
    """The structure of the sum of two matrices: its indices and indptr, and the places in it of
    the elements of each (int64).

    Inputs: indices and indptr of both, and the number of columns. Both have each element once, in
    ascending order. The number of elements depends on the data.
    """

    no_gradients: ClassVar[bool] = True
    host_inputs: ClassVar[tuple[int, ...]] = (4,)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        a, a_rows, b, b_rows, _ = inputs
        check_vectors(self, a, a_rows)
        check_vectors(self, b, b_rows)
        if a.dtype != b.dtype:
            raise TypeMismatch(self, "indices of one dtype", list(inputs))
        _same_rows(self, a_rows.shape[0], b_rows.shape[0])
        rows = a_rows.with_shape((a_rows.shape[0] or b_rows.shape[0],))
        return (
            _vector(a.dtype), rows, _vector("int64", a.shape[0]), _vector("int64", b.shape[0]),
        )  # fmt: skip

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> None:
        return None

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        a, a_rows, b, b_rows, minor = inputs
        _same_rows(self, len(a_rows), len(b_rows))
        # The number of each element, from 1 on: of the first matrix as the real part.
        marked = compressed(np.arange(1, len(a) + 1) + 0j, a, a_rows, int(minor))
        marked = marked + compressed(np.arange(1, len(b) + 1) * 1j, b, b_rows, int(minor))
        places = []
        for part, count in ((marked.data.real, len(a)), (marked.data.imag, len(b))):
            place = np.empty(count, np.int64)
            (there,) = np.nonzero(part)
            place[part[there].astype(np.int64) - 1] = there
            places.append(place)
        kind = a.dtype
        return marked.indices.astype(kind), marked.indptr.astype(kind), *places


def _same_rows(op: MultiOp, a: Dim | None, b: Dim | None) -> None:
    if a is not None and b is not None and common((a, b)) is None:
        raise ShapeMismatch(op, "as many rows of both matrices", f"indptr of {a} and {b} entries")


@dataclass(frozen=True)
class SparseMatMul(MultiOp):
    """The product of two sparse matrices: its data, indices (in ascending order) and indptr.

    Inputs: data, indices and indptr of both, and the numbers of columns of both. The number of
    elements depends on the data; sums of products that happen to be 0 are elements.
    (``cusparseSpGEMM``, Theano's ``TrueDot``.)
    """

    host_inputs: ClassVar[tuple[int, ...]] = (6, 7)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        a, a_columns, a_rows, b, b_columns, b_rows, _, _ = inputs
        check_vectors(self, a, a_columns, a_rows)
        check_vectors(self, b, b_columns, b_rows)
        if a.dtype != b.dtype or a_columns.dtype != b_columns.dtype:
            raise TypeMismatch(self, "elements, and indices, of one dtype", list(inputs))
        return _vector(a.dtype), _vector(a_columns.dtype), a_rows

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> None:
        return None

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        a, a_columns, a_rows, b, b_columns, b_rows, middle, minor = inputs
        if int(middle) != len(b_rows) - 1:
            raise ShapeMismatch(self, "equal inner sizes", f"{middle} and {len(b_rows) - 1}")
        # SciPy leaves sums out that are 0. The places must not depend on the elements, of which
        # gradients would be missing, so they are those of a product of ones.
        ones = [np.ones(len(x), np.int64) for x in (a, b)]
        places = compressed(ones[0], a_columns, a_rows, int(middle))
        places = places @ compressed(ones[1], b_columns, b_rows, int(minor))
        found = compressed(wide(a), a_columns, a_rows, int(middle))
        found = found @ compressed(wide(b), b_columns, b_rows, int(minor))
        for matrix in (places, found):
            matrix.sort_indices()
        data = found.data if found.nnz == places.nnz else _spread(found, places)
        data, kind = data.astype(a.dtype, copy=False), a_columns.dtype
        return data, places.indices.astype(kind), places.indptr.astype(kind)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        a, a_columns, a_rows, b, b_columns, b_rows, middle, minor = inputs
        (_, columns, rows), dy = outputs, cotangents[0]
        none: list[Variable | None] = [None] * len(inputs)
        if dy is None:
            return none
        # da = dy b' at the elements of a; db = a' dy at those of b.
        turn, columns_t, rows_t = transposed_structure(b_columns, b_rows, minor)
        of_a = self(dy, columns, rows, conjugate(b)[turn], columns_t, rows_t, minor, middle)
        none[0] = sampled_at(of_a, middle, a_columns, a_rows)
        turn, columns_t, rows_t = transposed_structure(a_columns, a_rows, middle)
        of_b = self(
            conjugate(a)[turn], columns_t, rows_t, dy, columns, rows, major_of(a_rows), minor
        )
        none[3] = sampled_at(of_b, minor, b_columns, b_rows)
        return none


def _spread(matrix: Any, places: Any) -> Array:
    """The elements of a matrix at those of another one that has them all; 0 elsewhere."""
    keys = []
    for m in (matrix, places):
        rows = np.repeat(np.arange(m.shape[0], dtype=np.int64), np.diff(m.indptr))
        keys.append(rows * m.shape[1] + m.indices)
    data = np.zeros(places.nnz, matrix.dtype)
    data[np.searchsorted(keys[1], keys[0])] = matrix.data
    return data


@dataclass(frozen=True)
class SameSize(Op):
    """The first of two integer scalars, which must be equal: sizes that no operand has as one."""

    no_gradients: ClassVar[bool] = True

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        if not (a.is_integer_scalar and b.is_integer_scalar):
            raise TypeMismatch(self, "integer scalars", [a, b])
        return a

    def reference(self, a: Array, b: Array) -> Array:
        if int(a) != int(b):
            raise ShapeMismatch(self, "matrices of equal sizes", f"{a} and {b}")
        return np.array(a)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [()]


# -- of existing ops ------------------------------------------------------------------------------


def same_size(a: Dim, b: Dim) -> Dim:
    """A size that two operands have in common. Raises where they differ, if need be in a call."""
    found = common((a, b))
    if found is None:
        raise ShapeMismatch("sparse matrices", "equal sizes", f"{a} and {b}")
    if a is b or None not in (static_dim(as_dim(a)), static_dim(as_dim(b))):
        return found
    return SameSize()(as_dim(a), as_dim(b))


def major_of(indptr: Variable) -> Variable:
    """The number of rows, an integer scalar."""
    return as_dim(shape_i(indptr, 0) - 1)


def transposed_structure(indices: Variable, indptr: Variable, minor: Dim) -> Vars:
    """:class:`SparseTranspose` of a matrix with ``minor`` columns."""
    n = as_dim(minor)
    return SparseTranspose(static_dim(n))(indices, indptr, n)


def rows_of(indices: Variable, indptr: Variable) -> Variable:
    """The row of each element, int64."""
    numbers = arange(shape_i(indices, 0), dtype=indptr.type.dtype)
    return searchsorted(indptr, numbers, side="right") - 1


def keys_of(indices: Variable, indptr: Variable, minor: Dim) -> Variable:
    """The number of each element in a dense matrix with ``minor`` columns, in C order."""
    return rows_of(indices, indptr) * as_dim(minor) + indices.astype("int64")


def sampled_at(matrix: Vars, minor: Dim, indices: Variable, indptr: Variable) -> Variable:
    """The elements of a matrix (data, indices, indptr) at those of another one; 0 elsewhere.

    The matrix has each element once, in ascending order.
    """
    data, *own = matrix
    there, wanted = keys_of(own[0], own[1], minor), keys_of(indices, indptr, minor)
    # One element more, which no key finds, so that a matrix without elements has one to look at.
    nowhere = constant(np.array([-1]))
    there = operator("join")(0, there, nowhere)
    data = operator("join")(0, data, constant(np.zeros(1), dtype=data.type.dtype))
    place = searchsorted(there[:-1], wanted)
    found = operator("eq")(getitem(there, place), wanted)
    zero = constant(0, dtype=data.type.dtype)
    return operator("switch")(found, getitem(data, place), zero)
