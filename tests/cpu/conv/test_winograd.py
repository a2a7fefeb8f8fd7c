"""Convolutions by transformed tiles: values, what is refused, threads, kernels that stay."""

import subprocess
import sys

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.conv import winograd
from symdnn.cpu.conv.direct import fits_processor
from symdnn.cpu.conv.winograd import WinogradKernel
from symdnn.cpu.conv.winograd_grad import WinogradFilterGradKernel
from symdnn.cpu.onednn import library
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight
from symdnn.ops.vendor.onednn import OneDnnConv, OneDnnConvGradI, OneDnnConvGradW, OneDnnConvolution
from tests.cpu import harness
from tests.seeded import new_rng

missing = library.problem().partition("\n")[0] or jit.problem()
if not missing and not ("AVX-512" in library.library().isa or fits_processor()):
    missing = "no AVX2"


def _widths():
    wide = not missing and "AVX-512" in library.library().isa
    return [*[256] * fits_processor(), *[512] * wide]


pytestmark = pytest.mark.skipif(bool(missing), reason=missing or "")
LAST = (0, 2, 3, 1)


@pytest.fixture(autouse=True, scope="module", params=_widths())
def vectors(request):
    """Vectors of 256 bits, and of 512 where there are such."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "fits_processor", lambda: request.param == 256)
        yield


def launched(op, *arrays):
    """The kernel's result, whatever it refuses, and the reference's on float64 operands."""
    kernel = WinogradFilterGradKernel() if isinstance(op, OneDnnConvGradW) else WinogradKernel()
    (made,) = harness.launched(kernel, harness.called(op, arrays), arrays, taken=None)
    wide = [a.astype("float64") if a.dtype == "float32" else a for a in arrays]
    (wanted,) = op.neutral().compute(*wide[: len(arrays) - _extra(op)])
    for more in wide[len(arrays) - _extra(op) :]:
        wanted = wanted + more
    return made, np.maximum(wanted, 0) if getattr(op, "activation", "") else wanted


def _extra(op):
    return bool(getattr(op, "bias", False)) + bool(getattr(op, "residual", 0))


def close(made, wanted):
    np.testing.assert_allclose(made, wanted, atol=2e-5 * wanted.std(), rtol=1e-5)


def in_layout(a, layout):
    return np.ascontiguousarray(a.transpose(LAST)) if layout == "NHWC" else a


CASES = [
    # images, kernels, size, padding, (N, rows, columns)
    (16, 16, 3, (1, 1), (2, 8, 8)),
    (32, 48, 3, (0, 0), (1, 11, 7)),
    (20, 50, 5, (0, 0), (3, 12, 9)),
    (17, 70, 5, (2, 4), (2, 7, 10)),
    (40, 31, 4, (3, 1), (2, 6, 9)),
    (64, 64, 3, (1, 1), (5, 13, 14)),
    (16, 130, 3, ((0, 2), (1, 0)), (1, 5, 6)),
]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("c", "k", "r", "pad", "sizes"), CASES)
def test_forward(rng, layout, flip, c, k, r, pad, sizes):
    n, h, w = sizes
    x = rng.normal(size=(n, c, h, w)).astype("f")
    kernels = rng.normal(size=(k, c, r, r)).astype("f")
    padding = tuple(p if isinstance(p, tuple) else (p, p) for p in pad)
    op = OneDnnConv(Conv(padding, (1, 1), (1, 1), 1, flip), layout=layout)
    close(*launched(op, in_layout(x, layout), kernels))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("c", "k", "r", "pad", "sizes"), CASES)
def test_gradient_in_the_images(rng, layout, flip, c, k, r, pad, sizes):
    n, h, w = sizes
    padding = tuple(p if isinstance(p, tuple) else (p, p) for p in pad)
    out = [s + a + b - r + 1 for s, (a, b) in zip((h, w), padding)]
    dy = rng.normal(size=(n, k, *out)).astype("f")
    kernels = rng.normal(size=(k, c, r, r)).astype("f")
    settings = (padding, (1, 1), (1, 1), 1, flip)
    op = OneDnnConvGradI(ConvGradInput(*settings, static=(h, w)), layout=layout)
    close(*launched(op, kernels, in_layout(dy, layout), np.asarray(h), np.asarray(w)))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("c", "k", "r", "pad", "sizes"), CASES)
def test_gradient_in_the_kernels(rng, layout, flip, c, k, r, pad, sizes):
    n, h, w = sizes
    padding = tuple(p if isinstance(p, tuple) else (p, p) for p in pad)
    out = [s + a + b - r + 1 for s, (a, b) in zip((h, w), padding)]
    x = rng.normal(size=(n, c, h, w)).astype("f")
    dy = rng.normal(size=(n, k, *out)).astype("f")
    settings = (padding, (1, 1), (1, 1), 1, flip)
    op = OneDnnConvGradW(ConvGradWeight(*settings, static=(r, r)), layout=layout)
    side = np.asarray(r)
    close(*launched(op, in_layout(x, layout), in_layout(dy, layout), side, side))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["", "relu"])
def test_what_follows(rng, layout, residual, bias, activation):
    x, z = (rng.normal(size=(2, c, 9, 10)).astype("f") for c in (18, 40))
    kernels = rng.normal(size=(40, 18, 3, 3)).astype("f")
    b = rng.normal(size=(1, 40, 1, 1)).astype("f")
    op = OneDnnConv(
        Conv(((1, 1), (1, 1)), (1, 1), (1, 1), 1, False), layout=layout,
    ).ending(
        residual=residual, bias=bias, activation=activation,
    )  # fmt: skip
    more = [in_layout(a, layout) for a, on in ((z, residual), (b, bias)) if on]
    close(*launched(op, in_layout(x, layout), kernels, *more))


def test_what_is_not_a_number_stays_so():
    x = np.zeros((1, 8, 8, 16), "f")
    x[0, 3, 4, 5] = np.nan
    op = OneDnnConv(
        Conv(((1, 1), (1, 1)), (1, 1), (1, 1), 1, False),
        layout="NHWC",
    ).ending(
        activation="relu",
    )
    made, _ = launched(op, x, np.ones((16, 16, 3, 3), "f"))
    assert np.isnan(made[0, 2:5, 3:6]).all()


def convolution(size=(16, 32, 24, 24), outputs=32, r=3, **words):
    x = T.ftensor4("x")
    rng = new_rng()
    w = symdnn.shared(rng.normal(size=(outputs, size[1], r, r)).astype("f"), name="w")
    y = T.nnet.conv2d(x, w, border_mode=r // 2, **words)
    grads = T.grad(None, [x, w], known_grads={y: T.tanh(y)})
    f = symdnn.function([x], [y, *grads], mode=symdnn.Mode(target="cpu"))
    return f, w, rng.normal(size=size).astype("f")


def names(f):
    return {
        c.kernel.name for p in f.plans() for n, c in p.specialised.choices.items()
        if isinstance(n.op, OneDnnConvolution)
    }  # fmt: skip


def test_it_is_chosen_where_it_gains_and_reported():
    f, _, x = convolution()
    with config.change_flags({"cpu.winograd": "never"}):
        plain, w, _ = convolution()
        w.set_value(f.get_shared()[0].get_value())
        wanted = plain(x)
    for a, b in zip(f(x), wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * b.std(), rtol=1e-5)
    assert names(f) == {"llvm.winograd"}
    assert names(plain) <= {"onednn.conv", "llvm.conv"}
    assert set(f.dnn_report().used()) == {"winograd"}


@pytest.mark.parametrize(
    "words",
    [
        {"size": (2, 32, 8, 8)},  # little to do
        {"size": (16, 8, 24, 24)},
        {"r": 1}, {"r": 7}, {"subsample": (2, 2)}, {"filter_dilation": (2, 2)},
        {"size": (2, 512, 8, 8), "outputs": 1200},  # filters that are larger than caches
    ],
)  # fmt: skip
def test_what_it_leaves_to_others(words):
    f, _, x = convolution(**words)
    f(x)
    assert "llvm.winograd" not in names(f)


def test_kernels_that_stay_are_transformed_once_and_new_ones_again():
    f, w, x = convolution()
    found = [f(x)[0] for _ in range(4)]
    for y in found[1:]:
        np.testing.assert_array_equal(y, found[0])
    w.set_value(w.get_value() * 2)
    for _ in range(3):
        np.testing.assert_allclose(f(x)[0], 2 * found[0], rtol=1e-5, atol=1e-4)


def test_the_number_of_threads_changes_no_bit():
    f, _, x = convolution()
    found = []
    for count in (1, 2, 3):
        with config.change_flags({"openmp.threads": count}):
            found.append(f(x))
    for more in found[1:]:
        for a, b in zip(found[0][:2], more, strict=False):
            np.testing.assert_array_equal(a, b)
        # Each thread sums up tiles of its own.
        np.testing.assert_allclose(more[2], found[0][2], atol=1e-5 * found[0][2].std(), rtol=1e-5)


def test_the_same_number_of_threads_gives_the_same_bits():
    f, _, x = convolution()
    with config.change_flags({"openmp.threads": 2}):
        found = [f(x) for _ in range(4)]
    for more in found[1:]:
        for a, b in zip(found[0], more, strict=True):
            np.testing.assert_array_equal(a, b)


def test_processors_with_shorter_vectors_do_without():
    program = """
import numpy as np, symdnn, symdnn.tensor as T
from symdnn.cpu.compiler import jit
jit.vector_width = lambda: 4
x, w = T.ftensor4(), symdnn.shared(np.ones((32, 32, 3, 3), "f"))
f = symdnn.function([x], T.nnet.conv2d(x, w), mode=symdnn.Mode(target="cpu"))
y = f(np.ones((16, 32, 24, 24), "f"))
assert (y == 288).all()
(plan,) = f.plans()
assert not any("winograd" in c.kernel.name for c in plan.specialised.choices.values())
"""
    env = {"ONEDNN_MAX_CPU_ISA": "AVX2", "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, "-c", program], env=env, check=True, timeout=120)
