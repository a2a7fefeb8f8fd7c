"""Connectionist temporal classification: the loss of unsegmented sequences.

Graves, Fernández, Gomez and Schmidhuber 2006; sums over alignments are done in log space.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.errors import IndexOutOfRange, TypeMismatch
from symdnn.graph.backprop import backprop
from symdnn.graph.dims import same_dim
from symdnn.graph.op import Axes, Batched, Grads, Host, MultiOp, Op, Shapes, Types, Vars
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.core.composed import vjp_of_expressions, written_out
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.lanes import on_folded
from symdnn.ops.written_out.ctc import ctc_costs

BLANK = 0
_NEVER = -np.inf


@dataclass(frozen=True)
class CTCLoss(MultiOp):
    """(costs, gradients) of (activations, labels, input lengths).

    ``activations`` (T, N, C) are unnormalised scores, ``labels`` (N, L) integers of 1 .. C-1
    (negative ones are padding), ``input_lengths`` (N) the frames of each sequence. Class 0 is the
    blank. ``costs`` (N) are ``-log p(labels)``, ``gradients`` (T, N, C) those of the costs with
    respect to the activations, 0 after the end of each sequence. If the labels do not fit into the
    frames, the cost is infinite and the gradient 0.
    """

    def infer(
        self, activations: TensorType, labels: TensorType, input_lengths: TensorType
    ) -> tuple[Type, ...]:
        a = activations
        if not isinstance(a, TensorType) or not a.is_float or a.ndim != 3:
            raise TypeMismatch(self, "activations (T, N, C), a float tensor", a)
        if labels.ndim != 2 or not labels.is_integer:
            raise TypeMismatch(self, "labels (N, L), an integer matrix padded with -1", labels)
        if input_lengths.ndim != 1 or not input_lengths.is_integer:
            raise TypeMismatch(self, "input_lengths (N), an integer vector", input_lengths)
        return a.with_shape((a.shape[1],)), a

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        a, labels, lengths = shapes
        want = "one row of labels and one length for each sequence"
        n = same_dim(self, (a[1], labels[0], lengths[0]), want, [tuple(s) for s in shapes])
        return [(n,), tuple(a)]

    def reference(
        self, activations: Array, labels: Array, input_lengths: Array
    ) -> tuple[Array, ...]:
        shapes = [activations.shape, labels.shape, input_lengths.shape]
        self.shapes([], shapes, {})
        self.check_values(activations, labels, input_lengths)
        narrow = is_narrow_float(activations.dtype.name)
        costs, grads = ctc_loss(
            activations.astype(np.float32) if narrow else activations, labels, input_lengths
        )
        return costs.astype(activations.dtype), grads.astype(activations.dtype)

    def written_out(self, *inputs: Variable) -> list[Variable]:
        """Both outputs in simpler ops: a loop over the frames, and its derivative."""
        return [ctc_costs(*inputs), *_gradients(*inputs)]

    def check_values(self, activations: Array, labels: Array, lengths: Array) -> None:
        """Raise the error of a label or a length that is out of range."""
        steps, _, classes = activations.shape
        bad = (labels >= classes) | (labels == BLANK)
        if bad.any():
            n, i = np.argwhere(bad)[0]
            raise IndexOutOfRange(
                f"{self}: label {labels[n, i]} in row {n}, position {i} is none of 1 to "
                f"{classes - 1} ({classes} classes, 0 is the blank; pad with -1)"
            )
        if ((lengths < 0) | (lengths > steps)).any():
            n = int(np.argmax((lengths < 0) | (lengths > steps)))
            raise IndexOutOfRange(
                f"{self}: input_lengths[{n}] = {lengths[n]} is not within the {steps} frames"
            )

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        dcosts, dgradients = cotangents
        found = None if dcosts is None else outputs[1] * dcosts.dimshuffle("x", 0, "x")
        if dgradients is not None:
            with written_out(self, "the gradient of a loop"):
                (more, *_) = vjp_of_expressions(_gradients, inputs, [dgradients])
            if more is not None:
                found = more if found is None else found + more
        return [found, None, None]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        moved = tangents[0]
        if moved is None:
            return [None, None]
        # Matrices of second derivatives are symmetric.
        (turned, *_) = self.vjp(inputs, outputs, [None, moved])
        return [(outputs[1] * moved).sum(axis=(0, 2)), turned]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_folded(self, inputs, axes, [1, 0, 0], [0, 1])


@dataclass(frozen=True)
class CTCCosts(Op):
    """The costs of :class:`CTCLoss`, of which no gradient is wanted."""

    def infer(self, activations: TensorType, labels: TensorType, input_lengths: TensorType) -> Type:
        return CTCLoss().infer(activations, labels, input_lengths)[0]

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        found = CTCLoss().shapes(types, shapes, host)
        return None if found is None else found[:1]

    def reference(self, activations: Array, labels: Array, input_lengths: Array) -> Array:
        return CTCLoss().reference(activations, labels, input_lengths)[0]

    def check_values(self, activations: Array, labels: Array, lengths: Array) -> None:
        """As :meth:`CTCLoss.check_values`."""
        CTCLoss().check_values(activations, labels, lengths)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        return CTCLoss().vjp(inputs, CTCLoss()(*inputs), [*cotangents, None])

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        moved = CTCLoss().jvp(inputs, CTCLoss()(*inputs), tangents)
        return None if moved is None else moved[:1]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_folded(self, inputs, axes, [1, 0, 0], [0])


def _gradients(activations: Variable, labels: Variable, lengths: Variable) -> list[Variable]:
    """The second output of :class:`CTCLoss` by the derivative of a loop."""
    costs = ctc_costs(activations, labels, lengths)
    (found,) = backprop({costs: costs.ones_like()}, [activations])
    return [activations.zeros_like() if found is None else found]


def ctc_loss(activations: Array, labels: Array, lengths: Array) -> tuple[Any, Any]:
    """Costs and gradients, vectorised over the batch; a loop over the frames in each direction."""
    a = activations.astype(np.float64)
    shifted = a - a.max(2, keepdims=True)
    logp = shifted - np.log(np.exp(shifted).sum(2, keepdims=True))
    states, skip, count = extended_labels(labels)
    frames = np.arange(a.shape[0])[:, None] < lengths  # (T, N)
    emit = np.take_along_axis(logp, np.broadcast_to(states, (a.shape[0], *states.shape)), 2)
    with np.errstate(all="ignore"):  # log(0) and inf - inf are intended
        alpha = forward_variables(emit, skip, frames)
        beta = backward_variables(emit, skip, count, lengths)
        final = alpha_at_end(alpha, count)
        total = np.where(lengths == 0, np.where(count == 1, 0.0, _NEVER), final)
        occupied = np.exp(alpha + beta - total[:, None])  # (T, N, S)
    possible = frames & np.isfinite(total)
    used = np.where(possible[..., None], occupied, 0)
    grads = np.where(possible[..., None], np.exp(logp), 0)
    where = (np.arange(a.shape[0])[:, None, None], np.arange(a.shape[1])[:, None], states)
    np.subtract.at(grads, where, used)
    return -total, grads


def extended_labels(labels: Array) -> tuple[Any, Any, Any]:
    """(class of each state (N, 2 L + 1), whether it is reachable from two before, states used).

    Padding is dropped at any position; unused states at the end are blanks.
    """
    n, width = labels.shape
    order = np.argsort(labels < 0, axis=1, kind="stable")
    compact = np.take_along_axis(labels, order, 1)
    number = (labels >= 0).sum(1)
    states = np.full((n, 2 * width + 1), BLANK, np.int64)
    states[:, 1::2] = np.where(compact < 0, BLANK, compact)
    skip = np.zeros(states.shape, bool)
    skip[:, 3::2] = states[:, 3::2] != states[:, 1:-2:2]
    return states, skip, 2 * number + 1


def _log_add(*terms: Array) -> Array:
    total = terms[0]
    for t in terms[1:]:
        total = np.logaddexp(total, t)
    return total


def _moved(v: Array, by: int) -> Array:
    """States shifted by ``by``, towards the end if positive; new entries are -inf."""
    out = np.full_like(v, _NEVER)
    if by > 0:
        out[:, by:] = v[:, :-by]
    else:
        out[:, :by] = v[:, -by:]
    return out


def forward_variables(emit: Array, skip: Array, frames: Array) -> Array:
    """Log probability of all prefixes that end in each state; constant after the last frame."""
    alpha = np.full(emit.shape, _NEVER)
    if not len(emit):
        return alpha
    alpha[0, :, :2] = emit[0, :, :2]
    for t in range(1, len(emit)):
        last = alpha[t - 1]
        jump = np.where(skip, _moved(last, 2), _NEVER) if emit.shape[2] > 2 else last + _NEVER
        step = _log_add(last, _moved(last, 1), jump) + emit[t]
        alpha[t] = np.where(frames[t][:, None], step, last)
    return alpha


def backward_variables(emit: Array, skip: Array, count: Array, lengths: Array) -> Array:
    """Log probability of all suffixes after each state, without its own frame."""
    beta = np.full(emit.shape, _NEVER)
    index = np.arange(emit.shape[2])
    last = (index == count[:, None] - 1) | (index == count[:, None] - 2)
    start = np.where(last, 0.0, _NEVER)
    can_jump = np.zeros_like(skip)
    can_jump[:, :-2] = skip[:, 2:]
    current = start
    for t in reversed(range(len(emit))):
        if t + 1 < len(emit):
            following = current + emit[t + 1]
            jump = following + _NEVER
            if emit.shape[2] > 2:
                jump = np.where(can_jump, _moved(following, -2), _NEVER)
            step = _log_add(following, _moved(following, -1), jump)
            current = np.where((t + 1 < lengths)[:, None], step, start)
        beta[t] = current
    return beta


def alpha_at_end(alpha: Array, count: Array) -> Any:
    """Log probability of the whole labelling, which ends in the last blank or the last label."""
    if not len(alpha):
        return np.full(count.shape, _NEVER)
    rows = np.arange(len(count))
    blank = alpha[-1][rows, count - 1]
    label = np.where(count > 1, alpha[-1][rows, np.maximum(count - 2, 0)], _NEVER)
    return np.logaddexp(blank, label)


def ctc(activations: TensorLike, labels: TensorLike, input_lengths: TensorLike) -> Variable:
    """The CTC loss of each sequence, a vector (N).

    ``activations`` (T, N, C) are scores before the softmax, ``labels`` (N, L) integers padded with
    -1, ``input_lengths`` (N) the number of frames of each sequence. Class 0 is the blank.
    """
    return CTCLoss()(activations, labels, input_lengths)[0]


OPERATORS: dict[str, Any] = {}
