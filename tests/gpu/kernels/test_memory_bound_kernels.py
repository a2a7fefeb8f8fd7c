"""Softmax, batch norm and reductions in vectors: their text on a CPU, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import symdnn
from symdnn.config import config
from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.codegen.cuda_source import scalar_function
from symdnn.gpu.codegen.launches import View
from symdnn.gpu.kernels import elementwise as elementwise_kernels
from symdnn.gpu.kernels import reduce as reduce_kernels
from symdnn.gpu.kernels import row_plan
from symdnn.gpu.kernels import rows as rows_kernels
from symdnn.gpu.kernels import softmax as softmax_kernels
from symdnn.gpu.kernels.reduce import ReductionKernel
from symdnn.gpu.norm import batchnorm as batchnorm_kernels
from symdnn.graph.type import numpy_dtype
from symdnn.ops.array import reduce as red
from symdnn.ops.elementwise.arithmetic import Mul
from symdnn.ops.elementwise.math import Exp
from symdnn.ops.lowered.norm_formulas import formula
from symdnn.ops.nn.batchnorm import BatchNormGrad, BatchNormTrain
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from symdnn.ops.vendor import gpudnn as G
from tests.gpu import emulator
from tests.gpu.recorder import CAPABILITIES, recorded
from tests.gpu.table import concrete
from tests.seeded import new_rng, sampled

DTYPES = ["float32", "bfloat16", "float16", "float64"]
TOLERANCE = {"float32": 3e-6, "float64": 1e-12, "bfloat16": 1e-2, "float16": 2e-3}
needs_gpp = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")


def drawn(rng, shape, dtype, offset=0.0):
    return (rng.standard_normal(shape) + offset).astype(numpy_dtype(dtype))


def dense(array):
    return emulator.device_copy(array)[1]


def close(got, want, dtype, scale=1.0):
    tol = TOLERANCE[dtype] * scale
    np.testing.assert_allclose(np.float64(got), np.float64(want), rtol=tol, atol=tol)


# -- softmax --------------------------------------------------------------------------------------

SOFTMAX, LONG_AXIS = softmax_kernels.SoftmaxKernel(), softmax_kernels.LongAxisKernel()
ROWS = [
    ((5, 21), 1), ((3, 2, 1024), 2), ((2, 21, 6, 8), 1), ((130, 10), 1), ((3, 21, 5), 1),
    ((3, 50_000), 1), ((4, 34_003), 1),
    ((2, 1000), 1), ((3, 64), 1), ((300, 4), 1), ((1, 3000), 1), ((4, 1), 1), ((3, 2, 7), 0),
]  # fmt: skip


def softmax_arrays(op, shape, dtype):
    rng = np.random.default_rng(len(shape) + shape[-1])
    x = drawn(rng, shape, dtype)
    if isinstance(op, Softmax | LogSoftmax):
        return [x]
    forward = Softmax if isinstance(op, SoftmaxGrad) else LogSoftmax
    return [forward(op.axis).compute(x)[0], drawn(rng, shape, dtype)]


@needs_gpp
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axis"), sampled(ROWS, every=3))
@pytest.mark.parametrize("kind", [Softmax, LogSoftmax, SoftmaxGrad, LogSoftmaxGrad])
def test_softmax_in_one_pass(kind, shape, axis, dtype):
    op = kind(axis)
    arrays = softmax_arrays(op, shape, dtype)
    call = concrete(op, arrays)
    assert SOFTMAX.refuses(call) is None
    (got,), env = emulator.run(SOFTMAX, call, [dense(a) for a in arrays])
    odd = shape[-1] > 40 and shape[-1] % 2 == 1  # rows without aligned vectors
    assert env.launched[0].startswith("softmax_") or (odd and env.launched == ["fused_rows"])
    close(got, op.compute(*map(np.float64, arrays))[0], dtype)


@needs_gpp
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(3, 130, 4), (2, 140, 33), (5, 400, 1, 2), (1, 700, 2, 32)], ids=str
)
@pytest.mark.parametrize("kind", [Softmax, LogSoftmax, SoftmaxGrad, LogSoftmaxGrad])
def test_softmax_of_planes_that_threads_share(kind, shape, dtype):
    op = kind(1)
    arrays = softmax_arrays(op, shape, dtype)
    call = concrete(op, arrays)
    (got,), env = emulator.run(SOFTMAX, call, [dense(a) for a in arrays])
    assert env.launched == ["softmax_across"]
    close(got, op.compute(*map(np.float64, arrays))[0], dtype)


@needs_gpp
@pytest.mark.parametrize(
    ("kind", "shape", "dtype", "kept"),
    [
        (Softmax, (2, 50_304), "bfloat16", True), (LogSoftmax, (3, 50_304), "float32", True),
        (SoftmaxGrad, (2, 40_000), "float16", True), (Softmax, (2, 80_000), "float32", False),
        (LogSoftmaxGrad, (2, 50_304), "float32", False), (Softmax, (2, 50_257), "float32", True),
    ],
)  # fmt: skip
def test_long_rows_stay_in_shared_memory(kind, shape, dtype, kept, monkeypatch):
    monkeypatch.setattr(row_plan, "most_shared_bytes", lambda: 224 << 10)
    op = kind(1)
    arrays = softmax_arrays(op, shape, dtype)
    (got,), env = emulator.run(SOFTMAX, concrete(op, arrays), [dense(a) for a in arrays])
    assert env.launched == ["fused_rows" if kept else "softmax_long"]
    close(got, op.compute(*map(np.float64, arrays))[0], dtype)


@needs_gpp
def test_softmax_of_infinities_and_nan():
    x = np.array([[0, -np.inf, 1], [np.inf, 0, 1], [np.nan, 0, 0], [-np.inf] * 3], np.float32)
    (got,), _ = emulator.run(SOFTMAX, concrete(Softmax(1), [x]), [dense(x)])
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(got, Softmax(1).compute(x)[0], rtol=1e-6)


@needs_gpp
def test_softmax_at_an_odd_address():
    for columns in (24, 2000):
        memory = dense(np.random.default_rng(0).standard_normal(columns + 1).astype("float32"))
        x = memory[1:].reshape(1, columns)
        (got,), _ = emulator.run(SOFTMAX, concrete(Softmax(1), [x]), [x])
        close(got, Softmax(1).compute(np.float64(x))[0], "float32")


@needs_gpp
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [Softmax, LogSoftmax, SoftmaxGrad, LogSoftmaxGrad])
def test_softmax_of_columns_that_registers_do_not_hold_is_a_sum_and_a_loop(kind, dtype):
    op = kind(0)
    arrays = softmax_arrays(op, (9000, 36), dtype)
    wanted = op.compute(*map(np.float64, arrays))[0]
    (got,), env = emulator.run(SOFTMAX, concrete(op, arrays), [dense(a) for a in arrays])
    assert env.launched == ["reduce", "elementwise"]
    close(got, wanted, dtype)
    turned = [dense(a.T).T for a in arrays]
    for given in ([dense(a) for a in arrays], turned):
        out = dense(np.zeros_like(arrays[0]).T).T
        (got,), env = emulator.run(LONG_AXIS, concrete(op, arrays), given, [out])
        assert env.launched == ["reduce", "elementwise" if given is turned else "tiles"]
        close(got, wanted, dtype)


def test_an_axis_that_a_block_holds_is_left_to_one_kernel():
    for shape, axis, held in (((9000, 36), 0, False), ((900, 36), 0, True), ((36, 9000), 1, True)):
        op = Softmax(axis)
        reason = LONG_AXIS.refuses(concrete(op, softmax_arrays(op, shape, "float32")))
        assert (reason is not None) == held


@needs_gpp
@pytest.mark.parametrize("order", ["falls", "rises", "jumps", "infinite", "nan"])
def test_log_sum_exp_of_columns_and_rows_of_any_order(order):
    """Elements that are larger than all before them by less or more than what is kept."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-90, 90, (700, 5)), axis=0).astype("float32")
    if order == "falls":
        x = x[::-1]
    elif order != "rises":
        rng.shuffle(x)
    if order == "infinite":
        x[:, 0], x[3::7, 1], x[5, 2] = -np.inf, -np.inf, np.inf
    elif order == "nan":
        x[9, 1] = np.nan
    wanted = scipy.special.logsumexp(x.astype("float64"), axis=0)
    for a, axis in ((x, 0), (x.T, 1)):
        call = concrete(red.LogSumExp((axis,)), [a])
        (got,), _ = emulator.run(REDUCE, call, [dense(a)])
        np.testing.assert_allclose(got, wanted, 4e-7)


