"""A function traced on variables of its own, so that its results may be moved to others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from symdnn.errors import TypeMismatch
from symdnn.graph.tracing import current_trace, tracing
from symdnn.graph.traverse import clone_graph, leaves, updates_read
from symdnn.graph.values.test_values_flag import entry_of
from symdnn.graph.values.tree import Tree, flatten, paths, unflatten
from symdnn.graph.variable import Shared, Variable, as_variable
from symdnn.ops.core.python_numbers import with_own_dtype
from symdnn.transforms.arguments import as_leaf
from symdnn.transforms.jit import split_updates

__all__ = ["Traced", "as_numbers", "draws_of", "fitting_leaves"]


class Traced:
    """``f`` of trees of new variables, one for each leaf of ``args`` and ``kwargs``.

    ``inside`` are those variables, ``outside`` the leaves that they stand for; a string or another
    object that is no array reaches ``f`` as it is. So an argument that
    is given twice, or that the function closes over too, is differentiated only where it is meant.
    """

    def __init__(
        self, f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
    ) -> None:
        self.name = getattr(f, "__name__", type(f).__name__)
        #: The names of arguments that may be given by position.
        self.names = _positional(f)
        entries, tree = flatten((tuple(args), dict(kwargs or {})))
        given = [_leaf(v) for v in entries]
        self.outside = [v for v in given if isinstance(v, Variable)]
        self.inside = [_like(v) for v in self.outside]
        own = iter(self.inside)
        traced = [next(own) if isinstance(v, Variable) else v for v in given]
        self.args, self.kwargs = unflatten(tree, traced)
        with tracing(self.name) as trace:
            result, updates = split_updates(f(*self.args, **self.kwargs))
            trace.add(updates)
        self.result, self.updates = result, trace.updates

    def results(self, aux: bool) -> tuple[Any, Any]:
        """The result and, if the function returns a pair with further results, these."""
        if not aux:
            return self.result, None
        if not isinstance(self.result, tuple) or len(self.result) != 2:
            raise TypeMismatch(self.name, "a pair (result, further results)", self.result)
        return self.result

    def moved(self, tree: Any) -> Any:
        """A tree of the function's expressions as expressions of the caller's variables.

        Updates of shared variables go to the function that is traced. The states of draws whose
        sizes or parameters follow from the arguments advance by the caller's variables, too.
        """
        entries, structure = flatten(tree)
        found = [as_variable(v) for v in entries]
        news = {v: as_variable(new) for v, new in self.updates.items()}
        draws = draws_of([*found, *news.values()], self.inside)
        memo = clone_graph([*found, *news.values(), *draws.values()], self._places())
        for v, new in draws.items():
            v.default_update = memo[new]
        outer = current_trace()
        if outer is not None:
            outer.add({v: memo[new] for v, new in news.items()})
        return unflatten(structure, as_numbers([memo[v] for v in found], found))

    def _places(self) -> dict[Variable, Variable]:
        return dict(zip(self.inside, self.outside, strict=True))


def _positional(f: Callable[..., Any]) -> list[str]:
    """The names of a function's positional arguments; none of one that has no signature."""
    try:
        given = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def draws_of(values: Sequence[Variable], inside: Sequence[Variable]) -> dict[Shared, Variable]:
    """The states that ``values`` draw from whose default updates depend on ``inside``, and these.

    Where the values are moved to other variables, the updates have to be, too.
    """
    own = set(inside)

    def update(v: Shared, new: Variable) -> Variable | None:
        return None if own.isdisjoint(leaves([new])) else new

    return updates_read(values, (), update)


def _leaf(value: Any) -> Any:
    found = as_leaf(value)
    return with_own_dtype(found) if isinstance(found, Variable) else found


def _like(v: Variable) -> Variable:
    made: Variable = v.type(v.name)
    made.number_kind = v.number_kind
    entry_of(made, v)
    return made


def as_numbers(values: Sequence[Variable], like: Sequence[Variable]) -> list[Variable]:
    """Derivatives that stand for Python numbers where the variables ``like`` do."""
    for v, w in zip(values, like, strict=True):
        if w.number_kind is not None and v.owner is not None and v.type.dtype == w.type.dtype:
            v.number_kind = w.number_kind
    return list(values)


def fitting_leaves(
    name: str, what: str, tree: Tree, like: Sequence[Variable], given: Any
) -> list[Variable | None]:
    """The leaves of ``given``, a tree for values of the structure ``tree``: each of the dtype and
    rank of its value, or None (for a whole part, too), which counts as zeros.

    Raises :class:`~symdnn.errors.TypeMismatch` for another structure, or another rank.
    """
    entries: list[Any] = []
    _matched(name, what, tree, given, entries)
    found: list[Variable | None] = []
    for v, g, where in zip(like, entries, paths(tree, what), strict=True):
        if g is None or not v.type.is_differentiable:
            found.append(None)
            continue
        g = as_variable(g)
        if g.type.ndim != v.type.ndim:
            raise TypeMismatch(f"{name}: {where}", f"the type {v.type}", g.type)
        found.append(g if g.type.dtype == v.type.dtype else g.astype(v.type.dtype))
    return found


def _matched(name: str, what: str, tree: Tree, given: Any, into: list[Any]) -> None:
    if given is None:
        into += [None] * tree.leaves
    elif tree.kind is None:
        into.append(given)
    else:
        # The parts of one level: each child is a leaf of this flattening.
        parts, got = flatten(given, is_leaf=lambda v: v is not given)
        if got.kind is not tree.kind or got.extra != tree.extra or len(parts) != len(tree.children):
            raise TypeMismatch(name, f"{what} of the structure {tree}", got)
        for part, child in zip(parts, tree.children, strict=True):
            _matched(name, what, child, part, into)
