"""Rows of :mod:`benchmarks.cpu.nest` from many fields: images, audio, series, finance, statistics,
simulation, classic learning, text, recommendation, control, small networks, optimisers.

    python -m benchmarks.cpu.survey_varied --check
    python -m benchmarks.cpu.survey_varied --window-ms 8 --peers ../peers/bin/python
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.cpu import (
    varied_nets,
    varied_physics,
    varied_pixels,
    varied_signals,
    varied_statistics,
    varied_text,
)
from benchmarks.cpu.nest import Nest, main
from benchmarks.cpu.survey_wide import graded
from benchmarks.cpu.varied_spaces import SPACES, Program

#: Calls before those that are timed: loops are compiled after a thousand steps.
_WARM_CALLS = 80
_MODULES = (
    varied_signals, varied_statistics, varied_physics, varied_text, varied_nets, varied_pixels,
)  # fmt: skip


def rows() -> Iterator[Nest]:
    """All rows."""
    for module in _MODULES:
        for name, arrays, program, without, wrt in module.rows():
            row = _row(name, arrays, program, without)
            yield row
            for n in wrt:
                of = graded(row, n)
                yield replace(of, name=f"{of.name} {n}", compiled=of.torch, warm=row.warm)


def _row(name: str, arrays: tuple[Any, ...], program: Program, without: str) -> Nest:
    calls = {
        side: None if side in without else partial(program, space) for side, space in SPACES.items()
    }
    warm = _WARM_CALLS if "by scan" in name else 0
    return Nest(name, arrays, **calls, compiled=calls["torch"], static=True, warm=warm)


if __name__ == "__main__":
    sys.exit(main(module="benchmarks.cpu.survey_varied"))
