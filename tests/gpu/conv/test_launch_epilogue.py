"""Convolutions with epilogues: one kernel or two, and their arguments. No device."""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.config import config
from symdnn.gpu import registry
from symdnn.gpu.conv import algorithm, measure, search, tuning
from symdnn.gpu.conv import epilogue as conv_epilogue
from symdnn.gpu.conv.candidate import Candidate
from symdnn.gpu.conv.epilogue import TwoKernels
from symdnn.gpu.conv.launch_epilogue import ConvEpilogueKernel, epilogue
from symdnn.gpu.conv.signature import Epilogue
from symdnn.graph.kernel import kernels_for
from symdnn.ops.nn.conv import Conv
from symdnn.ops.vendor.gpudnn import GpuDnnConv
from symdnn.ops.vendor.gpudnn_epilogue import GpuDnnConvBiasActivation
from symdnn.tuning import attempts, blocked
from tests.gpu.computing_cudnn import computing, run_conv, seen
from tests.gpu.fake_cudnn import F32, WORKSPACE, call_of, library_kernels, run
from tests.gpu.fake_frontend import Engine, fake_frontend

__all__ = ["computing", "fake_frontend"]
registry.load()
X, W, Y, B = (2, 4, 7, 6), (6, 4, 3, 3), (2, 6, 5, 4), (1, 6, 1, 1)


#: Before the fixture ``fake`` replaces it.
GRAPH_PLANS = search.graph_plans


@pytest.fixture
def plans(fake, fake_frontend):
    """The fake frontend, whose plans are found for convolutions with an epilogue."""
    none = [], "only with an epilogue in this test"
    fake.plans = lambda s: none if s.epilogue.is_empty else GRAPH_PLANS(s, 7, 4)
    return fake_frontend


@pytest.fixture(autouse=True)
def nothing_chosen():
    conv_epilogue.forget()
    yield
    conv_epilogue.forget()


def op(dtype=F32, algo=None, layout="NCHW", **terms):
    return GpuDnnConvBiasActivation(
        algo, padding=((0, 0), (0, 0)), stride=(1, 1), dilation=(1, 1), conv_mode="cross",
        precision="float32", layout=layout,
    ).ending(dtype, **{"bias": True, "activation": "relu", **terms})  # fmt: skip


def call(dtype=F32, z=False, layout="NCHW", **fields):
    shapes = [X, W, *([Y] if z else []), B]
    if layout == "NHWC":
        shapes = [(s[0], *s[2:], s[1]) for s in shapes]
    made = op(dtype, **fields, residual=1.0 if z else 0.0, layout=layout)
    return call_of(made, *((dtype, s) for s in shapes))


def last(z=False, **fields):
    """16 bits, channels last."""
    return call("float16", z, "NHWC", **fields)


def test_two_kernels_for_float32(fake):
    env, (x, w, b), (y,), _ = run(fake, call())
    args = fake.only("cudnnConvolutionForward")
    assert (args[3], args[5], args[-1]) == (x.ptr, w.ptr, y.ptr)
    ((_, name, fields),) = env.did
    assert name == "elementwise"
    assert fields[:3] == [y.ptr, b.ptr, y.ptr]


def test_an_addend_is_read_by_the_second(fake):
    env, (_, _, z, b), (y,), _ = run(fake, call(z=True))
    ((_, _, fields),) = env.did
    assert fields[:4] == [y.ptr, z.ptr, b.ptr, y.ptr]
    assert fake.only("cudnnConvolutionForward")[-1] == y.ptr


def test_one_kernel_with_channels_last(fake, plans):
    plans.engines = (Engine(7, workspace=640),)
    env, (x, w, z, b), (y,), _ = run(fake, last(z=True), kernel="cudnn.conv_epilogue")
    assert fake.named("cudnnConvolutionForward") == []
    assert env.did == []
    (ran,) = [r for g in plans.made for r in g.ran]
    pack, workspace, name, _ = ran
    assert [pack[i] for i in (1, 2, 3, 4, 5)] == [x.ptr, w.ptr, y.ptr, b.ptr, z.ptr]
    assert (workspace, name) == (WORKSPACE, "eng7_TILE_SIZE=2")
    assert ConvEpilogueKernel().workspace_bytes(last(z=True)) == 640
    assert "one kernel" in ConvEpilogueKernel().details(last(z=True))


