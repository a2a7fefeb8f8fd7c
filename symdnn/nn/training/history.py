"""What a training measured, epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

__all__ = ["History"]

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


def text_of(row: Mapping[str, Any]) -> str:
    """The numbers of a row in one line."""
    shown = [
        f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in numbers_of(row).items()
    ]
    return "  ".join(shown)


def numbers_of(row: Mapping[str, Any]) -> dict[str, float | int]:
    """The entries that are single numbers."""
    return {k: v for k, v in row.items() if np.ndim(v) == 0}
