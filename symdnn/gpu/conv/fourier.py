"""The gradient of filters in float32 by Fourier transforms of whole images, on tensor cores.

The transforms are kernels of ours (``fourier_filter.cu``), which write two float16 numbers for a
number; a stack of GEMMs of these, one for each frequency, is cuBLASLt's. Like all algorithms by
Fourier transforms it is right relative to the largest numbers: what is not finite is NaN anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from symdnn.gpu.codegen.device_source import specialised
from symdnn.gpu.codegen.launches import MOST_BLOCKS_BESIDE, KernelLaunch, blocks_for
from symdnn.gpu.conv.signature import ConvSignature
from symdnn.gpu.cudnn.kernel import aligned
from symdnn.gpu.gemm.plan import WORKSPACE_BYTES, GemmPlan, GemmSignature, Matrix, Pointers

#: The name in reports.
NAME = "fft_f16x3"
#: The side of a transform; the frequencies of one, of which half have another's numbers.
_SIDE, _HALF = 32, 17
_FREQUENCIES = _SIDE * _HALF
#: Parts of a sum for each image: pieces of products, real and imaginary.
_PARTS = 6
_MOST_FILTER = 11
#: Channels of a block, which divide all: 32 are a little faster. A multiprocessor's registers are
#: enough for so many blocks.
_BLOCKS = {32: 1, 16: 2}
_LEAST_CHANNELS = min(_BLOCKS)


def refusal(s: ConvSignature) -> str:
    """Why it does not take a convolution; ``""`` if it does."""
    if s.dtype != "float32" or s.compute != "float32":
        return "it is for float32"
    if s.direction != "bwd_filter" or s.layout != "NCHW" or s.legacy_only or len(s.x) != 4:
        return "it is for the gradient of filters of images in NCHW"
    if {*s.stride, *s.dilation, s.groups} != {1}:
        return "it is for filters without strides, dilation or groups"
    if any(n + p > _SIDE for n, p in zip(s.x[2:], s.padding, strict=True)):
        return f"it is for images of up to {_SIDE} pixels a side, with the padding before them"
    if max(s.y[2:]) > _SIDE or max(s.w[2:]) > _MOST_FILTER or max(s.padding) >= _SIDE:
        return f"it is for filters of up to {_MOST_FILTER} pixels a side"
    if s.x[1] % _LEAST_CHANNELS or s.w[0] % _LEAST_CHANNELS:
        return f"it is for multiples of {_LEAST_CHANNELS} channels"
    if s.x[0] > MOST_BLOCKS_BESIDE or max(prod(s.x), prod(s.y)) >= 2**31:
        return "its operands are too large"
    return ""


def _block_of(channels: int) -> int:
    return next(n for n in _BLOCKS if channels % n == 0)


@dataclass(frozen=True)
class _Room:
    """Bytes of the parts of the workspace, in their order."""

    largest: int
    x: int
    y: int
    gradient: int


def _room(s: ConvSignature) -> _Room:
    images, channels, kernels = s.x[0], s.x[1], s.w[0]
    factors = 2 * _FREQUENCIES * _PARTS * images
    return _Room(
        256, aligned(factors * 2 * channels), aligned(factors * kernels),
        aligned(4 * _FREQUENCIES * 2 * channels * kernels),
    )  # fmt: skip


def workspace_bytes(s: ConvSignature) -> int:
    """cuBLASLt's workspace, factors, and the gradient's frequencies."""
    room = _room(s)
    return WORKSPACE_BYTES + 512 + room.largest + room.x + room.y + room.gradient


def _gemm(s: ConvSignature) -> GemmSignature:
    images, channels, kernels = s.x[0], 2 * s.x[1], s.w[0]
    terms = _PARTS * images
    return GemmSignature(
        "float16", "float32", "float32",
        Matrix(kernels, terms, kernels, False, kernels * terms),
        Matrix(channels, terms, channels, True, channels * terms),
        Matrix(kernels, channels, kernels, False, kernels * channels), batch=_FREQUENCIES,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _plan(s: ConvSignature, handle: int) -> tuple[GemmPlan, Any]:
    plan = GemmPlan(handle, _gemm(s))
    return plan, plan.algorithms(1)[0]


class FourierLaunch:
    """A launch of its kernels."""

    def __init__(self, s: ConvSignature) -> None:
        self.signature, self.room = s, _room(s)
        self.sources = [self._source(role) for role in (0, 1)]

    def _source(self, role: int) -> str:
        """The kernels for dy (role 0) or x."""
        s = self.signature
        _, channels, height, width = (s.y, s.x)[role]
        block = _block_of(channels)
        return specialised(
            "fourier_filter.cu", ROLE=role, HEIGHT=height, WIDTH=width, FILTER_HEIGHT=s.w[2],
            FILTER_WIDTH=s.w[3], BEFORE_HEIGHT=s.padding[0], BEFORE_WIDTH=s.padding[1],
            FLIP=int(s.flip), CHANNELS=block, BLOCKS=_BLOCKS[block],
        )  # fmt: skip

    def load(self, env: Any) -> None:
        """Compile and load its kernels, and choose cuBLASLt's algorithm."""
        for source in self.sources:
            env.module(source, "largest")
            env.module(source, "images_to_frequencies")
        env.module(self.sources[0], "frequencies_to_filters")
        _plan(self.signature, env.cublaslt)

    def __call__(self, env: Any, at: Mapping[str, int], alpha: float, beta: float) -> None:
        """Enqueue the gradient."""
        assert (alpha, beta) == (1.0, 0.0), "it neither scales nor adds"
        s, room = self.signature, self.room
        largest = aligned(env.workspace) + WORKSPACE_BYTES
        x = largest + room.largest
        y = x + room.x
        gradient = y + room.y
        env.zero(largest, 8)
        for role, (source, to) in enumerate(((at["y"], y), (at["x"], x))):
            size = prod((s.y, s.x)[role])
            self._enqueue(env, role, "largest", (blocks_for(size, 1024, 1056),), 256,
                          source, to, largest, 0)  # fmt: skip
            channels = (s.w[0], s.x[1])[role]
            block = _block_of(channels)
            grid = (channels // block, s.x[0])
            self._enqueue(env, role, "images_to_frequencies", grid, block * _HALF,
                          source, to, largest, block * _HALF * (_SIDE + 1) * 8)  # fmt: skip
        plan, algorithm = _plan(s, env.cublaslt)
        plan.run(algorithm, Pointers(y, x, gradient), (1.0, 0.0), env.workspace, env.stream)
        filters = (-(-s.x[1] * s.w[0] // _SIDE),)
        self._enqueue(env, 0, "frequencies_to_filters", filters, _SIDE * _HALF,
                      gradient, at["w"], largest, 0)  # fmt: skip

    def _enqueue(
        self, env: Any, role: int, name: str, grid: tuple[int, ...], threads: int, source: int,
        to: int, largest: int, shared_bytes: int,
    ) -> None:  # fmt: skip
        s = self.signature
        channels = s.x[1] if role or name == "frequencies_to_filters" else s.w[0]
        size = prod((s.y, s.x)[role])
        parameters = (source, to, largest, size, s.x[0], channels, s.w[0])
        launch = KernelLaunch(
            self.sources[role], name, grid, (threads,), parameters, shared_bytes
        )  # fmt: skip
        launch.enqueue(env, np.zeros(1, np.int64))


launch_of = FourierLaunch
