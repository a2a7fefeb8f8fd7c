"""The base of all optimisers: parameter groups, gradients, state, and the list of updates.

An optimiser is a rule for one parameter, a function of a :class:`Step`. The rule reads the old
value, the gradient and its own state, sets the next state, and returns the new parameter.
:func:`build` applies it to all parameters. Arithmetic is in the parameter's dtype; for 16-bit
parameters it is in float32, and so is their state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from symdnn.autodiff import grad
from symdnn.compile.shared import shared
from symdnn.distributed.gradients import (
    DataParallel,
    agreement,
    broadcast_values,
    mean_statistics,
)
from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.same import is_same_graph
from symdnn.graph.tracing import check_takes
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.typing import Scalar
from symdnn.graph.variable import Shared, Variable
from symdnn.loss_scale import LossScale
from symdnn.nn.modules.checked import KINDS
from symdnn.nn.modules.module import state_updates
from symdnn.nn.modules.state import set_values
from symdnn.nn.optimizers.clip import clip_by_norm, clip_by_value
from symdnn.nn.optimizers.groups import Parameter, check_options, connected, flat_parameters
from symdnn.nn.optimizers.sharded import Part, Parts
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.elementwise.arithmetic import cast, minimum
from symdnn.ops.elementwise.comparison import eq, switch
from symdnn.ops.elementwise.math import expm1
from symdnn.options import is_int
from symdnn.sharding.axis import AxisLayout, keep_along
from symdnn.sharding.storage import layout_of

Array = np.ndarray[Any, Any]
Number = float | Variable


class Updates(list[tuple[Shared, Variable]]):
    """Updates for ``symdnn.function``, and :attr:`state`: the optimiser's variables by name.

    The names are stable: they follow from the names and the order of the parameters. ``updates +
    others`` has the state of both; running statistics that both update are updated once.
    """

    def __init__(
        self,
        pairs: Iterable[tuple[Shared, Variable]] = (),
        state: Mapping[str, Shared] | None = None,
        unused: Iterable[Shared] = (),
        parts: Iterable[Parts] = (),
    ) -> None:
        super().__init__(pairs)
        self.state: dict[str, Shared] = dict(state or {})
        #: The parameters that the loss does not depend on, which are not updated.
        self.unused: frozenset[Shared] = frozenset(unused)
        #: How the optimisers' states are shared out over ranks; those without are whole.
        self.parts: tuple[Parts, ...] = tuple(parts)

    def __add__(self, other: Iterable[Any]) -> Updates:  # type: ignore[override]
        more: Mapping[str, Shared] = getattr(other, "state", {})
        if twice := sorted(set(self.state) & set(more)):
            raise InputError(
                f"Updates: {', '.join(twice)} in both; give the optimisers different name="
            )
        unused = self.unused | getattr(other, "unused", frozenset())
        parts = (*self.parts, *getattr(other, "parts", ()))
        own = dict(self)
        # Both have the statistics of the layers in their loss.
        new = [(v, e) for v, e in other if v not in own or not is_same_graph(own[v], e)]
        return Updates([*self, *new], {**self.state, **more}, unused, parts)

    def state_dict(self) -> dict[str, Array]:
        """Copies of the values of the state, by name.

        A state that is sharded over ranks is gathered: all ranks call this, and the result can be
        loaded on any number of ranks.
        """
        shared_out = {name for parts in self.parts for name in parts.names(self.state)}
        whole = {n: v for n, v in self.state.items() if n not in shared_out}
        found = {name: np.array(v.get_value()) for name, v in whole.items()}
        for parts in self.parts:
            found |= parts.gathered(self.state)
        return found

    def load_state_dict(self, values: Mapping[str, Any]) -> Updates:
        """Set the values of :meth:`state_dict`: all, or none if one does not fit.

        Raises :class:`~symdnn.errors.InputError` for entries that are missing, unknown or of
        another shape.
        """
        for parts in self.parts:
            values = parts.own_values(values, self.state)
        set_values("Updates.load_state_dict", self.state, values)
        return self


class Common(TypedDict, total=False):
    """Options that every optimiser takes; see :mod:`symdnn.nn.optim`."""

    grads: Sequence[Variable]
    lr_scale: Mapping[Any, float] | Callable[[str, Shared], float]
    decays: Callable[[str, Shared], bool]
    clip_norm: float | Variable
    clip_value: float
    loss_scale: LossScale
    accumulate: int
    maximize: bool
    name: str
    disconnected_inputs: str
    distributed: bool | DataParallel


#: The new value of a parameter.
Rule = Callable[["Step"], Any]


class Step:
    """One parameter in one step of an optimiser."""

    def __init__(self, run: _Run, parameter: Parameter, g: Variable) -> None:
        self._run, self._parameter = run, parameter
        stored = parameter.value.type.dtype
        #: The dtype of the arithmetic.
        self.dtype: str = work_dtype(stored)
        #: The old value.
        self.p: Variable = cast(parameter.value, self.dtype)
        #: The gradient.
        self.g: Variable = cast(g, self.dtype)

    def __getitem__(self, option: str) -> Any:
        """The value of an optimiser's option for this parameter."""
        return self._parameter.options[option]

    def number(self, value: Any) -> Any:
        """A number, or a scalar of any float dtype, in the dtype of the arithmetic."""
        if isinstance(value, Variable):
            return cast(value, self.dtype)
        return np.asarray(value, numpy_dtype(self.dtype))

    @property
    def lr(self) -> Any:
        """The learning rate times this parameter's factor."""
        rate, factor = self["lr"], self._parameter.lr_scale
        if not isinstance(rate, Variable):
            return self.number(rate * factor)
        if not isinstance(rate.type, TensorType) or rate.type.ndim or not rate.type.is_float:
            raise TypeMismatch(
                f"{self._run.name}: lr", "a float, or a float scalar", rate.type,
                "A shared rate is made by symdnn.shared(np.float32(0.1))",
            )  # fmt: skip
        return self.number(rate) if factor == 1 else self.number(rate) * self.number(factor)

    @property
    def decay(self) -> float:
        """``weight_decay``, or 0 where ``decays`` excludes this parameter."""
        return float(self["weight_decay"]) if self._parameter.decays else 0.0

    def decayed(self) -> Variable:
        """The gradient with that of half the squared parameter times :attr:`decay`."""
        return self.g + self.number(self.decay) * self.p if self.decay else self.g

    def __str__(self) -> str:
        return f"{self._run.name}: {self._parameter.variable.name or self._parameter.name}"

    @property
    def sizes(self) -> tuple[int, ...]:
        """The parameter's shape at present."""
        return self._parameter.sizes[0]

    def whole(self, value: Variable, rule: Rule) -> Any:
        """``rule`` of the parameter with ``value`` as its gradient.

        Of a part it is the rule of each joined parameter: their values are gathered, each rank
        computes all of them, and the result has the elements of this rank.
        """
        p = self._parameter
        if not isinstance(p, Part):
            return rule(Step(self._run, p, value))
        values = p.geometry.views(p.geometry.joined(value))
        return p.geometry.sliced(
            {q.variable: rule(Step(self._run, q, values[q.variable])) for q in p.joined}
        )

    def decoupled(self) -> Any:
        """The parameter after a decay that is no part of the gradient."""
        return self.p - self.lr * self.number(self.decay) * self.p if self.decay else self.p

    def state(self, name: str, initial: float = 0.0, ones: Sequence[int] = ()) -> Shared:
        """A variable of the parameter's shape that lasts from step to step.

        Its size along the axes ``ones`` is 1.
        """
        size, shape = list(self._parameter.sizes[0]), list(self._parameter.sizes[1])
        for axis in ones:
            size[axis] = shape[axis] = 1
        array = np.full(size, initial, numpy_dtype(self.dtype))
        made = self._run.keep(f"{self._parameter.name}.{name}", array, shape)
        layout = layout_of(self._parameter.variable)
        if (
            isinstance(layout, AxisLayout)
            and layout.split.axis not in {axis % len(size) for axis in ones}
            and layout_of(made) is None
        ):
            keep_along(made, layout.split, layout.group, f"{self._run.name}: {made}")
        return made

    def norms(self, *values: Variable) -> list[Variable]:
        """The norms of values of the parameter's shape: scalars, or where several parameters are
        joined vectors with one for each."""
        return self._parameter.norms(*values)

    def spread(self, v: Variable) -> Variable:
        """A factor that depends on :meth:`norms`, broadcast to the parameter's shape."""
        return self._parameter.spread(v)

    def scalar(self, name: str, initial: float) -> Shared:
        """A float64 scalar that lasts, one for the parameters of a group."""
        group = f"group{self._parameter.group}."
        return self._run.keep(f"{group}{name}", np.float64(initial), ())

    def set(self, state: Shared, new: Variable) -> Variable:
        """Let ``new`` be the next value of a state; returns ``new``."""
        self._run.news[state] = new
        return new

    def average(self, name: str, of: Variable, rate: float) -> Variable:
        """The new exponential average ``rate * old + (1 - rate) * of``, stored as state
        ``name``.
        """
        old = self.state(name)
        return self.set(old, self.number(rate) * old + self.number(1 - rate) * of)

    @property
    def t(self) -> Variable:
        """The number of this step, from 1."""
        old = self._run.keep("step", np.float32(0), ())
        # A float, not an int: it lives where the parameters do, and no step waits for the host.
        return cast(self.set(old, old + np.float32(1)), self.dtype)

    def correction(self, rate: float) -> Any:
        """``1 - rate ** t``: how far an average that began at 0 has come."""
        if rate == 0:
            return self.number(1.0)
        # The bound excludes overflow: the quotient needs no stable form.
        return -expm1(minimum(self.t * self.number(np.log(rate)), self.number(0.0)))


