"""What runs a GpuDnn op at sizes that cuDNN does not take. Needs neither a GPU nor cuDNN."""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.compile.plan.specialise import TableOracle
from symdnn.compile.program.capabilities import kernel_reason
from symdnn.gpu import registry
from symdnn.graph.kernel import kernels_for
from symdnn.graph.type import TensorType
from symdnn.ops.vendor import gpudnn as G
from tests.gpu.fake_cudnn import F32, FakeEnv, arrays_of, call_of

registry.load()


def choice(op, *types):
    """The kernel that a plan takes, and the reasons of those before it."""
    found = TableOracle("cuda").choose(call_of(op, *types))
    return found.kernel.name, dict(found.refused)


def reduction(word, axis=(0,), indices=False):
    return G.GpuDnnReduction(word, axis, F32, F32, indices)


@pytest.mark.parametrize(
    ("word", "shape"),
    [("add", (0, 4)), ("add", (1, 4)), ("mul", (0, 4)), ("mul", (1, 4)), ("maximum", (1, 4))],
)
def test_reductions_have_a_kernel_of_their_own(fake, word, shape):
    name, refused = choice(reduction(word), (F32, shape))
    assert name == "cudnn.neutral"
    assert list(refused) == ["cuda.reduce", "cudnn.reduction"]


@pytest.mark.parametrize("op", [reduction("norm2"), reduction("maximum", indices=True)])
def test_other_reductions_go_to_the_host(fake, op):
    name, refused = choice(op, (F32, (1, 4)))
    assert name == "cudnn.on_host"
    assert list(refused) == ["cuda.reduce", "cudnn.reduction", "cudnn.neutral"]


def test_a_transformer_that_cudnn_refuses_takes_our_kernels(fake):
    call = call_of(G.GpuDnnTransformerGradT(), (F32, (2, 1, 5, 2)))
    assert TableOracle("cuda").choose(call).kernel.name == "cudnn.neutral"


def test_the_neutral_kernel_is_bound_and_asked_for_its_workspace(fake):
    call = call_of(reduction("add"), (F32, (1, 4)))
    kernel = next(k for k in kernels_for(type(call.op), "cuda") if k.name == "cudnn.neutral")
    neutral = kernels_for(type(call.op.neutral()), "cuda")[0]
    assert kernel.workspace_bytes(call) >= 0
    env = FakeEnv(fake)
    kernel.bind(call)(env, arrays_of(call.inputs), arrays_of(call.outputs, 0x9000_0000))
    assert [what for what, *_ in env.did] == ["launch"]
    assert neutral.name.startswith("cuda.")


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (G.GpuDnnBatchNorm("spatial", True), [(1, 3, 1, 1)] + [(1, 3, 1, 1)] * 4),
        (G.GpuDnnReduction("norm2", (0,), F32, F32), [(1, 5)]),
    ],
)
def test_the_reference_computes_what_cudnn_does_not(fake, op, shapes):
    call = call_of(op, *((F32, s) for s in shapes))
    assert TableOracle("cuda").choose(call).kernel.name == "cudnn.on_host"
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(s).astype(F32) + 2 for s in shapes]
    given, outputs = arrays_of(call.inputs), arrays_of(call.outputs, 0x9000_0000)
    env = FakeEnv(fake, {a.ptr: v for a, v in zip(given, values)})
    kernel = TableOracle("cuda").choose(call).kernel
    assert kernel.bind(call)(env, given, outputs) == outputs
    want = op.compute(*values)
    assert env.did == [("copy_in", w.tolist(), o.ptr) for w, o in zip(want, outputs)]


def test_types_alone_place_a_node_where_it_will_run(fake):
    x = TensorType(F32, (None, 3, None, None))("x")
    half = TensorType("bfloat16", (None, 3, None, None))("h")
    assert kernel_reason(G.GpuDnnLRN()(x).owner, "cuda") is None
    assert "bfloat16" in (kernel_reason(G.GpuDnnLRN()(half).owner, "cuda") or "")
    assert fake.calls == []


def test_unknown_sizes_ask_cudnn_nothing(fake):
    block = G.GpuDnnRNNOp("gru", hidden_size=4, num_layers=2)
    w, x, h = (TensorType(F32, (None,) * n)("v") for n in (1, 3, 3))
    assert kernel_reason(block(w, x, h)[0].owner, "cuda") is None
    how = {"padding": ((0, 0),) * 2, "stride": (1, 1), "dilation": (1, 1)}
    image, filters = (TensorType(F32, (None,) * 4)("v") for _ in range(2))
    assert kernel_reason(G.GpuDnnConv(**how)(image, filters).owner, "cuda") is None
    assert fake.calls == []
