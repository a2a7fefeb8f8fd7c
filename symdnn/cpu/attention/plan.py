"""What code of attention depends on, the words of its block, and the sizes of its tiles."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from symdnn.cpu.gemm.gemm_ir import shape_of
from symdnn.cpu.ir.builder import WIDTH

#: Operands and results of both passes, in the order of the ops.
RESULT = ("q", "k", "v", "out", "lse")
GRADIENT = ("q", "k", "v", "out", "lse", "dout", "dlse", "dq", "dk", "dv")
#: Those of four dimensions, whose strides are words.
STRIDED = frozenset({"q", "k", "v", "out", "dout", "dq", "dk", "dv", "mask"})
#: Words that are array objects; 0 where there is none.
OBJECTS = (*GRADIENT, "mask", "key_lengths", "query_lengths", "state", "rate", "scratch")
#: Most queries and keys of a tile, and most bytes of the operands of one of its products.
_MAX_QUERIES, MAX_KEYS, _MAX_BYTES = 96, 96, 1 << 17
#: The gradient of fewer heads of keys is divided into about so many tasks.
_MIN_TASKS = 8


@dataclass(frozen=True)
class AttentionPlan:
    """What the text of a kernel depends on; the code serves all sizes and strides.

    ``width`` is that of the processor's vectors, ``mask`` the mask's dtype or "", lengths the
    dtypes of the lengths or "". ``banded``: keys are hidden by a window or a causal mask.
    """

    width: int
    dtype: str
    backward: bool
    banded: bool = False
    capped: bool = False
    mask: str = ""
    key_lengths: str = ""
    query_lengths: str = ""
    drops: bool = False
    of_lse: bool = False


@dataclass(frozen=True)
class Blocks:
    """Sizes of tiles and of a thread's scratch memory for ``features`` of queries and of values.

    They do not depend on the number of threads, so neither do results.
    """

    plan: AttentionPlan
    queries: int
    keys: int
    features: tuple[int, int]

    @property
    def columns(self) -> int:
        """Columns of a panel of the GEMM."""
        return shape_of(self.plan.width).columns

    @property
    def block_q(self) -> int:
        """Queries of a tile, whole panels of them."""
        most = _MAX_QUERIES
        while most > 48 and 4 * most * max(self.features) > _MAX_BYTES:
            most //= 2
        count = ceil(max(self.queries, 1) / most)
        return ceil(ceil(max(self.queries, 1) / count) / WIDTH) * WIDTH

    @property
    def block_k(self) -> int:
        """Keys of a tile."""
        most = MAX_KEYS
        while most > 48 and 4 * most * max(self.features) > _MAX_BYTES:
            most //= 2
        count = ceil(max(self.keys, 1) / most)
        return ceil(max(self.keys, 1) / count)

    @property
    def line(self) -> int:
        """Bytes of a row of a tile.

        It is an odd number of cache lines, so that a column uses all sets of the first cache.
        """
        return 64 * (self.block_q // WIDTH | 1)

    def floats(self) -> dict[str, int]:
        """Sizes of a thread's buffers in floats; their offsets are words of these names."""
        plan, (d, e) = self.plan, self.features
        q, k, tile = self.block_q, self.block_k, self.block_k * self.line // 4
        panel_q = self._panels(q)
        found = {"at_qt": panel_q * d, "at_st": tile, "at_stats": 4 * q}
        if plan.mask:
            found |= {"at_mt": tile, "at_raw": q * k}
        if plan.drops:
            found |= {"at_kt": tile, "at_drawn": q * k + WIDTH}
        if plan.dtype != "float32":
            found["at_wide"] = max(q, k) * max(d, e)
        if not plan.backward:
            return {**found, "at_acc": q * e, "at_vp": self._panels(e) * k}
        found |= {
            "at_dot": panel_q * e, "at_dt": tile, "at_qp": self._panels(d) * q,
            "at_dop": self._panels(e) * q, "at_kp": self._panels(d) * k,
        }  # fmt: skip
        if plan.dtype != "float32":
            found |= {"at_wide2": q * e, "at_dqw": q * d, "at_sums": self.keys * (d + e)}
        return found

    def parts(self, heads: int, share: int) -> int:
        """Parts of the queries of a head of keys, each a task with sums of its own.

        There are several where heads alone would be tasks for few threads.
        """
        return min(ceil(_MIN_TASKS / heads), share * ceil(self.queries / self.block_q))

    def _panels(self, n: int) -> int:
        return ceil(n / self.columns) * self.columns


#: Sizes and settings, after the number of threads and the counter of tasks.
_SIZES = (
    "threads", "next", "tasks", "own", "heads", "groups", "share", "queries", "keys", "features",
    "values", "block_q", "block_k", "blocks_q", "line", "left", "right", "from_last", "scale",
    "cap", "parts", "partial", "gathers",
)  # fmt: skip
_BUFFERS = (
    "at_qt", "at_st", "at_stats", "at_mt", "at_raw", "at_kt", "at_drawn", "at_wide", "at_acc",
    "at_vp", "at_dot", "at_dt", "at_qp", "at_dop", "at_kp", "at_wide2", "at_dqw", "at_sums",
)  # fmt: skip


def words() -> tuple[str, ...]:
    """The words of a block: sizes, offsets of buffers, array objects, strides in bytes."""
    strides = [f"{n}_{axis}" for n in OBJECTS if n in STRIDED for axis in "bht"]
    return (*_SIZES, *_BUFFERS, *OBJECTS, *strides)
