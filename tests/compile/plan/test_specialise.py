"""Stage 4 under a described oracle, on a machine without the device."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.plan.memory import plan_memory
from symdnn.compile.plan.offline_plan import DescribedKernel, DescribedOracle
from symdnn.compile.plan.specialise import Answers, TableOracle, specialise
from symdnn.errors import (
    DataDependentShape,
    DimensionMismatch,
    InputError,
    NotEvaluable,
    ShapeMismatch,
)
from symdnn.graph.kernel import Call, Traits
from symdnn.graph.origin import Hints

# Only sizes are rewritten, so that the ops are those that the test names.
GPU = symdnn.Mode(target="cuda:sm_90", optimizer="None").including("shape")


def network():
    x, t = T.ftensor4("x"), T.ivector("t")
    w = symdnn.shared(np.zeros((8, 3, 5, 5), "float32"), "w")
    v = symdnn.shared(np.zeros((8 * 14 * 14, 10), "float32"), "v")
    h = T.nnet.relu(T.signal.pool.pool_2d(T.nnet.conv2d(x, w), (2, 2), ignore_border=True))
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(h.flatten(2).dot(v)), t).mean()
    updates = [(p, p - 0.1 * T.grad(loss, p)) for p in (w, v)]
    return [x, t], loss, updates


@pytest.fixture(scope="module")
def described():
    inputs, loss, updates = network()
    return symdnn.function(inputs, loss, updates=updates, mode=GPU)


SHAPES = {"x": (4, 3, 32, 32), "t": (4,)}


def test_a_function_for_a_gpu_is_built_without_one(described):
    assert described.stages.target.compute_capability == (9, 0)
    assert described.stages.program.segments()
    assert described.plans() == []


def holding(plans, name):
    """The plan that has an op of this name, and its node."""
    found = [
        (p, n) for p in plans for n in p.specialised.choices if type(n.op).__name__ == name
    ]  # fmt: skip
    assert len(found) == 1
    return found[0]


def test_shapes_kernels_and_memory_without_a_device(described):
    plans = described.stages.specialise(SHAPES, DescribedOracle())
    plan, conv = holding(plans, "Conv")
    assert plan.specialised.shapes[conv.outputs[0]] == (4, 8, 28, 28)
    plan, grad = holding(plans, "ConvGradWeight")
    assert plan.specialised.shapes[grad.outputs[0]] == (8, 3, 5, 5)
    names = {k for p in plans for k in p.kernels().values()}
    assert "described.Conv" in names
    assert all(name.startswith("described.") for name in names)
    for p in plans:
        assert p.memory.live_bytes <= p.memory.arena_bytes <= 1.5 * p.memory.live_bytes + 1024


def test_the_default_oracle_takes_every_op(described):
    plans = described.stages.specialise(SHAPES)
    assert all(c.kernel.name for p in plans for c in p.specialised.choices.values())


def test_the_oracle_refuses_kernels_and_asks_for_workspace(described):
    def kernels(call):
        if type(call.op).__name__ == "Conv":
            return ("cudnn.winograd", "cudnn.fft_tiling", "cudnn.implicit_gemm")
        return ("any",)

    def refuses(name, call):
        return "5x5 filters" if name == "cudnn.winograd" else None

    def workspace(name, call):
        return 10_000_000 if name == "cudnn.fft_tiling" else 0

    oracle = DescribedOracle(kernels, refuses, workspace)
    plan, conv = holding(described.stages.specialise(SHAPES, oracle), "Conv")
    choice = plan.specialised.choices[conv]
    assert choice.kernel.name == "cudnn.fft_tiling"
    assert choice.refused == (("cudnn.winograd", "5x5 filters"),)
    (space,) = plan.memory.workspaces.values()
    assert space.nbytes == 10_000_000
    assert space.first == space.last
    assert plan.memory.arena_bytes >= 10_000_000
    alive = [
        v.buffer for v in plan.memory.views.values()
        if v.buffer.kind == "arena" and v.buffer.first <= space.first <= v.buffer.last
    ]  # fmt: skip
    for buffer in alive:
        apart = buffer.offset + buffer.nbytes <= space.offset
        assert apart or space.offset + space.nbytes <= buffer.offset


def test_an_oracle_that_takes_nothing_says_so(described):
    oracle = DescribedOracle(refuses=lambda name, call: "switched off")
    with pytest.raises(NotEvaluable, match=r"no described kernel takes .*switched off") as info:
        described.stages.specialise(SHAPES, oracle)
    assert __file__ in "".join(info.value.__notes__)


def test_a_described_kernel_cannot_be_bound(described):
    plan, conv = holding(described.stages.specialise(SHAPES, DescribedOracle()), "Conv")
    with pytest.raises(NotEvaluable, match="described, not there"):
        plan.specialised.launch(conv)


def test_wrong_shapes_and_names(described):
    with pytest.raises(InputError, match="'z' is none of the inputs x, t"):
        described.stages.specialise({"z": (1,)})
    with pytest.raises(DataDependentShape, match="the shape of t .* is not given"):
        described.stages.specialise({"x": (4, 3, 32, 32)})
    with pytest.raises(ShapeMismatch):
        described.stages.specialise({"x": (4, 3, 32, 31), "t": (4,)})
    with pytest.raises(DimensionMismatch, match=r"the input x: wanted shape .*, got \(4, 3\)"):
        described.stages.specialise({"x": (4, 3), "t": (4,)})


def test_host_values_feed_shapes():
    x, n = T.dvector("x"), T.lscalar("n")
    f = symdnn.function([x, n], (x[:n] * 2).sum(), mode=GPU)
    plans = f.stages.specialise({"x": (10,), "n": ()}, host_values={"n": 4})
    assert (4,) in [s for p in plans for s in p.specialised.shapes.values()]
    with pytest.raises(DataDependentShape, match="host_values"):
        f.stages.specialise({"x": (10,), "n": ()})


def test_both_branches_are_planned():
    x, c = T.dvector("x"), T.lscalar("c")
    f = symdnn.function([x, c], symdnn.ifelse(c, T.exp(x), T.sin(x)) * 2, mode=GPU)
    plans = f.stages.specialise({"x": (3,), "c": ()}, DescribedOracle())
    names = [k for p in plans for k in p.kernels().values()]
    assert {"described.Exp", "described.Sin", "described.Mul"} <= set(names)


@pytest.mark.cpu
def test_a_segment_by_hand_with_and_without_writing_in_place():
    x = T.dmatrix("x")
    f = symdnn.function([x], T.exp(T.sin(x * 2) + 1).sum(), mode=symdnn.Mode(optimizer="None"))
    (segment,) = f.stages.program.segments()
    f(np.ones((2, 3)))  # loads the CPU's kernels
    (entering,) = segment.inputs
    done = specialise(segment, {entering: (20, 30)}, {}, TableOracle("cpu"))
    assert {c.kernel.name for c in done.choices.values()} <= {"numpy.ufunc", "numpy.reduce"}
    size = 20 * 30 * 8
    assert plan_memory(done).arena_bytes == -(-size // 64) * 64
    assert plan_memory(done, in_place=False).arena_bytes > size


class Counting(TableOracle):
    """Notes the ops of the calls that it is asked about."""

    asked: list[str]

    def choose(self, call):
        self.asked.append(str(call.op))
        return super().choose(call)


@pytest.mark.cpu
def test_a_new_size_asks_only_about_nodes_whose_shapes_changed():
    """Those of parameters are not asked about again, unless a flag has changed."""
    x, w = T.dmatrix("x"), T.dmatrix("w")
    y = T.dot(x, T.exp(w).T).sum()
    f = symdnn.function([x, w], y, mode=symdnn.Mode(optimizer="None"))
    (segment,) = f.stages.program.segments()
    f(np.ones((2, 3)), np.ones((4, 3)))  # loads the CPU's kernels
    oracle, answers = Counting("cpu"), Answers()
    object.__setattr__(oracle, "asked", [])

    def ask(rows):
        oracle.asked.clear()
        shapes = {v: (rows, 3) if v.name == "x" else (4, 3) for v in segment.inputs}
        found = specialise(segment, shapes, {}, oracle, answers=answers)
        plain = specialise(segment, shapes, {}, TableOracle("cpu"))
        assert [c.kernel.name for c in found.choices.values()] == [
            c.kernel.name for c in plain.choices.values()
        ]
        assert found.shapes == plain.shapes
        assert dict(found.calls) == dict(plain.calls)
        return len(oracle.asked)

    every = ask(2)
    assert every == len(segment.nodes)
    assert 0 < ask(5) < every
    assert ask(5) == 0  # no kernel of these has choices of its own
    with symdnn.config.change_flags(floatX="float64"):
        assert ask(5) == every


@pytest.mark.parametrize(
    ("backend", "chosen"), [(None, "numpy.a"), ("onednn", "onednn.b"), ("cudnn", "numpy.a")]
)
def test_a_hint_names_the_backend_where_the_target_has_it(monkeypatch, backend, chosen):
    kernels = [by_name("numpy.a"), by_name("onednn.b")]
    monkeypatch.setattr("symdnn.compile.plan.specialise.kernels_for", lambda op_type, kind: kernels)
    x = T.dvector("x")
    node = T.exp(x).owner
    call = Call(node.op, (x.type,), (node.out.type,), Hints(backend=backend))
    assert TableOracle("cpu").choose(call).kernel.name == chosen


def by_name(name):
    return DescribedKernel(name, Traits(name.partition(".")[0]))


class Unwilling(DescribedKernel):
    def refuses(self, call):
        return "not this call"


@pytest.mark.parametrize(
    ("backend", "chosen", "refused"),
    [
        ("cudnn", "onednn.b", {"cudnn.c": "not this call"}),
        ("onednn", "onednn.b", {"cudnn.c": "the hint asks for backend onednn"}),
        ("nn", "numpy.a", {"onednn.b": "the hint asks for no vendor's kernels"}),
    ],
)
def test_other_kernels_are_taken_where_the_one_that_a_hint_names_refuses(
    monkeypatch, backend, chosen, refused
):
    kernels = [Unwilling("cudnn.c", Traits("cudnn")), by_name("onednn.b"), by_name("numpy.a")]
    monkeypatch.setattr("symdnn.compile.plan.specialise.kernels_for", lambda op_type, kind: kernels)
    x = T.dvector("x")
    node = T.exp(x).owner
    call = Call(node.op, (x.type,), (node.out.type,), Hints(backend=backend))
    choice = TableOracle("cpu").choose(call)
    assert choice.kernel.name == chosen
    assert refused.items() <= dict(choice.refused).items()


@pytest.mark.parametrize("text", ["gpu", "cuda:90", "cuda:sm_x", ""])
def test_a_wrong_target(text):
    x = T.dvector("x")
    with pytest.raises(ValueError, match="wanted 'cpu', 'cuda' or 'cuda:sm_90'"):
        symdnn.function([x], x, mode=symdnn.Mode(target=text))
