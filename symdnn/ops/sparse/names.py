"""Theano's names of what a sparse matrix is made of, and of functions of its elements alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from symdnn.errors import InputError
from symdnn.graph.typing import DtypeLike, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.create import arange
from symdnn.ops.array.sort import argsort, searchsorted
from symdnn.ops.core.make_vector import make_vector
from symdnn.ops.core.shape import as_dim, shape_i
from symdnn.ops.elementwise import activations as ac
from symdnn.ops.elementwise import arithmetic as ar
from symdnn.ops.elementwise import complexes as cx
from symdnn.ops.elementwise import math as mt
from symdnn.ops.elementwise import rounding as rd
from symdnn.ops.sparse.functions import as_sparse_variable, cast, places_of, structured
from symdnn.ops.sparse.variable import SparseType, SparseVariable, from_parts, sparse_variable
from symdnn.options import as_list

__all__ = [
    "CSC", "CSR", "SparseType", "abs", "arcsin", "arcsinh", "arctan", "arctanh", "bcast", "ccast",
    "ceil", "conj", "construct_sparse_from_list", "coo_array", "coo_matrix", "csc_array",
    "csc_dmatrix", "csc_fmatrix", "csc_matrix", "csm_data", "csm_indices", "csm_indptr",
    "csm_properties", "csm_shape", "csr_array", "csr_dmatrix", "csr_fmatrix", "csr_matrix", "dcast",
    "deg2rad", "ensure_sorted_indices", "expm1", "fcast", "floor", "get_item_2d", "get_item_scalar",
    "icast", "lcast", "log1p", "neg", "rad2deg", "rint", "sgn", "sin", "sinh", "sparse_grad", "sqr",
    "sqrt", "structured_add", "structured_add_s_v", "structured_exp", "structured_log",
    "structured_maximum", "structured_minimum", "structured_pow", "structured_sigmoid", "tan",
    "tanh", "trunc", "wcast", "zcast",
]  # fmt: skip

Shape = Sequence[int | None]
_ANY: Shape = (None, None)


def csr_array(
    name: str | None = None, dtype: DtypeLike | None = None, shape: Shape = _ANY
) -> SparseVariable:
    """A sparse input whose values are ``scipy.sparse.csr_array``; ``dtype`` is ``floatX``.

    Sizes in ``shape`` that are None are unknown.
    """
    return sparse_variable("csr", name, dtype, shape)


def csc_array(
    name: str | None = None, dtype: DtypeLike | None = None, shape: Shape = _ANY
) -> SparseVariable:
    """A sparse input whose values are ``scipy.sparse.csc_array``; see :func:`csr_array`."""
    return sparse_variable("csc", name, dtype, shape)


def coo_array(
    name: str | None = None, dtype: DtypeLike | None = None, shape: Shape = _ANY
) -> SparseVariable:
    """A sparse input whose values are ``scipy.sparse.coo_array``: it is computed with as CSR, and
    elements that are given twice are added up."""
    return sparse_variable("coo", name, dtype, shape)


def csr_matrix(
    name: str | None = None, dtype: DtypeLike | None = None, shape: Shape = _ANY
) -> SparseVariable:
    """:func:`csr_array` for ``scipy.sparse.csr_matrix`` (Theano's name)."""
    return sparse_variable("csr", name, dtype, shape, matrix=True)


def csc_matrix(
    name: str | None = None, dtype: DtypeLike | None = None, shape: Shape = _ANY
) -> SparseVariable:
    """:func:`csc_array` for ``scipy.sparse.csc_matrix`` (Theano's name)."""
    return sparse_variable("csc", name, dtype, shape, matrix=True)


def coo_matrix(
    name: str | None = None, dtype: DtypeLike | None = None, shape: Shape = _ANY
) -> SparseVariable:
    """:func:`coo_array` for ``scipy.sparse.coo_matrix``."""
    return sparse_variable("coo", name, dtype, shape, matrix=True)


def csr_fmatrix(name: str | None = None) -> SparseVariable:
    """A float32 :func:`csr_matrix`."""
    return csr_matrix(name, "float32")


def csr_dmatrix(name: str | None = None) -> SparseVariable:
    """A float64 :func:`csr_matrix`."""
    return csr_matrix(name, "float64")


def csc_fmatrix(name: str | None = None) -> SparseVariable:
    """A float32 :func:`csc_matrix`."""
    return csc_matrix(name, "float32")


def csc_dmatrix(name: str | None = None) -> SparseVariable:
    """A float64 :func:`csc_matrix`."""
    return csc_matrix(name, "float64")


# -- of vectors -----------------------------------------------------------------------------------


def CSR(data: TensorLike, indices: TensorLike, indptr: TensorLike, shape: Any) -> SparseVariable:
    """A matrix by rows of three vectors of the graph (Theano's ``CSR``).

    The elements of row i are ``data[indptr[i] : indptr[i + 1]]``, in the columns ``indices`` there,
    which ascend without repetition. ``shape`` are two ints or integer scalars, or a vector.
    """
    return from_parts("csr", data, indices, indptr, shape, matrix=True)


def CSC(data: TensorLike, indices: TensorLike, indptr: TensorLike, shape: Any) -> SparseVariable:
    """A matrix by columns of three vectors of the graph (Theano's ``CSC``); see :func:`CSR`."""
    return from_parts("csc", data, indices, indptr, shape, matrix=True)


def csm_data(x: Any) -> Variable:
    """The elements, a vector."""
    return as_sparse_variable(x).data


def csm_indices(x: Any) -> Variable:
    """The column of each element of a CSR, the row of each of a CSC."""
    return as_sparse_variable(x).indices


def csm_indptr(x: Any) -> Variable:
    """The place where each row of a CSR (column of a CSC) begins, and the end."""
    return as_sparse_variable(x).indptr


def csm_shape(x: Any) -> Variable:
    """The two sizes, an int64 vector."""
    return make_vector([as_dim(n) for n in as_sparse_variable(x).shape])


def csm_properties(x: Any) -> tuple[Variable, Variable, Variable, Variable]:
    """``(data, indices, indptr, shape)``"""
    v = as_sparse_variable(x)
    return v.data, v.indices, v.indptr, csm_shape(v)


# -- functions of the elements --------------------------------------------------------------------

# Functions that are 0 at 0, so that their result is the whole one: Theano's names, and NumPy's.
abs = structured(ar.abs, "abs")
arcsin = structured(mt.arcsin, "arcsin")
arcsinh = structured(mt.arcsinh, "arcsinh")
arctan = structured(mt.arctan, "arctan")
arctanh = structured(mt.arctanh, "arctanh")
ceil = structured(rd.ceil, "ceil")
conj = structured(cx.conj, "conj")
deg2rad = structured(mt.deg2rad, "deg2rad")
expm1 = structured(mt.expm1, "expm1")
floor = structured(rd.floor, "floor")
log1p = structured(mt.log1p, "log1p")
neg = structured(ar.neg, "neg")
rad2deg = structured(mt.rad2deg, "rad2deg")
rint = structured(rd.round_half_to_even, "rint")
sgn = structured(ar.sgn, "sgn")
sin = structured(mt.sin, "sin")
sinh = structured(mt.sinh, "sinh")
sqr = structured(ar.sqr, "sqr")
sqrt = structured(ar.sqrt, "sqrt")
tan = structured(mt.tan, "tan")
tanh = structured(mt.tanh, "tanh")
trunc = structured(rd.trunc, "trunc")

# Functions of the elements that are there, the first argument; the others stay 0.
structured_add = structured(ar.add, "structured_add")
structured_exp = structured(mt.exp, "structured_exp")
structured_log = structured(mt.log, "structured_log")
structured_maximum = structured(ar.maximum, "structured_maximum")
structured_minimum = structured(ar.minimum, "structured_minimum")
structured_pow = structured(ar.pow, "structured_pow")
structured_sigmoid = structured(ac.sigmoid, "structured_sigmoid")


def structured_add_s_v(x: Any, y: TensorLike) -> SparseVariable:
    """Each element plus the entry of its column in the vector ``y``. (Theano's name)"""
    v = as_sparse_variable(x)
    return v.with_data(v.data + as_variable(y)[places_of(v)[1]])


# -- Theano's further names -----------------------------------------------------------------------


def _cast_to(name: str, dtype: str) -> Callable[[Any], SparseVariable]:
    def apply(x: Any) -> SparseVariable:
        return cast(x, dtype)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"The matrix with elements of dtype {dtype}."
    return apply


bcast = _cast_to("bcast", "int8")
wcast = _cast_to("wcast", "int16")
icast = _cast_to("icast", "int32")
lcast = _cast_to("lcast", "int64")
fcast = _cast_to("fcast", "float32")
dcast = _cast_to("dcast", "float64")
ccast = _cast_to("ccast", "complex64")
zcast = _cast_to("zcast", "complex128")


def ensure_sorted_indices(x: Any) -> SparseVariable:
    """``x``: its indices are in order already. (Theano's name)"""
    return as_sparse_variable(x)


def sparse_grad(var: Variable) -> Variable:
    """``var``: in Theano its gradient by the indexed matrix becomes sparse; here it is dense, and
    is added to the matrix's memory by a scatter."""
    return as_variable(var)


def get_item_2d(x: Any, index: Any) -> Any:
    """``x[rows, columns]`` by slices. (Theano's name)"""
    return as_sparse_variable(x)[index]


def get_item_scalar(x: Any, index: Any) -> Variable:
    """The element ``x[i, j]``, a scalar. (Theano's name)"""
    places = as_list("get_item_scalar: index", index, "a row and a column")
    if len(places) != 2:
        raise InputError(f"get_item_scalar: index={index!r:.60}; wanted a row and a column")
    i, j = places
    found: Variable = as_sparse_variable(x)[i, j]
    return found


def construct_sparse_from_list(x: TensorLike, values: TensorLike, ilist: TensorLike) -> Any:
    """A CSR of the shape of ``x`` with the rows ``values`` at the numbers ``ilist``, which are
    different, and no other elements. (Theano's name)"""
    shape, rows, numbers = as_variable(x), as_variable(values), as_variable(ilist)
    height, width = (shape_i(shape, i) for i in (0, 1))
    order = argsort(numbers)
    counts = searchsorted(numbers[order], arange(height + 1, dtype=numbers.type.dtype))
    columns = arange(shape_i(rows, 0) * width, dtype="int64") % width
    return CSR(rows[order].flatten(), columns, counts * width, (height, width))
