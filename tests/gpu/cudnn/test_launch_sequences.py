"""Which functions of cuDNN kernels of sequences call, and with what. Needs no GPU and no cuDNN."""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.autodiff import grad
from symdnn.compile.function import function
from symdnn.compile.program.mode import Mode
from symdnn.config import config
from symdnn.errors import IndexOutOfRange, SymdnnError
from symdnn.gpu import dnn, registry
from symdnn.gpu.cudnn.ctc import packed_labels
from symdnn.gpu.cudnn.dropout import seed_of
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.rnn import kernel as cudnn_rnn
from symdnn.graph.kernel import kernels_for
from symdnn.graph.type import TensorType
from symdnn.ops.lowered.transfer import HostFromGpu
from symdnn.ops.nn.rnn import RESERVE
from symdnn.ops.random.random import STATE_TYPE
from symdnn.ops.vendor import gpudnn as G
from tests.gpu.fake_cudnn import (
    F32,
    FIXED_HANDLE,
    HANDLE,
    WORKSPACE,
    FakeEnv,
    arrays_of,
    call_of,
    inputs_of,
    refusal,
    run,
)

registry.load()

# -- recurrent networks ---------------------------------------------------------------------------

T, B, X, H = 5, 3, 4, 6


class Layout:
    """Answers where a net keeps its parameters, as symdnn does, or elsewhere."""

    def __init__(self, fake, op, features, itemsize=4, shift=0):
        self.shape, self.itemsize, self.shift = op.neutral().layout, itemsize, shift
        self.parts = {(p.layer, p.direction, p.kind, p.gate): p for p in self.shape.parts(features)}
        total = self.shape.size(features) * itemsize
        fake.answers["cudnnGetRNNWeightSpaceSize"] = total
        fake.answers["cudnnGetRNNWeightParams"] = self

    def __call__(self, handle, rnn, layer, nbytes, base, identity, matrix, bias):
        back, gate = divmod(identity, len(self.shape.gates))
        where = divmod(layer, self.shape.directions)
        kind, word = "WR"[back], self.shape.gates[gate]
        m = self.parts.get((*where, kind, word))
        b = self.parts[(*where, "b" + kind, word)]
        at = 0 if m is None else base + m.offset * self.itemsize + self.shift
        return at, base + b.offset * self.itemsize


def rnn_op(kind=G.GpuDnnRNNOp, mode="lstm", **more):
    return kind(mode, **{"hidden_size": H, "num_layers": 2, **more})


def rnn_types(op, features=X, steps=T, dtype=F32):
    layout = op.neutral().layout
    state = (dtype, (op.num_layers * layout.directions, B, H))
    w = (dtype, (int(layout.size(features)),))
    return w, (dtype, (steps, B, features)), state, (dtype, (steps, B, layout.output_size))


def forward_call(op, features=X, steps=T, dtype=F32):
    w, x, state, _ = rnn_types(op, features, steps, dtype)
    more = [state] * op.has_cell + [("int64", (B,))] * op.lengths
    more += [STATE_TYPE] * op.neutral().random
    return call_of(op, w, x, state, *more)


@pytest.mark.parametrize("mode", ["rnn_relu", "rnn_tanh", "lstm", "gru"])
@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
def test_rnn_forward(fake, mode, direction):
    op = rnn_op(mode=mode, direction_mode=direction)
    Layout(fake, op, X)
    call = forward_call(op)
    _env, given, outputs, result = run(fake, call)
    args = fake.only("cudnnRNNForward")
    w, x, hx, *cx = (v.ptr for v in given)
    y, hy, *cy = (v.ptr for v in outputs[:-1])
    net, data = args[1], args[4]
    assert (net.mode, net.direction, net.layers, net.hidden_size) == (mode, direction, 2, H)
    assert (net.math, net.dropout) == ("FMA_MATH", 0)
    assert args[2:4] == ("CUDNN_FWD_MODE_TRAINING", None)
    assert (data.steps, data.batch, data.vector, data.lengths) == (T, B, X, (T,) * B)
    assert (args[5], args[7]) == (x, y)
    assert (args[9], args[10]) == (hx, hy)
    assert (args[12], args[13]) == ((cx[0], cy[0]) if mode == "lstm" else (None, None))
    assert args[14:18] == (given[0].nbytes, w, 1000, WORKSPACE)
    reserve = result[-1]
    assert args[18:] == (2000, reserve.ptr)
    assert (reserve.dtype, reserve.nbytes) == ("uint8", 2000)
    assert result[:-1] == outputs[:-1]


