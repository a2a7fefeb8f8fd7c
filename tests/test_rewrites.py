"""Rewrites that a program registers: phases, names, tags, and what is compiled with and without."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode, config, function, rewrites
from symdnn.errors import ConfigError, DebugModeError, RewriteError
from symdnn.ops.elementwise.math import Exp, Sin
from symdnn.opt.phases import PHASES
from symdnn.rewriting import registry

(x,) = rewrites.pattern_vars("x")
#: Wrong on purpose, so that values show whether it ran.
doubled = rewrites.rewrite("sin_doubles", T.sin(x), x * 2, phase="stabilize", tags={"my_tag"})


@rewrites.node_rewrite(Exp, phase="canonicalize", tags={"optional"})
def exp_of_sin(node: object, context: rewrites.Context) -> object:
    """exp(sin(x)) -> x + 1"""
    inner = node.inputs[0].owner  # type: ignore[attr-defined]
    return inner.inputs[0] + 1 if inner is not None and isinstance(inner.op, Sin) else None


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    left = rewrites.registered()
    for rule in left:
        registry.remove(rule.name)
    assert left == ()


def result(f: object, value: float = 3.0) -> float:
    return float(f([value])[0])  # type: ignore[operator]


def sine(mode: Mode | None = None) -> object:
    v = T.dvector("v")
    return function([v], T.sin(v), mode=mode)


def test_a_registered_rewrite_runs_and_f_stages_shows_it() -> None:
    before = sine()
    with rewrites.using(doubled):
        assert rewrites.registered() == (doubled,)
        with_it = sine()
    after = sine()
    assert [result(f) for f in (before, with_it, after)] == [np.sin(3), 6, np.sin(3)]
    shown = str(with_it.stages.rewrites)  # type: ignore[attr-defined]
    (line,) = [n for n in shown.split("registered by the program:")[1].split("\n") if "sin_" in n]
    assert line.split()[:2] == ["sin_doubles", "1"]  # it fired once
    for f in (before, after):
        assert "registered" not in str(f.stages.rewrites)  # type: ignore[attr-defined]


def test_it_is_left_out_by_name_tag_phase_and_flag_and_not_shown_then() -> None:
    with rewrites.using(doubled):
        for word in ("sin_doubles", "my_tag", "stabilize"):
            f = sine(Mode().excluding(word))
            assert result(f) == np.sin(3)
            assert f.stages.rewrites.outside == ()  # type: ignore[attr-defined]
            with config.change_flags(optimizer_excluding=word):
                assert result(sine()) == np.sin(3)
        with config.change_flags(optimizer_requiring="my_tag"):
            assert result(sine()) == 6
        assert result(sine(Mode(optimizer=None))) == np.sin(3)
    for word in ("sin_doubles", "my_tag"):
        with pytest.raises(ConfigError, match=word):
            Mode().excluding(word)
        with pytest.raises(RewriteError, match=word):
            sine(Mode().requiring(word))


def test_an_optional_one_runs_when_it_is_included_by_name() -> None:
    v = T.dvector("v")
    with rewrites.using(exp_of_sin):
        without = function([v], T.exp(T.sin(v)))
        f = function([v], T.exp(T.sin(v)), mode=Mode().including("exp_of_sin"))
    assert (result(without), result(f)) == (np.exp(np.sin(3)), 4)


def test_register_gives_another_phase_and_more_tags() -> None:
    given = rewrites.register(doubled, phase="canonicalize", tags=["other"])
    assert (given.phase, given.tags) == ("canonicalize", {"my_tag", "other"})
    assert result(sine()) == 6
    assert result(sine(Mode().excluding("other"))) == np.sin(3)
    rewrites.unregister(given)


def test_a_graph_rewrite_runs_once_in_its_phase() -> None:
    seen = []

    @rewrites.register
    @rewrites.graph_rewrite("fuse")
    def count_nodes(context: rewrites.Context) -> None:
        seen.append(len(context.fgraph))

    f = sine()
    rewrites.unregister("count_nodes")
    assert seen == [1]
    assert f.stages.rewrites.outside == ("count_nodes",)  # type: ignore[attr-defined]


def test_names_are_used_once() -> None:
    with rewrites.using(doubled):
        with pytest.raises(RewriteError, match=r"'sin_doubles' is already.*choose another name"):
            rewrites.register(doubled)
        assert rewrites.registered() == (doubled,)
    for name in ("constant_folding", "cudnn", "fast_run", PHASES[0], "local_gemm_to_gemv"):
        rule = rewrites.rewrite(name, T.sin(x), x, phase="stabilize")
        with pytest.raises(RewriteError, match=f"{name!r} is already the name"):
            rewrites.register(rule)


def test_what_can_not_be_registered_is_refused() -> None:
    with pytest.raises(RewriteError, match=r"phase 'specialize'; wanted one of canonicalize, stab"):
        rewrites.register(doubled, phase="specialize")
    with pytest.raises(RewriteError, match="wanted a rewrite made by"):
        rewrites.register(lambda node: None)  # type: ignore[type-var]
    with pytest.raises(RewriteError, match="'nothing' is not registered; registered are none"):
        rewrites.unregister("nothing")
    with pytest.raises(RewriteError, match="'constant_folding' is not registered"):
        rewrites.unregister("constant_folding")


def test_using_ends_with_its_block_whatever_happens() -> None:
    with pytest.raises(ValueError, match="stop"), rewrites.using(doubled, exp_of_sin):
        raise ValueError("stop")
    with pytest.raises(RewriteError), rewrites.using(exp_of_sin, doubled, doubled):
        pass


def test_eval_compiles_anew_with_other_rewrites() -> None:
    v = T.dvector("v")
    y, value = T.sin(v), {v: np.array([3.0])}
    assert y.eval(value) == np.sin(3)
    with rewrites.using(doubled):
        assert y.eval(value) == 6
    assert y.eval(value) == np.sin(3)


def test_it_runs_in_the_body_of_a_loop() -> None:
    v = T.dvector("v")
    steps, _ = symdnn.scan(lambda a: T.sin(a) + a, outputs_info=[v], n_steps=3)
    with rewrites.using(doubled):
        assert result(function([v], steps[-1])) == 81


def test_its_nodes_have_the_line_of_what_they_replace() -> None:
    v = T.fvector("v")
    y = T.sin(v)
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    for target in ("cpu", "cuda:sm_90"):
        with rewrites.using(doubled):
            f = function([v], y, mode=Mode(target=target))
        assert {type(n.op).__name__ for n in f.fgraph.nodes} & {"Mul", "Add"}
        for node in f.fgraph.nodes:
            assert node.origin.lines[0][:2] == (__file__, line), (target, node)


def test_debug_mode_finds_a_wrong_one() -> None:
    with rewrites.using(doubled):
        f = sine(symdnn.DebugMode())
        with pytest.raises(DebugModeError, match="sin_doubles"):
            result(f)
