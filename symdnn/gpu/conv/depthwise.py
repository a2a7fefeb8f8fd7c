"""Depthwise convolution with channels last by a kernel of ours, forward and for the input.

Each channel has its own filter, so there is nothing for tensor cores, and cuDNN's kernels take
several times as long as the memory needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from symdnn.gpu.codegen.cuda_source import scalar_function
from symdnn.gpu.codegen.device_source import CTYPES, specialised, text_of
from symdnn.gpu.codegen.launches import CudaKernel, KernelLaunch, View, blocks_for, prefers_cudnn
from symdnn.gpu.conv.launch import layout, signature
from symdnn.gpu.device.array import RawArray
from symdnn.graph.kernel import Call
from symdnn.ops.nn.conv import resolved_padding
from symdnn.ops.vendor.gpudnn import GpuDnnConvGradI

_DTYPES = ("float16", "bfloat16", "float32")
#: The largest filters and strides, and operands of an epilogue.
_MOST_TAPS, _MOST_STRIDE, _MOST_EXTRAS = 7, 2, 3
#: Input and result in 16 bits: of larger ones cuDNN's kernels were as fast or faster on an H200.
_MOST_NARROW_BYTES = 64 << 20
#: Rows and columns of the output pixels of a thread, and the registers of its sums and operands.
_ROWS, _COLUMNS, _MOST_REGISTERS = (1, 2, 4), range(1, 9), 90
#: Instructions of an operand of a thread beside those that multiply it.
_OPERAND_COST = 4
#: Pairs of channels of a block, its threads, and blocks that keep a large device busy.
_MOST_PAIRS, _THREADS, _BLOCKS = 64, 256, 2112


@dataclass(frozen=True)
class _Task:
    """Sizes of a call: of images, result, filters; zeros before each dimension."""

    x: tuple[int, ...]
    y: tuple[int, ...]
    taps: tuple[int, int]
    stride: tuple[int, int]
    pads: tuple[int, int]
    flip: bool

    @property
    def pairs(self) -> int:
        """Pairs of channels of a block, which divide all."""
        whole = self.x[3] // 2
        return max(n for n in range(1, _MOST_PAIRS + 1) if whole % n == 0)

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a thread, by the least instructions of all threads."""
        _, height, width, _ = self.y
        (kh, kw), (sh, sw) = self.taps, self.stride

        def cost(tile: tuple[int, int]) -> float:
            rows, columns = tile
            items = -(-height // rows) * -(-width // columns)
            reads = ((rows - 1) * sh + kh) * ((columns - 1) * sw + kw)
            return items * (2 * kh * kw * rows * columns + _OPERAND_COST * reads)

        tiles = [
            (rows, columns) for rows in _ROWS for columns in _COLUMNS
            if 2 * (rows * columns + (columns - 1) * sw + kw) <= _MOST_REGISTERS
        ]  # fmt: skip
        return min(tiles, key=cost)


def _task(call: Call) -> _Task | str:
    """The task of a call with known sizes, or why there is none."""
    op: Any = call.op
    if op.ndim != 2 or layout(call) != "NHWC":
        return "it is for two dimensions, channels last"
    backward = isinstance(op, GpuDnnConvGradI)
    x, w = (t.shape for t in (call.inputs[:2] if not backward else call.inputs[1::-1]))
    taps, channels = (w[1], w[2]), x[3]
    if op.groups != channels or w[0] != channels or w[3] != 1 or channels % 2:
        return "it is for a filter a channel, of an even number of channels"
    if max(taps) > _MOST_TAPS or set(op.dilation) != {1}:
        return f"it is for filters of up to {_MOST_TAPS} pixels, not dilated"
    if max(op.stride) > (1 if backward else _MOST_STRIDE):
        return "it has no code for this stride"
    before = [resolved_padding(p, k, 1)[0] for p, k in zip(op.padding, taps)]
    if backward:
        before = [k - 1 - b for k, b in zip(taps, before)]
    pads = int(before[0]), int(before[1])
    flip = bool(op.flip) != backward
    return _Task(x, call.outputs[0].shape, taps, tuple(op.stride), pads, flip)


def _kind(shape: Sequence[int], out: Sequence[int]) -> int | None:
    """Which elements an operand of the epilogue has: one, those of channels, or of pixels."""
    if all(n == 1 for n in shape):
        return 0
    if tuple(shape) == tuple(out):
        return 2
    return 1 if shape[-1] == out[-1] and all(n == 1 for n in shape[:-1]) else None


class DepthwiseKernel(CudaKernel[Any]):
    """One kernel, with the epilogue."""

    name = "cuda.depthwise"
    contiguous_inputs = True

    def refuses(self, call: Call[Any]) -> str | None:
        """Convolutions whose algorithm is named, other types, and other convolutions."""
        if not call.has_sizes:
            return "which convolutions it takes depends on sizes"
        if reason := prefers_cudnn(call):
            return reason
        op, (y,) = call.op, call.outputs
        dtypes = {t.dtype for t in (*call.inputs[:2], y)}
        if not dtypes <= {*_DTYPES} or len({t.dtype for t in call.inputs[:2]}) > 1:
            return f"it has no code for {', '.join(sorted(dtypes))}"
        found = _task(call)
        if isinstance(found, str):
            return found
        extras = _extras(call)
        if op.output_index is not None or len(extras) > _MOST_EXTRAS:
            return "it does not add to another array"
        if any(_kind(t.shape, y.shape) is None for t in extras):
            return "it has no code for the shapes of the epilogue's operands"
        sizes = [prod(t.shape) for t in (*call.inputs[:2], y)]
        if max(sizes) >= 2**31:
            return "it counts in 32 bits"
        s = signature(call)
        if not isinstance(s.wanted, str) or s.names_one:
            return "an algorithm of cuDNN is named"
        if s.compute == "float64":
            return "it adds in float32"
        if "float32" not in dtypes and 2 * sum(sizes) > _MOST_NARROW_BYTES:
            return "cuDNN is as fast for large arrays in 16 bits"
        return None

    def accepts(self, index: int, array: RawArray) -> bool:
        """Contiguous operands at addresses of pairs."""
        return array.contiguous and array.ptr % (2 * array.itemsize) == 0

    def launches(
        self, call: Call[Any], inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """One kernel; of empty results none."""
        task, (y,) = _task(call), outputs
        assert isinstance(task, _Task)
        if y.size == 0:
            return []
        backward = isinstance(call.op, GpuDnnConvGradI)
        x, w = (inputs[1], inputs[0]) if backward else inputs[:2]
        extras = [] if backward else list(inputs[2:])
        kinds = [_kind(v.shape, y.shape) or 0 for v in extras]
        pairs, (rows, columns) = task.pairs, task.tile
        lines = max(1, _THREADS // pairs)
        n, height, width, channels = task.y
        items = n * -(-height // rows) * -(-width // columns)
        tiles = channels // (2 * pairs)
        blocks = blocks_for(items, lines, max(1, _BLOCKS // tiles)) * tiles
        source = _source(call, x, y, extras, kinds, task, lines)
        pointers = [v.pointer for v in extras] + [0] * (_MOST_EXTRAS - len(extras))
        sizes = (items, height, width, *task.pads)
        parameters = (x.pointer, w.pointer, y.pointer, *pointers, *sizes)
        return [KernelLaunch(source, "depthwise", (blocks,), (pairs * lines,), parameters)]


def _extras(call: Call[Any]) -> Sequence[Any]:
    """The operands of the epilogue."""
    return () if isinstance(call.op, GpuDnnConvGradI) else call.inputs[2:]


def _source(
    call: Call[Any], x: View, y: View, extras: Sequence[View], kinds: Sequence[int], task: _Task,
    lines: int,
) -> str:  # fmt: skip
    epilogue = call.op.epilogue
    types = {f"E{i}": CTYPES[v.dtype] for i, v in enumerate(extras)}
    types = {**dict.fromkeys(("E0", "E1", "E2"), "float"), **types}
    (kh, kw), (sh, sw), (rows, columns) = task.taps, task.stride, task.tile
    _, height, width, channels = task.x
    macros = specialised(
        "scalar.cuh", T=CTYPES[x.dtype], Y=CTYPES[y.dtype], KH=kh, KW=kw, SH=sh, SW=sw, TH=rows,
        TW=columns, HEIGHT=height, WIDTH=width, CHANNELS=channels, PAIRS=task.pairs, LINES=lines,
        FLIP=int(task.flip), **types,
    )  # fmt: skip
    if epilogue is None:
        finish, printed = "(y) = convert<Y>(sum)", ""
    else:
        first = CTYPES[epilogue.program.inputs[0]]
        read = [f"p.e{i}[place({k}, channel, at)]" for i, k in enumerate(kinds)]
        finish = f"finish({', '.join([f'convert<{first}>(sum)', *read, 'y'])})"
        printed = scalar_function(epilogue.program, "finish")
    defined = f"#define FINISH(sum, channel, at, y) {finish}\n"
    return macros + printed + defined + text_of("depthwise.cu")
