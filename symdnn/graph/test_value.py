"""Test values: each node is evaluated as it is made (flag ``compute_test_value``).

``x.tag.test_value = array`` gives an input one; what is built on it then fails at the user's own
line, not when a function runs.
"""

from __future__ import annotations

import warnings
from typing import Any

from symdnn.config import config
from symdnn.errors import MissingInputError
from symdnn.graph.evaluate import evaluate_node
from symdnn.graph.type import TensorType
from symdnn.graph.value import as_numpy
from symdnn.graph.variable import Apply, Constant, Shared, Variable

__all__ = ["attach_test_values"]


def attach_test_values(node: Apply) -> None:
    """Give the outputs of ``node`` test values, computed from those of its inputs.

    An input without one: nothing is computed, and the flag says whether that is a warning or an
    error. Raises whatever the op raises on these values.
    """
    missing = [v for v in node.inputs if not _has_value(v)]
    if missing:
        _report(missing[0], node, str(config.compute_test_value))
        return
    for v, value in zip(node.outputs, evaluate_node(node, [_value(v) for v in node.inputs])):
        v.tag.test_value = value


def _has_value(v: Variable) -> bool:
    return isinstance(v, Constant | Shared) or v.test_value is not None


def _value(v: Variable) -> Any:
    if isinstance(v, Constant):
        return v.data
    if isinstance(v, Shared) and v.test_value is None:
        return v.get_value(borrow=True)
    if not isinstance(v.type, TensorType):
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
