"""Loops and choices with the signatures of ``jax.lax``, built upon ``Scan`` and ``IfElse``.

Carried values, operands and results are trees. A body is traced once, with variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from symdnn.errors import OptionError, TypeMismatch
from symdnn.graph.operators import operator
from symdnn.graph.origin import make_written
from symdnn.graph.tracing import Trace, call_with, current_trace, tracing
from symdnn.graph.typing import TensorLike
from symdnn.graph.values.tree import Tree, flatten, paths, unflatten
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.control.control import ifelse
from symdnn.ops.control.scan_builder import OrderedUpdates, StepResult, Tracer, state_of
from symdnn.ops.control.scan_parts import widened
from symdnn.ops.control.statistics import note_order
from symdnn.ops.core.lanes import in_a_lane
from symdnn.ops.core.shape import as_dim
from symdnn.options import as_function

#: The number of steps of a loop that has no bound.
_NO_BOUND = 2**62


def while_loop(
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    init_val: Any,
    max_steps: TensorLike | None = None,
) -> Any:
    """``body_fun`` again and again, while ``cond_fun`` of the value is true.

    The value is a tree, whose leaves keep their dtype and rank. With ``max_steps`` the loop ends
    after so many steps. It has derivatives in both modes: forward mode carries the tangents,
    reverse mode records the value of each step, whose number need not be known.
    (``jax.lax.while_loop``, which has no reverse mode.)

    >>> import symdnn
    >>> from symdnn import control
    >>> def collatz(v):
    ...     n, steps = v
    ...     return control.cond(n % 2 > 0, lambda n: 3 * n + 1, lambda n: n // 2, n), steps + 1
    >>> f = symdnn.jit(lambda n: control.while_loop(lambda v: v[0] > 1, collatz, (n, 0))[1])
    >>> int(f(27))
    111
    """
    for f in (cond_fun, body_fun):
        as_function("while_loop", f, "the value")
    loop = _Loop("while_loop", init_val)
    first = loop.test(cond_fun, unflatten(loop.tree, list(map(as_variable, loop.leaves))))
    bound = _NO_BOUND if max_steps is None else as_dim(max_steps)
    loop.steps = operator("switch")(first, bound, 0).astype("int64")
    loop.trace(lambda value: call_with("while_loop: body_fun", body_fun, {"value": value}))
    loop.until(cond_fun)
    return loop.value()


def fori_loop(
    lower: TensorLike,
    upper: TensorLike,
    body_fun: Callable[[Any, Any], Any],
    init_val: Any,
    *,
    unroll: Any = None,
) -> Any:
    """The value after ``body_fun(i, value)`` for i from ``lower`` to ``upper`` (not included).

    The bounds may be expressions; where there are no steps the value is ``init_val``. ``i`` is a
    number like those of Python's ``range``: times float32 it is float32. The value is a tree, whose
    leaves keep their dtype and rank. It has derivatives in both modes.
    (``jax.lax.fori_loop``; ``unroll`` is accepted for its sake.)

    >>> import symdnn
    >>> from symdnn import control
    >>> f = symdnn.jit(lambda n: control.fori_loop(1, n + 1, lambda i, v: v * i, 1.0))
    >>> float(f(5)), float(f(0))
    (120.0, 1.0)
    """
    as_function("fori_loop", body_fun, "(i, value)")
    low, high = as_variable(lower), as_variable(upper)
    for v in (low, high):
        if not getattr(v.type, "is_discrete", False) or v.type.ndim:
            raise TypeMismatch("fori_loop", "whole numbers as bounds", v.type)
    if in_a_lane() and not (isinstance(low, Constant) and isinstance(high, Constant)):
        return _counted_loop(low, high, body_fun, init_val)
    loop = _Loop("fori_loop", init_val)
    numbers = operator("arange")(lower, upper)
    (i,) = loop.sequences([numbers.astype("int64")])
    i.number_kind = int  # as those of Python's range: times float32 it is float32
    loop.trace(lambda value: call_with("fori_loop", body_fun, {"i": i, "value": value}))
    return loop.value()


def _counted_loop(
    lower: Variable, upper: Variable, body: Callable[[Any, Any], Any], at: Any
) -> Any:
    """:func:`fori_loop` with a count for a state: lanes may differ in their bounds."""
    lower, upper = (v.astype("int64") for v in (lower, upper))
    loop = _Loop("fori_loop", (lower, at))
    loop.inside[0].number_kind = int
    loop.steps = operator("maximum")(upper - lower, 0)
    loop.trace(lambda state: (state[0] + 1, body(*state)))
    return loop.value()[1]


def scan(
    f: Callable[[Any, Any], Any],
    init: Any,
    xs: Any = None,
    length: TensorLike | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:
    """``f(carry, x) -> (carry, y)`` over the entries of ``xs``: the last carry, and all y.

    ``xs`` is a tree of arrays with a first axis of equal length, or None with ``length``; ``y`` is
    a tree, whose leaves are stacked along a new first axis. ``reverse`` begins with the last ones,
    and leaves each y in the place of its x. (``jax.lax.scan``, for whose sake
    ``unroll`` is accepted; :func:`symdnn.scan` is Theano's.)

    >>> import numpy as np
    >>> import symdnn
    >>> from symdnn import control
    >>> f = symdnn.jit(lambda x: control.scan(lambda c, v: (c + v, c * v), 0.0, x))
    >>> f(np.array([1.0, 2.0, 3.0]))
    (array(6.), array([0., 2., 9.]))
    """
    as_function("scan", f, "(carry, x)")
    loop = _Loop("scan", init)
    leaves, tree = flatten(xs)
    if not leaves and length is None:
        raise OptionError("scan: wanted xs or length for the number of steps, got neither")
    entry = unflatten(tree, loop.sequences(leaves, reverse))
    if length is not None:
        loop.steps = as_dim(length)
    collected: list[Tree] = []

    def step(value: Any) -> Any:
        found = call_with("control.scan", f, {"carry": value, "x": entry})
        if not isinstance(found, list | tuple) or len(found) != 2:
            raise TypeMismatch("scan", "a pair (carry, y) from the function", repr(found))
        outputs, structure = flatten(found[1])
        collected.append(structure)
        loop.collect(outputs)
        return found[0]

    loop.trace(step)
    ys = loop.collected()
    return loop.value(), unflatten(collected[0], [y[::-1] if reverse else y for y in ys])


class _Loop:
    """A loop from a function of a carried tree."""

    def __init__(self, name: str, init: Any) -> None:
        self.name = name
        self.leaves, self.tree = flatten(init)
        self.where = paths(self.tree, "the value")
        self.tracer = Tracer(name)
        states = [state_of(k, v, (-1,)) for k, v in enumerate(self.leaves)]
        self.tracer.infos = [*states]
        self.inside = [s.inside[0] for s in states]
        for s, where in zip(states, self.where, strict=True):
            s.label, s.loop = where, name
        self.steps: Any = None
        self.begun = make_written()
        self.outputs: list[Variable] = []
        self.step = StepResult([], OrderedUpdates(), None)
        self._built: Any = None

    def sequences(self, leaves: Sequence[Any], backwards: bool = False) -> list[Variable]:
        """The inner variables of sequences."""
        self.tracer.add_sequences(leaves, backwards)
        return [v for v, _ in self.tracer.sequences]

    def trace(self, body: Callable[[Any], Any]) -> None:
        """Call the body with inner variables; its result has the structure of the value.

        It is called again where a Python number of the value turns out to meet float64.
        """
        self._call(body)
        while widened(self.tracer.infos, self.step.outputs):
            states = self.tracer.infos[: len(self.leaves)]
            self.tracer.infos, self.step.updates = states, OrderedUpdates()
            self.inside = [s.inside[0] for s in states if s is not None]
            self._call(body)

    def _call(self, body: Callable[[Any], Any]) -> None:
        with tracing(f"the body of {self.name}") as trace:
            found, tree = flatten(body(unflatten(self.tree, self.inside)))
            if tree != self.tree:
                raise TypeMismatch(
                    f"{self.name}: the body", f"a value of the structure {self.tree}", tree
                )
            news = [self._next(v, k) for k, v in enumerate(found)]
        self._take(trace)
        self.step.outputs = [*news, *self.outputs]

    def _next(self, value: Any, k: int) -> Variable:
        """A next value; a Python number takes the dtype of the state."""
        new, state = as_variable(value), self.tracer.infos[k]
        assert state is not None
        old = state.inside[0].type
        if new.number_kind is not None and not state.flexible and new.type.dtype != old.dtype:
            fits = old.is_float or (old.is_integer and new.number_kind is int)
            return new.astype(old.dtype) if fits else new
        return new

    def collect(self, outputs: Sequence[Any]) -> None:
        """Values of the step that are stacked."""
        self.outputs = [as_variable(v) for v in outputs]
        self.tracer.infos += [None] * len(outputs)

    def _take(self, trace: Trace) -> None:
        self.step.updates.update({v: as_variable(new) for v, new in trace.updates.items()})

    def test(self, cond_fun: Callable[[Any], Any], value: Any) -> Variable:
        """The condition of a value, as an integer scalar."""
        with tracing(f"the condition of {self.name}") as trace:
            found = _condition(
                self.name, call_with(f"{self.name}: cond_fun", cond_fun, {"value": value})
            )
        if found.type.ndim != 0:
            raise TypeMismatch(f"{self.name}: the condition", "a scalar", found.type)
        if trace.updates:
            raise TypeMismatch(f"{self.name}: the condition", "no updates", list(trace.updates))
        return operator("neq")(found, 0) if found.type.dtype != "bool" else found

    def until(self, cond_fun: Callable[[Any], Any]) -> None:
        """End the loop where the condition is false of a next value."""
        news = self.step.outputs[: len(self.leaves)]
        for v, new in zip(self.inside, news, strict=True):
            if new.number_kind is None:
                new.number_kind = v.number_kind if new.type.dtype == v.type.dtype else None
        self.step.condition = operator("invert")(self.test(cond_fun, unflatten(self.tree, news)))

    def _build(self) -> None:
        arguments = self.tracer.arguments()
        parts = self.tracer.parts(self.step, arguments, self._from_outside(), strict=False)
        parts.steps = self.tracer.length(self.steps)
        parts.sequences = [(v, x[: parts.steps]) for v, x in parts.sequences]
        parts.name = self.name
        built = parts.build()
        last = built.last[: len(self.leaves)]
        for v, old in zip(last, self.inside, strict=True):
            if old.number_kind is not None and v.type.dtype == old.type.dtype:
                v.number_kind = old.number_kind
        self._stacked, updates = self.tracer.results(built, self.step)
        # Statistics of a layer in the loop are noted at these outputs.
        for out in self._stacked:
            if hasattr(out._tag, "state_updates"):
                for v in last:
                    v.tag.state_updates = out.tag.state_updates
                    note_order(v)
        self._built = last
        _pass_on(self.name, updates)

    def _from_outside(self) -> list[Variable]:
        """What the body reads that was written before the loop: a draw among it is one draw."""
        condition = [] if self.step.condition is None else [self.step.condition]
        pending = [*self.step.outputs, *self.step.updates.values(), *condition]
        found: dict[Variable, None] = {}
        seen: set[Variable] = set()
        while pending:
            v = pending.pop()
            if v in seen or v.owner is None:
                continue
            seen.add(v)
            if v.owner.written < self.begun:
                found[v] = None
            else:
                pending += v.owner.inputs
        return list(found)

    def value(self) -> Any:
        """The value after the loop."""
        if self._built is None:
            self._build()
        return unflatten(self.tree, self._built)

    def collected(self) -> list[Variable]:
        """The stacked values of all steps."""
        if self._built is None:
            self._build()
        return self._stacked[len(self.leaves) :]


def _pass_on(name: str, updates: OrderedUpdates) -> None:
    """Give the updates of a loop or a choice to the function around it.

    A stream's state was made for this loop, so its own update becomes that of the whole loop.
    """
    outer = current_trace()
    for target, new in updates.items():
        if target.default_update is not None:
            target.default_update = new
        elif outer is not None:
            outer.add({target: new})
        else:
            raise TypeMismatch(
                name, "no updates in a body outside of symdnn.jit (use symdnn.scan)", target
            )


# -- choices --------------------------------------------------------------------------------------


def cond(
    pred: TensorLike, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any
) -> Any:
    """``true_fun(*operands)`` if the scalar ``pred`` is not zero, else ``false_fun(*operands)``.

    Both are traced, and return trees of one structure; only the one that is chosen is computed.
    (``jax.lax.cond``; :func:`symdnn.ifelse` takes expressions.)

    >>> import symdnn
    >>> from symdnn import control
    >>> f = symdnn.jit(lambda x: control.cond(x > 0, lambda x: [x], lambda x: [-2 * x], x))
    >>> float(f(-3.0)[0])
    6.0
    """
    (yes, structure, more), (no, other, less) = (
        _branch(f, operands, k) for k, f in enumerate((true_fun, false_fun))
    )
    if structure != other:
        raise TypeMismatch("cond", f"branches of one structure ({structure})", other)
    targets = list(dict.fromkeys([*more, *less]))
    chosen = [*yes, *(as_variable(more.get(v, v)) for v in targets)]
    rest = [*no, *(as_variable(less.get(v, v)) for v in targets)]
    if not chosen:
        return unflatten(structure, [])
    found = ifelse(_condition("cond", pred), chosen, rest)
    _pass_on("cond", OrderedUpdates(zip(targets, found[len(yes) :], strict=True)))
    return unflatten(structure, found[: len(yes)])


def _condition(name: str, value: Any) -> Variable:
    """A condition as a variable."""
    if isinstance(value, bool):
        do = "For what is known when the function is traced write `if`"
        raise TypeMismatch(name, "a variable as condition", f"Python's {value}", do)
    return as_variable(value)


def _branch(
    f: Callable[..., Any], operands: Sequence[Any], number: int
) -> tuple[list[Variable], Tree, dict[Any, Any]]:
    leaves, tree = flatten(tuple(operands))
    with tracing(f"branch {number} of cond") as trace:
        given = unflatten(tree, [as_variable(v) for v in leaves])
        words = {f"operand {i}": v for i, v in enumerate(given)}
        found, structure = flatten(call_with("cond", f, words))
    return [as_variable(v) for v in found], structure, trace.updates


def switch(index: TensorLike, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """``branches[index](*operands)``; an index out of range counts as the nearest one.

    Only the branch that is chosen is computed. (``jax.lax.switch``; ``T.switch`` is elementwise.)

    >>> import symdnn
    >>> from symdnn import control
    >>> branches = [lambda x: x, lambda x: -x, lambda x: x * x]
    >>> f = symdnn.jit(lambda i, x: control.switch(i, branches, x))
    >>> [float(f(i, 3.0)) for i in (-1, 1, 7)]
    [3.0, -3.0, 9.0]
    """
    if not branches:
        raise OptionError("switch: wanted one branch at least, got none")
    number = as_variable(index)
    if number.type.ndim != 0 or not number.type.is_discrete:
        raise TypeMismatch("switch", "an integer scalar as index", number.type)
    if len(branches) == 1:
        return branches[0](*operands)
    half = len(branches) // 2

    def later(*given: Any) -> Any:
        return switch(number - half, branches[half:], *given)

    def earlier(*given: Any) -> Any:
        return switch(number, branches[:half], *given)

    return cond(number >= half, later, earlier, *operands)
