"""Names of ``theano.tensor.nnet.blocksparse``: products of chosen blocks of a matrix."""

from __future__ import annotations

from typing import Any

from symdnn import tensor as T
from symdnn.compat.theano.names.class_names import OpName
from symdnn.graph.op import Op
from symdnn.graph.variable import Variable

__all__ = [
    "SparseBlockGemv", "SparseBlockOuter", "sparse_block_dot", "sparse_block_gemv",
    "sparse_block_gemv_inplace", "sparse_block_outer", "sparse_block_outer_inplace",
]  # fmt: skip


def _pairs(rows: Any, columns: Any) -> tuple[Variable, Variable]:
    """Indices (batch, rows, 1) and (batch, 1, columns)."""
    i, j = T.as_tensor_variable(rows), T.as_tensor_variable(columns)
    return i.dimshuffle(0, 1, "x"), j.dimshuffle(0, "x", 1)


def sparse_block_gemv(o: Any, W: Any, h: Any, inputIdx: Any, outputIdx: Any) -> Variable:
    """``o[b, j] + sum(dot(h[b, i], W[inputIdx[b, i], outputIdx[b, j]]) for i)``.

    ``o`` is (batch, oWin, oSize), ``W`` (iBlocks, oBlocks, iSize, oSize), ``h`` (batch, iWin,
    iSize), the indices (batch, iWin) and (batch, oWin).
    """
    blocks: Any = T.as_tensor_variable(W)[_pairs(inputIdx, outputIdx)]
    left = T.as_tensor_variable(h).dimshuffle(0, 1, "x", 2, "x")
    return T.as_tensor_variable(o) + (left * blocks).sum(axis=(1, 3))


def sparse_block_outer(o: Any, x: Any, y: Any, xIdx: Any, yIdx: Any, alpha: Any = None) -> Variable:
    """``o`` with ``alpha * outer(x[b, i], y[b, j])`` added at ``o[xIdx[b, i], yIdx[b, j]]``."""
    left = T.as_tensor_variable(x).dimshuffle(0, 1, "x", 2, "x")
    outer = left * T.as_tensor_variable(y).dimshuffle(0, "x", 1, "x", 2)
    scaled = outer if alpha is None else outer * alpha
    return T.inc_subtensor(T.as_tensor_variable(o)[_pairs(xIdx, yIdx)], scaled)


def sparse_block_dot(W: Any, h: Any, inputIdx: Any, b: Any, outputIdx: Any) -> Variable:
    """:func:`sparse_block_gemv` onto the blocks ``b[outputIdx]`` of a bias (oBlocks, oSize).

    Without a batch (``h`` a matrix, the indices vectors) the result has a batch of one.
    """
    given, i, j = (T.as_tensor_variable(v) for v in (h, inputIdx, outputIdx))
    if i.ndim != given.ndim - 1 or j.ndim != i.ndim:
        raise TypeError(f"sparse_block_dot: h {given.type}, indices {i.type} and {j.type}")
    if given.ndim == 2:
        given, i, j = given.dimshuffle("x", 0, 1), i.dimshuffle("x", 0), j.dimshuffle("x", 0)
    return sparse_block_gemv(T.as_tensor_variable(b)[j], W, given, i, j)


def _op(name: str, function: Any) -> Any:
    body = {"targets": (), "maker": staticmethod(lambda inplace=False: function), "abstract": True}
    return OpName(name, (Op,), {**body, "__doc__": function.__doc__})


SparseBlockGemv = _op("SparseBlockGemv", sparse_block_gemv)
SparseBlockOuter = _op("SparseBlockOuter", sparse_block_outer)
sparse_block_gemv_inplace, sparse_block_outer_inplace = sparse_block_gemv, sparse_block_outer
GpuSparseBlockGemv, GpuSparseBlockOuter = SparseBlockGemv, SparseBlockOuter
gpu_sparse_block_gemv = gpu_sparse_block_gemv_inplace = sparse_block_gemv
gpu_sparse_block_outer = gpu_sparse_block_outer_inplace = sparse_block_outer
