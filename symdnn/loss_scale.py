"""Scaling of the loss, so that gradients in float16 do not vanish (for ``amp=fp16``).

float16 holds nothing below 6e-8, and many gradients are smaller. So gradients are computed of the
loss times a power of two, and divided by it in float32. If the factor is too large they are
infinite: that step is skipped, and the factor is halved. After many good steps it is doubled.
(Micikevicius et al. 2018. bfloat16 has the range of float32 and needs none of this.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from symdnn.autodiff import grad
from symdnn.compile.shared import shared
from symdnn.compile.updates import as_pairs
from symdnn.config import config
from symdnn.errors import TypeMismatch
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Shared, Variable
from symdnn.ops.array.reduce import max as largest
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.arithmetic import cast, maximum, minimum
from symdnn.ops.elementwise.comparison import and_, ge, invert, isfinite, switch
from symdnn.options import as_number

__all__ = ["LossScale"]

_START, _LEAST, _MOST = 2.0**15, 1.0, 2.0**24


class LossScale:
    """The factor of one training: gradients by :meth:`grad`, updates by :meth:`updates`.

    ``initial`` is the factor at the start (None: that of the flag ``amp_loss_scale``, where 0 is
    32768); it is multiplied by ``growth`` after ``interval`` steps without an infinity, and by
    ``backoff`` at each infinity or NaN. ``fixed`` keeps it as it is; None: where the flag gives a
    number. Factors should be powers of two: then scaling rounds nothing. ::

        scale = symdnn.LossScale()
        grads = scale.grad(loss, parameters)
        steps = [(w, w - 0.1 * g) for w, g in zip(parameters, grads)]
        train = symdnn.function([x, t], loss, updates=scale.updates(steps, grads))
    """

    def __init__(
        self,
        initial: float | None = None,
        *,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2000,
        fixed: bool | None = None,
    ) -> None:
        given = float(config.amp_loss_scale)
        self.fixed = (initial is None and given > 0) if fixed is None else fixed
        start = given or _START if initial is None else as_number("LossScale: initial", initial)
        if start <= 0 or growth < 1 or not 0 < backoff <= 1 or interval < 1:
            raise ValueError(
                f"LossScale: initial={start}, growth={growth}, backoff={backoff}, "
                f"interval={interval}; wanted initial > 0, growth >= 1, 0 < backoff <= 1, "
                "interval >= 1"
            )
        self.growth, self.backoff, self.interval = growth, backoff, interval
        #: The factor, a float32 scalar.
        self.value: Shared = shared(np.float32(start), name="loss_scale")
        # A float: it lives where the factor does, so that no step waits for the host.
        self._good: Shared = shared(np.float32(0), name="loss_scale_good_steps")

    @property
    def state(self) -> dict[str, Shared]:
        """State that lasts between steps, by name; save it with the training's state."""
        return {"loss_scale": self.value, "loss_scale_good_steps": self._good}

    def grad(self, loss: Variable, wrt: Any, **options: Any) -> Any:
        """``symdnn.grad(loss, wrt, **options)``, computed of the scaled loss.

        The results are the gradients of ``loss`` itself.
        """
        if not isinstance(loss.type, TensorType) or loss.type.ndim != 0:
            raise TypeMismatch("LossScale.grad", "a scalar loss", loss.type)
        start = cast(self.value, loss.type.dtype)
        found = grad(None, wrt, known_grads={loss: start}, **options)
        if isinstance(found, Variable):
            return self._unscaled(found)
        return type(found)([self._unscaled(g) for g in found])

    def _unscaled(self, g: Variable | None) -> Variable | None:
        return g if g is None else g * cast(1 / self.value, g.type.dtype)

    def updates(
        self, updates: Any, grads: Iterable[Variable | None],
        everywhere: Callable[[Variable], Variable] | None = None,
    ) -> list[tuple[Shared, Any]]:  # fmt: skip
        """``updates`` (a mapping or pairs) that do nothing if one of ``grads`` is infinite or NaN,
        and the updates of the factor.

        If each rank has a part of the gradients, ``everywhere`` maps a bool scalar to whether it is
        true on all ranks.
        """
        good = self.finite([g for g in grads if g is not None])
        good = good if everywhere is None else everywhere(good)
        pairs: list[tuple[Shared, Any]] = [
            (old, switch(_wide(good, old), new, old)) for old, new in as_pairs(updates, "updates")
        ]
        return pairs if self.fixed else [*pairs, *self._next(good).items()]

    def finite(self, grads: Sequence[Variable]) -> Variable:
        """Whether all elements are finite, a bool scalar."""
        if not grads:
            raise ValueError("LossScale.finite: wanted at least one gradient")
        good = [isfinite(largest(absolute(g))) for g in grads]
        total = good[0]
        for each in good[1:]:
            total = and_(total, each)
        return total

    def _next(self, good: Variable) -> Mapping[Shared, Any]:
        """The factor and the count of good steps after this one."""
        count = self._good + np.float32(1)
        enough = ge(count, np.float32(self.interval))
        larger = minimum(self.value * np.float32(self.growth), np.float32(_MOST))
        smaller = maximum(self.value * np.float32(self.backoff), np.float32(_LEAST))
        zero = np.float32(0)
        return {
            self.value: switch(good, switch(enough, larger, self.value), smaller),
            self._good: switch(and_(good, invert(enough)), count, zero),
        }


def _wide(good: Variable, like: Variable) -> Variable:
    """A scalar with as many dimensions as ``like``."""
    return good.dimshuffle(["x"] * like.type.ndim) if like.type.ndim else good