@dataclass
class _Run:
    """An optimiser under construction: its state and the next values of it."""

    name: str
    kept: dict[str, Shared]
    news: dict[Shared, Variable]

    def keep(self, name: str, value: Array | Scalar, shape: Sequence[int | None]) -> Shared:
        full = f"{self.name}.{name}"
        if full not in self.kept:
            self.kept[full] = shared(np.asarray(value), name=full, shape=shape)
        return self.kept[full]


def build(kind: str, rule: Rule, arguments: Mapping[str, Any]) -> Updates:
    """The updates of optimiser ``kind``: ``rule`` for each parameter, and the statistics'.

    ``arguments`` are its own by name: ``loss``, ``params``, ``common``, and the rest its options.

    Raises :class:`~symdnn.errors.InputError`, ``TypeMismatch`` or ``ValueError`` for arguments
    that make no sense, each naming the optimiser.
    """
    options = dict(arguments)
    loss, params, common = (options.pop(name) for name in ("loss", "params", "common"))
    run = _Run(str(common.get("name", kind)), {}, {})
    _check(run.name, options, common)
    check_options(run.name, options)
    named = flat_parameters(run.name, params, options, common)
    parallel = DataParallel.of(common.get("distributed"))
    if parallel and parallel.samples is not None and loss is None:
        raise InputError(f"{run.name}: samples= of distributed= weighs a loss; wanted one")
    grads_of = parallel.weighted(loss) if parallel and loss is not None else loss
    found, raw = connected(run.name, named, _gradients(run.name, grads_of, named, common), common)
    used = {p.variable for p in found}
    raw = [-g for g in raw] if common.get("maximize") else raw
    statistics = state_updates(loss) if loss is not None else []
    parts: Parts | None = None
    if parallel is not None:
        means = mean_statistics([new for _, new in statistics], parallel)
        statistics = [(v, mean) for (v, _), mean in zip(statistics, means)]
        if parallel.shard and parallel.ranks.size > 1:
            if parallel.shard == "parameters":  # of values that are equal before
                broadcast_values([p.variable for p in named], parallel.group)
            parts = Parts(run.name, found, raw, parallel)
        else:
            raw = parallel.averaged(raw, [p.variable for p in found])
    micro = _MicroSteps(run, int(common.get("accumulate", 1)))
    units: Iterable[tuple[Parameter, Variable]]
    together = any(common.get(o) is not None for o in ("clip_value", "clip_norm", "loss_scale"))
    if parts is not None and micro.count == 1 and not together:
        units = parts.gradients()  # the updates of a part before later gradients
    else:
        if parts is not None:
            found, raw = map(list, zip(*parts.gradients()))
        units = zip(found, _clipped(found, micro.totals(found, raw), common, parts), strict=True)
    pairs: list[tuple[Shared, Variable]] = []
    for parameter, g in units:
        v = parameter.variable
        new = cast(rule(Step(run, parameter, g)), v.type.dtype)
        pairs += parts.whole(parameter, new) if isinstance(parameter, Part) else [(v, new)]  # type: ignore[union-attr]
    pairs = micro.guarded([*pairs, *run.news.items()])
    pairs += statistics
    if parallel is not None and parallel.ranks.size > 1:
        broadcast_values([p.variable for p in named] + [v for v, _ in statistics], parallel.group)
        pairs += agreement(parallel.ranks)
    unused, given = {p.variable for p in named} - used, [] if parts is None else [parts]
    scale = common.get("loss_scale")
    if scale is None:
        return Updates(pairs, run.kept, unused, given)
    agreed = None if parts is None else parts.everywhere
    scaled = scale.updates(pairs, raw, agreed)
    return Updates(scaled, run.kept | scale.state, unused, given)


