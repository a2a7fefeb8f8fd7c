"""Derivatives of functions of arrays: ``value_and_grad``, ``jvp``, ``vjp``, ``linearize``, ``hvp``.

Functions that these return or run are those of :func:`symdnn.jit`: of arrays they are compiled, of
variables (and inside of other traced functions) they are expressions. So they may be nested.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symdnn.autodiff import grad
from symdnn.autodiff_rows import jacobian
from symdnn.errors import ArgumentError, NonDifferentiable, ShapeMismatch
from symdnn.graph.backprop import nodes_between
from symdnn.graph.names.torch_words import advises
from symdnn.graph.operators import install_operators, operator
from symdnn.graph.traverse import clone_graph
from symdnn.graph.type import TensorType
from symdnn.graph.values.tree import Tree, flatten, paths, register_tree, unflatten
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.options import as_function
from symdnn.stable.sweeps import forward_sweep
from symdnn.transforms.arguments import as_leaf
from symdnn.transforms.jit import Jit
from symdnn.transforms.traced import Traced, as_numbers, fitting_leaves

__all__ = [
    "grad_of_function", "hessian_of_function", "hvp", "jacobian_of_function", "jvp", "linearize",
    "value_and_grad", "vjp",
]  # fmt: skip

Function = Callable[..., Any]


@advises()
def value_and_grad(
    f: Function, argnums: int | str | Sequence[int | str] = 0, has_aux: bool = False
) -> Any:
    """A function of the same arguments: the value of ``f`` and its gradient.

    ``f`` returns a real scalar, or with ``has_aux`` a pair of it and further results, which are
    returned beside the value: ``(value, aux), gradient``. ``argnums`` is the number or the name of
    the argument with respect to which it is differentiated; the gradient has its structure. For
    several it is a tuple. A leaf that the value does not depend on has a gradient of zeros. (The
    meaning of ``jax.value_and_grad``.)

    >>> import numpy as np
    >>> import symdnn
    >>> f = symdnn.value_and_grad(lambda p, x: ((p["w"] * x + p["b"]) ** 2).sum())
    >>> value, slope = f({"w": np.float64(2), "b": np.float64(1)}, np.array([1.0, 2.0]))
    >>> float(value), {k: float(v) for k, v in slope.items()}
    (34.0, {'b': 16.0, 'w': 26.0})
    """

    def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
        traced = Traced(f, args, kwargs)
        result, aux = traced.results(has_aux)
        cost = _scalar(result, traced.name)
        several = not isinstance(argnums, int | str)
        chosen = argnums if not isinstance(argnums, int | str) else [argnums]
        wanted = [_argument(traced, n) for n in chosen]
        leaves, tree = flatten(wanted)
        slopes = grad(cost, leaves, disconnected_inputs="ignore")
        grads = unflatten(tree, as_numbers(slopes, leaves))
        gradient = tuple(grads) if several else grads[0]
        return traced.moved(((cost, aux) if has_aux else cost, gradient))

    return _like_function(f, value_and_gradient, "value_and_grad")


def grad_of_function(f: Function, wrt: Any = 0, has_aux: bool = False) -> Any:
    """The gradient alone of :func:`value_and_grad`; with ``has_aux`` ``(gradient, aux)``."""
    both = value_and_grad(f, wrt, has_aux)

    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return _like_function(f, gradient, "grad")


def jacobian_of_function(f: Function, wrt: Any = 0, has_aux: bool = False) -> Any:
    """A function of the same arguments: all derivatives of all results of ``f``.

    It has the structure of the results, in each leaf that of the arguments ``wrt`` (as argnums of
    :func:`value_and_grad`), and there an array of the result's shape followed by the argument's.
    With ``has_aux`` ``f`` returns a pair, of which only the first is differentiated; the result is
    ``(derivatives, aux)``. (``jax.jacrev``.)

    >>> import numpy as np
    >>> import symdnn
    >>> symdnn.jacobian(lambda x: {"square": x**2})(np.array([1.0, 3.0]))
    {'square': array([[2., 0.],
           [0., 6.]])}
    """

    def derivatives(*args: Any, **kwargs: Any) -> Any:
        traced = Traced(f, args, kwargs)
        result, aux = traced.results(has_aux)
        several = not isinstance(wrt, int | str)
        wanted = [_argument(traced, n) for n in (wrt if several else [wrt])]
        leaves, tree = flatten(wanted)
        results, outer = flatten(result)
        found = []
        for value in results:
            slopes = as_numbers(_all_slopes(_real(value, traced.name), leaves), leaves)
            each = unflatten(tree, slopes)
            found.append(tuple(each) if several else each[0])
        moved = unflatten(outer, found)
        return traced.moved((moved, aux) if has_aux else moved)

    return _like_function(f, derivatives, "jacobian")


def hessian_of_function(f: Function, wrt: Any = 0) -> Any:
    """All second derivatives of a function with a scalar result: the Jacobian of its gradient.

    It has the structure of the arguments ``wrt`` twice. (``jax.hessian``.)
    """
    return _like_function(f, jacobian_of_function(grad_of_function(f, wrt), wrt), "hessian")


def _all_slopes(value: Variable, leaves: Sequence[Variable]) -> list[Variable]:
    """The derivatives of an array, each of its shape and then the leaf's."""
    if value.type.ndim == 0:
        return list(grad(value, list(leaves), disconnected_inputs="ignore"))
    rows = jacobian(value.flatten(), list(leaves), disconnected_inputs="ignore")
    if value.type.ndim == 1:
        return list(rows)
    own = [value.shape[i] for i in range(value.type.ndim)]
    return [
        r.reshape([*own, *(v.shape[i] for i in range(v.type.ndim))], ndim=len(own) + v.type.ndim)
        for r, v in zip(rows, leaves, strict=True)
    ]


