"""Graphs that are instances of a rule's pattern: of each dtype, several shapes, either order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from symdnn.graph.pattern import AnyOf, ConstPattern, Param, Pattern, PatternVar
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Constant, Variable
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elemwise import Elemwise, apply_elemwise
from symdnn.rewriting.rewrite import Rewrite

DTYPES = (
    "bool", "int8", "int32", "int64", "uint8", "uint32", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128",
)  # fmt: skip

#: Shapes of the operands: as declared, and as they are when it runs.
SHAPES: tuple[tuple[tuple[int | None, ...], tuple[int, ...]], ...] = (
    ((None, None), (3, 4)),
    ((3, 4), (3, 4)),
    ((None, 1), (3, 1)),
    ((1, None), (1, 4)),
    ((1, 1), (1, 1)),
    ((None,), (4,)),
    ((), ()),
    ((None, None), (0, 4)),
    ((None,), (1,)),
)
#: Names of fields, and values to put where a pattern says "any".
FIELDS: Mapping[str, tuple[Any, ...]] = {
    "axis": (0, 1), "axes": ((0,), (1,), (0, 1)), "classes": (4,), "index": ((0,),),
}  # fmt: skip


@dataclass
class Graph:
    """Outputs over inputs, and values for these."""

    inputs: list[Variable]
    outputs: list[Variable]
    arrays: list[np.ndarray]
    text: str


def draw(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Moderate values, of both signs where there are any."""
    t = TensorType(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if t.is_integer:
        low = 0 if dtype.startswith("u") else -3
        return np.asarray(rng.integers(low, 4, shape)).astype(dtype)
    values = rng.uniform(0.25, 2, shape) * rng.choice([-1, 1], shape)
    if t.is_complex:
        values = values + 1j * rng.uniform(-2, 2, shape)
    return np.asarray(values).astype(t.numpy)


def variables_of(pattern: Any) -> dict[str, PatternVar]:
    """The pattern variables by name."""
    if isinstance(pattern, PatternVar):
        return {pattern.name: pattern}
    parts = pattern.choices if isinstance(pattern, AnyOf) else getattr(pattern, "inputs", ())
    return {n: v for q in parts for n, v in variables_of(q).items()}


def params_of(pattern: Any) -> dict[str, str]:
    """Names of the fields that a pattern leaves open."""
    found: dict[str, str] = {}
    if isinstance(pattern, Pattern) and pattern.op is not None:
        values = {f.name: getattr(pattern.op, f.name) for f in fields(pattern.op)}  # type: ignore[arg-type]
        found = {v.name: n for n, v in values.items() if isinstance(v, Param)}
    parts = pattern.choices if isinstance(pattern, AnyOf) else getattr(pattern, "inputs", ())
    return found | {k: v for q in parts for k, v in params_of(q).items()}


class _Builder:
    def __init__(
        self, given: Mapping[str, Variable], params: Mapping[str, Any], dtype: str, turned: bool
    ) -> None:
        self.given, self.params, self.dtype, self.turned = given, params, dtype, turned

    def build(self, pattern: Any) -> Variable:
        if isinstance(pattern, PatternVar):
            return self.given[pattern.name]
        if isinstance(pattern, ConstPattern | int | float):
            value = pattern.value if isinstance(pattern, ConstPattern) else pattern
            return Constant(np.asarray(value).astype(TensorType(self.dtype).numpy))
        if isinstance(pattern, AnyOf):
            return self.build(pattern.choices[self.turned % len(pattern.choices)])
        inputs = [self.build(q) for q in pattern.inputs]
        values = {f.name: getattr(pattern.op, f.name) for f in fields(pattern.op)}
        known = {n: self.params[v.name] for n, v in values.items() if isinstance(v, Param)}
        op = replace(pattern.op, **known) if known else pattern.op
        if isinstance(op, Elemwise):
            turn = self.turned and op.commutative and len(inputs) == 2
            return apply_elemwise(op, *(inputs[::-1] if turn else inputs))  # type: ignore[no-any-return]
        made = op(*inputs)
        return made if isinstance(made, Variable) else made[0]


def operands(
    var: PatternVar, dtype: str, shape: Any, labels: bool, rng: np.random.Generator
) -> Iterator[tuple[list[Variable], list[np.ndarray], Variable]]:
    """What a pattern variable may stand for, as far as it takes it."""
    declared, actual = shape
    array = draw(dtype, actual, rng)
    if labels:
        array = np.asarray(rng.integers(0, 3, actual)).astype(dtype)
    v = TensorType(dtype, declared)(var.name)
    for inputs, arrays, made in (
        ([v], [array], v),
        ([], [], Constant(array)),
        ([], [], Constant(draw(dtype, (), rng))),
        ([v], [array], absolute(v) if dtype != "bool" else v),
    ):
        if var.when is None or var.when(made):
            yield inputs, arrays, made
            return


def graphs(rule: Rewrite, rng: np.random.Generator, limit: int = 400) -> Iterator[Graph]:
    """Instances of the pattern of ``rule``, in a random order."""
    variables, params = variables_of(rule.pattern), params_of(rule.pattern)
    options = list(itertools.product(SHAPES, repeat=len(variables)))
    if len(options) > 60:
        same = [o for o in options if len(set(o)) == 1]
        options = same + [options[i] for i in rng.permutation(len(options))[: 60 - len(same)]]
    mixed = [o for o in itertools.product(DTYPES, repeat=len(variables)) if len(set(o)) == 2]
    dtypes = [(d,) * len(variables) for d in DTYPES]
    dtypes += [mixed[i] for i in rng.permutation(len(mixed))[:12]]
    for names in ("x", "labels"):
        if names in variables and "labels" in variables:
            at = list(variables).index("labels")
            dtypes += [(*d[:at], "int64", *d[at + 1 :]) for d in dtypes[:12]]
            break
    everything = list(itertools.product(dtypes, options, _choices(params), (False, True)))
    count = 0
    for tried, k in enumerate(rng.permutation(len(everything))):
        if count >= limit or tried >= 30 * limit:
            return
        found = _graph(rule, variables, *everything[k], rng)
        if found is not None:
            count += 1
            yield found


def _choices(params: Mapping[str, str]) -> list[dict[str, Any]]:
    names = [n for n in params if n in FIELDS]
    return [dict(zip(names, c)) for c in itertools.product(*(FIELDS[n] for n in names))]


def _graph(
    rule: Rewrite, variables: Mapping[str, PatternVar], dtypes: Any, shapes: Any, params: Any,
    turned: bool, rng: np.random.Generator,
) -> Graph | None:  # fmt: skip
    inputs: list[Variable] = []
    arrays: list[np.ndarray] = []
    given: dict[str, Variable] = {}
    for (name, var), dtype, shape in zip(variables.items(), dtypes, shapes, strict=True):
        found = next(operands(var, dtype, shape, name == "labels", rng), None)
        if found is None:
            return None
        inputs += found[0]
        arrays += found[1]
        given[name] = found[2]
    first = dtypes[0] if dtypes else "float32"
    filled = {"dtype": first, "acc_dtype": first, **params}
    try:
        made = _Builder(given, filled, first, turned).build(rule.pattern)
    except Exception:
        return None  # the ops do not take these types
    return Graph(inputs, [made], arrays, f"{rule.name} {dtypes} {shapes} {params} {turned}")
