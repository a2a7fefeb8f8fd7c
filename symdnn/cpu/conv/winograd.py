"""Convolutions of 3x3 to 5x5 kernels by Winograd's algorithm, in front of oneDNN's.

oneDNN 3 has none. Measured on two cores with AVX-512 against its kernels: 64 images of 16x16x32
take 0.29 ms (0.66), of 8x8x64 0.26 (0.62), 16 of 56x56x64 2.9 (8.0), and 64 of 12x12x20 by kernels
of 5x5 0.32 (0.68). Errors are about twice those of plain sums (:mod:`symdnn.cpu.conv.winograd_ir`);
the flag ``cpu.winograd`` switches it off.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.conv.winograd_adjoint_ir import adjoint_ir
from symdnn.cpu.conv.winograd_ir import winograd_ir
from symdnn.cpu.conv.winograd_plan import TAPS, KernelPlan, WinogradPlan, padded
from symdnn.cpu.conv.winograd_weights_ir import kernels_ir
from symdnn.cpu.ir.vector_ir import WIDTH
from symdnn.cpu.launch.scratch import Scratch, address
from symdnn.cpu.launch.traits import LLVM
from symdnn.cpu.onednn import library
from symdnn.cpu.onednn.kernel import Kept, lies_densely, version_of
from symdnn.cpu.onednn.objects import Bound, Layout, describe, reorder
from symdnn.cpu.threads import thread_pools, threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.library_use import LibraryUse
from symdnn.graph.type import TensorType
from symdnn.ops.nn.channels_last import first_shape
from symdnn.ops.nn.conv import resolved_padding
from symdnn.ops.vendor.onednn import OneDnnConv, OneDnnConvGradI, OneDnnConvGradW

__all__ = [
    "Launcher", "Sizes", "WinogradKernel", "images_moved", "moved_to", "KERNELS", "scratch_of",
]  # fmt: skip

#: Kernels of these sizes, of at least so many channels on both sides; products of so few
#: multiplications are not worth code of their own.
_SIZES, _LEAST_CHANNELS, _LEAST_WORK = (3, 4, 5), 16, 1 << 24
#: Floats of all transformed kernels, which each block of tiles reads, and of a block.
_MOST_KERNELS, _BLOCK = 300_000, 170_000
#: Vector operations of a transformation of a tile, against those of a product.
_TRANSFORM = 250
#: How much less work it must be: oneDNN's kernels are nearer to what the processor can do, but for
#: channels that fill no vectors.
_GAIN, _GAIN_UNEVEN = 0.75, 1.2

#: Where images, kernels and results are among inputs and outputs.
_OPERANDS = {OneDnnConv: (0, 1, -1), OneDnnConvGradI: (1, 0, -1), OneDnnConvGradW: (0, -1, 1)}
_Words = ctypes.c_int64


class WinogradKernel(Kernel):
    """Forward, with bias, addend and relu, and the gradient in the images."""

    name = "llvm.winograd"
    traits = LLVM

    def refuses(self, call: Call) -> str | None:
        """Takes float32, steps of one, no groups, and enough of it."""
        op: Any = call.op
        conv = op.op
        if str(config.cpu.winograd) == "never" or str(config.cpu.compile) == "never":
            return "cpu.winograd=never or cpu.compile=never"
        if conv.ndim != 2 or conv.groups != 1 or {*conv.stride, *conv.dilation} != {1}:
            return "it is for two sizes, steps of one pixel, no groups"
        if getattr(op, "activation", "") not in ("", "relu"):
            return f"it has no {op.activation}"
        types = [t for t in (*call.inputs, *call.outputs) if isinstance(t, TensorType)]
        host = op.host_inputs
        if any(t.dtype != "float32" for i, t in enumerate(types) if i not in host):
            return "it computes in float32"
        problem = library.problem().partition("\n")[0] or jit.problem() or threads.problem()
        if problem or "AVX-512" not in library.library().isa:
            return problem or "it is for processors with AVX-512"
        return self._too_little(call) if all(t.is_static for t in types) else None

    def _too_little(self, call: Call) -> str | None:
        sizes = Sizes(call)
        if sizes.kernel[0] != sizes.kernel[1] or sizes.kernel[0] not in _SIZES:
            return f"it is for square kernels of sizes {_SIZES}"
        if 0 in (*sizes.x, *sizes.y):
            return "it is empty"
        c, k = sizes.x[1], sizes.y[1]
        if min(c, k) < _LEAST_CHANNELS or TAPS * c * padded(k) > _MOST_KERNELS:
            return "it is for 16 to about 90 channels"
        plain, ours = sizes.work()
        gain = _GAIN if c % WIDTH == 0 == k % WIDTH else _GAIN_UNEVEN
        if plain * WIDTH < _LEAST_WORK or ours > gain * plain:
            return "it would gain too little"
        return None

    def workspace_bytes(self, call: Call) -> int:
        """Transformed kernels, blocks of each thread, images in the other order."""
        return _scratch(Sizes(call), thread_pools.settle()).nbytes

    def library_use(self, call: Call) -> LibraryUse:
        """The row of ``f.dnn_report()``."""
        tile = f"{7 - Sizes(call).kernel[0]}x{7 - Sizes(call).kernel[0]}"
        return LibraryUse(
            str(config.cpu.winograd), "winograd", "symdnn", "llvm", self.workspace_bytes(call),
            True, "float32", why=f"tiles of {tile} results take fewer products",
        )  # fmt: skip

    def bind(self, call: Call) -> Launch:
        """Compiled for these sizes."""
        return Launcher(call)


class Sizes:
    """What is convolved, whichever the direction: images (N, channels, rows, columns) x to y."""

    def __init__(self, call: Call) -> None:
        op: Any = call.op
        types: Any = (*call.inputs, *call.outputs)
        self.op = op
        self.backward = isinstance(op, OneDnnConvGradI)
        self.images, self.kernels, results = _OPERANDS[type(op)]
        self.last = op.layout != "NCHW"
        shapes = types[self.images].shape, types[results].shape
        self.x, self.y = ((first_shape(s) if self.last else tuple(s)) for s in shapes)
        self.kernel = types[self.kernels].shape[2:]

    @property
    def pad(self) -> tuple[int, int]:
        """Rows and columns before the first of what tiles are cut from."""
        given = zip(self.op.op.padding, self.kernel)
        rows, columns = (int(resolved_padding(p, n, 1)[0]) for p, n in given)
        if not self.backward or self.adjoint:
            return rows, columns
        return self.kernel[0] - 1 - rows, self.kernel[1] - 1 - columns

    def tiles(self, sizes: Sequence[int]) -> int:
        """Tiles of an image of which so many rows and columns are results."""
        return prod(-(-n // (7 - self.kernel[0])) for n in sizes)

    @property
    def adjoint(self) -> bool:
        """Whether there are fewer tiles of what is given than of what is made."""
        given, made = self.tiles(self.x[2:]), self.tiles(self.y[2:])
        channels = padded(self.x[1]) + padded(self.y[1])
        return self.backward and given < 0.8 * made and given * TAPS * channels <= _BLOCK

    def work(self) -> tuple[int, int]:
        """Operations on vectors of plain sums, and of this way."""
        c, k, r = self.x[1], padded(self.y[1]) // WIDTH, self.kernel[0]
        pixels = prod(self.x[2:]) if self.backward else prod(self.y[2:])
        plain = self.x[0] * pixels * r * r * c * k
        tiles = self.x[0] * self.tiles(self.x[2:] if self.adjoint else self.y[2:])
        return plain, tiles * (TAPS * c * k + _TRANSFORM * (padded(c) // WIDTH + k))

    def plan(self, threads_: int) -> WinogradPlan:
        """The kernel for so many threads: blocks that fit the second cache, alike for all."""
        op, c, k = self.op, self.x[1], self.y[1]
        most = max(12, _BLOCK // (TAPS * (padded(c) + padded(k))))
        if self.adjoint:
            of_image = self.tiles(self.x[2:])
            images = _alike(self.x[0], threads_, max(1, most // of_image))
            sizes = self.y[2:], self.x[2:], k, c
            return WinogradPlan(*sizes, self.kernel[0], self.pad, images * of_image)
        block = _alike(self.x[0] * self.tiles(self.y[2:]), threads_, most)
        return WinogradPlan(
            self.x[2:], self.y[2:], c, k, self.kernel[0], self.pad, block,
            getattr(op, "bias", False), bool(getattr(op, "residual", 0)),
            getattr(op, "activation", "") == "relu",
        )  # fmt: skip

    def kernels_plan(self) -> KernelPlan:
        """How the kernels are transformed."""
        mirrored = bool(self.op.op.flip) != (self.backward and not self.adjoint)
        return KernelPlan(self.x[1], self.y[1], self.kernel[0], self.backward, mirrored)


def _alike(count: int, threads_: int, most: int) -> int:
    """How many of ``count`` a block has, at most ``most``, such that all threads have the same."""
    rounds = max(1, -(-count // (threads_ * most)))
    return -(-count // (threads_ * rounds))


def scratch_of(sizes: Sizes, matrices: int, blocks: int, images: Sequence[Any]) -> Scratch:
    """Scratch memory: floats of matrices and of blocks of tiles, then images with channels last."""
    copies = () if sizes.last else images
    return Scratch([4 * n for n in (matrices, blocks, *map(prod, copies))])


def _scratch(sizes: Sizes, count: int) -> Scratch:
    plan = sizes.plan(count)
    images = [sizes.x, sizes.y, *([sizes.y] if plan.residual else [])]
    matrices = TAPS * sizes.kernels_plan().step
    return scratch_of(sizes, matrices, plan.thread_floats * count, images)


class Launcher:
    """``launch(inputs, outputs, workspace)``

    With ``sums`` of a forward convolution, :attr:`sums` has after each launch the sums of results
    and of their squares, float64 (threads, 2, channels in whole vectors).
    """

    def __init__(self, call: Call, sums: bool = False) -> None:
        # The kernel is the same while fewer threads than all run it: it is not compiled again.
        sizes, count, most = Sizes(call), thread_pools.settle(), threads.most()
        self._sizes, self._scratch = sizes, _scratch(sizes, most)
        plan = replace(sizes.plan(most), sums=sums)
        self.sums = np.zeros((count, 2, padded(plan.outputs) if sums else 0))
        kernels = sizes.kernels_plan()
        made = (adjoint_ir, plan, kernels.step) if sizes.adjoint else (winograd_ir, plan)
        self._transform, self._run = threads.kernel(kernels_ir, kernels), threads.kernel(*made)
        tiles = sizes.x[0] * prod(plan.tiles)
        self._kernel_words = (_Words * 5)(count, kernels.channels, 1)
        self._words = (_Words * 11)(count, -(-tiles // plan.block), 1, tiles)
        self._words[10] = address(self.sums)
        version = version_of(call, sizes.kernels)
        self._kept = None if version is None else Kept(version, 4 * TAPS * kernels.step)
        self._plan = plan
        self._moves = None if sizes.last else [images_moved(s) for s in (sizes.x, sizes.y)]

    def __call__(
        self, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any = None
    ) -> None:
        """Transform the kernels unless they are known, then all tiles."""
        base, words = self._scratch.begin(workspace), self._words
        self.sums.fill(0)
        words[4] = self._kernels(lies_densely(inputs[self._sizes.kernels]), base)
        words[5] = base + self._scratch.places[1]
        x, y = lies_densely(inputs[self._sizes.images]), outputs[0]
        more = lies_densely(inputs[2]) if self._plan.residual else None
        bias = lies_densely(inputs[-1]) if self._plan.bias else None
        if self._moves is None:
            self._convolve(x, y, bias, more)
            return
        (to_last, _), (more_to_last, to_first) = self._moves
        at = [base + place for place in self._scratch.places[2:]]
        moved = moved_to(at[0], to_last, x)
        if more is not None:
            more = moved_to(at[2], more_to_last, more)
        self._convolve(moved, standing(at[1]), bias, more)
        to_first(at[1], address(y))

    def _convolve(self, x: Any, y: Any, bias: Any, more: Any) -> None:
        words = self._words
        words[6], words[7], words[8], words[9] = id(x), id(y), id(bias), id(more)
        self._run(words)

    def _kernels(self, kernels: Any, base: int) -> int:
        """The address of the transformed kernels."""
        at, known = (0, False) if self._kept is None else self._kept.place()
        if not known:
            at = at or base
            words = self._kernel_words
            words[3], words[4] = id(kernels), at
            self._transform(words)
        return at


def moved_to(at: int, move: Bound, image: Any) -> Any:
    """:func:`standing` for an address, to where an image is moved."""
    move(address(image), at)
    return standing(at)


def standing(at: int) -> Any:
    """An array of which the address alone is read."""
    return np.ctypeslib.as_array((ctypes.c_float * 1).from_address(at))


def images_moved(shape: tuple[int, ...]) -> tuple[Bound, Bound]:
    """Images to channels last, and back."""
    first = Layout(shape, "float32")
    pair = describe(first), describe(first.channels_last())
    names = ("src", "dst")
    return Bound(reorder(*pair), names), Bound(reorder(*pair[::-1]), names)


KERNELS: tuple[Row, ...] = (((OneDnnConv, OneDnnConvGradI), (WinogradKernel(),)),)
