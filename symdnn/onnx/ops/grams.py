"""Counts of n-grams of whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.ops.core.shape import dims_of


def _tf_idf(node: Node) -> Variable:
    """How often each n-gram of a pool occurs in each row; elements may be skipped between."""
    if not node.attribute("pool_int64s"):
        raise node.error("its pool holds strings, which symdnn does not compute with")
    x = node.x().astype("int64")
    rows = x if x.ndim == 2 else x.dimshuffle("x", 0)
    places = np.asarray(node.required("ngram_indexes"), np.int64)
    total = T.zeros((dims_of(rows)[0], int(places.max()) + 1), dtype="float32")
    first = 0
    for length, pool in _pools(node):
        at = places[first : first + len(pool)]
        first += len(pool)
        low, high = node.required("min_gram_length"), node.required("max_gram_length")
        if not low <= length <= high or not len(pool):
            continue
        skips = range(1 if length == 1 else int(node.required("max_skip_count")) + 1)
        for skip in skips:
            counts = _occurrences(rows, pool, skip + 1)
            total = T.inc_subtensor(total[:, at], counts)
    y = _weighted(node, total, places)
    return y if x.ndim == 2 else y[0]


def _pools(node: Node) -> list[tuple[int, np.ndarray[Any, Any]]]:
    """For each length the n-grams of the pool, as rows."""
    items = np.asarray(node.required("pool_int64s"), np.int64)
    starts = [int(n) for n in node.required("ngram_counts")]
    ends = [*starts[1:], len(items)]
    return [(n + 1, items[a:b].reshape(-1, n + 1)) for n, (a, b) in enumerate(zip(starts, ends))]


def _occurrences(rows: Variable, pool: np.ndarray[Any, Any], step: int) -> Variable:
    """(rows, n-grams): how often each occurs with its elements ``step`` apart."""
    size, length = dims_of(rows)[1], pool.shape[1]
    reach = (length - 1) * step
    if not isinstance(size, Variable) and size <= reach:
        return T.zeros((dims_of(rows)[0], len(pool)), dtype="float32")
    found: Variable | None = None
    for k in range(length):
        piece = rows[:, k * step : size - reach + k * step]
        same = T.eq(piece.dimshuffle(0, 1, "x"), T.constant(pool[:, k]).dimshuffle("x", "x", 0))
        found = same if found is None else found & same
    assert found is not None, "an n-gram has an element"
    return T.sum(found.astype("float32"), axis=1)


def _weighted(node: Node, counts: Variable, places: np.ndarray[Any, Any]) -> Variable:
    mode = node.required("mode")
    if mode not in ("TF", "IDF", "TFIDF"):
        raise node.error(f"mode {mode!r}: wanted TF, IDF or TFIDF")
    if mode == "TF":
        return counts
    weights = np.ones(int(places.max()) + 1, np.float32)
    if node.attribute("weights") is not None:
        weights[places] = np.asarray(node.required("weights"), np.float32)
    there = T.minimum(counts, np.float32(1)) if mode == "IDF" else counts
    return there * T.constant(weights)


OPS: dict[str, Any] = {"TfIdfVectorizer": _tf_idf}
