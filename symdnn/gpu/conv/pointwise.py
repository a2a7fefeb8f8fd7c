"""Convolutions with 1x1 filters in float32 as matrix products on tensor cores.

cuDNN has no kernels for them that use tensor cores without rounding to TF32, and no transforms make
them cheaper. As products of split operands (:mod:`symdnn.gpu.gemm.split`) they are faster where
they have many channels. Images in NCHW are a stack of matrices, of which the gradient of the
filters is a sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

from symdnn.gpu.codegen.launches import MOST_BLOCKS_BESIDE
from symdnn.gpu.conv.signature import ConvSignature
from symdnn.gpu.gemm.plan import GemmSignature, Matrix, Pointers
from symdnn.gpu.gemm.split import OTHER_BYTES, Form, SplitGemm

#: The name in reports.
NAME = "bf16x6"
#: The workspace for split operands, where the convolution's limit is not smaller.
_MOST_BYTES = 1 << 30
#: With fewer channels the operands take longer to split than to multiply.
_LEAST_CHANNELS = 64


def refusal(s: ConvSignature) -> str:
    """Why a convolution is no such product; ``""`` if it is."""
    if s.dtype != "float32" or s.compute != "float32" or s.allow_tf32:
        return "it is for float32 that may not be rounded to TF32"
    if prod(s.w[2:]) != 1 or {*s.stride} != {1} or any(s.padding) or s.groups != 1:
        return "it is for filters of one pixel, without strides, padding or groups"
    if not s.epilogue.is_empty:
        return "it has no epilogue"
    if min(s.x[1], s.w[0]) < _LEAST_CHANNELS:
        return f"it is for at least {_LEAST_CHANNELS} channels on both sides"
    if s.x[0] > MOST_BLOCKS_BESIDE or max(prod(s.x), prod(s.y)) >= 2**31:
        return "its operands are too large"
    return ""


def gemm_of(s: ConvSignature) -> tuple[GemmSignature, bool]:
    """The product, and whether those of a stack are summed.

    A is the first of ``x``, ``y`` and ``w`` that are operands, in NHWC the filters.
    """
    images, channels, kernels = s.x[0], s.x[1], s.w[0]
    pixels = prod(s.x[2:])
    if s.layout == "NHWC":
        return _channels_last(s.direction, images * pixels, channels, kernels), False
    stack = {
        "x": Matrix(pixels, channels, pixels, False, channels * pixels),
        "y": Matrix(pixels, kernels, pixels, False, kernels * pixels),
    }
    turned = Matrix(pixels, channels, pixels, True, channels * pixels)
    whole = Matrix(channels, kernels, channels, False, channels * kernels)
    parts = {
        "fwd": (stack["x"], Matrix(channels, kernels, channels), stack["y"]),
        "bwd_data": (stack["y"], Matrix(channels, kernels, channels, True), stack["x"]),
        "bwd_filter": (turned, stack["y"], whole),
    }[s.direction]
    return _product(*parts, batch=images), s.direction == "bwd_filter"


def _channels_last(direction: str, pixels: int, channels: int, kernels: int) -> GemmSignature:
    x, y = Matrix(channels, pixels, channels), Matrix(kernels, pixels, kernels)
    w = Matrix(channels, kernels, channels)
    return {
        "fwd": lambda: _product(Matrix(channels, kernels, channels, True), x, y),
        "bwd_data": lambda: _product(w, y, x),
        "bwd_filter": lambda: _product(x, Matrix(kernels, pixels, kernels, True), w),
    }[direction]()


def _product(a: Matrix, b: Matrix, d: Matrix, batch: int = 1) -> GemmSignature:
    return GemmSignature(
        "float32", "float32", "float32", a, b, d, batch=batch, alignment=(256, 256, 16, 16)
    )


#: Roles of A, B and D.
_ROLES = {
    ("NCHW", "fwd"): ("x", "w", "y"), ("NCHW", "bwd_data"): ("y", "w", "x"),
    ("NCHW", "bwd_filter"): ("x", "y", "w"), ("NHWC", "fwd"): ("w", "x", "y"),
    ("NHWC", "bwd_data"): ("w", "y", "x"), ("NHWC", "bwd_filter"): ("x", "y", "w"),
}  # fmt: skip


@lru_cache(maxsize=64)
def _way(s: ConvSignature, most_bytes: int) -> SplitGemm:
    product, summed = gemm_of(s)
    if s.legacy_only:  # a part of a batch, at any address
        product = replace(product, alignment=(256, 256, 4, 4))
    if product.batch > 1:
        form = Form.STACK_SUM if summed else Form.MERGED
    else:
        form = Form.SIDE_BY_SIDE if s.direction == "bwd_filter" else Form.IN_TURN
    return SplitGemm(product, form, most_bytes)


def _way_of(s: ConvSignature) -> SplitGemm:
    room = s.workspace_limit - OTHER_BYTES if s.workspace_limit else _MOST_BYTES
    return _way(replace(s, wanted="", named=False), min(room, _MOST_BYTES))


def workspace_bytes(s: ConvSignature) -> int:
    """Its workspace. Raises :class:`CublasError` where there is no room for any operands."""
    return _way_of(s).workspace_bytes


class PointwiseLaunch:
    """A launch of the product."""

    def __init__(self, s: ConvSignature) -> None:
        self.way, self.roles = _way_of(s), _ROLES[s.layout, s.direction]
        self.load = self.way.load

    def __call__(self, env: Any, at: Mapping[str, int], alpha: float, beta: float) -> None:
        """Enqueue ``alpha * convolution + beta * result``."""
        a, b, d = (at[role] for role in self.roles)
        self.way.enqueue(env, Pointers(a, b, d), (alpha, beta))


launch_of = PointwiseLaunch
