"""Other shapes of the same elements, against NumPy."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, ShapeMismatch, TypeMismatch

X = np.arange(120.0).reshape(2, 3, 4, 5)


def run(module, value=X, known=True):
    x = T.TensorType(value.dtype.name, value.shape if known else (None,) * value.ndim)("x")
    return symdnn.function([x], module(x))(value)


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize(
    ("module", "value", "shape"),
    [
        (nn.View(60), X, (2, 60)), (nn.View(3, 20), X, (2, 3, 20)), (nn.View(-1), X, (120,)),
        (nn.View(-1, 10), X, (12, 10)), (nn.View([12, 5]), X, (2, 12, 5)),
        (nn.View(-1).setNumInputDims(3), X, (2, 60)),
        (nn.View(-1).setNumInputDims(3), X[0], (60,)),
        (nn.View(5).setNumInputDims(1), X, (24, 5)), (nn.View(60), X[:1], (1, 60)),
        (nn.View(6), X[0, 0, 0, :2].repeat(3), (6,)),
        (nn.Reshape(12, 5), X, (2, 12, 5)), (nn.Reshape(12, 5, batchMode=True), X, (2, 12, 5)),
        (nn.Reshape(24, 5, batchMode=False), X, (24, 5)), (nn.Reshape(24, 5, False), X, (24, 5)),
        (nn.Flatten(), X, (2, 60)), (nn.Flatten(0), X, (120,)), (nn.Flatten(1, 2), X, (2, 12, 5)),
        (nn.Flatten(), X[0, 0, 0], (5,)),
    ],
)  # fmt: skip
def test_reshaping(module, value, shape, known):
    np.testing.assert_array_equal(run(module, value, known), value.reshape(shape))


def test_a_view_of_known_sizes_that_is_no_batch():
    np.testing.assert_array_equal(run(nn.View(120)), X.ravel())
    np.testing.assert_array_equal(run(nn.View(5)), X.reshape(24, 5))
    with pytest.raises(ShapeMismatch, match="View: wanted a multiple of 7 elements"):
        run(nn.View(7))
    with pytest.raises(ShapeMismatch):
        run(nn.View(7), known=False)


@pytest.mark.parametrize(
    ("module", "wanted"),
    [
        (nn.Identity(), X), (nn.Contiguous(), X),
        (nn.Transpose((0, 1), (1, 3)), X.swapaxes(0, 1).swapaxes(1, 3)),
        (nn.Unsqueeze(1), X[:, None]), (nn.Unsqueeze(-1), X[..., None]),
        (nn.Unsqueeze(0, 3), X[:, None]), (nn.Unsqueeze(0, 4), X[None]),
        (nn.Select(1, 2), X[:, 2]), (nn.Select(-1, -1), X[..., -1]),
        (nn.Narrow(2, 1, 2), X[:, :, 1:3]), (nn.Narrow(2, 1, -1), X[:, :, 1:]),
        (nn.Replicate(3), np.stack([X, X, X])), (nn.Replicate(2, 1), np.stack([X, X], 1)),
        (nn.Mean(1), X.mean(1)), (nn.Sum(2, True), X.sum(2, keepdims=True)),
        (nn.Max(-1), X.max(-1)), (nn.Min(0), X.min(0)),
        (nn.SpatialZeroPadding(1, 2, 3, 0), np.pad(X, ((0, 0), (0, 0), (3, 0), (1, 2)))),
        (nn.SpatialZeroPadding(-1, 0, 0, -2), X[:, :, :-2, 1:]),
        (nn.SpatialZeroPadding(1), np.pad(X, ((0, 0), (0, 0), (1, 1), (1, 1)))),
        (nn.SpatialUpSamplingNearest(2), X.repeat(2, 2).repeat(2, 3)),
        (nn.MulConstant(2, True), 2 * X), (nn.AddConstant(2), X + 2), (nn.Power(2), X**2),
        (nn.Square(), X**2), (nn.Sqrt(), np.sqrt(X)), (nn.Abs(), X), (nn.Exp(), np.exp(X)),
        (nn.Clamp(3, 7), X.clip(3, 7)),
    ],
    ids=lambda v: repr(v) if isinstance(v, nn.Module) else "",
)  # fmt: skip
def test_as_numpy(module, wanted):
    np.testing.assert_allclose(run(module), wanted, rtol=1e-12)


def test_logarithms():
    np.testing.assert_allclose(run(nn.Log(), X + 1), np.log(X + 1))


def test_squeezing():
    np.testing.assert_array_equal(run(nn.Squeeze(), X[:, :1, :1]), X[:, 0, 0])
    np.testing.assert_array_equal(run(nn.Squeeze(2), X[:, :1, :1]), X[:, :1, 0])
    np.testing.assert_array_equal(run(nn.Squeeze(0, 3), X[:, :1]), X[:, 0])


@pytest.mark.parametrize("known", [True, False])
def test_bilinear_enlarging_puts_pixels_between_pixels(known):
    """Torch7's: ``scale - 1`` new ones, and none beside the outermost."""
    x = T.TensorType("float64", X.shape if known else (None,) * 4)("x")
    module = nn.SpatialUpSamplingBilinear(3)
    value = symdnn.function([x], module(x))(X)
    assert value.shape == (2, 3, 10, 13)
    np.testing.assert_allclose(value[:, :, ::3, ::3], X, rtol=1e-12)
    np.testing.assert_allclose(value[:, :, ::3, 1:-1:3], (2 * X[..., :-1] + X[..., 1:]) / 3)
    np.testing.assert_allclose(value[:, :, 2:-1:3, ::3], (X[:, :, :-1] + 2 * X[:, :, 1:]) / 3)
    sized = nn.SpatialUpSamplingBilinear(owidth=13, oheight=10)
    np.testing.assert_allclose(symdnn.function([x], sized(x))(X), value, rtol=1e-12)
    assert (repr(module), repr(sized)) == (
        "nn.SpatialUpSamplingBilinear(3)", "nn.SpatialUpSamplingBilinear(owidth=13, oheight=10)",
    )  # fmt: skip
    for wrong in ({}, {"scale": 2, "owidth": 3}, {"oheight": 3}):
        with pytest.raises(InputError, match="wanted scale, or owidth and oheight"):
            nn.SpatialUpSamplingBilinear(**wrong)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (nn.View(-1, 10), "nn.View(-1, 10)"), (nn.Reshape(16, 5, 5), "nn.Reshape(16x5x5)"),
        (nn.Transpose((0, 1), (1, 2)), "nn.Transpose((0, 1), (1, 2))"),
        (nn.SpatialZeroPadding(1, 2, 3, 4), "nn.SpatialZeroPadding(l=1, r=2, t=3, b=4)"),
        (nn.Select(1, 2), "nn.Select(1, 2)"), (nn.Flatten(), "nn.Flatten"),
        (nn.JoinTable(1), "nn.JoinTable(1)"), (nn.LookupTable(9, 4), "nn.LookupTable(9 -> 4)"),
        (nn.Linear(9, 4, False), "nn.Linear(9 -> 4) without bias"),
        (nn.ClippedReLU(6), "nn.ClippedReLU(6)"), (nn.LeakyReLU(0.1), "nn.LeakyReLU(0.1)"),
        (nn.HardTanh(), "nn.HardTanh(-1, 1)"), (nn.SoftMax(True), "nn.SoftMax"),
    ],
)  # fmt: skip
def test_printing(module, text):
    assert repr(module) == text


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: nn.View(), InputError, "wanted sizes of 1 or more"),
        (lambda x: nn.View(-1, -1), InputError, "at most one -1"),
        (lambda x: nn.View(0), InputError, "wanted sizes of 1 or more"),
        (lambda x: nn.Flatten(5)(x), TypeMismatch, "the axes 5 to -1"),
        (lambda x: nn.Flatten(2, 1)(x), InputError, "start_dim=2 is after end_dim=1"),
        (lambda x: nn.Select(4, 0)(x), TypeMismatch, "Select: wanted a tensor with an axis 4"),
        (lambda x: nn.Linear(6, 2)(x), TypeMismatch, r"a float tensor \(..., 6\)"),
        (lambda x: nn.Linear(0, 2), InputError, "inputSize, outputSize: wanted an int, 1"),
        (lambda x: nn.LookupTable(6, 2)(x), TypeMismatch, "integer tensor of indices smaller"),
        (lambda x: nn.LookupTable(6, 2, 6), InputError, "paddingValue=6 is no row of 6"),
        (lambda x: nn.ReLU()(T.imatrix()), TypeMismatch, "ReLU: wanted a float tensor"),
        (lambda x: nn.ClippedReLU(0), InputError, "wanted a ceiling above 0"),
        (lambda x: nn.HardTanh(1, 0), InputError, "min_value < max_value"),
        (lambda x: nn.SoftPlus(0), InputError, "wanted beta above 0"),
        (lambda x: nn.SoftShrink(-1), InputError, "lambd of 0 or more"),
        (lambda x: nn.GELU("erf"), InputError, "wanted approximate='none' or 'tanh'"),
        (lambda x: nn.PReLU(3)(T.vector()), TypeMismatch, r"\(batch, planes, ...\)"),
        (lambda x: nn.SoftMax(dim=4)(x), TypeMismatch, "an axis 4"),
        (lambda x: nn.SpatialSoftMax()(T.matrix()), TypeMismatch, "SpatialSoftMax: wanted"),
        (lambda x: nn.SpatialReflectionPadding(-1), InputError, "widths of 0 or more"),
        (lambda x: nn.SpatialUpSamplingNearest(0), InputError, "scale: wanted an int, 1"),
        (lambda x: nn.Conv2d(3, 4, 3, padding_mode="x"), InputError, "one of zeros"),
        (lambda x: nn.InstanceNorm2d(2, momentum=2), InputError, "momentum=2; wanted a number"),
        (lambda x: nn.Upsample(2, mode="box"), InputError, "one of nearest"),
    ],
)
def test_what_does_not_fit(call, error, message):
    with pytest.raises(error, match=message):
        call(T.TensorType("float32", (2, 3, 4, 5))("x"))


def test_an_index_out_of_range_is_an_error_of_the_call():
    i = T.lvector("i")
    f = symdnn.function([i], nn.LookupTable(4, 2)(i))
    with pytest.raises(IndexError):
        f(np.array([0, 4]))
