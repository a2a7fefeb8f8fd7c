"""All ranks of a program in one process, by NumPy: the reference of what a real run computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from symdnn.errors import MissingInputError
from symdnn.graph.evaluate import evaluate_node
from symdnn.graph.options import as_kind, as_list
from symdnn.graph.traverse import toposort
from symdnn.graph.typing import Array
from symdnn.graph.variable import Constant, Shared, Variable
from symdnn.ops.collective.base import Collective

__all__ = ["simulate"]


def simulate(
    outputs: Sequence[Variable], values: Sequence[Mapping[Variable, Any]]
) -> list[list[Array]]:
    """The values of ``outputs`` on each rank, from the values of the inputs on each rank.

    The graph's collectives are over all ranks, as many as ``values`` has entries, and each is
    computed by its NumPy reference from the values of all ranks. Sends and receipts, which ranks
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
    for node in toposort(outputs, set(known[0])):
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
