"""Sparse products on a GPU: by rows, and transposes by a sort."""

from __future__ import annotations

import numpy as np

import symdnn.sparse as S
from symdnn.ops.array.sort import ArgSort
from symdnn.ops.sparse.products import SparseDot
from symdnn.ops.sparse.structure import SparseTranspose
from tests.op_table import sparse
from tests.opt.lowering import CPU, assert_same_values, rewritten, variables

RNG = np.random.default_rng(2)
DATA, X, Y = RNG.standard_normal(7), RNG.standard_normal((4, 3)), RNG.standard_normal((5, 3))


def kinds(build, arrays, **words):
    """The types of ops of a rewritten graph, whose values are those of the plain one."""
    vs = variables(arrays)
    outs = [build(*vs)]
    fgraph = rewritten(vs, outs, **words)
    assert_same_values(fgraph, vs, outs, arrays)
    return [n.op for n in fgraph.toposort()]


def test_a_transposed_product_is_one_by_rows():
    def build(data, x):
        return S.dot(sparse.csr(sparse.A, data).T, x)

    ops = kinds(build, [DATA, X])
    (product,) = (op for op in ops if isinstance(op, SparseDot))
    assert not product.transposed
    on_cpu = kinds(build, [DATA, X], target=CPU)
    assert any(isinstance(op, SparseDot) and op.transposed for op in on_cpu)
    # Near miss: a product by rows needs no other structure.
    plain = kinds(lambda data, x: S.dot(sparse.csr(sparse.A, data), x), [DATA, Y])
    assert not any(isinstance(op, ArgSort) for op in plain)


def test_a_transpose_is_a_sort():
    def build(data, columns):
        _, indptr = sparse.of(sparse.A)
        turned = S.transpose(S.SparseVariable("csr", data, columns, indptr, 5))
        return S.in_format(turned, "csr").data

    indices = sparse.of(sparse.A)[0].data
    ops = kinds(build, [DATA, indices])
    assert any(isinstance(op, ArgSort) for op in ops)
    assert not any(isinstance(op, SparseTranspose) for op in ops)
    assert any(isinstance(op, SparseTranspose) for op in kinds(build, [DATA, indices], target=CPU))
