"""Ordered effects happen as they were written; what is unmergeable happens as often as that."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.function import function
from symdnn.compile.modes.debug import DebugMode
from symdnn.compile.program.mode import Mode
from symdnn.compile.program.program import Segment
from symdnn.graph import kernel as kernels
from symdnn.graph.inner import InnerGraph
from symdnn.graph.kernel import Kernel, register_kernel
from symdnn.graph.op import Op
from symdnn.graph.traverse import toposort
from symdnn.ops.control.from_graph import OpFromGraph
from symdnn.ops.core.gradient_control import Identity, Print
from symdnn.ops.lowered.fused import FusedElemwise

LOG: list[Any] = []
SEEDS = range(20)
OPTIMIZERS = ("None", "fast_compile", "fast_run", "o4")


@dataclass(frozen=True)
class Told(Identity):
    """``x``; a user's function is told that it ran."""

    host_callback: ClassVar[bool] = True
    unmergeable: ClassVar[bool] = True
    ordered: ClassVar[bool] = True

    tag: Any

    def reference(self, *inputs: Any) -> Any:
        LOG.append(self.tag)
        return inputs[0]


@dataclass(frozen=True)
class Exchange(Op):
    """``x + 1``, as if it came from other processes, which do the same in the same order."""

    unmergeable: ClassVar[bool] = True
    ordered: ClassVar[bool] = True

    tag: Any

    def infer(self, *inputs: Any) -> Any:
        return inputs[0]

    def shapes(self, types: Any, shapes: Any, host: Any) -> Any:
        return [shapes[0]]

    def reference(self, *inputs: Any) -> Any:
        LOG.append(self.tag)
        return inputs[0] + np.asarray(1, inputs[0].dtype)

    def vjp(self, inputs: Any, outputs: Any, cotangents: Any) -> Any:
        return [Exchange(("back", self.tag))(cotangents[0])]


@dataclass(frozen=True)
class Counted(Identity):
    """``x``; how often it ran is counted, in whichever order."""

    unmergeable: ClassVar[bool] = True

    def reference(self, *inputs: Any) -> Any:
        LOG.append("counted")
        return inputs[0]


class ExchangeKernel(Kernel):
    """What a device has for it; the emulated one computes by the reference."""

    name = "test.exchange"

    def bind(self, call: Any) -> Any:
        raise AssertionError("the emulated device computes by references")


@pytest.fixture(autouse=True)
def empty_log() -> None:
    LOG.clear()


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Mode:
    """A mode whose functions run on the device that computes by references."""
    import symdnn.gpu.execution.runtime as runtimes
    from tests.gpu.reference_device import ReferenceRuntime

    monkeypatch.setattr(runtimes, "_runtimes", {0: ReferenceRuntime()})
    monkeypatch.setattr(kernels, "_table", {k: [*v] for k, v in kernels._table.items()})
    register_kernel(Exchange, "cuda", ExchangeKernel())
    return Mode(target="cuda:sm_90")


class Random:
    """A random graph of vectors; ``written`` are the tags of its effects as they were written."""

    def __init__(self, seed: int, effects: Any, depth: int = 1) -> None:
        self.random, self.effects, self.depth = random.Random(seed), effects, depth
        self.written: list[Any] = []

    def of(self, x: Any, steps: int = 14, prefix: str = "") -> Any:
        """An expression of ``x`` that needs each effect in it."""
        values, unread = [x, x * 2, T.exp(-x * x)], []
        for n in range(steps):
            a, b = self.random.choices(values, k=2)
            kind = self.random.choice(["effect", "effect", "add", "mul", "tanh", "sum", "dot"])
            kind = "effect" if n in (1, 3) else kind
            if kind == "effect":
                self.written.append(f"{prefix}{n}")
                a = self.random.choice(self.effects)(f"{prefix}{n}")(a)
                unread.append(a)
            made = {
                "effect": lambda a=a: T.tanh(a),
                "add": lambda a=a, b=b: a + b,
                "mul": lambda a=a, b=b: T.tanh(a) * b,
                "tanh": lambda a=a: T.tanh(a),
                "sum": lambda a=a, b=b: b / (1 + abs(a).sum()),
                "dot": lambda a=a, b=b: b * T.tanh(T.dot(a, b)),
            }[kind]()
            values.append(made)
        self.random.shuffle(unread)
        total = values[-1]
        for v in unread:
            total = total + v if self.random.random() < 0.7 else T.tanh(v).mean() + total
        return total


def value_of(seed: int) -> Any:
    return np.linspace(-1, 1, 3 + seed % 5).astype("float32")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_effects_happen_as_written(seed, optimizer):
    made, x = Random(seed, [Told, Exchange]), T.fvector("x")
    f = function([x], made.of(x), mode=Mode(optimizer=optimizer))
    f(value_of(seed))
    assert made.written == LOG


