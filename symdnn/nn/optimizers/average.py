"""The average of the parameters over a training, which is often better than their last values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from symdnn.compile.shared import shared
from symdnn.compile.updates import as_pairs
from symdnn.errors import InputError
from symdnn.graph.type import numpy_dtype
from symdnn.graph.variable import Shared, Variable
from symdnn.nn.modules.checked import checked
from symdnn.nn.modules.module import Module
from symdnn.nn.optimizers.base import Updates
from symdnn.nn.optimizers.groups import flat_parameters
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.elementwise.arithmetic import cast, minimum

Array = np.ndarray[Any, Any]


class Average:
    """The averages of :func:`ema`; :attr:`updates` are those of the optimiser and of them."""

    def __init__(
        self, params: Any, averages: Mapping[str, tuple[Shared, Shared]], updates: Updates
    ):
        self._module = params if isinstance(params, Module) else None
        self._averages = dict(averages)
        self.updates = updates

    def state_dict(self) -> dict[str, Array]:
        """The averaged values by the parameters' names; a module's buffers as they are."""
        found = {} if self._module is None else self._module.state_dict()
        for name, (p, average) in self._averages.items():
            found[name] = average.get_value().astype(p.type.numpy)
        return found

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """Within it the parameters have the averaged values; then their own again, bit for bit."""
        before = {p: p.get_value() for p, _ in self._averages.values()}
        for p, average in self._averages.values():
            p.set_value(average.get_value().astype(p.type.numpy))
        try:
            yield
        finally:
            for p, value in before.items():
                p.set_value(value)


@checked
def ema(
    updates: Any, params: Any, decay: float = 0.999, *, warm_up: bool = False, name: str = "ema"
) -> Average:
    """Averages of ``params``, ``decay * average + (1 - decay) * new`` at each call.

    ``updates`` are an optimiser's; ``params`` a module or shared variables. The averages begin at
    the values of now. ``warm_up`` takes ``(1 + t) / (10 + t)`` in step t where that is less than
    ``decay``, so that the first values are soon forgotten. ::

        average = nn.optim.ema(nn.optim.adam(loss, net), net)
        train = symdnn.function([x, t], loss, updates=average.updates)
        with average.swapped():
            test(...)
    """
    if not 0 <= decay < 1:
        raise ValueError(f"{name}: decay={decay}; wanted from 0 to less than 1")
    given = updates if isinstance(updates, Updates) else Updates(as_pairs(updates, "updates"))
    news = dict(given)
    named = flat_parameters(name, params, {}, {})
    # The optimiser has warned of parameters that the loss does not use, which stay the same.
    found = [p for p in named if p.variable not in given.unused]
    if missing := [p.name for p in found if p.variable not in news]:
        raise InputError(f"{name}: the updates change no {', '.join(missing)}")
    state: dict[str, Shared] = {}
    pairs: list[tuple[Shared, Variable]] = []
    rate: Any = np.float32(decay)
    if warm_up:
        t = state[f"{name}.step"] = shared(np.float32(0), name=f"{name}.step")
        rate = minimum(rate, (t + np.float32(1)) / (t + np.float32(10)))
        pairs.append((t, t + np.float32(1)))
    averages: dict[str, tuple[Shared, Shared]] = {}
    for p in found:
        full = f"{name}.{p.name}"
        average = state[full] = _beside(p.variable, full)
        averages[p.name] = p.variable, average
        pairs.append((average, _mixed(average, news[p.variable], decay, rate if warm_up else None)))
    return Average(params, averages, given + Updates(pairs, state))


def _beside(p: Shared, name: str) -> Shared:
    """A variable with the value of ``p``, of 16-bit ones in float32."""
    dtype = work_dtype(p.type.dtype)
    return shared(p.get_value().astype(numpy_dtype(dtype)), name=name, shape=p.type.shape)


def _mixed(average: Shared, new: Variable, decay: float, rate: Variable | None) -> Any:
    dtype = average.type.dtype
    numpy = numpy_dtype(dtype)
    new = cast(new, dtype)
    if rate is None:
        return np.asarray(decay, numpy) * average + np.asarray(1 - decay, numpy) * new
    return average + cast(np.float32(1) - rate, dtype) * (new - average)
