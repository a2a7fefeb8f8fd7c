"""Cross-entropy losses: of distributions, of integer labels, fused with softmax.

A label is the index of a class along ``axis``; labels have the shape of the scores without that
axis. A label that is no class raises :class:`~symdnn.errors.IndexOutOfRange`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import IndexOutOfRange, NdimMismatch, TypeMismatch
from symdnn.graph.dims import Shape, normal_axis, same_dim
from symdnn.graph.names.torch_words import advises
from symdnn.graph.op import Axes, Batched, Grads, Host, MultiOp, Op, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.dtype import float_of, widened
from symdnn.ops.core.lanes import on_lanes
from symdnn.ops.core.python_numbers import settled
from symdnn.ops.core.shape import dims_of, shape_i
from symdnn.ops.elementwise.activations import softplus
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.math import exp, log
from symdnn.ops.nn.softmax import LogSoftmaxGrad, check_axis, shifted, softmax


def check_labels(op: Op | str, labels: Array, classes: int) -> None:
    """Raise :class:`IndexOutOfRange` naming the first label that is no class."""
    bad = (labels < 0) | (labels >= classes)
    if bad.any():
        where = np.unravel_index(int(np.argmax(bad)), bad.shape)
        row = ", ".join(str(int(i)) for i in where)
        raise IndexOutOfRange(
            f"{op}: label {labels[where]} in row {row} is none of the {classes} classes "
            f"(0 to {classes - 1}); {int(bad.sum())} of {labels.size} labels are out of range"
        )


@dataclass(frozen=True)
class LabelOp(Op):
    """Base of ops on scores and labels; ``axis`` is that of the classes."""

    abstract: ClassVar[bool] = True
    axis: int

    def check_types(
        self, scores: TensorType, labels: TensorType, *, per_row: TensorType | None = None
    ) -> None:
        """Raise unless scores are float, labels integer, and row values lack the class axis."""
        check_axis(self, scores, self.axis)
        if not isinstance(labels, TensorType) or not labels.is_integer:
            raise TypeMismatch(
                self,
                "labels that are integers",
                labels,
                "Cast them (labels.astype('int64')), or pass one distribution per row",
            )
        if labels.ndim != scores.ndim - 1:
            raise NdimMismatch(self, f"labels of {scores.ndim - 1} dimension(s)", labels)
        if per_row is not None and (per_row.ndim, per_row.dtype) != (labels.ndim, scores.dtype):
            raise TypeMismatch(self, f"{scores.dtype} values, one for each label", per_row)

    def rows(self, scores: Shape, *others: Shape) -> Shape:
        """The shape of the labels, checked against that of the scores."""
        left = scores[: self.axis] + scores[self.axis + 1 :]
        return tuple(
            same_dim(self, dims, "one label for each row", [tuple(scores), *map(tuple, others)])
            for dims in zip(left, *others, strict=True)
        )

    def row_type(self, scores: TensorType, labels: TensorType) -> TensorType:
        """The type of one value per row."""
        left = scores.shape[: self.axis] + scores.shape[self.axis + 1 :]
        return scores.with_shape(
            a if a is not None else b for a, b in zip(left, labels.shape, strict=True)
        )

    def index(self, labels: Array) -> Array:
        """Labels as an index for ``np.take_along_axis``."""
        return np.expand_dims(labels.astype(np.int64, copy=False), self.axis)

    def pick(self, scores: Array, labels: Array) -> Any:
        """The score of each label, checked."""
        self.rows(scores.shape, labels.shape)
        check_labels(self, labels, scores.shape[self.axis])
        return np.take_along_axis(scores, self.index(labels), self.axis).squeeze(self.axis)

    def place(self, values: Array, labels: Array, shape: tuple[int, ...]) -> Array:
        """Zeros with each row's value at its label."""
        check_labels(self, labels, shape[self.axis])
        out = np.zeros(shape, values.dtype)
        np.put_along_axis(out, self.index(labels), np.expand_dims(values, self.axis), self.axis)
        return out

    def expand(self, per_row: Variable) -> Variable:
        """One value per row with the class axis inserted again as size 1."""
        order: list[int | str] = list(range(per_row.type.ndim))
        order.insert(self.axis, "x")
        return per_row.dimshuffle(order)

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(replace(self, axis=self.axis + 1), inputs, axes)


class _OfRows(LabelOp):
    """Base of ops from scores and labels to one value per row."""

    abstract: ClassVar[bool] = True

    def infer(self, scores: TensorType, labels: TensorType) -> TensorType:
        self.check_types(scores, labels)
        return self.row_type(scores, labels)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [self.rows(*shapes)]


