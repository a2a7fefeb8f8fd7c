"""Sparse matrices as users have them: a class around the vectors of a compressed format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast

import numpy as np

from symdnn.config import config
from symdnn.errors import InputError, OptionError, TypeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, DtypeLike, TensorLike
from symdnn.graph.values.storage import Storage
from symdnn.graph.values.structured import Form, Structured
from symdnn.graph.variable import Constant, Shared, Variable, as_variable, constant
from symdnn.ops.array.view import specify_shape
from symdnn.ops.core.shape import as_dim, shape_entries, static_dim
from symdnn.ops.sparse.structure import major_of

#: The formats that users pass. Elements of ``coo`` are kept as those of ``csr``.
FORMATS = ("csr", "csc", "coo")
INDEX = "int32"
_LARGEST_INDEX = np.iinfo(INDEX).max


def is_scipy_sparse(value: object) -> bool:
    """Whether it is a sparse array or matrix of SciPy's; does not import SciPy."""
    return hasattr(value, "tocsr") and hasattr(value, "nnz")


@dataclass(frozen=True)
class SparseForm(Form):
    """A SciPy array (or matrix, as Theano's programs expect) of a format.

    ``columns`` is the size of the axis that the indices number, None where it is not known: then it
    is a part, too. ``rows`` is the other one's.
    """

    format: str
    dtype: str
    rows: int | None = None
    columns: int | None = None
    matrix: bool = False

    @classmethod
    def checked(cls, format: str, dtype: str, **rest: Any) -> SparseForm:
        """A form of words that may be wrong; raises ``OptionError``."""
        if format not in FORMATS:
            raise OptionError(f"a sparse matrix: format={format!r:.60}: wanted one of {FORMATS}")
        return cls(format, TensorType(dtype).dtype, **rest)

    @property
    def labels(self) -> tuple[str, ...]:
        names = ("data", "indices", "indptr")
        return names if self.columns is not None else (*names, "size")

    def split(self, value: Any, what: str) -> Sequence[Any]:
        if not is_scipy_sparse(value):
            raise InputError(
                f"{what}: wanted a sparse array of SciPy's, got a {type(value).__name__}. "
                f"scipy.sparse.{self.format}_array(value) makes one"
            )
        found = canonical(value, "csc" if self.format == "csc" else "csr")
        rows, columns = found.shape if self.format != "csc" else found.shape[::-1]
        for wanted, got in ((self.rows, rows), (self.columns, columns)):
            if wanted is not None and wanted != got:
                raise InputError(
                    f"{what}: wanted a sparse array of shape {self._text()}, got {found.shape}"
                )
        indices = (found.indices.astype(INDEX, copy=False), found.indptr.astype(INDEX, copy=False))
        parts = (found.data, *indices)
        return parts if self.columns is not None else (*parts, np.int64(columns))

    def _text(self) -> str:
        sizes = (self.rows, self.columns) if self.format != "csc" else (self.columns, self.rows)
        return f"({', '.join('?' if n is None else str(n) for n in sizes)})"

    def join(self, parts: Sequence[Any]) -> Any:
        import scipy.sparse

        data, indices, indptr, *rest = (np.asarray(p) for p in parts)
        columns = int(rest[0]) if rest else self.columns
        shape = (len(indptr) - 1, columns)
        kind = "csc" if self.format == "csc" else "csr"
        make = getattr(scipy.sparse, f"{kind}_{'matrix' if self.matrix else 'array'}")
        made = make((data, indices, indptr), shape=shape[::-1] if kind == "csc" else shape)
        return made.tocoo() if self.format == "coo" else made


