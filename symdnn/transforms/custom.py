"""``custom_gradient``: a function with a gradient that the user writes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from symdnn.errors import TypeMismatch
from symdnn.graph.op import Grads, Vars
from symdnn.graph.tracing import tracing
from symdnn.graph.traverse import clone_graph, leaves
from symdnn.graph.values.tree import flatten, unflatten
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.control.from_graph import OpFromGraph
from symdnn.transforms.jit import Jit
from symdnn.transforms.traced import draws_of, fitting_leaves

__all__ = ["custom_gradient"]


def custom_gradient(f: Callable[..., Any]) -> Any:
    """A function whose gradient is the one that it returns itself.

    ``f(*args)`` returns ``(result, backward)``; ``backward(cotangent)``, with a tree like the
    result, returns the gradient for each positional argument: a tuple, or one tree for one
    argument; None counts as zero. Both may use what ``f`` has computed. What ``f`` closes over
    counts as constant. (``jax.custom_gradient``, ``tf.custom_gradient``.) The gradient is an
    expression, so it has derivatives again, and forward mode follows from it.

    >>> import symdnn
    >>> import symdnn.tensor as T
    >>> @symdnn.custom_gradient
    ... def log1pexp(x):
    ...     e = T.exp(x)
    ...     return T.log(1 + e), lambda g: g * (1 - 1 / (1 + e))
    >>> float(symdnn.grad(log1pexp)(100.0))
    1.0
    """

    @functools.wraps(f)
    def expression(*args: Any, **kwargs: Any) -> Any:
        return _Custom(f, args, kwargs).applied()

    return Jit(expression)


class _Custom:
    """One call of such a function on variables."""

    def __init__(self, f: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.name = getattr(f, "__name__", type(f).__name__)
        given, self.tree = flatten(tuple(args))
        self.outside = [as_variable(v) for v in given]
        self.inside = [v.type(v.name) for v in self.outside]
        with tracing(self.name):
            found = f(*unflatten(self.tree, self.inside), **kwargs)
            if not isinstance(found, tuple) or len(found) != 2 or not callable(found[1]):
                raise TypeMismatch(
                    f"custom_gradient of {self.name}", "a pair (result, backward)", repr(found)
                )
            results, self.result_tree = flatten(found[0])
            self.results = [as_variable(v) for v in results]
            self.seeds = [v.type() for v in self.results]
            self.grads = self._gradients(found[1](unflatten(self.result_tree, self.seeds)))

    def _gradients(self, returned: Any) -> list[Variable | None]:
        """The gradient of each leaf of the arguments."""
        count = len(self.tree.children)
        if count == 1 and not (isinstance(returned, tuple) and len(returned) == 1):
            returned = (returned,)
        if not isinstance(returned, list | tuple) or len(returned) != count:
            raise TypeMismatch(
                f"backward of {self.name}", f"a tuple of {count} gradients", repr(returned)
            )
        found: list[Variable | None] = []
        for k, (g, child) in enumerate(zip(returned, self.tree.children, strict=True)):
            like = self.inside[len(found) : len(found) + child.leaves]
            found += fitting_leaves(f"backward of {self.name}", f"gradient {k}", child, like, g)
        return found

    def applied(self) -> Any:
        """The op on the caller's variables; what the function closes over is an input too."""
        made = [*self.results, *(g for g in self.grads if g is not None)]
        own = {*self.inside, *self.seeds}
        closed = [v for v in leaves(made) if v not in own and not isinstance(v, Constant)]
        for state, new in draws_of(made, self.inside).items():
            places = dict(zip(self.inside, self.outside, strict=True))
            state.default_update = clone_graph([new], places)[new]
        inner = [v.type(v.name) for v in closed]
        replace = {**{v: v for v in own}, **dict(zip(closed, inner))}
        memo = clone_graph(made, replace)
        results = [memo[v] for v in self.results]
        grads = [None if g is None else memo[g] for g in self.grads]
        inputs = [*self.inside, *inner]

        def pulled(given: Vars, outputs: Vars, cotangents: Vars) -> Grads:
            places = {**dict(zip(inputs, given)), **dict(zip(self.seeds, cotangents))}
            places |= {r: o for r, o in zip(results, outputs) if r not in places}
            wanted = [g for g in grads if g is not None]
            moved = clone_graph(wanted, places)
            return [*(None if g is None else moved[g] for g in grads), *[None] * len(inner)]

        op = OpFromGraph(inputs, results, inline=True, lop_overrides=pulled, name=self.name)
        found = op.make_node(*self.outside, *closed).outputs
        return unflatten(self.result_tree, list(found))
