"""Sums of sums as one op on a GPU: when, near misses, values, and the number of launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.config import config
from symdnn.graph.type import TensorType
from symdnn.ops.lowered.totals import Totals
from tests.opt.lowering import CPU, assert_same_values, rewritten

SHAPES = [(3, 4), (7,), (2, 3, 2), (1, 5), (6,), (1, 1, 9)]


def arrays_of(dtype: str) -> list[Any]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(s).astype(dtype) for s in SHAPES]


def totals(graph: Any) -> list[Any]:
    return [n for n in graph.toposort() if isinstance(n.op, Totals)]


@pytest.mark.parametrize("static", [True, False])
def test_a_common_norm_is_one_node(static: bool) -> None:
    arrays = arrays_of("float64")
    types = [a.shape if static else (None,) * a.ndim for a in arrays]
    vs = [TensorType("float64", s)(f"v{i}") for i, s in enumerate(types)]
    y = nn.global_norm(vs)
    graph = rewritten(vs, [y])
    (node,) = totals(graph)
    assert {str(p) for p in node.op.programs} == {"a * a"}
    assert len(node.inputs) == len(vs)
    assert_same_values(graph, vs, [y], arrays)


def test_other_terms_and_shared_ones_are_added() -> None:
    arrays = arrays_of("float64")
    vs = [TensorType("float64", a.shape)(f"v{i}") for i, a in enumerate(arrays)]
    s = T.dscalar("s")
    first = T.sqr(vs[0]).sum()
    y = first + abs(vs[1]).sum() + s * s + first + vs[2].sum() + T.exp(vs[3] / 2).sum()
    graph = rewritten([*vs, s], [y])
    (node,) = totals(graph)
    assert [str(p) for p in node.op.programs].count("a * a") == 2
    assert_same_values(graph, [*vs, s], [y], [*arrays, np.asarray(1.5)])


@pytest.mark.parametrize(
    "what", ["three sums", "sums that others read", "parts of sums", "products", "on a CPU"]
)
def test_near_misses_stay(what: str) -> None:
    arrays = arrays_of("float64")
    vs = [TensorType("float64", a.shape)(f"v{i}") for i, a in enumerate(arrays)]
    sums = [T.sqr(v).sum() for v in vs]
    if what == "three sums":
        outputs = [sums[0] + sums[1] + sums[2]]
    elif what == "sums that others read":
        outputs = [sum(sums[1:], sums[0]), *sums]
    elif what == "parts of sums":
        outputs = [sum((T.sqr(v).sum(axis=0).max() for v in vs[1:]), sums[0])]
    else:
        outputs = [sum((s * t for s, t in zip(sums[1:], sums)), sums[0])]
    if what == "on a CPU":
        graph = rewritten(vs, [nn.global_norm(vs)], CPU)
        assert not totals(graph)
        return
    graph = rewritten(vs, outputs)
    assert not totals(graph)
    assert_same_values(graph, vs, outputs, arrays)


def test_sums_of_fused_expressions_are_left_to_fusion() -> None:
    """Their arrays would be stored for the common sum alone."""
    arrays = arrays_of("float64")
    vs = [TensorType("float64", a.shape)(f"v{i}") for i, a in enumerate(arrays)]
    y = sum((T.sqr(v * T.cos(w)).sum() for v, w in zip(vs[1:], vs[1:])), T.sqr(vs[0]).sum())
    assert not totals(rewritten(vs, [y]))


def test_arrays_in_16_bits_are_read_as_they_are() -> None:
    vs = [TensorType("bfloat16", a.shape)(f"v{i}") for i, a in enumerate(arrays_of("float32"))]
    f = symdnn.function(vs, nn.global_norm(vs), mode=symdnn.Mode(target="cuda:sm_90"))
    (node,) = totals(f.fgraph)
    assert {v.type.dtype for v in node.inputs} == {"bfloat16"}


def launches_of(clip: float | None, amp: str, layers: int) -> int:
    """The nodes of a step's plan that are launched, updates left out."""
    with config.change_flags(amp=amp):
        x, t = T.matrix("x"), T.ivector("t")
        net = nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(8, 8), nn.Tanh())))
        loss = nn.CrossEntropyCriterion()(net(x), t)
        updates = nn.optim.adam(loss, net, 0.1, clip_norm=clip)
        mode = symdnn.Mode(target="cuda:sm_90")
        f = symdnn.function([x, t], loss, updates=updates, mode=mode)
    (plan,) = f.stages.specialise({"x": (4, 8), "t": (4,)})
    aliases, stored = plan.memory.aliases, plan.memory.stored
    nodes = plan.specialised.segment.nodes
    return sum(n not in aliases and not any(v in stored for v in n.outputs) for n in nodes)


@pytest.mark.parametrize("amp", ["off", "bf16"])
def test_clipping_adds_a_fixed_number_of_nodes(amp: str) -> None:
    more = {n: launches_of(1.0, amp, n) - launches_of(None, amp, n) for n in (4, 16)}
    assert more[4] == more[16] <= 3
