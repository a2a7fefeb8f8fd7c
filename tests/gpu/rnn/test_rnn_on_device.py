"""RNNBlock on a GPU: its algorithms, lengths, dropout, layout of the parameters."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode
from symdnn.config import config
from symdnn.gpu import dnn
from symdnn.gpu.conv.algorithm import UnsupportedAlgorithm
from symdnn.gpu.detect import cuda_target
from symdnn.gpu.device.interop import device_array
from symdnn.gpu.rnn import choice as cudnn_rnn_choice
from symdnn.gpu.rnn import launch as cudnn_rnn_launch
from symdnn.gpu.rnn import signature as cudnn_rnn_signature
from symdnn.gpu.rnn.choice import choose
from symdnn.gpu.rnn.signature import ALGORITHMS, RNNSignature, layout_problem
from symdnn.gpu.rnn.trial import Trial
from symdnn.ops.nn.rnn_params import GATES, RNNShape
from symdnn.ops.vendor.gpudnn import GpuDnnRNNOp
from tests.gpu import agreement
from tests.gpu.agreement import assert_agree, assert_close, compiled, normal, rounded, truth

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]
needs_card = pytest.mark.usefixtures("card")

STEPS, BATCH, FEATURES, HIDDEN = 6, 4, 5, 8
LIMIT = {"bfloat16": 2e-1, "float16": 3e-2, "float32": 5e-4, "float64": 1e-9}
OTHERS = [word for word in ALGORITHMS if word != "standard"]
DIRECTIONS = ("unidirectional", "bidirectional")


@pytest.fixture(autouse=True)
def nothing_chosen():
    cudnn_rnn_choice.forget()
    with config.change_flags({"dnn.conv.tuning_cache": "off"}):
        yield
    cudnn_rnn_choice.forget()


def block_of(mode, direction="unidirectional", layers=2, **more):
    return dnn.RNNBlock("float32", HIDDEN, layers, mode, direction_mode=direction, **more)


def given(block, steps=STEPS, batch=BATCH, features=FEATURES):
    s = block.layout
    states = (s.num_layers * s.directions, batch, s.hidden_size)
    w = normal(block.get_param_size(features), scale=0.3)
    more = [normal(*states, seed=i) for i in range(1 + s.has_cell)]
    return [w, normal(steps, batch, features), *more]


def used(f):
    return set(f.dnn_report().used())


# -- algorithms -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", GATES)
@pytest.mark.parametrize("word", OTHERS)
def test_every_algorithm_is_right(word, mode, direction, dtype):
    block = block_of(mode, direction, algo=word)
    names = ("cudnn.rnn", "cudnn.rnn_grad_inputs", "cudnn.rnn_grad_weights")
    f = assert_agree(block.apply, given(block), dtype, names, tolerance=LIMIT[dtype])
    assert used(f.run) == {word}


@needs_card
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", GATES)
def test_bfloat16(mode, direction):
    """A rectifier's gradient jumps where a rounded sum lies on the other side of 0."""
    if cuda_target().cudnn < (9, 13):
        pytest.skip("cuDNN before 9.13 has no recurrent networks in bfloat16")
    names = ("cudnn.rnn", "cudnn.rnn_grad_inputs", "cudnn.rnn_grad_weights")
    f = assert_agree(block_of(mode, direction).apply, given(block_of(mode, direction)), "bfloat16",
                     names, tolerance=(5 if mode == "rnn_relu" else 2) * 1e-1)  # fmt: skip
    (op,) = [n.op for n in f.run.fgraph.nodes if isinstance(n.op, GpuDnnRNNOp)]
    assert op.keeps_reserve


@needs_card
@pytest.mark.parametrize("word", ["guess", "time_once"])
def test_searches(word):
    block = block_of("lstm")
    with config.change_flags({"dnn.rnn.algo": word}):
        f = assert_agree(block.apply, given(block), "float32", tolerance=LIMIT["float32"])
    (row, *others) = f.run.dnn_report().rows
    assert row.use.requested == word
    assert {r.use.used for r in others} == {row.use.used}
    if word == "time_once":
        assert row.use.ms > 0
        assert all(name in row.use.why for name in ALGORITHMS)