@pytest.mark.parametrize("dtype", ["float16", F32])
def test_channels_second_are_not_taken_unmeasured(fake, plans, dtype):
    plans.engines = (Engine(7),)
    env, *_ = run(fake, call(dtype))
    assert [name for _, name, _ in env.did] == ["elementwise"]


def test_an_algorithm_that_was_named_runs(fake, plans):
    plans.engines = (Engine(7),)
    run(fake, last(algo="none"), kernel="cudnn.conv_epilogue")
    assert fake.only("cudnnConvolutionForward")[7] == 0


def test_another_way_to_choose_has_two_kernels(fake, plans, monkeypatch):
    def mine(search):
        return algorithm.ConvAlgorithm(search.named(1), "mine")

    plans.engines = (Engine(7),)
    monkeypatch.setitem(algorithm.WAYS, "mine", mine)
    env, *_ = run(fake, last(algo="mine_once"), kernel="cudnn.conv_epilogue")
    assert fake.only("cudnnConvolutionForward")[7] == 1
    assert [name for _, name, _ in env.did] == ["elementwise"]


def test_other_activations_are_not_taken_unmeasured(fake, plans):
    plans.engines = (Engine(7),)
    env, *_ = run(fake, last(activation="tanh"), kernel="cudnn.conv_epilogue")
    assert [name for _, name, _ in env.did] == ["elementwise"]


def test_without_a_plan_there_are_two_kernels(fake, plans):
    plans.engines = (Engine(7, works=False),)
    env, *_ = run(fake, last(), kernel="cudnn.conv_epilogue")
    assert [name for _, name, _ in env.did] == ["elementwise"]


@pytest.mark.parametrize("faster", [True, False])
def test_what_is_measured_decides(fake, plans, monkeypatch, faster):
    plans.engines = (Engine(7), Engine(8))
    seen = []

    class Bench(attempts.Bench):
        error_limit = 1e-3

        def __init__(self, context, s):
            seen.append((s.dtype, s.epilogue))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def compute_reference(self, two):
            assert isinstance(two, TwoKernels)

        def check(self, candidate, good_ms):
            return 0.0, 0.0

        def time(self, candidate, good_ms):
            if isinstance(candidate, TwoKernels):
                return 2.0
            return 1.5 if faster and candidate.plan.engine == 8 else 2.5

        def race(self, candidates):
            raise AssertionError("nothing is near")

    monkeypatch.setattr(measure, "Bench", Bench)
    monkeypatch.setattr(conv_epilogue, "free_bytes", lambda: 1 << 40)
    monkeypatch.setattr(conv_epilogue, "queried_context", lambda: None)
    monkeypatch.setattr(tuning, "key_of", lambda s, by: {})
    with config.change_flags(**{"dnn.conv.tuning_cache": "off"}):
        s = conv_epilogue_signature(call(algo="guess_once"))
        e = Epilogue(bias=True, activation="relu")
        timed = conv_epilogue.replace(s, wanted="time_once", epilogue=e)
        for _ in range(2):
            found = conv_epilogue.choose(timed, lambda: TwoKernels(0, lambda env, arrays: None))
        kept = conv_epilogue.replace(timed, wanted="kept_once")
        assert conv_epilogue.choose(kept, lambda: pytest.fail("it is measured")) is None
        kept = conv_epilogue.replace(kept, layout="NHWC")
        guessed = conv_epilogue.choose(kept, lambda: pytest.fail("it is measured"))
        assert "heuristics" in str(guessed)
    assert seen == [("float32", e)]  # remembered
    assert (found is not None) == faster
    if found is not None:
        assert found.candidate.plan.engine == 8
        assert "1.5 ms, 2 ms in two" in str(found)


def conv_epilogue_signature(of):
    from symdnn.gpu.conv.launch import signature

    return signature(of.__class__(of.op.plain(), of.inputs[:2], of.outputs, of.hints))


