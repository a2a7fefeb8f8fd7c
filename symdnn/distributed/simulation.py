"""All ranks of a program in one process, by NumPy: the reference of what a real run computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from symdnn.errors import MissingInputError, OptionError
from symdnn.graph.evaluate import evaluate_node
from symdnn.graph.traverse import toposort
from symdnn.graph.typing import Array
from symdnn.graph.variable import Constant, Shared, Variable
from symdnn.ops.collective.base import Collective
from symdnn.options import as_kind, as_list

__all__ = ["simulate"]


def simulate(
    outputs: Sequence[Variable], values: Sequence[Mapping[Variable, Any]]
) -> list[list[Array]]:
    """The values of ``outputs`` on each rank, from the values of the inputs on each rank.

    The graph's collectives are over all ranks, as many as ``values`` has entries (others raise
    :class:`~symdnn.errors.OptionError`), and each is computed by its NumPy reference from the
    values of all ranks. Sends and receipts, which ranks
    do not run alike, can't be simulated. ::

        group = new_group(range(4))
        x = T.vector("x")
        simulate([all_reduce(x, group=group)], [{x: [r]} for r in range(4)])
    """
    for given in as_list("simulate: values", values, "dicts, one for each rank"):
        as_kind("simulate: values", given, Mapping, "a dict from variables to values for each rank")
    known: list[dict[Variable, Any]] = [
        {v: np.asarray(a, v.type.numpy) for v, a in given.items()} for given in values
    ]
    nodes = toposort(outputs, known[0] if known else ())
    for op in (node.op for node in nodes):
        if isinstance(op, Collective) and op.group.size != len(known):
            raise OptionError(
                f"simulate: {op.group} of {op} has {op.group.size} ranks, and values has "
                f"{len(known)} entries; wanted one for each rank of every group"
            )
    for node in nodes:
        inputs = [[_value(v, mine) for v in node.inputs] for mine in known]
        if isinstance(node.op, Collective):
            results: Sequence[Sequence[Any]] = node.op.across(inputs)
        else:
            results = [evaluate_node(node, mine) for mine in inputs]
        for mine, found in zip(known, results, strict=True):
            mine.update(zip(node.outputs, found, strict=True))
    return [[_value(v, mine) for v in outputs] for mine in known]


def _value(v: Variable, known: Mapping[Variable, Any]) -> Any:
    if v in known:
        return known[v]
    if isinstance(v, Constant):
        return v.data
    if isinstance(v, Shared):
        return v.get_value()
    raise MissingInputError(f"simulate: no value was given for {v}")