def test_the_inference_form_keeps_no_reserve(fake):
    op = rnn_op(keeps_reserve=False)
    Layout(fake, op, X)
    _, _, outputs, result = run(fake, forward_call(op))
    assert fake.only("cudnnRNNForward")[2] == "CUDNN_FWD_MODE_INFERENCE"
    assert result == outputs
    assert len(outputs) == 3


def test_dropout_needs_the_training_form(fake):
    op = rnn_op(keeps_reserve=False, dropout=0.5)
    Layout(fake, op, X)
    call = forward_call(op)
    given = inputs_of(call)
    given[-1] = np.array([1, 2], np.uint64)
    env, _, outputs, result = run(fake, call, given)
    assert fake.only("cudnnRNNForward")[2] == "CUDNN_FWD_MODE_TRAINING"
    assert result == outputs
    assert env.did == [("copy_in", [1, 2 + T * B * H], outputs[-1].ptr)]


def test_nets_of_equal_bits_run_on_a_handle_of_their_own(fake):
    """The flag counts when the kernel is bound, not when it runs."""
    op = rnn_op(keeps_reserve=False)
    Layout(fake, op, X)
    call = forward_call(op)
    with config.change_flags(deterministic="more"):
        launch = kernels_for(type(op), "cuda")[0].bind(call)
    plain = kernels_for(type(op), "cuda")[0].bind(call)
    for bound in (launch, plain):
        bound(FakeEnv(fake), inputs_of(call), arrays_of(call.outputs))
    found = [args[0] for name, args in fake.calls if name == "cudnnRNNForward"]
    assert found == [FIXED_HANDLE, HANDLE]


def test_rnn_reads_lengths_on_the_host(fake):
    op = rnn_op(mode="gru", lengths=True)
    Layout(fake, op, X)
    call = forward_call(op)
    given = inputs_of(call)
    given[-1] = np.array([5, 0, 2])
    run(fake, call, given)
    args = fake.only("cudnnRNNForward")
    assert args[4].lengths == args[6].lengths == (5, 0, 2)
    given[-1] = np.array([1, 1, 4])
    run(fake, call, given)
    assert fake.named("cudnnRNNForward")[-1][4].lengths == (1, 1, 4)


@pytest.mark.parametrize("kind", [G.GpuDnnRNNOp, G.GpuDnnRNNGradInputs])
def test_states_of_sequences_without_steps_are_handed_through(fake, kind):
    op = rnn_op(kind, lengths=True)
    Layout(fake, op, X)
    forward = kind is G.GpuDnnRNNOp
    call = forward_call(op) if forward else grad_call(op)
    given = inputs_of(call) if forward else with_reserve(fake, call)
    first = [2, 3] if forward else [7, 8]
    cases = (([0, 5, 0], [0, 2]), ([3, 0, 0], [1]), ([0, 0, 0], [0]), ([1, 1, 1], []))
    for lengths, runs in cases:
        given[op.lengths_index] = np.array(lengths)
        fake.calls.clear()
        env, _, outputs, _ = run(fake, call, given)
        copies = [set(d[2]) for d in env.did if d[0] == "launch"]
        copies = copies[len(copies) - 2 * len(runs) :]
        wanted = [
            {given[i].ptr + r * H * 4, outputs[1 + k].ptr + r * H * 4}
            for k, i in enumerate(first)
            for r in runs
        ]
        assert all(w <= c for w, c in zip(wanted, copies, strict=True))
        assert bool(fake.ran()) == any(lengths)


def test_a_length_beyond_the_steps_is_an_error(fake):
    op = rnn_op(mode="gru", lengths=True)
    Layout(fake, op, X)
    call = forward_call(op)
    given = inputs_of(call)
    given[-1] = np.array([5, 6, 2])
    with pytest.raises(IndexOutOfRange, match="lengths\\[1\\] = 6"):
        run(fake, call, given)
    assert fake.named("cudnnRNNForward") == []