def test_nothing_to_convolve(fake):
    empty = call_of(op(), (F32, (0, 4, 7, 6)), (F32, W), (F32, B))
    env, *_ = run(fake, empty)
    assert env.did == []
    assert fake.named("cudnnConvolutionForward") == []


def test_it_is_a_convolution_for_those_who_look():
    assert isinstance(op(), GpuDnnConv)
    names = [k.name for k in kernels_for(GpuDnnConvBiasActivation, "cuda")]
    # After the reference on the host, which refuses nothing: never the unfused convolution.
    assert names.index("cudnn.conv_epilogue") < names.index("cudnn.on_host")
    assert names.index("cudnn.on_host") < names.index("cudnn.conv")


def test_what_cudnn_is_told():
    made = epilogue(op(residual=0.5, alpha=2.0, activation="gelu_tanh"))
    assert made == Epilogue(True, True, "gelu_tanh", 2.0, 0.5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_second_kernel_computes_in_float32(dtype):
    from symdnn.graph.type import numpy_dtype

    kind = numpy_dtype(dtype)
    made = op(dtype, residual=-1.0, alpha=0.5, activation="tanh").epilogue
    rng = np.random.default_rng(0)
    y, z, b = (rng.standard_normal(64).astype(kind) for _ in range(3))
    (got,) = made.after(dtype).evaluate(y, z, b)
    wide = [v.astype("float32") for v in (y, z, b)]
    want = np.tanh(0.5 * wide[0] - wide[1] + wide[2]).astype(kind)
    np.testing.assert_array_equal(got, want)


# -- checks ---------------------------------------------------------------------------------------


def relu_of_conv(x, w, bias):
    """In NHWC."""
    x, w = np.moveaxis(x, -1, 1), np.moveaxis(w, -1, 1)
    y = Conv(padding=((0, 0), (0, 0)), stride=(1, 1), dilation=(1, 1)).reference(x, w)
    return np.maximum(np.moveaxis(y, 1, -1) + bias.reshape(-1), 0)


@pytest.fixture
def one_kernel(computing, fake, plans, monkeypatch):
    """A fused kernel that computes by the reference; ``fault`` is added to its results."""
    plans.engines = (Engine(1),)
    monkeypatch.setattr("symdnn.gpu.binding.frontend.unavailable", lambda: "")
    fault = [0.0]
    ran = []

    def prepared(self, s, handle):
        if self.plan is None:
            return alone(self, s, handle)

        def run(env, arrays):
            ran.append(self.name)
            x, w, bias, y = (
                seen(arrays[r].ptr, arrays[r].shape, arrays[r].dtype).astype("float64")
                for r in ("x", "w", "bias", "y")
            )
            out = relu_of_conv(x, w, bias) + fault[0]
            seen(arrays["y"].ptr, y.shape, arrays["y"].dtype)[...] = out

        return run

    alone = Candidate.prepared
    monkeypatch.setattr(Candidate, "prepared", prepared)
    return fault, ran


@pytest.mark.parametrize("wrong", [0.0, 1.0])
def test_one_kernel_is_compared_with_two(fake, one_kernel, wrong):
    fault, ran = one_kernel
    fault[0] = wrong
    made = last()
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(t.shape).astype(t.numpy) for t in made.inputs]
    first, env, launch, kernel = run_conv(fake, made, given)
    x, w, b = (a.astype("float64") for a in given)
    np.testing.assert_allclose(first.astype("float64"), relu_of_conv(x, w, b), rtol=1e-2, atol=1e-2)
    use = kernel.library_use(made)
    assert use.check.startswith("checked, off by")
    assert (use.fallback is None) == (not wrong)
    again, *_ = run_conv(fake, made, given, env, launch)
    np.testing.assert_array_equal(again, first)
    assert len(ran) == (1 if wrong else 2)
    assert [e.key["epilogue"] for e in blocked.entries()] == ["relu(conv + bias)"] * bool(wrong)
    if wrong:
        assert (use.fallback.got, use.api) == ("two kernels", "legacy")
        assert library_kernels(type(made.op))[0].settled(made).fused is None
