"""The host program of a segment: numbers that feed shapes, bounds and conditions, at each call.

Scalar arithmetic becomes one Python function: of Python's integers, or of NumPy's scalars, which
round as arrays do. By references on arrays it would take longer than the kernels of many networks.
Other nodes run by their references.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
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
from symdnn.ops.elemwise import Elemwise

__all__ = ["HostProgram"]

Values = dict[Variable, object]
Step = Callable[[Values], None]

#: Expressions on Python ints that equal the references on int64, also for division by zero (0 in
#: NumPy). Results beyond int64 wrap around.
_PYTHON_EXPRESSIONS: dict[type[Op], str] = {
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
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


class HostProgram:
    """Evaluates host nodes in order; results are added to the values of a call."""

    def __init__(self, nodes: Sequence[Apply], runtime: Runtime) -> None:
        self.runtime = runtime
        self.steps: list[Step] = []
        for compiled, some in groupby(nodes, _compiler):
            if compiled is None:
                self.steps += map(self._by_reference, some)
            else:
                self.steps.append(compiled(list(some), runtime.to_host))

    def __call__(self, values: Values) -> None:
        """Evaluate all nodes."""
        for step in self.steps:
            step(values)

    def _by_reference(self, node: Apply) -> Step:
        to_host = self.runtime.to_host

        def step(values: Values) -> None:
            inputs = [
                v.data if isinstance(v, Constant) else to_host(values[v]) for v in node.inputs
            ]
            values.update(zip(node.outputs, evaluate_node(node, inputs), strict=True))

        return step


def is_scalar_arithmetic(node: Apply) -> bool:
    """Whether an expression on Python ints gives the reference's result."""
    if isinstance(node.op, ShapeI):
        return True
    return (
        type(node.op) in _PYTHON_EXPRESSIONS
        and node.outputs[0].type in (_INT64, _BOOL)
        and all(isinstance(v.type, TensorType) and v.type.ndim == 0 for v in node.inputs)
        and all(v.type.is_discrete for v in node.inputs)
        and not _is_boolean_arithmetic(node)
    )


_INT64, _BOOL = TensorType("int64", ()), TensorType("bool", ())


def _is_boolean_arithmetic(node: Apply) -> bool:
    """Whether it is arithmetic on bools, which gives a bool here but an int in Python."""
    compares = isinstance(node.op, Lt | Le | Gt | Ge | Eq | Neq | Switch)
    return bool(node.outputs[0].type == _BOOL and not compares)


def is_number_function(node: Apply) -> bool:
    """Whether a function of NumPy on scalars gives the reference's result."""
    op = node.op
    if not isinstance(op, Elemwise) or node.outputs[0].type not in (*_FLOATS, _BOOL):
        return False
    known = isinstance(type(op).function, np.ufunc) or isinstance(op, Cast | Switch)
    whole = node.outputs[0].type == _BOOL and isinstance(op, Cast | Switch)
    return (
        known
        and not whole
        and all(isinstance(v.type, TensorType) and v.type.ndim == 0 for v in node.inputs)
        and all(v.type.is_discrete or v.type in _FLOATS for v in node.inputs)
    )


_FLOATS = TensorType("float32", ()), TensorType("float64", ())


def _compiler(node: Apply) -> Callable[[Sequence[Apply], Callable[[Any], Any]], Step] | None:
    """What makes one function of nodes like this one."""
    if is_scalar_arithmetic(node):
        return compile_scalars
    return compile_numbers if is_number_function(node) else None


def compile_numbers(nodes: Sequence[Apply], to_host: Callable[[Any], Any]) -> Step:
    """One Python function for a run of nodes on NumPy's scalars."""
    names: dict[Variable, str] = {}
    scope: dict[str, Any] = {"array": np.asarray, "errstate": np.errstate, "to_host": to_host}
    lines = ["def run(values):", "  with errstate(all='ignore'):"]

    def entered(value: Any) -> str:
        key = f"k{len(scope)}"
        scope[key] = value
        return key

    def name(v: Variable) -> str:
        if v not in names:
            if isinstance(v, Constant):
                names[v] = entered(v.data[()])
            else:
                names[v] = f"v{len(names)}"
                lines.append(f"    {names[v]} = to_host(values[{entered(v)}])[()]")
        return names[v]

    for node in nodes:
        (out,), given = node.outputs, list(map(name, node.inputs))
        if isinstance(node.op, Switch):
            text = f"({given[1]} if {given[0]} else {given[2]})"
        elif isinstance(node.op, Cast):
            text = given[0]
        else:
            assert isinstance(node.op, Elemwise)
            text = f"{entered(type(node.op).function)}({', '.join(given)})"
        assert isinstance(out.type, TensorType)
        names[out] = f"v{len(names)}"
        lines.append(f"    {names[out]} = {entered(out.type.numpy.type)}({text})")
        lines.append(f"    values[{entered(out)}] = array({names[out]})")
    exec(compile("\n".join(lines), "<host program>", "exec"), scope)  # names alone, as below
    run: Step = scope["run"]
    return run


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
            text = _PYTHON_EXPRESSIONS[type(node.op)].format(*map(name, node.inputs))
        names[out] = f"v{len(names)}"
        lines.append(f"    {names[out]} = {text}")
        if type(node.op) in _MAY_OVERFLOW:
            lines.append(f"    if not {_INT64_MIN} <= {names[out]} <= {_INT64_MAX}:")
            lines.append(
                f"        {names[out]} = ({names[out]} - {_INT64_MIN}) % {2**64} + {_INT64_MIN}"
            )
    for i, node in enumerate(nodes):
        out = node.outputs[0]
        scope[f"o{i}"] = out
        kind = "bool_" if out.type == _BOOL else "int64"
        lines.append(f"    values[o{i}] = array({names[out]}, {kind})")
    # The text consists of names, numbers and the templates above; it has nothing from the user.
    exec(compile("\n".join(lines), "<host program>", "exec"), scope)
    run: Step = scope["run"]
    return run