def test_lengths_that_need_more_memory_than_planned_are_an_error(fake):
    op = rnn_op(mode="gru", lengths=True)
    Layout(fake, op, X)
    call = forward_call(op)
    given = inputs_of(call)
    given[-1] = np.array([5, 5, 2])
    sizes = iter([(1000, 2000), (5000, 2000)])
    fake.answers["cudnnGetRNNTempSpaceSizes"] = lambda *a: next(sizes)
    with pytest.raises(SymdnnError, match="5000"):
        run(fake, call, given)


@pytest.mark.parametrize("mode", ["rnn_tanh", "lstm", "gru"])
@pytest.mark.parametrize("skip", [False, True])
def test_another_layout_of_the_parameters_is_refused(fake, mode, skip):
    features = H if skip else X
    op = rnn_op(mode=mode, input_mode="skip" if skip else "linear")
    Layout(fake, op, features)
    call = forward_call(op, features)
    assert refusal(call) == []
    Layout(fake, op, features, shift=4)
    cudnn_rnn.layout_problem.cache_clear()
    (reason,) = refusal(call)
    assert "cuDNN keeps layer" in reason
    fake.answers["cudnnGetRNNWeightSpaceSize"] = 12
    cudnn_rnn.layout_problem.cache_clear()
    assert refusal(call)[0].startswith("cuDNN keeps the parameters in 12 bytes")


def test_rnn_dropout_is_seeded_by_the_state(fake):
    op = rnn_op(mode="gru", dropout=0.5)
    Layout(fake, op, X)
    call = forward_call(op)
    given = inputs_of(call)
    given[-1] = np.array([11, 5], np.uint64)
    env, _, outputs, _result = run(fake, call, given)
    _drop, handle, rate, at, nbytes, seed = fake.only("cudnnSetDropoutDescriptor")
    assert (handle, rate, nbytes) == (HANDLE, 0.5, 64)
    assert at == WORKSPACE + 1024  # behind the 1000 bytes of the net
    assert seed == seed_of([11, 5])
    assert fake.only("cudnnRNNForward")[1].dropout != 0
    drawn = T * B * H
    assert env.did == [("copy_in", [11, 5 + drawn], outputs[-2].ptr)]
    kernel = kernels_for(type(op), "cuda")[0]
    assert kernel.workspace_bytes(call) == 1024 + 64


def test_seeds_differ_between_states():
    seeds = {seed_of([k, c]) for k in range(20) for c in range(0, 2000, 100)}
    assert len(seeds) == 400
    assert all(0 <= s < 2**64 for s in seeds)


def test_what_the_host_reads_is_not_captured(fake):
    def capturable(op, call):
        return kernels_for(type(op), "cuda")[0].capturable(call)

    for more, wanted in (({}, True), ({"lengths": True}, False), ({"dropout": 0.5}, False)):
        op = rnn_op(mode="gru", **more)
        Layout(fake, op, X)
        assert capturable(op, forward_call(op)) is wanted
    drop = G.GpuDnnDropoutOp(dropout=0.25)
    assert not capturable(drop, call_of(drop, STATE_TYPE, (F32, (3, 5))))
    assert not capturable(G.GpuDnnCTCLoss(), ctc()[0])


def test_no_steps_hand_the_states_through(fake):
    op = rnn_op()
    env, given, outputs, result = run(fake, forward_call(op, steps=0))
    assert fake.ran() == []
    copied = [values for _, _, values in env.did]
    assert [given[2].ptr in copied[0], outputs[1].ptr in copied[0]] == [True, True]
    assert [given[3].ptr in copied[1], outputs[2].ptr in copied[1]] == [True, True]
    assert result[-1].nbytes == 0


def grad_call(op, steps=T):
    w, x, state, y = rnn_types(op, steps=steps)
    cell = [state] * op.has_cell
    lengths = [("int64", (B,))] * op.lengths
    if isinstance(op, G.GpuDnnRNNGradWeights):
        return call_of(op, w, x, state, *lengths, y, G.GRADIENT_RESERVE)
    return call_of(op, w, x, state, *cell, *lengths, y, y, state, *cell, RESERVE)


