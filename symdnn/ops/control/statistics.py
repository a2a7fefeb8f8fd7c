"""Updates of statistics that an expression computes, as in batch normalisation.

A layer stores them in ``tag.state_updates`` of its output: ``(variable, new value)``, or
``(variable, new value, share)`` if the new value is ``share`` times the old one plus a term that
does not depend on it. ``tag.state_order`` is the number of the layer's call.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from symdnn.errors import InputError
from symdnn.graph.inner import InnerGraph
from symdnn.graph.traverse import ancestors, clone_graph, toposort
from symdnn.graph.variable import Apply, Shared, Variable
from symdnn.ops.control.scan import Scan
from symdnn.ops.elementwise.arithmetic import cast

_numbers = itertools.count()


def note_order(output: object) -> None:
    """Number the updates that ``output`` carries, if any: later calls have higher numbers."""
    if isinstance(output, Variable) and hasattr(output._tag, "state_updates"):
        output.tag.state_order = next(_numbers)


def statistics_updates(outputs: Iterable[Variable]) -> dict[Shared, Variable]:
    """The new value of each variable that these expressions update.

    If several calls update one variable, each continues from the value of the one before it, in the
    order of the calls. Raises :class:`~symdnn.errors.InputError` for statistics inside of an
    ``OpFromGraph``, whose new values are no outputs.
    """
    outputs = list(outputs)
    _check_inside(toposort(outputs))
    found: dict[Shared, Variable] = {}
    seen: set[Variable] = set()
    for target, new, share in _in_order(ancestors(outputs)):
        if new not in seen:
            seen.add(new)
            before = found.get(target)
            found[target] = new if before is None else _after(target, before, new, share)
    return found


def _check_inside(nodes: Iterable[Apply]) -> None:
    for node in nodes:
        inner = getattr(node.op, "inner", None)
        if not isinstance(inner, InnerGraph) or isinstance(node.op, Scan):
            continue
        if any(hasattr(v._tag, "state_updates") for n in inner.nodes for v in n.outputs):
            raise InputError(
                f"{node.op} has a layer inside that updates its statistics, as batch "
                "normalisation does in training, and gives no new values of them; build it from "
                "the layer in evaluation (net.evaluate()), or call the layer outside"
            )


def _in_order(variables: Sequence[Variable]) -> list[tuple[Shared, Variable, float | None]]:
    noted, last = [], -1
    for v in variables:
        if hasattr(v._tag, "state_updates"):
            last = getattr(v._tag, "state_order", last)
            noted.append((last, v))
    noted.sort(key=lambda pair: pair[0])
    return [
        (target, _of_copy(v, new), share[0] if share else None)
        for _, v in noted
        for target, new, *share in v.tag.state_updates
    ]


def _of_copy(v: Variable, new: Variable) -> Variable:
    """``new`` for the node of ``v``, if that is a copy of the layer's node."""
    nodes = toposort([new])
    if v.owner is None or v.owner in nodes:
        return new
    for node in reversed(nodes):
        if node.op == v.owner.op and len(node.outputs) > 1:
            replace = dict(zip(node.outputs, v.owner.outputs, strict=True))
            return clone_graph([new], replace)[new]
    return new


def _after(target: Shared, before: Variable, new: Variable, share: float | None) -> Variable:
    """``new`` for a variable whose value was ``before``."""
    if share is not None:
        # The value is corrected, since a copy of the layer's graph would compute it again.
        return new + cast(np.asarray(share), new.type.dtype) * (before - target)
    replace: Mapping[Variable, Variable] = {target: before}
    return clone_graph([new], replace)[new]
