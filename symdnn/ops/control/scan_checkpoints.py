"""``scan_checkpoints``: a loop whose gradient stores the states of some steps only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from symdnn.errors import NdimMismatch, OptionError, TypeMismatch
from symdnn.graph.dims import ceil_div
from symdnn.graph.traverse import clone_graph
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.create import arange, zeros
from symdnn.ops.array.join import join
from symdnn.ops.control.checkpoint import After, checkpoint_of_a_step, stored_in_a_step
from symdnn.ops.control.scan_binomial import binomial_loop, loop_of
from symdnn.ops.control.scan_builder import OrderedUpdates, scan
from symdnn.ops.core.shape import as_dim, dims_of
from symdnn.ops.elementwise.arithmetic import maximum, minimum
from symdnn.options import as_function


def scan_checkpoints(
    fn: Callable[..., Any],
    sequences: Any = None,
    outputs_info: Any = None,
    non_sequences: Any = None,
    name: str | None = None,
    n_steps: Any = None,
    save_every_N: int | Sequence[int] = 10,
    padding: bool = True,
    snapshots: int | None = None,
    keep_last: int = 0,
) -> tuple[Any, OrderedUpdates]:
    """:func:`scan` whose gradient stores the states after every ``save_every_N`` steps.

    It returns ``(outputs, updates)`` as Theano's function does: ``outputs`` has the values after
    each ``save_every_N`` steps and after the last one. ``outputs_info`` has initial values of one
    step before (or None). A backward pass recomputes the steps in between, segment by segment. Of T
    steps it stores T / N states and those of N steps, and computes each step twice: about 2 sqrt(T)
    states with N = sqrt(T).

    Several numbers are levels, innermost first. With ``(10, 10)`` and 1000 steps it stores the
    states after every 100 steps, within one such segment those after every 10, and within one of
    these all: 30 states, and each step is computed three times.

    With ``snapshots`` this many states are stored, whatever the number of steps. Segments of
    ``save_every_N`` steps (1: each step) are visited in reverse order by a binomial schedule, which
    recomputes as few steps as possible (A. Griewank and A. Walther, "Algorithm 799: revolve",
    2000). Then ``outputs`` has only the values after the last step.

    The ``keep_last`` last segments store all states and are not computed again (not the first one;
    for one level, and steps without updates): memory that is left saves time.

    The last part may be shorter: then sequences are padded with zeros, on which ``fn`` must be
    finite; its results there are not used. With ``padding=False`` the number of steps must be a
    multiple of the product of all levels. Raises
    :class:`~symdnn.errors.OptionError` for numbers below 1 and for missing lengths.

    >>> import numpy as np
    >>> import symdnn
    >>> import symdnn.tensor as T
    >>> x = T.vector("x", dtype="float64")
    >>> step = lambda v, h: T.tanh(h + v)
    >>> h, _ = symdnn.scan_checkpoints(step, x, np.float64(0), save_every_N=2)
    >>> f = symdnn.function([x], [h, symdnn.grad(h[-1], x)])
    >>> [a.shape for a in f(np.ones(5))]
    [(3,), (5,)]
    """
    as_function("scan_checkpoints: fn", fn, "the variables of one step")
    levels = _checked_levels(save_every_N, snapshots, keep_last)
    given, infos = list(map(as_variable, _listed(sequences))), _checked_infos(_listed(outputs_info))
    if n_steps is None and not given:
        raise OptionError("scan_checkpoints: wanted sequences or n_steps, got neither")
    steps: Any = as_dim(n_steps if n_steps is not None else _shortest(given))
    size = int(prod(levels))
    count = ceil_div(steps, size) * size
    padded = [_padded(v[:steps], count) if padding else v[:steps] for v in given]
    made = _Levels(fn, infos, [as_variable(v) for v in _listed(non_sequences)], steps, name)
    length = count if padding else steps
    outputs, updates = made.all_steps(padded, levels, snapshots, length, keep_last)
    return (outputs[0] if len(outputs) == 1 else outputs), updates


def _checked_levels(
    save_every_N: int | Sequence[int], snapshots: int | None, keep_last: int
) -> list[int]:
    levels = [save_every_N] if isinstance(save_every_N, int) else list(save_every_N)
    if not levels or any(not isinstance(n, int) or n < 1 for n in levels):
        wanted = "a number of steps, 1 or more, or several"
        raise OptionError(f"scan_checkpoints: save_every_N={save_every_N!r}; wanted {wanted}")
    if snapshots is not None and (not isinstance(snapshots, int) or snapshots < 1):
        wanted = "a number of states, 1 or more, or None"
        raise OptionError(f"scan_checkpoints: snapshots={snapshots!r}; wanted {wanted}")
    if not isinstance(keep_last, int) or keep_last < 0:
        wanted = "a number of segments, 0 or more"
        raise OptionError(f"scan_checkpoints: keep_last={keep_last!r}; wanted {wanted}")
    if keep_last and (len(levels) > 1 or snapshots is not None):
        wanted = "one number in save_every_N, and no snapshots"
        raise OptionError(f"scan_checkpoints: keep_last={keep_last}; with it, wanted {wanted}")
    return levels


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
    for v in given:
        if not v.type.ndim:
            raise NdimMismatch("scan_checkpoints", "sequences of 1 dimension or more", v.type)
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

    def all_steps(
        self, given: Sequence[Variable], levels: Sequence[int], snapshots: int | None, length: Any,
        keep_last: int,
    ) -> tuple[list[Variable], OrderedUpdates]:  # fmt: skip
        """The user's outputs and updates, of sequences of this length."""
        if keep_last:
            return self.keeping_last(given, levels[0], keep_last, length)
        states = [v for v in self.infos if v is not None]
        if snapshots is None:
            return self.run(given, states, levels, self.steps, length)
        return self.run_binomial(given, states, [n for n in levels if n > 1], snapshots, length)

    def keeping_last(
        self, given: Sequence[Variable], size: int, keep_last: int, length: Any
    ) -> tuple[list[Variable], OrderedUpdates]:
        """The outputs after each segment, of which the last ones store the states of all steps."""
        states = [v for v in self.infos if v is not None]
        part, parts = self._in_parts(given, [size], self.steps, length)
        first: Any = maximum(length // size - keep_last, 1)
        begun, updates = self._scan(part, [p[:first] for p in parts], states, [])
        if updates:
            raise OptionError(f"scan_checkpoints: keep_last={keep_last}; steps with updates have 0")

        def stored(start: Variable, *args: Variable) -> list[Variable]:
            inside = args[len(given) :]
            entries = [After()(v, *inside) for v in args[: len(given)]]
            real: Any = minimum(self.steps - start, size)
            outs, _ = self.run(entries, inside, [], real, size)
            node = loop_of(outs)
            assert node is not None
            histories = [h for h, _ in node.op.places() if h is not None]
            raw = [node.outputs[i] for i in histories]
            raw += node.outputs[node.op.first_collected :]
            kept = stored_in_a_step([*entries, *inside], raw)
            memo = clone_graph(outs, dict(zip(raw, kept, strict=True)))
            return [*(memo[o][real - 1] for o in outs), *kept]

        infos = [None if v is None else o[-1] for o, v in zip(begun, self.infos, strict=True)]
        infos += [None] * len(infos)  # all values of the steps
        ended, _ = scan(stored, [p[first:] for p in parts], infos, name=self.name)
        return [join(0, a, b) for a, b in zip(begun, ended)], updates

    def run(
        self, given: Sequence[Variable], states: Sequence[Variable], levels: Sequence[int],
        steps: Any, length: Any,
    ) -> tuple[list[Variable], OrderedUpdates]:  # fmt: skip
        """The outputs after each segment of the last level.

        Sequences have this length; behind ``steps`` of them there is padding.
        """
        if not levels:
            return self._scan(self._step, [arange(length), *given], states, self.others)
        part, parts = self._in_parts(given, levels, steps, length)
        return self._scan(part, parts, states, [])

    def run_binomial(
        self, given: Sequence[Variable], states: Sequence[Variable], levels: Sequence[int],
        snapshots: int, length: Any,
    ) -> tuple[list[Variable], OrderedUpdates]:  # fmt: skip
        """The outputs after the last segment, with this many stored states."""
        if levels:
            part, parts = self._in_parts(given, levels, self.steps, length)
            outputs, updates = self._scan(part, parts, states, [])
        else:

            def step(at: Variable, *args: Variable) -> Any:
                entries, rest = args[: len(given)], args[len(given) :]
                inside = rest[: len(states)]
                # A product that reads only the entries would be hoisted and computed for all steps.
                return self.fn(*(After()(v, *inside) if inside else v for v in entries), *rest)

            outputs, updates = self._scan(step, [arange(length), *given], states, self.others)
        node = loop_of([*outputs, *updates.values()])
        if node is None or node.op.until or not node.op.states:
            wanted = "a loop of a known number of steps, with a state"
            raise TypeMismatch("scan_checkpoints: snapshots", wanted, node and node.op)
        last = binomial_loop(node.op, node.inputs, snapshots)
        count = sum(v is not None for v in self.infos)
        of_states, of_shared = iter(last[:count]), last[count : len(node.op.states)]
        collected = iter(last[len(node.op.states) :])
        infos = self.infos or [None] * len(outputs)
        found = [next(collected if v is None else of_states) for v in infos]
        new = OrderedUpdates(zip(updates, of_shared, strict=True))
        return [v.dimshuffle("x", *range(v.type.ndim)) for v in found], new

    def _step(self, at: Variable, *args: Variable) -> Any:
        return self.fn(*args)

    def _in_parts(
        self, given: Sequence[Variable], levels: Sequence[int], steps: Any, length: Any
    ) -> tuple[Callable[..., Any], list[Variable]]:
        """A step of the last level, and its sequences: where a segment starts, and its entries."""
        size = prod(levels)
        parts = [v.reshape((dims_of(v)[0] // size, size, *dims_of(v)[1:])) for v in given]

        run = checkpoint_of_a_step(self.run)

        def part(start: Variable, *args: Any) -> tuple[list[Variable], OrderedUpdates]:
            inside = args[len(parts) :]
            real: Any = minimum(steps - start, size)
            # Values that depend only on the sequences would be hoisted and computed for all
            # segments.
            values = [After()(v, *inside) for v in args[: len(parts)]]
            outs, updates = run(values, inside, levels[:-1], real, size)
            last = maximum(ceil_div(real, prod(levels[:-1])), 1) - 1
            return [o[last] for o in outs], updates

        return part, [arange(0, length, size), *parts]

    def _scan(
        self, step: Any, given: Sequence[Variable], states: Sequence[Variable],
        others: Sequence[Variable],
    ) -> tuple[list[Variable], OrderedUpdates]:  # fmt: skip
        rest = iter(states)
        infos = [None if v is None else next(rest) for v in self.infos]
        return scan(step, list(given), infos, list(others), name=self.name, return_list=True)
