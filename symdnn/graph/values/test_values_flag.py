"""Test values: each node is evaluated as it is made (flag ``compute_test_value``).

``x.tag.test_value = array`` sets that of an input. A faulty expression then fails at the user's own
line, not when a function runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.errors import MissingInputError
from symdnn.graph.evaluate import evaluate_node
from symdnn.graph.traverse import toposort
from symdnn.graph.type import OpaqueType
from symdnn.graph.values.value import as_numpy
from symdnn.graph.variable import Apply, Constant, Shared, Variable


def attach_test_values(node: Apply) -> None:
    """Give the outputs of ``node`` test values, computed from those of its inputs.

    If an input has none, nothing is computed, and the flag decides between a warning and an error.
    Raises the errors of the op's reference on these values.
    """
    missing = [v for v in node.inputs if not _has_value(v)]
    if missing:
        _report(missing[0], node, str(config.compute_test_value))
        return
    for v, value in zip(node.outputs, evaluate_node(node, [_value(v) for v in node.inputs])):
        v.tag.test_value = value


def only_outside(*, of: Apply | None = None) -> AbstractContextManager[list[Variable | None]]:
    """A block that builds derivatives, or a batch: nodes of inner graphs need no test values.

    Variables that are put into the list of the block get test values at its end. If the block is
    about a node ``of`` without an inner graph, all get theirs as they are made.
    """
    if (of is not None and not hasattr(of.op, "inner")) or str(config.compute_test_value) == "off":
        return nullcontext([])
    return _only_outside()


@contextmanager
def _only_outside() -> Iterator[list[Variable | None]]:
    found: list[Variable | None] = []
    with config.change_flags(compute_test_value="off"):
        yield found
    for made in toposort([v for v in found if v is not None]):
        if any(v.test_value is None for v in made.outputs):
            attach_test_values(made)


def entry_of(inside: Variable, outside: Variable, place: int | None = None) -> None:
    """Give a variable of a loop's step the test value of the outer variable that it stands for.

    ``place`` is the index of the entry of ``outside`` (None: the whole). Without entries it is 0s.
    """
    if str(config.compute_test_value) == "off" or not _has_value(outside):
        return
    value = _value(outside)
    if place is None:
        inside.tag.test_value = value
    elif len(value):
        inside.tag.test_value = value[place]
    else:
        inside.tag.test_value = np.zeros(value.shape[1:], value.dtype)


def _has_value(v: Variable) -> bool:
    return isinstance(v, Constant | Shared) or v.test_value is not None


def _value(v: Variable) -> Any:
    if isinstance(v, Constant):
        return v.data
    if isinstance(v, Shared) and v.test_value is None:
        return v.storage.get(borrow=True)  # subclasses may give another value to their users
    if isinstance(v.type, OpaqueType):
        return v.test_value
    return as_numpy(v.test_value, v.type, f"test value of {v}")


def _report(v: Variable, node: Apply, action: str) -> None:
    message = (
        f"compute_test_value: {v} of type {v.type}, an input of {node.op}, has no test value; "
        "set variable.tag.test_value"
    )
    if action == "raise":
        raise MissingInputError(message)
    if action == "warn":
        warnings.warn(message, UserWarning, stacklevel=5)
    if action == "pdb":
        print(message)
        breakpoint()
