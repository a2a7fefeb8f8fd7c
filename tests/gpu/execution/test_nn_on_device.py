"""Modules of symdnn.nn on a GPU: PyTorch's stored values, backends, modes, training."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.config import config
from symdnn.errors import IndexOutOfRange, UnsupportedAlgorithm
from tests.nn.layers import test_recurrent as recurrent
from tests.nn.losses import test_criterion as criterions
from tests.seeded import new_rng

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

VENDORS = ("auto", "cudnn", "nn")


@pytest.fixture(autouse=True)
def on_the_device():
    with config.change_flags({"device": "cuda", "dnn.conv.tuning_cache": "off"}):
        yield


# -- recurrent networks and criterions: the tests of the CPU, on the device -----------------------


@pytest.mark.parametrize("first", [False, True], ids=["steps first", "batch first"])
@pytest.mark.parametrize("case", ["", "/lengths"])
@pytest.mark.parametrize("kind", recurrent.ALL)
def test_recurrent_nets(kind, case, first):
    recurrent.test_values_and_gradients(kind, case, first)


@pytest.mark.parametrize("kind", ["BLSTM", "GRU"])
def test_one_sequence(kind):
    recurrent.test_one_sequence_without_a_batch(kind)


@pytest.mark.parametrize("kind", recurrent.KINDS)
def test_a_skipped_input(kind):
    recurrent.test_a_skipped_input_enters_the_gates_as_it_is(kind)


@pytest.mark.parametrize("option", [*criterions.OPTIONS, *criterions.SMOOTH])
@pytest.mark.parametrize("kind", criterions.KINDS)
def test_cross_entropy(kind, option):
    criterions.test_cross_entropy(kind, option)


@pytest.mark.parametrize("option", criterions.OPTIONS)
@pytest.mark.parametrize("kind", criterions.KINDS)
def test_negative_log_likelihood(kind, option):
    criterions.test_negative_log_likelihood(kind, option)


@pytest.mark.parametrize("name", criterions.VALUES)
def test_values_and_margins(name):
    criterions.test_values_and_margins(name)


def test_ctc():
    criterions.test_ctc(False)


def test_labels_that_are_no_classes():
    with pytest.raises(IndexOutOfRange, match="label 3"):
        criterions.loss_and_gradients(
            nn.CrossEntropyCriterion(), np.zeros((2, 3), "float32"), np.array([0, 3])
        )


@pytest.mark.parametrize("kind", ["LSTM", "BGRU", "RNNReLU"])
def test_a_persistent_algorithm_gives_the_same(kind):
    x, rnn = T.tensor3("x"), getattr(nn, kind)(16, 32, 2)
    value = new_rng().normal(size=(7, 4, 16)).astype("float32")

    def found():
        y = rnn(x)
        return symdnn.function([x], [y, *T.grad((y * y).sum(), [x, rnn.weight])])(value)

    usual = found()
    rnn.setPersist(True)
    try:
        persistent = found()
    except UnsupportedAlgorithm as error:
        pytest.skip(str(error).splitlines()[0])  # the card's right
    for a, b in zip(persistent, usual, strict=True):
        np.testing.assert_allclose(a, b, 1e-3, 1e-3 * np.abs(b).max())


# -- backends and modes ---------------------------------------------------------------------------


def network():
    nn.init.seed(0)
    return nn.Sequential(
        nn.SpatialConvolution(3, 8, 3, 3, 1, 1, 1),
        nn.SpatialBatchNormalization(8),
        nn.ReLU(),
        nn.SpatialMaxPooling(2, 2),
        nn.SpatialConvolution(8, 8, 3, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 5),
    )


def gradients(net, training=True):
    """The loss, and what each parameter changes it by."""
    x, t = T.tensor4("x"), T.lvector("t")
    loss = nn.CrossEntropyCriterion()(net.train(training)(x), t)
    rng = np.random.default_rng(5)
    values = rng.normal(size=(6, 3, 8, 8)).astype("float32"), rng.integers(0, 5, 6)
    return symdnn.function([x, t], [loss, *T.grad(loss, net.parameters())])(*values)


def assert_same(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, 2e-3, 2e-4 * max(1e-2, float(np.abs(b).max())))


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("backend", VENDORS)
def test_backends_agree_with_the_cpu(backend, training):
    net = network()
    with config.change_flags(device="cpu"):
        wanted = gradients(net, training)
    assert_same(gradients(nn.convert(net, backend), training), wanted)


@pytest.mark.parametrize("mode", ["benchmark", "fastest"])
def test_global_modes(mode):
    net = network()
    wanted = gradients(net)
    setattr(nn.cudnn, mode, True)
    try:
        found = gradients(net)
    finally:
        setattr(nn.cudnn, mode, False)
    assert_same(found, wanted)
    assert config.origin("dnn.conv.algo_fwd") == "default"


def test_modes_of_modules_are_what_runs():
    net, x = nn.Sequential(nn.SpatialConvolution(3, 4, 3, 3)), T.tensor4("x")
    net[0].setMode("CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM", 1, 1)
    y = net(x)
    f = symdnn.function([x], [y, *T.grad((y * y).sum(), [x, net[0].weight])])
    f(np.ones((2, 3, 8, 8), "float32"))
    requested = sorted(row.use.requested for row in f.dnn_report().rows)
    assert requested == ["0", "1", "1"]


def test_a_network_with_lengths_learns():
    rng = np.random.default_rng(0)
    nn.init.seed(1)
    lstm, dense = nn.BLSTM(4, 16, 1), nn.Linear(32, 2)
    x, lengths, t = T.tensor3("x"), T.ivector("lengths"), T.lmatrix("t")
    loss = nn.CrossEntropyCriterion(ignoreIndex=-1)(dense(lstm(x, lengths)).dimshuffle(0, 2, 1), t)
    step = symdnn.function(
        [x, lengths, t], loss, updates=nn.optim.adam(loss, nn.Sequential(lstm, dense), 0.02)
    )
    losses = []
    for _ in range(60):
        value = rng.normal(size=(6, 16, 4)).astype("float32")
        n = rng.integers(1, 7, 16).astype("int32")
        there = np.arange(6)[:, None] < n
        total = np.where(there, value[:, :, 0], 0).sum(0)  # of the whole sequence, known nowhere
        target = np.where(there, np.broadcast_to(total > 0, (6, 16)), -1).astype("int64")
        losses.append(float(step(value, n, target)))
    assert np.mean(losses[-5:]) < 0.6 * np.mean(losses[:5])