def canonical(value: Any, format: str) -> Any:
    """SciPy's array in a compressed format, with each element once and indices in order."""
    if value.ndim != 2:
        raise InputError(f"wanted a sparse matrix, got an array of {value.ndim} dimension(s)")
    found = value.asformat(format)
    if not found.has_canonical_format:
        found = found.copy() if found is value else found
        found.sum_duplicates()
    if max(found.nnz, *found.shape) > _LARGEST_INDEX:
        raise InputError(f"wanted sizes below 2**31, got {found.nnz} elements in {found.shape}")
    return found


class SparseVariable(Structured):
    """A sparse matrix in an expression.

    ``data``, ``indices`` and ``indptr`` are vectors of the graph, so what is done to the elements
    is done by the ops of tensors. ``format`` is ``"csr"`` or ``"csc"``. Each element is there once,
    in ascending order of the indices. ``+``, ``-`` and ``*`` work element by element, as Theano's
    do, and ``@`` is the matrix product.
    """

    # NumPy's arrays leave operators to this class.
    __array_ufunc__ = None

    def __init__(
        self, format: str, data: Variable, indices: Variable, indptr: Variable, minor: Dim,
        name: str | None = None, *, matrix: bool = False, coo: bool = False,
    ) -> None:  # fmt: skip
        if format not in ("csr", "csc"):
            raise OptionError(f"a sparse matrix: format={format!r}: wanted 'csr' or 'csc'")
        self.format, self.name = format, name
        self.data, self.indices, self.indptr = data, indices, indptr
        self.minor: Variable = as_dim(minor)
        self._matrix, self._coo = matrix, coo and format == "csr"

    def __array__(self, *args: Any, **words: Any) -> Any:
        raise TypeMismatch(
            "a tensor", "a dense operand", self.description,
            "Functions of symdnn.sparse take sparse ones; .toarray() is the dense matrix",
        )  # fmt: skip

    # -- as a structured value --------------------------------------------------------------------

    @property
    def form(self) -> SparseForm:
        rows = self.indptr.type.shape[0]
        return SparseForm(
            "coo" if self._coo else self.format, self.dtype, None if rows is None else rows - 1,
            static_dim(self.minor), self._matrix,
        )  # fmt: skip

    @property
    def parts(self) -> tuple[Variable, ...]:
        found = (self.data, self.indices, self.indptr)
        return found if isinstance(self.minor, Constant) else (*found, self.minor)

    def parts_for(self, other: Structured) -> tuple[Variable, ...]:
        # A size that is known here may be a part there.
        return (self.data, self.indices, self.indptr, self.minor)[: len(other.parts)]

    @property
    def differentiable(self) -> Variable:
        return self.data

    def with_gradient(self, gradient: Variable) -> Self:
        return self.with_data(gradient)

    def fitting(self, new: Any, what: str) -> SparseVariable:
        found = new if isinstance(new, SparseVariable) else None
        if found is None and is_scipy_sparse(new):
            found = sparse_constant(new)
        own = self.form
        if (
            found is None
            or (found.format, found.dtype) != (self.format, self.dtype)
            or (own.columns is not None and found.form.columns not in (None, own.columns))
        ):
            got = new if found is None else found.description
            raise TypeMismatch(f"{what} of {self}", self.description, got)
        if own.columns is not None and found.form.columns is None:
            raise TypeMismatch(
                f"{what} of {self}", f"a matrix of known size, {self.description}",
                found.description, "Make it by S.CSR(data, indices, indptr, shape)",
            )  # fmt: skip
        return found

    # -- what it is -------------------------------------------------------------------------------

    @property
    def dtype(self) -> str:
        """The dtype of its elements."""
        return self.data.type.dtype

    @property
    def type(self) -> SparseType:
        """Format, dtype and the sizes that are known."""
        form = self.form
        sizes = (form.rows, form.columns) if form.format != "csc" else (form.columns, form.rows)
        return SparseType(form.format, form.dtype, sizes, form.matrix)

    @property
    def ndim(self) -> int:
        """2"""
        return 2

    @property
    def description(self) -> str:
        """Format, dtype and known sizes in words."""
        return f"{self.format}({self.dtype}, {self.form._text()})"

    @property
    def major(self) -> Dim:
        """The number of rows of a CSR, of columns of a CSC: an int where it is known."""
        known = self.indptr.type.shape[0]
        return major_of(self.indptr) if known is None else known - 1

    @property
    def shape(self) -> tuple[Dim, Dim]:
        """The sizes: ints where they are known, else integer scalars."""
        known = static_dim(self.minor)
        pair = (self.major, self.minor if known is None else known)
        return pair if self.format == "csr" else pair[::-1]

    @property
    def nnz(self) -> Variable:
        """The number of elements that are stored, an integer scalar."""
        return operator("shape_i")(self.data, 0)

    def __str__(self) -> str:
        return self.name or self.description

    def __repr__(self) -> str:
        return f"<{self}>" if self.name is None else f"<{self.name}: {self.description}>"

    # -- others of the same structure -------------------------------------------------------------

    def with_data(self, data: Variable, name: str | None = None) -> Self:
        """The matrix with other elements at the same places."""
        made: Any = SparseVariable(
            self.format, data, self.indices, self.indptr, self.minor, name,
            matrix=self._matrix, coo=self._coo,
        )  # fmt: skip
        return made  # type: ignore[no-any-return]

    def made(
        self, data: Variable, indices: Variable, indptr: Variable, minor: Dim, format: str = ""
    ) -> SparseVariable:
        """A matrix of another structure that users get as they gave this one."""
        return SparseVariable(
            format or self.format, data, indices, indptr, minor, matrix=self._matrix
        )

    def same_structure(self, other: SparseVariable) -> bool:
        """Whether both have the same variables for their structure, so equal places."""
        return (
            self.format == other.format
            and self.indices is other.indices
            and self.indptr is other.indptr
        )

    def astype(self, dtype: DtypeLike) -> Self:
        """The matrix with elements of another dtype."""
        return self.with_data(self.data.astype(dtype))

    @property
    def T(self) -> SparseVariable:
        """The transpose: the same vectors in the other format."""
        other = "csc" if self.format == "csr" else "csr"
        return self.made(self.data, self.indices, self.indptr, self.minor, other)

    def transpose(self) -> SparseVariable:
        """The transpose: the same vectors in the other format."""
        return self.T

    # -- operators --------------------------------------------------------------------------------

    def __add__(self, other: TensorLike) -> Any:
        return operator("sparse_add")(self, other)

    __radd__ = __add__

    def __sub__(self, other: TensorLike) -> Any:
        return operator("sparse_sub")(self, other)

    def __rsub__(self, other: TensorLike) -> Any:
        return operator("sparse_sub")(other, self)

    def __mul__(self, other: TensorLike) -> Any:
        return operator("sparse_mul")(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: TensorLike) -> Any:
        return self.with_data(self.data / _scalar("/", other))

    def __neg__(self) -> Self:
        return self.with_data(-self.data)

    def __abs__(self) -> Self:
        return self.with_data(abs(self.data))

    def conj(self) -> Self:
        """The matrix of the conjugates."""
        return self.with_data(operator("conj")(self.data))

    def multiply(self, other: TensorLike) -> Any:
        """The product element by element, as ``*``. (SciPy's name.)"""
        return operator("sparse_mul")(self, other)

    def __matmul__(self, other: TensorLike) -> Any:
        return operator("sparse_product")(self, other)

    def __rmatmul__(self, other: TensorLike) -> Any:
        return operator("sparse_product")(other, self)

    def dot(self, other: TensorLike) -> Any:
        """The matrix product; see ``S.dot``."""
        return operator("sparse_product")(self, other)

    def __getitem__(self, index: Any) -> Any:
        return operator("sparse_getitem")(self, index)

    def sum(self, axis: int | None = None) -> Variable:
        """The sum of all elements, or of the columns (``axis=0``), or rows (1); dense."""
        return operator("sparse_sum")(self, axis)

    def mean(self, axis: int | None = None) -> Variable:
        """The mean of all elements, the 0s too, or of the columns (``axis=0``), or rows (1)."""
        total = self.sum(axis)
        dtype = self.dtype if not self.data.type.is_discrete else "float64"
        rows, columns = self.shape
        count = rows * columns if axis is None else (rows, columns)[axis]
        return total.astype(dtype) / as_variable(count).astype(dtype)

    def diagonal(self) -> Variable:
        """The diagonal, a dense vector."""
        return operator("sparse_diagonal")(self)

    def tocsr(self) -> SparseVariable:
        """The matrix by rows. (``S.in_format``.)"""
        return cast(SparseVariable, operator("sparse_format")(self, "csr"))

    def tocsc(self) -> SparseVariable:
        """The matrix by columns. (``S.in_format``.)"""
        return cast(SparseVariable, operator("sparse_format")(self, "csc"))

    def toarray(self) -> Variable:
        """The dense matrix."""
        return operator("sparse_dense")(self)

    todense = toarray

    def eval(self, values: Any = None) -> Any:
        """The SciPy array, given values of the inputs that it depends on."""
        given = dict(values or {})
        return operator("function")(list(given), self, on_unused_input="ignore")(*given.values())