def _scalar(value: Any, name: str) -> Variable:
    leaves, tree = flatten(value)
    if tree.kind is not None:
        raise NonDifferentiable(
            f"{name}: wanted a scalar to differentiate, got the tree {tree}; a function that "
            "returns further results is differentiated with has_aux=True"
        )
    return _real(leaves[0], name)


def _real(value: Any, name: str) -> Variable:
    found = as_variable(value)
    if found.type.is_discrete:
        raise NonDifferentiable(
            f"{name}: wanted a real result to differentiate, got {found.type}: of whole numbers "
            "all derivatives are zero. Pass floats (2.0 in place of 2), or cast the result"
        )
    return found


def _argument(traced: Traced, which: int | str) -> Any:
    """An argument by its position, or by its name."""
    if which not in traced.kwargs and which in traced.names[: len(traced.args)]:
        which = traced.names.index(str(which))
    if isinstance(which, int) and -len(traced.args) <= which < len(traced.args):
        return traced.args[which]
    if which in traced.kwargs:
        return traced.kwargs[which]
    named = ", ".join(traced.kwargs) or "none"
    raise ArgumentError(
        f"{traced.name}: no argument {which!r} to differentiate; by position the call has "
        f"{len(traced.args)}, by name {named}"
    )


def _like_function(f: Function, made: Function, what: str) -> Jit:
    """``made`` as a compiled function with the arguments of ``f``, static ones too."""
    functools.update_wrapper(made, f, assigned=("__doc__",), updated=())
    made.__name__ = f"{what}({getattr(f, '__name__', type(f).__name__)})"
    if isinstance(f, Jit):
        return Jit(made, f.static_argnames, f.mode, f.max_traces)
    return Jit(made)


# -- forward mode ---------------------------------------------------------------------------------


