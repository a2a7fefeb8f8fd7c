"""What both reports share: records out of files, numbers and tables as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any


def read(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """All records; a line that was not finished is left out."""
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue


def number(value: float | None, digits: int = 4) -> str:
    """So many significant digits at least, no exponent."""
    if value is None:
        return "-"
    if value >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{value:.{digits}g}" if value >= 1e-3 else f"{value:.6f}"


def table(body: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns of equal width, the last one as wide as it is."""
    widths = [max(map(len, column)) for column in zip(*body)][:-1]
    return [
        "  ".join([*(w.ljust(n) for w, n in zip(line, widths)), line[-1]]).rstrip() for line in body
    ]
