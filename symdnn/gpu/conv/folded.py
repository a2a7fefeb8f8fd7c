"""Convolutions with strides and few channels, as convolutions without strides.

A square of pixels as large as the strides becomes the channels of one pixel, in the images and in
the filters, which get zeros at their end. The first layer of most networks has three channels,
which fill no vector of tensor cores' operands; twelve in a quarter of the positions do.

The result is the same sum with a few zeros. Images and filters are copied by a kernel of ours, the
rest is a plan of cuDNN's graph API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import KernelLaunch, blocks_for
from symdnn.gpu.conv.graph_conv import conv_graph
from symdnn.gpu.conv.signature import ConvSignature
from symdnn.gpu.cudnn import graph
from symdnn.gpu.cudnn.graph_plan import GraphPlan
from symdnn.gpu.cudnn.kernel import aligned
from symdnn.graph.type import numpy_dtype

__all__ = ["NAME", "FoldedLaunch", "inner", "refusal", "workspace_bytes"]

#: The API and the first word of the name in reports.
NAME = "folded"
#: Bytes of an operand's vector, and the most channels of a folded pixel.
_VECTOR_BYTES, _MOST_CHANNELS = 16, 64
_THREADS, _MOST_BLOCKS = 256, 4224


def refusal(s: ConvSignature) -> str:
    """Why a convolution is not folded; ``""`` if it is."""
    if not (s.is_narrow or (s.dtype == "float32" and s.allow_tf32)):
        return "it is for types of tensor cores"
    if s.layout != "NHWC" or len(s.x) != 4 or s.direction == "bwd_data" or s.legacy_only:
        return "it is for images with channels last, forward and for the filters"
    if s.groups != 1 or {*s.dilation} != {1} or max(s.stride) == 1:
        return "it is for strides, without groups or dilation"
    if s.x[1] * _itemsize(s) >= _VECTOR_BYTES or _depth(s) > _MOST_CHANNELS:
        return "it is for few channels"
    if max(prod(s.x), prod(s.y), prod(inner(s).x)) >= 2**31:
        return "its operands are too large"
    return ""


def _itemsize(s: ConvSignature) -> int:
    return int(numpy_dtype(s.dtype).itemsize)


def _depth(s: ConvSignature) -> int:
    """Channels of a folded pixel: whole vectors."""
    width = _VECTOR_BYTES // _itemsize(s)
    return -(-s.x[1] * prod(s.stride) // width) * width


def inner(s: ConvSignature) -> ConvSignature:
    """The convolution of folded images with folded filters."""
    depth, taps = _depth(s), tuple(-(-n // t) for n, t in zip(s.w[2:], s.stride))
    sizes = tuple(n + k - 1 for n, k in zip(s.y[2:], taps))
    return replace(
        s, x=(s.x[0], depth, *sizes), w=(s.w[0], depth, *taps), padding=(0, 0), stride=(1, 1),
        flip=False,
    )  # fmt: skip


def workspace_bytes(s: ConvSignature, plan: GraphPlan) -> int:
    """That of the plan, and the folded operands."""
    form = inner(s)
    return aligned(plan.workspace_bytes) + aligned(form.nbytes("x")) + form.nbytes("w")


@dataclass(frozen=True)
class _Fold:
    """The sizes of images or filters, before and after folding, and zeros before them."""

    count: int
    before: tuple[int, ...]
    pads: tuple[int, ...]
    after: tuple[int, ...]


class FoldedLaunch:
    """A launch of the copies and the plan."""

    def __init__(self, s: ConvSignature, plan: GraphPlan, handle: int) -> None:
        self.signature, self.form = s, inner(s)
        self.run = graph.launch(conv_graph(self.form), plan, handle)
        self.at = aligned(plan.workspace_bytes)

    def load(self, env: Any) -> None:
        """Compile and load the kernels."""
        for flip in {0, int(self.signature.flip)}:
            env.module(self._source(flip), "fold")
        env.module(self._source(int(self.signature.flip)), "unfold")

    def __call__(self, env: Any, at: Mapping[str, int], alpha: float, beta: float) -> None:
        """Enqueue the convolution."""
        assert (alpha, beta) == (1.0, 0.0), "it neither scales nor adds"
        s, form = self.signature, self.form
        x = env.workspace + self.at
        w = x + aligned(form.nbytes("x"))
        images = _Fold(prod(form.x) // form.x[1], s.x[2:], s.padding, form.x[2:])
        filters = _Fold(prod(form.w) // form.w[1], s.w[2:], (0, 0), form.w[2:])
        self._copy(env, "fold", images, at["x"], x, 0)
        if s.direction == "fwd":
            self._copy(env, "fold", filters, at["w"], w, int(s.flip))
        self.run(env.cudnn, {**at, "x": x, "w": w}, env.workspace)
        if s.direction == "bwd_filter":
            back = replace(filters, count=prod(s.w))
            self._copy(env, "unfold", back, w, at["w"], int(s.flip))

    def _source(self, flip: int) -> str:
        s = self.signature
        return specialised(
            "conv_folded.cu", T=CTYPES[s.dtype], SH=s.stride[0], SW=s.stride[1], CHANNELS=s.x[1],
            DEPTH=self.form.x[1], WIDTH=_VECTOR_BYTES // _itemsize(s), FLIP=flip,
        )  # fmt: skip

    def _copy(self, env: Any, name: str, fold: _Fold, source: int, to: int, flip: int) -> None:
        parameters = (source, to, fold.count, *fold.before, *fold.pads, *fold.after)
        blocks = blocks_for(fold.count, _THREADS, _MOST_BLOCKS)
        launch = KernelLaunch(self._source(flip), name, (blocks,), (_THREADS,), parameters)
        launch.enqueue(env, np.zeros(1, np.int64))
