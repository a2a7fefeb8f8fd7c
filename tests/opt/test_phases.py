"""All phases together on every op of the table: values, dtypes and shapes stay."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.autodiff import grad
from symdnn.compile.program.capabilities import all_capabilities
from symdnn.graph.check import check_graph
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.graph.variable import Variable
from symdnn.opt.optimise import optimise
from symdnn.opt.phases import Selection
from tests.op_table import of_each
from tests.op_table.record import OpCase
from tests.test_op_table import CASES, WITH_GRADIENT, draw, outputs, variables

ALL = Selection(frozenset({"fast_run", "fast_compile"}))


def optimised(vs: list[Variable], outs: list[Variable]) -> FunctionGraph:
    fgraph = FunctionGraph(vs, outs)
    optimise(fgraph, Target(kind="cpu"), ALL, all_capabilities())
    check_graph(fgraph)
    return fgraph


def assert_equal_values(vs: list[Variable], outs: list[Variable], arrays: list[Any]) -> None:
    fgraph = optimised(vs, outs)
    want = evaluate(outs, dict(zip(vs, arrays)))
    got = evaluate(fgraph.outputs, dict(zip(fgraph.inputs, arrays)))
    for a, b in zip(got, want, strict=True):
        if isinstance(b, np.ndarray):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            tol = 1e-3 if b.dtype.itemsize <= 2 else 1e-4 if b.dtype == np.float32 else 1e-8
            np.testing.assert_allclose(
                a.astype(np.complex128), b.astype(np.complex128), rtol=tol, atol=tol
            )


@of_each(CASES, every=3)
def test_phases_keep_values(case: OpCase) -> None:
    arrays = draw(case, 7)
    vs = variables(case, arrays)
    assert_equal_values(vs, outputs(case, vs), arrays)


@of_each(WITH_GRADIENT, every=3)
def test_phases_keep_gradients(case: OpCase) -> None:
    arrays = draw(case, 8)
    vs = variables(case, arrays)
    outs = [o for o in outputs(case, vs) if getattr(o.type, "is_differentiable", False)]
    wrt = [v for v in vs if v.type.is_differentiable]
    cost = (outs[0].real if outs[0].type.is_complex else outs[0]).sum()
    grads = grad(cost, wrt, disconnected_inputs="ignore")
    assert_equal_values(vs, [cost, *grads], arrays)
