"""What the LLVM IR of rows that are read once depends on, and the words of its block."""

from __future__ import annotations

from dataclasses import dataclass

from symdnn.cpu.ir.loops_ir import LoopOperand
from symdnn.ops.lowered.fused_rows import FusedRows

#: Rows of a band, so that with some elements of each it stays in the first cache.
BAND_LANES = 256
#: Rows of a band whose operands are turned: some tiles of up to 64 numbers of each.
TURNED_LANES = 64
#: Elements of a row whose terms are kept in a line on the stack, which stays in the first cache.
LINE = 1 << 13
#: Index of the word that is set if a label is out of range.
FLAG = 3


@dataclass(frozen=True)
class RowPlan:
    """What the text depends on.

    ``reads`` are the operands of ``op``, by their stride along the innermost loop. ``order`` has
    the names of all operands as the call has them: ``x0``, ... that are read, results ``y0``, ...,
    row values ``r0``, ... that are kept, sums over all rows ``s0``, ...; for classes ``label``, and
    ``loss``, the result at the label with its sign changed. A ``label`` without ``loss`` is where
    ``x1`` is taken from the result. ``work`` is the dtype of row values, ``adds`` that of
    sums, ``kept_as`` that of row values which are kept. ``kept`` and ``along`` are numbers of axes:
    of rows (without the lanes), and of those folded around the innermost one. Of bands, ``turned``
    are the operands whose rows are contiguous. Rows whose terms are kept ``apart`` have a line for
    them, of up to :data:`LINE` elements.
    """

    op: FusedRows
    reads: tuple[LoopOperand, ...]
    order: tuple[str, ...]
    work: str
    adds: str
    kept: int
    along: int
    bands: bool
    length: int = 0
    label: str = ""
    kept_as: str = ""
    turned: tuple[str, ...] = ()
    apart: bool = False

    @property
    def lanes(self) -> int:
        """Rows of a band."""
        return TURNED_LANES if self.turned else BAND_LANES

    @property
    def names(self) -> list[str]:
        """Names of the operands that have steps: those that are read, results, row values."""
        return sorted(n for n in self.order if n[0] in "xyr" or n in ("label", "loss"))

    def dtype(self, name: str) -> str:
        """The dtype of an operand."""
        if name == "label":
            return self.label
        if name[0] == "x":
            return self.reads[int(name[1:])].dtype
        return self.kept_as if name[0] == "r" else self.op.after.output_dtypes[0]

    def kind_of(self, name: str) -> str:
        """The stride of an operand along the innermost loop."""
        return self.reads[int(name[1:])].inner if name[0] == "x" else "dense"


def row_words(plan: RowPlan) -> list[str]:
    """Names of the words of the block.

    There are ``all`` rows, in ``tasks``; of bands ``m`` lanes in ``JB`` bands. A row has ``count``
    elements: ``A`` times ``n``. An operand has steps ``i`` along the innermost folded axis, ``a0``,
    ... along the others, ``k0``, ... from row to row, in bytes; one that is turned has ``l`` from
    lane to lane.
    """
    names = ["threads", "tasks", "one", "flag", "all", "m", "JB", "count", "A", "n"]
    names += [f"kn{d}" for d in range(1, plan.kept)] + [f"an{d}" for d in range(1, plan.along)]
    for name in plan.names:
        names += [f"{name}.i", *(f"{name}.k{d}" for d in range(plan.kept))]
        names += [f"{name}.l"] * (name in plan.turned)
        names += [f"{name}.a{d}" for d in range(plan.along)]
    return [*names, "partial", *plan.order]
