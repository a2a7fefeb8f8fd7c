"""The parts of a scan, by which a ``Scan`` is built or changed: inner and outer variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.errors import OptionError, StateMismatch
from symdnn.graph.inner import InnerGraph
from symdnn.graph.operators import operator
from symdnn.graph.origin import Hints
from symdnn.graph.traverse import clone_graph, leaves, toposort
from symdnn.graph.type import TensorType
from symdnn.graph.values.test_values_flag import entry_of
from symdnn.graph.variable import Constant, Variable, constant
from symdnn.ops.control.scan import Carry, Scan
from symdnn.ops.core.python_numbers import kind_of_number
from symdnn.ops.core.shape import as_dim, static_dim

__all__ = ["Built", "Parts", "State", "argument", "widened"]

_cast_policy, _floatx = config.reader("cast_policy"), config.reader("floatX")

Pair = tuple[Variable, Variable]

#: Keys of Theano's dicts that choose how memory is used, without an effect here.
_OLD_KEYS = ("inplace", "return_steps", "store_steps")


def argument(what: str, item: Any, first: str) -> dict[str, Any]:
    """A sequence or a recurrent output as a dict; a key that scan does not know is refused."""
    given = dict(item) if isinstance(item, Mapping) else {first: item}
    if unknown := [key for key in given if key not in (first, "taps", *_OLD_KEYS)]:
        raise OptionError(f"scan: {what} has the key {unknown[0]!r}; wanted {first!r} and 'taps'")
    if first == "input" and first not in given:
        raise OptionError(f"scan: {what} has no 'input', got {list(given)}")
    return given


@dataclass
class State:
    """A recurrent value: inner variables of its ``taps``, ``initial`` values, inner ``next`` value.

    ``label`` is its name in errors. A ``flexible`` one (a Python number) takes the next one's
    dtype.
    """

    taps: tuple[int, ...]
    inside: list[Variable]
    initial: Variable
    next: Variable
    history: bool = True
    label: str = "a state"
    flexible: bool = False
    #: The Python number that it begins with, if it does.
    number: float | complex | None = None
    #: The name of the user's loop, for errors.
    loop: str = "scan"


@dataclass(frozen=True)
class Built:
    """Outputs of a scan by role. ``histories`` and ``last`` have one entry per state."""

    histories: list[Variable | None]
    last: list[Variable]
    collected: list[Variable]
    steps: Variable


@dataclass
class Parts:
    """The parts of a scan. Pairs are (inner variable, outer variable)."""

    steps: Any
    sequences: list[Pair] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    others: list[Pair] = field(default_factory=list)
    collected: list[Variable] = field(default_factory=list)
    condition: Variable | None = None
    truncate: int = -1
    name: str | None = None
    least: int = 0

    @classmethod
    def of(cls, op: Scan, inputs: Sequence[Variable], own: bool = False) -> Parts:
        """The parts of a scan on ``inputs``, with new inner variables.

        With ``own`` they are the op's own, without a copy: for another form of this scan alone.
        """
        inner = op.inner
        variables, outputs = (inner.inputs, list(inner.outputs)) if own else inner.open()
        inside, outside = op.split_inner(variables), op.split(inputs)
        count = len(op.states)
        states = [
            State(c.taps, taps, initial, new, c.history, f"state {i}")
            for i, (c, taps, initial, new) in enumerate(
                zip(op.states, inside.initials, outside.initials, outputs)
            )
        ]
        return cls(
            outside.steps,
            list(zip(inside.sequences, outside.sequences, strict=True)),
            states,
            list(zip(inside.others, outside.others, strict=True)),
            outputs[count : count + op.collected],
            outputs[-1] if op.until else None,
            op.truncate,
            op.name,
            op.least,
        )

    def inner_outputs(self) -> list[Variable]:
        """Inner outputs in the op's order."""
        condition = [] if self.condition is None else [self.condition]
        return [*(s.next for s in self.states), *self.collected, *condition]

    def build(self, hints: Hints | None = None) -> Built:
        """Apply the scan, without inputs that no step reads; the types of states are determined."""
        self._settle_types()
        self._drop_unread()
        inputs = [
            *(v for v, _ in self.sequences),
            *(v for s in self.states for v in s.inside),
            *(v for v, _ in self.others),
        ]
        steps = as_dim(self.steps)
        op = Scan(
            InnerGraph(inputs, self.inner_outputs()),
            len(self.sequences),
            tuple(Carry(s.taps, s.history) for s in self.states),
            static_dim(steps),
            self.condition is not None,
            self.truncate,
            self.name,
            self.least,
        )
        outside = [v for _, v in self.sequences], [s.initial for s in self.states]
        node = op.make_node(
            steps, *outside[0], *outside[1], *(v for _, v in self.others), hints=hints
        )
        return by_role(op, node.outputs, steps)

    def _drop_unread(self) -> None:
        read = set(leaves(self.inner_outputs()))
        self.sequences = [p for p in self.sequences if p[0] in read]
        self.others = [p for p in self.others if p[0] in read]

    # -- types of states: the initial value and the next value must have one type ---------------

    def _settle_types(self) -> None:
        while wider := [(s, t) for s in self.states if (t := _wider(s)) is not None]:
            replace: dict[Variable, Variable] = {}
            for s, t in wider:
                new = [t(v.name) for v in s.inside]
                replace.update(zip(s.inside, new))
                s.inside = new
                if s.initial.type.dtype != t.dtype:
                    s.initial = _begun(s, t)
            self.substitute(replace)

    def substitute(self, replace: Mapping[Variable, Variable]) -> None:
        """Replace some inner variables by others."""
        memo = clone_graph(self.inner_outputs(), replace)
        for s in self.states:
            s.next = memo[s.next]
        self.collected = [memo[v] for v in self.collected]
        self.condition = None if self.condition is None else memo[self.condition]