def test_the_named_one_runs_forward_alone_too():
    block = block_of("gru", algo="persist_static_small_h")
    f = assert_agree(block.apply, given(block), "float32", wrt=[], tolerance=LIMIT["float32"])
    assert used(f.run) == {"persist_static_small_h"}


@needs_card
@pytest.mark.parametrize("word", OTHERS)
def test_sequences_of_other_lengths_have_the_standard_algorithm_alone(word):
    """cuDNN 9.19 has no other; one that has is compared with it."""
    block = block_of("gru", algo=word)
    arrays = [*given(block), np.array([6, 2, 4, 1])]

    def build(w, x, hx, n):
        return block.apply(w, x, hx, lengths=n)

    shape = RNNShape("gru", HIDDEN, 2, "linear", DIRECTIONS[0])
    net = RNNSignature(shape, "float32", STEPS, BATCH, FEATURES, 0.0, False)
    if Trial(net, True, 0).tried(word, False).problem:
        with pytest.raises(UnsupportedAlgorithm, match="These can: standard"):
            compiled(build, arrays, "float32")(*rounded(arrays, "float32")[0])
    else:
        assert_agree(build, arrays, "float32", tolerance=LIMIT["float32"])


def test_lengths_are_no_error_for_a_search():
    block = block_of("gru", algo="time_once")
    arrays = [*given(block), np.array([6, 2, 4, 1])]
    assert_agree(
        lambda w, x, hx, n: block.apply(w, x, hx, lengths=n), arrays, "float32",
        tolerance=LIMIT["float32"],
    )  # fmt: skip


@needs_card
def test_an_answer_without_work_is_found_out(monkeypatch):
    """``PERSIST_DYNAMIC`` that was not built returns success, fast."""
    for module in (cudnn_rnn_signature, cudnn_rnn_launch):
        monkeypatch.setattr(module, "build", lambda rnn, handle, net: None)
    net = RNNSignature(
        RNNShape("lstm", 64, 2, "linear", DIRECTIONS[0]), "float32", 8, 16, 64, 0.0, False
    )
    with pytest.raises(UnsupportedAlgorithm, match="persist_dynamic can't be taken"):
        choose(net, False, "persist_dynamic", 0)
    assert choose(net, False, "time_once", 0).name != "persist_dynamic"


@needs_card
def test_too_large_for_registers_is_refused_by_name_and_left_out_by_searches():
    net = RNNSignature(
        RNNShape("lstm", 1024, 1, "linear", DIRECTIONS[0]), "float32", 3, 4, 64, 0.0, False
    )
    with pytest.raises(UnsupportedAlgorithm, match="small_h can't be taken"):
        choose(net, False, "persist_static_small_h", 0)
    assert choose(net, False, "guess", 0).name == "standard"


@needs_card
@pytest.mark.parametrize("word", ["persist_static", "persist_static_small_h"])
def test_algorithms_draw_the_same_masks(word):
    """Dropout between layers: the trial compares with standard at the same seed."""
    net = RNNSignature(
        RNNShape("gru", 32, 3, "linear", DIRECTIONS[0]), "float32", 5, 6, 7, 0.4, False
    )
    assert not Trial(net, False, 0).tried(word, False).problem


def test_the_same_bits_each_time():
    for word in ALGORITHMS:
        block = block_of("lstm", "bidirectional", algo=word)
        arrays, _ = rounded(given(block), "float32")
        results = []
        for _ in range(2):
            f = compiled(block.apply, arrays, "float32")
            results += [[a.tobytes() for a in f(*arrays)] for _ in range(3)]
        assert all(r == results[0] for r in results[1:]), word


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_deterministic_nets_have_the_same_bits(direction, rate):
    """Several layers, larger than a tile of cuBLAS; dropout keeps the plan from being captured."""

    def results():
        block = dnn.RNNBlock(
            "float32", 96, 3, "lstm", direction_mode=direction, dropout=rate, stream=5
        )
        arrays, _ = rounded(given_of(block), "float32")
        f = compiled(block.apply, arrays, "float32")
        for call in range(6):
            for i, value in enumerate(f(*arrays)):
                yield f"call {call}, output {i}", value.tobytes()

    def given_of(block):
        s = block.layout
        states = (s.num_layers * s.directions, 20, 96)
        more = [normal(*states, seed=i) for i in range(2)]
        return [normal(block.get_param_size(40), scale=0.1), normal(25, 20, 40), *more]

    with config.change_flags(deterministic="more"):
        first, second = dict(results()), dict(results())
    assert [name for name in first if first[name] != second[name]] == []


