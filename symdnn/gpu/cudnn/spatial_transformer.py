"""The spatial transformer by cuDNN: grids from matrices, sampling at them, and both gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from symdnn.config import config
from symdnn.gpu import libcudnn
from symdnn.gpu.cudnn.descriptor import Descriptor, SpatialTransformerDescription, descriptor
from symdnn.gpu.cudnn.fallback import by_neutral_op, with_fallbacks
from symdnn.gpu.cudnn.kernel import (
    CudnnKernel,
    by_pieces,
    factor,
    max_rows,
    pieces,
    tensor,
)
from symdnn.gpu.cudnn.pool import too_large
from symdnn.graph.kernel import Call, Row
from symdnn.ops.vendor.gpudnn import (
    GpuDnnTransformerGradI,
    GpuDnnTransformerGradT,
    GpuDnnTransformerGrid,
    GpuDnnTransformerSampler,
)

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

_MAX_SAMPLER_CHANNELS = 1024


def sampler(dtype: str, shape: Sequence[int]) -> Descriptor:
    """The descriptor for a result of this shape (N, C, H, W)."""
    return descriptor(SpatialTransformerDescription(dtype, tuple(shape)))


@dataclass(frozen=True)
class _Grid(CudnnKernel):
    """Base of the grid and its gradient.

    cuDNN needs two points in each direction, because it divides by their number minus one.
    """

    def grid(self, call: Call) -> Any:
        """The type of the grid (N, H, W, 2)."""
        raise NotImplementedError

    def refuses_types(self, call: Call) -> str | None:
        """Dtypes, and grids of one row or column."""
        if 1 in self.grid(call).shape[1:3]:
            return "cuDNN has no coordinates for a single row or column"
        return super().refuses_types(call)

    def refuses_sizes(self, call: Call) -> str | None:
        """Grids that are too large."""
        return too_large(self.grid(call))

    def details(self, call: Call) -> str:
        """The grid."""
        return f"grid {self.grid(call)}"

    def parts(self, call: Call) -> list[tuple[int, int, Descriptor]]:
        """(start, count, descriptor) of each piece of the batch; none where it is empty."""
        grid = self.grid(call)
        n, height, width, _ = grid.shape
        if 0 in grid.shape:
            return []
        cut = pieces(n, max_rows(grid.shape))
        return [(start, m, sampler(grid.dtype, (m, 1, height, width))) for start, m in cut]


@dataclass(frozen=True)
class GridKernel(_Grid):
    """``cudnnSpatialTfGridGeneratorForward`` of (theta, H, W)."""

    name: str = "cudnn.transformer_grid"

    def grid(self, call: Call) -> Any:
        return call.outputs[0]

    def launcher(self, call: Call) -> Any:
        """One call for each piece of the batch."""

        def enqueue(env: LaunchEnv, d: Descriptor, theta: int, grid: int) -> None:
            libcudnn.cudnnSpatialTfGridGeneratorForward(env.cudnn, d.handle, theta, grid)

        return by_pieces(self.parts(call), enqueue)


@dataclass(frozen=True)
class GridGradKernel(_Grid):
    """``cudnnSpatialTfGridGeneratorBackward`` of dgrid."""

    name: str = "cudnn.transformer_grid_grad"

    def refuses_types(self, call: Call) -> str | None:
        """Unsupported dtypes, and any call under ``deterministic=more``."""
        if config.deterministic == "more":
            return "cuDNN adds the gradient of theta up in any order (deterministic=more)"
        return super().refuses_types(call)

    def grid(self, call: Call) -> Any:
        return call.inputs[0]

    def launcher(self, call: Call) -> Any:
        """One call for each piece of the batch."""

        def enqueue(env: LaunchEnv, d: Descriptor, dgrid: int, dtheta: int) -> None:
            libcudnn.cudnnSpatialTfGridGeneratorBackward(env.cudnn, d.handle, dgrid, dtheta)

        return by_pieces(self.parts(call), enqueue)


@dataclass(frozen=True)
class _Sampling(CudnnKernel):
    """Base of the sampler and its gradient."""

    def refuses_sizes(self, call: Call) -> str | None:
        """Too many channels, and images that are too large."""
        image = call.inputs[0]
        if image.shape[1] > _MAX_SAMPLER_CHANNELS:
            return f"cuDNN samples at most {_MAX_SAMPLER_CHANNELS} channels, not {image.shape[1]}"
        if not max_rows(image.shape, self.sampled(call)):
            return "an image of 2**31 elements or more"
        return None

    def sampled(self, call: Call) -> tuple[int, ...]:
        """The shape (N, C, H', W') of the sampled image."""
        image, grid = (t.shape for t in call.inputs[:2])
        return (*image[:2], *grid[1:3])

    def details(self, call: Call) -> str:
        """Image and grid."""
        return f"image {call.inputs[0]} at grid {call.inputs[1]}"

    def parts(self, call: Call) -> list[tuple[int, int, list[Descriptor]]]:
        """(start, count, [sampler, image, sampled image]) of each piece of the batch."""
        image, y = call.inputs[0], self.sampled(call)
        x: tuple[int, ...] = image.shape
        dtype: str = image.dtype
        if 0 in (*x, *y):
            return []
        return [
            (
                start,
                n,
                [sampler(dtype, (n, *y[1:])), *(tensor(dtype, (n, *s[1:])) for s in (x, y))],
            )
            for start, n in pieces(x[0], max_rows(x, y))
        ]


@dataclass(frozen=True)
class SamplerKernel(_Sampling):
    """``cudnnSpatialTfSamplerForward`` of (image, grid)."""

    name: str = "cudnn.transformer_sampler"

    def launcher(self, call: Call) -> Any:
        """One call for each piece of the batch."""
        dtype: str = call.inputs[0].dtype
        one, none = factor(dtype, 1.0), factor(dtype, 0.0)

        def enqueue(env: LaunchEnv, d: Sequence[Descriptor], x: int, grid: int, y: int) -> None:
            how, xd, yd = (v.handle for v in d)
            libcudnn.cudnnSpatialTfSamplerForward(env.cudnn, how, one, xd, x, grid, none, yd, y)

        return by_pieces(self.parts(call), enqueue, reads=2)  # an image of no pixels is 0


@dataclass(frozen=True)
class SamplerGradKernel(_Sampling):
    """``cudnnSpatialTfSamplerBackward`` of (image, grid, dy); outputs dimage and dgrid."""

    name: str = "cudnn.transformer_sampler_grad"

    def refuses_types(self, call: Call) -> str | None:
        """Unsupported dtypes, and any call under ``deterministic=more``."""
        if config.deterministic == "more":
            return "cuDNN adds the image's gradient up in any order (deterministic=more)"
        return super().refuses_types(call)

    def launcher(self, call: Call) -> Any:
        """One call for each piece of the batch."""
        dtype: str = call.inputs[0].dtype
        one, none = factor(dtype, 1.0), factor(dtype, 0.0)

        def enqueue(
            env: LaunchEnv, d: Sequence[Descriptor], x: int, grid: int, dy: int, dx: int, dgrid: int
        ) -> None:
            how, xd, yd = (v.handle for v in d)
            libcudnn.cudnnSpatialTfSamplerBackward(
                env.cudnn, how, one, xd, x, none, xd, dx, one, yd, dy, grid, none, dgrid
            )

        return by_pieces(self.parts(call), enqueue, reads=3)


_NEUTRAL_KERNEL = by_neutral_op(lambda call: True)  # the neutral ops' operands are the same

KERNELS: tuple[Row, ...] = (
    with_fallbacks(GpuDnnTransformerGrid, GridKernel(), _NEUTRAL_KERNEL),
    with_fallbacks(GpuDnnTransformerGradT, GridGradKernel(), _NEUTRAL_KERNEL),
    with_fallbacks(GpuDnnTransformerSampler, SamplerKernel(), _NEUTRAL_KERNEL),
    with_fallbacks(GpuDnnTransformerGradI, SamplerGradKernel(), _NEUTRAL_KERNEL),
)
