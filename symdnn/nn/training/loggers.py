"""Where the rows of a training go: a CSV file, TensorBoard. They are callbacks of ``fit``."""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from symdnn.errors import SymdnnError
from symdnn.io.atomic import write_atomically
from symdnn.nn.training.history import numbers_of

Callback = Callable[[Any], None]


def csv_log(path: str | os.PathLike[str]) -> Callback:
    """A callback that writes the numbers of all epochs so far, a line each, after each epoch."""

    def write(run: Any) -> None:
        rows = [numbers_of(row) for row in run.history]
        names = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(Path(path), text.getvalue().encode())

    return write


class TensorBoardMissing(SymdnnError, ImportError):
    """TensorBoard's files were asked for, and its package is not installed."""


class TensorBoardLog:
    """A callback that writes each epoch's numbers as scalars, at the step's number.

    It needs the package ``tensorboard`` (``pip install symdnn[tensorboard]``), and raises
    :class:`TensorBoardMissing`, an ``ImportError``, without it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise TensorBoardMissing(
                "tensorboard= needs the package tensorboard: pip install symdnn[tensorboard] "
                f"({error})"
            ) from error
        self._events, self._summaries = event_pb2, summary_pb2
        self._make, self._folder = EventFileWriter, os.fspath(folder)
        self._writer: Any = None

    def __call__(self, run: Any) -> None:
        """Write the last row."""
        if self._writer is None:
            self._writer = self._make(self._folder)
        row = numbers_of(run.history[-1])
        step = int(row.pop("step"))
        value = self._summaries.Summary.Value
        summary = self._summaries.Summary(
            value=[value(tag=name, simple_value=float(v)) for name, v in row.items()]
        )
        event = self._events.Event(wall_time=time.time(), step=step, summary=summary)
        self._writer.add_event(event)
        self._writer.flush()

    def close(self) -> None:
        """Close the file, and end the thread that writes it."""
        if self._writer is not None:
            self._writer.close()
