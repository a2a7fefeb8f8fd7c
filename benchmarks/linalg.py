"""Linear algebra, Fourier transforms and ``scan`` beside their peers, on a CPU or a GPU.

    python -m benchmarks.linalg --peers PYTHON --pytensor PYTHON --out linalg-cpu.txt
    python -m benchmarks.linalg --device cuda

On a CPU this is :mod:`benchmarks.cpu.nest` for these rows: a process for each library, one thread.
On a GPU it is :mod:`benchmarks.gpu.rows`. Printed is the best peer's time over symdnn's; on a CPU
the worst rows first, on a GPU each when it is measured.
"""

from __future__ import annotations

import argparse
import re

from benchmarks.cpu import nest
from benchmarks.gpu import rows

__all__ = ["main"]

_ROWS = "^(linalg|fft|scan)"
#: Rows that leave time for the others: a CPU has no use for a device's time at these sizes.
_ON_GPU = "^(linalg|fft|scan (RNN|LSTM|logistic))"


def main(argv: list[str] | None = None) -> int:
    """Time the rows on a device and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linalg", description=__doc__)
    rows.arguments(parser, seconds=55)
    given, rest = parser.parse_known_args(argv)
    if given.device == "cpu" and not given.tiny:
        return nest.main(rows.on_cpu(given, _ROWS) + rest)
    chosen = [r for r in nest.rows_of("") if re.search(given.only or _ON_GPU, r.name)]
    # Vectors have no sign and some rows no unique result: tests compare the numbers.
    return rows.measure(given, rows.short_first(chosen), compare=False)


if __name__ == "__main__":
    raise SystemExit(main())
