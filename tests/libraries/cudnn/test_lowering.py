"""What is lowered to cuDNN in a graph with its gradient, what is not, and why."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.errors import CudnnRequired
from symdnn.gpu import dnn
from symdnn.graph.origin import Hints
from symdnn.graph.target import Target
from symdnn.ops.nn import conv_builders as B
from symdnn.ops.nn import ctc, lrn, normalization, pool, rnn
from symdnn.ops.nn.dropout import dropout
from symdnn.ops.nn.softmax import logsoftmax, softmax
from tests.opt.lowering import (
    ALL,
    CPU,
    GPU,
    assert_same_values,
    names,
    op_of,
    reasons,
    rewritten,
    variables,
    with_gradients,
)  # fmt: skip

RNG = np.random.default_rng(11)


def draw(*shape, dtype="float64"):
    return RNG.standard_normal(shape).astype(dtype)


@dataclass(frozen=True)
class Case:
    """An expression, and the ops and names of rewrites that it and its gradient are lowered by."""

    id: str
    build: Any
    arrays: tuple[np.ndarray, ...]
    ops: tuple[str, ...]
    rewrites: tuple[str, ...]
    gone: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.id


CONV = ("GpuDnnConv", "GpuDnnConvGradW", "GpuDnnConvGradI")
CONV_RULES = (
    "local_abstractconv_cudnn", "local_abstractconv_gw_cudnn", "local_abstractconv_gi_cudnn",
)  # fmt: skip
POOL = ("GpuDnnPool", "GpuDnnPoolGrad")
MAX_RULES = ("local_gpua_pool_dnn_alternative", "local_gpua_pool_dnn_grad_stride")
MEAN_RULES = ("local_gpua_pool_dnn_alternative", "local_gpua_avg_pool_dnn_grad_stride")
BN_RULES = (
    "local_abstract_batch_norm_train_cudnn", "local_abstract_batch_norm_train_grad_cudnn",
)  # fmt: skip
REDUCE = ("local_dnn_reduction",)

IMAGES = draw(2, 4, 7, 6)


def conv(id, build, x, w):
    return Case(f"conv_{id}", build, (x, w), CONV, CONV_RULES)


def pooled(id, mode, x=IMAGES, **options):
    rules = MAX_RULES if mode == "max" else MEAN_RULES
    settings = {"ws": (2, 3), "ignore_border": True, "mode": mode, **options}
    gone = ("Pool", "MaxPoolGrad", "AveragePoolGrad")
    return Case(f"pool_{id}", lambda x: pool.pool_2d(x, **settings), (x,), POOL, rules, gone)


def batch_norm(ndim, mode):
    x = draw(4, 3, 2, 2, 2, 1)[(...,) + (0,) * (6 - ndim)]
    axes = (0,) if mode == "per-activation" else (0, *range(2, ndim))
    shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    g, b, m, v = (RNG.uniform(0.5, 1.5, shape) for _ in range(4))

    def build(x, g, b, m, v):
        y, *_, new_mean, new_var = normalization.batch_normalization_train(
            x, g, b, mode, 1e-3, 0.3, m, v
        )
        test = normalization.batch_normalization_test(x, g, b, m, v, mode, 1e-3)
        return [y, new_mean, new_var, test]

    ops = ("GpuDnnBatchNorm", "GpuDnnBatchNormGrad", "GpuDnnBatchNormInference")
    rules = (*BN_RULES, "local_abstract_batch_norm_inference_cudnn")
    return Case(f"batch_norm_{ndim}_{mode}", build, (x, g, b, m, v), ops, rules)


def recurrent(mode, direction="unidirectional", lengths=False):
    block = rnn.RNNBlock("float64", 3, 2, mode, "linear", direction)
    depth = 2 * block.layout.directions
    arrays = [RNG.uniform(-1, 1, block.get_param_size([2, 4])), draw(5, 2, 4), draw(depth, 2, 3)]
    arrays += [draw(depth, 2, 3)] * (mode == "lstm")
    arrays += [np.array([5, 2], "int32")] * lengths

    def build(w, x, hx, *more):
        cx = more[0] if mode == "lstm" else None
        return block.apply(w, x, hx, cx, lengths=more[-1] if lengths else None)

    ops = ("GpuDnnRNNOp", "GpuDnnRNNGradInputs", "GpuDnnRNNGradWeights")
    name = f"rnn_{mode}_{direction}" + "_lengths" * lengths
    return Case(name, build, tuple(arrays), ops, ("local_dnn_rnn", "local_dnn_rnn_grad"),
                ("RNNForward", "RNNGrad"))  # fmt: skip


CASES = [
    conv("2d", lambda x, w: B.conv2d(x, w, border_mode="half"), IMAGES, draw(6, 4, 3, 3)),
    conv(
        "strided", lambda x, w: B.conv2d(x, w, None, None, (1, 0), (2, 1), False, None, (1, 2), 2),
        IMAGES, draw(6, 2, 3, 2),
    ),
    conv("1d", lambda x, w: B.conv1d(x, w, None, None, 1, 2), draw(2, 3, 9), draw(4, 3, 4)),
    conv("3d", lambda x, w: B.conv3d(x, w, None, None, "full"), draw(2, 2, 4, 3, 3),
         draw(3, 2, 2, 2, 2)),
    conv("asymmetric", lambda x, w: B.conv2d(x, w, border_mode=((2, 0), (1, 3))), IMAGES,
         draw(3, 4, 3, 3)),
    conv("causal", lambda x, w: B.causal_conv1d(x, w, (None, None, 3), filter_dilation=2),
         draw(2, 3, 9), draw(4, 3, 3)),
    pooled("max", "max"),
    pooled("padded", "max", stride=(2, 1), pad=(1, 1)),
    pooled("mean", "average_inc_pad", pad=(1, 2)),
    pooled("mean_exc", "average_exc_pad", pad=(1, 2)),
    pooled("sum", "sum", stride=(1, 2)),
    pooled("many_leading", "max", x=draw(2, 2, 3, 5, 6)),
    pooled("borders", "max", ignore_border=False),
    pooled("borders_mean", "average_inc_pad", ignore_border=False),
    pooled("borders_sum", "sum", ignore_border=False, stride=(1, 2)),
    pooled("few_leading", "average_inc_pad", x=draw(5, 6)),
    Case("pool_1d", lambda x: pool.pool_1d(x, 2, True), (draw(2, 3, 7),), POOL, MAX_RULES),
    Case("pool_1d_sum", lambda x: pool.pool_1d(x, 2, True, mode="sum"), (draw(7),), POOL,
         MEAN_RULES),
    Case("pool_3d", lambda x: pool.pool_3d(x, (2, 2, 2), True), (draw(2, 2, 4, 5, 4),), POOL,
         MAX_RULES),
    Case("softmax", lambda x: softmax(x), (draw(3, 4),), ("GpuDnnSoftmax", "GpuDnnSoftmaxGrad"),
         ("local_softmax_dnn", "local_gpua_softmax_dnn_grad"), ("Softmax", "SoftmaxGrad")),
    Case("softmax_axis", lambda x: softmax(x, 1), (draw(3, 4, 2),),
         ("GpuDnnSoftmax", "GpuDnnSoftmaxGrad"),
         ("local_softmax_dnn", "local_gpua_softmax_dnn_grad")),
    Case("log_softmax", lambda x: logsoftmax(x), (draw(3, 4),),
         ("GpuDnnSoftmax", "GpuDnnSoftmaxGrad"),
         ("local_gpua_logsoftmax_to_dnn", "local_gpua_softmax_dnn_grad"), ("LogSoftmax",)),
    Case("sum", lambda x: x.sum(axis=(0, 2)), (draw(3, 4, 2),), ("GpuDnnReduction",), REDUCE),
    Case("prod", lambda x: x.prod(axis=1, keepdims=True), (draw(3, 4),), ("GpuDnnReduction",),
         REDUCE),
    Case("max", lambda x: x.max(axis=0), (draw(3, 4),), ("GpuDnnReduction",), REDUCE),
    Case("min", lambda x: x.min(), (draw(3, 4),), ("GpuDnnReduction",), REDUCE),
    Case("argmax", lambda x: x.argmax(axis=1), (draw(3, 4),), ("GpuDnnReduction",),
         ("local_dnn_argmax",), ("ArgMax",)),
    *(batch_norm(ndim, mode) for ndim in (1, 2, 3, 4, 5, 6) for mode in
      ("per-activation", "spatial") if (ndim, mode) not in ((1, "spatial"), (2, "spatial"))),
    Case("lrn", lambda x: lrn.lrn(x, 3), (IMAGES,), ("GpuDnnLRN", "GpuDnnLRNGrad"),
         ("local_dnn_lrn", "local_dnn_lrn_grad"), ("LRN", "LRNGrad")),
    Case("lrn_bfloat16", lambda x: lrn.lrn(x, 3), (IMAGES.astype(bfloat16),),
         ("GpuDnnLRN", "GpuDnnLRNGrad"), ("local_dnn_lrn", "local_dnn_lrn_grad"),
         ("LRN", "LRNGrad")),
    *(Case(f"channel_sum_{before}_{after}", lrn.ChannelSum(before, after), (x,), ("GpuDnnPool",),
           ("local_dnn_channel_sum",), ("ChannelSum",))
      for before, after, x in ((0, 0, IMAGES), (2, 1, IMAGES), (0, 4, draw(3, 4)))),
    Case("transformer", lambda x, t: dnn.dnn_spatialtf(x, t, 2, 0.5), (IMAGES, draw(2, 2, 3)),
         ("GpuDnnTransformerGrid", "GpuDnnTransformerSampler", "GpuDnnTransformerGradI",
          "GpuDnnTransformerGradT"),
         ("local_dnn_transformer_grid", "local_dnn_transformer_sampler",
          "local_dnn_transformer_grad_i", "local_dnn_transformer_grad_t")),
    *(recurrent(mode) for mode in ("rnn_relu", "rnn_tanh", "lstm", "gru")),
    recurrent("lstm", "bidirectional", True),
    recurrent("gru", lengths=True),
    Case("ctc", lambda a, t, n: ctc.ctc(a, t, n),
         (draw(4, 2, 3, dtype="float32"), np.array([[1, 2], [2, -1]]), np.array([4, 3])),
         ("GpuDnnCTCLoss",), ("local_dnn_ctc",), ("CTCLoss",)),
]  # fmt: skip
each = pytest.mark.parametrize("case", CASES, ids=str)


@each
def test_is_lowered_with_its_gradient_and_keeps_values(case):
    vs = variables(case.arrays)
    outputs = with_gradients(case.build, vs)
    fgraph = rewritten(vs, outputs)
    assert set(case.ops) <= set(names(fgraph))
    left = {type(n.op).__name__ for n in fgraph.nodes}
    assert not left & set(case.gone)
    rtol = {"float32": 1e-5, "bfloat16": 2e-2}.get(case.arrays[0].dtype.name, 1e-9)
    assert_same_values(fgraph, vs, outputs, case.arrays, rtol)


@each
def test_tag_switches_it_off(case):
    vs = variables(case.arrays)
    outputs = with_gradients(case.build, vs)
    selection = ALL.excluding("cudnn")
    fgraph = rewritten(vs, outputs, selection=selection)
    assert names(fgraph) == []
    assert any("switched off" in r for r in reasons(fgraph, selection))


#: Rules of what cuDNN does not take, which would leave no reason.
WRITTEN_OUT_RULES = ("write_out_lrn", "write_out_channel_sum", "write_out_ctc")


@each
def test_each_rewrite_goes_by_its_name(case):
    vs = variables(case.arrays)
    outputs = with_gradients(case.build, vs)
    for name in case.rewrites:
        selection = ALL.excluding(name, *WRITTEN_OUT_RULES)
        fgraph = rewritten(vs, outputs, selection=selection)
        assert f"the rewrite {name} is switched off" in reasons(fgraph, selection)
        assert len(names(fgraph)) < len(names(rewritten(vs, outputs)))
        assert_same_values(
            fgraph, vs, outputs, case.arrays, 1e-5 if case.arrays[0].dtype == "float32" else 1e-9
        )


@pytest.mark.parametrize("target", [CPU, replace(GPU, cudnn=None)], ids=["cpu", "no_cudnn"])
@each
def test_nothing_is_lowered_elsewhere(case, target):
    vs = variables(case.arrays)
    assert names(rewritten(vs, with_gradients(case.build, vs), target)) == []


# -- near misses ----------------------------------------------------------------------------------


def bn(epsilon=1e-3, axes="spatial", factor=0.1, shape=(1, 4, 1, 1), output=0):
    g = np.ones(shape)

    def build(x):
        train = normalization.batch_normalization_train
        return train(x, g, g, axes, epsilon, factor, g, g)[output]

    return build


MISSES = [
    ("pool_ints", lambda x: pool.pool_2d(x, (2, 2), True), IMAGES.astype("int32"), "int32"),
    ("pool_4d", lambda x: pool.pool_nd("p", 4, x, 2, True, None, 0, "max"), IMAGES, "at most 3"),
    ("epsilon", bn(1e-6), IMAGES, "epsilon 1e-06 is less"),
    ("axes", bn(axes=(2, 3), shape=(2, 4, 1, 1)), IMAGES, "not over \\(2, 3\\)"),
    ("factor", bn(factor=T.dscalar("f"), output=3), IMAGES, "running_average_factor is computed"),
    ("gamma", bn(shape=(1, 1, 1, 1)), IMAGES, "broadcasts over axis 1"),
    ("sum_ints", lambda x: x.sum(), IMAGES.astype("int32"), "not for int32"),
    ("sum_wide", lambda x: x.sum(dtype="float64"), IMAGES.astype("float32"), "float64"),
    ("sum_of_16_bits_in_64", lambda x: x.sum(acc_dtype="float64"), IMAGES.astype("float16"),
     "accumulates a reduction of float16 in float32"),
    ("sum_of_9", lambda x: x.sum(axis=0), np.ones((2,) * 9), "1 to 8 dimensions"),
    ("dropout", lambda x: dropout(x, 0.5, 1), IMAGES, "our own kernel"),
    ("other_backend", lambda x: softmax(x, hints=Hints(backend="cuda")), draw(3, 4),
     "asks for backend cuda"),
]  # fmt: skip


near_misses = pytest.mark.parametrize(
    ("build", "x", "reason"), [m[1:] for m in MISSES], ids=[m[0] for m in MISSES]
)


@near_misses
def test_near_misses_stay_and_say_why(build, x, reason):
    (v,) = variables([x])
    if x.ndim == 9:
        v = T.TensorType("float64", (None,) * 9)()
    out = build(v)
    others = [u for u in symdnn.graph.traverse.free_inputs([out]) if u is not v]
    fgraph = rewritten([v, *others], [out])
    assert names(fgraph) == []
    assert [r for r in reasons(fgraph) if re.search(reason, r)], reasons(fgraph)


WRITTEN_OUT = [
    ("ctc_double", lambda a: ctc.ctc(a, np.array([[1], [2]]), np.array([3, 3])), draw(3, 2, 3),
     "for float32, not for float64"),
    ("lrn_window", lambda x: lrn.lrn(x, 17), IMAGES, "1 to 16"),
    ("lrn_along_columns", lambda x: lrn.LRN(5, axis=3)(x), IMAGES, "not axis 3"),
    ("lrn_matrix", lambda x: lrn.lrn(x), draw(3, 4), "4 or 5 dimensions"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "x", "reason"), [w[1:] for w in WRITTEN_OUT], ids=[w[0] for w in WRITTEN_OUT]
)
def test_what_is_written_out_says_why(build, x, reason):
    (v,) = variables([x])
    fgraph = rewritten([v], [build(v)])
    notes = {n.origin.note for n in fgraph.nodes}
    assert [note for note in notes if "written out" in note and reason in note], notes
    assert not {"LRN", "CTCLoss"} & {type(n.op).__name__ for n in fgraph.nodes}


# -- settings that are read once ------------------------------------------------------------------


def conv_ops(selection=ALL, target=GPU, hints=None, dtype="float32", **flags):
    x, w = T.TensorType(dtype, (None,) * 4)(), T.TensorType(dtype, (None,) * 4)()
    outputs = with_gradients(lambda x, w: B.conv2d(x, w, hints=hints), [x, w])
    with config.change_flags(**flags):
        fgraph = rewritten([x, w], outputs, target, selection)
    return fgraph, [op_of(fgraph, name) for name in CONV if name in names(fgraph)]


def test_flags_give_the_algorithms():
    _, ops = conv_ops(**{"dnn.conv.algo_fwd": "fft", "dnn.conv.algo_bwd_data": "winograd"})
    assert [op.algo for op in ops] == ["fft", "none", "winograd"]


def test_hints_come_before_flags():
    hints = Hints(algo_fwd="large", algo_bwd_filter="time_once", precision="float32")
    _, ops = conv_ops(hints=hints, **{"dnn.conv.algo_fwd": "fft"})
    assert [op.algo for op in ops] == ["large", "time_once", "none"]


def test_deterministic_chooses_for_the_gradients():
    _, ops = conv_ops(deterministic="more")
    assert [op.algo for op in ops] == ["small", "deterministic", "deterministic"]
    x = T.ftensor4()
    with config.change_flags(deterministic="more"):
        fgraph = rewritten([x], with_gradients(lambda x: pool.pool_2d(x, 2, True), [x]))
    assert {op_of(fgraph, name).mode for name in POOL} == {"max_deterministic"}
    wish = rewritten([x], [dnn.dnn_pool(x, (2, 2), mode="max_deterministic")])
    assert op_of(wish, "GpuDnnPool").mode == "max_deterministic"


@pytest.mark.parametrize(
    ("dtype", "flag", "precisions"),
    [
        ("float16", "as_input_f32", ["float32"] * 3),
        ("float16", "as_input", ["float16", "float32", "float32"]),
        ("bfloat16", "as_input_f32", ["float32"] * 3),
        ("float64", "as_input_f32", ["float64"] * 3),
        ("float32", "as_input", ["float32"] * 3),
        ("float32", "float64", []),
        ("bfloat16", "as_input", []),
    ],
)
def test_precision(dtype, flag, precisions):
    fgraph, ops = conv_ops(dtype=dtype, **{"dnn.conv.precision": flag})
    assert [op.precision for op in ops] == precisions
    if not precisions:
        assert any("does not accumulate" in r for r in reasons_under(fgraph, flag))


def reasons_under(fgraph, precision):
    with config.change_flags(**{"dnn.conv.precision": precision}):
        return reasons(fgraph)


@pytest.mark.parametrize("capability", [None, (7, 5)])
def test_bfloat16_needs_a_capability(capability):
    target = replace(GPU, compute_capability=capability)
    fgraph, ops = conv_ops(dtype="bfloat16", target=target)
    assert ops == []
    assert any("compute capability 8.0" in r for r in reasons(fgraph, target=target))


# -- pairs and merges of softmax and reductions ---------------------------------------------------


def test_log_of_a_softmax_by_hand_is_one_op():
    x = T.dmatrix()
    y = dnn.GpuDnnSoftmax("accurate", "channel")(x)
    fgraph = rewritten([x], [T.log(y)])
    assert op_of(fgraph, "GpuDnnSoftmax").algo == "log"
    both = rewritten([x], [T.log(y), y])
    assert op_of(both, "GpuDnnSoftmax").algo == "accurate"
    off = rewritten([x], [T.log(y)], selection=ALL.excluding("local_log_softmax_dnn"))
    assert op_of(off, "GpuDnnSoftmax").algo == "accurate"


@pytest.mark.parametrize(
    ("build", "word"),
    [
        (lambda x: T.sqr(x).sum(axis=1), "norm2"), (lambda x: abs(x).sum(axis=1), "norm1"),
        (lambda x: abs(x).max(axis=1), "absmax"), (lambda x: x.sum(axis=1), "add"),
        (lambda x: abs(x).min(axis=1), "minimum"), (lambda x: x.prod(axis=1), "mul"),
    ],
)  # fmt: skip
def test_reductions_by_word(build, word):
    x, value = T.dmatrix(), draw(3, 4)
    fgraph = rewritten([x], [build(x)])
    assert op_of(fgraph, "GpuDnnReduction").red_op == word
    assert_same_values(fgraph, [x], [build(x)], [value])


def test_what_others_read_is_not_taken_into_a_reduction():
    x = T.dmatrix()
    fgraph = rewritten([x], [abs(x), abs(x).sum()])
    assert op_of(fgraph, "GpuDnnReduction").red_op == "add"


def test_max_and_argmax_are_one_reduction():
    x, value = T.dmatrix(), draw(3, 4)
    outputs = [x.max(axis=1), x.argmax(axis=1)]
    fgraph = rewritten([x], outputs)
    assert names(fgraph) == ["GpuDnnReduction"]
    assert_same_values(fgraph, [x], outputs, [value])
    off = rewritten([x], outputs, selection=ALL.excluding("local_cudnn_maxandargmax"))
    assert names(off) == ["GpuDnnReduction"] * 2


def test_activations_only_when_asked_for():
    x, value = T.dmatrix(), draw(3, 4)
    outputs = [
        T.nnet.relu(x), T.nnet.sigmoid(x), T.tanh(x), T.nnet.elu(x, 0.5),
        T.minimum(T.nnet.relu(x + 1), 0.5),
    ]  # fmt: skip
    assert names(rewritten([x], outputs)) == []
    fgraph = rewritten([x], outputs, selection=ALL.including("local_dnn_activation"))
    ops = {n.op for n in fgraph.nodes if isinstance(n.op, dnn.GpuDnnActivation)}
    made = {("relu", 1.0), ("sigmoid", 1.0), ("tanh", 1.0), ("elu", 0.5), ("clipped_relu", 0.5)}
    assert {(op.mode, op.coef) for op in ops} == made
    assert_same_values(fgraph, [x], outputs, [value])


def test_dropout_of_cudnn_only_where_asked_for_and_as_a_pair():
    x, value = T.dmatrix(), draw(3, 4)
    y, _, _, state = dnn.dropout(x, 0.25, seed=3)
    outputs = [y, symdnn.autodiff.grad((y * y).sum(), x)]
    fgraph = rewritten([x], outputs)
    assert [n for n in names(fgraph) if "Dropout" in n] == ["GpuDnnDropoutOp", "GpuDnnDropoutGrad"]
    assert op_of(fgraph, "GpuDnnDropoutOp").dropout == 0.25
    assert state in fgraph.shared()
    assert_same_values(fgraph, [x], outputs, [value])
    mask = y.owner.outputs[1]
    read = rewritten([x], [*outputs, mask])
    assert not [n for n in names(read) if "Dropout" in n]
    assert "cuDNN's dropout mask can be read by its gradient only" in reasons(read)


# -- ops by hand, and demanding cuDNN -------------------------------------------------------------


def test_ops_by_hand_stay_where_cudnn_is_and_go_elsewhere():
    x, w = T.dtensor4(), T.dtensor4()
    y = dnn.GpuDnnConv("none")(x, w, x, dnn.GpuDnnConvDesc("valid"), alpha=2.0)
    value = (IMAGES, draw(3, 4, 2, 2))
    assert names(rewritten([x, w], [y])) == ["GpuDnnConv"]
    for target in (CPU, replace(GPU, cudnn=None)):
        fgraph = rewritten([x, w], [y], target)
        assert names(fgraph) == []
        assert_same_values(fgraph, [x, w], [y], value)
    with config.change_flags(**{"dnn.enabled": "False"}):
        assert names(rewritten([x, w], [y])) == []


@pytest.mark.parametrize("target", [CPU, replace(GPU, cudnn=None, notes=("tried /opt: no",))])
def test_demanding_cudnn_raises_with_the_reasons(target):
    x = T.dmatrix()
    with pytest.raises(CudnnRequired, match="optimizer_including=cudnn") as caught:
        rewritten([x], [softmax(x)], target, ALL.including("cudnn"))
    assert isinstance(caught.value, AssertionError)
    for note in target.notes:
        assert note in str(caught.value)
    assert names(rewritten([x], [softmax(x)], GPU, ALL.including("cudnn"))) == ["GpuDnnSoftmax"]


def test_enabled_true_demands_it_and_false_forbids_it():
    x = T.dmatrix()
    with config.change_flags(**{"dnn.enabled": "True"}):
        with pytest.raises(CudnnRequired, match="dnn.enabled=True"):
            rewritten([x], [softmax(x)], replace(GPU, cudnn=None))
        assert names(rewritten([x], [softmax(x)])) == ["GpuDnnSoftmax"]
    with config.change_flags(**{"dnn.enabled": "False"}):
        fgraph = rewritten([x], [softmax(x)])
        assert names(fgraph) == []
        assert reasons(fgraph) == ["dnn.enabled=False"]


def test_a_target_by_text_is_enough():
    x = T.dmatrix()
    f = symdnn.function([x], softmax(x), mode=symdnn.Mode(target="cuda:sm_90"))
    assert names(f.fgraph) == ["GpuDnnSoftmax"]
    plain = symdnn.Mode(target=Target("cuda", compute_capability=(9, 0), cudnn=(9, 19)))
    off = symdnn.function([x], softmax(x), mode=plain.excluding("cudnn"))
    assert names(off.fgraph) == []