# -- lengths, skip, dropout -----------------------------------------------------------------------

LENGTHS = ([6, 6, 6, 6], [1, 6, 3, 2], [0, 4, 0, 5], [2, 2, 2, 2], [6, 6, 6, 6])


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", ["gru", "lstm"])
def test_other_lengths_in_the_same_shapes_need_no_plan(mode, direction, skip, dtype):
    how = "skip" if skip else "linear"
    block = block_of(mode, direction, input_mode=how)
    arrays = given(block, features=HIDDEN if skip else FEATURES)

    def build(w, x, hx, *rest):
        *cx, lengths = rest
        return block.apply(w, x, hx, *cx, lengths=lengths)

    f = compiled(build, [*arrays, np.array(LENGTHS[0])], dtype)
    plans = []
    for lengths in LENGTHS:
        low, wide = rounded([*arrays, np.array(lengths)], dtype)
        for i, (a, b) in enumerate(zip(f(*low), truth(build, wide), strict=True)):
            assert_close(a, b, LIMIT[dtype], f"lengths {lengths}, output {i}")
        plans.append(len(f.run.plans()))
    assert len(set(plans)) == 1


def test_dropout_with_lengths_repeats_from_its_seed():
    def run(seed):
        block = block_of("lstm", layers=3, dropout=0.5, stream=seed)
        arrays = [*given(block), np.array([6, 2, 4, 1])]

        def build(w, x, hx, cx, n):
            return block.apply(w, x, hx, cx, lengths=n)

        f = compiled(build, arrays, "float32")
        low, _ = rounded(arrays, "float32")
        return [[a.tobytes() for a in f(*low)] for _ in range(2)]

    first, again, other = run(3), run(3), run(4)
    assert first == again
    assert first[0] != first[1]
    assert first[0] != other[0]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_dropout_keeps_the_mean(direction):
    """What passes to the second layer of a linear net (relu, positive) is scaled up."""
    block = dnn.RNNBlock("float64", 64, 2, "rnn_relu", direction_mode=direction, dropout=0.5)
    w = symdnn.shared(np.abs(normal(block.get_param_size(3), scale=0.02)))
    x, h = T.dtensor3("x"), T.dtensor3("h")
    noisy, clean = (block.apply(w, x, h, train=train)[0] for train in (True, False))
    f = symdnn.function([x, h], [noisy.mean(), clean.mean()], mode=Mode(target=agreement.TARGET))
    s = block.layout
    arrays = np.abs(normal(4, 8, 3)), np.zeros((s.num_layers * s.directions, 8, 64))
    results = np.array([f(*arrays) for _ in range(50)])
    assert np.ptp(results[:, 0]) > 0
    np.testing.assert_allclose(results[:, 0].mean(), results[0, 1], rtol=2e-2)
    np.testing.assert_array_equal(results[:, 1], results[0, 1])


# -- the layout of the parameters -----------------------------------------------------------------