@pytest.mark.parametrize("seed", SEEDS)
def test_effects_in_a_loop_happen_as_written_in_each_step(seed):
    made, x = Random(seed, [Told, Exchange]), T.fvector("x")
    before, after = Told("before")(x), Told("after")
    states = symdnn.scan(
        lambda state: made.of(T.tanh(state), 8), outputs_info=[before], n_steps=3, return_list=False
    )[0]
    f = function([x], [after(x * 3), states[-1]])
    f(value_of(seed))
    assert ["before", *made.written * 3, "after"] == LOG


@pytest.mark.parametrize("seed", SEEDS)
def test_effects_of_a_branch_happen_where_the_choice_was_written(seed):
    made, x, c = Random(seed, [Told, Exchange]), T.fvector("x"), T.iscalar("c")
    first = made.of(x, 6, "first ")
    count = len(made.written)
    yes, no = made.of(x, 6, "yes "), made.of(x, 6, "no ")
    begin, inside = made.written[:count], made.written[count:]
    beside = Told("beside")(T.exp(x))
    chosen = symdnn.ifelse(c, yes, no)
    last = Exchange("last")(x)
    f = function([x, c], [last, chosen, beside, first])
    for number, word in ((1, "yes"), (0, "no")):
        LOG.clear()
        f(value_of(seed), number)
        assert [*begin, "beside", *(t for t in inside if t.startswith(word)), "last"] == LOG


@pytest.mark.parametrize("effects", [[Exchange], [Told, Exchange]], ids=["device", "both"])
@pytest.mark.parametrize("seed", SEEDS)
def test_effects_on_a_device_happen_as_written(seed, effects, emulated):
    made, x = Random(seed, effects), T.fvector("x")
    out = made.of(x)
    f, g = function([x], out, mode=emulated), function([x], out)
    for n in range(4):  # as it is, captured, replayed
        LOG.clear()
        got = f(value_of(seed) + n)
        assert made.written == LOG
        np.testing.assert_allclose(got, g(value_of(seed) + n), rtol=1e-4, atol=1e-6)


def test_what_calls_nobody_is_captured_with_its_order(emulated):
    x = T.fvector("x")
    second, first = Exchange("1")(x), Exchange("2")(T.tanh(x))
    f = function([x], [first * 2, second * 3], mode=emulated)
    for _ in range(4):
        LOG.clear()
        f(value_of(0))
        assert LOG == ["1", "2"]
    assert f.plans()[0].bound.capture_state.startswith("captured")


def test_in_a_loop_on_a_device(emulated):
    x, tags = T.fvector("x"), []

    def step(s: Any) -> Any:
        a = Exchange("a")(s)
        b = Exchange("b")(T.tanh(s))
        return T.tanh(b) - a

    states = symdnn.scan(step, outputs_info=[x], n_steps=4, return_list=False)[0]
    f = function([x], states[-1], mode=emulated)
    for _ in range(5):
        LOG.clear()
        f(value_of(0))
        tags.append([*LOG])
    assert tags == [["a", "b"] * 4] * 5


def test_equal_effects_are_not_merged_folded_or_kept():
    x, w = T.fvector("x"), symdnn.shared(np.ones(3, "float32"), "w")
    f = function(
        [x], [Counted()(x), Counted()(x) * 2, Counted()(w).sum() + x, Counted()(T.ones(3))]
    )
    for _ in range(3):
        LOG.clear()
        f([1, 2, 3])
        assert LOG == ["counted"] * 4


@pytest.mark.parametrize("made_by", ["loop", "graph"])
def test_equal_graphs_with_effects_inside_are_not_merged(made_by):
    x = T.fvector("x")
    if made_by == "graph":
        v = T.fvector("v")
        op = OpFromGraph([v], [Told("a")(v) + Told("b")(v)])
        outs = [op(x), op(x)]
    else:

        def loop() -> Any:
            return symdnn.scan(
                lambda e: Told("a")(e) + Told("b")(e), sequences=[x], return_list=False
            )[0]

        outs = [loop(), loop()]
    function([x], outs)([1])
    assert LOG == ["a", "b"] * 2


def test_inlined_graphs_follow_each_other():
    """Their nodes were written once, before both; the nodes that they stand for one by one."""
    x, v = T.fvector("x"), T.fvector("v")
    op = OpFromGraph([v], [Told("a")(v) + Told("b")(T.tanh(v))], inline=True)
    one = op(x)
    between = Told("between")(x)
    two = op(x)
    function([x], [two, between, one])([1, 2])
    assert LOG == ["a", "b", "between", "a", "b"]


def test_givens_may_need_what_was_written_later():
    x, v = T.fvector("x"), T.fvector("v")
    first = Told("reads")(v)
    later = Told("given")(x)
    function([x], [first, Told("last")(x)], givens={v: later})([1])
    assert LOG == ["given", "reads", "last"]


