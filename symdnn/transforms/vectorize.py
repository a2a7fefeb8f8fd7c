"""Functions of variables over a new dimension: ``vmap`` and ``vectorize_graph``.

Both stand on the batching rules of the ops (:mod:`symdnn.ops.control.batching`): the result is an
expression like any other, which is rewritten, differentiated and vectorised again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np

from symdnn.errors import (
    ArgumentError,
    AxisError,
    DataDependentShape,
    GraphError,
    InputError,
    OptionError,
    ShapeMismatch,
    TypeMismatch,
)
from symdnn.graph.dims import Dim, normal_axis
from symdnn.graph.names.torch_words import advises
from symdnn.graph.origin import make_written
from symdnn.graph.tracing import current_trace, tracing
from symdnn.graph.traverse import toposort, updates_read
from symdnn.graph.type import TensorType
from symdnn.graph.values.structured import Structured
from symdnn.graph.values.test_values_flag import entry_of
from symdnn.graph.values.tree import Tree, flatten, paths, unflatten
from symdnn.graph.variable import Shared, Variable, as_variable
from symdnn.ops.control.batching import Operand, batch_graph
from symdnn.ops.core.lanes import Vectorizing, calling_for_lanes, sizes_of, spread, vectorizing_by
from symdnn.ops.linalg.products import MatchSizes
from symdnn.options import as_kind, is_int

__all__ = ["vectorize_graph", "vmap"]

RANDOMNESS = ("error", "different", "same")


@advises(
    in_dims="in_axes",
    out_dims="out_axes",
    axis_size="a mapped argument has the size",
    chunk_size="a batch is computed at once",
)
def vmap(
    f: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    randomness: str = "error",
) -> Callable[..., Any]:
    """``f``, a function of variables, over a dimension that its arguments have in addition.

    The result takes arguments with one more dimension, calls ``f`` once with variables without it,
    and gives what ``f`` would give for each entry, stacked. There is no loop: each op computes all
    entries at once, as far as it has a rule for that (:meth:`symdnn.graph.op.Op.batch`); other ops
    run in a loop, which ``lowering_report().loops`` of a compiled function names.

    Arguments and results are trees: nests of dicts, lists and tuples of variables, arrays and
    numbers. ``in_axes`` says which dimension of each argument is gone over: an int, negative ones
    from the end; None for an argument that all calls share; or a tree of them, whose leaves stand
    for whole subtrees of the arguments. At least one is no None. Keyword arguments are gone over
    along dimension 0. ``out_axes`` says where the results have the new dimension, in the same
    form; None is for results that are equal in all calls. The dimension may be of size 0.

    ``randomness`` is about draws inside of ``f``: ``"error"`` refuses them; with ``"different"``
    each call draws numbers of its own, with ``"same"`` all draw the same. The streams advance once
    for each call of a compiled function. Updates that ``f`` returns (those of a ``scan``) must be
    equal in all calls. A variable drawn outside of ``f`` is an ordinary value.

    With a condition that differs between the calls ``ifelse`` computes both branches; a ``scan``
    runs until the last of them has ended, and those that have ended keep their states.

    Raises :class:`~symdnn.errors.ShapeMismatch` for dimensions of different sizes,
    :class:`~symdnn.errors.AxisError`, :class:`~symdnn.errors.OptionError` for draws and options,
    :class:`~symdnn.errors.DataDependentShape` where a size would differ between the calls, and
    :class:`~symdnn.errors.GraphError` for updates of shared variables inside. (``torch.vmap``,
    ``jax.vmap``.)

    Gradients for each example:

    >>> import numpy as np, symdnn, symdnn.tensor as T
    >>> w, x = T.dvector("w"), T.dmatrix("x")
    >>> def loss(w, x):
    ...     return (w * x).sum() ** 2
    >>> each = symdnn.vmap(lambda w, x: symdnn.grad(loss(w, x), w), in_axes=(None, 0))(w, x)
    >>> symdnn.function([w, x], each)(np.array([1.0, 2.0]), np.eye(2))
    array([[2., 0.],
           [0., 4.]])
    """
    if not callable(f):
        raise ArgumentError(f"vmap: wanted a function of variables, got {f!r}")
    _check_randomness(randomness)

    @wraps(f)
    def vectorized(*args: Any, **kwargs: Any) -> Any:
        return _called(f, in_axes, out_axes, randomness, args, kwargs)

    return vectorized


def _called(
    f: Callable[..., Any],
    in_axes: Any,
    out_axes: Any,
    randomness: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """The results of ``f`` for all entries of the arguments."""
    given = _Arguments(f, in_axes, args, kwargs)
    begun = make_written()
    inside, named = given.entries()
    with calling_for_lanes():
        result, updates = _with_updates(lambda: f(*inside, **named))
    found, structure = flatten(result, _are_updates)
    names = paths(structure, "the result")
    places = axes_of("out_axes", out_axes, structure)
    groups = [_results(v, name) for v, name in zip(found, names)]
    how = Vectorizing(given.lanes, randomness, begun)
    values = [*(v for g in groups for v in g), *updates.values()]
    batched = iter(_batched(values, given.known, how, fresh=True))
    out: list[Any] = []
    for v, group, axis, name in zip(found, groups, places, names, strict=True):
        own = [next(batched) for _ in group]
        if not group or _are_updates(v):
            out.append(type(v)((k, _of_all(k, o)) for k, o in zip(v, own, strict=True)))
        else:
            out.append(_placed(own[0], axis, given.lanes, name))
    outer = current_trace()
    if outer is not None:
        outer.add({k: _of_all(k, next(batched)) for k in updates})
    return unflatten(structure, out)


def _with_updates(call: Callable[[], Any]) -> tuple[Any, dict[Any, Variable]]:
    """The result of a call, and the updates that functions of ``jit`` make in it."""
    outer = current_trace()
    if outer is None:
        return call(), {}
    with tracing(outer.name) as trace:
        result = call()
    return result, {v: as_variable(new) for v, new in trace.updates.items()}


def vectorize_graph(
    outputs: Any, replace: Mapping[Variable, Any], randomness: str = "error"
) -> Any:
    """``outputs`` with variables replaced by stacks of them (PyTensor's name).

    ``replace`` maps variables of the expressions, inputs or intermediate ones, to variables with
    additional leading dimensions, as many for each; one that has the variable's own number of
    dimensions is shared by all. Outputs that depend on a stack have these dimensions, too; the
    others stay as they are. ``outputs`` is a variable or a tree of them, and so is the result.
    ``randomness`` is as for :func:`vmap`; it concerns the draws that depend on a stack. Raises as
    :func:`vmap` does.

    >>> import numpy as np, symdnn, symdnn.tensor as T
    >>> x, xs = T.dvector("x"), T.dmatrix("xs")
    >>> sums = symdnn.vectorize_graph((x ** 2).sum(), replace={x: xs})
    >>> symdnn.function([xs], sums)(np.arange(4.0).reshape(2, 2))
    array([ 1., 13.])
    """
    _check_randomness(randomness)
    found, structure = flatten(outputs)
    results = [as_variable(v) for v in found]
    as_kind("vectorize_graph: replace", replace, Mapping, "a dict from variables to stacks of them")
    given = {v: as_variable(x) for v, x in replace.items()}
    for v, x in given.items():
        if not isinstance(v, Variable) or x.type.dtype != v.type.dtype or x.type.ndim < v.type.ndim:
            raise TypeMismatch(
                "vectorize_graph", f"a stack of {v} ({v.type}), with leading dimensions", x.type
            )
    depths = {x.type.ndim - v.type.ndim for v, x in given.items()} - {0}
    if len(depths) > 1:
        raise ShapeMismatch(
            "vectorize_graph", "as many leading dimensions for each variable", sorted(depths)
        )
    for left in range(max(depths, default=0), 0, -1):
        # The innermost dimension first: what an op does to it is then batched over the others.
        wide = {v: x for v, x in given.items() if x.type.ndim > v.type.ndim}
        entries = {v: _without_leading(x, left - 1, v) for v, x in wide.items()}
        lanes = next(iter(sizes_of(x)[0] for x in entries.values()))
        known = {v: Operand(x, True) for v, x in entries.items()}
        found_now = _batched(results, known, Vectorizing(lanes, randomness, None), fresh=False)
        results = [o.value for o in found_now]
        given = {v: x for v, x in given.items() if v not in wide}
        given |= {entries[v]: x for v, x in wide.items()}
    shared = {v: Operand(x, False) for v, x in given.items() if x is not v}
    return unflatten(structure, [o.value for o in batch_graph(results, shared)])


def _without_leading(x: Variable, count: int, v: Variable) -> Variable:
    """``x`` itself, or a variable for an entry of its first ``count`` dimensions."""
    return x if not count else Variable(TensorType(x.type.dtype, x.type.shape[count:]), v.name)


def _check_randomness(randomness: str) -> None:
    if randomness not in RANDOMNESS:
        raise OptionError(f"randomness={randomness!r}: wanted one of {', '.join(RANDOMNESS)}")


# -- arguments ------------------------------------------------------------------------------------


def axes_of(what: str, axes: Any, structure: Tree) -> list[int | None]:
    """The axis of each leaf, by a tree whose leaves stand for whole subtrees of ``structure``."""
    if axes is None or is_int(axes):
        return [None if axes is None else int(axes)] * structure.leaves
    children: list[Any] | None = None
    if isinstance(axes, list | tuple) and len(axes) == len(structure.children):
        wide = structure.kind in (list, tuple) or hasattr(structure.kind, "_fields")
        children = list(axes) if wide else None
    elif isinstance(axes, Mapping) and isinstance(structure.extra, tuple):
        same = set(axes) == set(structure.extra)
        children = [axes[k] for k in structure.extra] if same else None
    if children is None:
        raise AxisError(
            "vmap", f"{what} as an int, None, or a tree of them like {structure}", repr(axes)
        )
    return [a for c, s in zip(children, structure.children) for a in axes_of(what, c, s)]


class _Arguments:
    """The arguments of a call: variables for the function, and the stacks that they stand for."""

    def __init__(
        self, f: Any, in_axes: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        values, self.structure = flatten(args)
        named, self.named = flatten(dict(kwargs))
        if isinstance(in_axes, list):
            in_axes = tuple(in_axes)
        axes = [*axes_of("in_axes", in_axes, self.structure), *[0] * len(named)]
        names = [*paths(self.structure, "args"), *paths(self.named, "kwargs")]
        self.leaves = [self._leaf(v, a, n) for v, a, n in zip([*values, *named], axes, names)]
        stacked = [(v, n) for (v, a), n in zip(self.leaves, names) if a is not None]
        if not stacked:
            title = getattr(f, "__name__", repr(f))
            raise AxisError("vmap", f"an argument of {title} with an axis", "in_axes of None alone")
        self.lanes = self._lanes(stacked)
        self.known: dict[Variable, Operand] = {}

    def _leaf(self, value: Any, axis: int | None, name: str) -> tuple[Any, int | None]:
        """The argument with the dimension of the lanes first, if it has one."""
        if isinstance(value, Structured):
            raise InputError(
                f"vmap: {name} is a sparse matrix, of which there are no stacks. Pass its dense "
                "form, or use it from outside of the function"
            )
        if axis is None:
            is_array = isinstance(value, np.ndarray | np.generic)
            return (as_variable(value) if is_array else value), None
        try:
            v = as_variable(value)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"vmap: {name} is {value!r}, which has no dimensions. Pass None as its in_axes"
            ) from error
        if v.type.ndim == 0:
            raise AxisError("vmap", f"{name} with a dimension {axis}", v.type, "Pass None for it")
        at = normal_axis(f"vmap: in_axes of {name}", axis, v.type.ndim)
        return (v if at == 0 else _moved(v, at, 0)), 0

    def _lanes(self, stacked: Sequence[tuple[Variable, str]]) -> Dim:
        """The number of lanes; sizes that are not known yet are compared in a call."""
        sizes = {v.type.shape[0] for v, _ in stacked} - {None}
        if len(sizes) > 1:
            text = ", ".join(f"{n}: {v.type.shape[0]}" for v, n in stacked)
            raise ShapeMismatch("vmap", "dimensions of one size to go over", text)
        whole = next((v for v, _ in stacked if v.type.shape[0] is not None), stacked[0][0])
        same = MatchSizes(((0, 0),))
        differ = {v for v, _ in stacked if v.type.shape[0] is None and v is not whole}
        self.leaves = [
            (same(v, whole), a) if a is not None and v in differ else (v, a) for v, a in self.leaves
        ]
        return sizes_of(whole)[0]

    def entries(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with which the function is called once."""
        inside: list[Any] = []
        for v, a in self.leaves:
            if a is not None:
                entry = v.type.entry()(v.name)
                entry_of(entry, v, 0)
                self.known[entry] = Operand(v, True)
                inside.append(entry)
            else:
                inside.append(v)
        count = self.structure.leaves
        args = unflatten(self.structure, inside[:count])
        return args, unflatten(self.named, inside[count:])


def _moved(v: Variable, source: int, target: int) -> Variable:
    order = [d for d in range(v.type.ndim) if d != source]
    order.insert(target, source)
    return v.dimshuffle(*order)


# -- results --------------------------------------------------------------------------------------


def _are_updates(value: Any) -> bool:
    """Whether a result is a dict of updates, such as the second one of ``scan``."""
    return isinstance(value, Mapping) and any(isinstance(k, Shared) for k in value)


def _results(value: Any, name: str) -> list[Variable]:
    """The variables of one result; several of a dict of updates."""
    if _are_updates(value):
        return [as_variable(v) for v in value.values()]
    if isinstance(value, Structured):
        raise InputError(f"vmap: {name} is a sparse matrix, of which there are no stacks")
    if isinstance(value, Variable | np.ndarray | np.generic | int | float | complex | bool):
        return [as_variable(value)]
    if isinstance(value, Mapping) and not value:  # no updates
        return []
    raise InputError(f"vmap: wanted variables as results, got {value!r} ({name})")


def _of_all(target: Variable, new: Operand) -> Variable:
    if new.stacked:
        raise GraphError(
            f"vmap: the function returns an update of {target} that differs between the entries: "
            "each of them would update it. Return the new values, and update outside"
        )
    return new.value


def _placed(o: Operand, axis: int | None, lanes: Dim, name: str) -> Variable:
    """The result with the dimension of the lanes where the user wants it."""
    if o.lengths is not None:
        raise DataDependentShape(
            f"vmap: the entries of {name} have different sizes: a loop ends after a number of "
            "steps that differs between them. Return its last entry, y[-1], or its length"
        )
    if axis is None:
        if o.stacked:
            raise AxisError(
                "vmap", f"{name} equal for all entries, as out_axes is None", o.value.type,
                "Give it an axis",
            )  # fmt: skip
        return o.value
    whole = o.value if o.stacked else spread(o.value, lanes)
    at = normal_axis(f"vmap: out_axes of {name}", axis, whole.type.ndim)
    return whole if at == 0 else _moved(whole, 0, at)


# -- graphs and their streams ---------------------------------------------------------------------


def _batched(
    results: Sequence[Variable],
    known: Mapping[Variable, Operand],
    how: Vectorizing,
    fresh: bool,
) -> list[Operand]:
    """The batched forms of ``results``; streams that they draw from advance by all their draws.

    With ``fresh`` the streams of a function that was called for this are changed. Otherwise copies
    of them, of the same states, take their place.
    """
    _check_statistics(results, known)
    updated = _updated(results, known, how if fresh else None)
    if not fresh and updated:
        copies = {v: v.clone() for v in updated}
        known = {**known, **{v: Operand(c, False) for v, c in copies.items()}}
    else:
        copies = {v: v for v in updated}
    with vectorizing_by(how):
        found = batch_graph([*results, *updated.values()], known)
    for v, o in zip(updated, found[len(results) :]):
        _advance(v, copies[v], o)
    return found[: len(results)]


def _updated(
    results: Sequence[Variable], known: Mapping[Variable, Operand], how: Vectorizing | None
) -> dict[Shared, Variable]:
    """Shared variables with a default update that the batch changes, and that update.

    These are updates that depend on a stack, or, in a function, that its draws make.
    """

    def update(v: Shared, new: Variable) -> Variable | None:
        nodes = toposort([new], known)
        stacked = any(u in known for n in nodes for u in n.inputs) or new in known
        own = how is not None and new.owner is not None and how.covers(new.owner.written)
        return new if stacked or own else None

    return updates_read(results, known, update)


def _advance(v: Shared, copy: Variable, new: Operand) -> None:
    if new.stacked:
        raise GraphError(
            f"vmap: the default update of {v} depends on values that differ between the entries: "
            "each of them would update it. Update it outside, from the results"
        )
    assert isinstance(copy, Shared)
    copy.default_update = new.value


def _check_statistics(results: Iterable[Variable], known: Mapping[Variable, Operand]) -> None:
    """Refuse layers inside that update their statistics by values of one entry."""
    reached = set(known)
    for node in toposort(results, known):
        if not any(v in reached for v in node.inputs):
            continue
        reached.update(node.outputs)
        for v in node.outputs:
            if v._tag is not None and hasattr(v._tag, "state_updates"):
                names = ", ".join(str(target) for target, *_ in v.tag.state_updates)
                raise GraphError(
                    f"vmap: {node.op} updates {names} by statistics that differ between the "
                    "entries. Put the layer into evaluation, or build it without running "
                    f"statistics (momentum=None)\nIt was made here:\n{node.origin.text()}"
                )
