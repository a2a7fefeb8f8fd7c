"""Merging, phases, and switching rewrites on and off by name and tag."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Hints, Mode, config, function
from symdnn.errors import RewriteError
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.pattern import AnyOf, ConstPattern, PatternVar, is_constant
from symdnn.graph.target import Target
from symdnn.graph.variable import Constant
from symdnn.libraries.table import ALL_RULES as RULES
from symdnn.ops.elementwise.math import Exp, exp
from symdnn.ops.random.random import random_uniform
from symdnn.opt import engine
from symdnn.opt.engine import RewriteProfile, run_rewrites
from symdnn.opt.phases import PHASES, Selection, rules_by_phase
from symdnn.rewriting.rewrite import Context, node_rewrite


def names(f: object) -> list[str]:
    return sorted(type(n.op).__name__ for n in f.fgraph.nodes)  # type: ignore[attr-defined]


def test_equal_nodes_are_one() -> None:
    x, y = T.matrices("x", "y")
    fgraph = FunctionGraph([x, y], [exp(x + y), exp(x + y), exp(y + x)])
    assert len(fgraph) == 2
    assert fgraph.outputs[0] is fgraph.outputs[1] is fgraph.outputs[2]


def test_equal_constants_are_one() -> None:
    x = T.matrix("x")
    fgraph = FunctionGraph([x], [x + np.ones((3, 3)), x + np.ones((3, 3))])
    assert fgraph.outputs[0] is fgraph.outputs[1]


def test_different_hints_operands_and_orders_are_not_merged() -> None:
    x, y = T.matrices("x", "y")
    hinted = T.nnet.softmax(x, hints=Hints(name="one"))
    outputs = [hinted, T.nnet.softmax(x), x - y, y - x]
    assert len(FunctionGraph([x, y], outputs)) == 4


def test_nodes_become_equal_when_their_inputs_do() -> None:
    x, y = T.matrices("x", "y")
    fgraph = FunctionGraph([x, y], [exp(x + 1) * 2, exp(y + 1) * 2])
    before = len(fgraph)
    fgraph.replace(fgraph.inputs[1], fgraph.inputs[0])
    assert len(fgraph) < before
    assert fgraph.outputs[0] is fgraph.outputs[1]


def test_excluding_by_name_tag_and_theano_s_name() -> None:
    x = T.vector("x")
    y = T.log(1 + x)
    lowered = Mode().excluding("lower", "fuse")
    assert "Log1p" in names(function([x], y, mode=lowered))
    for name in ("log_of_one_plus", "local_log1p", "stabilize", "numerics"):
        assert "Log" in names(function([x], y, mode=lowered.excluding(name)))


def test_flags_switch_rewrites_off() -> None:
    x = T.vector("x")
    with config.change_flags(optimizer_excluding="local_log1p:lower:fuse"):
        assert "Log" in names(function([x], T.log(1 + x)))


def test_including_the_unsafe_ones() -> None:
    x = T.vector("x")
    y = x * np.float32(0)
    plain, unsafe = (Mode().excluding("lower", "fuse"), Mode().including("unsafe"))
    assert "Mul" in names(function([x], y, mode=plain))
    f = function([x], y, mode=unsafe.excluding("lower", "fuse"))
    assert "Mul" not in names(f)
    np.testing.assert_array_equal(f([np.inf, 1]), [0, 0])


def test_requiring_what_does_not_exist_fails() -> None:
    x = T.vector("x")
    function([x], x, mode=Mode().requiring("log_of_softmax"))
    with pytest.raises(RewriteError, match="no_such_rewrite"):
        function([x], x, mode=Mode().requiring("no_such_rewrite"))


def test_every_rule_has_a_known_phase_and_later_phases_repeat_earlier_rules() -> None:
    everything = Selection(frozenset({"fast_run", "fast_compile"}))
    assert {r.phase for r in RULES} <= set(PHASES)
    canonical, stable = (
        {r.name for r in rules_by_phase(everything)[p]} for p in ("canonicalize", "stabilize")
    )
    assert canonical < stable


def test_random_draws_are_not_folded() -> None:
    state = T.constant(np.array([1, 0], "uint64"))
    drawn, _ = random_uniform(state, (2, 3), "float32")
    assert any("Random" in n for n in names(function([], drawn, mode=Mode().excluding("lower"))))


def test_rewriting_that_makes_a_graph_grow_is_stopped_soon() -> None:
    @node_rewrite(type(exp(T.vector()).owner.op), phase="canonicalize")
    def sprouts(node, context):  # type: ignore[no-untyped-def]
        x = node.inputs[0]
        return exp(x * 2 + 1) + exp(x * 3 + 1)

    x = T.vector("x")
    context = Context(FunctionGraph([x], [exp(x)]), Target(kind="cpu"))
    with (
        config.change_flags(on_opt_error="raise"),
        pytest.raises(RewriteError, match="does not end: [1-3]...? replacements.*sprouts"),
    ):
        run_rewrites([sprouts], context, RewriteProfile())


def test_rewriting_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SPARE_REPLACEMENTS", 2000)

    @node_rewrite(type(exp(T.vector()).owner.op), phase="canonicalize")
    def forth_and_back(node, context):  # type: ignore[no-untyped-def]
        return exp(node.inputs[0] + 0)

    x = T.vector("x")
    context = Context(FunctionGraph([x], [exp(x)]), Target(kind="cpu"))
    with (
        config.change_flags(on_opt_error="raise"),
        pytest.raises(RewriteError, match="does not end.*forth_and_back"),
    ):
        run_rewrites([forth_and_back], context, RewriteProfile())
    context = Context(FunctionGraph([x], [exp(x)]), Target(kind="cpu"))
    with pytest.warns(RuntimeWarning, match="does not end.*forth_and_back"):
        run_rewrites([forth_and_back], context, RewriteProfile())


def test_a_rewrite_keeps_the_user_s_line() -> None:
    x = T.vector("x")
    f = function([x], T.log(1 + x), mode=Mode().excluding("lower", "fuse"))  # this very line
    (node,) = [n for n in f.fgraph.nodes if type(n.op).__name__ == "Log1p"]
    assert "this very line" in node.origin.text()


def test_the_profile_counts() -> None:
    x = T.vector("x")
    f = function([x], T.log(1 + x))
    applied = f.stages.rewrites.rewrites["log_of_one_plus"]
    assert applied.fired == 1
    assert applied.tried >= 1
    assert "log_of_one_plus" in str(f.stages.rewrites) or f.stages.rewrites.slowest(3)


def test_rewrites_that_follow_from_each_other_take_one_round(monkeypatch: Any) -> None:
    """Each choice becomes one of equals when the one below it is gone, and is that one then."""
    drain, rounds = engine._Worklist.drain, []

    def counted(self: Any, fired: int) -> int:
        rounds.append(drain(self, fired) - fired)
        return fired + rounds[-1]

    monkeypatch.setattr(engine._Worklist, "drain", counted)
    x = y = T.vector("x")
    for _ in range(50):
        y = T.switch(y > 0, y, x)
    f = function([x], y)
    assert len(f.fgraph) == 0
    assert [n for n in rounds if n] == [50]


def test_a_node_is_handed_the_rewrites_of_its_kind_only() -> None:
    """What a pattern or ``admits`` rules out is not tried; what it lets through is."""
    x, y = T.vectors("x", "y")
    found = function([x, y], T.log(x) + y * x).stages.rewrites.rewrites
    assert found["constant_folding"].tried == 0
    assert found["log_of_exp"].tried == 0
    tried = function([x], T.log(T.exp(x))).stages.rewrites.rewrites
    assert tried["log_of_exp"].fired == 1


@pytest.mark.parametrize(
    "rule", [r for r in RULES if getattr(r, "pattern", None) is not None], ids=str
)
def test_the_quick_look_lets_every_instance_through(rule: Any) -> None:
    """A node made by a rule's own pattern is one that the rule admits."""
    makers = tuple(kind_of_input(q) for q in rule.pattern.inputs)
    assert rule.admits(type(rule.pattern.op), makers)
    if getattr(rule.pattern.op, "commutative", False):
        assert rule.admits(type(rule.pattern.op), makers[::-1])


