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
from symdnn.ops.core.make_vector import MakeVector
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

Values = dict[Variable, object]
Step = Callable[[Values], None]

#: Expressions on Python ints that equal the references on integers, also for division by zero (0 in
#: NumPy). Results beyond their dtype wrap around.
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
    """Whether an expression on Python ints gives the reference's result, or a list of them."""
    if isinstance(node.op, ShapeI):
        return True
    if isinstance(node.op, MakeVector):
        return node.op.dtype == "int64"
    return (
        type(node.op) in _PYTHON_EXPRESSIONS
        and node.outputs[0].type.is_discrete
        and all(isinstance(v.type, TensorType) and v.type.ndim == 0 for v in node.inputs)
        and all(v.type.is_discrete for v in node.inputs)
        and not _is_boolean_arithmetic(node)
    )


_BOOL = TensorType("bool", ())


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
    text = _ScalarText(lambda v: f"values[{text.entered(v)}]", "to_host({}).item()")
    text.scope["to_host"] = to_host
    for node in nodes:
        text.add(node)
    for node in nodes:
        out = node.outputs[0]
        text.lines.append(f"values[{text.entered(out)}] = {text.array_of(out)}")
    return text.function("values", "")  # type: ignore[no-any-return]


def scalar_function(
    nodes: Sequence[Apply], arguments: Sequence[Variable], ints: Sequence[Variable],
    arrays: Sequence[Variable],
) -> Callable[..., tuple[Any, ...]] | None:  # fmt: skip
    """A function of arrays of ``arguments``: values as Python's ints, then others as arrays.

    None where not all nodes are arithmetic of scalars, or something else is read.
    """
    names = {v: f"a{k}" for k, v in enumerate(arguments)}
    made = {v for n in nodes for v in n.outputs}
    read = {*ints, *arrays, *(v for n in nodes for v in n.inputs)} - made
    if not all(map(is_scalar_arithmetic, nodes)):
        return None
    if any(v not in names and not isinstance(v, Constant) for v in read):
        return None
    text = _ScalarText(names.__getitem__)
    for node in nodes:
        text.add(node)
    found = [*map(text.name, ints), *map(text.array_of, arrays)]
    given = ", ".join(names.values())
    made_of: Callable[..., tuple[Any, ...]] = text.function(
        given, f"return ({''.join(f'{v}, ' for v in found)})"
    )
    return made_of


class _ScalarText:
    """The text of nodes on Python's ints; ``read(v)`` is that of a given variable's array.

    ``number`` is the text of the number in such an array.
    """

    def __init__(self, read: Callable[[Variable], str], number: str = "{}.item()") -> None:
        self.read, self.number = read, number
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {"array": np.array}
        self._names: dict[Variable, str] = {}

    def entered(self, value: Any) -> str:
        """A name for a value that the text uses."""
        key = f"k{len(self.scope)}"
        self.scope[key] = value
        return key

    def name(self, v: Variable) -> str:
        """The number, or of a vector the array, that is a value."""
        if isinstance(v, Constant):
            return f"({v.data.item()!r})"
        if v not in self._names:
            self._let(v, self.number.format(self.read(v)))
        return self._names[v]

    def _let(self, v: Variable, text: str) -> str:
        self._names[v] = f"v{len(self._names)}"
        self.lines.append(f"{self._names[v]} = {text}")
        return self._names[v]

    def array_of(self, v: Variable) -> str:
        """The text of a new array of a node's result."""
        assert isinstance(v.type, TensorType)
        return f"array({self.name(v)}, {self.entered(v.type.numpy)})"

    def add(self, node: Apply) -> None:
        """The lines of a node."""
        out = node.outputs[0]
        if isinstance(node.op, ShapeI):
            self._let(out, f"{self.read(node.inputs[0])}.shape[{node.op.axis}]")
        elif isinstance(node.op, MakeVector):
            self._let(out, f"[{', '.join(map(self.name, node.inputs))}]")
        else:
            named = map(self.name, node.inputs)
            name = self._let(out, _PYTHON_EXPRESSIONS[type(node.op)].format(*named))
            if type(node.op) in _MAY_OVERFLOW and out.type != _BOOL:
                assert isinstance(out.type, TensorType)
                limits = np.iinfo(out.type.numpy)
                low, high = int(limits.min), int(limits.max)
                self.lines.append(f"if not {low} <= {name} <= {high}:")
                self.lines.append(f"    {name} = ({name} - {low}) % {high - low + 1} + {low}")

    def function(self, arguments: str, last: str) -> Any:
        """The function of all lines."""
        # The text consists of names, numbers and templates; it has nothing from the user.
        lines = [f"  {line}" for line in (*self.lines, last or "pass")]
        whole = "\n".join([f"def run({arguments}):", *lines])
        exec(compile(whole, "<host program>", "exec"), self.scope)
        return self.scope["run"]
