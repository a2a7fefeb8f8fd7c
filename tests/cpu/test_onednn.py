"""oneDNN: the library, and each of its kernels against the NumPy reference in float64."""

import itertools

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu import libdnnl
from symdnn.graph.kernel import Call, kernels_for
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType
from symdnn.ops.conv import Conv, ConvGradInput, ConvGradWeight
from symdnn.ops.dot import BatchedDot, Dot
from symdnn.ops.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad

needs_onednn = pytest.mark.skipif(bool(libdnnl.problem()), reason="oneDNN is not installed")


def run(op, *arrays, dims=()):
    """The result of the kernel of oneDNN; it must be the one that is preferred."""
    float32 = [np.asarray(a, "float32") for a in arrays]
    types = [TensorType("float32", a.shape) for a in float32]
    types += [TensorType("int64", ())] * len(dims)
    host = {len(arrays) + i: d for i, d in enumerate(dims)}
    (shape,) = op.shapes(types, [t.shape for t in types], host)
    call = Call(op, tuple(types), (TensorType("float32", tuple(shape)),), NO_HINTS)
    kernel = kernels_for(type(op), "cpu")[0]
    assert kernel.name.startswith("onednn")
    assert kernel.refuses(call) is None
    out = np.full(shape, np.nan, "float32")
    scratch = np.full(kernel.workspace_bytes(call) + 64, 0xFF, "uint8")
    launch = kernel.bind(call)
    launch([*float32, *map(np.int64, dims)], [out], scratch)
    return out


def close(got, wanted):
    scale = max(np.abs(wanted).max(), 1e-30)
    np.testing.assert_allclose(got / scale, wanted / scale, atol=2e-6, rtol=0)


def settings():
    """(dimensions, groups, stride, dilation, padding, flip, channels)"""
    for ndim, (groups, channels) in itertools.product((1, 2, 3), ((1, 16), (1, 3), (2, 8))):
        for stride, dilation, pad, flip in (
            (1, 1, (0, 0), False), (2, 1, (1, 1), True), (1, 2, (2, 1), False),
        ):  # fmt: skip
            yield ndim, groups, stride, dilation, pad, flip, channels


