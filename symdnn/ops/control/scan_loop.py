"""Runs the loop of a scan, for any function of a step and any arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from symdnn.errors import ShapeMismatch
from symdnn.graph.type import numpy_dtype
from symdnn.graph.typing import Array, DtypeLike

if TYPE_CHECKING:
    from symdnn.ops.control.scan import Carry, Scan

#: A step: inner inputs, and for arrays with ``ahead`` the memory for states and collected values
#: (None: any) -> inner outputs.
StepFunction = Callable[[list[Any], list[Any]], Sequence[Any]]
#: Runs many steps in one call. It takes the most steps, functions that return the arrays of all
#: inner inputs and whether they have an entry for each step, and functions for the inner outputs,
#: which have. Returns the number of steps that ran.
AtOnce = Callable[[int, Callable[[], list[tuple[Any, bool]]], Callable[[], list[Any]]], int]
#: The most steps of one call: after it Python looks for Ctrl-C and for idle processors.
_AT_ONCE = 1000
#: Bytes of the buffer, in a call of many steps, for a state without a history.
_AT_ONCE_BYTES = 1 << 18
#: Bytes of the largest state for which a call has two steps or more.
MOST_BYTES_OF_STEPS_AT_ONCE = _AT_ONCE_BYTES // 2
#: Copies that make entries contiguous pay from this many steps on, up to this size.
_MIN_STEPS_TO_COPY, _MAX_BYTES_TO_COPY = 8, 1 << 26
#: The number of steps for which a loop of unknown length allocates memory at first.
_FIRST_CAPACITY_STEPS = 64


class LoopArrays(Protocol):
    """The arrays of a device: ``x[i, ...]`` and ``x[:n]`` are views, and they have ``shape``.

    With ``ahead`` a step gets the memory of its stored results and may write them there.
    """

    ahead: bool

    def empty(self, shape: tuple[int, ...], dtype: DtypeLike) -> Any:
        """A new array; ``dtype`` is the ``dtype`` of another, or of a type."""

    def put(self, target: Any, value: Any) -> None:
        """Write ``value`` into the view ``target``, unless it was made there."""

    def fresh(self, value: Any) -> Any:
        """A contiguous copy."""


class NumpyArrays:
    """NumPy's arrays as :class:`LoopArrays`."""

    ahead = False

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A new array."""
        return np.empty(shape, dtype if isinstance(dtype, np.dtype) else numpy_dtype(dtype))

    def put(self, target: Array, value: Array) -> None:
        """Write into a view."""
        target[...] = value

    def fresh(self, value: Array) -> Array:
        """A contiguous copy."""
        return np.array(value, order="C")


NUMPY = NumpyArrays()


def run_loop(
    op: Scan, inputs: Sequence[Array], step: StepFunction, arrays: LoopArrays = NUMPY,
    at_once: AtOnce | None = None, written: Collection[int] = (),
) -> list[Array]:  # fmt: skip
    """Outputs of ``op`` on arrays. Entries of sequences and values of states are views.

    A step may write the memory of the states ``written`` for their next values.
    """
    given = op.split(inputs)
    n = int(given.steps)
    op.check_lengths(n, op.split([getattr(a, "shape", ()) for a in inputs]))
    room = min(n, _FIRST_CAPACITY_STEPS) if op.until else n
    states = [
        (_History if c.history else _Recent)(op, i, c, initial, room, arrays)
        for i, (c, initial) in enumerate(zip(op.states, given.initials, strict=True))
    ]
    for state in map(states.__getitem__, written):
        assert isinstance(state, _Recent), "a history is kept"
        state.own()
    collected = [_Collected(op, i, room, arrays) for i in range(op.collected)]
    sinks = [s.put for s in states] + [c.put for c in collected]
    kept = [s.target for s in (*states, *collected)] if arrays.ahead else []
    readers = [read for s in states for read in s.readers()]
    sequences, others = list(given.sequences), list(given.others)
    most = 0 if op.until or at_once is None else _most_at_once(states)
    if most > 1 and n >= _MIN_STEPS_TO_COPY:
        sequences = [_dense(s[:n], s[0, ...]) for s in sequences]
        others = [_dense(o, o) for o in others]
    done, t = n, 0
    while t < n:
        arguments = [s[t, ...] for s in sequences]
        arguments += [read(t) for read in readers]
        results = step(arguments + others, [target(t) for target in kept])
        for put, value in zip(sinks, results):
            put(t, value)
        t += 1
        if op.until and bool(results[-1]):
            done = t
            break
        if at_once is not None and (count := min(most, n - t)) > 1:
            t += _run_at_once(at_once, t, count, sequences, states, collected, others)
    shapes = op.empty_shapes(inputs) if n == 0 else [()] * len(collected)
    out = [array for s in states for array in s.results(done)]
    out += [c.result(done, shape) for c, shape in zip(collected, shapes)]
    return [*out, np.asarray(done, np.int64)] if op.until else out


def _dense(array: Any, entry: Any) -> Any:
    """A copy whose entries are contiguous if those of ``array`` are not: compiled loops want it."""
    if not isinstance(entry, np.ndarray) or entry.flags.c_contiguous:
        return array
    return np.ascontiguousarray(array) if array.nbytes <= _MAX_BYTES_TO_COPY else array


def _most_at_once(states: Sequence[Any]) -> int:
    sizes = [s.values[0].nbytes for s in states if isinstance(s, _Recent)]
    return min(_AT_ONCE, _AT_ONCE_BYTES // max(*sizes, 1, 1))


def _run_at_once(
    at_once: AtOnce, t: int, count: int, sequences: Sequence[Any], states: Sequence[Any],
    collected: Sequence[Any], others: Sequence[Any],
) -> int:  # fmt: skip
    """Run up to ``count`` steps from step ``t`` on; how many ran."""

    def arguments() -> list[tuple[Any, bool]]:
        found = [(s[t : t + count], True) for s in sequences]
        found += [(part, True) for s in states for part in s.parts(t, count)]
        return found + [(o, False) for o in others]

    def targets() -> list[Any]:
        return [x.part(t, count) for x in (*states, *collected)]

    done = at_once(count, arguments, targets)
    for s in states:
        s.ran(done)
    return done


class _Recent:
    """A state without a history: only its last values are stored."""

    def __init__(
        self, op: Scan, number: int, carry: Carry, initial: Array, room: int, arrays: LoopArrays
    ) -> None:
        self.op, self.number, self.carry, self.arrays = op, number, carry, arrays
        self.values = [initial[k, ...] for k in range(carry.depth)]
        #: The values of many steps, after the last ones before.
        self.many: Any = None
        #: Whether the last value is in memory of its own.
        self.owned = False

    def own(self) -> None:
        """Have the initial values in memory that may be written."""
        self.values = [self.arrays.fresh(v) for v in self.values]
        self.owned = True

    def parts(self, t: int, count: int) -> list[Any]:
        """The values that the taps read in ``count`` steps, in a buffer of their own."""
        depth, last = self.carry.depth, self.values[-1]
        self.many = self.arrays.empty((depth + count, *last.shape), last.dtype)
        for k, value in enumerate(self.values):
            self.arrays.put(self.many[k, ...], value)
        return [self.many[depth + tap : depth + tap + count] for tap in self.carry.taps]

    def part(self, t: int, count: int) -> Any:
        """The memory for the values of ``count`` steps, after :meth:`parts`."""
        return self.many[self.carry.depth :]

    def ran(self, done: int) -> None:
        """Copy the last values after a call of ``done`` steps."""
        if done:
            self.values = [self.many[done + k, ...] for k in range(self.carry.depth)]

    def readers(self) -> list[Callable[[int], Any]]:
        """One function of the step per tap."""
        return [self._reader(tap) for tap in self.carry.taps]

    def _reader(self, tap: int) -> Callable[[int], Any]:
        return lambda t: self.values[tap]

    def target(self, t: int) -> None:
        """None: the value may be in any memory."""

    def put(self, t: int, value: Array) -> None:
        """Take the value of step ``t``."""
        if value.shape != self.values[-1].shape:
            raise _changed(self.op, f"state {self.number}", self.values[-1].shape, value.shape, t)
        self.values.append(value)
        del self.values[0]

    def results(self, done: int) -> list[Any]:
        """The last value, in its own memory."""
        return [self.values[-1] if self.owned else self.arrays.fresh(self.values[-1])]


class _History:
    """A state with a history: all its values, after the initial ones."""

    def __init__(
        self, op: Scan, number: int, carry: Carry, initial: Array, room: int, arrays: LoopArrays
    ) -> None:
        self.op, self.number, self.carry, self.depth = op, number, carry, carry.depth
        self.arrays, self.shape = arrays, tuple(initial.shape[1:])
        self.buffer = arrays.empty((self.depth + room, *self.shape), initial.dtype)
        arrays.put(self.buffer[: self.depth], initial)

    def readers(self) -> list[Callable[[int], Any]]:
        """One function of the step per tap."""
        return [self._reader(self.depth + tap) for tap in self.carry.taps]

    def _reader(self, offset: int) -> Callable[[int], Any]:
        return lambda t: self.buffer[t + offset, ...]

    def parts(self, t: int, count: int) -> list[Any]:
        """The values that the taps read in ``count`` steps."""
        starts = [t + self.depth + tap for tap in self.carry.taps]
        return [self.buffer[k : k + count] for k in starts]

    def part(self, t: int, count: int) -> Any:
        """The memory for the values of ``count`` steps."""
        return self.buffer[t + self.depth : t + self.depth + count]

    def ran(self, done: int) -> None:
        """The values of ``done`` steps are there."""

    def target(self, t: int) -> Any:
        """The memory for the value of step ``t``."""
        if t + self.depth == self.buffer.shape[0]:
            self.buffer = _grown(self.buffer, self.arrays)
        return self.buffer[t + self.depth, ...]

    def put(self, t: int, value: Array) -> None:
        """Take the value of step ``t``."""
        if value.shape != self.shape:
            raise _changed(self.op, f"state {self.number}", self.shape, value.shape, t)
        self.arrays.put(self.target(t), value)

    def results(self, done: int) -> list[Array]:
        """All values, and the last one in its own memory."""
        last = self.depth + done
        return [self.buffer[:last], self.arrays.fresh(self.buffer[last - 1, ...])]


class _Collected:
    """An output that is collected step by step; its shape is that of the first step."""

    def __init__(self, op: Scan, number: int, room: int, arrays: LoopArrays) -> None:
        self.op, self.number, self.room, self.arrays = op, number, room, arrays
        self.buffer: Any = None
        self.shape: tuple[int, ...] = ()

    def part(self, t: int, count: int) -> Any:
        """The memory for the values of ``count`` steps, after the first one."""
        return self.buffer[t : t + count]

    def target(self, t: int) -> Any:
        """The memory for the value of step ``t``; None before the first step."""
        if self.buffer is None:
            return None
        if t == self.buffer.shape[0]:
            self.buffer = _grown(self.buffer, self.arrays)
        return self.buffer[t, ...]

    def put(self, t: int, value: Array) -> None:
        """Take the value of step ``t``."""
        if self.buffer is None:
            self.shape = tuple(value.shape)
            self.buffer = self.arrays.empty((self.room, *self.shape), value.dtype)
        elif value.shape != self.shape:
            raise _changed(self.op, f"output {self.number}", self.shape, value.shape, t)
        self.arrays.put(self.target(t), value)

    def result(self, done: int, empty: tuple[int, ...]) -> Any:
        """The entries of all steps; without steps an empty array of shape ``(0, *empty)``."""
        if self.buffer is None:
            type_: Any = self.op.inner.output_types[len(self.op.states) + self.number]
            return self.arrays.empty((0, *empty), type_.dtype)
        return self.buffer[:done]


def _grown(buffer: Array, arrays: LoopArrays) -> Any:
    length = buffer.shape[0]
    larger = arrays.empty((2 * length, *buffer.shape[1:]), buffer.dtype)
    arrays.put(larger[:length], buffer)
    return larger


def _changed(op: Scan, what: str, old: Sequence[int], new: Sequence[int], t: int) -> ShapeMismatch:
    return ShapeMismatch(op, f"{what} of shape {tuple(old)} at every step", f"{new} at step {t}")
