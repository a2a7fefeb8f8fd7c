"""HTML tables of summaries and histories, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], caption: str, indent: Sequence[int]
) -> str:
    """An HTML table; ``indent`` are the levels of indentation of the rows' first cells."""
    head = "".join(f"<th>{escape(h)}</th>" for h in headings)
    body = []
    for row, level in zip(rows, indent, strict=True):
        first, *rest = (escape(str(cell)) for cell in row)
        cells = "".join(f"<td>{cell}</td>" for cell in rest)
        start = f"<td style='text-align: left; padding-left: {level + 0.5:g}em'>{first}</td>"
        body.append(f"<tr>{start}{cells}</tr>")
    return f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{''.join(body)}</table>"