def _begun(s: State, t: TensorType) -> Variable:
    """The initial value in another dtype; a Python number with all its digits."""
    if s.number is not None:
        return constant(np.asarray([s.number]).astype(t.numpy))
    return operator("cast")(s.initial, t.dtype)


def _wider(s: State) -> TensorType | None:
    """The type with fewer static sizes that a state needs; None if its type fits."""
    old, new = s.inside[0].type, s.next.type
    if s.flexible and old.dtype != new.dtype and old.ndim == new.ndim:
        return old.with_dtype(new.dtype)
    if old.dtype != new.dtype or old.ndim != new.ndim or not old.agrees_in_names(new):
        raise _mismatch(s)
    kept = []
    for axis, (a, b) in enumerate(zip(old.shape, new.shape)):
        if a == 1 and b != 1:
            raise _mismatch(
                s,
                f"Dimension {axis} broadcasts in the initial value only: declare its size unknown "
                f"there, T.unbroadcast(initial, {axis}), or let the function keep it 1",
            )
        kept.append(a if a == b else None)
    wider = old.with_shape(kept).with_names(old.names)
    return None if wider == old else wider


def _mismatch(s: State, do: str = "") -> StateMismatch:
    old, new = s.inside[0].type, s.next.type
    advice = do or (
        f"Cast the result of the function, .astype({old.dtype!r}), or start from {new.dtype}"
        if old.ndim == new.ndim
        else "Each step must return the type of the initial value, without the dimension of steps"
    )
    return StateMismatch(
        f"{s.loop}: {s.label}", f"a next value of the type of the initial one, {old}", new, advice
    )


def by_role(op: Scan, outputs: Sequence[Variable], steps: Variable) -> Built:
    places, first = op.places(), op.first_collected
    return Built(
        [None if h is None else outputs[h] for h, _ in places],
        [outputs[last] for _, last in places],
        list(outputs[first : first + op.collected]),
        outputs[-1] if op.until else steps,
    )


def widened(states: Sequence[State | None], news: Sequence[Variable]) -> bool:
    """Whether a step is to be traced again: a Python number that a state begins with was rounded
    to floatX, or is followed by an array, and the step has float64 in it.

    Then the states have new inner variables: if the next value is an array of float64, of that,
    else for a Python number with all its digits. ``news``: the outputs of the step.
    """
    numbers = [
        s for s, new in zip(states, news) if s is not None and _becomes_array(s.inside[0], new)
    ]
    rounded = [
        (s, new) for s, new in zip(states, news)
        if s is not None and s.flexible and isinstance(s.number, int | float)
        and _is_rounded(s.inside[0], new)
    ]  # fmt: skip
    exact = _floatx() == "float64" or _cast_policy() != "numpy2"
    if exact or not (rounded or numbers) or not _has_float64(news):
        return False
    for s in numbers:
        s.inside = [_entry(s)]
    for s, new in rounded:
        array = new.number_kind is None and new.type.dtype == "float64"
        floats = array or isinstance(s.number, float) or new.number_kind is float
        own = "float64" if floats else "int64"
        s.initial = constant(np.asarray([s.number], own))
        s.inside = [_entry(s)]
        s.inside[0].number_kind = None if array else kind_of_number(own)
    return True


def _entry(s: State) -> Variable:
    """A new inner variable of a state, of the type and with the test value of its first entry."""
    inside: Variable = s.initial.type.entry()(s.inside[0].name)
    entry_of(inside, s.initial, 0)
    return inside


def _is_rounded(old: Variable, new: Variable) -> bool:
    """Whether a state is no number yet, or one of ints that becomes one of floats."""
    if old.number_kind is None:
        return bool(old.type.dtype != "float64")
    return old.number_kind is int and new.number_kind is float


def _becomes_array(old: Variable, new: Variable) -> bool:
    """Whether a state is a Python number with all its digits, and its next value is none."""
    return bool(
        old.number_kind is float and new.number_kind is None
        and old.type.dtype == new.type.dtype == "float64"
    )  # fmt: skip


def _has_float64(values: Sequence[Variable]) -> bool:
    """Whether an array of float64 is among what ``values`` are made of."""
    made = [v for node in toposort(values) for v in node.outputs]
    return any(
        isinstance(v.type, TensorType) and v.type.dtype == "float64" and v.number_kind is None
        for v in [*made, *leaves(values)]
        if not isinstance(v, Constant)
    )
