"""A progress bar for people who watch; nothing where the output is no terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

__all__ = ["Bar", "bar"]


class Bar:
    """Shows nothing: what ``fit`` has where nobody looks."""

    def start(self, epoch: int, epochs: int, batches: int | None, done: int) -> None:
        """An epoch (from 1) begins, or goes on after ``done`` batches."""

    def step(self, loss: float) -> None:
        """A batch is done; ``loss`` is the epoch's mean so far."""

    def row(self, text: str) -> None:
        """An epoch is done."""


class _Shown(Bar):
    def __init__(self, progress: Any) -> None:
        self._progress, self._task = progress, progress.add_task("", loss="")

    def start(self, epoch: int, epochs: int, batches: int | None, done: int) -> None:
        text = f"epoch {epoch}/{epochs}"
        self._progress.reset(self._task, total=batches, completed=done, description=text, loss="")

    def step(self, loss: float) -> None:
        self._progress.update(self._task, advance=1, loss=f"loss {loss:.4g}")

    def row(self, text: str) -> None:
        self._progress.console.print(text, highlight=False)


@contextlib.contextmanager
def bar(wanted: bool | None) -> Iterator[Bar]:
    """A bar for the time of the ``with``; None: where the output is a terminal."""
    from rich.console import Console

    console = Console()
    if not (console.is_terminal if wanted is None else wanted):
        yield Bar()
        return
    from rich import progress

    columns = (
        progress.TextColumn("{task.description}"), progress.BarColumn(),
        progress.MofNCompleteColumn(), progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[loss]}"),
    )  # fmt: skip
    with progress.Progress(*columns, console=console, transient=True) as shown:
        yield _Shown(shown)