def with_reserve(fake, call, lengths=None):
    given = inputs_of(call)
    given[-1] = RawArray(0xAA0000, (2000,), "uint8")
    if lengths is not None:
        given[call.op.lengths_index] = np.array(lengths)
    return given


@pytest.mark.parametrize("mode", ["rnn_relu", "lstm"])
def test_rnn_gradient_of_the_data(fake, mode):
    op = rnn_op(G.GpuDnnRNNGradInputs, mode)
    Layout(fake, op, X)
    call = grad_call(op)
    env, given, outputs, result = run(fake, call, with_reserve(fake, call))
    args = fake.only("cudnnRNNBackwardData_v8")
    at = [v.ptr for v in given]
    cell = mode == "lstm"
    w, _x, hx, *rest = at
    y, dy, dhy = rest[1:4] if cell else rest[:3]
    assert (args[4], args[5], args[7]) == (y, dy, outputs[0].ptr)
    assert args[9:12] == (hx, dhy, outputs[1].ptr)
    assert args[13:16] == ((rest[0], rest[4], outputs[2].ptr) if cell else (None, None, None))
    assert args[16:18] == (given[0].nbytes, w)
    copied = result[-1]
    assert args[20:] == (2000, copied.ptr)
    assert copied.ptr != given[-1].ptr  # another gradient may read the forward pass's
    ((_, _, values),) = env.did
    assert given[-1].ptr in values
    assert copied.ptr in values


def test_a_reserve_that_nothing_else_reads_is_not_copied(fake):
    op = rnn_op(G.GpuDnnRNNGradInputs, "lstm")
    Layout(fake, op, X)
    call = grad_call(op)
    last = len(call.inputs) - 1
    env, given, _, result = run(fake, call, with_reserve(fake, call), overwritable=[last])
    assert result[-1] is given[-1]
    assert fake.only("cudnnRNNBackwardData_v8")[20:] == (2000, given[-1].ptr)
    assert env.did == []


def test_the_gradient_of_padding_is_zero(fake):
    op = rnn_op(G.GpuDnnRNNGradInputs, "gru", lengths=True)
    Layout(fake, op, X)
    call = grad_call(op)
    env, _, outputs, _ = run(fake, call, with_reserve(fake, call, [5, 1, 2]))
    assert ("zero", outputs[0].ptr, outputs[0].nbytes) in env.did
    assert fake.only("cudnnRNNBackwardData_v8")[6].lengths == (5, 1, 2)


def test_rnn_gradient_of_the_parameters_starts_from_zero(fake):
    op = rnn_op(G.GpuDnnRNNGradWeights, "lstm", lengths=True)
    Layout(fake, op, X)
    call = grad_call(op)
    env, given, (dw,), _ = run(fake, call, with_reserve(fake, call, [5, 1, 2]))
    assert env.did == [("zero", dw.ptr, dw.nbytes)]
    args = fake.only("cudnnRNNBackwardWeights_v8")
    assert args[2:4] == ("CUDNN_WGRAD_MODE_ADD", None)
    assert (args[5], args[7], args[9]) == (given[1].ptr, given[2].ptr, given[4].ptr)
    assert args[10:12] == (dw.nbytes, dw.ptr)
    assert args[14:] == (2000, given[-1].ptr)


def test_gradients_without_steps(fake):
    call = grad_call(rnn_op(G.GpuDnnRNNGradWeights, "gru"), steps=0)
    env, _, (dw,), _ = run(fake, call, with_reserve(fake, call))
    assert env.did == [("zero", dw.ptr, dw.nbytes)]
    assert fake.ran() == []


# -- dropout --------------------------------------------------------------------------------------


