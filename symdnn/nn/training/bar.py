"""A progress bar on a terminal or in a notebook; elsewhere none."""

from __future__ import annotations

import contextlib
import html
import sys
import time
from collections.abc import Iterator
from typing import Any


class Bar:
    """The bar without output, for runs without a terminal or notebook."""

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


class _InNotebook(Bar):
    """A line of HTML that is replaced, and the epochs' rows above it; needs no widgets."""

    _SECONDS = 0.1

    def __init__(self) -> None:
        shows: Any = sys.modules["IPython.display"]  # a kernel has it
        self._html, self._rows = shows.HTML, [""]
        self._now, self._drawn = "", 0.0
        self._text, self._done, self._of = "", 0, 0
        self._shown: Any = shows.display(shows.HTML(""), display_id=True)

    def start(self, epoch: int, epochs: int, batches: int | None, done: int) -> None:
        self._text, self._done, self._of = f"epoch {epoch}/{epochs}", done, batches or 0

    def step(self, loss: float) -> None:
        self._done += 1
        now = time.monotonic()
        if now - self._drawn < self._SECONDS:
            return
        self._drawn = now
        place = f' value="{self._done}" max="{self._of}"' if self._of else ""
        count = f"{self._done}/{self._of}" if self._of else f"{self._done}"
        text = html.escape(f"{count}  loss {loss:.4g}")
        self._draw(f"{html.escape(self._text)} <progress{place}></progress> {text}")

    def row(self, text: str) -> None:
        self._rows.append(html.escape(text))
        self._draw("")

    def close(self) -> None:
        """The rows stay."""
        self._draw("")

    def _draw(self, line: str) -> None:
        rows = [r for r in (*self._rows, line) if r]
        self._shown.update(self._html("<pre>" + "\n".join(rows) + "</pre>"))


def _in_notebook() -> bool:
    """Whether a kernel of Jupyter's runs this, which shows HTML."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    in_kernel = getattr(shell, "kernel", None) is not None
    return in_kernel and "IPython.display" in sys.modules


@contextlib.contextmanager
def bar(wanted: bool | None) -> Iterator[Bar]:
    """A bar for the time of the ``with``; None: on a terminal, and in a notebook."""
    if _in_notebook() and wanted is not False:
        shown_here = _InNotebook()
        try:
            yield shown_here
        finally:
            shown_here.close()
        return
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
