"""The spatial transformer by kernels of our own: their text on a CPU, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.kernels import spatial_transformer as k
from symdnn.graph.kernel import Call, kernels_for
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.nn.spatial_transformer import (
    TransformerGrid,
    TransformerGridGrad,
    TransformerSampler,
    TransformerSamplerGrad,
)
from tests.gpu import emulator
from tests.gpu.recorder import CAPABILITIES
from tests.seeded import new_rng

GRID, GRID_GRAD = k.GridKernel(), k.GridGradKernel()
SAMPLER, SAMPLER_GRAD = k.SamplerKernel(), k.SamplerGradKernel()
TOLERANCE = {"float16": 5e-3, "bfloat16": 4e-2, "float32": 2e-5, "float64": 1e-11}
# batch, channels, height, width, rows and columns of the grid
SIZES = [(2, 3, 5, 7, 4, 6), (1, 1, 1, 1, 3, 2), (3, 2, 6, 1, 1, 5), (2, 19, 9, 8, 40, 30)]
needs_gpp = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")


def call(op, outputs, *arrays):
    types = tuple(TensorType(a.dtype, a.shape) for a in arrays)
    return Call(op, types, tuple(TensorType(a.dtype, a.shape) for a in outputs), NO_HINTS)


def check(kernel, op, *arrays):
    """Both by the reference and by the kernel; the kernel's results."""
    want = op.compute(*arrays)
    made = call(op, want, *arrays)
    assert kernel.refuses(made) is None
    given = [a if a.ndim == 0 else emulator.device_copy(a)[1] for a in arrays]
    got, _ = emulator.run(kernel, made, given)
    tol = TOLERANCE[str(want[0].dtype)]
    for a, b in zip(got, want, strict=True):
        scale = max(1.0, float(np.nanmax(np.abs(np.float64(b)), initial=0)))
        np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=tol, atol=tol * scale)
    return got


def operands(size, dtype):
    """Image, grid (some points outside), cotangent of the sampled image."""
    n, channels, height, width, rows, columns = size
    rng, kind = new_rng(), numpy_dtype(dtype)
    return [
        rng.standard_normal((n, channels, height, width)).astype(kind),
        rng.uniform(-1.3, 1.3, (n, rows, columns, 2)).astype(kind),
        rng.standard_normal((n, channels, rows, columns)).astype(kind),
    ]


@needs_gpp
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_grids_samples_and_gradients(dtype, size):
    image, grid, dy = operands(size, dtype)
    theta = new_rng().standard_normal((size[0], 2, 3)).astype(image.dtype)
    check(GRID, TransformerGrid((None, None)), theta, *np.int64(size[4:]))
    check(GRID_GRAD, TransformerGridGrad(), grid)
    check(SAMPLER, TransformerSampler(), image, grid)
    check(SAMPLER_GRAD, TransformerSamplerGrad(), image, grid, dy)


@needs_gpp
@pytest.mark.parametrize("factor", [1e-30, 1e-3, 1e30])
def test_the_image_gradients_units_follow_the_cotangent(factor):
    image, grid, dy = operands(SIZES[3], "float32")
    dy = (dy * np.float32(factor)).astype("float32")
    dy[1] *= np.float32(1e-3)  # each image has its own units
    want, _ = TransformerSamplerGrad().compute(image, grid, dy)
    (got, _), _ = emulator.run(
        SAMPLER_GRAD, call(TransformerSamplerGrad(), [image, grid], image, grid, dy),
        [emulator.device_copy(a)[1] for a in (image, grid, dy)],
    )  # fmt: skip
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * np.abs(b).max())


@needs_gpp
def test_points_that_are_nowhere_and_cotangents_without_bound():
    image, grid, dy = operands(SIZES[0], "float64")
    grid[0, 0, 0] = np.nan, 0.3
    grid[0, 1, 1] = 1e300, -np.inf
    with np.errstate(invalid="ignore"):
        dx, dgrid = check(SAMPLER_GRAD, TransformerSamplerGrad(), image, grid, dy)
    assert np.isnan(dgrid[0, 0, 0]).any()
    dy[1, 0, 2, 2] = np.inf
    (dx, _), _ = emulator.run(
        SAMPLER_GRAD, call(TransformerSamplerGrad(), [image, grid], image, grid, dy),
        [emulator.device_copy(a)[1] for a in (image, grid, dy)],
    )  # fmt: skip
    assert np.isnan(dx[1]).all()
    assert np.isfinite(dx[0]).all()


def test_the_neutral_ops_have_them():
    for op in (TransformerGrid, TransformerGridGrad, TransformerSampler, TransformerSamplerGrad):
        assert [kernel.name for kernel in kernels_for(op, "cuda")] == ["cuda.transformer"]


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_text_compiles(capability):
    for dtype in TOLERANCE:
        image, grid, dy = operands(SIZES[0], dtype)
        made = call(TransformerSamplerGrad(), [image, grid], image, grid, dy)
        for text in SAMPLER_GRAD.sources(made):
            assert compile_cubin(text, capability)
