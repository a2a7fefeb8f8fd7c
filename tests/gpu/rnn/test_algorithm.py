"""Which algorithm runs a recurrent network: named, guessed, timed; and the same one backward."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode
from symdnn.config import config
from symdnn.errors import SymdnnError
from symdnn.gpu import dnn, libcudnn, registry
from symdnn.gpu.conv.algorithm import UnsupportedAlgorithm
from symdnn.gpu.device import cudnn_device
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.rnn import choice as cudnn_rnn_choice
from symdnn.gpu.rnn.choice import choose
from symdnn.gpu.rnn.signature import ALGORITHMS, RNNSignature
from symdnn.graph.kernel import kernels_for
from symdnn.graph.origin import Hints
from symdnn.ops.nn.rnn import RESERVE
from symdnn.ops.nn.rnn_params import RNNShape
from symdnn.ops.vendor import gpudnn as G
from symdnn.ops.vendor.gpudnn_rnn import GpuDnnRNNBase
from symdnn.tuning.attempts import Bench
from tests.gpu.cudnn.test_launch_sequences import Layout
from tests.gpu.fake_cudnn import F32, call_of, inputs_of, run

registry.load()

STEPS, BATCH, FEATURES, HIDDEN = 5, 3, 4, 6
NET = RNNSignature(
    RNNShape("lstm", 512, 2, "linear", "unidirectional"), "float16", 9, 8, 7, 0.0, False
)


class Trials(Bench):
    """A fake :class:`Trial`: the outcome of each algorithm is given."""

    def __init__(self):
        self.answers = {}  # algorithm -> milliseconds, or its fault
        self.made, self.asked = [], []

    def __call__(self, net, lengths, device):
        self.made.append((net, lengths, device))
        return self

    def check(self, candidate, good_ms):
        self.asked.append((candidate, False))
        found = self.answers.get(candidate, 1.0)
        if isinstance(found, str):
            raise SymdnnError(found)
        return 0.0, 0.0

    def time(self, candidate, good_ms):
        self.asked.append((candidate, True))
        return self.answers.get(candidate, 1.0)


@pytest.fixture
def trials(monkeypatch):
    made = Trials()
    monkeypatch.setattr(cudnn_rnn_choice, "Trial", made)
    cudnn_rnn_choice.forget()
    with config.change_flags({"dnn.conv.tuning_cache": "off"}):
        yield made
    cudnn_rnn_choice.forget()


# -- the choice -----------------------------------------------------------------------------------


def test_standard_is_not_tried(trials):
    assert choose(NET, False, "standard", 0).algo == "STANDARD"
    assert not trials.made


@pytest.mark.parametrize("word", [w for w in ALGORITHMS if w != "standard"])
def test_a_named_one_is_checked_once(trials, word):
    for _ in range(2):
        choice = choose(NET, False, word, 0)
        assert (choice.algo, choice.name) == (ALGORITHMS[word], word)
    assert trials.made == [(NET, False, 0)]
    choose(NET, True, word, 0)  # sequences with lengths are another question
    assert len(trials.made) == 2


def test_a_named_one_that_is_wrong_is_an_error_that_names_the_others(trials):
    trials.answers = {"persist_static": "y differs", "persist_dynamic": "no"}
    with pytest.raises(UnsupportedAlgorithm) as caught:
        choose(NET, False, "persist_static", 0)
    text = str(caught.value)
    assert "persist_static can't be taken for RNNShape(rnn_mode='lstm'" in text
    assert text.endswith("y differs. These can: standard, persist_static_small_h")


def test_the_fastest_of_those_that_are_right(trials):
    trials.answers = {
        "standard": 3.0, "persist_static": 2.0, "persist_dynamic": "y differs by 1",
        "persist_static_small_h": 2.5,
    }  # fmt: skip
    choice = choose(NET, False, "time_once", 0)
    assert (choice.name, choice.ms) == ("persist_static", 2.0)
    assert "persist_dynamic: y differs by 1" in choice.why
    assert "standard: 3 ms" in choice.why


def test_nothing_but_standard_is_left(trials):
    trials.answers = dict.fromkeys(ALGORITHMS, "out of memory")
    assert choose(NET, False, "time_once", 0).name == "standard"
    assert choose(NET, True, "guess", 0).name == "standard"


def test_a_guess_is_checked(trials):
    small = replace(NET, shape=replace(NET.shape, hidden_size=16))
    assert choose(small, False, "guess", 0).name == "persist_static_small_h"
    trials.answers = {"persist_static_small_h": "y differs"}
    cudnn_rnn_choice.forget()
    assert choose(small, False, "guess", 0).name != "persist_static_small_h"


@pytest.mark.parametrize(
    ("hidden", "dtype", "rate", "lengths", "expected"),
    [
        (128, "float32", 0.0, False, "persist_static_small_h"),
        (128, "float16", 0.5, True, "standard"),
        (129, "float16", 0.0, False, "standard"),
        (129, "float16", 0.5, False, "persist_static"),
        (129, "float32", 0.5, False, "standard"),
    ],
)
def test_what_is_guessed(trials, hidden, dtype, rate, lengths, expected):
    shape = replace(NET.shape, hidden_size=hidden)
    net = replace(NET, shape=shape, dtype=dtype, rate=rate)
    assert choose(net, lengths, "guess", 0).name == expected


def test_float16_uses_tensor_cores_and_float32_its_own_precision():
    maths = {d: replace(NET, dtype=d).math for d in ("float16", "float32", "float64")}
    assert maths == {"float16": "TENSOR_OP_MATH", "float32": "FMA_MATH", "float64": "DEFAULT_MATH"}
    assert replace(NET, dtype="float32", allow_tf32=True).math == "DEFAULT_MATH"


def test_a_described_device_believes_what_is_named(trials):
    assert choose(NET, False, "persist_static", None).name == "persist_static"
    assert choose(NET, False, "time_once", None).name == "standard"
    assert not trials.made


# -- what cuDNN is told ---------------------------------------------------------------------------


def rnn_call(kind, algo, lengths=False, dropout=0.0):
    op = kind(
        "gru", "unidirectional", hidden_size=HIDDEN, num_layers=2, input_mode="linear",
        lengths=lengths, dropout=dropout,
    )  # fmt: skip
    w = (F32, (op.neutral().layout.size(FEATURES),))
    x, state = (F32, (STEPS, BATCH, FEATURES)), (F32, (2, BATCH, HIDDEN))
    y = (F32, (STEPS, BATCH, HIDDEN))
    ends = [("int64", (BATCH,))] * lengths
    given = {
        G.GpuDnnRNNOp: [w, x, state, *ends],
        G.GpuDnnRNNGradInputs: [w, x, state, *ends, y, y, state, RESERVE],
        G.GpuDnnRNNGradWeights: [w, x, state, *ends, y, G.GRADIENT_RESERVE],
    }[kind]
    return call_of(op, *given, hints=Hints(algo=algo))


def told(fake, call):
    given = inputs_of(call)
    if not isinstance(call.op, G.GpuDnnRNNOp):
        given[-1] = RawArray(0xAA0000, (2000,), "uint8")
    Layout(fake, call.op, FEATURES)
    run(fake, call, given)
    (args,) = (a for name, a in fake.calls if name == fake.ran()[-1])
    return next(a.algo for a in args if hasattr(a, "algo"))


@pytest.mark.parametrize("word", ALGORITHMS)
def test_forward_and_gradients_have_the_same(fake, trials, word):
    kinds = (G.GpuDnnRNNOp, G.GpuDnnRNNGradInputs, G.GpuDnnRNNGradWeights)
    found = []
    for kind in kinds:
        fake.calls.clear()
        found.append(told(fake, rnn_call(kind, word)))
    assert found == [ALGORITHMS[word]] * 3
    assert len(trials.made) == (word != "standard")


def test_persist_dynamic_is_built_before_it_runs(fake, trials):
    told(fake, rnn_call(G.GpuDnnRNNOp, "persist_dynamic"))
    names = [name for name, _ in fake.calls]
    launched = names.index("cudnnRNNForward")
    built = [i for i, name in enumerate(names) if name == "cudnnBuildRNNDynamic"]
    assert built
    assert built[-1] < launched
    assert fake.calls[built[-1]][1][-1] == BATCH


def test_others_are_not_built(fake, trials):
    told(fake, rnn_call(G.GpuDnnRNNOp, "persist_static"))
    assert "cudnnBuildRNNDynamic" not in [name for name, _ in fake.calls]


def test_a_report_s_row(fake, trials):
    trials.answers = {"standard": 3.0, "persist_static": "no"}
    call = rnn_call(G.GpuDnnRNNOp, "time_once")
    Layout(fake, call.op, FEATURES)
    (kernel,) = (k for k in kernels_for(type(call.op), "cuda") if k.name == "cudnn.rnn")
    use = kernel.library_use(call)
    assert (use.requested, use.ms, use.deterministic) == ("time_once", 1.0, True)
    assert use.used == "persist_dynamic"
    assert "persist_static: no" in use.why
    assert "algorithm persist_dynamic (time_once" in kernel.details(call)


# -- the wish -------------------------------------------------------------------------------------


def hints_of(block, flag="standard"):
    x, h, w = T.tensor3("x"), T.tensor3("h"), T.vector("w")
    y = block.apply(w, x, h)[0]
    with symdnn.config.change_flags({"dnn.rnn.algo": flag}):
        f = symdnn.function(
            [w, x, h], [y, *T.grad(y.sum(), [w, x])], mode=Mode(target="cuda:sm_90")
        )
    nodes = [n for n in f.fgraph.nodes if isinstance(n.op, GpuDnnRNNBase)]
    assert len(nodes) == 3
    return {n.hints.algo for n in nodes}


@pytest.mark.parametrize(
    ("algo", "flag", "expected"),
    [
        (None, "standard", None),
        (None, "guess", "guess"),
        ("persist_static", "guess", "persist_static"),
        ("time_once", "standard", "time_once"),
    ],
)
def test_the_wish_is_settled_for_all_three_ops(algo, flag, expected):
    block = dnn.RNNBlock("float32", 8, 1, "gru", algo=algo)
    assert hints_of(block, flag) == {expected}


def test_another_word_is_refused():
    with pytest.raises(ValueError, match=r"algo='fast', wanted one of standard, persist_static"):
        dnn.RNNBlock("float32", 8, 1, "gru", algo="fast")


def test_other_algorithms_do_not_change_the_cpu():
    block = dnn.RNNBlock("float32", 8, 1, "gru", algo="persist_static")
    x, h, w = T.tensor3("x"), T.tensor3("h"), T.vector("w")
    f = symdnn.function([w, x, h], block.apply(w, x, h)[0], mode=Mode(target="cpu"))
    size = block.get_param_size(4)
    value = np.random.default_rng(0).normal(size=(3, 2, 4)).astype("float32")
    assert f(np.zeros(size, "float32"), value, np.zeros((1, 2, 8), "float32")).shape == (3, 2, 8)


# -- kept on disk ---------------------------------------------------------------------------------


@pytest.fixture
def disk(monkeypatch, tmp_path):
    """A card whose choices are stored in a folder."""
    card = SimpleNamespace(index=0, name="a card", capability=(9, 0))
    monkeypatch.setattr(cudnn_device, "existing_context", lambda: card)
    monkeypatch.setattr(libcudnn, "cudnnGetVersion", lambda: 91900)
    with symdnn.config.change_flags(**{"dnn.conv.tuning_cache": str(tmp_path)}):
        yield tmp_path


def test_another_process_checks_what_was_measured_and_times_nothing(trials, disk):
    trials.answers = {"persist_static": 0.5}
    choose(NET, False, "time_once", 0)
    cudnn_rnn_choice.forget()
    trials.asked.clear()
    choice = choose(NET, False, "time_once", 0)
    assert (choice.name, choice.ms) == ("persist_static", 0.5)
    assert trials.asked == [("persist_static", False)]
    choose(NET, True, "time_once", 0)  # another question
    assert ("standard", True) in trials.asked


def test_what_is_wrong_now_is_measured_again(trials, disk):
    trials.answers = {"persist_static": 0.5}
    choose(NET, False, "time_once", 0)
    cudnn_rnn_choice.forget()
    trials.answers = {"persist_static": "it is wrong"}
    assert choose(NET, False, "time_once", 0).name != "persist_static"
