"""Sums and other reductions, running sums, softmax, sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.dims import product
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.ops.core.shape import dims_of


def _axes(node: Node, ndim: int) -> tuple[int, ...] | None:
    """The axes to reduce; None if there is nothing to do."""
    axes = node.setting("axes", 1)
    if axes is None or len(axes) == 0:
        if node.attribute("noop_with_empty_axes", 0):
            return None
        return tuple(range(ndim))
    return tuple(node.normal(int(a), ndim) for a in axes)


def _reduction(
    function: Callable[..., Variable],
    before: Callable[[Variable], Variable] = lambda x: x,
    after: Callable[[Variable], Variable] = lambda y: y,
) -> Callable[[Node], Variable]:
    """The builder of ``after(function(before(x)))``; it keeps the dtype of ``x``."""

    def build(node: Node) -> Variable:
        x = node.x()
        axes, keep = _axes(node, x.ndim), bool(node.attribute("keepdims", 1))
        if axes is None:
            return after(before(x)).astype(x.type.dtype)
        if not axes:  # of a scalar
            return after(before(x)).astype(x.type.dtype)
        return after(function(before(x), axis=axes, keepdims=keep)).astype(x.type.dtype)

    return build


def _extreme(function: Callable[..., Variable], worst: str) -> Callable[[Node], Variable]:
    """Maxima or minima; of no elements the least or greatest number of the dtype."""

    def build(node: Node) -> Variable:
        x = node.x()
        axes, keep = _axes(node, x.ndim), bool(node.attribute("keepdims", 1))
        if not axes:
            return x
        if any(x.type.shape[a] == 0 for a in axes):
            edge = T.constant(_edge(x.type.numpy, worst))
            sizes = [
                1 if i in axes else d for i, d in enumerate(dims_of(x)) if keep or i not in axes
            ]
            return T.alloc(edge, *sizes)
        if x.type.dtype == "bool":
            return (T.any if worst == "min" else T.all)(x, axis=axes, keepdims=keep)
        return function(x, axis=axes, keepdims=keep)

    return build


def _edge(dtype: Any, worst: str) -> Any:
    if dtype.kind in "iu":
        return np.asarray(getattr(np.iinfo(dtype), worst), dtype)
    if dtype.kind == "b":
        return np.asarray(worst == "max")
    return np.asarray(-np.inf if worst == "min" else np.inf, dtype)


def _logsumexp(x: Variable, axis: Any, keepdims: bool) -> Variable:
    if any(x.type.shape[a] == 0 for a in axis):
        return T.log(T.sum(T.exp(x), axis=axis, keepdims=keepdims))
    wide = x if x.type.is_float else x.astype("float64")
    return T.logsumexp(wide, axis=axis, keepdims=keepdims)


def _squares(x: Variable) -> Variable:
    return T.sqr(x)


def _root(x: Variable) -> Variable:
    return T.sqrt(x if x.type.is_float else x.astype("float64"))


def _log(x: Variable) -> Variable:
    return T.log(x if x.type.is_float else x.astype("float64"))


def _mean(x: Variable, axis: Any, keepdims: bool) -> Variable:
    if x.type.is_float:
        return T.mean(x, axis=axis, keepdims=keepdims)
    return T.mean(x.astype("float64"), axis=axis, keepdims=keepdims)


def _arg(function: Callable[..., Variable]) -> Callable[[Node], Variable]:
    def build(node: Node) -> Variable:
        x = node.x()
        axis, keep = node.axis(x.ndim, 0), bool(node.attribute("keepdims", 1))
        if not node.attribute("select_last_index", 0):
            return function(x, axis=axis, keepdims=keep)
        last = dims_of(x)[axis] - 1
        return last - function(T.flip(x, axis), axis=axis, keepdims=keep)

    return build


def _cumulative(function: Callable[..., Variable], neutral: int) -> Callable[[Node], Variable]:
    def build(node: Node) -> Variable:
        x = node.x()
        axis = node.normal(int(node.known(1, "the axis").ravel()[0]), x.ndim)
        backwards = bool(node.attribute("reverse", 0))
        y = function(T.flip(x, axis) if backwards else x, axis=axis).astype(x.type.dtype)
        if node.attribute("exclusive", 0):
            part: list[Any] = [slice(None)] * x.ndim
            part[axis] = slice(None, -1)
            sizes = [1 if i == axis else d for i, d in enumerate(dims_of(x))]
            first = T.alloc(np.asarray(neutral, x.type.numpy), *sizes)
            y = T.concatenate([first, y[tuple(part)]], axis=axis)
        return T.flip(y, axis) if backwards else y

    return build


def as_matrix(x: Variable, axis: int) -> Variable:
    """``x`` with the dimensions before ``axis``, and those from it on, as one."""
    sizes = dims_of(x)
    return x.reshape((product(sizes[:axis]), product(sizes[axis:])))


def _softmax(function: Callable[..., Variable]) -> dict[int, Callable[[Node], Variable]]:
    def of_matrix(node: Node) -> Variable:
        """Before opset 13: over all dimensions from ``axis`` on."""
        x = node.x()
        axis = node.axis(x.ndim, 1)
        if axis == x.ndim - 1:
            return function(x, axis)
        return function(as_matrix(x, axis), 1).reshape(dims_of(x))

    def along(node: Node) -> Variable:
        return function(node.x(), node.axis(node.x().ndim, -1))

    return {1: of_matrix, 13: along}


def _largest_only(x: Variable, axis: int) -> Variable:
    """Ones at the first maxima along ``axis``, zeros elsewhere."""
    first = T.argmax(x, axis=axis, keepdims=True)
    places = T.arange(dims_of(x)[axis], dtype="int64")
    wide = places.dimshuffle(*[0 if i == axis else "x" for i in range(x.ndim)])
    return T.eq(wide, first).astype(x.type.dtype)


def _lp_normalization(node: Node) -> Variable:
    x = node.x()
    axis, p = node.axis(x.ndim, -1), node.attribute("p", 2)
    if p == 1:
        norm = T.sum(T.abs_(x), axis=axis, keepdims=True)
    else:
        norm = T.sqrt(T.sum(T.sqr(x), axis=axis, keepdims=True))
    zero = T.eq(norm, np.asarray(0, x.type.numpy))
    safe = T.switch(zero, np.asarray(1, x.type.numpy), norm)
    return T.switch(zero, np.asarray(0, x.type.numpy), x / safe)


def _topk(node: Node) -> list[Variable]:
    x = node.x()
    axis = node.axis(x.ndim, -1)
    k = node.required("k") if node.version < 10 else node.number(1)
    if isinstance(k, Variable) or k == 0:
        return _sorted_part(x, k, axis, bool(node.attribute("largest", 1)))
    if node.attribute("largest", 1):
        return list(T.topk_and_argtopk(x, k, axis=axis))
    return list(T.topk_and_argtopk(x, -k, axis=axis))


def _sorted_part(x: Variable, k: Any, axis: int, largest: bool) -> list[Variable]:
    """The first ``k`` elements in order, of which there may be none."""
    if largest:  # equal elements stay in order, as they do from the other end
        last = dims_of(x)[axis] - 1
        order = last - T.flip(T.argsort(T.flip(x, axis), axis=axis, kind="stable"), axis)
    else:
        order = T.argsort(x, axis=axis, kind="stable")
    part = order[tuple([slice(None)] * axis + [slice(None, k)])]
    return [T.take_along_axis(x, part, axis=axis), part]


def _l1(x: Variable) -> Variable:
    return T.abs_(x)


OPS: dict[str, Any] = {
    "ReduceSum": _reduction(T.sum), "ReduceProd": _reduction(T.prod),
    "ReduceMean": _reduction(_mean),
    "ReduceMax": _extreme(T.max, "min"), "ReduceMin": _extreme(T.min, "max"),
    "ReduceL1": _reduction(T.sum, _l1), "ReduceL2": _reduction(T.sum, _squares, _root),
    "ReduceSumSquare": _reduction(T.sum, _squares), "ReduceLogSum": _reduction(T.sum, after=_log),
    "ReduceLogSumExp": _reduction(_logsumexp), "ArgMax": _arg(T.argmax), "ArgMin": _arg(T.argmin),
    "CumSum": _cumulative(T.cumsum, 0), "CumProd": _cumulative(T.cumprod, 1),
    "Softmax": _softmax(T.softmax), "LogSoftmax": _softmax(T.log_softmax),
    "Hardmax": _softmax(_largest_only), "LpNormalization": _lp_normalization, "TopK": _topk,
}  # fmt: skip
