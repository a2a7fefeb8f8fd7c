"""``scan_checkpoints``: a loop whose gradient keeps the states of some steps only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from symdnn.errors import OptionError, TypeMismatch
from symdnn.graph.dims import ceil_div
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.create import arange, zeros
from symdnn.ops.array.join import join
from symdnn.ops.control.checkpoint import After, checkpoint_of_a_step
from symdnn.ops.control.scan_builder import OrderedUpdates, scan
from symdnn.ops.core.shape import as_dim, dims_of
from symdnn.ops.elementwise.arithmetic import maximum, minimum

__all__ = ["scan_checkpoints"]


def scan_checkpoints(
    fn: Callable[..., Any],
    sequences: Any = None,
    outputs_info: Any = None,
    non_sequences: Any = None,
    name: str | None = None,
    n_steps: Any = None,
    save_every_N: int | Sequence[int] = 10,
    padding: bool = True,
) -> tuple[Any, OrderedUpdates]:
    """:func:`scan` whose gradient keeps the states after every ``save_every_N`` steps.

    ``(outputs, updates)`` as Theano's: ``outputs`` has the values after each ``save_every_N`` steps
    and after the last one, and ``outputs_info`` only initial values of one step before (or None). A
    backward pass computes the steps in between again, part by part. So of T steps it keeps T / N
    states and those of N steps, and computes each step twice: some 2 sqrt(T) states with
    N = sqrt(T).

    Several numbers are levels, innermost first: with ``(10, 10)`` of 1000 steps the states after
    every 100 steps are kept, of one such part those after every 10, and of one of these parts all:
    30 states, and each step is computed three times (A. Griewank and A. Walther, "Algorithm 799:
    revolve", 2000, have the least number of steps for a number of states; levels of equal size come
    near to it in a loop of constant form).

    The last part may be shorter: then sequences are padded with zeros, on which ``fn`` must be
    finite; its results there are not used. With ``padding=False`` the number of steps must be a
    multiple of the product of all levels. Raises
    :class:`~symdnn.errors.OptionError` for numbers below 1 and for missing lengths.

    >>> import numpy as np
    >>> import symdnn
    >>> import symdnn.tensor as T
    >>> x = T.vector("x", dtype="float64")
    >>> h, _ = symdnn.scan_checkpoints(
    ...     lambda v, h: T.tanh(h + v), x, np.float64(0), save_every_N=2
    ... )
    >>> f = symdnn.function([x], [h, symdnn.grad(h[-1], x)])
    >>> [a.shape for a in f(np.ones(5))]
    [(3,), (5,)]
    """
    levels = [save_every_N] if isinstance(save_every_N, int) else list(save_every_N)
    if not levels or any(not isinstance(n, int) or n < 1 for n in levels):
        wanted = "a number of steps, 1 or more, or several"
        raise OptionError(f"scan_checkpoints: save_every_N={save_every_N!r}; wanted {wanted}")
    given = [as_variable(v) for v in _listed(sequences)]
    infos = _checked_infos(_listed(outputs_info))
    if n_steps is None and not given:
        raise OptionError("scan_checkpoints: wanted sequences or n_steps, got neither")
    steps: Any = as_dim(n_steps if n_steps is not None else _shortest(given))
    size = int(prod(levels))
    count = ceil_div(steps, size) * size
    padded = [_padded(v[:steps], count) if padding else v[:steps] for v in given]
    index = arange(count if padding else steps)
    others = [as_variable(v) for v in _listed(non_sequences)]
    made = _Levels(fn, infos, others, steps, name)
    states = [v for v in infos if v is not None]
    outputs, updates = made.run([index, *padded], states, levels)
    return (outputs[0] if len(outputs) == 1 else outputs), updates


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _checked_infos(infos: list[Any]) -> list[Variable | None]:
    for info in infos:
        if isinstance(info, dict) and set(info) - {"initial"} and info.get("taps", [-1]) != [-1]:
            wanted = "an initial value, or None: no other taps than the step before"
            raise TypeMismatch("scan_checkpoints", wanted, info)
    plain = [i.get("initial") if isinstance(i, dict) else i for i in infos]
    return [None if v is None else as_variable(v) for v in plain]


def _shortest(given: Sequence[Variable]) -> Any:
    least = dims_of(given[0])[0]
    for v in given[1:]:
        least = minimum(least, dims_of(v)[0])
    return least


def _padded(v: Variable, count: Any) -> Variable:
    sizes = dims_of(v)
    return join(0, v, zeros((count - sizes[0], *sizes[1:]), v.type.dtype))


@dataclass
class _Levels:
    """A step function, its initial states, and loops of loops over it."""

    fn: Callable[..., Any]
    infos: Sequence[Variable | None]
    others: Sequence[Variable]
    steps: Any
    name: str | None

    def run(
        self, given: Sequence[Variable], states: Sequence[Variable], levels: Sequence[int]
    ) -> tuple[list[Variable], OrderedUpdates]:
        """The outputs after each part of the last level; ``given`` begins with the index."""
        if not levels:
            step = lambda at, *args: self.fn(*args)  # noqa: E731
            return self._scan(step, given, states, self.others)
        size = prod(levels)
        parts = [v.reshape((dims_of(v)[0] // size, size, *dims_of(v)[1:])) for v in given]

        run = checkpoint_of_a_step(self.run)

        def part(*args: Any) -> tuple[list[Variable], OrderedUpdates]:
            inside = args[len(parts) :]
            # What follows from the sequences alone would be computed for all parts at once.
            values = [After()(v, *inside) for v in args[: len(parts)]]
            outs, updates = run(values, inside, levels[:-1])
            # Behind the last step there is padding.
            real: Any = minimum(self.steps - values[0][0], size)
            last = maximum(ceil_div(real, prod(levels[:-1])), 1) - 1
            return [o[last] for o in outs], updates

        return self._scan(part, parts, states, [])

    def _scan(
        self, step: Any, given: Sequence[Variable], states: Sequence[Variable],
        others: Sequence[Variable],
    ) -> tuple[list[Variable], OrderedUpdates]:  # fmt: skip
        rest = iter(states)
        infos = [None if v is None else next(rest) for v in self.infos]
        return scan(step, list(given), infos, list(others), name=self.name, return_list=True)
