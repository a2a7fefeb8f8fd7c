"""The sweeps of reverse mode (vjp) and forward mode (jvp), which use only the contract of an op."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

from symdnn.errors import GraphError, NdimMismatch, NonDifferentiable, TypeMismatch
from symdnn.graph.operators import operator
from symdnn.graph.origin import inherit
from symdnn.graph.traverse import toposort
from symdnn.graph.type import TensorType, Type
from symdnn.graph.values.branch_gradients import Branches
from symdnn.graph.values.test_values_flag import only_outside
from symdnn.graph.variable import Apply, Variable

__all__ = ["Undefined", "backprop", "forward_sweep", "nodes_between", "zeros_for"]


class Undefined(Variable):
    """The return value of a vjp for an input whose gradient does not exist, and ``why``.

    A sweep that needs the gradient raises :class:`NonDifferentiable`; others ignore it.
    """

    def __init__(self, type: Type, why: str) -> None:
        super().__init__(type)
        self.why = why


def backprop(
    cotangents: Mapping[Variable, Variable],
    wrt: Sequence[Variable],
    consider_constant: Iterable[Variable] = (),
) -> list[Variable | None]:
    """Gradients with respect to ``wrt``, given those of some outputs.

    The gradient is None for a variable on which no output depends in a differentiable way. The
    sweep ends at the variables of ``consider_constant``: they have gradients, but pass none on to
    their inputs.
    """
    constants = set(consider_constant)
    total: dict[Variable, list[Variable]] = {v: [c] for v, c in cotangents.items()}
    summed: dict[Variable, Variable | None] = {}

    def cotangent(v: Variable) -> Variable | None:
        if v not in summed:
            summed[v] = _sum(v, total.pop(v, []))
        return summed[v]

    nodes = nodes_between(cotangents, wrt, constants)
    branches = Branches(nodes, cotangents)
    for node in reversed(nodes):
        with inherit(node.origin, node.hints):
            below = [None if v in constants else cotangent(v) for v in node.outputs]
            _backprop_node(node, below, total, branches)
    return [cotangent(v) for v in wrt]


def _backprop_node(
    node: Apply,
    cotangents: Sequence[Variable | None],
    total: dict[Variable, list[Variable]],
    branches: Branches,
) -> None:
    if all(c is None for c in cotangents):
        return
    for v, g in zip(node.inputs, _vjp(node, cotangents), strict=True):
        if isinstance(g, Undefined):
            total.setdefault(v, []).append(g)
        elif g is not None:
            total.setdefault(v, []).append(branches.masked(node, v, g))


def _vjp(node: Apply, cotangents: Sequence[Variable | None]) -> Sequence[Variable | None]:
    with _of(node):
        with only_outside(of=node) as made:
            grads = node.op.vjp(node.inputs, node.outputs, cast("Sequence[Variable]", cotangents))
            _check(node, "gradient", "input", node.inputs, grads)
            made += grads
        return [_fitting(v, g) for v, g in zip(node.inputs, grads)]


@contextmanager
def _of(node: Apply) -> Iterator[None]:
    """Errors of the derivatives of an op, which may be the user's, say where ``node`` was made."""
    try:
        yield
    except Exception as error:
        error.add_note(f"{node} was made here:\n{node.origin.text()}")
        raise


def _check(node: Apply, what: str, of: str, due: Sequence[Variable], found: object) -> None:
    """Raise unless ``found`` has a derivative, or None, for each input or output in ``due``."""
    wanted = f"a list of {len(due)}, the {what} of each {of} ({', '.join(map(str, due))})"
    if not isinstance(found, list | tuple):
        raise TypeMismatch(node.op, wanted, repr(found))
    if len(found) != len(due):
        raise GraphError(f"{node.op}: wanted {wanted}, got {len(found)}")
    for i, (v, g) in enumerate(zip(due, found)):
        if g is None or isinstance(g, Undefined) or not isinstance(v.type, TensorType):
            continue
        which = f"{node.op}, {what} of {of} {i}"
        if not isinstance(g, Variable):
            got = f"{g!r} of type {type(g).__name__}"
            raise TypeMismatch(which, "a variable or None", got, "T.constant makes one")
        if v.type.is_differentiable and g.type.ndim != v.type.ndim:
            raise NdimMismatch(which, f"{v.type.ndim} dimensions, as {v} has", g.type)


