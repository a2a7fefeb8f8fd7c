"""L-BFGS: a class that calls a compiled function of loss and gradient as often as it needs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from symdnn.autodiff import grad
from symdnn.compile.function import function
from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Shared, Variable
from symdnn.nn.modules.module import state_updates
from symdnn.nn.optimizers.groups import flat_parameters
from symdnn.ops.array.join import join

Array = np.ndarray[Any, Any]

#: Of the strong Wolfe conditions: the share of the expected decrease that a step must have, and
#: that of the slope that it may leave (Nocedal and Wright 2006, chapter 3).
_DECREASE, _SLOPE_LEFT = 1e-4, 0.9
#: Evaluations at most of one line search.
_SEARCHES = 25
#: A pair of steps and differences of gradients with a smaller product is not remembered.
_LEAST_CURVATURE = 1e-10


@dataclass(frozen=True)
class _Point:
    """A step of length ``t`` along a direction: loss, gradient, and the slope along it there."""

    t: float
    loss: float
    grad: Array
    slope: float


class LBFGS:
    """The quasi-Newton method of limited memory (Nocedal 1980; Liu and Nocedal 1989).

    ``loss`` is a scalar expression of ``inputs`` and of ``params``, a module or a list of shared
    variables of one dtype. ``step(*arrays)`` takes at most ``max_iter`` iterations on these arrays,
    with at most ``max_eval`` (``max_iter * 5 // 4``) evaluations of the loss, and returns the loss
    before them. It ends early where no element of the gradient is beyond ``tolerance_grad``, or
    step or loss change by less than ``tolerance_change``. ``history_size`` pairs of vectors are
    remembered, also from call to call. ``line_search_fn="strong_wolfe"`` searches the length of
    each step; None takes ``lr``. Arguments and results are those of ``torch.optim.LBFGS``.

    Unlike the functions of ``nn.optim`` it is no list of updates: one step evaluates loss and
    gradient an unknown number of times. That is a compiled function; the vectors of the method are
    on the host. Statistics of batch normalisation move with each evaluation. It is for all data at
    once, or large batches.

    >>> import numpy as np, symdnn, symdnn.tensor as T
    >>> w = symdnn.shared(np.array([-1.5, 2.0]), name="w")
    >>> loss = (1 - w[0]) ** 2 + 100 * (w[1] - w[0] ** 2) ** 2
    >>> optimiser = LBFGS(loss, [w], max_iter=100, line_search_fn="strong_wolfe")
    >>> first = optimiser.step()
    >>> w.get_value().round(4)
    array([1., 1.])
    """

    def __init__(
        self,
        loss: Variable,
        params: Any,
        inputs: Sequence[Variable] = (),
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        if not isinstance(loss.type, TensorType) or loss.type.ndim or not loss.type.is_float:
            raise TypeMismatch("LBFGS: loss", "a float scalar", loss.type)
        if line_search_fn not in (None, "strong_wolfe"):
            raise InputError(
                f"LBFGS: line_search_fn={line_search_fn!r}; wanted None or 'strong_wolfe'"
            )
        if not lr > 0 or max_iter < 1 or history_size < 1:
            raise InputError(
                f"LBFGS: lr={lr}, max_iter={max_iter}, history_size={history_size}; wanted lr "
                "above 0, and 1 or more"
            )
        found = flat_parameters("LBFGS", params, {}, {})
        self._params: list[Shared] = [p.variable for p in found]
        dtypes = {p.type.dtype for p in self._params}
        if len(dtypes) > 1 or not dtypes <= {"float32", "float64"}:
            raise TypeMismatch("LBFGS: params", "float32 or float64, all alike", sorted(dtypes))
        self.lr, self.max_iter = lr, max_iter
        self.max_eval = max_iter * 5 // 4 if max_eval is None else max_eval
        self.tolerance_grad, self.tolerance_change = tolerance_grad, tolerance_change
        self.line_search_fn = line_search_fn
        grads = grad(loss, self._params, disconnected_inputs="ignore")
        self._evaluate = function(
            list(inputs), [loss, join(0, *(g.flatten() for g in grads))],
            updates=state_updates(loss), name="LBFGS",
        )  # fmt: skip
        #: Steps and differences of gradients, the last ones.
        self._pairs: deque[tuple[Array, Array]] = deque(maxlen=history_size)
        self._direction: Array | None = None
        self._before: Array | None = None
        self._length = lr
        self.iterations = 0

    # -- parameters as one vector -----------------------------------------------------------------

    def _vector(self) -> Array:
        return np.concatenate([np.ravel(p.get_value()) for p in self._params])

    def _set(self, vector: Array) -> None:
        at = 0
        for p in self._params:
            shape = p.storage.shape
            size = math.prod(shape)
            p.set_value(vector[at : at + size].reshape(shape))
            at += size

    # -- a step -----------------------------------------------------------------------------------

    def step(self, *arrays: object) -> float:
        """Iterations on these values of ``inputs``; the loss before them."""
        evaluations = 0

        def at(vector: Array | None) -> tuple[float, Array]:
            nonlocal evaluations
            evaluations += 1
            if vector is not None:
                self._set(vector)
            value, gradient = self._evaluate(*arrays)
            return float(value), np.asarray(gradient)

        loss, slopes = at(None)
        first = loss
        for k in range(1, self.max_iter + 1):
            if _largest(slopes) <= self.tolerance_grad:
                break
            direction = self._next_direction(slopes)
            slope = float(slopes @ direction)
            if slope > -self.tolerance_change:
                break
            length, before = self._length, loss
            start, last = self._vector(), k == self.max_iter
            if self.line_search_fn is not None:
                point = _strong_wolfe(
                    partial(_along, at, start, direction), _Point(0.0, loss, slopes, slope),
                    direction, length, self.tolerance_change,
                )  # fmt: skip
                length, loss, slopes = point.t, point.loss, point.grad
                self._set(start + start.dtype.type(length) * direction)
            else:
                self._set(start + start.dtype.type(length) * direction)
                if not last:
                    loss, slopes = at(None)
            self._length = length
            if last or evaluations >= self.max_eval or _largest(slopes) <= self.tolerance_grad:
                break
            if _largest(direction) * length <= self.tolerance_change:
                break
            if abs(loss - before) < self.tolerance_change:
                break
        return first

    def _next_direction(self, grad: Array) -> Array:
        """Where to go, with the length that is tried first in :attr:`_length`."""
        self.iterations += 1
        if self._direction is None or self._before is None:
            found = -grad
            self._length = min(1.0, 1.0 / float(np.abs(grad).sum())) * self.lr
        else:
            difference, moved = grad - self._before, self._direction * grad.dtype.type(self._length)
            if float(difference @ moved) > _LEAST_CURVATURE:
                self._pairs.append((moved, difference))
            found = -_by_pairs(self._pairs, grad)
            self._length = self.lr
        self._direction, self._before = found, grad
        return found

    # -- checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Array]:
        """What the next step depends on, besides the parameters, as arrays by name."""
        found: dict[str, Any] = {"length": self._length, "iterations": self.iterations}
        if self._direction is not None and self._before is not None:
            found |= {"direction": self._direction.copy(), "before": self._before.copy()}
        if self._pairs:
            found |= {"steps": np.stack([s for s, _ in self._pairs])}
            found |= {"differences": np.stack([y for _, y in self._pairs])}
        return {name: np.asarray(value) for name, value in found.items()}

    def load_state_dict(self, values: Mapping[str, Any]) -> LBFGS:
        """Set the values of :meth:`state_dict`; returns the optimiser."""
        size = sum(math.prod(p.storage.shape) for p in self._params)
        wrong = [n for n in values if np.ndim(values[n]) and np.shape(values[n])[-1] != size]
        if wrong or not {"length", "iterations"} <= set(values):
            what = ", ".join(wrong) or "length, iterations"
            raise InputError(
                f"LBFGS.load_state_dict: {what}: wanted the state of an LBFGS of {size} "
                "parameters. Nothing was changed"
            )
        self._length, self.iterations = float(values["length"]), int(values["iterations"])
        self._direction, self._before = values.get("direction"), values.get("before")
        self._pairs.clear()
        self._pairs.extend(zip(values.get("steps", ()), values.get("differences", ())))
        return self


def _along(
    at: Callable[[Array], tuple[float, Array]], start: Array, direction: Array, t: float
) -> tuple[float, Array]:
    """Loss and gradient at a step of length ``t``."""
    return at(start + start.dtype.type(t) * direction)


def _largest(vector: Array) -> float:
    return float(np.abs(vector).max(initial=0.0))


def _by_pairs(pairs: Sequence[tuple[Array, Array]] | deque[tuple[Array, Array]], g: Array) -> Array:
    """The approximate inverse Hessian times ``g``: one loop back and one forth over the pairs."""
    if not pairs:
        return g
    found, shares = g.copy(), []
    for s, y in reversed(pairs):
        share = (s @ found) / (y @ s)
        found -= share * y
        shares.append(share)
    s, y = pairs[-1]
    found *= (y @ s) / (y @ y)
    for (s, y), share in zip(pairs, reversed(shares)):
        found += s * (share - (y @ found) / (y @ s))
    return found


# -- the line search -------------------------------------------------------------------------------


def _strong_wolfe(
    at: Callable[[float], tuple[float, Array]], start: _Point, direction: Array, t: float,
    tolerance: float,
) -> _Point:  # fmt: skip
    """A step that decreases loss and slope enough, from ``t`` on.

    First steps grow until two of them have a minimum between them; then that interval shrinks. New
    lengths are minima of the cubic through both ends (Nocedal and Wright 2006, algorithms 3.5 and
    3.6).
    """

    def point(t: float) -> _Point:
        loss, grad = at(t)
        return _Point(t, loss, grad, float(grad @ direction))

    def falls_short(p: _Point) -> bool:
        return p.loss > start.loss + _DECREASE * p.t * start.slope

    def is_flat(p: _Point) -> bool:
        return abs(p.slope) <= -_SLOPE_LEFT * start.slope

    before, new, searches = start, point(t), 0
    while searches < _SEARCHES:
        if falls_short(new) or (searches > 1 and new.loss >= before.loss):
            break
        if is_flat(new):
            return new
        if new.slope >= 0:
            break
        bounds = (new.t + 0.01 * (new.t - before.t), new.t * 10)
        before, new = new, point(_cubic_minimum(before, new, bounds))
        searches += 1
    else:
        before = start
    low, high = (before, new) if before.loss <= new.loss else (new, before)
    slow, width = False, _largest(direction)
    while searches < _SEARCHES and abs(high.t - low.t) * width >= tolerance:
        left, right = sorted((low, high), key=lambda p: p.t)
        t = _cubic_minimum(left, right, (left.t, right.t))
        near = 0.1 * (right.t - left.t)
        if min(right.t - t, t - left.t) < near:  # too near to an end, at most once in a row
            if slow or not left.t < t < right.t:
                t = right.t - near if abs(t - right.t) < abs(t - left.t) else left.t + near
                slow = False
            else:
                slow = True
        else:
            slow = False
        new = point(t)
        searches += 1
        if falls_short(new) or new.loss >= low.loss:
            low, high = (low, new) if low.loss <= new.loss else (new, low)
            continue
        if is_flat(new):
            return new
        if new.slope * (high.t - low.t) >= 0:
            high = low
        low = new
    return low


def _cubic_minimum(a: _Point, b: _Point, bounds: tuple[float, float]) -> float:
    """Where the cubic with these values and slopes is least, within the bounds."""
    low, high = bounds
    if a.t > b.t:
        a, b = b, a
    if a.t == b.t:
        return (low + high) / 2
    bend = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = bend**2 - a.slope * b.slope
    if square < 0 or math.isnan(square):
        return (low + high) / 2
    root = math.sqrt(square)
    below = b.slope - a.slope + 2 * root
    if below == 0:
        return (low + high) / 2
    return min(max(b.t - (b.t - a.t) * ((b.slope + root - bend) / below), low), high)