def test_long_columns_are_read_in_sectors_by_many_threads():
    columns = softmax_kernels.form_of(softmax_kernels._Task(0, 1, 2365, 1774, "float32"))
    assert (columns.name, columns.block) == ("softmax_across", 512)
    assert dict(columns.macros)["GX"] * 2 * 4 == 32
    assert columns.work == 1774 // 8 + 1  # blocks, of four pairs of columns
    short = softmax_kernels.form_of(softmax_kernels._Task(0, 1, 400, 1774, "float32"))
    assert dict(short.macros)["GX"] * 2 * 4 == 128
    x = View(0, "float32", (20_000, 1774), (4 * 1774, 4))
    (launch,) = rows_kernels.two_passes(0, 0, x, x, x)
    assert launch.block == (8, 32)


def test_the_flag_puts_cudnn_first():
    x = np.zeros((2, 8), np.float32)
    call = concrete(G.GpuDnnSoftmax("accurate", "instance"), [x])
    assert SOFTMAX.refuses(call) is None
    with config.change_flags(**{"gpu.prefer": "cudnn"}):
        assert SOFTMAX.refuses(call) == "gpu.prefer=cudnn"
        assert SOFTMAX.refuses(concrete(Softmax(1), [x])) is None


@needs_gpp
@pytest.mark.parametrize("algo", ["accurate", "fast", "log"])
@pytest.mark.parametrize("mode", ["instance", "channel"])
def test_cudnn_softmax_ops_run_on_it(algo, mode):
    rng = np.random.default_rng(3)
    x, dy = drawn(rng, (2, 5, 3, 4), "float32"), drawn(rng, (2, 5, 3, 4), "float32")
    forward = G.GpuDnnSoftmax(algo, mode)
    (y,), _ = emulator.run(SOFTMAX, concrete(forward, [x]), [dense(x)])
    close(y, forward.compute(np.float64(x))[0], "float32")
    gradient = G.GpuDnnSoftmaxGrad(algo, mode)
    (dx,), _ = emulator.run(SOFTMAX, concrete(gradient, [dy, y]), [dense(dy), dense(y)])
    close(dx, gradient.compute(np.float64(dy), np.float64(y))[0], "float32")


