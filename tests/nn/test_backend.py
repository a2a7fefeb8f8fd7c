"""Conversion between backends, what it lowers to, and the modes of cudnn.torch."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.config import config
from symdnn.cpu.onednn import library
from symdnn.detect import Candidate
from symdnn.errors import CudnnRequired, InputError
from symdnn.gpu import detect
from symdnn.graph.target import Target
from symdnn.nn.backend import Cudnn
from tests.seeded import new_rng

GPU = "cuda:sm_90"
CPU = Target("cpu", onednn=(3, 9, 0), isa="AVX512_CORE")
FLAGS = ("dnn.conv.algo_fwd", "dnn.conv.algo_bwd_data", "dnn.conv.algo_bwd_filter")


def network():
    """Convolution, normalisation, pooling, a dense layer and a softmax."""
    return nn.Sequential(
        nn.SpatialConvolution(3, 8, 3, 3),
        nn.SpatialBatchNormalization(8),
        nn.ReLU(),
        nn.SpatialMaxPooling(2, 2),
        nn.Flatten(),
        nn.Linear(32, 5),
        nn.SoftMax(),
    )


def with_gradients(net, x):
    y = net(x)
    return [y, *T.grad((y * y).sum(), net.parameters())]


def ops(net, target, x=None):
    """The names of the ops that a network and its gradients become."""
    x = T.tensor4("x") if x is None else x
    f = symdnn.function([x], with_gradients(net, x), mode=symdnn.Mode(target=target))
    return {type(n.op).__name__ for n in f.fgraph.nodes}


VENDORS = {
    "cudnn": {
        "GpuDnnConvBiasActivation", "GpuDnnConvGradW", "GpuDnnBatchNorm", "GpuDnnBatchNormGrad",
        "GpuDnnPool", "GpuDnnPoolGrad", "GpuDnnSoftmax", "GpuDnnSoftmaxGrad",
    },
    "onednn": {
        "OneDnnConv", "OneDnnConvGradW", "OneDnnBatchNorm", "OneDnnBatchNormGrad", "OneDnnPool",
        "OneDnnPoolGrad", "OneDnnMatmul",
    },
}  # fmt: skip


def of_vendors(names):
    """Those of a vendor's library, without GpuDnnReduction (the bias's gradient, in no module)."""
    return {n for n in names if n.startswith(("GpuDnn", "OneDnn"))} - {"GpuDnnReduction"}


@pytest.mark.parametrize(("backend", "target"), [("cudnn", GPU), ("onednn", CPU)])
def test_a_converted_network_lowers_to_the_library(backend, target):
    net = nn.convert(network(), backend)
    assert VENDORS[backend] <= ops(net, target)
    assert not of_vendors(ops(nn.convert(net, "nn"), target))
    assert of_vendors(ops(nn.convert(net, "auto"), target))


def test_without_a_vendor_the_elementwise_ops_and_products_stay_fast():
    net = nn.convert(network(), "nn")
    found = ops(net, GPU)
    assert {"Conv", "ConvGradWeight", "BatchMoments", "FusedElemwise", "Pool", "Softmax"} <= found
    assert ops(net, CPU) >= {"Conv", "FusedElemwise", "Dot"}


def test_what_a_library_is_asked_for_on_another_device_runs_by_what_is_there():
    net = nn.convert(network(), "cudnn")
    assert not any(n.startswith("Gpu") for n in ops(net, CPU))
    assert "OneDnnConv" in ops(net, CPU)


@pytest.mark.parametrize("backend", ["nn", "cudnn", "auto"])
def test_a_log_softmax_and_its_criterion_store_no_log_softmax(backend):
    net = nn.convert(nn.Sequential(nn.Linear(6, 5), nn.LogSoftMax()), backend)
    x, t = T.matrix("x"), T.lvector("t")
    loss = nn.ClassNLLCriterion()(net(x), t)
    outputs = [loss, *T.grad(loss, net.parameters())]
    f = symdnn.function([x, t], outputs, mode=symdnn.Mode(target=GPU))
    found = {type(n.op).__name__ for n in f.fgraph.nodes}
    assert "LabelLoss" in found
    assert not [n for n in found if "oftmax" in n]


def test_recurrent_nets_and_lrn():
    x, rnn = T.tensor3("x"), nn.BGRU(4, 6, 2)
    assert "GpuDnnRNNOp" in ops(nn.convert(rnn, "cudnn"), GPU, x)
    assert not of_vendors(ops(nn.convert(rnn, "nn"), GPU, x))
    lrn = nn.Sequential(nn.SpatialCrossMapLRN(5), nn.SpatialConvolution(6, 2, 1, 1))
    nn.convert(lrn[0], "cudnn")
    assert "GpuDnnLRN" in ops(lrn, GPU)
    nn.convert(lrn[0], "nn")
    assert "GpuDnnLRN" not in ops(lrn, GPU)


@pytest.mark.parametrize("backend", ["nn", "cudnn", "onednn", "auto"])
def test_values_before_and_after_are_equal(backend):
    net, x = network(), T.tensor4("x")
    value = new_rng().normal(size=(4, 3, 6, 6)).astype("float32")
    wanted = symdnn.function([x], with_gradients(net, x))(value)
    found = symdnn.function([x], with_gradients(nn.convert(net, backend), x))(value)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-5 * max(1, np.abs(b).max()))


def test_nothing_is_copied_and_the_network_is_returned():
    net = network()
    before = net.named_parameters()
    assert nn.convert(net, "cudnn") is net
    after = net.named_parameters()
    assert list(before) == list(after)
    assert all(after[n] is v for n, v in before)


def test_a_round_trip_leaves_the_network_as_it_was():
    nn.init.seed(0)
    net = nn.models.lenet()
    tree, values = repr(net), net.state_dict()
    for backend in ("cudnn", "onednn", "nn", "cudnn", "auto"):
        nn.convert(net, backend)
    assert repr(net) == tree
    assert all(m.backend == "auto" and not m.hints for _, m in net.named_modules())
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, values[name])


def test_an_expression_that_exists_stays_as_it_was():
    net, x = network(), T.tensor4("x")
    y = net(x)
    nn.convert(net, "nn")
    f = symdnn.function([x], y, mode=symdnn.Mode(target=GPU))
    assert any(type(n.op).__name__.startswith("GpuDnnConv") for n in f.fgraph.nodes)


README = nn.Sequential(nn.SpatialConvolution(3, 96, 11, 11, 3, 3), nn.ReLU())
TREE = """nn.Sequential {
  [input -> (0) -> (1) -> output]
  (0): cudnn.SpatialConvolution(3 -> 96, 11x11, 3,3)
  (1): %s.ReLU
}"""


def test_the_trees_of_the_readme():
    cudnn = nn.cudnn
    assert str(cudnn.convert(README, cudnn)) == TREE % "cudnn"
    nn.convert(README, nn)
    assert "cudnn" not in str(README)
    cudnn.convert(README, cudnn, lambda module: "ReLU" in type(module).__name__)
    assert str(README) == TREE % "nn"


def test_exclusion_asks_for_every_module_and_goes_on_inside():
    inner = nn.Sequential(nn.ReLU(), nn.Tanh())
    net, asked = nn.Sequential(inner, nn.Sigmoid()), []

    def exclude(module):
        asked.append(module)
        return module is inner or isinstance(module, nn.Tanh)

    nn.convert(net, "cudnn", exclude)
    assert asked == [net, inner, inner[0], inner[1], net[1]]
    assert [m.backend for m in asked] == ["auto", "auto", "cudnn", "auto", "cudnn"]


def test_what_was_excluded_does_not_inherit_nn():
    net = nn.Sequential(nn.SpatialConvolution(3, 3, 1, 1), nn.SpatialConvolution(3, 3, 3, 3))
    nn.convert(net, "nn", lambda module: module is net[1])
    assert {"Conv"} < ops(net, GPU)
    assert of_vendors(ops(net, GPU))


class Mixed(nn.Module):
    """A module with an op of its own beside another module."""

    def __init__(self):
        self.inner = nn.ReLU()
        self.parameter("weight", (2, 3, 3, 3), nn.init.normal(1.0))

    def forward(self, x):
        return self.inner(T.nnet.conv2d(x, self.weight))


def test_modules_of_ones_own():
    net = nn.convert(Mixed(), "nn")
    assert not of_vendors(ops(net, GPU))
    nn.convert(net, "cudnn")
    assert (net.backend, net.inner.backend) == ("auto", "cudnn")
    Mixed.vendors = ("cudnn",)
    try:
        assert nn.convert(net, "cudnn").backend == "cudnn"
        assert nn.convert(net, "onednn").backend == "auto"
    finally:
        del Mixed.vendors


def test_back_to_auto_where_the_next_library_has_no_such_module():
    net = nn.convert(nn.Sequential(nn.ReLU(), nn.Linear(2, 2), nn.Dropout()), "cudnn")
    assert [m.backend for m in net] == ["cudnn", "auto", "auto"]
    nn.convert(net, "onednn")
    assert [m.backend for m in net] == ["auto", "onednn", "auto"]


def test_every_module_of_the_reference_is_made_for_cudnn():
    names = """
    SpatialConvolution SpatialMaxPooling SpatialAveragePooling ReLU ClippedReLU Tanh Sigmoid SoftMax
    LogSoftMax SpatialSoftMax SpatialLogSoftMax VolumetricSoftMax VolumetricLogSoftMax
    SpatialCrossEntropyCriterion VolumetricCrossEntropyCriterion BatchNormalization
    SpatialBatchNormalization VolumetricBatchNormalization VolumetricConvolution
    VolumetricMaxPooling VolumetricAveragePooling RNNReLU RNNTanh LSTM GRU BLSTM BGRU
    SpatialFullConvolution
    """
    assert set(names.split()) <= set(dir(nn.cudnn))
    assert str(nn.cudnn.LSTM(32, 16, 3)) == "cudnn.LSTM(32 -> 16 x 3)"
    assert isinstance(nn.cudnn.ReLU(True), nn.ReLU)
    with pytest.raises(AttributeError, match=r"nn.cudnn has no 'Linear'; its modules: BGRU"):
        nn.cudnn.Linear  # noqa: B018


@pytest.mark.parametrize("backend", ["mkl", None, 3])
def test_bad_backends(backend):
    with pytest.raises(InputError, match="wanted one of auto, nn, cudnn, onednn"):
        nn.convert(network(), backend)
    with pytest.raises(InputError, match="convert: wanted a module"):
        nn.convert([nn.ReLU()], "nn")


def test_a_required_library_that_is_missing(monkeypatch):
    net = network()
    if not detect.dnn_available():
        with pytest.raises(CudnnRequired, match="libcuda.so.1") as error:
            nn.convert(net, "cudnn", required=True)
        assert "in this order" in str(error.value)
    nowhere = Candidate("flag onednn.library_path", "/nowhere/libdnnl.so.3", "not there")
    monkeypatch.setattr(library, "_state", lambda: (None, (nowhere,)))
    with pytest.raises(library.OnednnNotFound, match="/nowhere/libdnnl.so.3"):
        nn.convert(net, "onednn", required=True)
    assert all(m.backend == "auto" for m in net)
    nn.convert(net, "nn", required=True)


# -- modes ----------------------------------------------------------------------------------------


@pytest.fixture
def cudnn():
    """The modes of a namespace of its own, all of them off again in the end."""
    before = {name: config.setting(name) for name in (*FLAGS, "dnn.conv.workspace_limit")}
    modes = Cudnn()
    yield modes
    modes.benchmark = modes.fastest = modes.verbose = False
    assert before == {name: config.setting(name) for name in before}


def test_modes_set_the_flags_and_bring_them_back(cudnn):
    config.dnn.conv.workspace_limit = 1000
    try:
        origin = config.origin("dnn.conv.workspace_limit")
        cudnn.fastest = True
        assert [config.get(f) for f in FLAGS] == ["guess_on_shape_change"] * 3
        assert config.dnn.conv.workspace_limit == 0
        cudnn.benchmark = True
        assert [config.get(f) for f in FLAGS] == ["time_on_shape_change"] * 3
        cudnn.fastest = False
        assert config.dnn.conv.workspace_limit == 1000
        assert config.origin("dnn.conv.workspace_limit") == origin
        assert [config.get(f) for f in FLAGS] == ["time_on_shape_change"] * 3
        cudnn.benchmark = False
        assert [config.get(f) for f in FLAGS] == ["small", "none", "none"]
        assert [config.origin(f) for f in FLAGS] == ["default"] * 3
    finally:
        config.restore("dnn.conv.workspace_limit", None)


def algorithms(net):
    """The algorithm of each convolution and its gradients."""
    x = T.tensor4("x")
    mode = symdnn.Mode(target=GPU).excluding("epilogue")
    f = symdnn.function([x], with_gradients(net, x)[1:], mode=mode)
    nodes = [n for n in f.fgraph.toposort() if type(n.op).__name__.startswith("GpuDnnConv")]
    return [(type(n.op).__name__.removeprefix("GpuDnnConv"), n.op.algo) for n in nodes]


def convolutions():
    return nn.Sequential(nn.SpatialConvolution(3, 4, 3, 3), nn.SpatialConvolution(4, 4, 3, 3))


def test_benchmark_is_for_all_networks_compiled_from_then_on(cudnn):
    net = convolutions()
    before = algorithms(net)
    cudnn.benchmark = True
    assert {a for _, a in algorithms(net)} == {"time_on_shape_change"}
    cudnn.benchmark = False
    assert algorithms(net) == before
    assert "time_on_shape_change" not in dict(before).values()


def test_modes_of_one_network():
    net = nn.convert(convolutions(), "cudnn", benchmark=True)
    assert {a for _, a in algorithms(net)} == {"time_on_shape_change"}
    nn.convert(net, "cudnn", benchmark=False, fastest=True)
    assert {a for _, a in algorithms(net)} == {"guess_on_shape_change"}
    assert net[0].hints.workspace_limit == 0
    nn.convert(net, "cudnn", lambda m: m is net[0], fastest=False)
    assert {a for _, a in algorithms(net)} > {"guess_on_shape_change"}


def test_modes_of_one_module():
    net = convolutions()
    assert net[0].setMode(1, 0, "CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3") is net[0]
    net[1].setMode("large", bdmode=np.int64(1)).fastest()
    found = algorithms(net)
    assert found[:2] == [("", 1), ("", "large")]
    assert sorted(map(str, found[2:])) == [
        "('GradI', 1)", "('GradW', 'guess_on_shape_change')", "('GradW', 3)",
    ]  # fmt: skip
    net[1].fastest(False).resetMode()
    assert not net[1].hints
    net[0].resetMode()
    assert not net[0].hints


def test_a_transposed_convolutions_forward_pass_is_the_gradient_of_another():
    net = nn.Sequential(nn.SpatialFullConvolution(3, 4, 3, 3).setMode(bdmode=1, fmode=2))
    assert ("GradI", 1) in algorithms(net)


@pytest.mark.parametrize(
    ("modes", "message"),
    [
        ({"fmode": 8}, "fmode=8; wanted a number from 0 to 7, a name of cudnnConvolutionFwdAlgo_t"),
        ({"bdmode": 6}, "wanted a number from 0 to 5"),
        ({"bwmode": -1}, "wanted a number from 0 to 6"),
        ({"bwmode": True}, "bwmode=True"),
        ({"bwmode": "large"}, "one of none, deterministic, fft, small"),
        ({"fmode": "CUDNN_CONVOLUTION_FWD_ALGO_COUNT"}, "fmode='CUDNN_CONVOLUTION_FWD_ALGO_COUNT'"),
        ({"fmode": 1.5}, "fmode=1.5"),
    ],
)
def test_bad_modes(modes, message):
    module = nn.SpatialConvolution(1, 1, 1, 1)
    with pytest.raises(InputError, match=message):
        module.setMode(**modes)
    assert not module.hints


@pytest.mark.cpu
def test_verbose_tells_of_each_new_plan(cudnn, capsys):
    net, x = convolutions(), T.tensor4("x")
    f = symdnn.function([x], net(x), name="net", mode=symdnn.Mode(target="cpu"))
    small, large = (np.zeros((1, 3, n, n), "float32") for n in (8, 9))
    f(small)
    assert capsys.readouterr().err == ""
    cudnn.verbose = True
    f(large)
    told = capsys.readouterr().err
    assert "symdnn: net on cpu" in told
    assert "Conv" in told
    for _ in range(3):
        f(large)
    assert capsys.readouterr().err == ""
    cudnn.verbose = False
    f(np.zeros((1, 3, 7, 7), "float32"))
    assert capsys.readouterr().err == ""
    assert repr(cudnn) == "<nn.cudnn: benchmark=False, fastest=False, verbose=False>"


# -- what the reference's README warns of ---------------------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "nn", "cudnn", "onednn"])
def test_the_backward_pass_of_batch_norm_in_evaluation(rng, backend):
    net = nn.convert(network(), backend)
    norm, x = net[1], T.tensor4("x")
    norm.running_mean.set_value(rng.normal(size=8).astype("float32"))
    norm.running_var.set_value(rng.uniform(0.5, 2, 8).astype("float32"))
    net.evaluate()
    y = nn.Sequential(*net.modules[:3])(x)
    value = rng.normal(size=(2, 3, 5, 5)).astype("float32")
    parameters = [net[0].weight, norm.weight, norm.bias]
    found = symdnn.function([x], T.grad((y * y).sum(), parameters))(value)

    mean, var, gamma, beta = (v.dimshuffle("x", 0, "x", "x") for v in (
        norm.running_mean, norm.running_var, norm.weight, norm.bias))  # fmt: skip
    h = T.nnet.conv2d(x, net[0].weight, filter_flip=False) + net[0].bias.dimshuffle(
        "x", 0, "x", "x"
    )
    plain = T.nnet.relu((h - mean) / T.sqrt(var + norm.eps) * gamma + beta)
    wanted = symdnn.function([x], T.grad((plain * plain).sum(), parameters))(value)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-4 * np.abs(b).max())
