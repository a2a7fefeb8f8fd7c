"""The spatial transformer by our own deterministic kernels.

They run calls that cuDNN does not: more channels, and ``deterministic=more``, where the two
gradients of ``cudnnSpatialTf*Backward`` varied from call to call. The gradient of the image is
summed in integers (units of 2**-k of the largest cotangent of each image), so that any order of
additions gives the same bits. An image with an infinite or NaN cotangent gets NaN everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import CudaKernel, KernelLaunch, View, Views, blocks_for, scratch
from symdnn.gpu.kernels.copy import fill
from symdnn.graph.kernel import Call, Row
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.nn.spatial_transformer import (
    TransformerGrid,
    TransformerGridGrad,
    TransformerSampler,
    TransformerSamplerGrad,
)

_THREADS = 256
_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_POINTER_FIELDS = ("theta", "grid", "image", "dy", "y", "dgrid", "peaks", "sums")


def _launch(
    name: str, views: dict[str, View], sizes: Sequence[int], threads: int, blocks: int | None = None
) -> list[KernelLaunch]:
    """One kernel; ``sizes`` are n, channels, height, width, rows, columns."""
    if threads == 0:
        return []
    dtype = next(iter(views.values())).dtype
    source = specialised(
        "scalar.cuh", "transformer.cu", T=CTYPES[dtype],
        W=CTYPES[work_dtype(dtype)],
    )  # fmt: skip
    some = next(iter(views.values())).pointer
    pointers = [views[f].pointer if f in views else some for f in _POINTER_FIELDS]
    grid = (blocks_for(threads, _THREADS) if blocks is None else blocks,)
    return [KernelLaunch(source, name, grid, (_THREADS,), (*pointers, *sizes))]


class TransformerKernel(CudaKernel):
    """Base of the four kernels."""

    name = "cuda.transformer"
    contiguous_inputs = True

    def refuses(self, call: Call) -> str | None:
        """Any dtype that is no float."""
        dtype = call.outputs[0].dtype
        return None if dtype in _FLOATS else f"it has no code for {dtype}"


class GridKernel(TransformerKernel):
    """The grid of matrices."""

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """A thread for each point."""
        (grid,) = outputs
        n, rows, columns, _ = grid.shape
        views = {"theta": inputs[0], "grid": grid}
        return _launch("make_grid", views, (n, 1, 1, 1, rows, columns), n * rows * columns)


class GridGradKernel(TransformerKernel):
    """The gradient of the matrices."""

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """A block for each image."""
        (dgrid,) = inputs
        n, rows, columns, _ = dgrid.shape
        views = {"theta": dgrid, "grid": outputs[0]}
        blocks = max(1, min(n, 65535))
        return _launch("grid_gradient", views, (n, 1, 1, 1, rows, columns), n, blocks)


def _sizes(image: View, grid: View) -> tuple[int, ...]:
    return (*image.shape, *grid.shape[1:3])


class SamplerKernel(TransformerKernel):
    """The sampled image."""

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """A thread for each point, for all channels."""
        image, grid = inputs
        if image.size == 0:
            return fill(outputs[0], 0)
        views = {"image": image, "grid": grid, "y": outputs[0]}
        return _launch("sample", views, _sizes(image, grid), prod(grid.shape[:3]))


class SamplerGradKernel(TransformerKernel):
    """The gradients of image and grid."""

    def workspace_bytes(self, call: Call) -> int:
        """8 bytes for each image and each pixel."""
        shape = call.inputs[0].shape
        return 8 * (int(shape[0]) + prod(shape))

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """Zeros, the largest cotangents, sums in integers and the grid's gradient, the image's."""
        image, grid, dy = inputs
        dimage, dgrid = outputs
        if image.size == 0 or dy.size == 0:
            return [*fill(dimage, 0), *fill(dgrid, 0)]
        n = image.shape[0]
        peaks, sums = scratch(0, "uint64", (n,)), scratch(8 * n, "int64", image.shape)
        views = {
            "image": image, "grid": grid, "dy": dy, "y": dimage, "dgrid": dgrid, "peaks": peaks,
            "sums": sums,
        }  # fmt: skip
        sizes = _sizes(image, grid)
        return [
            *fill(scratch(0, "int64", (n + image.size,)), 0),
            *_launch("find_peaks", views, sizes, dy.size),
            *_launch("sample_gradient", views, sizes, prod(grid.shape[:3])),
            *_launch("collect", views, sizes, image.size),
        ]


KERNELS: tuple[Row, ...] = (
    ((TransformerGrid,), (GridKernel(),)),
    ((TransformerGridGrad,), (GridGradKernel(),)),
    ((TransformerSampler,), (SamplerKernel(),)),
    ((TransformerSamplerGrad,), (SamplerGradKernel(),)),
)
