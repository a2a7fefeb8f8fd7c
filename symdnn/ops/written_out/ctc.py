"""The CTC loss as a loop over frames, for the derivatives that no op has."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.graph.variable import Variable
from symdnn.ops.array.create import arange, full_like
from symdnn.ops.array.join import join
from symdnn.ops.array.reduce import logsumexp
from symdnn.ops.array.sort import argsort
from symdnn.ops.array.take import take_along_axis
from symdnn.ops.array.view import specify_shape
from symdnn.ops.control.scan_builder import scan
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import cast, maximum
from symdnn.ops.elementwise.comparison import and_, neq, switch
from symdnn.ops.elementwise.math import logaddexp

#: The logarithm of a probability of 0: finite, so that no derivative is NaN.
_NEVER = -1e30


def ctc_costs(activations: Variable, labels: Variable, lengths: Variable) -> Variable:
    """The costs of :class:`~symdnn.ops.nn.ctc.CTCLoss`, by the forward variables alone.

    16-bit floats are computed in float32.
    """
    dtype = activations.type.dtype
    wide = cast(activations, "float32") if is_narrow_float(dtype) else activations
    if wide.type.shape[1] is None and labels.type.shape[0] is not None:
        wide = specify_shape(wide, (dims_of(wide)[0], labels.type.shape[0], dims_of(wide)[2]))
    steps, batch, _ = dims_of(wide)
    states, skip, last = _states(labels)
    frames, rows = arange(steps), arange(batch)
    at = (
        frames.dimshuffle(0, "x", "x"),
        rows.dimshuffle("x", 0, "x"),
        states.dimshuffle("x", 0, 1),
    )
    emit = maximum((wide - logsumexp(wide, axis=2, keepdims=True))[at], _NEVER)
    zero = np.asarray(0, emit.type.dtype)
    never = np.asarray(_NEVER, emit.type.dtype)
    # Before the first frame only a state before all others is reached: it leads to the first two.
    start = full_like(states, never, emit.type.dtype)
    place = arange(dims_of(states)[1])

    def step(frame: Variable, e: Variable, alpha: Variable) -> Variable:
        jump = switch(skip, _moved(alpha, 2, never), never)
        on = logaddexp(logaddexp(alpha, _moved(alpha, 1, never)), jump)
        reached = switch(frame > 0, on, switch(place < 2, zero, never)) + e
        return switch((frame < lengths).dimshuffle(0, "x"), reached, alpha)

    found, _ = scan(step, [frames, emit], [start], name="ctc written out")
    alpha = join(0, start.dimshuffle("x", 0, 1), found[-1:])[-1]
    from_end = last.dimshuffle(0, "x") - place
    is_end = and_(from_end >= 0, from_end <= 1)
    reached = logsumexp(switch(is_end, alpha, never), axis=1)
    empty = switch(last > 0, never, zero)  # no frame: only an empty labelling is possible
    total = switch(lengths > 0, reached, empty)
    possible = total > _NEVER / 2
    infinite = np.asarray(np.inf, emit.type.dtype)
    return cast(switch(possible, -switch(possible, total, zero), infinite), dtype)


def _states(labels: Variable) -> tuple[Variable, Variable, Variable]:
    """The class of each state (N, 2 L + 1), whether it is reached from two before, the last state.

    As :func:`symdnn.ops.nn.ctc.extended_labels`.
    """
    padding = cast(labels < 0, "int64")
    compact = take_along_axis(labels, argsort(padding, axis=1, kind="stable"), 1)
    number = (labels >= 0).sum(axis=1, dtype="int64")
    wanted = switch(compact < 0, 0, compact).astype("int64")
    batch, width = dims_of(wanted)
    pairs = join(2, wanted.zeros_like().dimshuffle(0, 1, "x"), wanted.dimshuffle(0, 1, "x"))
    blank = wanted.zeros_like().sum(axis=1, keepdims=True)
    states = join(1, pairs.reshape((batch, 2 * width)), blank)
    place = arange(2 * width + 1)
    before = join(1, blank, blank, states)[:, : 2 * width + 1]
    skip = and_(and_(place % 2 > 0, place > 1), neq(states, before))
    return states, skip, 2 * number


def _moved(v: Variable, by: int, fill: Any) -> Variable:
    """States shifted towards the end by ``by``; new entries are ``fill``."""
    new = full_like(v[:, :1], fill)
    return join(1, *[new] * by, v)[:, : dims_of(v)[1]]
