"""Mixed precision inside of loops: products in 16 bits, and what a step does not round again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.origin import Hints
from symdnn.graph.traverse import toposort
from symdnn.graph.type import TensorType
from symdnn.ops.control.scan import Scan
from symdnn.ops.elementwise.arithmetic import Cast
from symdnn.ops.linalg.dot import Dot
from symdnn.ops.lowered.transfer import GpuFromHost, HostFromGpu
from symdnn.ops.vendor.gpublas import GpuGemm
from tests.opt.lowering import ALL, CPU, GPU, rewritten

STEPS, ROWS, WIDTH = 4, 3, 8


def network(kind: str = "plain", hints: Hints | None = None) -> tuple[Any, Any, Any]:
    """A recurrent network with its gradients; ``kind`` says what the state is."""
    rng = np.random.default_rng(2)
    shapes = [(STEPS, ROWS, WIDTH), (WIDTH, WIDTH), (WIDTH,), (ROWS, WIDTH)]
    if kind == "two taps":
        shapes[3] = (2, ROWS, WIDTH)
    drawn = [rng.standard_normal(s).astype("float32") * 0.5 for s in shapes]
    xs, w, b, h0 = (TensorType("float32", s)(f"v{i}") for i, s in enumerate(shapes))

    def product(h: Any) -> Any:
        return Dot()(h, w, hints=hints) if hints else T.dot(h, w)

    def step(x: Any, *h: Any) -> Any:
        return T.tanh(product(h[0]) + b + x + (h[1] if len(h) > 1 else 0))

    state = dict(initial=h0, taps=[-2, -1]) if kind == "two taps" else h0
    hs, _ = symdnn.scan(step, sequences=[xs], outputs_info=[state])
    cost = (hs * T.cos(hs)).sum()
    inputs = [xs, w, b, h0]
    return inputs, [cost, *T.grad(cost, inputs)], drawn


def bodies(graph: FunctionGraph) -> list[list[Any]]:
    return [toposort(n.op.inner.outputs) for n in graph.toposort() if isinstance(n.op, Scan)]


def products(body: list[Any]) -> set[str]:
    return {n.inputs[0].type.dtype for n in body if isinstance(n.op, Dot | GpuGemm)}


def rounded(body: list[Any]) -> list[Any]:
    """Casts to 16 bits of what enters a step."""
    casts = [n for n in body if isinstance(n.op, Cast) and n.outputs[0].type.dtype == "bfloat16"]
    return [n for n in casts if source(n.inputs[0]).owner is None]


def source(v: Any) -> Any:
    """A value before copies to other places."""
    while v.owner is not None and isinstance(v.owner.op, GpuFromHost | HostFromGpu):
        v = v.owner.inputs[0]
    return v


@pytest.mark.parametrize("selection", [ALL, ALL.excluding("epilogue")], ids=["all", "plain"])
def test_a_step_multiplies_in_16_bits_and_rounds_no_input(selection: Any) -> None:
    inputs, outputs, drawn = network()
    with config.change_flags(amp="bf16"):
        graph = rewritten(inputs, outputs, selection=selection)
    assert [products(b) for b in bodies(graph)] == [{"bfloat16"}] * 2
    assert [rounded(b) for b in bodies(graph)] == [[], []]
    forward, _ = [n for n in graph.toposort() if isinstance(n.op, Scan)]
    assert len(forward.op.states) == 2  # the state, and its rounded value
    want = evaluate(outputs, dict(zip(inputs, drawn)))
    got = evaluate(graph.outputs, dict(zip(graph.inputs, drawn)))
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype == np.float32
        assert np.linalg.norm(a - b) <= 2e-2 * np.linalg.norm(b)


@pytest.mark.parametrize("what", ["off", "on a CPU", "a hint"])
def test_without_mixed_precision_loops_stay(what: str) -> None:
    inputs, outputs, _ = network(hints=Hints(precision="float32") if what == "a hint" else None)
    with config.change_flags(amp="off" if what == "off" else "bf16"):
        graph = rewritten(inputs, outputs[:1], CPU if what == "on a CPU" else GPU)
    (body,) = bodies(graph)
    assert "bfloat16" not in {v.type.dtype for n in body for v in n.outputs}


def test_states_with_a_history_of_taps_are_rounded_in_each_step() -> None:
    inputs, outputs, drawn = network("two taps")
    with config.change_flags(amp="bf16"):
        graph = rewritten(inputs, outputs[:1])
    (body,) = bodies(graph)
    assert products(body) == {"bfloat16"}
    assert len(rounded(body)) == 1
    want = evaluate(outputs[:1], dict(zip(inputs, drawn)))
    got = evaluate(graph.outputs, dict(zip(graph.inputs, drawn)))
    np.testing.assert_allclose(got[0], want[0], rtol=2e-2)
