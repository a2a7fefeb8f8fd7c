"""Packed parameters, stored until they change. A GEMM of few rows would spend its time on packing.

A panel has as many columns as a tile, term after term, so that a product reads memory in order. The
kernel of :mod:`symdnn.cpu.gemm.gemm_loops_ir` reads panels as a matrix with other strides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.cpu.onednn.kernel import PrepackedInput, version_of
from symdnn.graph.kernel import Call
from symdnn.graph.typing import Array

#: Matrices of at most this many bytes are not stored: they stay in the L2 cache, and checking
#: whether a parameter has changed takes 3 us. One row and 512 x 1024 take 62 us unpacked and 28 us
#: packed; one row and 768 x 3072 755 and 241, 50 rows 1650 and 1240, 128 rows 3090 and 2760; 512
#: rows and 768 x 768 2520 and 2480.
_SMALL_BYTES = 1 << 20
#: Rows up to which packing is a part of the time that counts.
_MOST_ROWS = 512


class KeptPanels:
    """The second operand, (terms, columns), as (panels, terms, columns of a panel)."""

    def __init__(self, kept: PrepackedInput, sizes: tuple[int, int], columns: int) -> None:
        self._kept, self.columns = kept, columns
        self.terms, self.size = sizes

    def of(self, b: Array) -> Any:
        """Memory with the panels of ``b``; None before its second call with the same value."""
        at, valid = self._kept.place()
        if not at:
            return None
        if not valid:
            self._pack(b, self._kept.memory)
        return self._kept.memory

    def _pack(self, b: Array, memory: Any) -> None:
        self._pack_terms(b, memory.view(np.float32))

    def _pack_terms(self, b: Array, floats: Any) -> None:
        whole, rest = divmod(self.size, self.columns)
        panels = floats.reshape(-1, len(b), self.columns)
        first = b[:, : whole * self.columns].reshape(len(b), whole, self.columns)
        panels[:whole] = first.transpose(1, 0, 2)
        if rest:
            panels[whole] = 0
            panels[whole, :, :rest] = b[:, whole * self.columns :]

    @property
    def words(self) -> dict[str, int]:
        """Words of the kernel's block that say how it reads the panels."""
        row = 4 * self.columns
        return {
            "packs": 0, "b_term": row, "b_column": 4 * self.terms,
            "b_panel_kept": row * self.terms,
        }  # fmt: skip


def kept_panels(call: Call, part: tuple[int, int], columns: int) -> KeptPanels | None:
    """The store of the call's packed second operand; None if packing costs nothing or storing is
    off.

    ``part`` is the number of columns of a thread's part, and of such parts.
    """
    a, b = (t.shape for t in call.inputs[:2])
    if len(b) != 2 or not config.keep_prepared or a[0] > _MOST_ROWS:
        return None
    version = version_of(call, 1)
    aligned = part[1] == 1 or part[0] % columns == 0
    if version is None or not aligned or 4 * b[0] * b[1] <= _SMALL_BYTES:
        return None
    panels = -(-b[1] // columns)
    kept = PrepackedInput(version, 4 * panels * columns * b[0])
    return KeptPanels(kept, (b[0], b[1]), columns)
