"""The measures of a training, epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from symdnn.nn.modules.html import html_table

Row = dict[str, Any]


class History:
    """A row for each epoch: ``history["val_loss"]`` is a column, ``history[-1]`` a row.

    ``best_epoch`` counts from 1, as rows do; ``stopped`` says why the training ended early.
    """

    def __init__(self, rows: list[Row] | None = None) -> None:
        self.rows: list[Row] = rows if rows is not None else []
        self.best_epoch: int | None = None
        self.stopped: str | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, what: str | int) -> Any:
        if isinstance(what, str):
            return [row[what] for row in self.rows]
        return self.rows[what]

    def __repr__(self) -> str:
        lines = [f"{len(self)} epochs, best {self.best_epoch}, stopped: {self.stopped or 'no'}"]
        return "\n".join([*lines, *(text_of(row) for row in self.rows)])

    def _repr_html_(self) -> str:
        """The history in a notebook: a table with a row for each epoch."""
        names = list(dict.fromkeys(name for row in self.rows for name in numbers_of(row)))
        shown = [[_cell(numbers_of(row).get(name, "")) for name in names] for row in self.rows]
        caption = f"{len(self)} epochs, best {self.best_epoch}, stopped: {self.stopped or 'no'}"
        return html_table(names, shown, caption, [0] * len(shown))


def _cell(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def text_of(row: Mapping[str, Any]) -> str:
    """The numbers of a row in one line."""
    shown = [
        f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in numbers_of(row).items()
    ]
    return "  ".join(shown)


def numbers_of(row: Mapping[str, Any]) -> dict[str, float | int]:
    """The entries that are single numbers."""
    return {k: v for k, v in row.items() if np.ndim(v) == 0}
