"""``OpFromGraph``: an expression as one op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from symdnn.errors import OptionError, TypeMismatch
from symdnn.graph.backprop import backprop, forward_sweep
from symdnn.graph.inner import InnerGraph, InnerGraphOp
from symdnn.graph.op import Axes, Batched, Grads, Host, Shapes, Types, Vars
from symdnn.graph.origin import Hints
from symdnn.graph.traverse import clone_graph, leaves
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import Array
from symdnn.graph.variable import Shared, Variable, as_variable
from symdnn.ops.core.inner_shapes import inner_shapes, scalars_for_shapes

#: (inputs, outputs, cotangents) -> gradients, one per input (None: not differentiable).


@dataclass(frozen=True, init=False)
class OpFromGraph(InnerGraphOp):
    """``outputs`` as a function of ``inputs``, as one op (Theano's ``OpFromGraph``).

    Calling it with variables in place of ``inputs`` returns the outputs: a variable if there is
    one, else a list. Shared variables in the expression become inputs automatically. With
    ``inline`` the graph replaces the node before all rewrites. Otherwise it does after the
    simplifying rewrites, which run on the graph and on its surroundings separately.

    ``grad_overrides(inputs, cotangents)`` or ``lop_overrides(inputs, outputs, cotangents)`` replace
    the graph's own gradients, ``rop_overrides(inputs, tangents)`` its tangents. A list has one such
    function (or ``"default"``, or None: no gradient) for each input, for ``rop`` for each output.
    In place of a function another ``OpFromGraph`` takes these variables one after the other.
    """

    inner: InnerGraph
    inline: bool = False
    name: str | None = None
    overrides: tuple[Any, ...] = field(default=("default", "default", "default"), repr=False)
    closures: tuple[Shared, ...] = field(default=(), compare=False, repr=False)

    def __init__(
        self,
        inputs: Vars,
        outputs: Vars,
        inline: bool = False,
        lop_overrides: Any = "default",
        grad_overrides: Any = "default",
        rop_overrides: Any = "default",
        name: str | None = None,
    ) -> None:
        for v in inputs:
            if not isinstance(v, Variable) or isinstance(v, Shared):
                raise TypeMismatch("OpFromGraph", "variables that are not shared as inputs", v)
        if lop_overrides != "default" and grad_overrides != "default":
            raise OptionError("OpFromGraph: wanted lop_overrides or grad_overrides, got both")
        results = [as_variable(o) for o in outputs]
        shared = [v for v in leaves(results, inputs) if isinstance(v, Shared)]
        inside: dict[Variable, Variable] = {v: v.type(v.name) for v in shared}
        memo = clone_graph(results, {**inside, **{v: v for v in inputs}})
        inner = InnerGraph([*inputs, *inside.values()], [memo[o] for o in results])
        overrides = _frozen((lop_overrides, grad_overrides, rop_overrides))
        self._fill(inner, inline, name, overrides, tuple(shared))

    def _fill(self, *values: Any) -> None:
        for name, value in zip(self.__dataclass_fields__, values):  # the others have defaults
            object.__setattr__(self, name, value)

    def with_inner(self, inner: InnerGraph) -> OpFromGraph:
        """The same op with another graph of the same meaning."""
        other = OpFromGraph.__new__(OpFromGraph)
        other._fill(inner, self.inline, self.name, self.overrides, self.closures)
        return other

    def portable(self) -> OpFromGraph:
        other = OpFromGraph.__new__(OpFromGraph)
        other._fill(self.inner, self.inline, self.name)
        return other

    def __call__(
        self, *inputs: Variable, hints: Hints | None = None, name: str | None = None
    ) -> Any:
        wanted = len(self.inner.inputs) - len(self.closures)
        if len(inputs) != wanted:
            raise TypeMismatch(self, f"{wanted} input(s)", f"{len(inputs)} of them")
        outputs = list(self.make_node(*inputs, *self.closures, hints=hints).outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    # -- its value ------------------------------------------------------------------------------

    def infer(self, *inputs: TensorType) -> tuple[Type, ...]:
        for i, (wanted, got) in enumerate(zip(self.inner.input_types, inputs, strict=True)):
            if not wanted.accepts(got):
                raise TypeMismatch(self, f"input {i} of type {wanted}", got)
        return tuple(self.inner.output_types)

    @property
    def host_inputs(self) -> tuple[int, ...]:
        return scalars_for_shapes(self.inner, tuple(range(len(self.inner.outputs))))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        found = inner_shapes(self.inner, range(len(self.inner.outputs)), shapes, host)
        return None if any(s is None for s in found) else [s for s in found if s is not None]

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return tuple(self.inner.compute(inputs))

    # -- derivatives ----------------------------------------------------------------------------

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        lop, grad, _ = self.overrides
        if grad != "default":
            both = list(inputs), _all(outputs, cotangents)
            found = _overridden(grad, len(inputs), lambda f: _applied(f, both))
        elif lop != "default":
            given = (list(inputs), list(outputs), _all(outputs, cotangents))
            found = _overridden(lop, len(inputs), lambda f: _applied(f, given))
        else:
            return self._own_vjp(inputs, cotangents)
        if any(isinstance(g, str) for g in found):
            own = self._own_vjp(inputs, cotangents)
            found = [own[i] if isinstance(g, str) else g for i, g in enumerate(found)]
        return [None if g is None else as_variable(g) for g in found]

    def _own_vjp(self, inputs: Vars, cotangents: Vars) -> list[Variable | None]:
        """The gradient of the graph, as an op from a graph again."""
        inside, results = self.inner.open()
        seeds: dict[Variable, Variable] = {}
        given = []
        for r, c in zip(results, cotangents, strict=True):
            if c is not None:
                seed = c.type()
                given.append((seed, c))
                seeds[r] = seeds[r] + seed if r in seeds else seed
        grads = backprop(seeds, inside)
        made = [g for g in grads if g is not None]
        if not made:
            return list(grads)
        op = OpFromGraph([*inside, *(v for v, _ in given)], made, self.inline)
        values = iter(op.make_node(*inputs, *(c for _, c in given)).outputs)
        return [None if g is None else next(values) for g in grads]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        rop = self.overrides[2]
        if rop == "default":
            if self.overrides[:2] != ("default", "default"):
                return None  # the user's vjp is used
            return self._own_jvp(inputs, tangents)
        both = list(inputs), list(tangents)
        found = _overridden(rop, len(outputs), lambda f: _applied(f, both))
        if any(isinstance(t, str) for t in found):
            own = self._own_jvp(inputs, tangents)
            found = [own[i] if isinstance(t, str) else t for i, t in enumerate(found)]
        return [None if t is None else as_variable(t) for t in found]

    def _own_jvp(self, inputs: Vars, tangents: Grads) -> Sequence[Variable | None]:
        # On inner variables, since one variable may be several inputs.
        inside, results = self.inner.open()
        known = {v: t for v, t in zip(inside, tangents, strict=True) if t is not None}
        found = forward_sweep(known, results)
        outside = {**dict(zip(inside, inputs)), **{t: t for t in known.values()}}
        memo = clone_graph([t for t in found if t is not None], outside)
        return [None if t is None else memo[t] for t in found]

    def __str__(self) -> str:
        return f"{self.name or 'OpFromGraph'}{{inline={self.inline}}}"

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        from symdnn.ops.control.batching_inner import (
            batch_call,
        )  # it loops, and a loop may hold this op

        return batch_call(self, inputs, axes)


def _frozen(overrides: Any) -> tuple[Any, ...]:
    return tuple(tuple(o) if isinstance(o, list) else o for o in overrides)


def _applied(override: Any, groups: Sequence[Sequence[Variable | None]]) -> Any:
    """An override's results: a function of lists, or an op of all their variables."""
    if isinstance(override, OpFromGraph):
        return override(*(v for group in groups for v in group if v is not None))
    return override(*groups)


def _overridden(given: Any, count: int, call: Callable[[Any], Any]) -> list[Any]:
    """The results of overrides, one entry each; the string ``"default"`` without an override."""
    if isinstance(given, tuple):
        if len(given) != count:
            raise TypeMismatch("OpFromGraph", f"{count} overrides", f"{len(given)} of them")
        return [call(f) if callable(f) else f for f in given]
    if given is None:
        return [None] * count
    found = call(given)
    return list(found) if isinstance(found, list | tuple) else [found]


def _all(outputs: Vars, cotangents: Vars) -> list[Variable]:
    """Cotangents with zeros where an output is not used."""
    return [o.zeros_like() if c is None else c for o, c in zip(outputs, cotangents, strict=True)]
