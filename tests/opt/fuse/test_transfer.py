"""Where nodes run on a described GPU, and the copies between host and device."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.program import capabilities
from symdnn.compile.program.capabilities import kernel_reason
from symdnn.config import config
from symdnn.errors import NotLowered
from symdnn.gpu import dnn
from symdnn.graph.kernel import Kernel, register_kernel
from symdnn.graph.place import HOST, Place
from symdnn.ops.control.control import ifelse
from symdnn.ops.core.gradient_control import Print
from symdnn.ops.core.shape import ShapeI
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.ops.lowered.transfer import (
    GpuFromHost,
    HostFromGpu,
    Transfer,
    gpu_from_host,
    host_from_gpu,
)
from symdnn.ops.vendor.gpudnn import GpuDnnRNNGradInputs, GpuDnnRNNOp
from symdnn.opt.fuse.transfer import Places
from tests.libraries.cudnn.test_merge import lenet
from tests.opt.lowering import ALL, CPU, GPU, assert_same_values, op_of, rewritten

MODE = symdnn.Mode(target=GPU).excluding("fuse")
KERNELLESS = {"Print", "Sort", "Eigh"}


@pytest.fixture(autouse=True)
def device_takes(monkeypatch):
    """The device has a kernel for each op but for those of the set that this returns."""
    without = set(KERNELLESS)

    real = capabilities.kernels_for

    def kernels(op_type, kind):
        if kind != "cuda":
            return real(op_type, kind)
        return [] if op_type.__name__ in without else [Kernel()]

    monkeypatch.setattr(capabilities, "kernels_for", kernels)
    return without


def transfers(fgraph):
    """(how often each kind, the sources of each kind)."""
    nodes = [n for n in fgraph.toposort() if isinstance(n.op, Transfer)]
    return Counter(type(n.op).__name__ for n in nodes), nodes


def assert_settled(fgraph):
    """Nothing is missing and nothing superfluous: no value moves twice, none back."""
    places = Places(fgraph, GPU, capabilities.all_capabilities())
    assert not places.readers_elsewhere()
    moved = [n.inputs[0] for n in fgraph.nodes if isinstance(n.op, Transfer)]
    assert len(set(moved)) == len(moved)
    assert not [v for v in moved if v.owner is not None and isinstance(v.owner.op, Transfer)]
    return places


def test_a_training_step_moves_its_inputs_in_and_its_loss_out():
    inputs, loss, updates = lenet()
    f = symdnn.function(inputs, loss, updates=updates, mode=MODE)
    counts, nodes = transfers(f.fgraph)
    into = [n.inputs[0] for n in nodes if isinstance(n.op, GpuFromHost)]
    assert [str(v) for v in into if v.owner is None] == ["x", "t"]
    # Besides the inputs only sizes enter: the number of examples, of which the mean is taken.
    assert all(v.type.ndim == 0 for v in into if v.owner is not None)
    (out,) = [n for n in nodes if isinstance(n.op, HostFromGpu)]
    assert f.fgraph.outputs[0] is out.outputs[0]
    assert counts["HostFromGpu"] == 1
    assert_settled(f.fgraph)


def test_between_device_ops_nothing_moves():
    x = T.fmatrix("x")
    fgraph = rewritten([x], [T.exp(T.tanh(x).dot(x)).sum()])
    counts, _ = transfers(fgraph)
    assert counts == {"GpuFromHost": 1, "HostFromGpu": 1}
    assert_settled(fgraph)


def test_what_has_no_kernel_runs_on_the_host_with_transfers(device_takes):
    x = T.fmatrix("x")
    device_takes.add("Tanh")
    y = T.tanh(T.exp(x))
    fgraph = rewritten([x], [T.exp(y) + y, y * 2])
    counts, _ = transfers(fgraph)
    assert counts == {"GpuFromHost": 2, "HostFromGpu": 3}
    places = assert_settled(fgraph)
    where = {type(n.op).__name__: places(n) for n in fgraph.nodes}
    assert (where["Tanh"], where["Exp"], where["Mul"]) == (HOST, Place("cuda"), Place("cuda"))
    assert_same_values(fgraph, [x], [T.exp(y) + y, y * 2], [np.ones((2, 2), "f")], 1e-6)


def test_one_copy_serves_all_readers(device_takes):
    x = T.fmatrix("x")
    device_takes.update({"Tanh", "Sin"})
    y = T.exp(x)
    counts, _ = transfers(rewritten([x], [T.tanh(y), T.sin(y), y]))
    assert counts == {"GpuFromHost": 1, "HostFromGpu": 1}


def test_a_host_only_graph_moves_nothing(device_takes):
    x = T.fmatrix("x")
    device_takes.add("Tanh")
    assert transfers(rewritten([x], [T.tanh(T.tanh(x)), x]))[0] == {}


def test_shared_floats_stay_on_the_device_and_counters_on_the_host():
    w = symdnn.shared(np.zeros((3, 4), "float32"), "w")
    i = symdnn.shared(0, "i")
    x = T.fmatrix("x")
    f = symdnn.function([x], w.sum() + x.sum(), updates=[(w, w + 1), (i, i + 1)], mode=MODE)
    counts, nodes = transfers(f.fgraph)
    assert counts == {"GpuFromHost": 1, "HostFromGpu": 1}
    assert nodes[0].inputs[0] is f.fgraph.inputs[0] or nodes[1].inputs[0] is f.fgraph.inputs[0]
    places = assert_settled(f.fgraph)
    (count,) = [n for n in f.fgraph.nodes if i in n.inputs]
    assert places(count) == HOST


def test_a_value_that_is_output_and_update_goes_out_once():
    w = symdnn.shared(np.zeros((3, 4), "float32"), "w")
    new = T.exp(w)
    f = symdnn.function([], new, updates=[(w, new)], mode=MODE)
    out, update = f.fgraph.outputs
    assert isinstance(out.owner.op, HostFromGpu)
    assert update is out.owner.inputs[0]


def test_minibatches_by_index_move_nothing_in():
    data = symdnn.shared(np.zeros((100, 4), "float32"), "data")
    x, i = T.fmatrix("x"), T.lscalar("i")
    f = symdnn.function([i], T.tanh(x).sum(), givens={x: data[i * 10 : (i + 1) * 10]}, mode=MODE)
    assert transfers(f.fgraph)[0] == {"HostFromGpu": 1}
    assert_settled(f.fgraph)


def test_sizes_are_no_data():
    x = T.fmatrix("x")
    y = T.tanh(x)
    fgraph = rewritten([x], [y.reshape((x.shape[0] * x.shape[1],)), y.shape[0]])
    counts, _ = transfers(fgraph)
    assert counts == {"GpuFromHost": 1, "HostFromGpu": 1}
    assert all(
        Places(fgraph, GPU, capabilities.all_capabilities())(n) == HOST
        for n in fgraph.nodes
        if isinstance(n.op, ShapeI)
    )


def test_a_size_from_device_data_is_read_on_the_host():
    x = T.fmatrix("x")
    n = T.tanh(x).argmax(axis=None)
    fgraph = rewritten([x], [T.zeros((n + 1,), "float32") + x.sum()])
    counts, nodes = transfers(fgraph)
    assert counts == {"GpuFromHost": 1, "HostFromGpu": 2}
    assert_settled(fgraph)
    assert [n for n in nodes if n.inputs[0].type.is_discrete]


def test_a_scalar_of_the_host_enters_where_it_is_data():
    x, n = T.fmatrix("x"), T.lscalar("n")
    fgraph = rewritten([x, n], [x * T.cast(n + 1, "float32")])
    counts, nodes = transfers(fgraph)
    assert counts == {"GpuFromHost": 2, "HostFromGpu": 1}
    assert_settled(fgraph)
    assert {str(n.inputs[0]) for n in nodes if isinstance(n.op, GpuFromHost)} == {"x", "n"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_the_device_computes_what_it_alone_reads_of_scalars(dtype):
    x, n = T.fmatrix("x"), T.TensorType(dtype, ())("n")
    rate = T.cast(n, "float32") * 2
    fgraph = rewritten([x, n], [x * T.sqrt(rate), x + rate])
    places = assert_settled(fgraph)
    assert not [m for m in fgraph.nodes if places(m) == HOST and not isinstance(m.op, Transfer)]
    values = [np.ones((2, 2), "f"), np.array(3, n.type.numpy)]
    assert_same_values(fgraph, [x, n], [x * T.sqrt(rate), x + rate], values, 1e-6)


def test_the_host_computes_scalars_that_it_reads_too_and_those_of_sizes():
    x, n = T.fmatrix("x"), T.lscalar("n")
    fgraph = rewritten([x, n], [x[: n + 1] * T.cast(n + 1, "float32")])
    places = assert_settled(fgraph)
    assert [places(m) for m in fgraph.nodes if isinstance(m.op, Add)] == [HOST]
    fgraph = rewritten([x], [x / T.cast(x.shape[0] + 1, "float32")])
    places = assert_settled(fgraph)
    assert {places(m) for m in fgraph.nodes if m.outputs[0].type.ndim == 0 and m.inputs
            and not isinstance(m.op, Transfer)} == {HOST}  # fmt: skip


def test_constants_are_everywhere(device_takes):
    x = T.fvector("x")
    device_takes.add("Sin")
    table = T.constant(np.arange(3, dtype="float32"))
    _, nodes = transfers(rewritten([x], [T.exp(x) + table, T.sin(x) * table]))
    assert not [n for n in nodes if hasattr(n.inputs[0], "data")]


@pytest.mark.cpu
def test_transfers_by_hand_are_wishes():
    x = T.fmatrix("x")
    y = host_from_gpu(T.tanh(gpu_from_host(gpu_from_host(x))))
    assert transfers(rewritten([x], [y]))[0] == {"GpuFromHost": 1, "HostFromGpu": 1}
    assert transfers(rewritten([x], [y], CPU))[0] == {}
    f = symdnn.function([x], symdnn.grad((y * y).sum(), x))
    assert not [n for n in f.fgraph.nodes if isinstance(n.op, Transfer)]


def test_transfers_are_placed_without_other_rewrites():
    x = T.fmatrix("x")
    f = symdnn.function([x], T.tanh(x), mode=symdnn.Mode(optimizer="None", target=GPU))
    assert transfers(f.fgraph)[0] == {"GpuFromHost": 1, "HostFromGpu": 1}
    off = MODE.excluding("place_transfers")
    assert transfers(symdnn.function([x], T.tanh(x), mode=off).fgraph)[0] != {}


# -- bytes of a kernel, values that a library reads on the host -----------------------------------


def recurrent(lengths=None):
    block = dnn.RNNBlock("float32", 3, 1, "gru")
    w = symdnn.shared(np.zeros(block.get_param_size(4), "float32"), "w")
    x, hx = T.ftensor3("x"), T.ftensor3("hx")
    y, _ = block.apply(w, x, hx, lengths=lengths)
    return [x, hx, *([lengths] if lengths is not None else [])], (y * y).sum(), w


def test_the_bytes_of_an_rnn_never_leave_their_place(device_takes):
    inputs, cost, w = recurrent()
    step = {"updates": [(w, w - symdnn.grad(cost, w))], "mode": MODE}
    f = symdnn.function(inputs, cost, **step)
    places = assert_settled(f.fgraph)
    kinds = (GpuDnnRNNOp, GpuDnnRNNGradInputs)
    assert {places(n) for n in f.fgraph.nodes if isinstance(n.op, kinds)} == {Place("cuda")}
    device_takes.add("GpuDnnRNNGradInputs")
    f = symdnn.function(inputs, cost, **step)
    places = assert_settled(f.fgraph)
    assert {places(n) for n in f.fgraph.nodes if "RNN" in str(n.op)} == {HOST}


def test_lengths_stay_on_the_host():
    inputs, cost, _ = recurrent(T.ivector("lengths"))
    fgraph = rewritten(inputs, [cost])
    (node,) = [n for n in fgraph.nodes if isinstance(n.op, GpuDnnRNNOp)]
    assert node.op.host_values == (3,)
    assert node.inputs[3] is fgraph.inputs[2]
    counts, _ = transfers(fgraph)
    assert counts == {"GpuFromHost": 2, "HostFromGpu": 1}


# -- lazy choices and loops -----------------------------------------------------------------------


def test_a_choice_reads_its_condition_on_the_host():
    x, c = T.fmatrix("x"), T.bscalar("c")
    fgraph = rewritten([x, c], [ifelse(c, T.tanh(x), T.exp(x)).sum()])
    assert transfers(fgraph)[0] == {"GpuFromHost": 1, "HostFromGpu": 1}
    computed = rewritten([x], [ifelse(x.sum() > 0, T.tanh(x), x).sum()])
    assert transfers(computed)[0] == {"GpuFromHost": 1, "HostFromGpu": 2}
    assert_settled(computed)


def test_the_body_of_a_loop_is_on_the_device(device_takes):
    xs, h0 = T.fmatrix("xs"), T.fvector("h0")
    ys, _ = symdnn.scan(lambda x, h: T.tanh(x + T.exp(h)), [xs], [h0])
    fgraph = rewritten([xs, h0], [ys[-1]])
    assert transfers(fgraph)[0] == {"GpuFromHost": 2, "HostFromGpu": 1}
    device_takes.add("Tanh")
    fgraph = rewritten([xs, h0], [ys[-1]])
    (loop,) = [n for n in fgraph.nodes if hasattr(n.op, "inner")]
    inside = Counter(type(n.op).__name__ for n in loop.op.inner.nodes)
    assert (inside["GpuFromHost"], inside["HostFromGpu"]) == (1, 1)


# -- what is overwritten ------------------------------------------------------------------------


def test_batch_norm_inplace_is_read_as_in_theano():
    x = T.dtensor4("x")
    g, b, m, v = (symdnn.shared(np.ones((1, 3, 1, 1)), n) for n in "gbmv")
    y, _, _, mean, var = dnn.dnn_batch_normalization_train(
        x, g, b, "spatial", running_mean=m, running_var=v
    )
    f = symdnn.function([x], y, updates=[(m, mean), (v, var)], mode=MODE)
    op = op_of(f.fgraph, "GpuDnnBatchNorm")
    assert op.inplace_running_mean
    assert op.inplace_running_var
    assert not op.inplace_output
    half = symdnn.function([x], [y, var], updates=[(m, mean)], mode=MODE)
    op = op_of(half.fgraph, "GpuDnnBatchNorm")
    assert (op.inplace_running_mean, op.inplace_running_var) == (True, False)
    test = dnn.dnn_batch_normalization_test(T.exp(x), g, b, m, v, "spatial")
    assert op_of(symdnn.function([x], test, mode=MODE).fgraph, "GpuDnnBatchNormInference").inplace
    both = symdnn.function([x], [test, T.exp(x)], mode=MODE)
    assert not op_of(both.fgraph, "GpuDnnBatchNormInference").inplace


# -- telling --------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["assert_lowered", "assert_no_cpu_op"])
def test_nodes_on_the_host_are_told(flag):
    x = T.fmatrix("x")
    out = [Print("seen")(T.tanh(x)).sum()]
    with config.change_flags(**{flag: "raise"}):
        with pytest.raises(NotLowered, match=r"Print.*test_transfer.py.*no cuda kernel for Print"):
            rewritten([x], out)
        rewritten([x], [T.tanh(x)])
        rewritten([x], out, CPU)
    with config.change_flags(**{flag: "warn"}), pytest.warns(RuntimeWarning, match="on the host"):
        rewritten([x], out)
    rewritten([x], out, selection=ALL)


def test_the_report_says_why(device_takes):
    x = T.fmatrix("x")
    device_takes.add("Softmax")
    y = T.nnet.softmax(x)
    out = T.tanh(y)
    f = symdnn.function([x], out, mode=MODE.excluding("local_softmax_dnn"))
    rows = {type(row.node.op).__name__: row for row in f.lowering_report().rows}
    assert rows["Tanh"].target == "cuda0:sm_90"
    assert rows["Tanh"].why == ""
    assert rows["Softmax"].target == "cpu"
    assert rows["Softmax"].why == (
        "not by cuDNN: the rewrite local_softmax_dnn is switched off; "
        "on the host: there is no cuda kernel for Softmax"
    )
    assert rows["Softmax"].why in str(f.lowering_report())
    with config.change_flags(assert_lowered="raise"), pytest.raises(NotLowered, match="not run"):
        symdnn.function([x], out, mode=MODE.excluding("local_softmax_dnn"))


class Refusing:
    """A kernel that refuses by dtype, and by sizes once these are known."""

    name = "test.refusing"

    def refuses(self, call):
        (x,) = call.inputs
        if x.dtype == "float64":
            return "no float64"
        return "too long" if x.shape[0] > 10 else None


def test_a_kernel_is_asked_with_what_the_types_say():
    class Own(type(T.tanh(T.fvector()).owner.op)):
        pass

    register_kernel(Own, "nowhere", Refusing())
    assert kernel_reason(Own()(T.dvector()).owner, "nowhere") == "test.refusing: no float64"
    assert kernel_reason(Own()(T.fvector()).owner, "nowhere") is None
    long = T.TensorType("float32", (20,))()
    assert kernel_reason(Own()(long).owner, "nowhere") == "test.refusing: too long"
    assert kernel_reason(T.exp(long).owner, "nowhere") == "there is no nowhere kernel for Exp"
