"""The host program of a segment: integers that feed shapes and bounds, at each call.

Scalar arithmetic on integers becomes one Python function, since through arrays and references it
would take longer than many a network's kernels; the rest goes through the references.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symdnn.graph.evaluate import evaluate_node
from symdnn.graph.op import Op
from symdnn.graph.runtime import Runtime
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.shape import ShapeI
from symdnn.ops.elementwise.arithmetic import (
    Abs,
    Add,
    Cast,
    IntDiv,
    Maximum,
    Minimum,
    Mod,
    Mul,
    Neg,
    Sub,
)
from symdnn.ops.elementwise.comparison import Eq, Ge, Gt, Le, Lt, Neq, Switch

__all__ = ["HostProgram"]

Values = dict[Variable, Any]
Step = Callable[[Values], None]

#: On Python ints the same as the references on int64, division by zero (0 in NumPy) included;
#: what leaves int64 wraps around.
_PYTHON: dict[type[Op], str] = {
    Add: "{} + {}",
    Sub: "{} - {}",
    Mul: "{} * {}",
    IntDiv: "({0} // {1} if {1} else 0)",
    Mod: "({0} % {1} if {1} else 0)",
    Neg: "-{}",
    Abs: "abs({})",
    Cast: "int({})",
    Minimum: "min({}, {})",
    Maximum: "max({}, {})",
    Lt: "{} < {}",
    Le: "{} <= {}",
    Gt: "{} > {}",
    Ge: "{} >= {}",
    Eq: "{} == {}",
    Neq: "{} != {}",
    Switch: "({1} if {0} else {2})",
}


_MAY_OVERFLOW = {Add, Sub, Mul, IntDiv, Neg, Abs, Cast}
_LEAST, _LARGEST = -(2**63), 2**63 - 1


class HostProgram:
    """Evaluates host nodes in order; results are added to the values of a call."""

    def __init__(self, nodes: Sequence[Apply], runtime: Runtime) -> None:
        self.runtime = runtime
        self.steps: list[Step] = []
        run: list[Apply] = []
        for node in nodes:
            if is_scalar_arithmetic(node):
                run.append(node)
                continue
            self._add_run(run)
            run = []
            self.steps.append(self._by_reference(node))
        self._add_run(run)

    def __call__(self, values: Values) -> None:
        """Evaluate all nodes."""
        for step in self.steps:
            step(values)

    def _add_run(self, nodes: Sequence[Apply]) -> None:
        if nodes:
            self.steps.append(compile_scalars(nodes, self.runtime.to_host))

    def _by_reference(self, node: Apply) -> Step:
        to_host = self.runtime.to_host

        def step(values: Values) -> None:
            inputs = [
                v.data if isinstance(v, Constant) else to_host(values[v]) for v in node.inputs
            ]
            values.update(zip(node.outputs, evaluate_node(node, inputs), strict=True))

        return step


def is_scalar_arithmetic(node: Apply) -> bool:
    """Whether Python ints give what the reference gives."""
    if isinstance(node.op, ShapeI):
        return True
    return (
        type(node.op) in _PYTHON
        and node.outputs[0].type in (_INT64, _BOOL)
        and all(isinstance(v.type, TensorType) and v.type.ndim == 0 for v in node.inputs)
        and all(v.type.is_discrete for v in node.inputs)
        and not _is_boolean_arithmetic(node)
    )


_INT64, _BOOL = TensorType("int64", ()), TensorType("bool", ())


def _is_boolean_arithmetic(node: Apply) -> bool:
    """A sum of bools is a bool in some conventions, an int in Python: left to the reference."""
    compares = isinstance(node.op, Lt | Le | Gt | Ge | Eq | Neq | Switch)
    return bool(node.outputs[0].type == _BOOL and not compares)


def compile_scalars(nodes: Sequence[Apply], to_host: Callable[[Any], Any]) -> Step:
    """One Python function for a run of scalar nodes."""
    names: dict[Variable, str] = {}
    scope: dict[str, Any] = {"array": np.array, "int64": np.int64, "bool_": np.bool_}
    lines = ["def run(values):"]

    def name(v: Variable) -> str:
        if isinstance(v, Constant):
            return f"({v.data.item()!r})"
        if v not in names:
            names[v] = f"v{len(names)}"
            scope[f"k{len(names)}"] = v
            lines.append(f"    {names[v]} = to_host(values[k{len(names)}]).item()")
        return names[v]

    scope["to_host"] = to_host
    for node in nodes:
        out = node.outputs[0]
        if isinstance(node.op, ShapeI):
            key = f"s{len(scope)}"
            scope[key] = node.inputs[0]
            text = f"values[{key}].shape[{node.op.axis}]"
        else:
            text = _PYTHON[type(node.op)].format(*map(name, node.inputs))
        names[out] = f"v{len(names)}"
        lines.append(f"    {names[out]} = {text}")
        if type(node.op) in _MAY_OVERFLOW:
            lines.append(f"    if not {_LEAST} <= {names[out]} <= {_LARGEST}:")
            lines.append(f"        {names[out]} = ({names[out]} - {_LEAST}) % {2**64} + {_LEAST}")
    for i, node in enumerate(nodes):
        out = node.outputs[0]
        scope[f"o{i}"] = out
        kind = "bool_" if out.type == _BOOL else "int64"
        lines.append(f"    values[o{i}] = array({names[out]}, {kind})")
    # Names, numbers and the templates above make the whole text; nothing of the user's is in it.
    exec(compile("\n".join(lines), "<host program>", "exec"), scope)
    run: Step = scope["run"]
    return run
