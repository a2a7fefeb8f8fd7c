"""Helpers of the tests of lowering: graphs rewritten for a described GPU, run by references."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symdnn.autodiff import grad
from symdnn.compile.program.capabilities import all_capabilities
from symdnn.graph.check import check_graph
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.libraries.table import not_lowered
from symdnn.ops.vendor.gpudnn_base import DnnBase
from symdnn.opt.optimise import optimise
from symdnn.opt.phases import Selection

GPU = Target("cuda", compute_capability=(9, 0), cudnn=(9, 19))
CPU = Target("cpu")
#: All rewrites but fusion, so that the ops are those that a test names.
ALL = Selection(frozenset({"fast_run", "fast_compile"})).excluding("fuse")


def variables(arrays: Sequence[np.ndarray]) -> list[Variable]:
    """Inputs of which only the sizes 1 are known."""
    return [
        TensorType(a.dtype.name, tuple(1 if n == 1 else None for n in a.shape))(f"v{i}")
        for i, a in enumerate(arrays)
    ]


def with_gradients(build: Callable[..., Any], vs: Sequence[Variable]) -> list[Variable]:
    """The outputs of ``build``, and gradients of the sum of their squares."""
    out = build(*vs)
    outs = list(out) if isinstance(out, list | tuple) else [out]
    wrt = [v for v in vs if v.type.is_differentiable]
    floats = [o for o in outs if o.type.is_differentiable]
    if not wrt or not floats:
        return outs
    cost = sum(((o * o).sum() for o in floats[1:]), (floats[0] * floats[0]).sum())
    return [*outs, *grad(cost, wrt, disconnected_inputs="ignore")]


def rewritten(
    vs: Sequence[Variable],
    outputs: Sequence[Variable],
    target: Target = GPU,
    selection: Selection = ALL,
) -> FunctionGraph:
    """The graph of ``outputs``, rewritten for ``target`` and checked."""
    fgraph = FunctionGraph(list(vs), list(outputs))
    optimise(fgraph, target, selection, all_capabilities())
    check_graph(fgraph)
    return fgraph


def names(fgraph: FunctionGraph) -> list[str]:
    """The cuDNN ops in order."""
    return [type(n.op).__name__ for n in fgraph.toposort() if isinstance(n.op, DnnBase)]


def op_of(fgraph: FunctionGraph, name: str) -> Any:
    """The only op of that name."""
    (op,) = [n.op for n in fgraph.toposort() if type(n.op).__name__ == name]
    return op


def reasons(fgraph: FunctionGraph, selection: Selection = ALL, target: Target = GPU) -> list[str]:
    """Why nodes were not lowered."""
    return list(not_lowered(fgraph, target, selection.takes).values())


def assert_same_values(
    fgraph: FunctionGraph, vs: Sequence[Variable], outputs: Sequence[Variable],
    arrays: Sequence[np.ndarray], rtol: float = 1e-9,
) -> None:  # fmt: skip
    """The rewritten graph gives, by references, what the user's graph gives."""
    want = evaluate(list(outputs), dict(zip(vs, arrays)))
    got = evaluate(fgraph.outputs, dict(zip(fgraph.inputs, arrays)))
    for a, b in zip(got, want, strict=True):
        assert np.shape(a) == np.shape(b)
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)
