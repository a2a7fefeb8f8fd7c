"""Products by kept parameters with the tiles of convolutions, where vectors have 256 bits.

A product is a convolution of 1x1 pixels. Its tiles (:mod:`symdnn.cpu.conv.direct_ir`) go through a
panel with all rows, fetching the next one meanwhile. One core of Zen 3 (AVX2) takes 3.0 ms for 50
rows and 768 x 3072 (tiles of :mod:`symdnn.cpu.gemm.gemm_ir` with kept panels 3.8), 7.5 for 128 rows
(8.5), 0.68 for 197 rows and 192 x 768 (0.76), 92 for 1600 rows and 768 x 3072 (104).

Terms are added in the same blocks and order as there, so results are the same bits.
"""

from __future__ import annotations

import ctypes
import struct
from math import inf
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.conv.direct import DirectSizes
from symdnn.cpu.conv.direct_ir import WORDS, direct_ir
from symdnn.cpu.conv.direct_tile_ir import LANES, PANEL
from symdnn.cpu.gemm.gemm_kept import KeptPanels
from symdnn.cpu.onednn.kernel import PrepackedInput, version_of
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call
from symdnn.graph.typing import Array, Arrays

#: Rows: with fewer a tile is not full; for more the memory of kept panels gains less.
_MIN_ROWS, _MAX_ROWS = 4, 4096
#: Fewest multiplications: asking whether a parameter has changed takes some 5 us.
_MIN_MULTIPLICATIONS = 1 << 23
#: Multiplications for which waking up another thread pays.
_MULTIPLICATIONS_PER_THREAD = 1 << 18
_Words = ctypes.c_int64


class DirectProduct(KeptPanels):
    """``run(arrays)`` of (a, b, c) or (a, b, bias or addend, c), all but ``b`` contiguous.

    Panels of a block of terms follow those of the block before.
    """

    def __init__(self, kept: PrepackedInput, call: Call, block_terms: int) -> None:
        op: Any = call.op
        (rows, terms), columns = call.inputs[0].shape, call.outputs[0].shape[-1]
        super().__init__(kept, (terms, columns), PANEL)
        self._starts = range(0, terms, block_terms)
        self._panels = -(-columns // PANEL)
        self._zeros = np.zeros(1, np.float32)
        self._run = threads.kernel(direct_ir, LANES)
        count = threads.threads(rows * terms * columns, _MULTIPLICATIONS_PER_THREAD)
        relu = op.activation == "relu"
        self._blocks = [
            self._words((rows, columns), min(block_terms, terms - at), count,
                        0.0 if relu and at == self._starts[-1] else -inf)
            for at in self._starts
        ]  # fmt: skip
        names = ["x", "filters", *["more"] * bool(op.residual), *["bias"] * bool(op.bias), "y"]
        self._at = [WORDS.index(n) for n in names]

    def _words(self, sizes: tuple[int, int], terms: int, count: int, low: float) -> Any:
        rows, columns = sizes
        ones = "in_w k_h k_w out_w stride_h stride_w step_h step_w taps same"
        values = dict.fromkeys(ones.split(), 1)
        values |= {
            "in_h": rows, "out_h": rows, "pixels": rows, "channels": self.terms,
            "results": columns, "terms": terms, "group_panels": self._panels,
            "group_out": columns, "panels": self._panels, "zeros": id(self._zeros),
        }  # fmt: skip
        for name, limit in (("low", low), ("high", inf)):
            (values[name],) = struct.unpack("<i", struct.pack("<f", limit))
        values |= DirectSizes(values, 4 * PANEL * self._panels * terms).parts(count)
        return (_Words * len(WORDS))(*(values.get(n, 0) for n in WORDS))

    def run(self, arrays: Arrays, panels: Any) -> None:
        """Multiply block by block; ``panels`` is what :meth:`of` gave."""
        a, y = arrays[0], arrays[-1]
        for i, (start, words) in enumerate(zip(self._starts, self._blocks)):
            for at, array in zip(self._at, arrays):
                words[at] = id(array)
            begun = a[:, start:], panels[4 * start * self._panels * PANEL :]
            words[_X], words[_FILTERS] = map(id, begun)
            if i:
                words[_BIAS], words[_MORE] = 0, id(y)
            self._run(words)

    def _pack(self, b: Array, memory: Any) -> None:
        size = self._panels * PANEL
        floats = memory.view(np.float32)
        stops = [*self._starts[1:], self.terms]
        for start, stop in zip(self._starts, stops):
            self._pack_terms(b[start:stop], floats[start * size : stop * size])


_X, _FILTERS, _BIAS, _MORE = (WORDS.index(n) for n in ("x", "filters", "bias", "more"))


def direct_product(call: Call, block_terms: int) -> DirectProduct | None:
    """The product of a call by panels that are kept; None where another kernel is as fast."""
    a, b = (t.shape for t in call.inputs[:2])
    if len(a) != 2 or len(b) != 2 or not config.keep_prepared or jit.vector_width() != LANES:
        return None
    if not _MIN_ROWS <= a[0] <= _MAX_ROWS or a[0] * b[0] * b[1] < _MIN_MULTIPLICATIONS:
        return None
    version = version_of(call, 1)
    if version is None or jit.problem():
        return None
    nbytes = 4 * -(-b[1] // PANEL) * PANEL * b[0]
    return DirectProduct(PrepackedInput(version, nbytes), call, block_terms)
