"""``f.dnn_report()``: the library's algorithm for each node, and why it was chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from symdnn.compile.plan.plan import Plan
from symdnn.errors import OptionError
from symdnn.graph.library_use import LibraryUse
from symdnn.graph.variable import Apply
from symdnn.tuning import replay
from symdnn.tuning.overrides import names_of

_COLUMNS = (
    "plan", "op", "requested", "used", "api", "engine", "workspace", "ms", "fixed", "precision",
    "line",
)  # fmt: skip
_MAX_NAME_CHARACTERS = 44


@dataclass(frozen=True)
class DnnRow:
    """One node in one plan, with the plan's shapes and the library's algorithm."""

    node: Apply
    plan: int
    shapes: tuple[tuple[int, ...], ...]
    use: LibraryUse

    @property
    def line(self) -> str:
        """The user's line."""
        return str(self.node.origin)

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        use = self.use
        return (
            str(self.plan), type(self.node.op).__name__, use.requested, _cut(use.used), use.api,
            use.engine, str(use.workspace_bytes), "-" if use.ms is None else f"{use.ms:.4g}",
            "yes" if use.deterministic else "no", use.precision, self.line,
        )  # fmt: skip


@dataclass(frozen=True)
class DnnReport:
    """A row for each node that a library chose an algorithm for, in each plan made so far.

    Workspaces are in bytes, times in milliseconds; ``fixed``: it gives the same bits each time.
    """

    rows: tuple[DnnRow, ...]

    def save(self, path: str | Path) -> None:
        """Write the report as JSON to a file whose name ends in ``.json``.

        With the flag ``dnn.conv.overrides=path`` another run gives cuDNN's convolutions the same
        algorithms. Raises :class:`~symdnn.errors.OptionError` for another name, and ``OSError``.
        """
        if not str(path).endswith(replay.SUFFIX):
            raise OptionError(f"the file of a report: wanted a name *{replay.SUFFIX}, got {path}")
        replay.write(path, map(_as_json, self.rows))

    def used(self) -> list[str]:
        """The names of the algorithms that run, in the order of the rows."""
        return [row.use.used for row in self.rows]

    def __str__(self) -> str:
        if not self.rows:
            return (
                "no plan has a node that a library chose an algorithm for (plans are made at the "
                "first call)"
            )
        return "\n".join(_lines(self.rows))


def dnn_report(plans: Sequence[Plan]) -> DnnReport:
    """The report on the plans that a function has made so far."""
    return DnnReport(tuple(_rows(plans)))


def _as_json(row: DnnRow) -> dict[str, Any]:
    found = asdict(row.use)
    record = dict(found.pop("record"))
    where = {
        "op": type(row.node.op).__name__, "names": list(names_of(row.node)), "line": row.line,
        "plan": row.plan, "shapes": [list(s) for s in row.shapes],
    }  # fmt: skip
    return {**where, **found, "record": record}


def _rows(plans: Sequence[Plan]) -> Iterator[DnnRow]:
    for number, plan in enumerate(plans):
        spec = plan.specialised
        for node, choice in spec.choices.items():
            use = choice.kernel.library_use(spec.call(node))
            if use is not None:
                given = (spec.shapes[v] for v in (*node.inputs, *node.outputs) if v in spec.shapes)
                yield DnnRow(node, number, tuple(s for s in given if s), use)


def _lines(rows: Sequence[DnnRow]) -> Iterator[str]:
    table = [_COLUMNS, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for i, cells in enumerate(table):
        yield "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip()
        if i:
            use = rows[i - 1].use
            yield from (f"      {text}" for text in (use.why, use.fallback, use.check) if text)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_NAME_CHARACTERS else f"{text[: _MAX_NAME_CHARACTERS - 3]}..."
