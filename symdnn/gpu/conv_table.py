"""The table of cuDNN's algorithms for one convolution: ``symdnn algos``, and for programs.

``print(algorithms(conv((64, 128, 112, 112), (128, 128, 7, 7), pad=3)))`` shows which are supported,
with workspace, time and error. ``algorithms(layer, time=False)`` measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from symdnn.config import config
from symdnn.errors import ShapeMismatch
from symdnn.gpu.conv import folded
from symdnn.gpu.conv.candidate import OWN, OWN_API, Candidate
from symdnn.gpu.conv.measure import measure
from symdnn.gpu.conv.search import Search
from symdnn.gpu.conv.signature import DIRECTIONS, ConvSignature
from symdnn.gpu.device.context import context
from symdnn.ops.nn.conv_words import allows_tf32
from symdnn.ops.vendor.gpudnn_conv import compute_precision
from symdnn.tuning.attempts import Attempt

__all__ = ["AlgorithmTable", "TableRow", "algorithms", "conv", "row_of"]

Sizes = int | Sequence[int]
_ALLOWED = {
    "direction": tuple(DIRECTIONS),
    "dtype": ("float32", "float16", "bfloat16", "float64"),
    "layout": ("NCHW", "NHWC"),
}


@dataclass(frozen=True)
class TableRow:
    """An algorithm (``number`` in cuDNN's enum) or a plan (``number`` of its engine).

    ``why`` says why it is not supported, or why it has no time. ``ms`` is its time in milliseconds,
    ``error`` the relative difference of its result from a trusted algorithm's in the 2-norm, and
    ``millijoules`` its energy, if it was asked for.
    """

    api: str
    name: str
    number: int
    supported: bool
    workspace_bytes: int = 0
    deterministic: bool = True
    ms: float | None = None
    error: float | None = None
    why: str = ""
    millijoules: float | None = None

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        if not self.supported:
            return self.api, str(self.number), self.name, "-", "-", "-", "-", "-", self.why
        return (
            self.api, str(self.number), self.name,
            "-" if self.ms is None else f"{self.ms:.4f}", str(self.workspace_bytes),
            "-" if self.millijoules is None else f"{self.millijoules:.4g}",
            "yes" if self.deterministic else "no",
            "-" if self.error is None else f"{self.error:.1e}", self.why,
        )  # fmt: skip


@dataclass(frozen=True)
class AlgorithmTable:
    """Rows sorted by time, then rows without a time, then unsupported ones."""

    signature: ConvSignature
    rows: tuple[TableRow, ...]
    problem: str = ""

    def supported(self) -> list[TableRow]:
        """The rows of supported algorithms and plans."""
        return [row for row in self.rows if row.supported]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield str(self.signature)
        if self.problem:
            yield f"not timed: {self.problem}"
        head = ("api", "number", "algorithm", "ms", "workspace", "mJ", "fixed", "error", "")
        table = [head, *(row.cells() for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for cells in table:
            yield "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip()


def conv(
    input: Sequence[int],
    filter: Sequence[int],
    pad: Sizes = 0,
    stride: Sizes = 1,
    dilation: Sizes = 1,
    groups: int = 1,
    dtype: str = "float32",
    layout: str = "NCHW",
    direction: str = "fwd",
    tf32: bool | None = None,
    flip: bool = False,
) -> ConvSignature:
    """A convolution for :func:`algorithms`.

    ``input`` is (N, C, sizes) and ``filter`` (K, C / groups, sizes) for any ``layout``.
    ``direction`` is ``fwd``, ``bwd_data`` or ``bwd_filter``. ``tf32=None`` means the flags
    ``dnn.conv.allow_tf32`` and ``dnn.conv.precision``. ``flip`` mirrors the filters.

    >>> conv((64, 128, 112, 112), (128, 128, 7, 7), pad=3).y
    (64, 128, 112, 112)

    Raises :class:`~symdnn.errors.ShapeMismatch`, and ValueError for another word.
    """
    for name, word in (("direction", direction), ("dtype", dtype), ("layout", layout)):
        if word not in _ALLOWED[name]:
            raise ValueError(f"conv: {name}={word!r}; wanted one of {', '.join(_ALLOWED[name])}")
    x, w = tuple(map(int, input)), tuple(map(int, filter))
    _check_shapes(x, w, groups)
    n = len(x) - 2
    p, s, d = (
        _each(v, n, name, least)
        for v, name, least in ((pad, "pad", 0), (stride, "stride", 1), (dilation, "dilation", 1))
    )
    sizes = tuple(
        (size + 2 * p[i] - ((w[2 + i] - 1) * d[i] + 1)) // s[i] + 1 for i, size in enumerate(x[2:])
    )
    if min(sizes) < 1:
        raise ShapeMismatch(
            "a convolution", "a filter that fits into the input; a larger pad would do",
            f"an input {x}, a filter {w}, pad {p}, dilation {d}",
        )  # fmt: skip
    return ConvSignature(
        direction=direction, dtype=dtype, x=x, w=w, y=(x[0], w[0], *sizes), padding=p, stride=s,
        dilation=d, groups=groups, flip=flip,
        compute=compute_precision(str(config.dnn.conv.precision), dtype),
        allow_tf32=allows_tf32() if tf32 is None else tf32,
        wanted="time_once", workspace_limit=int(config.dnn.conv.workspace_limit),
        deterministic=config.deterministic == "more", on_unsupported="raise", layout=layout,
    )  # fmt: skip


def algorithms(
    signature: ConvSignature, time: bool = True, device: int = 0, energy: bool = False
) -> AlgorithmTable:
    """cuDNN's algorithms and plans for a convolution on a GPU, timed unless ``time`` is false.

    With ``energy`` that of the fast ones is measured, too.

    Raises :class:`~symdnn.gpu.device.context.CudaUnavailable` without a GPU.
    """
    ctx = context(device)
    with ctx.current():
        search = Search(signature, ctx.cudnn)
        found = search.all()
        table, problem = [Attempt(c) for c in found], ""
        if time:
            more: dict[str, Any] = {"by": "energy"} if energy else {}
            table, problem = measure(ctx, signature, found, inf, **more)
            table = table or [Attempt(c) for c in found]
    rows = sorted(map(row_of, table), key=lambda r: inf if r.ms is None else r.ms)
    return AlgorithmTable(signature, (*rows, *_refused(search, found)), problem)


def row_of(m: Attempt[Candidate]) -> TableRow:
    """The row of a candidate that was measured."""
    c = m.candidate
    number = c.number if c.plan is None else c.plan.engine
    by_copy = "filters flipped by a copy" * c.flip_by_copy
    return TableRow(
        c.api, c.name, number, True, c.workspace_bytes, c.deterministic, m.ms, m.error,
        ", ".join(filter(None, (m.problem, by_copy))), m.millijoules,
    )  # fmt: skip


def _refused(search: Search, found: Sequence[Candidate]) -> Iterator[TableRow]:
    """Rows of unsupported algorithms of the legacy API and of refused plans."""
    numbers = DIRECTIONS[search.signature.direction].algorithms
    taken, own = {c.name for c in found}, {one.NAME for one in OWN}
    for name, reasons in search.refused.items():
        if name not in taken:
            api = "legacy" if name in numbers else OWN_API if name in own else "graph"
            api = folded.NAME if name == folded.NAME else api
            why = "; ".join(reasons)
            yield TableRow(api, name, numbers.get(name, -1), False, why=why)


def _check_shapes(x: tuple[int, ...], w: tuple[int, ...], groups: int) -> None:
    """Raise ``ShapeMismatch`` for an input and a filter that do not fit together."""
    got = f"an input {x} and a filter {w}"
    if len(x) not in (4, 5) or len(w) != len(x):
        wanted = "(N, C, H, W) and (K, C / groups, h, w), or volumes with D and d before H and h"
        raise ShapeMismatch("a convolution", wanted, got)
    if min(*x, *w, groups) < 1:
        raise ShapeMismatch("a convolution", "sizes and groups of at least 1", f"{got}, {groups=}")
    if x[1] != w[1] * groups or w[0] % groups:
        raise ShapeMismatch(
            "a convolution", f"{x[1]} channels to be groups ({groups}) times the filter's second "
            "size, and its first a multiple of groups", got,
        )  # fmt: skip


def _each(value: Sizes, count: int, name: str, least: int) -> tuple[int, ...]:
    """A size for each dimension. Raises ``ShapeMismatch``."""
    each = (int(value),) * count if isinstance(value, int) else tuple(map(int, value))
    if len(each) != count or min(each) < least:
        wanted = f"{name} as one size or {count}, each at least {least}"
        raise ShapeMismatch("a convolution", wanted, ",".join(map(str, each)))
    return each