def test_dropout(fake):
    call = call_of(G.GpuDnnDropoutOp(dropout=0.25), STATE_TYPE, (F32, (3, 5)))
    given = inputs_of(call)
    given[0] = np.array([3, 4], np.uint64)
    env, _, outputs, (y, state, reserve) = run(fake, call, given)
    assert fake.only("cudnnSetDropoutDescriptor")[2:] == (0.25, WORKSPACE, 64, seed_of([3, 4]))
    args = fake.only("cudnnDropoutForward")
    assert args[2].shape == (1, 1, 1, 15)
    assert (args[3], args[5]) == (given[1].ptr, outputs[0].ptr)
    assert args[6:] == (reserve.ptr, reserve.nbytes)
    assert (y, state) == (outputs[0], outputs[1])
    assert env.did == [("copy_in", [3, 4 + 15], outputs[1].ptr)]


def test_a_state_leaves_the_device_before_it_seeds_cudnn():
    x = TensorType(F32, (None, None))("x")
    y, *_ = dnn.dropout(x, 0.25, 11)
    f = function([x], [y, grad(y.sum(), x)], mode=Mode(target="cuda:sm_90"))
    first, second = f.stages.program.segments()
    (reader,) = (n for n in second.nodes if isinstance(n.op, G.GpuDnnDropoutOp))
    assert isinstance(reader.inputs[0].owner.op, HostFromGpu)
    assert reader.inputs[0].owner in first.nodes
    assert reader.inputs[0] in second.inputs


def test_the_gradient_of_dropout_reads_the_mask(fake):
    call = call_of(G.GpuDnnDropoutGrad(dropout=0.25), (F32, (3, 5)), G.DROPOUT_RESERVE)
    given = inputs_of(call)
    given[1] = RawArray(0xBB0000, (64,), "uint8")
    _, _, (dx,), _ = run(fake, call, given)
    args = fake.only("cudnnDropoutBackward")
    assert (args[3], args[5]) == (given[0].ptr, dx.ptr)
    assert args[6:] == (0xBB0000, 64)
    assert fake.only("cudnnRestoreDropoutDescriptor")[2] == 0.25


# -- CTC ------------------------------------------------------------------------------------------


def ctc(steps=6, labels=((1, 2, -1), (3, 3, 1)), lengths=(6, 6)):
    call = call_of(
        G.GpuDnnCTCLoss(), (F32, (steps, 2, 5)), ("int64", (2, 3)), ("int64", (2,))
    )  # fmt: skip
    given = inputs_of(call)
    given[1:] = [np.array(labels), np.array(lengths)]
    return call, given


def test_ctc_gets_labels_without_padding(fake):
    call, given = ctc()
    env, _, (costs, grads), _ = run(fake, call, given)
    args = fake.only("cudnnCTCLoss")
    assert args[3:6] == ((1, 2, 3, 3, 1), (2, 3), (6, 6))
    assert (args[2], args[6], args[8]) == (given[0].ptr, costs.ptr, grads.ptr)
    assert args[9] == "CUDNN_CTC_LOSS_ALGO_DETERMINISTIC"
    assert env.did == []


@pytest.mark.parametrize(
    ("labels", "lengths", "steps"),
    [
        ([[1, 2]], [4], 5),  # frames that are not used
        ([[-1, -1]], [5], 5),  # no label
        ([[1, 1]], [2], 2),  # two alike need a blank between them
    ],
)
def test_batches_that_cudnn_is_not_asked_about(labels, lengths, steps):
    assert packed_labels(np.array(labels), np.array(lengths), steps) is None


def test_other_batches_are_computed_by_the_reference(fake):
    call, given = ctc(lengths=(6, 4))
    scores = np.random.default_rng(0).standard_normal((6, 2, 5)).astype(F32)
    kernel = kernels_for(type(call.op), "cuda")[0]
    env = FakeEnv(fake, {given[0].ptr: scores})
    outputs = arrays_of(call.outputs, 0x9000_0000)
    kernel.bind(call)(env, given, outputs)
    costs, grads = call.op.compute(scores, *given[1:])
    assert fake.named("cudnnCTCLoss") == []
    assert env.did == [
        ("copy_in", costs.tolist(), outputs[0].ptr), ("copy_in", grads.tolist(), outputs[1].ptr),
    ]  # fmt: skip


def test_wrong_labels_are_an_error(fake):
    call, given = ctc(labels=((1, 2, -1), (3, 9, 1)))
    with pytest.raises(IndexOutOfRange, match="label 9"):
        run(fake, call, given)
