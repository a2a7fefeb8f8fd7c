"""What becomes of an exception in a rewrite, of any kind and in any phase."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode, config, function, scan
from symdnn.errors import RewriteError
from symdnn.graph.type import TensorType
from symdnn.ops.elementwise.math import Exp
from symdnn.opt import optimise, phases
from symdnn.opt.phases import PHASES
from symdnn.rewriting.rewrite import GraphRewrite, Rewrite


def raising(node: Any, context: Any) -> Any:
    raise KeyError("a fault of the rule")


def of_another_type(node: Any, context: Any) -> Any:
    return T.TensorType("float32", (None,) * 3)("wrong")


def too_many(node: Any, context: Any) -> Any:
    return [node.outputs[0], node.outputs[0]]


def no_variable(node: Any, context: Any) -> Any:
    return 3


def raising_on_graph(context: Any) -> None:
    raise AssertionError("a fault of the rule")


def of_another_type_on_graph(context: Any) -> None:
    for node in context.fgraph.toposort():
        if isinstance(node.op, Exp):
            wrong = TensorType("float32", (None,) * 3)("wrong")
            context.fgraph.replace_all([(node.outputs[0], wrong)], "faulty")


NODE_FAULTS = [raising, of_another_type, too_many, no_variable]
GRAPH_FAULTS = [raising_on_graph, of_another_type_on_graph]


def with_rule(monkeypatch: Any, rule: Rewrite | GraphRewrite) -> None:
    monkeypatch.setattr(optimise, "RULES", (rule, *phases.RULES))


def rules(phase: str) -> list[Rewrite | GraphRewrite]:
    return [
        *(Rewrite("faulty", phase, (Exp,), f, frozenset({"cleanup"})) for f in NODE_FAULTS),
        *(GraphRewrite("faulty", phase, f) for f in GRAPH_FAULTS),
    ]


@pytest.mark.parametrize("which", range(len(NODE_FAULTS) + len(GRAPH_FAULTS)))
@pytest.mark.parametrize("phase", PHASES)
def test_a_failing_rewrite_warns_and_the_program_is_right(
    monkeypatch: Any, phase: str, which: int
) -> None:
    with_rule(monkeypatch, rules(phase)[which])
    x = T.fvector("x")
    built = function if phase in PHASES[:6] else _without_fusion
    with pytest.warns(RuntimeWarning, match="faulty"):
        f = built([x], T.exp(x) + x)
    np.testing.assert_allclose(f([0, 1]), [1, 1 + np.e], rtol=1e-6)


def _without_fusion(inputs: Any, outputs: Any) -> Any:
    return function(inputs, outputs, mode=Mode().excluding("fuse_elementwise"))


@pytest.mark.parametrize("which", range(len(NODE_FAULTS)))
def test_a_failing_rewrite_inside_of_a_loop_warns(monkeypatch: Any, which: int) -> None:
    with_rule(monkeypatch, rules("canonicalize")[which])
    x = T.fvector("x")
    history, _ = scan(lambda s: T.exp(-s), outputs_info=[x], n_steps=3)
    with pytest.warns(RuntimeWarning, match="faulty"):
        f = function([x], history[-1])
    e = np.exp(np.float32(-1))
    np.testing.assert_allclose(f([1]), [np.exp(-np.exp(-e))], rtol=1e-6)


@pytest.mark.parametrize("rule", rules("stabilize"), ids=lambda r: r.function.__name__)
def test_the_flag_says_raise_or_ignore(monkeypatch: Any, rule: Any) -> None:
    with_rule(monkeypatch, rule)
    x = T.fvector("x")
    with config.change_flags(on_opt_error="raise"), pytest.raises(Exception, match=r"\w"):
        function([x], T.exp(x))
    with config.change_flags(on_opt_error="ignore"):
        assert function([x], T.exp(x))([0]) == [1]


def test_a_replacement_that_does_not_fit_changes_nothing() -> None:
    from symdnn.graph.fgraph import FunctionGraph

    x, y = T.fvector("x"), T.fmatrix("y")
    graph = FunctionGraph([x, y], [T.exp(x), T.tanh(x)])
    before = list(graph.outputs)
    with pytest.raises(RewriteError, match="of type"):
        graph.replace_all([(before[0], graph.inputs[0]), (before[1], graph.inputs[1])])
    assert graph.outputs == before


def test_batch_normalisation_of_one_channel_compiles() -> None:
    x = TensorType("float32", (None, 1, None, None))("x")
    gamma, beta = T.fvector("gamma"), T.fvector("beta")
    p = ("x", 0, "x", "x")
    y = T.nnet.bn.batch_normalization_train(
        x, gamma.dimshuffle(*p), beta.dimshuffle(*p), axes="spatial"
    )[0]
    outputs = [y, *T.grad((y**3).sum(), [x, gamma, beta])]
    arrays = [np.arange(8.0).reshape(2, 1, 2, 2), np.array([2.0]), np.array([0.5])]
    arrays = [a.astype("float32") for a in arrays]
    plain = function([x, gamma, beta], outputs, mode=Mode(optimizer=None))(*arrays)
    for a, b in zip(function([x, gamma, beta], outputs)(*arrays), plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


SIZES = {
    "elements": lambda n: tuple(n[i] for i in range(4)),
    "sums": lambda n: (n[0], n[1], n[2:].sum() // 2, n[2:].max()),
    "sorted": lambda n: (n[0], n[1], *(T.sort(n)[k] for k in (3, 2))),
    "counted": lambda n: (n[0], n[1], 6 + T.eq(n, 1).sum(), n[3]),
    "shared": lambda n: [symdnn.shared(np.array([1, 2, 7, 7]))[i] for i in range(4)],
}


@pytest.mark.parametrize("kind", SIZES)
def test_convolutions_of_sizes_that_come_from_vectors(kind: str, rng: np.random.Generator) -> None:
    x, w, n = T.ftensor4("x"), T.ftensor4("w"), T.lvector("n")
    y = T.nnet.conv2d(x.reshape(SIZES[kind](n)), w)
    a, k = rng.standard_normal((1, 2, 7, 7)), rng.standard_normal((2, 2, 3, 3))
    arrays = [a.astype("float32"), k.astype("float32"), np.array([1, 2, 7, 7])]
    both = [
        function([x, w, n], y, mode=mode, on_unused_input="ignore")(*arrays)
        for mode in (Mode(), Mode(optimizer=None))
    ]
    np.testing.assert_allclose(both[0], both[1], rtol=1e-4, atol=1e-4)


def test_a_rule_that_is_switched_off_may_not_fail(monkeypatch: Any) -> None:
    rule = rules("canonicalize")[0]
    with_rule(monkeypatch, replace(rule, name="log_of_exp"))
    x = T.fvector("x")
    f = function([x], T.exp(x), mode=Mode().excluding("log_of_exp"))
    assert f([0]) == [1]
