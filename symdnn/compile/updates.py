"""Givens and updates: replacements of variables, and new values of shared variables."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from symdnn.errors import GraphError, ShapeMismatch, TypeMismatch
from symdnn.graph.operators import operator
from symdnn.graph.traverse import ancestors, clone_graph, needed_by, updates_read
from symdnn.graph.type import TensorType
from symdnn.graph.values.value import as_numpy
from symdnn.graph.variable import Constant, Shared, Variable

__all__ = [
    "apply_givens",
    "as_pairs",
    "collect_updates",
    "default_updates",
    "fitting",
    "respecify",
    "unused",
]


def as_pairs(items: Any, what: str) -> list[tuple[Any, Any]]:
    """A dict, or an iterable of pairs, as a list of pairs."""
    if items is None:
        return []
    if not isinstance(items, Iterable) or isinstance(items, str):
        do = f"Call it, {items.__name__}(...)" if inspect.isfunction(items) else ""
        raise TypeMismatch(what, "a dict or a list of (variable, expression) pairs", items, do)
    pairs = list(items.items()) if isinstance(items, Mapping) else list(items)
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise TypeMismatch(what, "a dict or a list of (variable, expression) pairs", repr(pair))
    return [tuple(p) for p in pairs]


def apply_givens(outputs: Sequence[Variable], givens: object) -> list[Variable]:
    """The graph of ``outputs`` with each variable of ``givens`` replaced.

    Raises :class:`GraphError` where the givens form a loop or name a variable twice, and
    ``TypeMismatch`` where a replacement has another dtype or ndim.
    """
    replace: dict[Variable, Variable] = {}
    for old, new in as_pairs(givens, "givens"):
        if not isinstance(old, Variable):
            raise TypeMismatch("givens", "a variable as key", type(old).__name__)
        if old in replace:
            raise GraphError(f"givens: {old} is given twice")
        replace[old] = fitting(old, new, "givens")
    if not replace:
        return list(outputs)
    done: dict[Variable, Variable] = {}
    for old in _dependencies_first(replace):
        new = replace[old]
        done[old] = clone_graph([new], done)[new]
    memo = clone_graph(outputs, done)
    return [memo[v] for v in outputs]


def _dependencies_first(replace: Mapping[Variable, Variable]) -> list[Variable]:
    # A variable in its own replacement is the replaced one: {w: w + 1}.
    reads = {
        old: {v for v in ancestors([new]) if v in replace and v is not old}
        for old, new in replace.items()
    }
    order: list[Variable] = []
    while len(order) < len(reads):
        ready = [v for v in reads if v not in order and reads[v] <= set(order)]
        if not ready:
            loop = ", ".join(str(v) for v in reads if v not in order)
            raise GraphError(f"givens: {loop} depend on each other (a loop)")
        order += ready
    return order


def collect_updates(updates: object) -> list[tuple[Shared, Variable]]:
    """The user's updates as pairs of a shared variable and its next value."""
    pairs: list[tuple[Shared, Variable]] = []
    seen: set[Variable] = set()
    for target, new in as_pairs(updates, "updates"):
        if not isinstance(target, Shared):
            raise TypeMismatch(
                "updates",
                "a shared variable as key",
                f"{target} ({type(target).__name__})",
                "Make it with symdnn.shared(value)",
            )
        if target in seen:
            raise GraphError(f"updates: {target} is updated twice")
        seen.add(target)
        pairs.append((target, fitting(target, new, "updates")))
    return pairs


def default_updates(
    outputs: Sequence[Variable],
    updated: Iterable[Variable],
    no_default_updates: bool | Sequence[Variable] = False,
    inputs: Iterable[Variable] = (),
) -> list[tuple[Shared, Variable]]:
    """Default updates of shared variables that ``outputs`` (or these updates) read.

    ``no_default_updates`` is True (none) or a list of variables to leave alone; those in
    ``updated`` have an explicit update. Expressions that ``inputs`` replace are not searched.
    """
    if no_default_updates is True:
        return []
    without = no_default_updates or ()
    if not isinstance(without, list | tuple | set | frozenset):
        raise TypeMismatch("no_default_updates", "a bool or a list of variables", repr(without))
    left_alone: set[Variable] = {*without, *updated}

    def update(v: Shared, new: Variable) -> Variable | None:
        return None if v in left_alone else fitting(v, new, "default_update")

    return [*updates_read(outputs, set(inputs), update).items()]


def fitting(old: Variable, new: object, what: str) -> Variable:
    """``new`` as a variable that may replace ``old``; raises ``TypeMismatch`` if it may not."""
    if not isinstance(new, Variable):
        new = Constant(as_numpy(new, old.type, f"{what} of {old}", allow_downcast=None))
    expression: Variable = new
    if _fits(old, expression):
        _check_names(old, expression, what)
        return expression
    if isinstance(new, Constant) and new.type.ndim == old.type.ndim:
        cast = np.asarray(new.data).astype(old.type.numpy)
        if np.array_equal(cast, new.data):
            return Constant(cast, new.name)
    do = "Cast it: expression.astype(...)" if _same_ndim(old, new) else "Reshape or index it"
    if what == "updates" and _same_ndim(old, new) and new.type.dtype == old.type.dtype:
        do = "Declare the dimension with T.patternbroadcast(expression, ...)"
    raise TypeMismatch(f"{what} of {old}", str(old.type), f"{new} of type {new.type}", do)


def _check_names(old: Variable, new: Variable, what: str) -> None:
    if not old.type.agrees_in_names(new.type):
        do = "Give them a name in common; see Dim and T.specify_shape"
        raise ShapeMismatch(
            f"{what} of {old}", str(old.type), f"{new} of type {new.type}, with other names", do
        )


def _same_ndim(old: Variable, new: Variable) -> bool:
    return (
        isinstance(old.type, TensorType)
        and isinstance(new.type, TensorType)
        and old.type.ndim == new.type.ndim
    )


def _fits(old: Variable, new: Variable) -> bool:
    return bool(old.type.accepts(new.type))


def respecify(new: Variable, old: Variable) -> Variable:
    """``new`` with the static dimensions of ``old``, where its own are unknown."""
    if isinstance(old.type, TensorType) and any(
        a is not None and b is None for a, b in zip(old.type.shape, new.type.shape)
    ):
        return operator("specify_type")(new, old.type)
    return new


def unused(inputs: Iterable[Variable], outputs: Sequence[Variable]) -> list[Variable]:
    """Inputs that ``outputs`` do not depend on, not even by a static size."""
    needed = needed_by(outputs)
    return [v for v in inputs if v not in needed]
