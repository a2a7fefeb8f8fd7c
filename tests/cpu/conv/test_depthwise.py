"""Depthwise convolutions of planes: values, borders, what is refused, what a program becomes."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.conv.depthwise import DepthwiseKernel
from symdnn.cpu.conv.depthwise_ir import ACTIVATIONS
from symdnn.cpu.onednn import library
from symdnn.graph.kernel import Call
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight
from symdnn.ops.vendor.onednn import OneDnnConv, OneDnnConvGradI, OneDnnConvGradW
from tests.cpu.harness import call_of, compiled, launched
from tests.seeded import new_rng

pytestmark = compiled


def both(op, *arrays):
    """The kernel's result, and the neutral op's on operands of float64."""
    types = [TensorType(a.dtype.name, a.shape) for a in arrays]
    (out,) = op.output_types(types)
    host = {i: int(a) for i, a in enumerate(arrays) if a.ndim == 0}
    (shape,) = op.shapes(types, [a.shape for a in arrays], host)
    call = call_of(op, arrays, out.with_shape(shape))
    taken = (None, "oneDNN is as fast for few contiguous channels")
    (made,) = launched(DepthwiseKernel(), call, arrays, taken)
    wide = [a.astype("float64") if a.dtype == "float32" else a for a in arrays]
    (wanted,) = op.compute(*wide)
    return made, wanted


def last(a):
    """Images of four dimensions with channels last; kernels and sizes as they are."""
    return np.ascontiguousarray(a.transpose(0, 2, 3, 1)) if a.ndim == 4 else a


def check(rng, x, conv, kernel, multiplier=1):
    """All three directions of one geometry, images of shape ``x``, in both orders.

    Of volumes the gradient of the filters is another kernel's.
    """
    channels = x[1]
    images = rng.normal(size=x).astype("f")
    w = rng.normal(size=(channels * multiplier, 1, *kernel)).astype("f")
    dy = rng.normal(size=Conv(*conv).reference(images, w).shape).astype("f")
    sizes, widths = ([np.asarray(n) for n in given] for given in (x[2:], kernel))
    to_images = ConvGradInput(*conv, static=tuple(x[2:]))
    to_kernels = ConvGradWeight(*conv, static=tuple(kernel))
    layouts = {"NCHW": lambda a: a} | ({"NHWC": last} if len(x) == 4 and multiplier == 1 else {})
    for layout, lay in layouts.items():
        for op, operands in (
            (OneDnnConv(Conv(*conv), layout=layout), (lay(images), w)),
            (OneDnnConvGradI(to_images, layout=layout), (w, lay(dy), *sizes)),
            (OneDnnConvGradW(to_kernels, layout=layout), (lay(images), lay(dy), *widths)),
        )[: 2 if len(kernel) == 3 else 3]:
            made, wanted = both(op, *operands)
            np.testing.assert_allclose(made, wanted, rtol=2e-5, atol=1e-5 * np.abs(wanted).max())


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_all_geometries(data):
    number = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    ndim = number(1, 3)
    kernel = tuple(number(1, 5) for _ in range(ndim))
    stride, dilation = (tuple(number(1, 3) for _ in range(ndim)) for _ in range(2))
    pad = tuple((number(0, 3), number(0, 3)) for _ in range(ndim))
    channels = data.draw(st.sampled_from([2, 3, 16, 21, 50]))
    shape = (number(1, 3), channels, *(number(1, 40 if ndim < 3 else 14) for _ in range(ndim)))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
    assume(all(n + a + b >= r for n, (a, b), r in zip(shape[2:], pad, reach)))
    conv = (pad, stride, dilation, shape[1], data.draw(st.booleans()))
    rng = np.random.default_rng(number(0, 99))
    check(rng, shape, conv, kernel, number(1, 2))


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pad"),
    [
        ((56, 56), 3, 1, 1), ((57, 131), 3, 2, 1), ((7, 7), 3, 1, 1), ((14, 14), 5, 1, 2),
        ((30, 99), 7, 1, 3), ((40, 41), 3, 4, 0), ((20, 300), 5, 2, 4),
        pytest.param((33, 64), 11, 1, 5, marks=pytest.mark.slow),  # its kernels compile slowly
    ],
)  # fmt: skip
def test_sizes_of_networks(size, kernel, stride, pad):
    conv = (((pad, pad),) * 2, (stride,) * 2, (1, 1), 18, False)
    check(new_rng(), (2, 18, *size), conv, (kernel, kernel))


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "pad"),
    [
        ((3, 3, 3), 1, 1, 1), ((1, 3, 3), 1, 1, 1), ((3, 1, 1), 1, 1, 1), ((5, 5, 5), 1, 1, 2),
        ((3, 3, 3), 2, 1, 1), ((2, 3, 4), 3, 2, 3),
    ],
)  # fmt: skip
def test_volumes(rng, kernel, stride, dilation, pad):
    conv = (((pad, pad),) * 3, (stride,) * 3, (dilation,) * 3, 6, False)
    for multiplier in (1, 2):
        check(rng, (2, 6, 8, 11, 21), conv, kernel, multiplier)


@pytest.mark.parametrize("flip", [False, True])
def test_one_channel_has_one_group(rng, flip):
    check(rng, (2, 1, 1300), (((8, 8),), (1,), (1,), 1, flip), (9,))
    check(rng, (3, 1, 70), (((2, 0),), (2,), (3,), 1, flip), (4,))
    two = call_of(
        OneDnnConv(Conv(((0, 0),), (1,), (1,), 1, flip)),
        tuple(rng.normal(size=s).astype("f") for s in ((2, 1, 90), (2, 1, 3))),
        TensorType("float32", (2, 2, 88)),
    )
    assert DepthwiseKernel().refuses(two)


def test_volumes_have_an_epilogue(rng):
    x, w, z = (
        rng.normal(size=s).astype("f")
        for s in ((2, 3, 5, 6, 19), (3, 1, 3, 3, 3), (2, 3, 5, 6, 19))
    )
    b = rng.normal(size=(1, 3, 1, 1, 1)).astype("f")
    conv = Conv(((1, 1),) * 3, (1,) * 3, (1,) * 3, 3, True)
    op = OneDnnConv(conv).ending(bias=True, residual=1.0, activation="relu")
    made, wanted = both(op, x, w, z, b)
    np.testing.assert_allclose(made, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["", *ACTIVATIONS])
@pytest.mark.parametrize("multiplier", [1, 2])
def test_what_follows(rng, residual, bias, activation, multiplier):
    c = 21 * multiplier
    x, w, z, b = (
        rng.normal(size=s).astype("f")
        for s in ((2, 21, 9, 37), (c, 1, 3, 3), (2, c, 9, 37), (1, c, 1, 1))
    )
    conv = Conv(((1, 1), (1, 1)), (1, 1), (1, 1), 21, False)
    words = {"residual": residual, "bias": bias, "activation": activation}
    more = [a for a, on in ((z, residual), (b, bias)) if on]
    made, wanted = both(OneDnnConv(conv).ending(**words), x, w, *more)
    np.testing.assert_allclose(made, wanted, rtol=2e-5, atol=2e-5)
    if multiplier == 1:
        op = OneDnnConv(conv, layout="NHWC").ending(**words)
        made, wanted = both(op, last(x), w, *map(last, more))
        np.testing.assert_allclose(made, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_addend_may_be_overwritten(rng, layout):
    x, w, z = (
        rng.normal(size=s).astype("f") for s in ((2, 3, 21, 37), (3, 1, 3, 3), (2, 3, 21, 37))
    )
    if layout == "NHWC":
        x, z = last(x), last(z)
    conv = Conv(((1, 1), (1, 1)), (1, 1), (1, 1), 3, False)
    op = OneDnnConv(conv, layout=layout).ending(residual=1.0)
    (wanted,) = op.compute(*(a.astype("float64") for a in (x, w, z)))
    types = tuple(TensorType("float32", a.shape) for a in (x, w, z))
    DepthwiseKernel().bind(Call(op, types, types[2:], NO_HINTS))([x, w, z], [z])
    np.testing.assert_allclose(z, wanted, rtol=2e-5, atol=2e-5)


def test_operands_that_do_not_lie_densely(rng):
    x = rng.normal(size=(4, 19, 18, 2)).astype("f").transpose(3, 0, 1, 2)
    w = rng.normal(size=(4, 1, 3, 6)).astype("f")[..., ::2]
    made, wanted = both(OneDnnConv(Conv(((0, 0), (2, 1)), (1, 1), (1, 1), 4, True)), x, w)
    np.testing.assert_allclose(made, wanted, rtol=2e-5, atol=2e-5)


def test_what_is_not_a_number_stays_where_it_is():
    """Lanes beyond a border, and results that dy does not have, must not meet it."""
    x = np.ones((1, 2, 6, 22), "f")
    x[0, 0, 3, 21] = np.nan
    same = ((1, 1), (1, 1)), (1, 1), (1, 1), 2, False
    w = np.ones((2, 1, 3, 3), "f")
    valid = ((0, 0), (0, 0)), (2, 2), (1, 1), 2, False
    dy = np.ones((1, 2, 2, 10), "f")  # the last column of x is in no window
    sizes = [np.asarray(3)] * 2
    for layout, lay in (("NCHW", lambda a: a), ("NHWC", last)):
        made, wanted = both(
            OneDnnConv(Conv(*same), layout=layout).ending(activation="relu"), lay(x), w
        )
        np.testing.assert_array_equal(made, wanted)
        grad = OneDnnConvGradW(ConvGradWeight(*valid, static=(3, 3)), layout=layout)
        made, wanted = both(grad, lay(x), lay(dy), *sizes)
        assert np.isfinite(wanted).all()
        np.testing.assert_allclose(made, wanted)


@pytest.mark.parametrize("count", [1, 2])
def test_threads(count):
    with config.change_flags(**{"openmp.threads": count}):
        conv = (((1, 1), (1, 1)), (1, 1), (1, 1), 40, False)
        check(new_rng(), (3, 40, 33, 50), conv, (3, 3))


def refusal(x, w, groups, layout="NCHW", dtype="float32", **words):
    op = OneDnnConv(Conv(((0, 0), (0, 0)), (1, 1), (1, 1), groups, False), layout=layout).ending(
        **words
    )
    types = TensorType(dtype, x), TensorType(dtype, w)
    (out,) = op.output_types(types)
    return DepthwiseKernel().refuses(Call(op, types, (out,), NO_HINTS))


def test_what_is_refused():
    x, w = (2, 4, 8, 8), (4, 1, 3, 3)
    assert refusal(x, w, 4) is None
    assert refusal((2, 8, 8, 4), w, 4, layout="NHWC") is None
    assert "one result" in refusal((2, 8, 8, 4), (8, 1, 3, 3), 4, layout="NHWC")
    assert "fewer weights" in refusal((1, 9, 9, 8000), (8000, 1, 3, 3), 8000, layout="NHWC")
    assert "groups" in refusal(x, (4, 4, 3, 3), 1)
    assert "groups" in refusal(x, (4, 2, 3, 3), 2)
    assert "float32" in refusal(x, w, 4, dtype="float64")
    assert "tanh" in refusal(x, w, 4, activation="tanh")
    assert "empty" in refusal((0, 4, 8, 8), w, 4)
    assert "weights" in refusal((2, 4, 20, 20), (4, 1, 12, 12), 4)
    with config.change_flags(**{"cpu.compile": "auto"}):
        assert "too little" in refusal((2, 2, 5, 5), (2, 1, 3, 3), 2)
    with config.change_flags(**{"cpu.compile": "never"}):
        assert "never" in refusal((2, 2, 5, 5), (2, 1, 3, 3), 2)


# -- programs --------------------------------------------------------------------------------------

CPU = symdnn.Mode(target="cpu")
with_onednn = pytest.mark.skipif(bool(library.problem()), reason="oneDNN is missing")


def kernels_of(f):
    """Which kernels run the convolutions."""
    lines = str(f.lowering_report()).splitlines()
    return [line.split()[2] for line in lines if " OneDnnConv" in line]


def parts(rng, channels=24):
    x = T.ftensor4("x")
    w = symdnn.shared(rng.normal(size=(channels, 1, 3, 3)).astype("f"), name="w")
    b = symdnn.shared(rng.normal(size=channels).astype("f"), name="b")
    y = T.nnet.conv2d(x, w, border_mode=1, num_groups=channels) + b.dimshuffle("x", 0, "x", "x")
    return x, w, b, T.nnet.relu(y)


@with_onednn
def test_alone_it_stays_in_the_programs_order(rng):
    x, w, b, y = parts(rng)
    f = symdnn.function([x], [y, *T.grad((y**2).sum(), [x, w, b])], mode=CPU)
    given = rng.normal(size=(3, 24, 20, 21)).astype("f")
    made = f(given)
    assert kernels_of(f) == ["llvm.depthwise"] * 3
    assert "Reorder" not in str(f.lowering_report())
    assert "depthwise" in str(f.dnn_report())
    plain = symdnn.function(
        [x], [y, *T.grad((y**2).sum(), [x, w, b])], mode=CPU.excluding("onednn")
    )
    for a, e in zip(made, plain(given)):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5 * np.abs(e).max())


@with_onednn
def test_among_others_it_has_channels_last(rng):
    x, _, _, y = parts(rng)
    before, after = (
        symdnn.shared(rng.normal(size=s).astype("f")) for s in ((24, 16, 1, 1), (16, 24, 1, 1))
    )
    image = T.ftensor4("image")
    whole = symdnn.clone(y, {x: T.nnet.relu(T.nnet.conv2d(image, before))})
    f = symdnn.function([image], T.nnet.conv2d(whole, after), mode=CPU)
    f(rng.normal(size=(2, 16, 20, 20)).astype("f"))
    first, depthwise, second = kernels_of(f)
    assert depthwise == "llvm.depthwise"
    assert {first, second} <= {"onednn.conv", "llvm.conv"}
    assert str(f.lowering_report()).count("layout=NHWC") == 3


@with_onednn
def test_images_that_are_shown_keep_their_order(rng):
    x, _, _, y = parts(rng)
    seen = T.ftensor4("seen")
    out = symdnn.clone(y, {x: seen.dimshuffle(0, 3, 1, 2)}).dimshuffle(0, 2, 3, 1)
    f = symdnn.function([seen], out, mode=CPU)
    f(rng.normal(size=(2, 20, 20, 24)).astype("f"))
    assert kernels_of(f) == ["llvm.depthwise"]
    assert "Reorder" not in str(f.lowering_report())