# -- reductions in vectors ------------------------------------------------------------------------

REDUCE = ReductionKernel()
SWEPT = [
    ((700, 32), (0,)), ((5, 1000), (1,)), ((8, 6, 64), (0, 2)), ((3000,), (0,)),
    ((300, 6, 6, 16), (0, 1, 2)), ((16, 8, 12, 8), (0, 2, 3)), ((2100, 24), (0,)),
    ((2, 40, 36), (0, 1)),
]  # fmt: skip


@needs_gpp
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize(("shape", "axes"), SWEPT)
def test_reductions_read_vectors(shape, axes, dtype):
    x = drawn(np.random.default_rng(1), shape, dtype)
    work = "float64" if dtype == "float64" else "float32"
    for op in (red.Sum(axes, False, work, work), red.Max(axes, True), red.LogSumExp(axes)):
        call = concrete(op, [x])
        (got,), _ = emulator.run(REDUCE, call, [dense(x)])
        close(got, op.compute(np.float64(x))[0], dtype, 30)
        env = recorded(REDUCE, call, [dense(x)], [got])
        assert "Vec<" in env.modules[0][0].split("struct Base")[1]


@needs_gpp
@pytest.mark.parametrize(
    ("shape", "axes"), [((3000, 24), (0,)), ((70000,), (0,)), ((4, 90001), (1,))]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_the_last_block_merges_what_all_have_found(shape, axes, dtype):
    x = drawn(np.random.default_rng(2), shape, dtype)
    work = "float64" if dtype == "float64" else "float32"
    call = concrete(red.Sum(axes, False, work, work), [x])
    (launch,) = recorded(
        REDUCE, call, [dense(x)], red.Sum(axes, False, work, work).compute(x)
    ).launches
    assert launch[1][1] > 1  # chunks
    (got,), env = emulator.run(REDUCE, call, [dense(x)])
    close(got, call.op.compute(np.float64(x))[0], dtype, 300)
    assert not env._word.any()  # tickets are as they were


# -- elementwise ----------------------------------------------------------------------------------


@needs_gpp
def test_a_logistic_function_divides_without_care():
    op = symdnn.tensor.nnet.sigmoid(symdnn.tensor.vector("x")).owner.op
    values = np.array([-np.inf, -120, -80, -3, -1e-3, 0, 0.5, 2, 90, np.inf, np.nan], "float32")
    call = concrete(op, [values])
    assert "s_share(" in elementwise_kernels.ElementwiseKernel().sources(call)[0]
    (got,), _ = emulator.run(elementwise_kernels.ElementwiseKernel(), call, [dense(values)])
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(
            got, 1 / (1 + np.exp(-np.float64(values))), rtol=3e-7, atol=1e-44
        )
    near = scalar_function(formula(["float32"], lambda v: v.call("abs") / (v.call("exp") + 1)), "f")
    assert "s_share(" not in near


@needs_gpp
@pytest.mark.parametrize("shape", [(1003,), (37, 24), (300, 131)])
def test_several_vectors_are_read_before_one_is_written(shape, monkeypatch):
    """Also of rows that divide no number of threads: some threads of the last block do nothing."""
    monkeypatch.setattr(elementwise_kernels, "_MAX_COLUMN_BLOCKS", 2)
    for name in ("_COLUMN_BATCH_MIN_VECTORS", "_FLAT_BATCH_MIN_VECTORS"):
        monkeypatch.setattr(elementwise_kernels, name, 0)
    monkeypatch.setattr(elementwise_kernels, "_MAX_BLOCKS", 1)
    rng = np.random.default_rng(6)
    x, row = (
        drawn(rng, shape, "float32"),
        drawn(rng, (1,) * (len(shape) - 1) + shape[-1:], "float32"),
    )
    op, arrays = (Mul(), [x, row]) if len(shape) > 1 else (Exp(), [x])
    call = concrete(op, arrays)
    (source,) = elementwise_kernels.ElementwiseKernel().sources(call)
    assert "held[b]" in source
    stays_in_columns = "begin >= stride" in source or "first >= stride" in source
    assert stays_in_columns == (len(shape) > 1)
    (got,), _ = emulator.run(
        elementwise_kernels.ElementwiseKernel(), call, [dense(a) for a in arrays]
    )
    close(got, op.compute(*map(np.float64, arrays))[0], "float32")


@needs_gpp
def test_halves_of_rows_are_read_several_at_a_time(monkeypatch):
    monkeypatch.setattr(elementwise_kernels, "_INDEXED_BATCH_MIN_VECTORS", 0)
    monkeypatch.setattr(elementwise_kernels, "_MAX_BLOCKS", 1)
    x = dense(drawn(np.random.default_rng(7), (37, 48), "float32"))
    halves = [x[:, :24], x[:, 24:]]
    call = concrete(Mul(), halves)
    (got,), env = emulator.run(elementwise_kernels.ElementwiseKernel(), call, halves)
    assert env.launched == ["elementwise"]
    close(got, halves[0] * halves[1], "float32")


# -- batch norm -----------------------------------------------------------------------------------

NORM, NORM_GRAD = batchnorm_kernels.BatchNormKernel(), batchnorm_kernels.BatchNormGradKernel()
IMAGES = [((6, 8, 5, 4), (0, 2, 3)), ((6, 5, 4, 8), (0, 1, 2)), ((40, 12), (0,)),
          ((5, 3, 7, 7), (0, 2, 3))]  # fmt: skip


def norm_arrays(shape, axes, dtype, offset=0.0):
    rng = np.random.default_rng(5)
    own = tuple(1 if i in axes else n for i, n in enumerate(shape))
    wide = "float64" if dtype == "float64" else "float32"
    x, dy = drawn(rng, shape, dtype, offset), drawn(rng, shape, dtype)
    return x, dy, [drawn(rng, own, wide) for _ in range(4)], np.asarray(0.3, wide)


@needs_gpp
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axes"), IMAGES)
def test_batch_norm_and_its_gradient(shape, axes, dtype):
    x, dy, (gamma, beta, old_mean, old_var), factor = norm_arrays(shape, axes, dtype)
    op = BatchNormTrain(axes, 1e-5, True)
    arrays = [x, gamma, beta, factor, old_mean, old_var]
    got, _ = emulator.run(NORM, concrete(op, arrays), [dense(a) for a in arrays])
    want = op.compute(*map(np.float64, arrays))
    close(got[0], want[0], dtype, 3)
    for a, b in zip(got[1:], want[1:]):
        close(a, b, "float64" if dtype == "float64" else "float32", 3)
    op = BatchNormGrad(axes, 1e-5)
    arrays = [x, dy, gamma, *(a.astype(gamma.dtype) for a in want[1:3])]
    got, _ = emulator.run(NORM_GRAD, concrete(op, arrays), [dense(a) for a in arrays])
    for a, b in zip(got, op.compute(*map(np.float64, arrays))):
        close(a, b, dtype, 10)


@needs_gpp
def test_a_large_mean_costs_the_variance_no_digits():
    x, _, (gamma, beta, *_), _ = norm_arrays((64, 3, 8, 8), (0, 2, 3), "float32", 3000.0)
    x[0] = 0  # as padding would leave it, and the first thing that is seen
    op = BatchNormTrain((0, 2, 3), 1e-5)
    got, _ = emulator.run(
        NORM, concrete(op, [x, gamma, beta]), [dense(a) for a in (x, gamma, beta)]
    )
    want = op.compute(*map(np.float64, (x, gamma, beta)))
    np.testing.assert_allclose(got[1], want[1], rtol=1e-6)
    np.testing.assert_allclose(got[2], want[2], rtol=1e-4)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_text_compiles(capability):
    """In each dtype one shape of rows; for the capabilities that are slow tests, three."""
    texts = {}
    for i, dtype in enumerate(DTYPES):
        for shape, axis in [ROWS[i % 3]] if capability == (9, 0) else ROWS[:3]:
            for op in (Softmax(axis), SoftmaxGrad(axis)):
                call = concrete(op, softmax_arrays(op, shape, dtype))
                texts.update(dict.fromkeys(SOFTMAX.sources(call)))
        x, dy, (gamma, beta, *_), _ = norm_arrays(*IMAGES[1], dtype)
        call = concrete(BatchNormTrain((0, 1, 2), 1e-5), [x, gamma, beta])
        texts.update(dict.fromkeys(NORM.sources(call)))
        call = concrete(BatchNormGrad((0, 1, 2), 1e-5), [x, dy, gamma, beta, beta])
        texts.update(dict.fromkeys(NORM_GRAD.sources(call)))
    for text in texts:
        assert compile_cubin(text, capability)


# -- cuDNN's reductions ---------------------------------------------------------------------------


@needs_gpp
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("word", sorted(reduce_kernels._CUDNN_REDUCTIONS))
def test_cudnn_reductions_run_on_our_kernel(word, dtype):
    kernel, rng = reduce_kernels.DnnReductionKernel(), np.random.default_rng(4)
    work = "float64" if dtype == "float64" else "float32"
    for shape, axes in (((40, 12), (0,)), ((3, 5, 8), (0, 2)), ((9, 7), (1,))):
        x = drawn(rng, shape, dtype)
        call = concrete(G.GpuDnnReduction(word, axes, work, dtype), [x])
        assert kernel.refuses(call) is None
        (got,), _ = emulator.run(kernel, call, [dense(x)])
        want = G.GpuDnnReduction(word, axes, "float64", "float64").compute(np.float64(x))[0]
        close(got, want, dtype, 3)


@pytest.mark.parametrize("word", ["maximum", "minimum"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_cudnn_reductions_with_indices_run_on_our_kernel(word, dtype):
    kernel, rng = reduce_kernels.DnnReductionKernel(), new_rng()
    for shape, axes in (((40, 12), (0,)), ((3, 5, 8), (0, 2)), ((9, 7), (1,))):
        x = drawn(rng, shape, dtype)
        op = G.GpuDnnReduction(word, axes, "float32" if dtype == "float16" else dtype, dtype, True)
        call = concrete(op, [x])
        assert kernel.refuses(call) is None
        got, _ = emulator.run(kernel, call, [dense(x)])
        for mine, want in zip(got, op.compute(x), strict=True):
            np.testing.assert_array_equal(mine, want)