def _check(name: str, options: Mapping[str, Any], common: Common) -> None:
    """Refuse unknown options, and those that make no sense."""
    if unknown := sorted(set(common) - set(Common.__annotations__)):
        known = ", ".join((*options, *Common.__annotations__))
        raise InputError(f"{name}: no option {', '.join(unknown)}; there are {known}")
    count = common.get("accumulate", 1)
    if not is_int(count) or count < 1:
        raise ValueError(f"{name}: accumulate={count!r}; wanted an int, 1 or more")
    kinds: dict[str, tuple[str, Any]] = {
        "lr_scale": ("a dict of factors, or a function", lambda v: isinstance(v, Mapping)),
        "decays": ("a function (name, parameter) -> bool", lambda v: False),
        "clip_norm": KINDS["Number"], "clip_value": KINDS["float"], "name": KINDS["str"],
        "maximize": KINDS["bool"],
        "loss_scale": ("a symdnn.LossScale", lambda v: isinstance(v, LossScale)),
        "grads": ("a list of gradients", lambda v: isinstance(v, list | tuple)),
    }  # fmt: skip
    for option, (wanted, takes) in kinds.items():
        value: Any = common.get(option)
        called = option in ("lr_scale", "decays") and callable(value)
        if called:
            check_takes(f"{name}: {option}", value, ["name", "parameter"])
        if value is not None and not called and not takes(value):
            raise InputError(f"{name}: {option}={value!r:.60}; wanted {wanted}")