class _GradOfRows(LabelOp):
    """Base of the gradients in the scores, from one value per row, scores and labels."""

    abstract: ClassVar[bool] = True

    def infer(self, per_row: TensorType, scores: TensorType, labels: TensorType) -> TensorType:
        self.check_types(scores, labels, per_row=per_row)
        return scores

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        self.rows(shapes[1], shapes[0], shapes[2])
        return [tuple(shapes[1])]


class PickLabel(_OfRows):
    """The score of each row's label: ``x[i, label[i]]``."""

    linear_in_first: ClassVar[bool] = True

    def reference(self, x: Array, labels: Array) -> Any:
        return self.pick(x, labels)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x, labels), (dy,) = inputs, cotangents
        return [place_label(dy, labels, dims_of(x)[self.axis], self.axis), None]


@dataclass(frozen=True)
class PlaceLabel(LabelOp):
    """Zeros with each row's value at its label; the transpose of :class:`PickLabel`.

    Inputs: values, labels, number of classes (an int64 scalar, read on the host).
    """

    host_inputs: ClassVar[tuple[int, ...]] = (2,)
    linear_in_first: ClassVar[bool] = True
    classes: int | None = None

    def infer(self, values: TensorType, labels: TensorType, classes: TensorType) -> TensorType:
        shape = list(values.shape)
        shape.insert(self.axis, self.classes)
        out = values.with_shape(shape)
        self.check_types(out, labels)
        return out

    def reference(self, values: Array, labels: Array, classes: Array) -> Array:
        shape = list(values.shape)
        shape.insert(self.axis, int(classes))
        return self.place(values, labels, tuple(shape))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        full = list(shapes[0])
        full.insert(self.axis, host[2])
        self.rows(tuple(full), shapes[1])
        return [tuple(full)]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [PickLabel(self.axis)(cotangents[0], inputs[1]), None, None]


def place_label(values: Variable, labels: Variable, classes: TensorLike, axis: int) -> Variable:
    """Zeros of ``classes`` along a new ``axis`` with ``values`` at the labels."""
    known = classes if isinstance(classes, int) else None
    count = as_variable(classes, dtype="int64") if known is not None else classes
    return PlaceLabel(axis, known)(values, labels, count)


class CrossentropyCategorical1Hot(_OfRows):
    """``-log(p[i, label[i]])`` of probabilities ``p``, one value per row."""

    def reference(self, p: Array, labels: Array) -> Array:
        (v,) = widened(self.pick(p, labels))
        return np.asarray(-np.log(v), p.dtype)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (p, labels), (dy,) = inputs, cotangents
        return [CrossentropyCategorical1HotGrad(self.axis)(dy, p, labels), None]


class CrossentropyCategorical1HotGrad(_GradOfRows):
    """Gradient of :class:`CrossentropyCategorical1Hot`: ``-dy[i] / p`` at the label, else 0."""

    def reference(self, dy: Array, p: Array, labels: Array) -> Array:
        v, d = widened(self.pick(p, labels), dy)
        return self.place((-d / v).astype(p.dtype, copy=False), labels, p.shape)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (dy, p, labels), (g,) = inputs, cotangents
        chosen = PickLabel(self.axis)(p, labels)
        at = PickLabel(self.axis)(g, labels) / chosen
        classes = dims_of(p)[self.axis]
        return [-at, place_label(at * dy / chosen, labels, classes, self.axis), None]


class SoftmaxCrossentropy(LabelOp, MultiOp):
    """(negative log-likelihood per row, log-softmax) of logits and integer labels.

    Stable: no probability is rounded to 0 before its logarithm is taken. The gradient needs the
    second output. ``-log(softmax(x))[labels]`` and
    ``categorical_crossentropy(softmax(x), labels)`` become this op.
    """

    def infer(self, x: TensorType, labels: TensorType) -> tuple[Type, ...]:
        self.check_types(x, labels)
        return self.row_type(x, labels), x

    def reference(self, x: Array, labels: Array) -> tuple[Array, ...]:
        (v,) = widened(x)
        s = shifted(v, self.axis)
        logp = s - np.log(np.exp(s).sum(self.axis, keepdims=True))
        nll = -self.pick(logp, labels)
        return nll.astype(x.dtype, copy=False), logp.astype(x.dtype, copy=False)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [self.rows(*shapes), tuple(shapes[0])]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (_, labels), (_, logp), (dnll, dlogp) = inputs, outputs, cotangents
        grads = []
        if dnll is not None:
            grads.append(SoftmaxCrossentropyGrad(self.axis)(dnll, logp, labels))
        if dlogp is not None:
            grads.append(LogSoftmaxGrad(self.axis)(logp, dlogp))
        return [grads[0] if len(grads) == 1 else grads[0] + grads[1], None]


