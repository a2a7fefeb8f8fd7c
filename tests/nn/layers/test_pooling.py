"""Pooling at sizes drawn at random, known and unknown, against windows written out."""

import itertools

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, TypeMismatch
from tests.seeded import new_rng


def windows(n, k, s, p, ceil):
    """(start, end with padding) of each window along one axis, by Torch7's rules."""
    whole = -(-(n + 2 * p - k) // s) if ceil else (n + 2 * p - k) // s
    count = whole + 1
    if ceil and (count - 1) * s >= n + p:
        count -= 1
    return [(i * s - p, min(i * s - p + k, n + p)) for i in range(count)]


def pooled(x, kernel, stride, pad, ceil, mode):
    rows = [windows(n, *a, ceil) for n, *a in zip(x.shape[2:], kernel, stride, pad, strict=True)]
    y = np.zeros((*x.shape[:2], *map(len, rows)), x.dtype)
    for at in itertools.product(*(range(len(r)) for r in rows)):
        spans = [r[i] for r, i in zip(rows, at, strict=True)]
        inside = tuple(
            slice(max(a, 0), min(b, n)) for (a, b), n in zip(spans, x.shape[2:], strict=True)
        )
        part = x[(slice(None), slice(None), *inside)].reshape(*x.shape[:2], -1)
        elements = part.shape[2] if mode == "exclude" else np.prod([b - a for a, b in spans])
        value = part.max(2) if mode == "max" else part.sum(2) / elements
        y[(slice(None), slice(None), *at)] = value
    return y


def drawn(rng, ndim):
    kernel = rng.integers(1, 5, ndim)
    pad = [int(rng.integers(0, k // 2 + 1)) for k in kernel]
    sizes = [int(rng.integers(k, k + 6)) for k in kernel]
    return sizes, tuple(map(int, kernel)), tuple(map(int, rng.integers(1, 5, ndim))), tuple(pad)


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("mode", ["max", "include", "exclude"])
@pytest.mark.parametrize("ndim", [2, 3])
def test_windows_of_all_kinds(rng, ndim, mode, known):
    names = {2: "Spatial", 3: "Volumetric"}
    for _ in range(6):
        sizes, kernel, stride, pad = drawn(rng, ndim)
        ceil = bool(rng.integers(0, 2))
        make = getattr(nn, f"{names[ndim]}{'Max' if mode == 'max' else 'Average'}Pooling")
        options = {} if mode == "max" else {"count_include_pad": mode == "include"}
        layer = make(kernel_size=kernel, stride=stride, padding=pad, ceil_mode=ceil, **options)
        value = rng.normal(size=(2, 3, *sizes))
        x = T.TensorType("float64", value.shape if known else (None,) * value.ndim)("x")
        found = symdnn.function([x], layer(x))(value)
        wanted = pooled(value, kernel, stride, pad, ceil, mode)
        np.testing.assert_allclose(
            found, wanted, rtol=1e-12, atol=1e-13, err_msg=repr((layer, sizes))
        )


@pytest.mark.parametrize(
    "layer",
    [
        nn.SpatialMaxPooling(3, 3, 2, 2, 1, 1).ceil(),
        nn.SpatialAveragePooling(3, 2, 2, 2, 1, 1).ceil(),
        nn.SpatialAveragePooling(3, 2, 2, 2, 1, 1).ceil().setCountExcludePad(),
        nn.SpatialAdaptiveMaxPooling(3, 2),
        nn.SpatialAdaptiveAveragePooling(3, 2),
    ],
    ids=repr,
)
def test_gradients_where_sizes_are_unknown(layer):
    value = new_rng().permutation(2 * 2 * 6 * 7).reshape(2, 2, 6, 7) / 10.0
    symdnn.verify_grad(layer, [value], rng=new_rng())


@pytest.mark.parametrize(("n", "m"), [(7, 3), (6, 3), (3, 5), (5, 1), (4, 4)])
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_adaptive_windows(n, m, known):
    value = new_rng().normal(size=(2, 3, n, 4))
    x = T.TensorType("float64", value.shape if known else (None,) * 4)("x")
    rows = [slice(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
    average = nn.SpatialAdaptiveAveragePooling(output_size=(m, None))(x)
    largest = nn.SpatialAdaptiveMaxPooling(output_size=(m, None))(x)
    a, b = symdnn.function([x], [average, largest])(value)
    np.testing.assert_allclose(
        a, np.stack([value[:, :, r].mean(2) for r in rows], 2), rtol=1e-12, atol=1e-13
    )
    np.testing.assert_array_equal(b, np.stack([value[:, :, r].max(2) for r in rows], 2))
    if known:
        assert average.type.shape == largest.type.shape == (2, 3, m, 4)


def test_modes_are_switched_as_in_torch7():
    layer = nn.SpatialMaxPooling(3, 3, 2, 2)
    assert repr(layer) == "nn.SpatialMaxPooling(3x3, 2,2)"
    assert layer.ceil() is layer
    assert repr(layer) == "nn.SpatialMaxPooling(3x3, 2,2, ceil)"
    assert repr(layer.floor()) == "nn.SpatialMaxPooling(3x3, 2,2)"
    layer = nn.VolumetricAveragePooling(1, 3, 2, 1, 2, 2, 0, 1, 1)
    assert repr(layer) == "nn.VolumetricAveragePooling(1x3x2, 1,2,2, 0,1,1)"
    assert layer.kernel == (1, 2, 3)
    assert not layer.setCountExcludePad().count_include_pad
    assert layer.setCountIncludePad().count_include_pad
    assert nn.SpatialMaxPooling(3, 2).stride == (2, 3)


def test_a_known_size_that_divides_evenly_is_a_plain_pooling():
    x = T.TensorType("float32", (None, 3, 8, 6))("x")
    y = nn.SpatialAdaptiveAveragePooling(3, 2)(x)
    assert type(y.owner.op).__name__ == "Pool"
    assert nn.SpatialMaxPooling(2, 2).ceil()(x).owner.op.ignore_border


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.SpatialMaxPooling(), "kW, kH or kernel_size="),
        (lambda: nn.SpatialMaxPooling(2, 2, 2, 2, 2, 2), "more than half of the window"),
        (lambda: nn.SpatialMaxPooling(2, 0), "wanted an int, 1 or more"),
        (lambda: nn.SpatialMaxPooling(2, 2, padW=-1), "wanted an int, 0 or more"),
        (lambda: nn.SpatialMaxPooling(2, 2, kernel_size=2), "by position or by keyword"),
        (lambda: nn.SpatialAdaptiveMaxPooling(0, 2), "output size: wanted an int, 1 or more"),
        (lambda: nn.SpatialAdaptiveMaxPooling(output_size=(1, 2, 3)), "or 2 of them"),
    ],
)
def test_arguments_that_do_not_fit(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    "layer", [nn.SpatialMaxPooling(2, 2), nn.SpatialAdaptiveAveragePooling(2, 2)], ids=repr
)
def test_inputs_that_do_not_fit(layer):
    for x in (T.matrix(), T.tensor5(), T.itensor4()):
        with pytest.raises(TypeMismatch, match=f"{type(layer).__name__}: wanted a float tensor"):
            layer(x)


@pytest.mark.parametrize("known", [True, False])
def test_one_average_of_all_is_a_mean(rng, known):
    x = rng.normal(size=(2, 3, 9, 7)).astype("float32")
    v = T.tensor("float32", x.shape if known else (None,) * 4)
    f = symdnn.function([v], nn.AdaptiveAvgPool2d(1)(v))
    np.testing.assert_allclose(f(x), x.mean((2, 3), keepdims=True), rtol=1e-5, atol=1e-6)
    assert not any("Pool" in type(node.op).__name__ for node in f.fgraph.toposort())
