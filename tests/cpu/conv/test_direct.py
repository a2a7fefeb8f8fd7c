"""Convolutions in NHWC by compiled tiles: values, borders, groups, filters that are kept."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.conv import direct
from symdnn.cpu.conv.direct import DirectConvKernel, fits_processor
from symdnn.cpu.conv.direct_tile_ir import KINDS
from symdnn.cpu.onednn import library
from symdnn.graph.kernel import Call
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType
from symdnn.ops.nn.conv import Conv
from symdnn.ops.vendor.onednn import OneDnnConv
from tests.cpu.harness import call_of, compiled, launched

pytestmark = compiled
HALVES = jit.halves_vectors


@pytest.fixture(autouse=True, scope="module")
def any_processor():
    """The kernel as on a processor without AVX-512; it runs on those with it, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct, "fits_processor", lambda: True)
        patch.setattr(jit, "halves_vectors", lambda: False)
        yield


def last(a):
    """Images with channels last."""
    return np.ascontiguousarray(a.transpose(0, 2, 3, 1))


def both(conv, x, w, more=(), **words):
    """The kernel's result, and the neutral op's on operands of float64; images in NCHW."""
    op = OneDnnConv(conv, layout="NHWC").ending(**words)
    arrays = [last(x), w, *map(last, more)]
    types = [TensorType(a.dtype.name, a.shape) for a in arrays]
    (out,) = op.output_types(types)
    (shape,) = op.shapes(types, [a.shape for a in arrays], {})
    (made,) = launched(DirectConvKernel(), call_of(op, arrays, out.with_shape(shape)), arrays)
    (wanted,) = op.compute(*(a.astype("float64") for a in arrays))
    return made, wanted


def close(made, wanted):
    np.testing.assert_allclose(made, wanted, rtol=2e-5, atol=2e-5 * max(1, np.abs(wanted).max()))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_all_geometries(data):
    number = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    kernel, stride, dilation = (tuple(number(1, 3) for _ in "hw") for _ in range(3))
    pad = tuple((number(0, 3), number(0, 3)) for _ in "hw")
    size = number(1, 17), number(1, 17)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
    assume(all(n + a + b >= r for n, (a, b), r in zip(size, pad, reach)))
    groups = data.draw(st.sampled_from([1, 1, 2, 3, 4]))
    results = number(1, 37) if groups == 1 else data.draw(st.sampled_from([8, 16, 24]))
    terms = number(4, 19)
    rng = np.random.default_rng(number(0, 99))
    x = rng.normal(size=(number(1, 3), groups * terms, *size)).astype("f")
    w = rng.normal(size=(groups * results, terms, *kernel)).astype("f")
    conv = Conv(pad, stride, dilation, groups, data.draw(st.booleans()))
    with config.change_flags(**{"openmp.threads": number(1, 2)}):
        close(*both(conv, x, w))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_rows_of_taps_of_few_channels(data):
    """Filters that stay within the rows of images: a row of taps is one tap."""
    number = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    kernel, stride = (number(1, 3), number(2, 5)), (number(1, 3), number(1, 3))
    dilation, pad = (number(1, 2), 1), ((number(0, 2), number(0, 2)), (0, 0))
    size = number(5, 17), number(5, 17)
    rng = np.random.default_rng(number(0, 99))
    x = rng.normal(size=(number(1, 3), number(1, 3), *size)).astype("f")
    assume(kernel[1] * x.shape[1] >= 4)
    w = rng.normal(size=(number(1, 37), x.shape[1], *kernel)).astype("f")
    conv = Conv(pad, stride, dilation)
    assert direct._taps_and_terms(conv, w.shape) == ((kernel[0], 1), kernel[1] * x.shape[1])
    with config.change_flags(**{"openmp.threads": number(1, 2)}):
        close(*both(conv, x, w))