def _gradients(
    name: str, loss: Variable | None, wrt: Sequence[Parameter], common: Common
) -> list[Variable | None]:
    """The gradient of each parameter, None where the loss does not depend on it."""
    given, scale = common.get("grads"), common.get("loss_scale")
    variables = [p.variable for p in wrt]
    if given is None:
        if loss is None:
            raise InputError(f"{name}: wanted a loss, or the gradients (grads=), got neither")
        if not isinstance(loss.type, TensorType) or loss.type.ndim or not loss.type.is_float:
            advice = "Take its mean" if getattr(loss.type, "ndim", 0) else ""
            raise TypeMismatch(f"{name}: loss", "a float scalar", loss.type, advice)
        take = grad if scale is None else scale.grad
        return list(take(loss, variables, disconnected_inputs="ignore", return_disconnected="none"))
    if len(given) != len(wrt):
        raise InputError(f"{name}: {len(given)} gradients for {len(wrt)} parameters")
    for p, g in zip(variables, given):
        if g is not None and (not isinstance(g, Variable) or g.type.ndim != p.type.ndim):
            got = g.type if isinstance(g, Variable) else repr(g)
            raise TypeMismatch(f"{name}: grads", f"a gradient of {p}, {p.type}", got)
    return list(given)


def _clipped(
    of: Sequence[Parameter], grads: Sequence[Variable], common: Common, parts: Parts | None
) -> list[Variable]:
    found, value, norm = list(grads), common.get("clip_value"), common.get("clip_norm")
    if value is not None:
        found = clip_by_value(found, value)
    if norm is not None and parts is not None:
        return parts.clipped(of, found, norm)
    return found if norm is None else clip_by_norm(found, norm)


class _MicroSteps:
    """One step of ``count`` calls: their gradients are averaged, and only the last call changes
    anything else.
    """

    def __init__(self, run: _Run, count: int) -> None:
        self.run, self.count = run, count
        self.sums: list[tuple[Shared, Variable]] = []

    def totals(self, parameters: Sequence[Parameter], grads: Sequence[Variable]) -> list[Variable]:
        """The averages so far, this call's gradients included."""
        if self.count == 1:
            return list(grads)
        for parameter, g in zip(parameters, grads, strict=True):
            step = Step(self.run, parameter, g)
            old = step.state("sum")
            self.sums.append((old, old + step.g * step.number(1 / self.count)))
        return [new for _, new in self.sums]

    def guarded(self, pairs: list[tuple[Shared, Variable]]) -> list[tuple[Shared, Variable]]:
        """``pairs`` that take effect only in the last call, with those of the sums and
        the counter.
        """
        if self.count == 1:
            return pairs
        done = self.run.keep("micro_step", np.float32(0), ())
        last = eq(done, np.float32(self.count - 1))
        zero = np.float32(0)
        return [
            *((old, switch(_wide(last, old), new, old)) for old, new in pairs),
            *((s, switch(_wide(last, s), cast(zero, s.type.dtype), new)) for s, new in self.sums),
            (done, switch(last, zero, done + np.float32(1))),
        ]


def _wide(condition: Variable, like: Variable) -> Variable:
    """A scalar with as many dimensions as ``like``."""
    ndim = like.type.ndim
    return condition.dimshuffle(["x"] * ndim) if ndim else condition