def _scalar(name: str, value: Any) -> Variable:
    if isinstance(value, SparseVariable):
        raise TypeMismatch(name, "a sparse matrix and a number", value)
    v = as_variable(value)
    if v.type.ndim != 0:
        raise TypeMismatch(name, "a sparse matrix and a number", v.type)
    return v


class SharedSparse(SparseVariable):
    """A sparse matrix with a value that functions read and update. Its shape stays."""

    def get_value(self, borrow: bool = False) -> Any:
        """The value as an array (or matrix) of SciPy's."""
        return self.form.join([v.get_value(borrow=borrow) for v in self._shared()])

    def set_value(self, new_value: Any, borrow: bool = False) -> None:
        """Give it another value of this shape; the places of the elements may change."""
        arrays = self.form.split(new_value, f"set_value of {self}")
        for v, a in zip(self._shared(), arrays, strict=True):
            v.set_value(np.asarray(a).astype(v.type.numpy, casting="same_kind"), borrow=borrow)

    def _shared(self) -> list[Shared]:
        return [v for v in self.parts if isinstance(v, Shared)]


@dataclass(frozen=True)
class SparseType:
    """The type of a sparse matrix; calling it makes an input (Theano's ``SparseType``).

    >>> import symdnn.sparse as S
    >>> S.SparseType("csr", "float32", (None, 784))("x")
    <x: csr(float32, (?, 784))>
    """

    format: str
    dtype: str = "float64"
    shape: tuple[int | None, int | None] = (None, None)
    #: Whether values of results are SciPy's matrices and not arrays.
    matrix: bool = field(default=True, compare=False, repr=False)

    def __call__(self, name: str | None = None) -> SparseVariable:
        """A sparse input of this type."""
        return sparse_variable(self.format, name, self.dtype, self.shape, matrix=self.matrix)

    @property
    def ndim(self) -> int:
        """2"""
        return 2


