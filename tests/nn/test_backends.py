"""What the ops of a module lower to, by its backend: on targets that are data, and in numbers."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode, nn
from symdnn.compile.execute.targets import load_kernels
from symdnn.compile.plan.specialise import TableOracle
from symdnn.graph.kernel import Call
from symdnn.graph.origin import Hints
from symdnn.graph.target import Target
from symdnn.ops.nn.pool import Pool
from symdnn.ops.vendor.gpudnn import GpuDnnSoftmax
from symdnn.ops.vendor.onednn import OneDnnPool
from tests.seeded import new_rng

GPU = Target("cuda", compute_capability=(9, 0), cudnn=(9, 19))
CPU = Target("cpu", onednn=(3, 5, 0), isa="AVX2")


class Mean(nn.Module):
    """The average of everything: the loss belongs to the net, so that it has its backend."""

    def forward(self, x):
        return (x * x).mean()


def network(backend):
    return with_backend(
        backend, *features(), nn.SpatialFullConvolution(8, 4, 2, 2), nn.GroupNorm(2, 4),
        nn.SpatialSoftMax(True), nn.SpatialLogSoftMax(), nn.SpatialAdaptiveAveragePooling(3, 1),
        nn.View(4, 3), nn.LSTM(3, 5, 1, batchFirst=True), nn.LayerNorm(5), nn.Flatten(),
        nn.Linear(20, 10), nn.BatchNormalization(10), nn.LogSoftMax(), Mean(),
    )  # fmt: skip


def calm_network(backend):
    """Without normalisation of what hardly varies, which would enlarge differences of rounding."""
    return with_backend(
        backend, *features(), nn.SpatialFullConvolution(8, 4, 2, 2), nn.SpatialSoftMax(),
        nn.View(16, 4), nn.LSTM(4, 5, 1, batchFirst=True), nn.Flatten(), nn.Linear(80, 10),
        nn.LogSoftMax(), Mean(),
    )  # fmt: skip


def features():
    """The first layers of both: the same values each time."""
    nn.init.seed(4)
    return (
        nn.SpatialConvolution(3, 8, 3, 3, 1, 1, 1, 1), nn.SpatialBatchNormalization(8),
        nn.ReLU(True), nn.SpatialCrossMapLRN(3), nn.SpatialMaxPooling(3, 3, 2, 2, 1, 1),
        nn.SpatialConvolution(8, 8, 3, 3, groups=2), nn.Dropout(0.2, seed=3), nn.ClippedReLU(3),
        nn.SpatialAveragePooling(2, 2),
    )  # fmt: skip


def with_backend(backend, *layers):
    return nn.Sequential(*layers).apply(lambda module: setattr(module, "backend", backend))


def trained(backend, mode, make=network):
    """A function that trains the network, compiled for the mode."""
    net, x = make(backend), T.TensorType("float32", (4, 3, 16, 16))("x")
    loss = net(x)
    steps = [
        (p, p - 0.1 * g) for p, g in zip(net.parameters(), symdnn.grad(loss, net.parameters()))
    ]
    updates = [*steps, *nn.state_updates(loss)]
    return net, symdnn.function([x], loss, updates=updates, mode=mode)


def kinds(function):
    return {type(node.op).__name__ for node in function.fgraph.toposort()}


LIBRARY = ("GpuDnn", "OneDnn")


@pytest.mark.parametrize("target", [GPU, CPU], ids=["gpu", "cpu"])
def test_nn_uses_no_library_of_layers(target):
    found = kinds(trained("nn", Mode(target=target))[1])
    assert not [k for k in found if k.startswith(LIBRARY)]
    assert {"Conv", "ConvGradInput", "ConvGradWeight", "Pool", "RNNForward"} <= found
    assert ("LRN" in found) == (target is CPU)  # windows of channels are pooled on a GPU
    assert {"FusedElemwise", "BatchMoments", "BatchSums"} <= found  # its own kernels are fused


@pytest.mark.parametrize("backend", ["auto", "cudnn", "onednn"])
@pytest.mark.parametrize(
    ("target", "prefix", "wanted"),
    [
        (GPU, "GpuDnn", {"Pool", "Softmax", "ConvGradI", "ConvGradW", "LRN", "RNNOp"}),
        (CPU, "OneDnn", {"Conv", "Pool", "ConvGradI", "ConvGradW", "Matmul", "LayerNorm"}),
    ],
    ids=["gpu", "cpu"],
)
def test_a_vendor_named_means_that_of_the_target(backend, target, prefix, wanted):
    found = kinds(trained(backend, Mode(target=target))[1])
    assert {prefix + k for k in wanted} <= found
    assert not found & {"Conv", "ConvGradInput", "ConvGradWeight"}
    assert ("RNNForward" in found) == (target is CPU)  # oneDNN has none that is used


def test_modules_of_one_network_may_differ():
    net = network("auto")
    net[0].backend = "nn"
    x = T.TensorType("float32", (4, 3, 16, 16))("x")
    names = [
        type(n.op).__name__
        for n in symdnn.function([x], net(x), mode=Mode(target=GPU)).fgraph.toposort()
    ]
    assert names.count("Conv") == 1
    assert [n for n in names if n.startswith("GpuDnnConv")]


def test_a_fast_softmax_is_cudnns():
    x = T.TensorType("float32", (4, 3, 5, 5))("x")

    def algorithms(backend, fast):
        layer = nn.SpatialSoftMax(fast)
        layer.backend = backend
        f = symdnn.function([x], layer(x), mode=Mode(target=GPU))
        return [n.op.algo for n in f.fgraph.toposort() if isinstance(n.op, GpuDnnSoftmax)]

    assert algorithms("cudnn", True) == ["fast"]
    assert algorithms("cudnn", False) == ["accurate"]
    assert algorithms("auto", True) == ["accurate"]
    assert algorithms("nn", True) == []


@pytest.mark.cpu
def test_all_backends_compute_the_same():
    x = new_rng().normal(size=(4, 3, 16, 16)).astype("float32")
    outcomes = []
    for backend in nn.BACKENDS:
        net, step = trained(backend, None, calm_network)
        outcomes.append([step(x), *net.state_dict().values()])
    for other in outcomes[1:]:
        for a, b in zip(outcomes[0], other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)


@pytest.mark.cpu
def test_kernels_of_a_vendor_come_last_for_nn():
    load_kernels(Target("cpu"))
    t = T.TensorType("float32", (2, 3, 8, 8))
    op = OneDnnPool(Pool((2, 2), (2, 2), (0, 0)))
    out = T.TensorType("float32", (2, 3, 4, 4))

    def chosen(backend):
        call = Call(op, (t,), (out,), Hints(backend=backend))
        return TableOracle("cpu").choose(call).kernel.name

    assert chosen("onednn").startswith("onednn")
    assert not chosen("nn").startswith("onednn")
