"""Metrics besides the loss: expressions of a batch, and how their values are combined."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING as _CHECKED
from typing import Any

import numpy as np

from symdnn.errors import InputError, TypeMismatch, UnknownWord
from symdnn.graph.names.elsewhere import refusing as _refusing
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.argreduce import argmax
from symdnn.ops.array.create import arange
from symdnn.ops.core.shape import dims_of, reshape
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.comparison import eq, invert, le, lt, neq, switch
from symdnn.ops.linalg.dot import dot
from symdnn.options import is_int

Expression = Callable[..., Any]


class RunningMean:
    """The mean of numbers with weights, as they come; NaN before the first.

    >>> mean = RunningMean()
    >>> mean.add(1.0, 3); mean.add(5.0, 1); mean.value
    2.0
    """

    def __init__(self, total: float = 0.0, weight: float = 0.0) -> None:
        self.total, self.weight = total, weight

    def add(self, value: float, weight: float = 1.0) -> None:
        """Take in a number, or the mean of as many as ``weight``."""
        self.total += float(value) * weight
        self.weight += weight

    @property
    def value(self) -> float:
        """The mean so far."""
        return self.total / self.weight if self.weight else float("nan")


class Metric:
    """``expression(output, *targets)``, and how its values for batches make one for all of them.

    ``kind`` is ``"mean"``: a scalar, averaged by the batches' sizes; ``"ratio"``: a pair of
    scalars, summed and divided; ``"sum"``: an array, summed.
    """

    KINDS = ("mean", "ratio", "sum")

    def __init__(self, expression: Expression, kind: str = "mean") -> None:
        if kind not in self.KINDS:
            raise UnknownWord(f"Metric: kind={kind!r}; wanted one of {', '.join(self.KINDS)}")
        self.expression, self.kind = expression, kind

    def outputs(self, output: Any, targets: Any) -> list[Variable]:
        """The expressions that a function computes for it."""
        found = self.expression(output, *targets)
        values = list(found) if self.kind == "ratio" else [found]
        for v in values:
            if not isinstance(v, Variable) or (self.kind != "sum" and v.type.ndim):
                raise TypeMismatch(f"a metric ({self.kind})", "symbolic scalars", repr(v))
        return values

    def start(self) -> Any:
        """The state before the first batch: [0, 0], or 0."""
        return 0 if self.kind == "sum" else [0.0, 0.0]

    def add(self, state: Any, values: Sequence[Array], size: int) -> Any:
        """The state after a batch of ``size`` that gave ``values``."""
        if self.kind == "sum":
            return state + np.asarray(values[0], "float64")
        value, weight = values if self.kind == "ratio" else (float(values[0]) * size, size)
        return [state[0] + float(value), state[1] + float(weight)]

    def result(self, state: Any) -> Any:
        """The measure of all batches so far."""
        if self.kind == "sum":
            return np.asarray(state)
        return state[0] / state[1] if state[1] else float("nan")


def top_k(k: int = 1, *, ignore: int | None = None) -> Metric:
    """How often the target is among the ``k`` classes of the largest outputs.

    Outputs are (N, C, ...), targets integers (N, ...) from 0; those equal to ``ignore`` do not
    count. Of equal outputs the class of the lower number goes before; a NaN is never right.
    """
    if not is_int(k) or k < 1:
        raise InputError(f"top_k: k={k!r}; wanted an int, 1 or more")

    def expression(output: Variable, target: Variable) -> tuple[Variable, Variable]:
        scores, t = _rows("top_k", output, target)
        counted = neq(t, np.asarray(-1 if ignore is None else ignore, t.type.numpy))
        if ignore is None:
            counted = eq(t, t)
        known = switch(counted, t, cast(np.int8(0), t.type.dtype))
        number, count = arange(dims_of(scores)[1]), arange(dims_of(scores)[0])
        own = scores[count, known].dimshuffle(0, "x")
        lower = lt(number.dimshuffle("x", 0), known.dimshuffle(0, "x"))
        # "Not less" and "not less or equal", so that a NaN is before everything.
        before = switch(lower, invert(lt(scores, own)), invert(le(scores, own)))
        right = lt(cast(before, "float32").sum(axis=1), np.float32(k))
        weight = cast(counted, "float32")
        return (cast(right, "float32") * weight).sum(), weight.sum()

    return Metric(expression, "ratio")


def accuracy(*, ignore: int | None = None) -> Metric:
    """How often the target is the class of the largest output; see :func:`top_k`."""
    return top_k(1, ignore=ignore)


def confusion_matrix(classes: int) -> Metric:
    """How many samples of class ``i`` were taken for class ``j``, at ``[i, j]``, (C, C).

    Outputs are (N, C, ...), targets integers (N, ...); what is no class does not count.
    """

    def expression(output: Any, target: Any) -> Variable:
        scores, t = _rows("confusion_matrix", output, target)
        number = arange(classes).dimshuffle("x", 0)
        found = argmax(scores, axis=1).dimshuffle(0, "x")
        true = cast(eq(t.dimshuffle(0, "x"), number), "float32")
        taken = cast(eq(found, number), "float32")
        return dot(true.dimshuffle(1, 0), taken)

    return Metric(expression, "sum")


def _rows(what: str, output: TensorLike, target: TensorLike) -> tuple[Variable, Variable]:
    """Scores (rows, C) and targets (rows,) of outputs (N, C, ...) and targets (N, ...)."""
    scores, t = as_variable(output), as_variable(target)
    if scores.type.ndim < 2 or t.type.ndim != scores.type.ndim - 1 or not t.type.is_discrete:
        raise TypeMismatch(
            what, "outputs (N, C, ...) and integer targets (N, ...)", [scores.type, t.type]
        )
    if scores.type.ndim == 2:
        return scores, t
    axes = [0, *range(2, scores.type.ndim), 1]
    moved = scores.dimshuffle(*axes)
    rows: Any = 1
    for d in dims_of(t):
        rows = rows * d
    return reshape(moved, (rows, dims_of(moved)[-1])), t.flatten()


def as_metrics(given: Mapping[str, Any] | Sequence[Any] | None) -> dict[str, Metric]:
    """Metrics by name; a function of output and targets gives the mean of a batch.

    Words stand for some: ``"accuracy"``, ``"top_5"`` (any number). A list is named by the words,
    and by the functions' names.
    """
    if not isinstance(given, Mapping):
        given = {_name_of(m): m for m in given or ()}
    return {str(name): _as_metric(m) for name, m in given.items()}


def _name_of(m: object) -> str:
    name = m if isinstance(m, str) else getattr(m, "__name__", None)
    if not isinstance(name, str):
        raise InputError(f"metrics: {m!r:.60} in a list has no name; give a dict of names")
    return name


def _as_metric(m: object) -> Metric:
    if isinstance(m, str):
        number = re.fullmatch(r"top_([1-9]\d*)", m)
        if m == "accuracy" or number:
            return top_k(int(number[1]) if number else 1)
        raise UnknownWord(f"metrics: {m!r}; wanted 'accuracy', 'top_5' or the like, or a function")
    if m is confusion_matrix:
        raise InputError("metrics: confusion_matrix; wanted confusion_matrix(classes)")
    if m in (accuracy, top_k):  # not called
        return m()
    if not isinstance(m, Metric) and not callable(m):
        raise InputError(f"metrics: wanted functions (output, target) -> scalar, got {m!r:.60}")
    return m if isinstance(m, Metric) else Metric(m)


if not _CHECKED:  # a checker of types would believe that every name exists
    __getattr__ = _refusing(__name__, "METRICS")