def test_gradients_are_written_when_they_are_taken():
    x = T.fvector("x")
    y = Exchange("two")(T.tanh(Exchange("one")(x))).sum()
    g = T.grad(y, x)
    end = Exchange("end")(x)
    function([x], [end, g, y])(value_of(0))
    assert LOG == ["one", "two", ("back", "two"), ("back", "one"), "end"]


@pytest.mark.parametrize("how", ["clone", "pickle", "deepcopy"])
def test_copies_keep_the_order(how):
    import copy
    import pickle

    x = T.fvector("x")
    first, second = Told("1")(x), Told("2")(T.exp(x))
    out = second + first
    if how == "clone":
        out = symdnn.clone(out, share_inputs=True)
    else:
        box = [x, out]
        x, out = copy.deepcopy(box) if how == "deepcopy" else pickle.loads(pickle.dumps(box))
    function([x], out)([1])
    assert LOG == ["1", "2"]


def test_an_inner_graph_is_another_one_if_its_effects_are_in_another_order():
    def graph(swapped: bool) -> InnerGraph:
        v = T.fvector("v")
        a, b = (Told("b")(v), Told("a")(v)) if swapped else (Told("a")(v), Told("b")(v))
        return InnerGraph([v], [b, a][:: -1 if swapped else 1])

    assert graph(False) == graph(False)
    assert graph(False) != graph(True)


def test_fusion_joins_no_work_across_effects(emulated):
    """``exp`` goes into one effect and ``tanh`` comes of the next, of arrays that both read."""
    x = T.fvector("x")
    start = Exchange("start")(x)
    first = Exchange("first")(T.exp(start) * 2)
    second = Exchange("second")(x)
    outs = [T.tanh(second) + start, first * 2 + 1]
    for mode in (emulated, Mode(optimizer="o4")):
        f = function([x], outs, mode=mode)
        LOG.clear()
        f(value_of(0))
        assert LOG == ["start", "first", "second"]
    assert sum(isinstance(n.op, FusedElemwise) for n in f.fgraph.nodes) == 3


def test_a_pure_op_between_effects_may_move():
    """Equal ones are merged across an effect, and run where they are needed."""
    x = T.fvector("x")
    a = Exchange("a")(x)
    early = T.tanh(x) * 2
    b = Exchange("b")(x)
    f = function([x], [a, b + early, T.tanh(x) * 2], mode=Mode(optimizer="merge"))
    names = [type(n.op).__name__ for n in f.fgraph.toposort()]
    assert names.count("Tanh") == 1
    assert names.index("Tanh") > names.index("Exchange") + 1  # behind both


def test_debug_mode_has_each_effect_once():
    x = T.fvector("x")
    f = function([x], [Told("a")(x * 1), Exchange("b")(x + 0) * 2], mode=DebugMode())
    f(value_of(0))
    assert LOG == ["a", "b"]


def test_a_size_that_is_printed_is_printed_at_each_call(capsys):
    x = T.fvector("x")
    f = function([x], T.zeros((Print("rows", ("__str__",))(x.shape[0]), 2)))
    for _ in range(3):
        assert f([1, 2]).shape == (2, 2)
    assert len(re.findall("rows", capsys.readouterr().out)) == 3


def test_a_stage_runs_effects_of_both_places_in_turn(emulated):
    x = T.fvector("x")
    tags = [op(i)(T.tanh(x) * i) for i, op in enumerate([Told, Exchange, Told, Exchange, Told])]
    f = function([x], tags[::-1], mode=emulated)
    for _ in range(3):
        LOG.clear()
        f(value_of(0))
        assert LOG == [0, 1, 2, 3, 4]
    kinds = [r.place.kind for r in f.stages.program.regions if isinstance(r, Segment) and r.nodes]
    assert kinds.count("cuda") >= 2


def test_toposort_leaves_unordered_nodes_where_they_are():
    x = T.fvector("x")
    b, a = Counted()(x), Counted()(T.exp(x))
    names = [type(n.op).__name__ for n in toposort([a + b])]
    assert names == ["Exp", "Counted", "Counted", "Add"]


def test_an_ordered_op_is_unmergeable():
    with pytest.raises(TypeError, match="Wrong: an op that is `ordered` must be `unmergeable` too"):

        class Wrong(Op):
            ordered: ClassVar[bool] = True


IN_A_PROCESS = """
import symdnn.tensor as T
from symdnn.compile.function import function
from tests.compile.program import test_effects as e

made, x = e.Random(5, [e.Exchange]), T.fvector("x")
y = made.of(x)
f = function([x], [T.grad(y.sum(), x), y])
f(e.value_of(5))
print(e.LOG)
"""


@pytest.mark.cpu
def test_all_processes_have_one_order():
    """Whatever a process hashes by, effects of gradients are in the same order."""
    seen = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", IN_A_PROCESS], capture_output=True, text=True, check=True,
            cwd=Path(__file__).parents[3], env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        seen.add(done.stdout)
    (log,) = seen
    assert log.count("back") > 2
