"""Convolutions with strides and few channels, as convolutions without strides.

A window of pixels becomes the channels of one pixel, in the images and in the filters. The first
layer of most networks has three channels, which fill no vector of tensor cores' operands. The
window is as large as the strides, or, in one or both dimensions, as the filter: then the images
take more memory, and the filter has one pixel there.

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

#: The API and the first word of the name in reports.
NAME = "folded"
#: Bytes of an operand's vector, the most channels of a folded pixel, and of folded images.
_VECTOR_BYTES, _MOST_CHANNELS, _MOST_BYTES = 16, 1024, 1 << 30
_THREADS, _MOST_BLOCKS = 256, 4224


def refusal(s: ConvSignature) -> str:
    """Why a convolution is not folded; ``""`` if it is."""
    if not (s.is_narrow or (s.dtype == "float32" and s.allow_tf32)):
        return "it is for types of tensor cores"
    if s.layout != "NHWC" or len(s.x) != 4 or s.direction == "bwd_data" or s.legacy_only:
        return "it is for images with channels last, forward and for the filters"
    if s.groups != 1 or {*s.dilation} != {1} or max(s.stride) == 1:
        return "it is for strides, without groups or dilation"
    if s.x[1] * _itemsize(s) >= _VECTOR_BYTES:
        return "it is for few channels"
    if max(prod(s.x), prod(s.y)) >= 2**31 or not variants(s):
        return "its operands are too large"
    return ""


def _itemsize(s: ConvSignature) -> int:
    return int(numpy_dtype(s.dtype).itemsize)


def _taps(s: ConvSignature, whole: int) -> tuple[int, ...]:
    """Pixels of the folded filters; the last ``whole`` dimensions have one."""
    found = [-(-n // t) for n, t in zip(s.w[2:], s.stride)]
    return tuple(1 if i >= len(found) - whole else n for i, n in enumerate(found))


def _window(s: ConvSignature, whole: int) -> tuple[int, ...]:
    """Pixels of a window: the filter where one is left of it, else the strides."""
    return tuple(n if k == 1 else t for k, n, t in zip(_taps(s, whole), s.w[2:], s.stride))


def variants(s: ConvSignature) -> list[int]:
    """In how many dimensions the window may be the whole filter."""
    found = {_taps(s, whole): whole for whole in (2, 1, 0)}
    forms = {whole: inner(s, whole) for whole in sorted(found.values())}
    return [
        whole for whole, form in forms.items()
        if form.x[1] <= _MOST_CHANNELS and form.nbytes("x") <= _MOST_BYTES
    ]  # fmt: skip


def inner(s: ConvSignature, whole: int) -> ConvSignature:
    """The convolution of folded images with folded filters."""
    vector, taps = _VECTOR_BYTES // _itemsize(s), _taps(s, whole)
    depth = -(-s.x[1] * prod(_window(s, whole)) // vector) * vector
    sizes = tuple(n + k - 1 for n, k in zip(s.y[2:], taps))
    return replace(
        s, x=(s.x[0], depth, *sizes), w=(s.w[0], depth, *taps), padding=(0, 0), stride=(1, 1),
        flip=False,
    )  # fmt: skip


def workspace_bytes(s: ConvSignature, whole: int, plan: GraphPlan) -> int:
    """That of the plan, and the folded operands."""
    form = inner(s, whole)
    return aligned(plan.workspace_bytes) + aligned(form.nbytes("x")) + form.nbytes("w")


@dataclass(frozen=True)
class _Fold:
    """What is copied: how much, the sizes before and after folding, and zeros before them."""

    count: int
    before: tuple[int, ...]
    pads: tuple[int, ...]
    after: tuple[int, ...]


class FoldedLaunch:
    """A launch of the copies and the plan."""

    def __init__(self, s: ConvSignature, whole: int, plan: GraphPlan, handle: int) -> None:
        self.signature, self.whole, self.form = s, whole, inner(s, whole)
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
        s, form, vector = self.signature, self.form, _VECTOR_BYTES // _itemsize(self.signature)
        x = env.workspace + self.at
        w = x + aligned(form.nbytes("x"))
        images = _Fold(prod(form.x) // vector, s.x[2:], s.padding, form.x[2:])
        filters = _Fold(prod(form.w) // vector, s.w[2:], (0, 0), form.w[2:])
        self._copy(env, "fold", images, at["x"], x, 0)
        if s.direction == "fwd":
            self._copy(env, "fold", filters, at["w"], w, int(s.flip))
        self.run(env.cudnn, {**at, "x": x, "w": w}, env.workspace)
        if s.direction == "bwd_filter":
            back = replace(filters, count=prod(s.w))
            self._copy(env, "unfold", back, w, at["w"], int(s.flip))

    def _source(self, flip: int) -> str:
        s, (height, width) = self.signature, _window(self.signature, self.whole)
        return specialised(
            "conv_folded.cu", T=CTYPES[s.dtype], SH=s.stride[0], SW=s.stride[1], WH=height,
            WW=width, CHANNELS=s.x[1], DEPTH=self.form.x[1],
            WIDTH=_VECTOR_BYTES // _itemsize(s), FLIP=flip,
        )  # fmt: skip

    def _copy(self, env: Any, name: str, fold: _Fold, source: int, to: int, flip: int) -> None:
        parameters = (source, to, fold.count, *fold.before, *fold.pads, *fold.after)
        blocks = blocks_for(fold.count, _THREADS, _MOST_BLOCKS)
        launch = KernelLaunch(self._source(flip), name, (blocks,), (_THREADS,), parameters)
        launch.enqueue(env, np.zeros(1, np.int64))
