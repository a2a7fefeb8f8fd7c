"""Convolutions in NHWC by compiled tiles, preferred to oneDNN's where vectors have 256 bits.

Measured on one core of Zen 3 (AVX2), a batch of 1, microseconds and oneDNN's: 3x3 filters of 64
channels of 56x56 2795 and 3261, 512 of 7x7 2957 and 3425, 256 to 512 with a stride of 2 1578 and
2232; in 13 groups, 104 of 28x28 300 and 473, of 56x56 with a stride of 2 509 and 899; 1x1, 1024 to
256 of 14x14 1213 and 1466, 440 of 7x7 268 and 270, 440 to 110 of one pixel 9 and 16. oneDNN's stay
for padded inputs of up to three channels and for groups that do not fill vectors. Zen 4 has
AVX-512, but computes in halves of its vectors: whole networks take 0.82 (RegNetY-400MF), 0.86
(ResNet-50, with Winograd's tiles) and 0.88 times (MobileNetV3) as long as by oneDNN.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.conv.direct_ir import (
    LIST_BYTES,
    MAX_BLOCK_TILES,
    PACK_WORDS,
    WORDS,
    direct_ir,
    pack_ir,
)
from symdnn.cpu.conv.direct_tile_ir import ENTRY_BYTES, KINDS, LANES, PANEL, PIXELS
from symdnn.cpu.launch.contiguous_launch import compile_refusal
from symdnn.cpu.launch.fastcall import FastCall
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.scratch import GrowingScratch, as_contiguous
from symdnn.cpu.launch.traits import LLVM
from symdnn.cpu.onednn.kernel import PrepackedInput, version_of
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Row
from symdnn.graph.library_use import LibraryUse
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.nn.channels_last import first_shape
from symdnn.ops.nn.conv import resolved_padding
from symdnn.ops.vendor.onednn import OneDnnConv

#: With fewer terms a tap is over before its addresses are read. A row of taps is one tap then, if
#: it lies within the image: 3x3 filters with a stride of 2, 3 to 64 channels of 224x224, take 0.72
#: ms by oneDNN and 0.52 so on Zen 4, 4x4 with a stride of 4 to 96 channels 0.40 and 0.31; 32x32 to
#: 768, rows of 96 terms, 2.12 and 2.33. That is with a ReLU, which runs apart behind oneDNN's:
#: without one, 5x5 filters, 1 to 20 channels of 64 images of 28x28, take 0.62 there and 0.98 so.
_MIN_TERMS, _MAX_TERMS_OF_A_ROW = 4, 48
#: Terms up to which oneDNN's kernels for 512 bits are faster with filters of one pixel: 16 to 96
#: channels of 112x112 take 0.41 ms there and 0.54 here, 24 to 72 of 56x56 0.15 and 0.14; with SiLU
#: the first take 1.12 and 0.94, since its sigmoid is slower.
_FEW_TERMS_OF_512_BITS = 16
#: Terms for each result from which oneDNN's are faster, too, since they wait for the input: 256 to
#: 64 channels of 56x56 take 17.6 ms there and 20.1 here for 16 images, 1.07 and 1.15 for one.
_MANY_TERMS_OF_512_BITS = 4
#: With fewer multiplications compiling gains nothing; multiplications for which waking up another
#: thread pays.
_MIN_MULTIPLICATIONS_TO_COMPILE, _MULTIPLICATIONS_PER_THREAD = 1 << 10, 1 << 18
#: Bytes of the input's pixels that a list of tiles reads: some of a core's L2 cache.
_BLOCK_BYTES, _MIN_BLOCK_TILES = 1 << 17, 8
#: Limits of an activation function.
_LIMITS = {
    "": (-inf, inf), "relu": (0.0, inf), "clip": (0.0, 6.0), "hardsigmoid": (0.0, 1.0),
    "hardswish": (0.0, 1.0), "logistic": (-inf, inf), "swish": (-inf, inf),
}  # fmt: skip
_Words = ctypes.c_int64


class DirectConvKernel(Kernel[OneDnnConv]):
    """The forward pass over two dimensions, with groups and an epilogue."""

    name = "llvm.conv"
    traits = LLVM

    def refuses(self, call: Call[OneDnnConv]) -> str | None:
        """Needs float32, NHWC, vectors of 256 bits, and several channels of a group."""
        op: Any = call.op
        if op.ndim != 2 or op.layout != "NHWC":
            return "it is for images in NHWC"
        if op.activation not in KINDS:
            return f"it has no {op.activation}"
        types = [t for t in (*call.inputs, *call.outputs) if isinstance(t, TensorType)]
        if any(t.dtype != "float32" for t in types):
            return "it computes in float32"
        if not fits_processor():
            return "it is for processors that compute in 256 bits"
        if all(t.is_static for t in types):
            w, groups = call.inputs[1].shape, op.op.groups
            results = w[0] // groups
            few = w[1] <= _FEW_TERMS_OF_512_BITS and op.activation not in ("logistic", "swish")
            few = few or w[1] >= _MANY_TERMS_OF_512_BITS * results
            few = few and jit.halves_vectors() and prod(w[2:]) == 1
            few = few or (jit.halves_vectors() and w[1] < _MIN_TERMS and not op.activation)
            taps, terms = _taps_and_terms(op.op, w)
            if few or terms < _MIN_TERMS or (groups > 1 and results % LANES):
                return "oneDNN is faster for so few channels of a group or of results"
            if ENTRY_BYTES * prod(taps) > LIST_BYTES:
                return "it is for smaller filters"

        def work() -> int:
            return int(prod(call.outputs[0].shape) * prod(call.inputs[1].shape[1:]))

        return compile_refusal(types, work, _MIN_MULTIPLICATIONS_TO_COMPILE)

    def workspace_bytes(self, call: Call[OneDnnConv]) -> int:
        """Packed filters, for calls in which they are not kept."""
        return DirectSizes.of(call).packed_bytes

    def bind(self, call: Call[OneDnnConv]) -> Any:
        """A launch for these sizes."""
        return _DirectLaunch(call)

    def begin(self, call: Call[OneDnnConv]) -> None:
        """Queue the compilation of both modules, which are the same for all sizes."""
        for make in (direct_ir, pack_ir):
            threads.kernel(make, LANES)

    def library_use(self, call: Call[OneDnnConv]) -> LibraryUse:
        """The row of ``f.dnn_report()``."""
        sizes = DirectSizes.of(call)
        return LibraryUse(
            str(config.cpu.compile), "direct", "symdnn", "llvm", sizes.packed_bytes, True,
            "float32", why="tiles of six pixels and 16 channels read packed filters in order",
        )  # fmt: skip


def fits_processor() -> bool:
    """Whether the processor computes in 256 bits; in 512 oneDNN's kernels are as fast."""
    return not jit.problem() and (jit.vector_width() == LANES or jit.halves_vectors())


