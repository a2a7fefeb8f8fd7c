"""Functions of sparse matrices: products, sums, scaling, parts of them, other formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from symdnn.errors import AxisError, NdimMismatch, OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, common
from symdnn.graph.operators import operator
from symdnn.graph.typing import DtypeLike, TensorLike
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.ops.array.create import arange
from symdnn.ops.array.cumulative import cumsum
from symdnn.ops.array.getitem import getitem, inc_subtensor, nonzero
from symdnn.ops.array.join import join, repeat
from symdnn.ops.array.view import specify_shape
from symdnn.ops.core.python_numbers import alike
from symdnn.ops.core.shape import alloc, as_dim, shape_i
from symdnn.ops.sparse.products import SampledDot, sparse_dot
from symdnn.ops.sparse.structure import (
    SparseMatMul,
    SparseUnion,
    keys_of,
    rows_of,
    same_size,
    sampled_at,
    transposed_structure,
)
from symdnn.ops.sparse.variable import (
    INDEX,
    SparseVariable,
    is_scipy_sparse,
    shared,
    sparse_constant,
)
from symdnn.options import as_list

__all__ = [
    "add", "as_sparse_or_tensor_variable", "as_sparse_variable", "cast", "clean", "col_scale",
    "csc_from_dense", "csr_from_dense", "dense_from_sparse", "diag", "dot", "get_item_list",
    "hstack", "in_format", "mul", "remove0", "row_scale", "sampling_dot", "sp_ones_like",
    "sp_sum", "sp_zeros_like", "square_diagonal", "sub", "transpose", "true_dot", "usmm",
    "vstack",
]  # fmt: skip

Operand = SparseVariable | Variable


# -- operands -------------------------------------------------------------------------------------


def as_sparse_variable(x: SparseVariable | TensorLike, name: str | None = None) -> SparseVariable:
    """``x`` itself if it is a sparse expression, else the constant of a SciPy array or matrix.

    Raises :class:`~symdnn.errors.TypeMismatch` for others. (Theano's ``as_sparse_variable``)
    """
    if isinstance(x, SparseVariable):
        return x
    if is_scipy_sparse(x):
        return sparse_constant(x, name)
    raise TypeMismatch(
        "as_sparse_variable", "a sparse expression or a sparse array of SciPy's", x,
        "S.csr_from_dense(x) makes one of a dense matrix",
    )  # fmt: skip


def as_sparse_or_tensor_variable(
    x: SparseVariable | TensorLike, name: str | None = None
) -> Operand:
    """A sparse expression for what is sparse, else a variable."""
    if isinstance(x, SparseVariable) or is_scipy_sparse(x):
        return as_sparse_variable(x, name)
    return as_variable(x, name)


def _dense(name: str, x: Operand, *ndims: int) -> Variable:
    if isinstance(x, SparseVariable) or x.type.ndim not in ndims:
        wanted = " or ".join({0: "a number", 1: "a vector", 2: "a matrix"}[n] for n in ndims)
        raise NdimMismatch(name, wanted, x if isinstance(x, SparseVariable) else x.type)
    return x


def _same_size(name: str, wanted: str, a: Dim, b: Dim) -> None:
    if common((a, b)) is None:
        raise ShapeMismatch(name, wanted, f"{a} and {b}")


def in_format(x: SparseVariable | TensorLike, format: str) -> SparseVariable:
    """The matrix in the format ``"csr"`` or ``"csc"``; ``x`` itself if it has that format."""
    v = as_sparse_variable(x)
    if format not in ("csr", "csc"):
        raise OptionError(f"in_format: format={format!r}: wanted 'csr' or 'csc'")
    if v.format == format:
        return v
    order, indices, indptr = transposed_structure(v.indices, v.indptr, v.minor)
    return v.made(getitem(v.data, order), indices, indptr, v.major, format)


# -- products -------------------------------------------------------------------------------------


def dot(x: SparseVariable | TensorLike, y: Any) -> Any:
    """The matrix product of two operands of which one or both are sparse.

    Dense operands are vectors or matrices, and the result is dense; of two sparse matrices it is
    sparse. The gradient with respect to a sparse operand has the places of its elements.
    (Theano's ``dot``, ``structured_dot`` and ``true_dot``)

    >>> import numpy as np, scipy.sparse, symdnn, symdnn.sparse as S, symdnn.tensor as T
    >>> a, w = S.csr_array("a"), T.fmatrix("w")
    >>> f = symdnn.function([a, w], S.dot(a, w))
    >>> f(scipy.sparse.csr_array(np.float32([[0, 2], [1, 0]])), np.float32([[1, 2], [3, 4]]))
    array([[6., 8.],
           [1., 2.]], dtype=float32)
    """
    a, b = as_sparse_or_tensor_variable(x), as_sparse_or_tensor_variable(y)
    if isinstance(a, SparseVariable) and isinstance(b, SparseVariable):
        return _sparse_product(a, b)
    if isinstance(a, SparseVariable):
        return _times(a, _dense("dot", b, 1, 2), False)
    if not isinstance(b, SparseVariable):
        return operator("dot")(a, b)
    v = _dense("dot", a, 1, 2)
    # x A = (A' x')'
    return _times(b, v.T, True).T


def _times(a: SparseVariable, x: Variable, transposed: bool) -> Variable:
    """``A x``, or ``A' x``."""
    data, dense = alike([a.data, x])
    columns = a.shape[0] if transposed else a.shape[1]
    size = dense.type.shape[0]
    if size is not None:
        _same_size("dot", "equal inner sizes", columns, size)
    by_columns = a.format == "csc"
    return sparse_dot(data, a.indices, a.indptr, dense, a.minor, transposed != by_columns)


def _sparse_product(a: SparseVariable, b: SparseVariable) -> SparseVariable:
    _same_size("dot", "equal inner sizes", a.shape[1], b.shape[0])
    b = in_format(b, a.format)
    # The product of matrices by columns is that of their transposes by rows, in the other order.
    first, second = (a, b) if a.format == "csr" else (b, a)
    left, right = alike([first.data, second.data])
    middle = same_size(first.minor, second.major)
    data, indices, indptr = SparseMatMul()(
        left, first.indices, first.indptr, right, second.indices, second.indptr, middle,
        second.minor,
    )  # fmt: skip
    return a.made(data, indices, indptr, second.minor)


def true_dot(x: SparseVariable | TensorLike, y: Any, grad_preserves_dense: bool = True) -> Any:
    """:func:`dot` (Theano's name). Gradients are those of the elements that are there."""
    return dot(x, y)


def usmm(alpha: TensorLike, x: SparseVariable | TensorLike, y: Any, z: TensorLike) -> Variable:
    """``alpha * dot(x, y) + z`` of which one of ``x`` and ``y`` is sparse; dense."""
    product: Variable = as_variable(alpha) * dot(x, y)
    return product + as_variable(z)


def sampling_dot(x: TensorLike, y: TensorLike, p: Any) -> SparseVariable:
    """``p * dot(x, y.T)``, computed only where the sparse ``p`` has elements.

    ``x`` and ``y`` are dense matrices with the rows and the columns of ``p`` as rows. (Theano's
    ``sampling_dot``)
    """
    u, v = (_dense("sampling_dot", as_variable(m), 2) for m in (x, y))
    pattern = as_sparse_variable(p)
    u, v = alike([u, v])
    if pattern.format == "csc":
        u, v = v, u
    return pattern.with_data(pattern.data * SampledDot()(pattern.indices, pattern.indptr, u, v))


# -- element by element ---------------------------------------------------------------------------


def add(x: SparseVariable | TensorLike, y: Any) -> Any:
    """The sum of two sparse matrices, which is sparse, or of a sparse and a dense one: dense.

    Elements that add up to 0 stay; see :func:`remove0`.
    """
    return _sum("add", x, y)


def sub(x: SparseVariable | TensorLike, y: Any) -> Any:
    """The difference of two matrices, see :func:`add`."""
    a, b = as_sparse_or_tensor_variable(x), as_sparse_or_tensor_variable(y)
    return _sum("sub", a, -b)


def _sum(name: str, x: SparseVariable | TensorLike, y: Any) -> Any:
    a, b = as_sparse_or_tensor_variable(x), as_sparse_or_tensor_variable(y)
    if not isinstance(a, SparseVariable):
        a, b = b, a
    if not isinstance(a, SparseVariable):
        return operator("add")(a, b)
    if not isinstance(b, SparseVariable):
        dense, data = alike([_dense(name, b, 2), a.data])
        return inc_subtensor(dense[places_of(a)], data)
    for axis in (0, 1):
        _same_size(name, "matrices of equal sizes", a.shape[axis], b.shape[axis])
    if a.same_structure(b):
        return a.with_data(operator("add")(a.data, b.data))
    b = in_format(b, a.format)
    minor = same_size(a.minor, b.minor)
    indices, indptr, of_a, of_b = SparseUnion()(a.indices, a.indptr, b.indices, b.indptr, minor)
    first, second = alike([a.data, b.data])
    zeros = alloc(constant(0, dtype=first.type.dtype), shape_i(indices, 0))
    data = inc_subtensor(inc_subtensor(zeros[of_a], first)[of_b], second)
    return a.made(data, indices, indptr, a.minor)


def places_of(a: SparseVariable) -> tuple[Variable, Variable]:
    """The row and the column of each element."""
    pair = rows_of(a.indices, a.indptr), a.indices
    return pair if a.format == "csr" else pair[::-1]


def mul(x: SparseVariable | TensorLike, y: Any) -> Any:
    """The product element by element: sparse, with the places of the (first) sparse operand.

    The other one is a number, a vector (one number for each column), a matrix, or sparse.
    """
    a, b = as_sparse_or_tensor_variable(x), as_sparse_or_tensor_variable(y)
    if not isinstance(a, SparseVariable):
        a, b = b, a
    if not isinstance(a, SparseVariable):
        return operator("mul")(a, b)
    if isinstance(b, SparseVariable):
        return _product_of_elements(a, b)
    v = _dense("mul", b, 0, 1, 2)
    if v.type.ndim == 0:
        return a.with_data(a.data * v)
    rows, columns = places_of(a)
    at = getitem(v, columns) if v.type.ndim == 1 else getitem(v, (rows, columns))
    return a.with_data(a.data * at)


def _product_of_elements(a: SparseVariable, b: SparseVariable) -> SparseVariable:
    for axis in (0, 1):
        _same_size("mul", "matrices of equal sizes", a.shape[axis], b.shape[axis])
    if a.same_structure(b):
        return a.with_data(a.data * b.data)
    b = in_format(b, a.format)
    minor = same_size(a.minor, b.minor)
    rows = specify_shape(b.indptr, (shape_i(a.indptr, 0),))
    at = sampled_at((b.data, b.indices, rows), minor, a.indices, a.indptr)
    return a.with_data(a.data * at)


def col_scale(x: SparseVariable | TensorLike, s: TensorLike) -> SparseVariable:
    """Each column of a sparse matrix times an entry of the vector ``s``."""
    v = as_sparse_variable(x)
    return v.with_data(v.data * getitem(_dense("col_scale", as_variable(s), 1), places_of(v)[1]))


def row_scale(x: SparseVariable | TensorLike, s: TensorLike) -> SparseVariable:
    """Each row of a sparse matrix times an entry of the vector ``s``."""
    v = as_sparse_variable(x)
    return v.with_data(v.data * getitem(_dense("row_scale", as_variable(s), 1), places_of(v)[0]))


def cast(x: SparseVariable | TensorLike, dtype: DtypeLike) -> SparseVariable:
    """The matrix with elements of another dtype."""
    return as_sparse_variable(x).astype(dtype)


def sp_ones_like(x: SparseVariable | TensorLike) -> SparseVariable:
    """Ones at the places of the elements."""
    v = as_sparse_variable(x)
    ones: Variable = operator("ones_like")(v.data)
    return v.with_data(ones)


def sp_zeros_like(x: SparseVariable | TensorLike) -> SparseVariable:
    """A matrix of the same shape without elements."""
    v = as_sparse_variable(x)
    none: Any = slice(0, 0)
    return v.made(v.data[none], v.indices[none], operator("zeros_like")(v.indptr), v.minor)


# -- to and from dense ----------------------------------------------------------------------------


def dense_from_sparse(x: SparseVariable | TensorLike) -> Variable:
    """The dense matrix."""
    v = as_sparse_variable(x)
    zeros = alloc(constant(0, dtype=v.dtype), *v.shape)
    return inc_subtensor(zeros[places_of(v)], v.data)


def csr_from_dense(x: TensorLike) -> SparseVariable:
    """The elements of a dense matrix that are not 0, by rows."""
    return _from_dense(as_variable(x), "csr")


def csc_from_dense(x: TensorLike) -> SparseVariable:
    """The elements of a dense matrix that are not 0, by columns."""
    return _from_dense(as_variable(x), "csc")


def _from_dense(x: Variable, format: str) -> SparseVariable:
    v = _dense(f"{format}_from_dense", x, 2)
    by_rows: Variable = v if format == "csr" else v.T
    rows, columns = nonzero(by_rows)
    counts = operator("neq")(by_rows, constant(0, dtype=v.type.dtype)).sum(axis=1)
    indptr = _with_zero(cumsum(counts, 0))
    size = by_rows.type.shape[1]
    minor = shape_i(by_rows, 1) if size is None else size
    data = getitem(by_rows, (rows, columns))
    return SparseVariable(format, data, columns.astype(INDEX), indptr, minor, matrix=True)


def _with_zero(ends: Variable) -> Variable:
    """The indptr of rows that end at these places."""
    return join(0, constant([0]).astype(INDEX), ends.astype(INDEX))


# -- sums and parts -------------------------------------------------------------------------------


def sp_sum(
    x: SparseVariable | TensorLike, axis: int | None = None, sparse_grad: bool = False
) -> Variable:
    """The sum of all elements, of each column (``axis=0``) or of each row (``axis=1``); dense."""
    v = as_sparse_variable(x)
    if axis is None:
        return v.data.sum()
    if axis not in (0, 1, -1, -2):
        raise AxisError("sp_sum", "an axis of a matrix, 0 or 1", str(axis))
    of_columns = axis % 2 == 0
    size = v.shape[0] if of_columns else v.shape[1]
    return _times(v, alloc(constant(1, dtype=v.dtype), size), of_columns)


def diag(x: SparseVariable | TensorLike) -> Variable:
    """The diagonal of a sparse matrix, a dense vector."""
    v = as_sparse_variable(x)
    shortest = operator("minimum")(*(as_dim(n) for n in v.shape))
    places = arange(shortest, dtype=INDEX)
    ends = operator("minimum")(arange(as_dim(v.major) + 1, dtype="int64"), shortest).astype(INDEX)
    return sampled_at((v.data, v.indices, v.indptr), v.minor, places, ends)


def square_diagonal(diagonal: TensorLike) -> SparseVariable:
    """The square matrix with this diagonal, in CSC."""
    d = _dense("square_diagonal", as_variable(diagonal), 1)
    n = shape_i(d, 0)
    places, ends = arange(n, dtype=INDEX), arange(n + 1, dtype=INDEX)
    return SparseVariable("csc", d, places, ends, n, matrix=True)


def transpose(x: SparseVariable | TensorLike) -> SparseVariable:
    """The transpose: the same vectors in the other format."""
    return as_sparse_variable(x).T


def remove0(x: SparseVariable | TensorLike) -> SparseVariable:
    """The matrix without elements that are 0. (Theano's ``remove0``)"""
    v = as_sparse_variable(x)
    there = operator("neq")(v.data, constant(0, dtype=v.dtype))
    (kept,) = nonzero(there)
    before = join(0, constant([0]), cumsum(there.astype("int64"), 0))
    indptr = getitem(before, v.indptr).astype(INDEX)
    return v.made(getitem(v.data, kept), getitem(v.indices, kept), indptr, v.minor)


def clean(x: SparseVariable | TensorLike) -> SparseVariable:
    """:func:`remove0`; indices are in order already. (Theano's ``clean``)"""
    return remove0(x)


def get_item_list(x: SparseVariable | TensorLike, index: TensorLike) -> SparseVariable:
    """The rows of a sparse matrix with these numbers, in this order, also repeated ones."""
    v = in_format(x, "csr")
    r = as_variable(index)
    if not r.type.is_integer or r.type.ndim != 1:
        raise TypeMismatch("get_item_list", "an integer vector of rows", r.type)
    return _lines(v, r)


def _lines(v: SparseVariable, numbers: Variable) -> SparseVariable:
    """The rows of a CSR, or columns of a CSC, with these numbers."""
    begin, end = getitem(v.indptr, numbers), getitem(v.indptr, numbers + 1)
    indptr = _with_zero(cumsum(end - begin, 0))
    from_new = repeat((begin - indptr[:-1]).astype("int64"), end - begin)
    at = from_new + arange(shape_i(from_new, 0), dtype="int64")
    return v.made(getitem(v.data, at), getitem(v.indices, at), indptr, v.minor)


def getitem_of_sparse(x: SparseVariable, index: Any) -> Any:
    """``x[...]``: an element for two integers, else a sparse matrix of rows and columns.

    Each of the two indices is a slice, an integer, or an integer vector. An integer keeps its axis,
    with one row or column.
    """
    parts = index if isinstance(index, tuple) else (index,)
    if len(parts) > 2:
        raise NdimMismatch("a sparse matrix", "at most two indices", f"{len(parts)} of them")
    if len(parts) == 2 and all(_is_number(i) for i in parts):
        return _element(x, *parts)
    for axis, part in enumerate(parts):
        if isinstance(part, slice) and part == slice(None):
            continue
        by_axis = in_format(x, "csc" if axis else "csr")
        x = in_format(_lines(by_axis, _numbers(by_axis.major, part)), x.format)
    return x


def _is_number(i: Any) -> bool:
    return not isinstance(i, slice) and as_variable(i).type.ndim == 0


def _numbers(size: Dim, part: Any) -> Variable:
    """The numbers from 0 that an index takes; one out of range is an error in a call."""
    numbers = arange(as_dim(size), dtype="int64")
    if isinstance(part, slice):
        return getitem(numbers, part)
    v = as_variable(part)
    if not v.type.is_integer or v.type.ndim > 1:
        raise TypeMismatch("a sparse matrix", "slices, integers and integer vectors", v.type)
    return getitem(numbers, v if v.type.ndim else v.dimshuffle("x"))


def _element(x: SparseVariable, i: TensorLike, j: TensorLike) -> Variable:
    i, j = (_numbers(n, k) for n, k in zip(x.shape, (i, j), strict=True))
    major, minor = (i, j) if x.format == "csr" else (j, i)
    here = operator("eq")(keys_of(x.indices, x.indptr, x.minor), major * x.minor + minor)
    zero = constant(0, dtype=x.dtype)
    return operator("switch")(here, x.data, zero).sum()


# -- joined ---------------------------------------------------------------------------------------


def vstack(blocks: Sequence[Any], format: str | None = None, dtype: DtypeLike | None = None) -> Any:
    """Sparse matrices below each other; ``format`` is by default that of the first one."""
    return _stacked("vstack", blocks, "csr", format, dtype)


def hstack(blocks: Sequence[Any], format: str | None = None, dtype: DtypeLike | None = None) -> Any:
    """Sparse matrices beside each other; ``format`` is by default that of the first one."""
    return _stacked("hstack", blocks, "csc", format, dtype)


def _stacked(
    name: str, blocks: Sequence[Any], along: str, format: str | None, dtype: DtypeLike | None
) -> SparseVariable:
    given = [as_sparse_variable(b) for b in as_list(name, blocks, "sparse matrices")]
    if not given:
        raise TypeMismatch(name, "at least one sparse matrix", "none")
    found = [in_format(b, along) for b in given]
    for b in found[1:]:
        sizes = [v.shape[1 if along == "csr" else 0] for v in (found[0], b)]
        _same_size(name, "matrices of one width" if along == "csr" else "of one height", *sizes)
    data = alike([b.data for b in found])
    ends: list[Variable] = [found[0].indptr]
    for b in found[1:]:
        ends.append(b.indptr[1:] + ends[-1][-1])
    one = found[0].made(join(0, *data), join(0, *(b.indices for b in found)), join(0, *ends),
                        found[0].minor)  # fmt: skip
    made = in_format(one, format or given[0].format)
    return made if dtype is None else made.astype(dtype)


# -- structured functions -------------------------------------------------------------------------


def structured(function: Callable[..., Any], name: str) -> Callable[..., SparseVariable]:
    """A function of sparse matrices that applies ``function`` to the elements that are there."""

    def apply(x: SparseVariable | TensorLike, *others: Any) -> SparseVariable:
        v = as_sparse_variable(x)
        return v.with_data(function(v.data, *others))

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"``{function.__name__}`` of the elements that are there."
    return apply


OPERATORS = {
    "sparse_add": add,
    "sparse_dense": dense_from_sparse,
    "sparse_diagonal": diag,
    "sparse_format": in_format,
    "sparse_getitem": getitem_of_sparse,
    "sparse_mul": mul,
    "sparse_product": dot,
    "sparse_shared": shared,
    "sparse_sub": sub,
    "sparse_sum": sp_sum,
}
