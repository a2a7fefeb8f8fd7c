"""Values that the host reads in each step of a loop: positions, and small vectors of them.

A step that waits for the device to read one takes many times longer, so a loop keeps such values on
the host. A vector is one of them if only such work reads it as bounds, indices and conditions need.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.collective.base import Collective
from symdnn.ops.control.control import IfElse
from symdnn.ops.control.scan import Scan
from symdnn.ops.core.shape import ShapeI
from symdnn.ops.lowered.lowered import Lowered
from symdnn.ops.lowered.transfer import Transfer


def is_control(node: Apply) -> bool:
    """Whether a node is a lazy choice or a loop, which have no kernel of their own."""
    return isinstance(node.op, IfElse | Scan)


def host_values(node: Apply) -> Iterable[int]:
    """Indices of the inputs whose values are read on the host."""
    if isinstance(node.op, IfElse):
        return (0,)
    return node.op.host_values if isinstance(node.op, Lowered) else node.op.host_inputs


def is_scalar_work(node: Apply) -> bool:
    """Whether all that a node reads and makes are numbers, and small vectors of whole ones."""
    if isinstance(node.op, ShapeI):
        return False  # it reads no data
    values = (*node.inputs, *node.outputs)
    return (
        not is_control(node)
        and not isinstance(node.op, Transfer | Collective)
        and all(
            isinstance(v.type, TensorType)
            and (v.type.ndim == 0 or (v.type.ndim == 1 and v.type.is_discrete))
            for v in values
        )
    )


def scalar_work_for(
    order: Sequence[Apply],
    inputs_of: Callable[[Apply], Iterable[int]],
    without: Collection[Apply] = (),
) -> set[Apply]:
    """Nodes of scalar work that feed inputs of these indices, not by way of those ``without``."""
    needed: set[Variable] = set()
    found: set[Apply] = set()
    for n in reversed(order):
        if any(v in needed for v in n.outputs) and is_scalar_work(n) and n not in without:
            found.add(n)
            needed.update(n.inputs)
        needed.update(n.inputs[i] for i in inputs_of(n))
    return found


def counts_of(node: Apply) -> tuple[int, ...]:
    """Indices of the inputs of a loop that may be anywhere: its steps read them on the host.

    These are sequences and states of numbers, and sequences and other values whose small vectors
    are :func:`positions` of the body.
    """
    op = node.op
    if not isinstance(op, Scan):
        return ()
    inner = op.split_inner(op.inner.inputs)
    found = positions(op.inner.inputs, op.inner.outputs, op.inner.nodes)
    states = [v if (v := taps[0]).type.is_integer_scalar else None for taps in inner.initials]
    others = [None if v.type.is_integer_scalar else v for v in inner.others]
    entries = [*inner.sequences, *states, *others]
    return tuple(i for i, v in enumerate(entries, 1) if v in found)


def positions(
    inputs: Sequence[Variable], outputs: Sequence[Variable], order: Sequence[Apply]
) -> set[Variable]:
    """Inputs of a loop's body that are whole numbers, or vectors that only the host reads."""
    scalars = {v for v in inputs if v.type.is_integer_scalar}
    reads = {n: {*host_values(n), *counts_of(n)} for n in order}
    feeding = scalar_work_for(order, reads.__getitem__)
    makers = {v: n for n in order for v in n.outputs}
    users: dict[Variable, list[tuple[Apply, int]]] = {}
    for n in order:
        for i, v in enumerate(n.inputs):
            users.setdefault(v, []).append((n, i))
    good = {v for v in (*inputs, *makers) if _is_vector(v) and v in users and v not in outputs}

    def works(n: Apply) -> bool:
        return n in feeding and all(v in good for v in (*n.inputs, *n.outputs) if _is_vector(v))

    def fits(v: Variable) -> bool:
        return (v not in makers or works(makers[v])) and all(
            i in reads[n] or isinstance(n.op, ShapeI) or works(n) for n, i in users[v]
        )

    while bad := {v for v in good if not fits(v)}:
        good -= bad
    return scalars | {v for v in inputs if v in good}


def _is_vector(v: Variable) -> bool:
    t = v.type
    if isinstance(v, Constant) or not isinstance(t, TensorType):
        return False
    return t.ndim == 1 and t.is_discrete