@needs_card
@pytest.mark.parametrize("word", ALGORITHMS)
@pytest.mark.parametrize("mode", GATES)
def test_cudnn_keeps_each_part_where_symdnn_does(mode, word):
    for direction, how, dtype, layers in product(
        DIRECTIONS, ("linear", "skip"), ("float16", "float32", "float64"), (1, 3)
    ):
        shape = RNNShape(mode, HIDDEN, layers, how, direction)
        features = HIDDEN if how == "skip" else FEATURES
        net = RNNSignature(shape, dtype, STEPS, BATCH, features, 0.0, False)
        trial = Trial(net, False, 0)
        if word == "standard" or not trial.tried(word, False).problem:
            assert layout_problem(replace(net, algo=ALGORITHMS[word]), 0) is None


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", GATES)
def test_one_vector_is_the_same_net_on_both_devices(mode, direction):
    """Trained on the GPU, read part by part, and used on the CPU: no byte has moved."""
    block = block_of(mode, direction)
    w_value, *arrays = rounded(given(block), "float32")[0]
    w = symdnn.shared(w_value, "w")
    x, states = T.tensor3("x"), [T.tensor3(f"s{i}") for i in range(len(arrays) - 1)]
    y = block.apply(w, x, *states)[0]
    loss = (y**2).sum()
    with config.change_flags(device="cuda"):
        train = symdnn.function(
            [x, *states], loss, updates=[(w, w - np.float32(0.01) * T.grad(loss, w))]
        )
        on_gpu = symdnn.function([x, *states], y)
    with config.change_flags(device="cpu"):
        on_cpu = symdnn.function([x, *states], y)
    for _ in range(3):
        train(*arrays)
    assert not np.array_equal(w.get_value(), w_value)
    parts = block.named_params(w, FEATURES)
    assert block.pack_params(parts, FEATURES).tobytes() == w.get_value().tobytes()
    assert_close(np.asarray(on_cpu(*arrays)), np.asarray(on_gpu(*arrays)), 1e-4)


# -- captured -------------------------------------------------------------------------------------


def test_arrays_on_the_device_that_come_in_turn_are_read_where_they_are(cuda):
    """Backward, whose reserve the kernels allocate themselves: each graph has one of its own."""
    block = block_of("lstm", layers=1)
    w, x, *states = (a.astype("float32") for a in given(block))
    vx, dy = T.ftensor3("x"), T.ftensor3("dy")
    shared = [symdnn.shared(a) for a in (w, *states)]
    y = block.apply(shared[0], vx, *shared[1:], train=True)[0]
    outs = [y, *T.grad(None, [vx, shared[0]], known_grads={y: dy})]
    with config.change_flags(device="cuda"):
        f = symdnn.function([vx, dy], [symdnn.Out(o, borrow=True) for o in outs])
    with config.change_flags(device="cpu"):
        g = symdnn.function([vx, dy], outs)
    shapes = x.shape, (STEPS, BATCH, HIDDEN)
    batches = [[normal(*s, seed=i).astype("float32") for s in shapes] for i in range(3)]
    with cuda.context.current():
        placed = [[cuda.lend(cuda.memory.upload(a, None)) for a in pair] for pair in batches]
    for i in (0, 1, 2, 0, 1, 2, 2, 1, 0, 0):
        for got, want in zip(f(*placed[i]), g(*batches[i]), strict=True):
            found = cuda.to_host(device_array(got, cuda.context, "a result"))
            np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-3)
    (plan,) = f.plans()
    assert len(plan.bound.replay.graphs) == 3


def test_a_reserve_that_two_gradients_read_stays_as_it_is(cuda):
    """Of two sums of the result: what cuDNN writes into it on the way back is not read again."""
    block = block_of("gru", layers=2)
    w, x, *states = (a.astype("float32") for a in given(block))
    vx, dy, dz = T.ftensor3("x"), T.ftensor3("dy"), T.ftensor3("dz")
    shared = [symdnn.shared(a) for a in (w, *states)]
    y = block.apply(shared[0], vx, *shared[1:], train=True)[0]
    outs = [g for d in (dy, dz) for g in T.grad(None, [vx, shared[0]], known_grads={y: d})]
    made = []
    for device in ("cuda", "cpu"):
        with config.change_flags(device=device):
            made.append(symdnn.function([vx, dy, dz], outs))
    args = [x, *(normal(STEPS, BATCH, HIDDEN, seed=i).astype("float32") for i in (5, 6))]
    for _ in range(3):
        for got, want in zip(made[0](*args), made[1](*args), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
