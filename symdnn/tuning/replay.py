"""Report files: the algorithms of ``f.dnn_report().save(path)``, which another run can have again.

``dnn.conv.overrides=path`` gives a convolution the algorithm of the row for its shapes, dtype,
layout and settings. Of several such rows it is the one with the layer's names, then with its line.
The file is JSON: ``format``, and ``rows`` with what the report shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from symdnn.disk.atomic import write_atomically
from symdnn.errors import ConfigError

#: How the name of a report file ends, by which ``dnn.conv.overrides`` tells it from patterns.
SUFFIX = ".json"
_FORMAT_VERSION = 1

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Recorded:
    """An algorithm of a report file: ``asked`` for by the report's run, ``name`` of what ran.

    ``text`` is the library's own record as JSON.
    """

    name: str
    asked: str
    source: str
    text: str

    @property
    def record(self) -> dict[str, Any]:
        """The record, by which the library finds the algorithm again."""
        found: dict[str, Any] = json.loads(self.text)
        return found

    @property
    def counts(self) -> tuple[int, ...]:
        """The samples of each part of the batch; empty if it was not divided."""
        return tuple(int(part["count"]) for part in self.record.get("parts", ()))

    def of_part(self, index: int) -> Recorded:
        """The algorithm of one part of the batch."""
        parts = self.record.get("parts")
        if not parts:
            return self
        return replace(self, name=str(parts[index]["name"]), text=json.dumps(parts[index]))

    def __str__(self) -> str:
        return f"{self.name} of {self.source}"


@dataclass(frozen=True)
class ReportFile:
    """The rows of a report file that can be replayed."""

    source: str
    rows: Sequence[Row]

    def find(self, question: Mapping[str, Any], names: Sequence[str], line: str) -> Recorded | None:
        """The row for a convolution; None if the report has none with its shapes and settings."""
        fitting = [row for row in self.rows if row["record"]["for"] == question]
        if not fitting:
            return None
        best = max(fitting, key=lambda row: (row["names"] == list(names), row["line"] == line))
        text = json.dumps(best["record"], sort_keys=True)
        return Recorded(str(best["used"]), str(best["requested"]), self.source, text)


def write(path: str | Path, rows: Iterable[Row]) -> None:
    """Write the rows of a report to a file."""
    text = json.dumps({"format": _FORMAT_VERSION, "rows": list(rows)}, indent=1)
    write_atomically(Path(path), (text + "\n").encode())


def read(path: str) -> ReportFile:
    """The rows of a report file that can be replayed; read again when the file has changed.

    Raises :class:`~symdnn.errors.ConfigError` if it can't be read, or is no report.
    """
    try:
        state = Path(path).stat()
        return _read(path, state.st_mtime_ns, state.st_size)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"flag dnn.conv.overrides: {path} can't be read as a report of algorithms ({error}); "
            "wanted a file by f.dnn_report().save(path)"
        ) from error


@lru_cache(maxsize=16)
def _read(path: str, time_ns: int, size: int) -> ReportFile:
    found = json.loads(Path(path).read_text(encoding="utf-8"))
    if found["format"] != _FORMAT_VERSION:
        raise ConfigError(
            f"flag dnn.conv.overrides: {path} has format {found['format']}; this symdnn reads "
            f"{_FORMAT_VERSION}"
        )
    rows = [row for row in found["rows"] if row["record"]]
    for row in rows:
        _ = row["record"]["for"], row["names"], row["line"], row["used"], row["requested"]
    return ReportFile(Path(path).name, tuple(rows))