# -- making them ----------------------------------------------------------------------------------


def sparse_variable(
    format: str = "csr", name: str | None = None, dtype: DtypeLike | None = None,
    shape: Sequence[int | None] = (None, None), *, matrix: bool = False,
) -> SparseVariable:  # fmt: skip
    """A sparse matrix as an input: ``format`` is ``"csr"``, ``"csc"`` or ``"coo"``.

    ``dtype`` is ``floatX`` by default. A function takes a SciPy array or matrix of any format for
    it, and converts it. ``matrix`` says that results are SciPy's matrices and not arrays.
    """
    if format not in FORMATS:
        raise OptionError(f"sparse_variable: format={format!r}: wanted one of {FORMATS}")
    rows, columns = shape if format != "csc" else (shape[1], shape[0])
    wanted = TensorType(dtype or config.floatX).dtype

    def part(label: str, type_: TensorType) -> Variable:
        return Variable(type_, f"{name}.{label}" if name else None)

    return SparseVariable(
        "csc" if format == "csc" else "csr",
        part("data", TensorType(wanted, (None,))),
        part("indices", TensorType(INDEX, (None,))),
        part("indptr", TensorType(INDEX, (None if rows is None else rows + 1,))),
        part("size", TensorType("int64", ())) if columns is None else columns,
        name, matrix=matrix, coo=format == "coo",
    )  # fmt: skip