@advises()
def jvp(f: Function, primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """The value of ``f`` at ``primals`` and its derivative along ``tangents``, by forward mode.

    ``primals`` is the tuple of arguments of ``f``; ``tangents`` has the same structure, with None
    for zeros. Returns ``(result, tangent)`` (with ``has_aux`` ``(result, tangent, aux)``), both of
    the structure of the result. (The meaning of ``jax.jvp``.) It may be nested for derivatives of
    higher order.

    >>> import symdnn
    >>> value, slope = symdnn.jvp(lambda x: x**3, (2.0,), (1.0,))
    >>> float(value), float(slope)
    (8.0, 12.0)
    """
    _check_tangents("jvp", primals, tangents)
    return _compiled(f, "jvp", has_aux)(tuple(primals), tuple(tangents))


def _check_tangents(name: str, primals: Any, tangents: Any) -> None:
    """Refuse what is no tuple of arguments, and arrays of other shapes than their arguments."""
    for what, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, tuple | list):
            raise ArgumentError(
                f"{name}: wanted {what} as the tuple of the function's arguments, such as (x,), "
                f"got {type(given).__name__}"
            )
    _check_shapes(f"{name}: tangents", _shapes(tuple(primals)), tuple(tangents))


Shapes = tuple[list[tuple[int, ...] | None], Tree]


def _shapes(value: Any) -> Shapes:
    """The shape of each array of a tree; those of variables are known in a call only."""
    leaves, tree = flatten(value)
    return [None if isinstance(v, Variable) else np.shape(v) for v in leaves], tree


def _check_shapes(what: str, wanted: Shapes, given: Any) -> None:
    """Refuse arrays of other sizes than those that are known. (Ranks are compared by types.)"""
    got, tree = _shapes(given)
    if tree == wanted[1]:
        for a, b, where in zip(wanted[0], got, paths(tree, what), strict=True):
            if a is not None and b is not None and len(a) == len(b) and a != b:
                raise ShapeMismatch(where, f"the shape {a} of its value", b)


def _jvp(f: Function, has_aux: bool) -> Function:
    def both(primals: Any, tangents: Any) -> Any:
        traced = Traced(f, primals)
        result, aux = traced.results(has_aux)
        outputs, out_tree = flatten(result)
        values = [as_variable(v) for v in outputs]
        tree = _of_arrays(primals, traced)
        given = fitting_leaves("jvp", "tangents", tree, traced.outside, tangents)
        known = {v: t for v, t in zip(traced.inside, given, strict=True) if t is not None}
        out = (result, unflatten(out_tree, _tangents(known, values)))
        return traced.moved((*out, aux) if has_aux else out)

    return both


def _of_arrays(primals: Any, traced: Traced) -> Tree:
    """The structure of the arguments, which must all be arrays."""
    leaves, tree = flatten(primals)
    if len(leaves) != len(traced.outside):
        strange = [v for v in leaves if not isinstance(as_leaf(v), Variable)]
        raise ArgumentError(
            f"{traced.name}: arguments to differentiate must be arrays, got {strange[0]!r}; close "
            "over it"
        )
    return tree


def _tangents(known: dict[Variable, Variable], values: Sequence[Variable]) -> list[Variable]:
    found = forward_sweep(known, values)
    zeros = operator("zeros_like")
    return as_numbers([zeros(v) if t is None else t for v, t in zip(values, found)], values)