@needs_onednn
@pytest.mark.parametrize(
    ("ndim", "groups", "stride", "dilation", "pad", "flip", "c"), list(settings())
)
def test_convolution_in_three_directions(ndim, groups, stride, dilation, pad, flip, c):
    rng = np.random.default_rng()
    fields = ((pad,) * ndim, (stride,) * ndim, (dilation,) * ndim, groups, flip)
    x = rng.normal(size=(3, c, *(9, 8, 7)[:ndim]))
    w = rng.normal(size=(16, c // groups, *(3, 2, 3)[:ndim]))
    y = Conv(*fields).reference(x, w)
    dy = rng.normal(size=y.shape)
    close(run(Conv(*fields), x, w), y)
    for op, first, dims in (
        (ConvGradInput(*fields, (None,) * ndim), w, x.shape[2:]),
        (ConvGradWeight(*fields, (None,) * ndim), x, w.shape[2:]),
    ):
        close(run(op, first, dy, dims=dims), op.reference(first, dy, *dims))


@needs_onednn
@pytest.mark.parametrize("turned", list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("stack", [(), (5,)])
def test_products_of_matrices_as_they_lie(turned, stack):
    rng = np.random.default_rng()
    a, b = rng.normal(size=(*stack, 7, 33)), rng.normal(size=(*stack, 33, 12))
    given = [
        np.ascontiguousarray(m.swapaxes(-1, -2)).swapaxes(-1, -2) if turn else m
        for m, turn in zip((a, b), turned)
    ]
    close(run(BatchedDot() if stack else Dot(), *given), a @ b)


@needs_onednn
def test_a_matrix_that_lies_in_neither_way_is_copied():
    rng = np.random.default_rng()
    a, b = rng.normal(size=(6, 10)), rng.normal(size=(5, 3))
    close(run(Dot(), a[:, ::2], b), a[:, ::2] @ b)


@needs_onednn
@pytest.mark.parametrize("axis", [2, -1])
def test_softmax(axis):
    x, dy = (np.random.default_rng().normal(size=(4, 33, 5)) * s for s in (5, 1))
    for forward, backward in ((Softmax, SoftmaxGrad), (LogSoftmax, LogSoftmaxGrad)):
        y = forward(axis).reference(x)
        close(run(forward(axis), x), y)
        close(run(backward(axis), y, dy), backward(axis).reference(y, dy))


@needs_onednn
def test_a_reference_of_onednn_is_refused():
    t = TensorType("float32", (4, 33, 5))
    kernel = kernels_for(Softmax, "cpu")[0]
    assert "reference" in kernel.refuses(Call(Softmax(1), (t,), (t,), NO_HINTS))


@needs_onednn
def test_a_training_step_runs_by_onednn():
    x, t = T.ftensor4("x"), T.ivector("t")
    rng = np.random.default_rng()
    w = symdnn.shared(rng.normal(size=(16, 3, 3, 3)).astype("float32") * 0.1)
    v = symdnn.shared(rng.normal(size=(16 * 36, 10)).astype("float32") * 0.1)
    p = T.nnet.softmax(T.dot(T.tanh(T.nnet.conv2d(x, w)).flatten(2), v))
    loss = T.nnet.categorical_crossentropy(p, t).mean()
    updates = [(s, s - 0.1 * g) for s, g in zip((w, v), T.grad(loss, [w, v]))]
    f = symdnn.function([x, t], loss, updates=updates, mode=symdnn.Mode(target="cpu"))
    images, labels = rng.normal(size=(5, 3, 8, 8)).astype("float32"), np.arange(5, dtype="int32")
    first = f(images, labels)
    for _ in range(20):
        last = f(images, labels)
    assert last < first
    used = f.lowering_report().kernels()
    assert used["onednn.conv"] == 2
    assert used["onednn.matmul"] == 3


def test_what_has_no_kernel_of_onednn_runs_by_numpy():
    x = T.dtensor4("x")
    y = T.nnet.conv2d(x, np.ones((2, 3, 2, 2)))
    f = symdnn.function([x], y, mode=symdnn.Mode(target="cpu"))
    np.testing.assert_allclose(f(np.ones((1, 3, 4, 4))), 12)
    (row,) = [r for r in f.lowering_report().rows if "Conv" in r.op]
    assert row.how == "numpy.reference"
    assert "float64" in dict(row.refused)["onednn.conv"]


@needs_onednn
def test_an_empty_batch_runs():
    x = T.ftensor4("x")
    f = symdnn.function([x], T.nnet.conv2d(x, np.ones((2, 3, 2, 2), "float32")))
    assert f(np.ones((0, 3, 4, 4), "float32")).shape == (0, 2, 3, 3)


# -- the library ----------------------------------------------------------------------------------


@pytest.fixture
def forget():
    """Look for the library anew, and once more afterwards."""
    libdnnl._state.cache_clear()
    yield
    libdnnl._state.cache_clear()


def test_a_file_that_is_no_library_is_named(forget, tmp_path):
    broken = tmp_path / "libdnnl.so.3"
    broken.write_text("not a library")
    with config.change_flags(**{"onednn.library_path": str(broken)}):
        found, why = libdnnl._state()
    if found is None:
        assert str(broken) in why
    else:
        assert found.path != str(broken)


def test_without_any_library_the_reason_lists_what_was_tried(forget, monkeypatch):
    monkeypatch.setattr(libdnnl, "onednn_candidates", lambda: [])
    assert libdnnl.problem().startswith("oneDNN can't be used")
    with pytest.raises(libdnnl.OnednnNotFound, match="can't be used"):
        libdnnl.library()


def test_a_missing_openmp_runtime_says_how_to_get_it():
    error = OSError("libgomp.so.1: cannot open shared object file: No such file or directory")
    assert "libgomp1" in libdnnl._why(error)


@needs_onednn
def test_the_library_says_what_it_is():
    found = libdnnl.library()
    assert found.version[0] == 3
    assert found.runtime == "OpenMP"
    assert str(found).startswith("oneDNN 3.")


@needs_onednn
def test_a_refused_primitive_is_an_error_with_the_status():
    from symdnn.cpu.dnnl import ALG, PROP, Layout, primitive

    x = Layout((1, 3, 4, 4), "float32")
    with pytest.raises(libdnnl.OnednnError, match="dnnl_softmax_forward_primitive_desc_create"):
        primitive("softmax_forward", PROP["inference"], ALG["softmax"], x, x, 7)