class SoftmaxCrossentropyGrad(_GradOfRows):
    """Gradient of :class:`SoftmaxCrossentropy` with respect to the logits.

    ``dnll[i] * (exp(logp) - onehot(label))`` from the forward op's log-softmax.
    """

    def reference(self, dnll: Array, logp: Array, labels: Array) -> Any:
        d, v = widened(dnll, logp)
        self.rows(logp.shape, dnll.shape, labels.shape)
        scaled = np.exp(v) * np.expand_dims(d, self.axis)
        return (scaled - self.place(d, labels, logp.shape)).astype(logp.dtype, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (dnll, logp, labels), (g,) = inputs, cotangents
        weighted = g * exp(logp)
        at = PickLabel(self.axis)(g, labels)
        return [weighted.sum(axis=self.axis) - at, weighted * self.expand(dnll), None]


def _class_axis(what: str, x: Variable, axis: int) -> int:
    ndim = x.type.ndim if isinstance(x.type, TensorType) else 0
    return normal_axis(what, axis, ndim)


def pick_label(x: TensorLike, labels: TensorLike, axis: int = -1) -> Variable:
    """``x`` at each row's integer label along ``axis``; that axis disappears."""
    v = as_variable(x)
    return PickLabel(_class_axis("pick_label", v, axis))(v, labels)


def crossentropy_categorical_1hot(
    coding_dist: TensorLike, true_one_of_n: TensorLike, axis: int = -1
) -> Variable:
    """``-log`` of the probability of each row's label, with the shape of the labels.

    ``coding_dist`` has probabilities, ``true_one_of_n`` integers, without the dimension ``axis``
    of the classes. A label that is no class raises :class:`~symdnn.errors.IndexOutOfRange` in the
    call.
    """
    p = as_variable(coding_dist)
    op = CrossentropyCategorical1Hot(_class_axis("crossentropy_categorical_1hot", p, axis))
    return op(p, true_one_of_n)


def categorical_crossentropy(coding_dist: TensorLike, true_dist: TensorLike) -> Variable:
    """Cross-entropy between predicted probabilities and the truth, one value per row.

    ``true_dist`` is a distribution per row (the ndim of ``coding_dist``), or one integer label
    per row (one dimension less). The classes are the last axis. Of a softmax, it is computed from
    what the softmax was taken of, so that no logarithm overflows.

    Raises :class:`~symdnn.errors.NdimMismatch` for other dimensions, and in the call
    :class:`~symdnn.errors.IndexOutOfRange` for a label that is no class.

    >>> categorical_crossentropy([[0.5, 0.5]], [0]).eval().round(3).tolist()
    [0.693]
    """
    p, t = as_variable(coding_dist), as_variable(true_dist)
    if t.type.ndim == p.type.ndim:
        return -(t * log(p)).sum(axis=p.type.ndim - 1)
    if t.type.ndim == p.type.ndim - 1:
        return crossentropy_categorical_1hot(p, t)
    raise NdimMismatch(
        "categorical_crossentropy",
        f"distributions of {p.type.ndim} or labels of {p.type.ndim - 1} dimension(s)",
        t.type,
    )


def softmax_crossentropy(logits: TensorLike, labels: TensorLike, axis: int = -1) -> Variable:
    """``-log(softmax(logits))`` at the integer labels, stable; one value per row."""
    x = as_variable(logits)
    op = SoftmaxCrossentropy(_class_axis("softmax_crossentropy", x, axis))
    return op(x, labels)[0]


def crossentropy_softmax_1hot(
    x: TensorLike, y_idx: TensorLike, **ignored: Any
) -> tuple[Variable, Variable]:
    """(loss per row, softmax) of logits and integer labels, as Theano returns them."""
    return softmax_crossentropy(x, y_idx), softmax(x)


def crossentropy_softmax_1hot_with_bias(
    x: TensorLike, b: TensorLike, y_idx: TensorLike, **ignored: Any
) -> tuple[Variable, Variable]:
    """:func:`crossentropy_softmax_1hot` of ``x + b``."""
    return crossentropy_softmax_1hot(as_variable(x) + as_variable(b), y_idx)


def crossentropy_softmax_argmax_1hot_with_bias(
    x: TensorLike, b: TensorLike, y_idx: TensorLike, **ignored: Any
) -> tuple[Variable, Variable, Variable]:
    """(loss per row, softmax, most likely label) of ``x + b`` and integer labels."""
    logits = as_variable(x) + as_variable(b)
    return (*crossentropy_softmax_1hot(logits, y_idx), logits.argmax(axis=-1))


def confusion_matrix(actual: TensorLike, pred: TensorLike) -> list[Variable]:
    """[counts, labels]: the number of examples of label i (row) predicted as label j (column).

    ``labels`` are the labels that occur, in ascending order.
    """
    truth, guess = as_variable(actual), as_variable(pred)
    labels = operator("unique")(operator("join")(0, truth, guess))
    rows, columns = (operator("eq")(v.dimshuffle(0, "x"), labels) for v in (truth, guess))
    return [rows.astype("int64").T.dot(columns.astype("int64")), labels]


def prepend_scalar_to_each_row(val: TensorLike, mat: TensorLike) -> Variable:
    """The matrix with one more column in front, all of it ``val``."""
    rows = as_variable(mat)
    column = operator("alloc")(as_variable(val).astype(rows.dtype), shape_i(rows, 0), 1)
    return operator("join")(1, column, rows)


@advises(
    reduction="each row has a value: .mean() is PyTorch's default",
    input="logp",
    target="labels",
    weight="weights",
)
def nll_loss(
    logp: TensorLike, labels: TensorLike, weights: TensorLike | None = None, axis: int = 1
) -> Variable:
    """``-logp`` at the integer labels along ``axis``, one value per row.

    ``weights`` (a vector, one per class) multiplies each row's loss by the weight of its label.
    """
    loss = -pick_label(logp, labels, axis)
    return loss if weights is None else loss * operator("take")(as_variable(weights), labels)


def spatial_crossentropy(
    logits: TensorLike, labels: TensorLike, weights: TensorLike | None = None
) -> Variable:
    """Softmax cross-entropy over the channels (axis 1) of (N, C, ...) maps, one value per pixel.

    ``labels`` are integers of shape (N, ...); ``weights`` as in :func:`nll_loss`.
    """
    loss = softmax_crossentropy(logits, labels, axis=1)
    return loss if weights is None else loss * operator("take")(as_variable(weights), labels)


def binary_crossentropy(output: TensorLike, target: TensorLike) -> Variable:
    """``-(t log(p) + (1 - t) log(1 - p))`` of probabilities ``p``, elementwise."""
    p, t = settled([as_variable(output), as_variable(target)])
    return -(t * log(p) + (1.0 - t) * log(1.0 - p))


def sigmoid_binary_crossentropy(output: TensorLike, target: TensorLike) -> Variable:
    """Binary cross-entropy of ``sigmoid(output)``, in a stable form of ``output`` itself."""
    x, t = settled([as_variable(output), as_variable(target)])
    dtype = float_of(x.type.dtype, t.type.dtype)  # -x and 1 - t of small ints would wrap around
    x, t = cast(x, dtype), cast(t, dtype)
    return t * softplus(-x) + (1.0 - t) * softplus(x)


def h_softmax(
    x: TensorLike,
    batch_size: Any,
    n_outputs: Any,
    n_classes: int,
    n_outputs_per_class: int,
    W1: TensorLike,
    b1: TensorLike,
    W2: TensorLike,
    b2: TensorLike,
    target: TensorLike | None = None,
) -> Variable:
    """Two-level softmax: output ``o`` is number ``o % n_outputs_per_class`` of its class.

    ``x`` (batch, d), ``W1`` (d, n_classes), ``b1`` (n_classes), ``W2`` (n_classes, d,
    n_outputs_per_class), ``b2`` (n_classes, n_outputs_per_class). The result has the probability of
    each row's integer ``target`` (batch), or without ``target`` of all ``n_outputs``: (batch,
    n_outputs).
    """
    v, w2, bias = as_variable(x), as_variable(W2), as_variable(b2)
    classes = softmax(operator("dot")(v, W1) + as_variable(b1))
    if target is None:
        scores = operator("tensordot")(v, w2, axes=((1,), (1,))) + bias
        both = softmax(scores, axis=2) * classes.dimshuffle(0, 1, "x")
        return both.reshape((batch_size, n_classes * n_outputs_per_class))[:, :n_outputs]
    t = as_variable(target).flatten(1)
    kind = t // n_outputs_per_class
    take = operator("take")
    scores = (v.dimshuffle(0, 1, "x") * take(w2, kind, axis=0)).sum(axis=1)
    inner = softmax(scores + take(bias, kind, axis=0))
    return pick_label(classes, kind) * pick_label(inner, t % n_outputs_per_class)


OPERATORS = {"categorical_crossentropy": categorical_crossentropy}