@pytest.mark.parametrize(
    ("channels", "size", "results", "kernel", "stride", "pad", "groups"),
    [
        (64, 56, 64, 3, 1, 1, 1), (256, 7, 256, 3, 1, 1, 1), (32, 64, 48, 1, 2, 0, 1),
        (440, 7, 440, 3, 1, 1, 55), (48, 40, 48, 3, 2, 1, 6), (128, 14, 128, 3, 1, 1, 4),
        (16, 40, 24, 7, 2, 3, 1), (440, 1, 110, 1, 1, 0, 1), (24, 31, 24, 1, 1, 0, 3),
        (20, 3, 30, 1, 2, 1, 1),  # as many pixels of the result as of the input, others
    ],
)  # fmt: skip
@pytest.mark.parametrize("count", [1, 2])
def test_sizes_of_networks(rng, channels, size, results, kernel, stride, pad, groups, count):
    x = rng.normal(size=(1, channels, size, size)).astype("f")
    w = rng.normal(size=(results, channels // groups, kernel, kernel)).astype("f")
    conv = Conv(((pad, pad),) * 2, (stride,) * 2, (1, 1), groups, False)
    with config.change_flags(**{"openmp.threads": count}):
        close(*both(conv, x, w))


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", KINDS)
@pytest.mark.parametrize("results", [5, 40])
def test_what_follows(rng, residual, bias, activation, results):
    x, w, z, b = (
        rng.normal(size=s).astype("f")
        for s in ((2, 6, 9, 11), (results, 6, 3, 3), (2, results, 9, 11), (1, results, 1, 1))
    )
    conv = Conv(((1, 1), (1, 1)), (1, 1), (1, 1), 1, False)
    more = [a for a, on in ((z, residual), (b, bias)) if on]
    close(*both(conv, x, w, more, residual=residual, bias=bias, activation=activation))


def test_the_addend_may_be_overwritten(rng):
    x, w, z = (rng.normal(size=s).astype("f") for s in ((2, 7, 5, 8), (20, 8, 3, 3), (2, 7, 5, 20)))
    op = OneDnnConv(Conv(((1, 1), (1, 1)), (1, 1), (1, 1), 1, False), layout="NHWC")
    op = op.ending(residual=1.0)
    (wanted,) = op.compute(*(a.astype("float64") for a in (x, w, z)))
    types = tuple(TensorType("float32", a.shape) for a in (x, w, z))
    DirectConvKernel().bind(Call(op, types, types[2:], NO_HINTS))([x, w, z], [z])
    close(z, wanted)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("activation", ["relu", "clip", "hardswish", "swish"])
def test_what_is_not_a_number_stays_where_it_is(groups, activation):
    x = np.ones((1, 24, 6, 13), "f")
    x[0, 9, 3, 12] = np.nan
    w = np.ones((24, 24 // groups, 3, 3), "f")
    conv = Conv(((1, 1), (1, 1)), (1, 1), (1, 1), groups, False)
    made, wanted = both(conv, x, w, activation=activation)
    assert np.isnan(made).any()
    assert np.isfinite(made).any()
    np.testing.assert_array_equal(np.isnan(made), np.isnan(wanted))


def refusal(x, w, groups=1, layout="NHWC", dtype="float32", **words):
    op = OneDnnConv(Conv(((0, 0), (0, 0)), (1, 1), (1, 1), groups, False), layout=layout)
    op = op.ending(**words)
    types = TensorType(dtype, x), TensorType(dtype, w)
    (out,) = op.output_types(types)
    (shape,) = op.shapes(types, [x, w], {})
    return DirectConvKernel().refuses(Call(op, types, (out.with_shape(shape),), NO_HINTS))


def test_what_is_refused(monkeypatch):
    x, w = (2, 8, 8, 16), (24, 16, 3, 3)
    assert refusal(x, w) is None
    assert "NHWC" in refusal((2, 16, 8, 8), w, layout="NCHW")
    assert "float32" in refusal(x, w, dtype="bfloat16")
    assert "tanh" in refusal(x, w, activation="tanh")
    assert "few channels" in refusal((2, 8, 8, 3), (24, 3, 3, 1))
    assert refusal((2, 8, 8, 3), (24, 3, 3, 3), activation="relu") is None  # a row is one tap
    assert "few channels" in refusal((2, 8, 20, 3), (24, 3, 3, 17))
    for row, dilation, flip in (((0, 1), 1, False), ((0, 0), 2, False), ((0, 0), 1, True)):
        conv = Conv(((0, 0), row), (1, 1), (1, dilation), flip=flip)
        assert direct._taps_and_terms(conv, (24, 3, 3, 3)) == ((3, 3), 3)
    assert "few channels" in refusal(x, (16, 4, 3, 3), 4)
    with monkeypatch.context() as patch:
        patch.setattr(jit, "halves_vectors", lambda: True)
        assert "few channels" in refusal((2, 8, 8, 16), (24, 16, 1, 1))
        assert refusal((2, 8, 8, 17), (24, 17, 1, 1)) is None
        assert "few channels" in refusal((2, 8, 8, 64), (16, 64, 1, 1))  # to each of which go many
        assert refusal((2, 8, 8, 64), (16, 64, 3, 3)) is None
        assert refusal((2, 8, 8, 60), (16, 60, 1, 1)) is None
        assert refusal((2, 8, 8, 16), (24, 16, 1, 1), activation="swish") is None
        assert "few channels" in refusal((2, 8, 8, 3), (24, 3, 3, 3))
        assert refusal((2, 8, 8, 3), (24, 3, 3, 3), activation="relu") is None
    assert "smaller filters" in refusal((1, 40, 40, 4), (8, 4, 30, 30))
    assert "elements" in refusal((0, 8, 8, 16), w)
    with config.change_flags(**{"cpu.compile": "auto"}):
        assert "too little" in refusal((1, 1, 1, 4), (8, 4, 1, 1))
    monkeypatch.setattr(direct, "fits_processor", lambda: False)
    assert "256 bits" in refusal(x, w)


def test_processors_that_halve_vectors_compute_in_256_bits(monkeypatch):
    monkeypatch.setattr(jit, "halves_vectors", HALVES)
    for processor, width, fits in (("znver3", 8, True), ("znver4", 16, True),
                                   ("sapphirerapids", 16, False)):  # fmt: skip
        with monkeypatch.context() as patch:
            facts = jit._Facts("", processor, "+avx,+avx512f" if width == 16 else "+avx")
            patch.setattr(jit, "_facts", lambda facts=facts: facts)
            patch.setattr(jit, "vector_width", lambda width=width: width)
            assert fits_processor() is fits, processor


# -- programs --------------------------------------------------------------------------------------

CPU = symdnn.Mode(target="cpu")
with_onednn = pytest.mark.skipif(bool(library.problem()), reason="oneDNN is missing")


def network(rng):
    """Two convolutions with an addend, and the parameters."""
    x = T.tensor("float32", (None, 16, 12, 12), name="x")
    ws = [symdnn.shared(rng.normal(size=(16, 16, 3, 3)).astype("f") / 9, name="w") for _ in "ab"]
    y = T.nnet.relu(T.nnet.conv2d(x, ws[0], border_mode=1))
    return x, ws, T.nnet.relu(T.nnet.conv2d(y, ws[1], border_mode=1) + x)


@with_onednn
def test_parameters_that_change_are_packed_again(rng):
    x, ws, y = network(rng)
    f = symdnn.function([x], y, mode=CPU)
    plain = symdnn.function([x], y, mode=CPU.excluding("onednn"))
    given = rng.normal(size=(2, 16, 12, 12)).astype("f")
    for step in range(12):
        if step in (5, 6, 9):
            ws[step % 2].set_value(rng.normal(size=(16, 16, 3, 3)).astype("f") / 9)
        if step == 8:
            ws[0].set_value(ws[0].get_value() * 2)
        close(f(given), plain(given))
    assert str(f.lowering_report()).count("llvm.conv") == 2
    assert "direct" in str(f.dnn_report())
    held = ws[1].get_value(borrow=True)
    for _ in range(4):
        held *= 1.5  # what a user holds may change at any time
        close(f(given), plain(given))


@with_onednn
def test_rows_of_taps_that_change_are_packed_again(rng):
    x = T.tensor("float32", (2, 20, 20, 3), name="x")
    w = symdnn.shared(rng.normal(size=(32, 3, 3, 3)).astype("f"), name="w")
    y = T.nnet.conv2d(x.dimshuffle(0, 3, 1, 2), w, filter_flip=False, subsample=(2, 2))
    f, plain = (symdnn.function([x], T.nnet.relu(y), mode=m)
                for m in (CPU, CPU.excluding("onednn")))  # fmt: skip
    given = rng.normal(size=(2, 20, 20, 3)).astype("f")
    for step in range(9):
        if step in (4, 6):
            w.set_value(rng.normal(size=(32, 3, 3, 3)).astype("f"))
        close(f(given), plain(given))
    assert str(f.lowering_report()).count("llvm.conv") == 1


@with_onednn
def test_training_has_the_gradients_of_the_plain_program(rng):
    x, ws, y = network(rng)
    loss = (y**2).mean()
    updates = [(w, w - 0.1 * g) for w, g in zip(ws, T.grad(loss, ws))]
    given = rng.normal(size=(4, 16, 12, 12)).astype("f")
    first = [w.get_value() for w in ws]
    losses = []
    for mode in (CPU, CPU.excluding("onednn")):
        for w, value in zip(ws, first):
            w.set_value(value)
        step = symdnn.function([x], loss, updates=updates, mode=mode)
        losses.append([float(step(given)) for _ in range(6)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
