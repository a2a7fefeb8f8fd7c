"""One record per rule: an expression, its rewritten form, and a near miss that must not change.

The tests in ``test_rules.py`` check of every record that the rule fires, that values, dtypes and
shapes stay (zero sizes included), that operands which do not fit still raise, and that the near
miss stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from symdnn.graph.check import check_graph
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.libraries.table import ALL_RULES as RULES
from symdnn.opt.engine import RewriteProfile, run_rewrites
from symdnn.opt.phases import PHASES, Selection, rules_by_phase
from symdnn.rewriting.rewrite import Context

BY_NAME = {r.name: r for r in RULES}
SIZES = {"n": 3, "m": 4, "k": 5, "h": 6}


@dataclass(frozen=True)
class Arg:
    """An input: dtype, dimensions (a name is an unknown size) and the range of its values."""

    dtype: str
    dims: tuple[int | str, ...]
    low: float = -2.0
    high: float = 2.0

    def variable(self, i: int) -> Variable:
        shape = tuple(None if isinstance(d, str) else d for d in self.dims)
        return TensorType(self.dtype, shape)(f"x{i}")

    def draw(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> np.ndarray:
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in self.dims)
        if self.dtype == "bool":
            return rng.integers(0, 2, shape).astype(bool)
        if "int" in self.dtype:
            return rng.integers(int(self.low), int(self.high) + 1, shape).astype(self.dtype)
        values = rng.uniform(self.low, self.high, shape)
        if "complex" in self.dtype:
            values = values + 1j * rng.uniform(self.low, self.high, shape)
        return np.asarray(values).astype(TensorType(self.dtype).numpy)


def f64(*dims: int | str, low: float = -2.0, high: float = 2.0) -> Arg:
    return Arg("float64", dims, low, high)


def f32(*dims: int | str, low: float = -2.0, high: float = 2.0) -> Arg:
    return Arg("float32", dims, low, high)


def i64(*dims: int | str, low: int = -3, high: int = 3) -> Arg:
    return Arg("int64", dims, low, high)


def u8(*dims: int | str) -> Arg:
    return Arg("uint8", dims, 0, 250)


def boolean(*dims: int | str) -> Arg:
    return Arg("bool", dims)


MAT = (f64("n", "m"),)
TWO = (f64("n", "m"), f64("n", "m"))
INTS = (i64("n", "m"), i64("n", "m"))


@dataclass(frozen=True)
class RuleCase:
    """``before`` becomes ``after``; ``miss`` does not change. ``beside`` are further rules that
    run.

    Without ``after``, ``gone`` and ``made`` name op classes that must disappear or appear. A rule
    that removes unneeded nodes removes their ``checks`` of shapes, too.
    """

    rule: str
    args: tuple[Arg, ...]
    before: Callable[..., Any]
    after: Callable[..., Any] | None
    miss: Callable[..., Any]
    miss_args: tuple[Arg, ...] | None = None
    beside: tuple[str, ...] = ()
    gone: tuple[type, ...] = ()
    made: tuple[type, ...] = ()
    rtol: float = 1e-9
    checks: bool = True
    sizes: Mapping[str, int] = field(default_factory=dict)
    id: str = ""

    def __str__(self) -> str:
        return self.id or self.rule


def outputs_of(made: Any) -> list[Variable]:
    return list(made) if isinstance(made, list | tuple) else [made]


@dataclass
class Rewritten:
    """A graph after some rules ran on it."""

    variables: list[Variable]
    wanted: list[Variable]
    fgraph: FunctionGraph
    fired: int


def run(
    args: tuple[Arg, ...], build: Callable[..., Any], rule: str, beside: tuple[str, ...] = ()
) -> Rewritten:
    variables = [a.variable(i) for i, a in enumerate(args)]
    wanted = outputs_of(build(*variables))
    fgraph = FunctionGraph(variables, wanted)
    profile = RewriteProfile()
    rules = [BY_NAME[name] for name in (rule, *beside)]
    run_rewrites(rules, Context(fgraph, Target(kind="cpu")), profile)
    check_graph(fgraph)
    return Rewritten(variables, wanted, fgraph, profile.rewrites[rule].fired)


def fired_among_others(case: RuleCase) -> set[str]:
    """The rules that fire on the record's expression in a function, up to the rule's own phase."""
    variables = [a.variable(i) for i, a in enumerate(case.args)]
    fgraph = FunctionGraph(variables, outputs_of(case.before(*variables)))
    profile = RewriteProfile()
    by_phase = rules_by_phase(Selection().including(case.rule))
    for phase in PHASES[: PHASES.index(BY_NAME[case.rule].phase) + 1]:
        run_rewrites(by_phase[phase], Context(fgraph, Target(kind="cpu")), profile)
    return {name for name, count in profile.rewrites.items() if count.fired}


def same_graphs(fgraph: FunctionGraph, expected: list[Variable]) -> bool:
    """Whether the outputs are these expressions: equal graphs merge."""
    count = len(fgraph.outputs)
    both = FunctionGraph(fgraph.inputs, [*fgraph.outputs, *expected])
    return both.outputs[:count] == both.outputs[count:]


def values(variables: list[Variable], outputs: list[Variable], arrays: list[Any]) -> Any:
    """The outputs' values, or the error that stopped it."""
    try:
        return evaluate(outputs, dict(zip(variables, arrays, strict=True)))
    except Exception as error:
        return error


def draws(case: RuleCase, sizes: Mapping[str, int], salt: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng([len(case.rule), ord(case.rule[0]), salt])
    return [a.draw(rng, sizes) for a in case.args]


def clashing(case: RuleCase) -> Iterator[list[np.ndarray]]:
    """Draws in which one input is longer than the others in one dimension."""
    sizes = {**SIZES, **case.sizes}
    for i, a in enumerate(case.args):
        for d in dict.fromkeys(d for d in a.dims if isinstance(d, str)):
            arrays = draws(case, sizes)
            rng = np.random.default_rng(i)
            arrays[i] = a.draw(rng, {**sizes, d: sizes[d] + 1})
            yield arrays