def _taps_and_terms(conv: Any, w: Sequence[int]) -> tuple[tuple[int, int], int]:
    """The filter's taps along both axes and their terms; a row of taps of few terms is one."""
    height, width = w[2:]
    within = conv.dilation[1] == 1 and not any(resolved_padding(conv.padding[1], width, 1))
    few = w[1] < _MIN_TERMS and width * w[1] <= _MAX_TERMS_OF_A_ROW
    if few and within and conv.groups == 1 and not conv.flip:
        return (height, 1), width * w[1]
    return (height, width), w[1]


@dataclass(frozen=True)
class DirectSizes:
    """Sizes of a call, as words of the kernel's blocks (:data:`WORDS`, :data:`PACK_WORDS`)."""

    words: dict[str, int]
    packed_bytes: int

    @classmethod
    def of(cls, call: Call) -> DirectSizes:
        op: Any = call.op
        conv = op.op
        x, w, y = (tuple(t.shape) for t in (*call.inputs[:2], call.outputs[0]))
        x, y = first_shape(x), first_shape(y)
        around = [resolved_padding(p, k, d) for p, k, d in zip(conv.padding, w[2:], conv.dilation)]
        pads = [before for before, _ in around]
        taps, terms = _taps_and_terms(conv, w)
        results = w[0] // conv.groups
        #: Numbers of a pixel that are pixels of their own, where a row of taps is one tap.
        apart = x[1] if taps[1] < w[3] else 1
        paired = conv.groups > 1 and results == LANES
        group_panels = 1 if paired else -(-results // PANEL)
        panels = -(-conv.groups // 2) if paired else conv.groups * group_panels
        words = {
            "in_h": x[2], "in_w": x[3] * apart, "k_h": taps[0], "k_w": taps[1], "out_h": y[2],
            "out_w": y[3], "pixels": y[0] * y[2] * y[3], "channels": x[1] // apart,
            "results": y[1], "terms": terms,
            "second": terms if paired else 0, "group_panels": group_panels,
            "group_in": 2 * terms if paired else terms,
            "group_out": PANEL if paired else results, "panels": panels,
            "kind": KINDS[op.activation], "taps": prod(taps), "mirrored": int(conv.flip),
        }  # fmt: skip
        moves = (*(n - 1 for n in conv.stride), *(n for pad in around for n in pad))
        words["same"] = int(prod(w[2:]) == 1 and not any(moves))
        for name, pair in (("stride", conv.stride), ("pad", pads), ("step", conv.dilation)):
            words |= {f"{name}_{key}": int(n) for key, n in zip("hw", pair)}
        words["stride_w"] *= apart
        for name, limit in zip(("low", "high"), _LIMITS[op.activation]):
            (words[name],) = struct.unpack("<i", struct.pack("<f", limit))
        return cls(words, 4 * PANEL * panels * terms * prod(taps))

    def parts(self, count: int) -> dict[str, int]:
        """The division among ``count`` threads: of panels where filters are larger than images."""
        words = self.words
        tiles, panels = -(-words["pixels"] // PIXELS), words["panels"]
        by_panels = panels >= count and self.packed_bytes > 4 * words["pixels"] * words["channels"]
        of_panels = count if by_panels or tiles < count else 1
        part_tiles = -(-tiles // (1 if of_panels > 1 else count))
        part_panels = -(-panels // of_panels)
        rows = PIXELS * 4 * words["channels"] * words["stride_h"] * words["stride_w"]
        most = min(MAX_BLOCK_TILES, LIST_BYTES // (ENTRY_BYTES * words["taps"]))
        most = min(most, max(_MIN_BLOCK_TILES, _BLOCK_BYTES // rows))
        blocks = -(-part_tiles // most)
        parts_panels = -(-panels // part_panels)
        return {
            "part_tiles": part_tiles, "part_panels": part_panels, "parts_panels": parts_panels,
            "block_tiles": -(-part_tiles // blocks), "threads": count, "one": 1,
            "tasks": -(-tiles // part_tiles) * parts_panels,
        }  # fmt: skip


class _DirectLaunch(CpuLaunch):
    """``launch(inputs, outputs, workspace)``; packed filters are kept until they change."""

    def __init__(self, call: Call) -> None:
        op: Any = call.op
        sizes = DirectSizes.of(call)
        self._nbytes = sizes.packed_bytes
        work = prod(call.outputs[0].shape) * sizes.words["terms"] * sizes.words["taps"]
        count = threads.threads(work, _MULTIPLICATIONS_PER_THREAD)
        self._zeros = np.zeros(max(sizes.words["channels"], sizes.words["terms"]), np.float32)
        self._rows_are_taps = sizes.words["k_w"] < call.inputs[1].shape[3]
        values = sizes.words | sizes.parts(count) | {"zeros": id(self._zeros)}
        self._words = (_Words * len(WORDS))(*(values.get(n, 0) for n in WORDS))
        packers = threads.threads(self._nbytes // 4, _MULTIPLICATIONS_PER_THREAD)
        values |= {"threads": packers, "tasks": values["panels"]}
        self._pack_words = (_Words * len(PACK_WORDS))(*(values.get(n, 0) for n in PACK_WORDS))
        names = ["x", "filters", *["more"] * bool(op.residual), *["bias"] * bool(op.bias), "y"]
        self._at = [WORDS.index(n) for n in names]
        self._run = threads.kernel(direct_ir, LANES)
        self._pack = threads.kernel(pack_ir, LANES)
        version = version_of(call, 1)
        self._kept = None if version is None else PrepackedInput(version, self._nbytes)
        self._memory = GrowingScratch()
        self._is_native = False

    def __call__(self, inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> None:
        """Pack the filters unless they are kept, then convolve."""
        at, valid = (0, False) if self._kept is None else self._kept.place()
        kept = self._kept.memory if self._kept is not None and at else None
        packed = self._memory.of(workspace, self._nbytes) if kept is None else kept
        if not valid:
            self._packed(inputs[1], packed)
        arrays = [*map(as_contiguous, inputs), *outputs]
        arrays[1] = packed
        for at, array in zip(self._at, arrays):
            self._words[at] = id(array)
        self._run(self._words)

    def native(
        self, inputs: Arrays, outputs: Arrays, workspace: Array | None = None
    ) -> FastCall | None:
        """For contiguous operands, once filters are kept."""
        if self._kept is None or not all(a.flags.c_contiguous for a in (*inputs, *outputs)):
            return None
        if not self._is_native:
            if self._kept.kept() is None:
                return None
            self._is_native = True
        words = type(self._words)(*self._words)
        words[_FILTERS] = id(self._kept.memory)
        at = [-1 if i == _FILTERS else i for i in self._at]
        at += [] if workspace is None else [-1]
        return FastCall.of(self._run, words, at, keep=(self, self._kept.memory),
                           renew=(1, self._renew))  # fmt: skip

    def _renew(self, filters: Array) -> None:
        """Pack the filters again if they have changed."""
        assert self._kept is not None
        if not self._kept.renewed():
            self._packed(filters, self._kept.memory)

    def _packed(self, filters: Array, to: Array) -> None:
        words = self._pack_words
        turned = filters.transpose(0, 3, 1, 2) if self._rows_are_taps else filters
        filters = as_contiguous(turned)
        words[_PACKED_FROM], words[_PACKED_TO] = id(filters), id(to)
        self._pack(words)


_FILTERS = WORDS.index("filters")
_PACKED_FROM, _PACKED_TO = PACK_WORDS.index("filters"), PACK_WORDS.index("to")

KERNELS: tuple[Row, ...] = (((OneDnnConv,), (DirectConvKernel(),)),)
