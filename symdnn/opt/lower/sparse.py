"""Sparse matrices on a GPU: by rows, whose order there comes from a sort."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from symdnn.graph.op import Op
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.create import arange
from symdnn.ops.array.getitem import getitem
from symdnn.ops.array.sort import argsort, searchsorted
from symdnn.ops.sparse.products import SparseDot
from symdnn.ops.sparse.structure import (
    SparseTranspose,
    major_of,
    rows_of,
    transposed_structure,
)
from symdnn.rewriting.rewrite import Context, Rewrite

Function = Callable[[Apply[Any], Context], "Variable | Sequence[Variable] | None"]


def _rule(name: str, *ops: type[Op]) -> Callable[[Function], Rewrite]:
    def wrap(function: Function) -> Rewrite:
        tags = frozenset({"sparse", "fast_compile"})
        return Rewrite(name, "lower", ops, function, tags, target="cuda")

    return wrap


@_rule("sparse_dot_by_rows", SparseDot)
def by_rows(node: Apply[SparseDot], context: Context) -> Variable | None:
    """``A' x`` with the rows of ``A'``: threads would add to the same elements by those of A."""
    data, indices, indptr, x, minor = node.inputs
    if not node.op.transposed:
        return None
    order, turned, ends = transposed_structure(indices, indptr, minor)
    known = indptr.type.shape[0]
    op = replace(node.op, transposed=False, minor=None if known is None else known - 1)
    return op(getitem(data, order), turned, ends, x, major_of(indptr))


@_rule("sparse_transpose_by_sort", SparseTranspose)
def by_sort(node: Apply[SparseTranspose], context: Context) -> Sequence[Variable]:
    """The structure of the transpose by a stable sort of the indices, which a GPU has."""
    indices, indptr, minor = node.inputs
    order = argsort(indices)
    kind = indices.type.dtype
    ends = searchsorted(getitem(indices, order), arange(minor + 1, dtype=kind)).astype(kind)
    rows = rows_of(indices, indptr).astype(kind)
    return [order, getitem(rows, order), ends]


RULES = (by_rows, by_sort)
