"""Names of ``theano.sparse`` that symdnn's has under another name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from symdnn import sparse as sp
from symdnn.compat.theano.names.class_names import stand_in
from symdnn.compat.theano.names.types import Instances
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Constant, Variable
from symdnn.ops.sparse.variable import is_scipy_sparse

__all__ = [
    "SparseConstant", "SparseTensorSharedVariable", "all_dtypes",
    "as_sparse", "complex_dtypes", "continuous_dtypes", "discrete_dtypes", "eq", "float_dtypes",
    "ge", "gt", "int_dtypes", "integer_dtypes", "le", "lt", "matrix", "neq", "shared_sparse",
    "uint_dtypes",
]  # fmt: skip

int_dtypes = ["int8", "int16", "int32", "int64"]
uint_dtypes = ["uint8", "uint16", "uint32", "uint64"]
integer_dtypes = discrete_dtypes = int_dtypes + uint_dtypes
float_dtypes, complex_dtypes = ["float16", "float32", "float64"], ["complex64", "complex128"]
continuous_dtypes = float_dtypes + complex_dtypes
all_dtypes = discrete_dtypes + continuous_dtypes
as_sparse = sp.as_sparse_variable


def _is_sparse(x: object) -> bool:
    """Whether it is a sparse matrix of SciPy's."""
    return is_scipy_sparse(x)


def _is_sparse_variable(x: object) -> bool:
    return isinstance(x, sp.SparseVariable)


def _is_dense(x: object) -> bool:
    return isinstance(x, np.ndarray)


def _is_dense_variable(x: object) -> bool:
    return isinstance(x, Variable) and isinstance(x.type, TensorType)


def matrix(format: str, name: str | None = None, dtype: Any = None) -> Any:
    """A sparse input of this format; the default of ``dtype`` is ``floatX``."""
    if format not in ("csr", "csc"):
        raise ValueError(f"theano.sparse.matrix: format {format!r}, wanted 'csr' or 'csc'")
    make = sp.csr_matrix if format == "csr" else sp.csc_matrix
    return make(name) if dtype is None else make(name, dtype=dtype)


def _compared(name: str) -> Callable[[Any, Any], Any]:
    def compare(x: Any, y: Any) -> Any:
        from symdnn import tensor as T

        formats = [v.format for v in (x, y) if hasattr(v, "format")]
        if not formats:
            raise TypeError(f"theano.sparse.{name}: wanted a sparse matrix")
        dense = [sp.dense_from_sparse(v) if hasattr(v, "format") else v for v in (x, y)]
        found = getattr(T, name)(*dense)
        if len(formats) < 2:
            return found  # with a dense operand, dense
        to = sp.csr_from_dense if formats[0] == "csr" else sp.csc_from_dense
        return to(T.cast(found, "uint8"))

    compare.__name__ = name
    compare.__doc__ = f"Elementwise ``{name}``: sparse (uint8) of two sparse matrices, else dense."
    return compare


eq, neq, lt, gt, le, ge = map(_compared, ("eq", "neq", "lt", "gt", "le", "ge"))
equal_s_s = equal_s_d = eq
not_equal_s_s = not_equal_s_d = neq
less_than_s_s = less_than_s_d = lt
greater_than_s_s = greater_than_s_d = gt
less_equal_s_s = less_equal_s_d = le
greater_equal_s_s = greater_equal_s_d = ge


def _dense(structured: bool = True) -> Callable[..., Any]:
    return lambda x: sp.dense_from_sparse(x)


#: Theano's classes of sparse ops: an instance, made with its arguments, computes the same.
_OPS: dict[str, Callable[..., Callable[..., Any]]] = {
    "Dot": lambda: sp.dot, "TrueDot": lambda grad_preserves_dense=True: sp.true_dot,
    "StructuredDot": lambda: sp.structured_dot, "SamplingDot": lambda: sp.sampling_dot,
    "Usmm": lambda: sp.usmm, "Transpose": lambda: sp.transpose, "Neg": lambda: sp.neg,
    "Cast": lambda out_type: lambda x: sp.cast(x, out_type),
    "AddSS": lambda: sp.add_s_s, "AddSD": lambda: sp.add_s_d, "MulSS": lambda: sp.mul_s_s,
    "MulSD": lambda: sp.mul_s_d, "MulSV": lambda: sp.mul_s_v,
    "StructuredAddSV": lambda: sp.structured_add_s_v, "Diag": lambda: sp.diag,
    "SquareDiagonal": lambda: sp.square_diagonal, "SpSum": lambda axis=None, sparse_grad=True: (
        lambda x: sp.sp_sum(x, axis, sparse_grad)),
    "ColScaleCSC": lambda: sp.col_scale, "RowScaleCSC": lambda: sp.row_scale,
    "EnsureSortedIndices": lambda inplace=False: sp.ensure_sorted_indices,
    "Remove0": lambda inplace=False: sp.remove0,
    "DenseFromSparse": _dense,
    "SparseFromDense": lambda format: (
        sp.csr_from_dense if format == "csr" else sp.csc_from_dense),
    "CSM": lambda format, kmap=None: sp.CSR if format == "csr" else sp.CSC,
    "CSMProperties": lambda kmap=None: sp.csm_properties,
    "HStack": lambda format=None, dtype=None: lambda *blocks: sp.hstack(blocks, format, dtype),
    "VStack": lambda format=None, dtype=None: lambda *blocks: sp.vstack(blocks, format, dtype),
    "GetItem2d": lambda: sp.get_item_2d, "GetItemScalar": lambda: sp.get_item_scalar,
    "GetItemList": lambda: sp.get_item_list,
    "ConstructSparseFromList": lambda: sp.construct_sparse_from_list,
    "EqualSS": lambda: eq, "EqualSD": lambda: eq, "NotEqualSS": lambda: neq,
    "NotEqualSD": lambda: neq, "LessThanSS": lambda: lt, "LessThanSD": lambda: lt,
    "GreaterThanSS": lambda: gt, "GreaterThanSD": lambda: gt, "LessEqualSS": lambda: le,
    "LessEqualSD": lambda: le, "GreaterEqualSS": lambda: ge, "GreaterEqualSD": lambda: ge,
}  # fmt: skip


def _classes() -> dict[str, Any]:
    text = "Theano's op ``{}`` of sparse matrices, to be made and applied."
    return {name: stand_in(name, maker, doc=text.format(name)) for name, maker in _OPS.items()}


globals().update(_classes())


class SparseConstant(metaclass=Instances):
    """Theano's class of sparse constants. Every one of symdnn is an instance."""

    @staticmethod
    def holds(v: object) -> bool:
        """Whether ``v`` is a sparse matrix of constants."""
        return isinstance(v, sp.SparseVariable) and isinstance(v.data, Constant)


SparseTensorSharedVariable = sp.SharedSparse
SparseTensorVariable = sp.SparseVariable
enable_sparse = True
sparse_formats = ["csc", "csr"]


def shared_sparse(value: Any, name: str | None = None, **words: Any) -> Any:
    """What ``theano.shared`` makes of a SciPy matrix: ``symdnn.sparse.shared``."""
    return sp.shared(value, name, **words)
