from __future__ import annotations

import numpy as np
import scipy.sparse

from symdnn.graph.variable import constant
from symdnn.ops.elementwise import complexes as C
from symdnn.ops.sparse import functions as S
from symdnn.ops.sparse import structure as St
from symdnn.ops.sparse.products import SampledDot, SparseDot, sparse_dot
from symdnn.ops.sparse.variable import SparseVariable
from tests.op_table.record import OpCase, integers, normal

# Patterns with an empty row and an empty column, and one without elements.
A = np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [0, 0, 1, 0, 1], [1, 0, 0, 1, 0]])
B = np.array([[1, 1, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 1, 0, 1], [0, 0, 0, 0, 0]])
NONE = np.zeros((3, 4), int)


def of(pattern, dtype="int32"):
    """Indices and indptr of a pattern."""
    found = scipy.sparse.csr_array(pattern)
    return constant(found.indices.astype(dtype)), constant(found.indptr.astype(dtype))


def filled(pattern, data):
    dense = np.zeros(pattern.shape, data.dtype)
    dense[np.nonzero(pattern)] = data
    return dense


def csr(pattern, data):
    indices, indptr = of(pattern)
    return SparseVariable("csr", data, indices, indptr, pattern.shape[1])


def times(id, pattern, x, *, transposed=False, dtype="int32", grad=True, kind="float64", rtol=1e-6):
    def build(data, v):
        return sparse_dot(data, *of(pattern, dtype), v, pattern.shape[1], transposed)

    def expected(data, v):
        dense = filled(pattern, data)
        return ((dense.T if transposed else dense) @ v).astype(data.dtype)

    draw = normal(int(pattern.sum()), dtype=kind)
    return OpCase(id, (SparseDot,), build, (draw, x), expected, grad=grad, rtol=rtol)


def sampled(id, u, v, pattern=A, grad=True):
    def expected(a, b):
        outer = np.multiply.outer(a, b) if a.ndim == 1 else a @ b.T
        return outer[np.nonzero(pattern)].astype(a.dtype)

    def build(a, b):
        return SampledDot()(*of(pattern), a, b)

    return OpCase(id, (SampledDot,), build, (u, v), expected, grad=grad, rtol=1e-5)


def union(data, more):
    return S.dense_from_sparse(csr(A, data) + csr(B, more))


def product(data, more):
    return S.dense_from_sparse(S.dot(csr(A, data), csr(B.T, more)))


def transposed_structure(data):
    order, indices, indptr = St.transposed_structure(*of(A), 5)
    return data[order] * (indices + 1) + indptr.sum()


def transposed_numpy(data):
    found = scipy.sparse.csr_array(filled(A, data)).tocsc()
    return found.data * (found.indices + 1) + found.indptr.sum()


def complex_dot(re, im, x):
    data = C.complex(re, im)
    y = sparse_dot(data * data, *of(A), C.complex(x, 2 * x), 5)
    return C.real(y) + 3 * C.imag(y)


def complex_numpy(re, im, x):
    y = filled(A, (re + 1j * im) ** 2) @ (x + 2j * x)
    return y.real + 3 * y.imag


CASES = [
    times("sparse_dot", A, normal(5, 3)),
    times("sparse_dot_vector", A, normal(5)),
    times("sparse_dot_transposed", A, normal(4, 3), transposed=True),
    times("sparse_dot_transposed_vector", A, normal(4), transposed=True),
    times("sparse_dot_int64_indices", A, normal(5, 18), dtype="int64"),
    times("sparse_dot_transposed_int64", A, normal(4, 35), transposed=True, dtype="int64"),
    times("sparse_dot_no_elements", NONE, normal(4, 2), grad=False),
    times("sparse_dot_no_columns_of_x", A, normal(5, 0), grad=False),
    times("sparse_dot_float32", A, normal(5, 70, dtype="float32"), kind="float32", grad=False,
          rtol=1e-5),
    times("sparse_dot_float16", A, normal(5, 3, dtype="float16"), kind="float16", grad=False,
          rtol=1e-2),
    times("sparse_dot_int", A, integers(-9, 9, 5, 2, dtype="int64"), kind="int64", grad=False),
    OpCase("sparse_dot_complex", (SparseDot, SampledDot), complex_dot,
           (normal(7), normal(7), normal(5, 2)), complex_numpy),
    sampled("sampled_dot", normal(4, 3), normal(5, 3)),
    sampled("sampled_dot_vector", normal(4), normal(5)),
    sampled("sampled_dot_wide", normal(4, 37), normal(5, 37)),
    sampled("sampled_dot_float32", normal(4, 20, dtype="float32"), normal(5, 20, dtype="float32"),
            grad=False),
    sampled("sampled_dot_no_elements", normal(3, 2), normal(4, 2), NONE, grad=False),
    OpCase("sparse_transpose", (St.SparseTranspose,), transposed_structure, (normal(7),),
           transposed_numpy),
    OpCase("sparse_union", (St.SparseUnion,), union, (normal(7), normal(5)),
           lambda a, b: filled(A, a) + filled(B, b)),
    OpCase("sparse_matmul", (St.SparseMatMul,), product, (normal(7), normal(5)),
           lambda a, b: filled(A, a) @ filled(B.T, b)),
    OpCase("sparse_matmul_of_zeros", (St.SparseMatMul,),
           lambda a, b: S.dot(csr(A, a * 0), csr(B.T, b)).data, (normal(7), normal(5)),
           lambda a, b: np.zeros(int(((A @ B.T) > 0).sum()))),
    OpCase("sparse_same_size", (St.SameSize,),
           lambda x, y: x.sum() * St.same_size(x.shape[0], y.shape[0]), (normal(3), normal(3)),
           lambda x, y: x.sum() * len(x)),
]  # fmt: skip