def hvp(f: Function, primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """The Hessian of ``f``, which returns a scalar, at ``primals`` times ``tangents``.

    It is forward mode over reverse mode, without the Hessian itself. The result is a tuple with a
    tree for each argument.

    >>> import numpy as np
    >>> import symdnn
    >>> symdnn.hvp(lambda x: (x**3).sum(), (np.array([1.0, 2.0]),), (np.array([1.0, 10.0]),))
    (array([  6., 120.]),)
    """
    _check_tangents("hvp", primals, tangents)
    return _compiled(f, "hvp", len(primals))(tuple(primals), tuple(tangents))


def _hvp(f: Function, count: int) -> Function:
    slope = grad_of_function(f, tuple(range(count)))
    return lambda primals, tangents: jvp(slope, primals, tangents)[1]


# -- linear functions -----------------------------------------------------------------------------


@advises()
def vjp(f: Function, *primals: Any, has_aux: bool = False) -> Any:
    """The value of ``f`` at ``primals``, and the function that pulls cotangents back.

    The latter takes a tree like the result and returns a tuple with the gradient for each argument.
    What it needs of the forward pass is computed once and kept in it. Returns ``(result,
    pull_back)``, with ``has_aux`` ``(result, pull_back, aux)``. (The meaning of ``jax.vjp``.)

    >>> import numpy as np
    >>> import symdnn
    >>> value, pull_back = symdnn.vjp(lambda x, y: x * y, np.float64(3), np.float64(4))
    >>> float(value), [float(g) for g in pull_back(1.0)]
    (12.0, [4.0, 3.0])
    """
    found = _compiled(f, "vjp", has_aux)(*primals)
    found[1].shapes = _shapes((found[0],))
    return found


def _vjp(f: Function, has_aux: bool) -> Function:
    def split(*primals: Any) -> Any:
        traced = Traced(f, primals)
        result, aux = traced.results(has_aux)
        outputs, out_tree = flatten(result)
        values = [as_variable(v) for v in outputs]
        seeds: list[Variable] = [v.type() for v in values]
        known: dict[Variable, Variable] = {}
        for v, s in zip(values, seeds, strict=True):
            if v.type.is_differentiable:
                known[v] = known[v] + s if v in known else s
        found = grad(None, traced.inside, known_grads=known, disconnected_inputs="ignore")
        found = as_numbers(found, traced.inside)
        linear = _linear("vjp", values, seeds, out_tree, found, _of_arrays(primals, traced))
        return traced.moved((result, linear, *((aux,) if has_aux else ())))

    return split


def linearize(f: Function, *primals: Any) -> Any:
    """The value of ``f`` at ``primals``, and its derivative there as a function of tangents.

    What the derivative needs of the value's computation is kept in it, so it costs less than
    :func:`jvp` if it is called often. Returns ``(result, derivative)``. (The meaning of
    ``jax.linearize``.)

    >>> import symdnn
    >>> import symdnn.tensor as T
    >>> value, derivative = symdnn.linearize(lambda x: T.exp(x), 0.0)
    >>> float(value), float(derivative(2.0))
    (1.0, 2.0)
    """
    found = _compiled(f, "linearize", False)(*primals)
    found[1].shapes = _shapes(primals)
    return found


def _linearize(f: Function, _: bool) -> Function:
    def split(*primals: Any) -> Any:
        traced = Traced(f, primals)
        outputs, out_tree = flatten(traced.result)
        values = [as_variable(v) for v in outputs]
        seeds: list[Variable] = [v.type() for v in traced.inside]
        known = {v: s for v, s in zip(traced.inside, seeds) if v.type.is_differentiable}
        found = _tangents(known, values)
        tree = _of_arrays(primals, traced)
        linear = _linear("linearize", traced.inside, seeds, tree, found, out_tree)
        return traced.moved((traced.result, linear))

    return split


class Linear:
    """A linear function with what it keeps: a container of trees, so traced functions return it."""

    def __init__(self, graph: _LinearGraph, kept: Sequence[Any]) -> None:
        self._graph, self._kept = graph, list(kept)
        #: The shapes of the arguments, where it was made.
        self.shapes: Shapes | None = None

    def __call__(self, *given: Any) -> Any:
        """The function of cotangents (one tree like the result), or of a tangent per argument."""
        if self.shapes is not None:
            _check_shapes(f"{self._graph.name}: its arguments", self.shapes, given)
        return self._graph.jitted(self._kept, given)


class _LinearGraph:
    """``results`` as expressions of ``kept`` values and of ``seeds``, which it is linear in."""

    def __init__(
        self, name: str, like: Sequence[Variable], seeds: Sequence[Variable], tree: Tree,
        results: Sequence[Variable], result_tree: Tree, kept: Sequence[Variable],
    ) -> None:  # fmt: skip
        self.name, self.like, self.seeds, self.tree = name, list(like), list(seeds), tree
        self.results, self.result_tree, self.kept = list(results), result_tree, list(kept)
        self.jitted = Jit(self._apply)

    def _apply(self, kept: Sequence[Any], given: tuple[Any, ...]) -> Any:
        if self.name == "vjp":
            if len(given) != 1:
                raise ArgumentError(f"vjp: wanted one tree of cotangents, got {len(given)}")
            given = given[0]
        leaves = fitting_leaves(self.name, "its argument", self.tree, self.like, given)
        places = dict(zip(self.kept, (as_variable(v) for v in kept), strict=True))
        for seed, like, v in zip(self.seeds, self.like, leaves, strict=True):
            places[seed] = _zeros(like, places) if v is None else v
        memo = clone_graph(self.results, places)
        return unflatten(self.result_tree, [memo[v] for v in self.results])


def _zeros(like: Variable, places: dict[Variable, Variable]) -> Variable:
    if like not in places:
        raise ArgumentError(f"None as the derivative of {like}, whose shape is not kept")
    return operator("zeros_like")(places[like])


def _linear(
    name: str, like: Sequence[Variable], seeds: Sequence[Variable], tree: Tree,
    results: Sequence[Variable], result_tree: Tree,
) -> Linear:  # fmt: skip
    kept = _frontier(results, seeds)
    graph = _LinearGraph(name, like, seeds, tree, results, result_tree, kept)
    return Linear(graph, kept)


def _frontier(results: Sequence[Variable], seeds: Sequence[Variable]) -> list[Variable]:
    """What ``results`` read that does not depend on ``seeds``: tensors at the border.

    A value of another type (the reserve of a recurrent network) is computed again by what reads it.
    """
    inner = set(nodes_between(results, seeds))
    made = {*seeds, *(v for n in inner for v in n.outputs)}
    found: dict[Variable, None] = {}
    pending = [*results, *(v for n in inner for v in n.inputs)]
    while pending:
        v = pending.pop()
        if v in made or v in found or isinstance(v, Constant):
            continue
        type_: object = v.type
        if isinstance(type_, TensorType) or v.owner is None:
            found[v] = None
        else:
            made.update(v.owner.outputs)
            pending += v.owner.inputs
    return list(found)


register_tree(
    Linear,
    lambda linear: (linear._kept, linear._graph),
    lambda graph, kept: Linear(graph, kept),
)


# -- compiled once for each function --------------------------------------------------------------

_MAKERS: dict[str, Callable[[Function, Any], Function]] = {
    "jvp": _jvp, "hvp": _hvp, "vjp": _vjp, "linearize": _linearize,
}  # fmt: skip
_made: weakref.WeakKeyDictionary[Any, dict[Any, Jit]] = weakref.WeakKeyDictionary()


def _compiled(f: Function, what: str, option: Any) -> Jit:
    """The transformed function, the same one for each call with the same ``f``."""
    as_function(what, f)
    try:
        table = _made.setdefault(f, {})
    except TypeError:  # neither hashable nor to be referred to weakly: for this call only
        table = {}
    if (what, option) not in table:
        # The table's entry must not keep its own key alive.
        made = _MAKERS[what](_weakly(f), option)
        made.__name__ = f"{what}({getattr(f, '__name__', type(f).__name__)})"
        table[what, option] = Jit(made)
    return table[what, option]


def _weakly(f: Function) -> Function:
    try:
        found = weakref.ref(f)
    except TypeError:
        return f

    def call(*args: Any, **kwargs: Any) -> Any:
        alive = found()
        assert alive is not None
        return alive(*args, **kwargs)

    call.__name__ = getattr(f, "__name__", type(f).__name__)
    return call


install_operators(
    {
        "grad_of_function": grad_of_function, "hessian_of_function": hessian_of_function,
        "jacobian_of_function": jacobian_of_function,
    }
)  # fmt: skip
