"""Theano's cuDNN module, name by name: each is called, its values and gradients against NumPy.

On the host in float64, and (marked ``gpu``) on a card in float32 through cuDNN.
"""

from __future__ import annotations

import importlib
import traceback
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import scipy

import symdnn
from symdnn.ops.nn.rnn_params import RNNShape
from tests.op_table.lrn_ctc_transformer import slow_grid, slow_sample
from tests.op_table.pool import loop_pool
from tests.op_table.rnn import slow_rnn

RNG = np.random.default_rng(5)


def normal(*shape):
    return RNG.standard_normal(shape).astype("float32").astype("float64")


# -- references ------------------------------------------------------------------------------------


def conv(x, w, pad=0, stride=1, dilation=1, flip=True, groups=1):
    """Convolution by SciPy's, of any number of dimensions, pair of channels by pair."""
    n = x.ndim - 2
    x = np.pad(x, [(0, 0)] * 2 + [(p, p) for p in np.broadcast_to(pad, n)])
    wide = np.zeros(w.shape[:2] + tuple((k - 1) * dilation + 1 for k in w.shape[2:]))
    wide[(..., *[slice(None, None, dilation)] * n)] = w
    one = scipy.signal.convolve if flip else scipy.signal.correlate
    per, depth = len(w) // groups, w.shape[1]
    made = [[sum(one(image[o // per * depth + c], wide[o, c], "valid") for c in range(depth))
             for o in range(len(w))] for image in x]  # fmt: skip
    return np.array(made)[(..., *[slice(None, None, stride)] * n)]


def conv_input(w, dy):
    """The gradient of ``conv(x, w)`` in x: the full correlation."""
    return np.array([[sum(scipy.signal.correlate(g[o], w[o, c], "full") for o in range(len(w)))
                      for c in range(w.shape[1])] for g in dy])  # fmt: skip


def conv_weight(x, dy):
    """The gradient of ``conv(x, w)`` in w: the mirrored correlation with the output's."""
    turned = (slice(None, None, -1),) * (x.ndim - 2)
    correlate = scipy.signal.correlate
    return np.array([[sum(correlate(i[c], g[o], "valid") for i, g in zip(x, dy))[turned]
                      for c in range(x.shape[1])] for o in range(dy.shape[1])])  # fmt: skip


def transposed(linear, shape, out):
    """The adjoint of a linear function of arrays of ``shape``, applied to ``out``."""
    found = np.zeros(shape)
    for index in np.ndindex(*shape):
        unit = np.zeros(shape)
        unit[index] = 1
        found[index] = np.sum(linear(unit) * out)
    return found


def softmax(x, axes):
    e = np.exp(x - x.max(axes, keepdims=True))
    return e / e.sum(axes, keepdims=True)


def norm(x, g, b, axes=(0, 2, 3), eps=1e-3):
    mean, invstd = x.mean(axes, keepdims=True), (x.var(axes, keepdims=True) + eps) ** -0.5
    return (x - mean) * invstd * g + b, mean, invstd


def running(x, g, b, m, v, factor=0.3):
    axes = (0, 2, 3)
    new = x.mean(axes, keepdims=True), x.var(axes, ddof=1, keepdims=True)
    return (*norm(x, g, b), *((1 - factor) * o + factor * n for o, n in zip((m, v), new)))


def norm_grad(x, dy, g):
    axes = (0, 2, 3)
    _, mean, r = norm(x, g, 0 * g)
    scaled = (x - mean) * r
    dx = g * r * (dy - dy.mean(axes, keepdims=True)
                  - scaled * (dy * scaled).mean(axes, keepdims=True))  # fmt: skip
    return dx, (dy * scaled).sum(axes, keepdims=True), dy.sum(axes, keepdims=True)


def numeric(function, at, cotangent):
    """The gradient of a sum by central differences, element by element."""
    found = np.zeros_like(at)
    for i in np.ndindex(*at.shape):
        step = np.zeros_like(at)
        step[i] = 1e-6
        found[i] = np.sum((function(at + step) - function(at - step)) * cotangent) / 2e-6
    return found


# -- the cases -------------------------------------------------------------------------------------


@dataclass
class Case:
    """``build(dnn, *variables)`` of the arrays, and ``want(*arrays)``, as NumPy computes it."""

    build: Any
    arrays: list[Any]
    want: Any
    #: The inputs whose gradients are compared; those of ops that are gradients have none.
    wrt: tuple[int, ...] | None = None
    rtol: float = field(default=1e-7)


X, W, X3, W3 = normal(2, 3, 5, 4), normal(4, 3, 3, 2), normal(1, 2, 4, 4, 3), normal(2, 2, 2, 3, 2)
DY, DY3 = normal(2, 4, 3, 3), normal(1, 2, 3, 2, 2)
G = [normal(1, 3, 1, 1) for _ in range(2)]
MEAN, VAR = normal(1, 3, 1, 1), abs(normal(1, 3, 1, 1)) + 0.5
THETA = np.array([[[0.9, 0.13, 0.07], [-0.11, 0.8, 0.05]]] * 2) + 0.03 * normal(2, 2, 3)
SEQUENCE, H0, C0 = normal(3, 2, 2), normal(1, 2, 3), normal(1, 2, 3)
LSTM = RNNShape("lstm", 3, 1)
WEIGHTS = 0.4 * normal(4 * (3 * 2 + 3 * 3 + 2 * 3))
ODD = {"border_mode": (2, 1), "subsample": (2, 1), "conv_mode": "cross"}


def desc(d, w, **words):
    return d.GpuDnnConvDesc(**{"border_mode": "valid", "precision": w.dtype, **words})(w.shape)


def zeros(x, *shape):
    return symdnn.tensor.zeros(shape, x.dtype)


def rnn_desc(d, w):
    drop, _ = d._make_dropout_desc(0.0, 1)
    return d._make_rnn_desc(3, 1, drop, "lstm", "linear", "unidirectional", w.dtype)


def rnn_grads(d, w, x, h, c, dy):
    r = rnn_desc(d, w)
    reserve, y, _, _ = d.GpuDnnRNNOp("lstm", "unidirectional")(r, w, x, h, c)
    after, *data = d.GpuDnnRNNGradInputs("lstm", False, False)(
        r, x, y, dy, None, None, w, h, c, reserve
    )
    return [*data, d.GpuDnnRNNGradWeights()(r, x, h, y, after, w)]


def rnn_values(w, x, h, c):
    return slow_rnn(LSTM, w, x, h, c)


def want_rnn_grads(w, x, h, c, dy):
    inputs = [w, x, h, c]
    found = []
    for i in (1, 2, 3, 0):
        others = list(inputs)

        def first(v, i=i, others=others):
            others[i] = v
            return slow_rnn(LSTM, *others)[0]

        found.append(numeric(first, inputs[i], dy))
    return found


def spatial(image, theta):
    return slow_sample(image, slow_grid(theta, 3, 4))


def grid_of(theta):
    return slow_grid(theta, 3, 4)


def block(d, w, x, h, c):
    return d.RNNBlock(w.dtype, 3, 1, "lstm").apply(w, x, h, c)


REDUCTIONS = {
    "add": np.sum, "mul": np.prod, "maximum": np.max, "minimum": np.min, "avg": np.mean,
    "absmax": lambda a, axis: abs(a).max(axis), "norm1": lambda a, axis: abs(a).sum(axis),
    "norm2": lambda a, axis: np.sqrt((a * a).sum(axis)),
}  # fmt: skip


def _reduction(kind):
    return Case(lambda d, x: d.GpuDnnReduction(kind, (0, 2), x.dtype, x.dtype, False)(x),
                [X], lambda x: REDUCTIONS[kind](x, axis=(0, 2)))  # fmt: skip


CASES = {
    "dnn_conv": Case(lambda d, x, w: d.dnn_conv(x, w, **ODD), [X, W],
                     lambda x, w: conv(x, w, (2, 1), 1, 1, False)[:, :, ::2]),
    "dnn_conv, groups and dilation": Case(
        lambda d, x, w: d.dnn_conv(x, w, "full", dilation=(2, 2), num_groups=2),
        [normal(2, 4, 5, 4), normal(4, 2, 2, 2)], lambda x, w: conv(x, w, 2, 1, 2, True, 2)),
    "dnn_conv3d": Case(lambda d, x, w: d.dnn_conv3d(x, w), [X3, W3], conv),
    "dnn_gradweight": Case(lambda d, x, dy: d.dnn_gradweight(x, dy, W.shape), [X, DY],
                           conv_weight),
    "dnn_gradweight3d": Case(lambda d, x, dy: d.dnn_gradweight3d(x, dy, W3.shape), [X3, DY3],
                             conv_weight),
    "dnn_gradinput": Case(lambda d, w, dy: d.dnn_gradinput(w, dy, X.shape), [W, DY],
                          conv_input),
    "dnn_gradinput3d": Case(lambda d, w, dy: d.dnn_gradinput3d(w, dy, X3.shape), [W3, DY3],
                            conv_input),
    "_dnn_conv": Case(lambda d, x, w, o: d._dnn_conv(x, w, 0.5, 2, o), [X, W, DY],
                      lambda x, w, o: 0.5 * conv(x, w) + 2 * o),
    "_dnn_gradweight": Case(
        lambda d, x, dy, o: d._dnn_gradweight(x, dy, W.shape, 0.5, 2, o), [X, DY, W],
        lambda x, dy, o: 0.5 * conv_weight(x, dy) + 2 * o),
    "_dnn_gradinput": Case(
        lambda d, w, dy, o: d._dnn_gradinput(w, dy, X.shape, 0.5, 2, o), [W, DY, X],
        lambda w, dy, o: 0.5 * conv_input(w, dy) + 2 * o),
    "GpuDnnConv, GpuDnnConvDesc": Case(
        lambda d, x, w, o: d.GpuDnnConv()(x, w, o, desc(d, w), 0.5, 2.0), [X, W, DY],
        lambda x, w, o: 0.5 * conv(x, w) + 2 * o),
    "GpuDnnConvGradW": Case(
        lambda d, x, dy, o: d.GpuDnnConvGradW()(x, dy, o, desc(d, o)), [X, DY, W],
        lambda x, dy, o: conv_weight(x, dy), wrt=(0, 1)),
    "GpuDnnConvGradI": Case(
        lambda d, w, dy, o: d.GpuDnnConvGradI()(w, dy, o, desc(d, w)), [W, DY, X],
        lambda w, dy, o: conv_input(w, dy), wrt=(0, 1)),
    "dnn_pool": Case(lambda d, x: [d.dnn_pool(x, (3, 2), (2, 1), m, (1, 0))
                                   for m in ("max", "average_inc_pad", "sum")],
                     [X], lambda x: [loop_pool(x, (3, 2), (2, 1), (1, 0), m)
                                     for m in ("max", "average_inc_pad", "sum")]),
    "GpuDnnPool, GpuDnnPoolBase, GpuDnnPoolDesc": Case(
        lambda d, x: d.GpuDnnPool("average_exc_pad")(x, (2, 2), (2, 1), (1, 1)), [X],
        lambda x: loop_pool(x, (2, 2), (2, 1), (1, 1), "average_exc_pad")),
    "GpuDnnPoolGrad": Case(
        lambda d, x, dy: d.GpuDnnPoolGrad("max")(
            x, d.dnn_pool(x, (2, 2), (2, 2)), dy, (2, 2), (2, 2), (0, 0)), [X, normal(2, 3, 2, 2)],
        lambda x, dy: numeric(lambda v: loop_pool(v, (2, 2), (2, 2)), x, dy), wrt=(), rtol=1e-6),
    "GpuDnnSoftmax, GpuDnnSoftmaxBase": Case(
        lambda d, x: [d.GpuDnnSoftmax("accurate", "channel")(x),
                      d.GpuDnnSoftmax("fast", "instance")(x), d.GpuDnnSoftmax("log", "channel")(x)],
        [X], lambda x: [softmax(x, (1,)), softmax(x, (1, 2, 3)), np.log(softmax(x, (1,)))]),
    "GpuDnnSoftmaxGrad": Case(
        lambda d, dy, s: d.GpuDnnSoftmaxGrad("accurate", "channel")(dy, s), [X, softmax(X, (1,))],
        lambda dy, s: s * (dy - (dy * s).sum(1, keepdims=True)), wrt=()),
    **{f"GpuDnnReduction, {kind}": _reduction(kind) for kind in REDUCTIONS},
    "GpuDnnReduction, indices": Case(
        lambda d, x: d.GpuDnnReduction("minimum", (2, 3), x.dtype, x.dtype, True)(x)[1], [X],
        lambda x: x.reshape(2, 3, -1).argmin(2), wrt=()),
    "dnn_batch_normalization_train": Case(
        lambda d, x, g, b, m, v: d.dnn_batch_normalization_train(
            x, g, b, "spatial", 1e-3, 0.3, m, v), [X, *G, MEAN, VAR], running),
    "dnn_batch_normalization_test": Case(
        lambda d, x, g, b, m, v: d.dnn_batch_normalization_test(x, g, b, m, v, "spatial", 1e-3),
        [X, *G, MEAN, VAR], lambda x, g, b, m, v: (x - m) * g / np.sqrt(v + 1e-3) + b),
    "GpuDnnBatchNorm": Case(
        lambda d, x, g, b: d.GpuDnnBatchNorm("spatial")(x, g, b, 1e-3), [X, *G], norm),
    "GpuDnnBatchNormInference": Case(
        lambda d, x, g, b, m, v: d.GpuDnnBatchNormInference("spatial")(x, g, b, m, v, 1e-3),
        [X, *G, MEAN, VAR], lambda x, g, b, m, v: (x - m) * g / np.sqrt(v + 1e-3) + b),
    "GpuDnnBatchNormGrad": Case(
        lambda d, x, dy, g: d.GpuDnnBatchNormGrad("spatial")(
            x, dy, g, *d.GpuDnnBatchNorm("spatial")(x, g, 0 * g, 1e-3)[1:3], 1e-3),
        [X, normal(*X.shape), G[0]], norm_grad, wrt=()),
    "dnn_spatialtf": Case(lambda d, x, t: d.dnn_spatialtf(x, t, 1, 0.6), [X, THETA], spatial),
    "GpuDnnTransformerGrid": Case(
        lambda d, t: d.GpuDnnTransformerGrid()(t, (2, 3, 3, 4)), [THETA], grid_of),
    "GpuDnnTransformerSampler": Case(
        lambda d, x, g: d.GpuDnnTransformerSampler()(x, g), [X, grid_of(THETA)], slow_sample),
    "GpuDnnTransformerGradI": Case(
        lambda d, x, g, dy: d.GpuDnnTransformerGradI()(x, g, dy),
        [X, grid_of(THETA), normal(2, 3, 3, 4)],
        lambda x, g, dy: (numeric(lambda v: slow_sample(v, g), x, dy),
                          numeric(lambda v: slow_sample(x, v), g, dy)), wrt=(), rtol=1e-6),
    "GpuDnnTransformerGradT": Case(
        lambda d, dg: d.GpuDnnTransformerGradT()(dg), [normal(2, 3, 4, 2)],
        lambda dg: transposed(grid_of, (2, 2, 3), dg), wrt=()),
    "RNNBlock": Case(block, [WEIGHTS, SEQUENCE, H0, C0], rnn_values),
    "GpuDnnRNNOp, _make_rnn_desc, _make_dropout_desc, _RNNDescriptor, _DropoutDescriptor": Case(
        lambda d, w, x, h, c: d.GpuDnnRNNOp("lstm", "unidirectional")(
            rnn_desc(d, w), w, x, h, c)[1:], [WEIGHTS, SEQUENCE, H0, C0], rnn_values),
    "GpuDnnRNNGradInputs, GpuDnnRNNGradWeights": Case(
        rnn_grads, [WEIGHTS, SEQUENCE, H0, C0, normal(3, 2, 3)], want_rnn_grads, wrt=(), rtol=1e-6),
}  # fmt: skip

#: Names that are tried by tests below.
_OTHERS = """
    CUDNNDataType DNN_CONV_ALGO_CHOOSE_ONCE DNN_CONV_ALGO_CHOOSE_TIME DnnBase DnnVersion
    GpuDnnDropoutOp NoCuDNNRaise WIN32_CUDNN_NAMES _RNNParamSize _RNNSplitParams
    _dnn_check_compile _dnn_check_version _dnn_lib _get_param_size _load_lib _make_handle _one
    _split_rnn_params _zero as_i32 cudnn dnn_available dnn_present dropout dropoutdesc_type
    ensure_dt get_precision gpudata_type handle_type rnndesc_type version
"""

#: Theano's graph rewrites that symdnn has too; the others are words for a mode alone.
_REWRITES = """
    local_abstract_batch_norm_inference_cudnn local_abstract_batch_norm_train_cudnn
    local_abstract_batch_norm_train_grad_cudnn local_abstractconv_cudnn local_abstractconv_gi_cudnn
    local_abstractconv_gw_cudnn local_batch_norm_inference_inplace
    local_batch_norm_inplace_running_mean local_batch_norm_inplace_running_var
    local_cudnn_maxandargmax local_dnn_argmax local_dnn_conv_alpha_merge
    local_dnn_conv_output_merge local_dnn_convi_alpha_merge local_dnn_convi_output_merge
    local_dnn_convw_alpha_merge local_dnn_convw_output_merge local_dnn_reduction
    local_gpua_avg_pool_dnn_grad_stride local_gpua_logsoftmax_to_dnn local_gpua_pool_dnn_alternative
    local_gpua_pool_dnn_grad_stride local_gpua_softmax_dnn_grad local_log_softmax_dnn
    local_softmax_dnn
"""
_WORDS = """
    local_abstractconv_cudnn_alt local_abstractconv3d_cudnn_alt local_batch_norm_inplace_output
    local_dnna_conv_inplace conv_dnn cudnn NoCuDNNRaise
"""

OTHERS, REWRITES, WORDS = _OTHERS.split(), _REWRITES.split(), _WORDS.split()

#: Every class, function and constant that gpuarray/dnn.py of Theano 1.0.5 defines.
_TRIED = {n for name in CASES for n in name.split(", ") if n.isidentifier()} - {*REDUCTIONS}
DEFINED = _TRIED - {"indices"} | {*OTHERS, *REWRITES}


def differentiable(case):
    return range(len(case.arrays)) if case.wrt is None else case.wrt


def check(dnn, case, dtype, mode, tolerance):
    """Values, and gradients of a weighted sum along a random direction in each input."""
    T = symdnn.tensor
    kinds = [[n if n == 1 else None for n in a.shape] for a in case.arrays]
    vs = [T.TensorType(dtype, s)() for s in kinds]
    made = case.build(dnn, *vs)
    made = list(made) if isinstance(made, list | tuple) else [made]
    want = case.want(*case.arrays)
    want = list(want) if isinstance(want, list | tuple) else [want]
    weights = [np.cos(np.arange(w.size).reshape(w.shape)) for w in want]
    wrt = differentiable(case)
    grads = []
    if wrt:
        cost = sum((T.cast(v, dtype) * w.astype(dtype)).sum() for v, w in zip(made, weights))
        grads = symdnn.grad(cost, [vs[i] for i in wrt])
    f = symdnn.function(vs, [*made, *grads], mode=mode, on_unused_input="ignore")
    got = f(*[a.astype(dtype) for a in case.arrays])
    for value, wanted in zip(got, want):
        bound = max(tolerance, case.rtol) * max(1.0, abs(wanted).max())
        np.testing.assert_allclose(value, wanted, rtol=max(tolerance, case.rtol), atol=bound)
    for i, g in zip(wrt, got[len(want) :]):
        along = np.random.default_rng(i).standard_normal(case.arrays[i].shape)
        sides = []
        for sign in (1, -1):
            moved = [a + sign * 1e-6 * along if k == i else a for k, a in enumerate(case.arrays)]
            found = case.want(*moved)
            found = found if isinstance(found, list | tuple) else [found]
            sides.append(sum(np.sum(v * w) for v, w in zip(found, weights)))
        slope, size = (sides[0] - sides[1]) / 2e-6, max(1.0, float(np.sum(abs(g * along))))
        assert abs(np.sum(g * along) - slope) < max(tolerance, 1e-6) * 3 * size, f"input {i}"


def check_all(dnn, dtype, mode, tolerance):
    wrong = []
    for name, case in CASES.items():
        try:
            check(dnn, case, dtype, mode, tolerance)
        except Exception:
            wrong.append(f"{name}\n{traceback.format_exc()}")
    assert not wrong, "\n".join([f"{len(wrong)} wrong:", *wrong])


def check_dropout(dnn, mode):
    T = symdnn.tensor
    x = T.TensorType("float32", (None, None))()
    drop, states = dnn._make_dropout_desc(0.25, 7)
    by_hand, _, new = dnn.GpuDnnDropoutOp()(x, drop, states)
    y, *_, state = dnn.dropout(x, 0.25, 7)
    data = np.ones((50, 60), "float32")
    for v, s, updates in ((by_hand, states, [(states, new)]), (y, state, None)):
        f = symdnn.function([x], [v, symdnn.grad(v.sum(), x)], mode=mode, updates=updates)
        (first, slope), (second, _) = f(data), f(data)
        np.testing.assert_array_equal(first, slope)  # the mask, scaled
        np.testing.assert_allclose(np.unique(first), [0, 1 / 0.75], rtol=1e-6)
        assert abs((first == 0).mean() - 0.25) < 0.03
        assert (first != second).any()
        assert s.get_value().shape == (2,)


# -- tests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["gpuarray", "sandbox.gpuarray", "sandbox.cuda"])
def test_all_names_are_there(theano, path):
    dnn = importlib.import_module(f"theano.{path}.dnn")
    assert not [n for n in DEFINED if not hasattr(dnn, n)]
    for name in (*REWRITES, *WORDS):
        theano.Mode().excluding(name)
    with pytest.raises(AttributeError, match="docs/rewrites"):
        getattr(dnn, "local_dnn_convgw_inplace")  # noqa: B009


def test_values_and_gradients_on_the_host(theano):
    from theano.gpuarray import dnn

    check_all(dnn, "float64", symdnn.Mode(target="cpu"), 1e-7)
    check_dropout(dnn, symdnn.Mode(target="cpu"))


def test_helpers_and_static_methods(theano):
    import theano.tensor as T
    from theano.gpuarray import dnn

    x, w, h = T.ftensor4(), T.ftensor4(), T.TensorType("float16", (None,))()
    assert dnn.get_precision("as_input_f32", [h]) == ("float32", "float16")
    assert dnn.get_precision(None, [x, w]) == ("float32", "float32")
    made = dnn.ensure_dt(2, 1.0, "alpha", "float16")
    assert (made.dtype, float(made.data)) == ("float32", 2.0)
    assert float(dnn.ensure_dt(None, 1.0, "alpha", "float64").data) == 1.0
    assert dnn.as_i32(np.int64(3)).dtype == "int32"
    assert (float(dnn._zero.data), float(dnn._one.data)) == (0.0, 1.0)
    kinds = (dnn.handle_type, dnn.gpudata_type, dnn.dropoutdesc_type, dnn.rnndesc_type)
    assert [k.freefunc for k in kinds] == ["cudnnDestroy", "gpudata_release",
                                           "cudnnDestroyDropoutDescriptor",
                                           "cudnnDestroyRNNDescriptor"]  # fmt: skip
    assert dnn.CUDNNDataType("t").freefunc is None
    assert dnn.DNN_CONV_ALGO_CHOOSE_ONCE | dnn.DNN_CONV_ALGO_CHOOSE_TIME == 3
    assert all(n.endswith(".dll") for n in dnn.WIN32_CUDNN_NAMES)
    assert dnn._load_lib("no such library") is None
    for found, why in (dnn._dnn_check_compile(), dnn._dnn_check_version()):
        assert isinstance(found, bool)
        assert found or why
    shape = dnn.GpuDnnConv.get_out_shape((2, 3, 9, 9), (4, 3, 3, 3), 1, (2, 2), (1, 1))
    assert shape == (2, 4, 5, 5)
    for kind in (dnn.GpuDnnConv, dnn.GpuDnnPool, dnn.GpuDnnSoftmax, dnn.GpuDnnReduction):
        assert issubclass(kind, dnn.DnnBase)
    assert "max" in dnn.cudnn.cudnnPoolingMode_t.get_aliases()
    assert dnn.GpuDnnPoolDesc(ws=(2, 2))().get_ndim() == 2
    d = rnn_desc(dnn, x)
    assert int(theano.function([], dnn._get_param_size(d, [2, 2], "float32"))()) == WEIGHTS.size
    assert int(theano.function([], dnn._RNNParamSize(None)(d, [2, 2]))()) == WEIGHTS.size
    shared = theano.shared(WEIGHTS)
    parts = dnn._split_rnn_params(shared, d, 0, [2, 2], "float64", "lstm")
    other = dnn._RNNSplitParams("lstm")(shared, d, 0, [2, 2], "float64")
    assert [p.type for p in parts] == [p.type for p in other]
    assert sum(p.size for p in theano.function([], parts)()) == WEIGHTS.size


@pytest.mark.gpu
def test_values_and_gradients_on_a_card(theano, cuda):
    from theano.gpuarray import dnn

    card = symdnn.Mode(target="cuda")
    check_all(dnn, "float32", card, 2e-4)
    check_dropout(dnn, card)


@pytest.mark.gpu
def test_the_library_on_a_card(theano, card):
    from theano.gpuarray import dnn

    assert dnn.dnn_present()
    assert dnn.dnn_available(None)
    header, library = dnn.DnnVersion()()
    assert library == dnn.version() >= 9000
    assert header >= 9000
    assert dnn._dnn_lib().cudnnGetVersion() >= 9000
    assert dnn._dnn_check_compile()[0]
    with card.exclusive():
        assert dnn._make_handle(None)
