"""Random small expressions have equal values before and after all phases, empty arrays included."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from symdnn.autodiff import grad
from symdnn.compile.program.capabilities import all_capabilities
from symdnn.graph.check import check_graph
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.ops.array.getitem import inc_subtensor, set_subtensor
from symdnn.ops.array.join import join
from symdnn.ops.array.view import flatten
from symdnn.ops.core.shape import alloc, dims_of, reshape
from symdnn.ops.elementwise import arithmetic as A
from symdnn.ops.elementwise import math as M
from symdnn.ops.elementwise.activations import relu, sigmoid, softplus
from symdnn.ops.elementwise.comparison import gt, switch
from symdnn.ops.nn.softmax import logsoftmax, softmax
from symdnn.opt.optimise import optimise
from symdnn.opt.phases import Selection

ALL = Selection(frozenset({"fast_run", "fast_compile"}))

#: Each takes two matrices of one shape and gives one of that shape.
STEPS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / (2 + A.sqr(b)),
    "neg": lambda a, b: -a,
    "double": lambda a, b: a + a,
    "zero": lambda a, b: a * 0 + b,
    "less": lambda a, b: a - a.zeros_like(),
    "constants": lambda a, b: 2 * (a * 3) - 1 + (0.5 - b),
    "power": lambda a, b: (A.abs(a) + 1) ** 2,
    "root": lambda a, b: (A.sqr(a) + 1) ** 0.5,
    "inverse": lambda a, b: b * A.inv(2 + sigmoid(a)),
    "exp": lambda a, b: M.exp(M.tanh(a)),
    "log": lambda a, b: M.log(1 + sigmoid(a)),
    "log_sigmoid": lambda a, b: M.log(1 - sigmoid(M.tanh(a))),
    "softplus": lambda a, b: softplus(b) - M.log(1 + M.exp(M.tanh(b))),
    "relu": lambda a, b: A.maximum(a, 0) + relu(b),
    "clip": lambda a, b: A.clip(A.clip(a, -1, 1), -1, 1),
    "extremes": lambda a, b: A.minimum(A.maximum(A.maximum(a, b), b), 3),
    "switch": lambda a, b: switch(gt(a, 0), switch(gt(a, 0), a, b), b),
    "softmax": lambda a, b: M.log(softmax(a, axis=1)),
    "softmax_by_hand": lambda a, b: M.exp(M.tanh(a)) / M.exp(M.tanh(a)).sum(axis=1, keepdims=True),
    "logsoftmax": lambda a, b: logsoftmax(a, axis=1),
    "centred": lambda a, b: a - a.sum(axis=0, keepdims=True),
    "total": lambda a, b: a + (2 * b).sum(),
    "rows": lambda a, b: a * (-b).sum(axis=1, keepdims=True),
    "spread": lambda a, b: a * alloc(b.sum(), *dims_of(a)),
    "logsumexp": lambda a, b: b + M.log(M.exp(M.tanh(a)).sum(axis=1, keepdims=True)),
    "twice_transposed": lambda a, b: (a.T + b.T).T,
    "reshaped": lambda a, b: reshape(flatten(a, 1), dims_of(a)) + b,
    "column": lambda a, b: a + b.T[0].dimshuffle(0, "x"),
    "halves": lambda a, b: set_subtensor(a[1:], b[1:]),
    "increment": lambda a, b: b + inc_subtensor(a.zeros_like()[1:], a[1:]),
    "joined": lambda a, b: join(0, a, b)[: dims_of(a)[0]],
    "casts": lambda a, b: a.astype("float64").astype("float64") + A.cast(b, "float64"),
}  # fmt: skip

programs = st.lists(
    st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 99), st.integers(0, 99)),
    min_size=1,
    max_size=7,
)
sizes = st.tuples(st.integers(0, 4), st.integers(1, 4))
quick = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def build(program: list[tuple[str, int, int]], x: Variable, y: Variable) -> Variable:
    made = [x, y]
    for name, i, j in program:
        made.append(STEPS[name](made[-1 - i % len(made)], made[-1 - j % len(made)]))
    return made[-1]


def check(outputs: list[Variable], variables: list[Variable], arrays: list[Any]) -> None:
    want = evaluate(outputs, dict(zip(variables, arrays)))
    # Where it overflows, rewriting may overflow later or not at all.
    assume(all(np.isfinite(w).all() for w in want))
    fgraph = FunctionGraph(variables, outputs)
    optimise(fgraph, Target(kind="cpu"), ALL, all_capabilities())
    check_graph(fgraph)
    got = evaluate(fgraph.outputs, dict(zip(fgraph.inputs, arrays)))
    for g, w in zip(got, want, strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        np.testing.assert_allclose(g, w, rtol=1e-6, atol=1e-6 * max(1.0, np.abs(w).max(initial=0)))


def inputs(shape: tuple[int, int], static: bool, seed: int) -> tuple[list[Variable], list[Any]]:
    rng = np.random.default_rng(seed)
    known = shape if static else (None, None)
    variables = [TensorType("float64", known)(name) for name in "xy"]
    return variables, [rng.uniform(-1.5, 1.5, shape) for _ in variables]


@quick
@given(programs, sizes, st.booleans(), st.integers(0, 9))
def test_values_stay(
    program: list[tuple[str, int, int]], shape: tuple[int, int], static: bool, seed: int
) -> None:
    variables, arrays = inputs(shape, static, seed)
    check([build(program, *variables)], variables, arrays)


@quick
@given(programs, sizes, st.booleans(), st.integers(0, 9))
def test_gradients_stay(
    program: list[tuple[str, int, int]], shape: tuple[int, int], static: bool, seed: int
) -> None:
    variables, arrays = inputs(shape, static, seed)
    cost = M.tanh(build(program, *variables)).sum()
    check(grad(cost, variables, disconnected_inputs="ignore"), variables, arrays)
