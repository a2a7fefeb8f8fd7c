"""Which of its ways to convolve oneDNN is asked for, where they differ much."""

import re
from dataclasses import replace

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.onednn import conv, library, objects
from symdnn.cpu.onednn.conv import ConvKernel
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight
from symdnn.ops.vendor.onednn import OneDnnConv, OneDnnConvGradI, OneDnnConvGradW
from tests.cpu.harness import called, launched
from tests.seeded import new_rng

pytestmark = pytest.mark.skipif(bool(library.problem()), reason="oneDNN is missing")


def check(op, *arrays):
    """The kernel's result against the reference's in float64; what it chose."""
    call, kernel = called(op, arrays), ConvKernel()
    (made,) = launched(kernel, call, arrays)
    (wanted,) = op.compute(*(a.astype("float64") if a.ndim else a for a in arrays))
    np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
    return kernel.cached(call).choice


def directions(rng, x, w, *settings):
    """Choices forward, for the gradients in the images and the kernels, channels first."""
    images, kernels = rng.normal(size=x).astype("f"), rng.normal(size=w).astype("f")
    forward = Conv(*settings)
    dy = rng.normal(size=forward.reference(images, kernels).shape).astype("f")
    sizes, widths = map(np.asarray, x[2:]), map(np.asarray, w[2:])
    backward = ConvGradInput(*settings, static=x[2:]), ConvGradWeight(*settings, static=w[2:])
    return [
        check(OneDnnConv(forward), images, kernels),
        check(OneDnnConvGradI(backward[0]), kernels, dy, *sizes),
        check(OneDnnConvGradW(backward[1]), images, dy, *widths),
    ]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [(32, 64), (10, 7)])
def test_kernels_of_one_pixel_multiply_images_as_they_lie(stride, channels):
    rng, settings = new_rng(), (((0, 0),) * 2, (stride,) * 2, (1, 1), 1, False)
    c, k = channels
    assert directions(rng, (2, c, 17, 16), (k, c, 1, 1), *settings) == ["plain"] * 3
    assert "plain" not in directions(rng, (2, 32, 7, 7), (64, 32, 1, 1), *settings)


def test_kernels_of_one_pixel_with_something_behind_do_not(rng):
    x, w, z = (
        rng.normal(size=s).astype("f") for s in ((2, 32, 9, 9), (16, 32, 1, 1), (2, 16, 9, 9))
    )
    b = rng.normal(size=(1, 16, 1, 1)).astype("f")
    op = OneDnnConv(Conv(((0, 0),) * 2, (1, 1), (1, 1), 1, True))
    assert check(op.ending(bias=True), x, w, b) == "plain"
    assert check(op.ending(bias=True, activation="relu"), x, w, b) != "plain"
    assert check(op.ending(residual=1.0), x, w, z) != "plain"


@pytest.mark.parametrize(("c", "k"), [(1, 8), (3, 8), (16, 3), (24, 72)])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_images_of_one_pixel_have_one_plain_layout(c, k, layout, rng):
    """They are the same memory in NCHW and NHWC, and oneDNN is right in the latter alone."""
    settings = ((0, 0),) * 2, (1, 1), (1, 1), 1, False
    x, w, dy = (rng.normal(size=(*s, 1, 1)).astype("f") for s in ((2, c), (k, c), (2, k)))
    one = np.asarray(1)
    for op, *arrays in (
        (OneDnnConv(Conv(*settings)), x, w),
        (OneDnnConvGradI(ConvGradInput(*settings, static=(1, 1))), w, dy, one, one),
        (OneDnnConvGradW(ConvGradWeight(*settings, static=(1, 1))), x, dy, one, one),
    ):
        (wanted,) = op.compute(*(a.astype("float64") if a.ndim else a for a in arrays))
        if layout == "NHWC":
            op = replace(op, layout=layout)
            arrays = [a if a is w or not a.ndim else np.moveaxis(a, 1, -1).copy() for a in arrays]
            wanted = wanted if isinstance(op, OneDnnConvGradW) else np.moveaxis(wanted, 1, -1)
        call = called(op, arrays)
        found = dict(conv._candidates(call))
        assert "plain" not in found
        for name, make in found.items():
            made = np.full(wanted.shape, np.nan, "f")
            make().launcher()(arrays, [made])
            np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.skipif(
    not library.problem() and "AVX-512" not in library.library().isa, reason="no AVX-512"
)
def test_groups_are_no_products_one_after_the_other(rng):
    """oneDNN's own choice for these is one in at least one direction, twice as slow or worse."""
    for x, w, groups in (
        ((8, 12, 30, 30), (24, 6, 5, 5), 2), ((2, 16, 8, 9, 10), (16, 1, 3, 3, 3), 16),
    ):  # fmt: skip
        n = len(x) - 2
        settings = ((1, 1),) * n, (1,) * n, (1,) * n, groups, False
        assert directions(rng, x, w, *settings) == ["last"] * 3


@pytest.mark.parametrize("algo", ["guess", "time"])
def test_a_program_says_what_it_chose(rng, algo):
    x, w = T.ftensor4("x"), T.ftensor4("w")
    with config.change_flags(**{"onednn.conv.algo": algo}):
        f = symdnn.function([x, w], T.nnet.conv2d(x, w), mode=symdnn.Mode(target="cpu"))
        f(*(rng.normal(size=s).astype("f") for s in ((2, 32, 20, 20), (16, 32, 1, 1))))
        report = str(f.dnn_report())
    timed = "timed" in report and re.search(r"plain \d", report)
    assert timed if algo == "time" else " plain " in report


def test_code_that_onednn_keeps_is_bounded(monkeypatch, rng):
    """Each kernel with a post-op of a ``brg`` implementation stays for the life of the process."""
    monkeypatch.setattr(objects, "_kept_code", [0])
    monkeypatch.setattr(objects, "_MAX_KEPT_CODE", 2)
    x, w = T.tensor4("x"), symdnn.shared(rng.standard_normal((8, 16, 3, 3)).astype("float32"))
    f = symdnn.function([x], T.tanh(T.nnet.conv2d(x, w, filter_flip=False)))
    exact = T.tensor4("exact", dtype="float64")
    wide = T.tanh(T.nnet.conv2d(exact, w.astype("float64"), filter_flip=False))
    in_float64 = symdnn.function([exact], wide)
    made = []
    real = objects._without_kept_code
    monkeypatch.setattr(objects, "_without_kept_code", lambda p: made.append(real(p)) or made[-1])
    for size in range(31, 37):
        value = rng.standard_normal((1, 16, size, 9)).astype("float32")
        wanted = in_float64(value.astype("float64"))
        np.testing.assert_allclose(f(value), wanted, rtol=1e-4, atol=1e-4)
    kept = [p.implementation for p in made if p.implementation.startswith("brg")]
    assert len(kept) <= 2
    assert len(made) >= 6
