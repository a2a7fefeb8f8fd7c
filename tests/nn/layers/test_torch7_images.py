"""Filters of each place, and local contrast, as Torch7's, by loops over the places in NumPy."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, ShapeMismatch, TypeMismatch

RNG = np.random.default_rng(8)
IMAGES = RNG.standard_normal((2, 3, 6, 7))
KERNELS = {
    "matrix": RNG.random((3, 5)),
    "vector": np.array([1.0, 2.0, 1.0]),
    "list": [[1, 1, 1]],
    "larger than the images": np.ones((9, 9)),
}


def run(module, value, known):
    x = T.TensorType("float64", value.shape if known else (None,) * value.ndim)()
    return symdnn.function([x], module(x))(value)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("more", [(), (2, 1), (1, 2, 1, 0), (1, 1, 2)])
def test_filters_of_each_place(more, known):
    module = nn.SpatialConvolutionLocal(3, 4, 7, 6, 2, 3, *more, dtype="float64")
    step_w, step_h, pad_w, pad_h = (*more, *(1, 1, 0, None)[len(more) :])
    pad_h = pad_w if pad_h is None else pad_h
    padded = np.pad(IMAGES, ((0, 0), (0, 0), (pad_h, pad_h), (pad_w, pad_w)))
    weight, bias = module.weight.get_value(), module.bias.get_value()
    wanted = np.empty((2, *bias.shape))
    for i, j in np.ndindex(bias.shape[1:]):
        window = padded[:, :, i * step_h : i * step_h + 3, j * step_w : j * step_w + 2]
        wanted[:, :, i, j] = np.einsum("nchw,ochw->no", window, weight[i, j]) + bias[:, i, j]
    np.testing.assert_allclose(run(module, IMAGES, known), wanted)
    np.testing.assert_allclose(run(module, IMAGES[0], known), wanted[0])


def mean_around(images, kernel):
    """The mean of each pixel's neighbours in all planes, of those inside, and their share."""
    weights = np.outer(kernel, kernel) if np.ndim(kernel) == 1 else np.asarray(kernel)
    weights = weights / weights.sum()
    (kh, kw), (height, width) = weights.shape, images.shape[2:]
    mean, share = np.zeros((len(images), 1, height, width)), np.zeros((height, width))
    for i, j in np.ndindex(height, width):
        for a, b in np.ndindex(kh, kw):
            y, x = i + a - kh // 2, j + b - kw // 2
            if 0 <= y < height and 0 <= x < width:
                mean[:, 0, i, j] += weights[a, b] * images[:, :, y, x].mean(1)
                share[i, j] += weights[a, b]
    return mean, share


def without_mean(images, kernel):
    mean, share = mean_around(images, kernel)
    return images - mean / share


def of_one_size(images, kernel, threshold=1e-4, other=1e-4):
    squares, share = mean_around(images**2, kernel)
    root = np.sqrt(squares) / share
    return images / np.where(root > threshold, root, other)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_local_contrast(kernel, known):
    subtracted, divided = without_mean(IMAGES, kernel), of_one_size(IMAGES, kernel, 0.9, 2)
    module = nn.SpatialSubtractiveNormalization(3, kernel)
    np.testing.assert_allclose(run(module, IMAGES, known), subtracted, atol=1e-12)
    np.testing.assert_allclose(run(module, IMAGES[0], known), subtracted[0], atol=1e-12)
    module = nn.SpatialDivisiveNormalization(3, kernel, 0.9, 2)
    np.testing.assert_allclose(run(module, IMAGES, known), divided)
    module = nn.SpatialContrastiveNormalization(3, kernel)
    np.testing.assert_allclose(run(module, IMAGES, known), of_one_size(subtracted, kernel))


@pytest.mark.parametrize(
    "module",
    [
        nn.SpatialConvolutionLocal(3, 2, 7, 6, 3, 3, 2, 2, dtype="float64"),
        nn.SpatialContrastiveNormalization(3, KERNELS["matrix"]),
        nn.SpatialDivisiveNormalization(3, KERNELS["vector"], 0.5, 1),
    ],
)
def test_gradients(module):
    symdnn.verify_grad(lambda x: module(x), [IMAGES], rng=np.random.default_rng(0))


def test_images_of_zeros_have_a_finite_gradient():
    x = T.dtensor4()
    f = symdnn.function([x], symdnn.grad(nn.SpatialContrastiveNormalization(3)(x).sum(), x))
    assert np.isfinite(f(np.zeros((1, 3, 4, 4)))).all()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: nn.SpatialConvolutionLocal(3, 2, 2, 2, 3, 3), InputError, "does not fit"),
        (lambda: nn.SpatialConvolutionLocal(2, 2, 7, 6, 3, 3)(IMAGES), TypeMismatch, "2, 6, 7"),
        (lambda: nn.SpatialConvolutionLocal(3, 2, 9, 6, 3, 3)(IMAGES), TypeMismatch, "3, 6, 9"),
        (lambda: nn.SpatialSubtractiveNormalization(3, np.ones((2, 3))), InputError, "odd sizes"),
        (lambda: nn.SpatialDivisiveNormalization(3, [1, -2, 1]), InputError, "not 0"),
        (lambda: nn.SpatialContrastiveNormalization(4)(IMAGES), TypeMismatch, "4, height, width"),
    ],
)
def test_what_does_not_fit_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_images_of_another_size_in_a_call_are_refused():
    x = T.dtensor4()
    f = symdnn.function([x], nn.SpatialConvolutionLocal(3, 2, 9, 6, 3, 3, dtype="float64")(x))
    with pytest.raises(ShapeMismatch):
        f(IMAGES)