def _taken_apart(value: Any, what: str) -> tuple[str, bool, list[Array], int]:
    """Format, whether it is a matrix, the three vectors, the size that indices number."""
    if not is_scipy_sparse(value):
        raise InputError(f"{what}: wanted a sparse array or matrix of SciPy, got {value!r:.60}")
    format = value.format if getattr(value, "format", "") in FORMATS else "csr"
    form = SparseForm(format, str(value.dtype))
    *vectors, minor = form.split(value, what)
    return format, _is_matrix(value), [np.array(v) for v in vectors], int(minor)


def _is_matrix(value: Any) -> bool:
    import scipy.sparse

    return bool(scipy.sparse.isspmatrix(value))


def sparse_constant(value: Any, name: str | None = None) -> SparseVariable:
    """A constant of a SciPy array or matrix."""
    format, matrix, vectors, minor = _taken_apart(value, "a sparse constant")
    data, indices, indptr = (constant(v) for v in vectors)
    kind, coo = ("csc" if format == "csc" else "csr"), format == "coo"
    return SparseVariable(kind, data, indices, indptr, minor, name, matrix=matrix, coo=coo)


def shared(value: Any, name: str | None = None, borrow: bool = False) -> SharedSparse:
    """A sparse matrix that functions read and update, of a SciPy array or matrix.

    ``symdnn.shared`` calls it for such values. The places of its elements are shared variables,
    too: an update with the same places changes the elements alone.
    """
    format, matrix, vectors, minor = _taken_apart(value, f"shared {name or ''}".strip())

    def part(array: Array, label: str, shape: tuple[int | None, ...] = (None,)) -> Shared:
        type_ = TensorType(array.dtype.name, shape)
        return Shared(type_, Storage(array, borrow=True), f"{name}.{label}" if name else None)

    data, indices, indptr = vectors
    return SharedSparse(
        "csc" if format == "csc" else "csr", part(data, "data"), part(indices, "indices"),
        part(indptr, "indptr", indptr.shape), minor, name, matrix=matrix, coo=format == "coo",
    )  # fmt: skip


def from_parts(
    format: str, data: TensorLike, indices: TensorLike, indptr: TensorLike, shape: Any,
    *, matrix: bool = False,
) -> SparseVariable:  # fmt: skip
    """A matrix of vectors of the graph; ``shape`` are ints, integer scalars, or a vector of two."""
    values, *places = (as_variable(v) for v in (data, indices, indptr))
    rows, columns = shape_entries(shape, 2)
    if format == "csc":
        rows, columns = columns, rows
    for v in (values, *places):
        if not isinstance(v.type, TensorType) or v.type.ndim != 1:
            raise TypeMismatch(format.upper(), "vectors of elements, indices and indptr", v.type)
    if any(not v.type.is_integer for v in places):
        raise TypeMismatch(format.upper(), "integer indices and indptr", [v.type for v in places])
    # The number of rows is that of indptr, which is checked.
    places[1] = specify_shape(places[1], (as_dim(rows) + 1,))
    indices_, indptr_ = (v.astype(INDEX) for v in places)
    return SparseVariable(format, values, indices_, indptr_, as_dim(columns), matrix=matrix)
