"""Kernels of sums of pixels: beside their references, in blocks and parts, with any taps."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu.reduce.pixel_sums import PixelSumsKernel
from symdnn.cpu.reduce.pixel_sums_ir import BLOCK
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.ops.written_out.pixel_sums import (
    PixelSums,
    PixelSumsGradImage,
    PixelSumsGradWeights,
)
from symdnn.ops.written_out.points import sampled
from tests.cpu.harness import call_of, launched
from tests.seeded import new_rng

SHAPES = {
    "pairs": ((2, 2), (3, 4, 5, 6), BLOCK + 9),
    "cubic": ((4, 4), (2, 3, 7, 5), 40),
    "volume": ((2, 2, 2), (2, 3, 3, 4, 5), 50),
    "nearest": ((1, 1), (3, 5, 6, 7), 2 * BLOCK),
    "one axis": ((3,), (2, 4, 9), 70),
}


def arrays(name, dtype):
    taps, shape, points = SHAPES[name]
    rng = new_rng()
    axis = [i for i, n in enumerate(taps) for _ in range(n)]
    sizes = [shape[2 + i] for i in axis]
    at = [rng.integers(-1, n + 1, (shape[0], points)).astype("int32") for n in sizes]
    weights = [rng.normal(size=a.shape).astype(dtype) for a in at] if max(taps) > 1 else []
    x = rng.normal(size=shape).astype(dtype)
    dy = rng.normal(size=(*shape[:2], points)).astype(dtype)
    return x, at, weights, dy


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels(name, dtype):
    x, at, weights, dy = arrays(name, dtype)
    taps, weighted = SHAPES[name][0], bool(weights)
    calls = [
        (PixelSums(taps, weighted), [x, *at, *weights]),
        (PixelSumsGradImage(taps, weighted), [*at, *weights, dy, x]),
    ]
    if weighted:
        calls.append((PixelSumsGradWeights(taps), [x, *at, *weights, dy]))
    rtol = 1e-4 if dtype == "float32" else 1e-11
    for op, given in calls:
        wanted = op.reference(*given)
        wanted = list(wanted) if isinstance(wanted, tuple) else [wanted]
        call = call_of(op, given, *(TensorType(dtype, w.shape) for w in wanted))
        assert PixelSumsKernel().refuses(call) is None
        for got, want in zip(launched(PixelSumsKernel(), call, given), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol, rtol)


def test_pixels_that_no_point_has_do_not_count():
    """What is not finite at the first pixel must not reach a point that is outside."""
    x = np.full((1, 1, 40, 40), np.nan, "float32")
    at = np.full((1, 2000), -1, "int32")
    found = function_of(PixelSums((1, 1), False), [x, at, at])
    np.testing.assert_array_equal(found, np.zeros((1, 1, 2000)))


def function_of(op, given):
    inputs = [Variable(TensorType(a.dtype.name, (None,) * a.ndim)) for a in given]
    return symdnn.function(inputs, op(*inputs))(*given)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_not_finite_does_not_count_where_there_is_no_pixel(dtype):
    """Neither weights, as those of NaN coordinates are, nor gradients of such a point."""
    x, at, weights, dy = arrays("pairs", dtype)
    outside = np.zeros(at[0].shape, bool)
    outside[:, ::3] = True
    for k, (place, weight) in enumerate(zip(at, weights)):
        place[outside] = -1
        weight[outside] = (np.nan, np.inf)[k % 2]
    found = function_of(PixelSums((2, 2)), [x, *at, *weights])
    finite = [np.where(outside, 0, w).astype(dtype) for w in weights]
    np.testing.assert_array_equal(found, function_of(PixelSums((2, 2)), [x, *at, *finite]))
    assert np.isfinite(found).all()
    np.copyto(dy, np.inf, where=outside[:, None])
    for slope in function_of(PixelSumsGradWeights((2, 2)), [x, *at, *finite, dy]):
        np.testing.assert_array_equal(slope[outside], 0)
        assert np.isfinite(slope).all()


def test_points_that_are_nowhere_are_zero():
    """Coordinates that are NaN or infinite have no pixels, where there are zeros outside."""
    image, y, x = T.tensor4("x", dtype="float32"), T.fmatrix("y"), T.fmatrix("x")
    bad = np.resize(np.array([np.nan, np.inf, -np.inf, 1e20], "float32"), (1, 2000))
    ones = np.ones((1, 2000), "float32")
    for mode in ("nearest", "linear", "cubic"):
        f = symdnn.function([image, y, x], sampled(image, [y, x], mode))
        for given in ((bad, ones), (ones, bad)):
            assert not f(np.ones((1, 2, 3, 4), "float32"), *given).any(), mode
