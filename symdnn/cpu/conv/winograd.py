"""Convolutions with 3x3 to 5x5 filters by Winograd's algorithm, preferred to oneDNN's.

oneDNN 3 does not have the algorithm. Measured on two cores with AVX-512 against its kernels, 3x3
filters: 64 samples of 16x16x32 take 0.29 ms (0.66), of 8x8x64 0.26 (0.62), 16 samples of 56x56x64
2.9 (8.0); with 5x5 filters 64 samples of 12x12x20 take 0.32 (0.68). On one core of Zen 3 (AVX2),
with 3x3 filters, a sample of 56x56x64 takes 1.34 ms (:mod:`symdnn.cpu.conv.direct` 2.65), of
28x28x128 1.37 (2.71), of 14x14x256 1.65 (2.96), eight of 56x56x64 8.9 (21), their gradients 9.6
(oneDNN 22) and 13.8 (54). Errors are about twice those of plain sums
(:mod:`symdnn.cpu.conv.winograd_ir`). The flag ``cpu.winograd`` switches it off.
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
from symdnn.cpu.conv.direct import fits_processor
from symdnn.cpu.conv.winograd_adjoint_ir import adjoint_ir
from symdnn.cpu.conv.winograd_ir import winograd_ir
from symdnn.cpu.conv.winograd_plan import TAPS, FilterPlan, WinogradPlan, padded
from symdnn.cpu.conv.winograd_weights_ir import filter_transform_ir
from symdnn.cpu.ir.builder import WIDTH
from symdnn.cpu.launch.scratch import Scratch, address, as_contiguous
from symdnn.cpu.launch.traits import LLVM
from symdnn.cpu.onednn import library
from symdnn.cpu.onednn.kernel import PrepackedInput, version_of
from symdnn.cpu.onednn.objects import BoundPrimitive, Layout, describe, reorder
from symdnn.cpu.threads import thread_pools, threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.library_use import LibraryUse
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.nn.channels_last import first_shape
from symdnn.ops.nn.conv import resolved_padding
from symdnn.ops.vendor.onednn import OneDnnConv, OneDnnConvGradI, OneDnnConvGradW

#: Sizes of filters; the least number of channels on both sides; the least number of multiplications
#: of the plain convolution.
_FILTER_SIZES, _MIN_CHANNELS, _MIN_MULTIPLICATIONS = (3, 4, 5), 16, 1 << 24
#: Limits of the floats of all transformed filters, which each block of tiles reads, and of a block:
#: both for 512-bit vectors.
_MAX_FILTER_FLOATS, _BLOCK_FLOATS = 300_000, 170_000
#: Cost of transforming a vector of a tile, and of filters, in vector multiplications.
_TRANSFORM_OPERATIONS, _FILTER_TRANSFORM_OPERATIONS = 250, 500
#: The most work relative to a plain convolution's. oneDNN's kernels are nearer to the processor's
#: peak, except with numbers of channels that do not fill vectors (the second ratio).
_MAX_WORK_RATIO, _MAX_WORK_RATIO_UNALIGNED = 0.75, 1.2

#: Indices of the input, the filters and the result in (*inputs, output).
_OPERANDS = {OneDnnConv: (0, 1, -1), OneDnnConvGradI: (1, 0, -1), OneDnnConvGradW: (0, -1, 1)}
#: With 256-bit vectors: the limit of filters, which are four times the plain ones; floats that a
#: core's L2 cache holds, and most floats of a block beyond it.
_MAX_FILTER_FLOATS_HALF, _L2_FLOATS, _MOST_BLOCK_FLOATS = 20_000_000, 90_000, 1_000_000
#: Floats of transformed filters that the L3 cache holds. Cost of reading a vector of them from
#: there and from memory, in vector multiplications.
_L3_FLOATS, _L3_OPERATIONS, _MEMORY_OPERATIONS = 4_000_000, 3, 16
_Words = ctypes.c_int64


class WinogradKernel(Kernel[OneDnnConv | OneDnnConvGradI | OneDnnConvGradW]):
    """The forward pass, with bias, addend and ReLU, and the gradient of the input."""

    name = "llvm.winograd"
    traits = LLVM

    def refuses(self, call: Call[OneDnnConv | OneDnnConvGradI | OneDnnConvGradW]) -> str | None:
        """Needs float32, a stride of 1, one group, AVX2 and enough work."""
        op: Any = call.op
        conv = op.op
        if str(config.cpu.winograd) == "never" or str(config.cpu.compile) == "never":
            return "cpu.winograd=never or cpu.compile=never"
        if conv.ndim != 2 or conv.groups != 1 or {*conv.stride, *conv.dilation} != {1}:
            return "it is for 2-d convolutions of stride 1 without dilation or groups"
        if getattr(op, "activation", "") not in ("", "relu"):
            return f"it has no {op.activation}"
        types = [t for t in (*call.inputs, *call.outputs) if isinstance(t, TensorType)]
        host = op.host_inputs
        if any(t.dtype != "float32" for i, t in enumerate(types) if i not in host):
            return "it computes in float32"
        problem = library.problem().partition("\n")[0] or jit.problem() or threads.problem()
        if problem or not ("AVX-512" in library.library().isa or fits_processor()):
            return problem or "it is for processors with AVX2 or AVX-512"
        return self._static_refusal(call) if all(t.is_static for t in types) else None

    def _static_refusal(
        self, call: Call[OneDnnConv | OneDnnConvGradI | OneDnnConvGradW]
    ) -> str | None:
        sizes = ConvSizes(call)
        if sizes.kernel[0] != sizes.kernel[1] or sizes.kernel[0] not in _FILTER_SIZES:
            return f"it is for square filters of sizes {_FILTER_SIZES}"
        if 0 in (*sizes.x, *sizes.y):
            return "it is empty"
        c, k = sizes.x[1], sizes.y[1]
        if min(c, k) < _MIN_CHANNELS:
            return f"it is for {_MIN_CHANNELS} channels and more"
        if TAPS * c * padded(k) > (_MAX_FILTER_FLOATS_HALF if sizes.half else _MAX_FILTER_FLOATS):
            return f"it is for up to about {700 if sizes.half else 90} channels"
        index = sizes.filter_index
        plain, ours = sizes.work(index >= 0 and version_of(call, index) is not None)
        gain = _MAX_WORK_RATIO if c % WIDTH == 0 == k % WIDTH else _MAX_WORK_RATIO_UNALIGNED
        if plain * WIDTH < _MIN_MULTIPLICATIONS or ours > gain * plain:
            return "it would gain too little"
        return None

    def workspace_bytes(self, call: Call[OneDnnConv | OneDnnConvGradI | OneDnnConvGradW]) -> int:
        """Transformed filters, blocks of each thread, activations reordered to NHWC."""
        return _scratch(ConvSizes(call), thread_pools.set_threads()).nbytes

    def library_use(self, call: Call[OneDnnConv | OneDnnConvGradI | OneDnnConvGradW]) -> LibraryUse:
        """The row of ``f.dnn_report()``."""
        tile = f"{7 - ConvSizes(call).kernel[0]}x{7 - ConvSizes(call).kernel[0]}"
        return LibraryUse(
            str(config.cpu.winograd), "winograd", "symdnn", "llvm", self.workspace_bytes(call),
            True, "float32", why=f"tiles of {tile} results take fewer multiplications",
        )  # fmt: skip

    def bind(self, call: Call[OneDnnConv | OneDnnConvGradI | OneDnnConvGradW]) -> Launch[Array]:
        """A launch whose code is for these sizes."""
        return WinogradLaunch(call)


class ConvSizes:
    """Shapes of a convolution in any direction, from x to y, both (N, channels, rows, columns)."""

    def __init__(self, call: Call) -> None:
        op: Any = call.op
        types: Any = (*call.inputs, *call.outputs)
        self.op, self.half = op, fits_processor()
        self.backward = isinstance(op, OneDnnConvGradI)
        self.input_index, self.filter_index, results = _OPERANDS[type(op)]
        self.nhwc = op.layout != "NCHW"
        shapes = types[self.input_index].shape, types[results].shape
        self.x, self.y = ((first_shape(s) if self.nhwc else tuple(s)) for s in shapes)
        self.kernel = types[self.filter_index].shape[2:]

    @property
    def pad(self) -> tuple[int, int]:
        """Padding before the first row and column of the array that is divided into tiles."""
        pairs = zip(self.op.op.padding, self.kernel)
        rows, columns = (int(resolved_padding(p, n, 1)[0]) for p, n in pairs)
        if not self.backward or self.adjoint:
            return rows, columns
        return self.kernel[0] - 1 - rows, self.kernel[1] - 1 - columns

    def tiles(self, sizes: Sequence[int]) -> int:
        """Tiles of a sample with so many rows and columns of results."""
        return prod(-(-n // (7 - self.kernel[0])) for n in sizes)

    @property
    def adjoint(self) -> bool:
        """Whether to run a gradient as the adjoint: x has clearly fewer tiles than y."""
        of_x, of_y = self.tiles(self.x[2:]), self.tiles(self.y[2:])
        channels = padded(self.x[1]) + padded(self.y[1])
        return self.backward and of_x < 0.8 * of_y and of_x * TAPS * channels <= _BLOCK_FLOATS

    def work(self, keeps_filters: bool) -> tuple[int, int]:
        """Vector operations of a plain convolution, and of Winograd's algorithm."""
        c, k, r = self.x[1], padded(self.y[1]) // WIDTH, self.kernel[0]
        pixels = prod(self.x[2:]) if self.backward else prod(self.y[2:])
        plain = self.x[0] * pixels * r * r * c * k
        tiles = self.x[0] * self.tiles(self.x[2:] if self.adjoint else self.y[2:])
        ours = tiles * (TAPS * c * k + _TRANSFORM_OPERATIONS * (padded(c) // WIDTH + k))
        if self.half:
            reading = _MEMORY_OPERATIONS if TAPS * c * k * WIDTH > _L3_FLOATS else _L3_OPERATIONS
            times = 2 if isinstance(self.op, OneDnnConvGradW) else 1  # sums are read and written
            ours += c * k * TAPS * reading * times
            ours += 0 if keeps_filters else c * k * _FILTER_TRANSFORM_OPERATIONS
        return plain, ours

    def plan(self, threads_: int) -> WinogradPlan:
        """The plan for so many threads: blocks that fit the L2 cache, and even between threads."""
        op, c, k = self.op, self.x[1], self.y[1]
        most = self._most_tiles(threads_)
        if self.adjoint:
            of_sample = self.tiles(self.x[2:])
            samples = _even_block(self.x[0], threads_, max(1, most // of_sample))
            sizes = self.y[2:], self.x[2:], k, c
            block = samples * of_sample
            return WinogradPlan(*sizes, self.kernel[0], self.pad, block, half=self.half)
        block = _even_block(self.x[0] * self.tiles(self.y[2:]), threads_, most)
        return WinogradPlan(
            self.x[2:], self.y[2:], c, k, self.kernel[0], self.pad, block,
            getattr(op, "bias", False), bool(getattr(op, "residual", 0)),
            getattr(op, "activation", "") == "relu", half=self.half,
        )  # fmt: skip

    def _most_tiles(self, threads_: int) -> int:
        """The most tiles of a block. With 256-bit vectors, whether it stays in the L2 cache depends
        on what is read more: filters for each block, or the block's tiles from the L3 cache."""
        c, k = padded(self.x[1]), padded(self.y[1])
        of_tile, filters = TAPS * (c + k), TAPS * c * k
        if not self.half:
            return max(12, _BLOCK_FLOATS // of_tile)
        tiles = -(-self.x[0] * self.tiles(self.y[2:]) // threads_)
        few, many = max(12, _L2_FLOATS // of_tile // 6 * 6), max(12, _MOST_BLOCK_FLOATS // of_tile)
        kept = filters * -(-tiles // few) if filters > _L2_FLOATS else 0
        spilled = 2 * tiles * of_tile + filters * -(-tiles // many)
        return few if kept < spilled else many

    def filter_plan(self) -> FilterPlan:
        """The transformation of the filters."""
        mirrored = bool(self.op.op.flip) != (self.backward and not self.adjoint)
        sizes = self.x[1], self.y[1], self.kernel[0]
        return FilterPlan(*sizes, self.backward, mirrored, panels=self.half)


def _even_block(count: int, threads_: int, most: int) -> int:
    """The size of blocks of ``count`` items: at most ``most``, and even between threads."""
    rounds = max(1, -(-count // (threads_ * most)))
    return -(-count // (threads_ * rounds))


def scratch_of(sizes: ConvSizes, matrices: int, blocks: int, activations: Sequence[Any]) -> Scratch:
    """Scratch memory: floats of matrices and of blocks of tiles, then activations in NHWC."""
    copies = () if sizes.nhwc else activations
    return Scratch([4 * n for n in (matrices, blocks, *map(prod, copies))])


def _scratch(sizes: ConvSizes, count: int) -> Scratch:
    plan = sizes.plan(count)
    activations = [sizes.x, sizes.y, *([sizes.y] if plan.residual else [])]
    matrices = TAPS * sizes.filter_plan().step
    return scratch_of(sizes, matrices, plan.thread_floats * count, activations)


class WinogradLaunch:
    """``launch(inputs, outputs, workspace)`` of a forward convolution or its input's gradient.

    With ``sums``, after each launch :attr:`sums` has the sums of results and of their squares,
    float64 of shape (threads, 2, channels padded to whole vectors).
    """

    def __init__(self, call: Call, sums: bool = False) -> None:
        # The plan is for the maximum of threads, so that fewer threads run the same code.
        sizes, count, most = ConvSizes(call), thread_pools.set_threads(), threads.maximum()
        self._sizes, self._scratch = sizes, _scratch(sizes, most)
        plan = replace(sizes.plan(most), sums=sums)
        self.sums = np.zeros((count, 2, padded(plan.outputs) if sums else 0))
        filters = sizes.filter_plan()
        made = (adjoint_ir, plan, filters.step) if sizes.adjoint else (winograd_ir, plan)
        self._transform, self._run = (
            threads.kernel(filter_transform_ir, filters),
            threads.kernel(*made),
        )
        tiles = sizes.x[0] * prod(plan.tiles)
        self._transform_words = (_Words * 5)(count, filters.channels, 1)
        self._words = (_Words * 11)(count, -(-tiles // plan.block), 1, tiles)
        self._words[10] = address(self.sums)
        version = version_of(call, sizes.filter_index)
        self._kept = None if version is None else PrepackedInput(version, 4 * TAPS * filters.step)
        self._plan = plan
        self._moves = None if sizes.nhwc else [nhwc_reorders(s) for s in (sizes.x, sizes.y)]

    def __call__(self, inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> None:
        """Transform the filters unless they are prepacked, then convolve all tiles."""
        base, words = self._scratch.begin(workspace), self._words
        self.sums.fill(0)
        words[4] = self._transformed_filters(as_contiguous(inputs[self._sizes.filter_index]), base)
        words[5] = base + self._scratch.places[1]
        x, y = as_contiguous(inputs[self._sizes.input_index]), outputs[0]
        more = as_contiguous(inputs[2]) if self._plan.residual else None
        bias = as_contiguous(inputs[-1]) if self._plan.bias else None
        if self._moves is None:
            self._convolve(x, y, bias, more)
            return
        (to_last, _), (more_to_last, to_first) = self._moves
        at = [base + place for place in self._scratch.places[2:]]
        moved = reorder_to(at[0], to_last, x)
        if more is not None:
            more = reorder_to(at[2], more_to_last, more)
        self._convolve(moved, array_at(at[1]), bias, more)
        to_first(at[1], address(y))

    def _convolve(self, x: Array, y: Array, bias: Array | None, more: object) -> None:
        words = self._words
        words[6], words[7], words[8], words[9] = id(x), id(y), id(bias), id(more)
        self._run(words)

    def _transformed_filters(self, filters: Array, base: int) -> int:
        """The address of the transformed filters; transforms them if they are not prepacked."""
        at, known = (0, False) if self._kept is None else self._kept.place()
        if not known:
            at = at or base
            words = self._transform_words
            words[3], words[4] = id(filters), at
            self._transform(words)
        return at


def reorder_to(at: int, move: BoundPrimitive, array: Array) -> Any:
    """Reorder an array to memory at an address; returns its :func:`array_at`."""
    move(address(array), at)
    return array_at(at)


def array_at(at: int) -> Any:
    """An array object with this data pointer, whose shape is not used."""
    return np.ctypeslib.as_array((ctypes.c_float * 1).from_address(at))


def nhwc_reorders(shape: tuple[int, ...]) -> tuple[BoundPrimitive, BoundPrimitive]:
    """Reorders of NCHW activations to NHWC, and back."""
    first = Layout(shape, "float32")
    pair = describe(first), describe(first.channels_last())
    names = ("src", "dst")
    return BoundPrimitive(reorder(*pair), names), BoundPrimitive(reorder(*pair[::-1]), names)


KERNELS: tuple[Row, ...] = (((OneDnnConv, OneDnnConvGradI), (WinogradKernel(),)),)
