"""``scan``, ``map``, ``reduce``, ``foldl``, ``foldr``: loops from Python functions of one step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce as fold
from typing import Any

from symdnn.errors import (
    AxisError,
    MissingInputError,
    NdimMismatch,
    OptionError,
    StateMismatch,
    TypeMismatch,
)
from symdnn.graph.dims import dim_min
from symdnn.graph.names.flow import name_of
from symdnn.graph.names.torch_words import advises
from symdnn.graph.tracing import call_with
from symdnn.graph.traverse import leaves, toposort, updates_read
from symdnn.graph.type import OpaqueType
from symdnn.graph.typing import TensorLike
from symdnn.graph.values.test_values_flag import entry_of
from symdnn.graph.values.value import is_python_number
from symdnn.graph.variable import Constant, Shared, Variable, as_variable
from symdnn.ops.control.scan_parts import Built, Parts, State, argument, widened
from symdnn.ops.control.statistics import note_order, statistics_updates
from symdnn.ops.core.python_numbers import kind_of_number
from symdnn.ops.core.shape import as_dim, shape_i, static_dim
from symdnn.options import as_function


class OrderedUpdates(OrderedDict[Any, Any]):
    """Updates of shared variables in order, for ``function(updates=...)``.

    The sum of two that have different updates of a variable raises ``KeyError``; a key that is no
    shared variable, or None as a value, raises ``TypeError``.
    """

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(key, Shared):
            raise TypeError(f"OrderedUpdates: wanted a shared variable as a key, got {key!r}")
        if value is None:
            raise TypeError(f"OrderedUpdates: the update of {key} is None")
        super().__setitem__(key, value)

    def __add__(self, other: Any) -> OrderedUpdates:
        total = OrderedUpdates(self)
        for key, value in dict(other or {}).items():
            if key in total and total[key] is not value:
                raise KeyError(f"two different updates of {key}")
            total[key] = value
        return total


class until:
    """A result of a step function: the loop ends after the step whose ``condition`` is true."""

    def __init__(self, condition: TensorLike) -> None:
        self.condition = as_variable(condition)
        if self.condition.type.ndim != 0:
            raise TypeMismatch("until", "a scalar condition", self.condition.type)


@advises(f="fn", init="outputs_info", xs="sequences", length="n_steps", reverse="go_backwards")
def scan(
    fn: Callable[..., Any],
    sequences: Any = None,
    outputs_info: Any = None,
    non_sequences: Any = None,
    n_steps: TensorLike | None = None,
    truncate_gradient: int = -1,
    go_backwards: bool = False,
    mode: Any = None,
    name: str | None = None,
    profile: bool = False,
    allow_gc: bool | None = None,
    strict: bool = False,
    return_list: bool = False,
) -> tuple[Any, OrderedUpdates]:
    """Apply ``fn`` step by step (Theano's ``scan``): ``(outputs, updates)``.

    ``fn`` is called once. Its arguments are an entry of each of ``sequences`` (a variable, or
    ``dict(input=, taps=[0])``), the earlier values of each recurrent output, and ``non_sequences``.
    ``outputs_info`` has for each output None (it is only collected), the initial value, or
    ``dict(initial=, taps=[-1])`` with as many initial values along the first dimension as the
    deepest tap reaches back. ``fn`` returns outputs, updates
    of shared variables and :class:`until`, in any of ``outputs``, ``(outputs, updates)``,
    ``(outputs, until)``, ``(outputs, updates, until)``.

    The number of steps is ``n_steps``, else the length of the shortest sequence; with ``n_steps`` a
    shorter sequence is an error. A loop without steps has empty results. ``go_backwards`` reads
    sequences from their end. A gradient goes back ``truncate_gradient`` steps (-1: all). Outer and
    shared variables that ``fn`` uses need not be declared, unless ``strict``. Random variables are
    drawn anew in every step, if ``fn`` draws them, or uses them without getting them by
    ``non_sequences``.

    ``outputs`` is a variable for one output, else (or with ``return_list``) a list. ``updates``
    must be passed to ``function``. ``mode``, ``profile`` and ``allow_gc`` are accepted for
    compatibility with Theano. Raises :class:`~symdnn.errors.TypeMismatch`, which names the output,
    for a next value of another type.
    """
    as_function("scan", fn, "a step's values")
    tracer = Tracer(str(name or getattr(fn, "__name__", "fn")))
    tracer.add_sequences(_listed(sequences), go_backwards)
    tracer.add_outputs(_listed(outputs_info))
    outer = [as_variable(v) for v in _listed(non_sequences)]
    arguments, step = tracer.call(fn, outer)
    while widened(tracer.infos, step.outputs):
        arguments, step = tracer.call(fn, outer)
    parts = tracer.parts(step, arguments, outer, strict)
    parts.steps = tracer.length(n_steps)
    if n_steps is not None or len(parts.sequences) > 1:
        parts.sequences = [(v, x[: parts.steps]) for v, x in parts.sequences]
    parts.truncate, parts.name = truncate_gradient, name
    outputs, updates = tracer.results(parts.build(), step)
    if len(outputs) == 1 and not return_list:
        return outputs[0], updates
    return (outputs or None) if not return_list else outputs, updates


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


# -- results of a step function -------------------------------------------------------------------


@dataclass
class StepResult:
    """Outputs, updates and condition of a step."""

    outputs: list[Variable]
    updates: OrderedUpdates
    condition: Variable | None

    @classmethod
    def of(cls, returned: Any) -> StepResult:
        """Sort what the user's function returned."""
        step = cls([], OrderedUpdates(), None)
        parts = list(returned) if _is_mixed(returned) else [returned]
        for part in parts:
            step._add(part)
        return step

    def _add(self, part: Any) -> None:
        if part is None:
            return
        if isinstance(part, until):
            self.condition = part.condition
        elif isinstance(part, Mapping) or _is_pairs(part):
            for target, new in dict(part).items():
                if not isinstance(target, Shared):
                    raise TypeMismatch("scan: updates", "a shared variable as key", target)
                self.updates[target] = as_variable(new)
        elif isinstance(part, list | tuple):
            self.outputs += [as_variable(v) for v in part]
        else:
            self.outputs.append(as_variable(part))


def _is_mixed(returned: object) -> bool:
    """Whether it is a tuple of outputs, updates, conditions, and not the outputs alone."""
    return isinstance(returned, list | tuple) and any(
        v is None or isinstance(v, Mapping | until | list | tuple) for v in returned
    )


def _is_pairs(part: object) -> bool:
    return (
        isinstance(part, list | tuple)
        and len(part) > 0
        and all(isinstance(p, list | tuple) and len(p) == 2 for p in part)
        and all(isinstance(p[0], Shared) for p in part)
    )


# -- from arguments to the parts of a scan --------------------------------------------------------


class Tracer:
    """Inner variables for the step function, with the outer variables that they stand for."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.sequences: list[tuple[Variable, Variable]] = []
        self.infos: list[State | None] = []
        self.statistics: set[Variable] = set()

    # - before the function is called -

    def add_sequences(self, items: Sequence[Any], backwards: bool) -> None:
        """A variable for each tap of each sequence."""
        for i, item in enumerate(items):
            given = argument(f"sequence {i}", item, "input")
            x = as_variable(given["input"])
            if x.type.ndim == 0:
                raise AxisError("scan", "sequences with a dimension of steps", x.type)
            taps = [int(t) for t in _listed(given.get("taps", [0]))]
            first, last = min(0, *taps), max(0, *taps)
            for tap in taps:
                piece = x if first == last else x[tap - first : (tap - last) or None]
                entry = piece.type.entry()(_tap_name(x, tap))
                self.sequences.append((entry, piece[::-1] if backwards else piece))
                entry_of(entry, self.sequences[-1][1], 0)

    def add_outputs(self, items: Sequence[Any]) -> None:
        """A variable for each tap of each recurrent output."""
        for i, item in enumerate(items):
            given = argument(f"output {i}", item, "initial")
            initial, taps = given.get("initial"), given.get("taps", [-1])
            if initial is None:
                if isinstance(item, Mapping) and item.get("taps") is not None:
                    raise OptionError(f"scan: output {i} has taps and needs an initial value")
                self.infos.append(None)
            elif taps is None:
                self.infos.append(None)
            else:
                self.infos.append(state_of(i, initial, tuple(int(t) for t in _listed(taps))))

    def arguments(self) -> list[Variable]:
        """Inner variables in the order of the step function's arguments."""
        taps = [v for s in self.infos if s is not None for v in s.inside]
        return [*(v for v, _ in self.sequences), *taps]

    def call(
        self, fn: Callable[..., Any], outer: Sequence[Variable]
    ) -> tuple[list[Variable], StepResult]:
        """The inner variables of a call of the step function, and what it returned."""
        inner = self.arguments()
        words = [
            *(f"sequence {i}" for i, _ in enumerate(self.sequences)),
            *(f"earlier value {i}" for i in range(len(inner) - len(self.sequences))),
            *(f"non-sequence {i}" for i, _ in enumerate(outer)),
        ]
        given = dict(zip(words, [*inner, *outer], strict=True))
        return inner, StepResult.of(call_with("scan", fn, given))

    def length(self, n_steps: Any) -> Any:
        """The number of steps: given, or that of the shortest sequence."""
        if n_steps is not None:
            steps = as_dim(n_steps)
            if isinstance(known := static_dim(steps), int) and known < 0:
                raise OptionError(f"scan: wanted n_steps of at least 0, got {known}")
            return steps
        if not self.sequences:
            raise OptionError(
                "scan: wanted n_steps or a sequence for the number of steps, got neither"
            )
        lengths: dict[Any, Any] = {}
        for _, x in self.sequences:
            size = x.type.shape[0] or shape_i(x, 0)
            lengths.setdefault(name_of(size) or size, size)
        return fold(dim_min, list(lengths.values()))

    # - after it was called -

    def parts(
        self,
        step: StepResult,
        arguments: Sequence[Variable],
        given: Sequence[Variable],
        strict: bool,
    ) -> Parts:
        """The parts of the scan: the step's graph, without nodes that are equal in every step."""
        infos = self.infos or [None] * len(step.outputs)
        if len(infos) != len(step.outputs):
            raise OptionError(
                f"scan: {self.label} returned {len(step.outputs)} output(s), outputs_info has "
                f"{len(infos)}; use None for an output that is not recurrent"
            )
        self.infos = infos
        states = []
        for s, out in zip(infos, step.outputs):
            if s is not None:
                s.next = out
                states.append(s)
        _add_default_updates(step, [*arguments, *given])
        self.statistics = _add_statistics(step)
        replace: dict[Variable, Variable] = {}
        for target, new in step.updates.items():
            inside = target.type(target.name)
            entry_of(inside, target)
            replace[target] = inside
            initial = target.dimshuffle("x", *range(target.type.ndim))
            states.append(State((-1,), [inside], initial, new, False, f"the update of {target}"))
        condition = step.condition
        collected = [v for s, v in zip(infos, step.outputs) if s is None]
        parts = Parts(None, list(self.sequences), states, [], collected, condition)
        others = _invariant(parts.inner_outputs(), {*arguments, *replace})
        if strict:
            _check_strict(others, given)
        parts.others = [(v.type(v.name), v) for v in others]
        for inner, outer in parts.others:
            entry_of(inner, outer)
        replace.update((outer, inner) for inner, outer in parts.others)
        parts.substitute(replace)
        return parts

    def results(self, built: Built, step: StepResult) -> tuple[list[Variable], OrderedUpdates]:
        """The user's outputs in order, and the updates."""
        histories, collected = iter(built.histories), iter(built.collected)
        outputs = []
        for s in self.infos:
            if s is None:
                outputs.append(next(collected))
            else:
                history = next(histories)
                assert history is not None
                outputs.append(_of_each_step(history[-min(s.taps) :], built.steps))
        last = built.last[len(built.last) - len(step.updates) :]
        updates = OrderedUpdates(zip(step.updates, last, strict=True))
        # Draws whose sizes or parameters are the step's: no function could update them by that.
        inside = set(self.arguments())
        for v, new in updates.items():
            default = v.default_update
            if default is not None and not inside.isdisjoint(leaves([default])):
                v.default_update = new
        noted = [(v, updates.pop(v)) for v in step.updates if v in self.statistics]
        for out in outputs if noted else []:
            out.tag.state_updates = noted
            note_order(out)
        return outputs, updates


def _of_each_step(v: Variable, steps: Variable) -> Variable:
    """``v`` with the name of the number of steps, which was lost by a sum and a difference."""
    if (name := name_of(steps)) is not None:
        v.type = v.type.with_names((name, *(v.type.names or (None,) * v.type.ndim)[1:]))
    return v


def _tap_name(x: Variable, tap: int) -> str | None:
    return None if x.name is None else f"{x.name}[t{tap:+d}]" if tap else f"{x.name}[t]"


def state_of(number: int, given: TensorLike, taps: tuple[int, ...]) -> State:
    """A recurrent output; its ``next`` is set after the step function was called."""
    label = f"output {number}"
    if not taps or any(t >= 0 for t in taps):
        raise StateMismatch(f"scan: {label}", "negative taps (-1: the value before)", taps)
    initial = as_variable(given)
    if taps == (-1,):
        initial = initial.dimshuffle("x", *range(initial.type.ndim))
    elif initial.type.ndim == 0:
        raise NdimMismatch(
            f"scan: {label}",
            f"{-min(taps)} initial values along a first dimension, for taps {list(taps)}",
            initial.type,
        )
    elif initial.type.shape[0] != -min(taps):
        initial = initial[: -min(taps)]
    entry = initial.type.entry()
    name = None if not isinstance(given, Variable) else given.name
    inside = [entry(f"{name}[t{t}]" if name else None) for t in taps]
    for v, t in zip(inside, taps, strict=True):
        entry_of(v, initial, t - min(taps))
    flexible = is_python_number(given)
    integer = flexible and isinstance(given, int)  # beside float32 it makes no float64
    if integer or (isinstance(given, Variable) and given.number_kind is not None):
        flexible = True
        for v in inside:  # a constant of ``floatX`` is one of numbers, not of Python's arithmetic
            v.number_kind = kind_of_number(v.type.dtype)
    begins = initial_number(given)
    return State(taps, inside, initial, initial, True, label, flexible, begins)


def initial_number(given: TensorLike) -> float | complex | None:
    """The Python number that a state begins with; None for arrays and unknown values."""
    number = given.number if isinstance(given, Constant) else given
    return number if is_python_number(number) else None


def _add_default_updates(step: StepResult, blockers: Sequence[Variable]) -> None:
    """Shared variables that the step reads and that update themselves (random states)."""
    pending = [*step.outputs, *step.updates.values()]
    pending += [] if step.condition is None else [step.condition]
    left_alone = {*step.updates, *blockers}

    def update(v: Shared, new: Variable) -> Variable | None:
        return None if v in left_alone else as_variable(new)

    step.updates.update(updates_read(pending, blockers, update))


def _add_statistics(step: StepResult) -> set[Variable]:
    """Add updates of statistics (batch normalisation) in the step, unless its function has them."""
    found = statistics_updates([*step.outputs, *step.updates.values()])
    added = {v: new for v, new in found.items() if v not in step.updates}
    step.updates.update(added)
    return set(added)


def _invariant(outputs: Sequence[Variable], varying: set[Variable]) -> list[Variable]:
    """The outer variables of the step's graph, which are equal in every step.

    Opaque values (an RNN's reserve) are not among them: the step computes them again.
    """
    changing = set(varying)
    taken: dict[Variable, None] = {}

    def take(vs: Sequence[Variable]) -> None:
        for v in vs:
            if v in changing or isinstance(v, Constant):
                continue
            if isinstance(v.type, OpaqueType) and v.owner is not None:
                take(v.owner.inputs)
            else:
                taken[v] = None

    for node in toposort(outputs, blockers=varying):
        if any(v in changing for v in node.inputs):
            changing.update(node.outputs)
            take(node.inputs)
    take(outputs)
    return list(taken)


def _check_strict(others: Sequence[Variable], given: Sequence[Variable]) -> None:
    for v in leaves(others, blockers=given):
        if v not in set(given) and not isinstance(v, Constant):
            raise MissingInputError(
                f"scan: strict, and the function reads {v} of type {v.type}, which is not among "
                "non_sequences"
            )


# -- special cases --------------------------------------------------------------------------------


def map(
    fn: Callable[..., Any],
    sequences: Any,
    non_sequences: Any = None,
    truncate_gradient: int = -1,
    go_backwards: bool = False,
    mode: Any = None,
    name: str | None = None,
) -> tuple[Any, OrderedUpdates]:
    """``fn`` of each entry of the sequences, as a :func:`scan` without states."""
    return scan(
        fn,
        sequences=sequences,
        non_sequences=non_sequences,
        truncate_gradient=truncate_gradient,
        go_backwards=go_backwards,
        name=name,
    )


def reduce(
    fn: Callable[..., Any],
    sequences: Any,
    outputs_info: Any,
    non_sequences: Any = None,
    go_backwards: bool = False,
    mode: Any = None,
    name: str | None = None,
) -> tuple[Any, OrderedUpdates]:
    """The last values of a :func:`scan` of ``fn(entry, ..., value so far, ...)``, and updates."""
    outputs, updates = scan(
        fn,
        sequences=sequences,
        outputs_info=outputs_info,
        non_sequences=non_sequences,
        go_backwards=go_backwards,
        name=name,
    )
    if isinstance(outputs, list):
        return [v[-1] for v in outputs], updates
    return outputs[-1], updates


def foldl(
    fn: Callable[..., Any],
    sequences: Any,
    outputs_info: Any,
    non_sequences: Any = None,
    mode: Any = None,
    name: str | None = None,
) -> tuple[Any, OrderedUpdates]:
    """:func:`reduce` from the first entry to the last."""
    return reduce(fn, sequences, outputs_info, non_sequences, False, name=name)


def foldr(
    fn: Callable[..., Any],
    sequences: Any,
    outputs_info: Any,
    non_sequences: Any = None,
    mode: Any = None,
    name: str | None = None,
) -> tuple[Any, OrderedUpdates]:
    """:func:`reduce` from the last entry to the first."""
    return reduce(fn, sequences, outputs_info, non_sequences, True, name=name)