def kind_of_input(part: Any) -> Any:
    """What makes an input that matches ``part``: the first of several."""
    if isinstance(part, AnyOf):
        return kind_of_input(part.choices[0])
    if isinstance(part, ConstPattern | int | float):
        return Constant
    if isinstance(part, PatternVar):
        return Constant if part.when is is_constant else None
    return type(part.op)


def test_rules_are_not_tried_at_nodes_that_lack_what_they_read() -> None:
    x, y = T.matrices("x", "y")
    tried = function([x, y], T.exp(x) * y + T.dot(x, y)).stages.rewrites.rewrites
    lacking = {"alloc_beside_operand", "alloc_after_elemwise", "elemwise_of_dimshuffles"}
    lacking |= {"constant_left", "constant_of_result_dtype", "alloc_in_product"}
    assert not lacking & tried.keys()


def test_a_phase_tries_no_rewrite_that_an_earlier_one_has_shown_not_to_apply() -> None:
    """Until something changes the graph: then all are tried again."""
    tried: list[str] = []

    def looks(name: str, applies: bool = False) -> Any:
        @node_rewrite(Exp, phase="canonicalize", name=name)
        def rule(node: Any, context: Any) -> Any:
            tried.append(name)
            return exp(node.inputs[0] * 2.0) if applies and len(tried) < 9 else None

        return rule

    first, second, changes = looks("first"), looks("second"), looks("changes", True)
    x = T.matrix("x")
    context = Context(FunctionGraph([x], [exp(x)]), Target("cpu"))
    for rules, wanted in (
        ([first], ["first"]),
        ([first], []),
        ([first, second], ["second"]),
        ([second, first], []),
    ):
        tried.clear()
        assert run_rewrites(rules, context, RewriteProfile()) == 0
        assert tried == wanted
    tried.clear()
    assert run_rewrites([first, changes], context, RewriteProfile()) > 0
    assert tried[0] == "changes"
    assert "first" in tried


def test_loop_bodies_are_copied_for_the_first_phase_only(monkeypatch: pytest.MonkeyPatch) -> None:
    x = T.matrix("x")
    found, _ = symdnn.scan(lambda row, h: T.tanh(row * h), sequences=x, outputs_info=T.zeros(3))
    made: list[int] = []
    init = FunctionGraph.__init__

    def counting(self: Any, *args: Any, **words: Any) -> None:
        init(self, *args, **words)
        made.append(len(self.nodes))

    monkeypatch.setattr(FunctionGraph, "__init__", counting)
    f = function([x], found)
    assert len(made) <= len(PHASES)  # a copy or two for each phase were twice as many
    assert f(np.ones((2, 3), "float32")).shape == (2, 3)
