"""Factors of a product's columns, such as layer scales, are multiplied into its parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.gpu import registry
from symdnn.graph.evaluate import evaluate
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.linalg.dot import Dot
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.ops.vendor.gpublas import GpuGemm
from tests.libraries.cublaslt.test_joined import CUDA, drawn, parameter

registry.load()


def scaled(
    x: Any, p: dict[str, Any], view: str = "", bias: bool = True, first: bool = False
) -> Any:
    """``gamma * (x @ w + b)``, perhaps with channels as second of four dimensions."""
    y = T.dot(x, p["w"])
    row: tuple[Any, ...] = ("x",) * (y.ndim - 1) + (0,)
    if view == "before":
        y, row = y.dimshuffle(0, 3, 1, 2), ("x", 0, "x", "x")
    y = y + p["b"].dimshuffle(row) if bias else y
    if view == "behind":
        y, row = y.dimshuffle(0, 3, 1, 2), ("x", 0, "x", "x")
    gamma = p["gamma"].dimshuffle(row)
    return gamma * y if first else y * gamma


def parameters(dtype: str = "float32", outputs: int = 6) -> dict[str, Any]:
    return {
        "w": parameter(4, outputs, dtype=dtype), "b": parameter(outputs, dtype=dtype),
        "gamma": parameter(outputs, dtype=dtype),
    }  # fmt: skip


def elementwise(f: Any) -> list[Any]:
    """Elementwise nodes of arrays that differ from call to call."""
    return [
        n.op
        for region in f.stages.program.regions[1:] or f.stages.program.regions
        for n in region.nodes
        if isinstance(n.op, Elemwise | FusedElemwise) and n.outputs[0].type.ndim > 1
    ]


CASES = {
    "matrix": ((5, 4), {}), "factor first": ((5, 4), {"first": True}),
    "without a bias": ((5, 4), {"bias": False}), "three dimensions": ((2, 3, 4), {}),
    "four, then turned": ((2, 3, 3, 4), {"view": "behind"}),
    "four, turned before": ((2, 3, 3, 4), {"view": "before", "bias": False}),
    "a batch of one": ((1, 5, 4), {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("known", [True, False])
def test_parameters_are_scaled(case, known):
    shape, how = CASES[case]
    x = T.TensorType("float32", shape if known else tuple(None for _ in shape[:-1]) + (4,))("x")
    p = parameters()
    y = scaled(x, p, **how)
    f = symdnn.function([x], y, mode=CUDA)
    assert elementwise(f) == []
    kinds = [n.op for n in f.fgraph.toposort() if isinstance(n.op, Dot | GpuGemm)]
    assert len(kinds) == 1
    value = drawn(*shape)
    (got,) = evaluate(f.fgraph.outputs, dict(zip(f.fgraph.inputs, (value,))))
    (wanted,) = evaluate([y], {x: value})
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-6)


def test_a_residual_is_added_by_the_same_call():
    x, p = T.TensorType("bfloat16", (2, 3, 3, 4))("x"), parameters("bfloat16", 4)
    y = x + scaled(x, p)
    f = symdnn.function([x], T.dot(y.reshape((18, 4)), p["w"]), mode=CUDA)
    assert elementwise(f) == []
    first = next(n.op for n in f.fgraph.toposort() if isinstance(n.op, GpuGemm))
    assert (first.bias, first.residual) == (True, 1.0)


def test_what_a_step_updates_is_not_scaled():
    x, p = T.TensorType("float32", (5, 4))("x"), parameters()
    y = scaled(x, p)
    for name in p:
        f = symdnn.function([x], y, updates=[(p[name], p[name] * 2)], mode=CUDA)
        programs = [op.program for op in elementwise(f) if isinstance(op, FusedElemwise)]
        assert any(len(program.inputs) == 3 for program in programs)


@pytest.mark.parametrize("why", ["float16", "no cache", "another reader", "an input", "excluded"])
def test_left_alone(why):
    dtype = "float16" if why == "float16" else "float32"
    x, p = T.TensorType(dtype, (5, 4))("x"), parameters(dtype)
    given = {} if why != "an input" else {"gamma": T.TensorType(dtype, (6,))("gamma")}
    product = T.dot(x, p["w"])
    y = scaled(x, {**p, **given})
    outputs = [y, product] if why == "another reader" else [y]
    mode = CUDA.excluding("scaled_products") if why == "excluded" else CUDA
    with config.change_flags(keep_prepared=why != "no cache"):
        f = symdnn.function([x, *given.values()], outputs, mode=mode)
    assert elementwise(f) != []