def _fitting(v: Variable, g: Variable | None) -> Variable | None:
    if g is None or not isinstance(v.type, TensorType) or not v.type.is_differentiable:
        return None
    if isinstance(g, Undefined):
        return g
    if g.type.dtype != v.type.dtype:
        g = operator("cast")(g, v.type.dtype)
    if g.type.broadcastable != v.type.broadcastable:
        g = operator("specify_type")(g, v.type)
    return g


def _sum(v: Variable, terms: Sequence[Variable]) -> Variable | None:
    if not terms:
        return None
    for term in terms:
        if isinstance(term, Undefined):
            raise NonDifferentiable(term.why)
    total = terms[0]
    if len(terms) > 1:
        node = v.owner
        for term in terms[1:]:
            if node is None:
                total = operator("add")(total, term)
            else:
                with inherit(node.origin, node.hints):
                    total = operator("add")(total, term)
    return total


def nodes_between(
    outputs: Iterable[Variable],
    inputs: Iterable[Variable],
    blockers: Iterable[Variable] = (),
) -> list[Apply]:
    """Nodes on a path from ``inputs`` to ``outputs``, inputs first."""
    reached = set(inputs)
    nodes = []
    for node in toposort(outputs, blockers):
        if any(v in reached for v in node.inputs):
            reached.update(node.outputs)
            nodes.append(node)
    return nodes


def zeros_for(outputs: Sequence[Variable], cotangents: Sequence[Variable | None]) -> list[Variable]:
    """The cotangents with zeros in place of None, for an op that needs all of them."""
    return [
        operator("zeros_like")(o) if c is None else c
        for o, c in zip(outputs, cotangents, strict=True)
    ]


def forward_sweep(
    tangents: Mapping[Variable, Variable], outputs: Sequence[Variable]
) -> list[Variable | None]:
    """Tangents of ``outputs``, given those of some variables; None for one that is constant."""
    known: dict[Variable, Variable | None] = dict(tangents)
    for node in nodes_between(outputs, tangents):
        incoming = [known.get(v) for v in node.inputs]
        if all(t is None for t in incoming):
            continue
        with inherit(node.origin, node.hints):
            known.update(zip(node.outputs, _jvp(node, incoming), strict=True))
    return [known.get(v) for v in outputs]


def _jvp(node: Apply, tangents: Sequence[Variable | None]) -> Sequence[Variable | None]:
    with _of(node):
        with only_outside(of=node) as made:
            found = node.op.jvp(node.inputs, node.outputs, tangents)
            if found is not None:
                _check(node, "tangent", "output", node.outputs, found)
                made += found
        return _jvp_by_vjp(node, tangents) if found is None else found


def _jvp_by_vjp(node: Apply, tangents: Sequence[Variable | None]) -> list[Variable | None]:
    # The vjp is linear in its cotangents v: d<vjp(v), t>/dv is the jvp of t.
    dummies = [_dummy(o) for o in node.outputs]
    if all(d is None for d in dummies):
        return [None] * len(dummies)
    grads = _vjp(node, dummies)
    for g, t in zip(grads, tangents):
        if isinstance(g, Undefined) and t is not None:
            raise NonDifferentiable(g.why)
    pairs = {g: t for g, t in zip(grads, tangents) if g is not None and t is not None}
    if not pairs:
        return [None] * len(dummies)
    wrt = [d for d in dummies if d is not None]
    found = dict(zip(wrt, backprop(_merge_equal(grads, tangents), wrt)))
    return [None if d is None else found[d] for d in dummies]


def _merge_equal(
    grads: Sequence[Variable | None], tangents: Sequence[Variable | None]
) -> dict[Variable, Variable]:
    merged: dict[Variable, Variable] = {}
    for g, t in zip(grads, tangents):
        if g is not None and t is not None:
            merged[g] = operator("add")(merged[g], t) if g in merged else t
    return merged


def _dummy(output: Variable) -> Variable | None:
    t = output.type
    if not isinstance(t, TensorType) or not t.is_differentiable:
        return None
    # Its value does not matter (the vjp is linear), but a vjp may read its shape.
    return operator("zeros_like")(output)


def require_differentiable(v: Variable, role: str) -> None:
    """Raise :class:`NonDifferentiable` unless gradients with respect to ``v`` exist."""
    if not isinstance(v.type, TensorType) or not v.type.is_differentiable:
        raise NonDifferentiable(
            f"{role} {v} has type {v.type}: gradients exist for float and complex variables only. "
            "Cast it to a float dtype before it enters the expression"
        )
