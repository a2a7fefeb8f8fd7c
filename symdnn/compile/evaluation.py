"""``variable.eval({...})``: compile, cache, call. Lower layers may call :func:`function` too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from symdnn.compile.function import function
from symdnn.errors import TypeMismatch
from symdnn.graph.operators import install_operators
from symdnn.graph.variable import Variable
from symdnn.rewriting.registry import outside

__all__ = ["evaluate"]


def evaluate(variable: Variable, values: Mapping[Any, Any]) -> Any:
    """The value of ``variable`` given values of its inputs.

    It is compiled once per set of inputs, and again when other rewrites are registered.
    """
    if not isinstance(values, Mapping):
        raise TypeMismatch("eval", "a dict {x: value} of the inputs' values", f"{values!r:.60}")
    for v in values:
        if not isinstance(v, Variable):
            raise TypeMismatch("eval", "variables as keys", f"{v!r}")
    functions = (
        variable._evaluated
    )  # a global table would keep both alive: each function has the graph
    if functions is None:
        functions = variable._evaluated = {}
    key = (outside(), *map(id, values))
    if key not in functions:
        functions[key] = function(list(values), variable, on_unused_input="ignore")
    return functions[key](*values.values())


install_operators({"evaluate": evaluate, "function": function})
