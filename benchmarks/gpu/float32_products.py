"""float32 on tensor cores: GEMMs, 1x1 convolutions and gradients of filters, beside libraries' own.

    python -m benchmarks.gpu.float32_products [--only gemm|conv|filters]

Each line has what a measurement chose, with the times of all candidates. Errors are relative in the
2-norm: of a GEMM against float64, of a convolution against a trusted algorithm.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

#: Rows, terms, columns.
GEMMS = [
    (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096),
    (8192, 8192, 8192), (3136, 512, 2048), (4096, 1024, 4096), (4096, 512, 4096),
    (1024, 65536, 1024), (256, 100000, 2304), (8192, 768, 3072), (8192, 3072, 768),
    (768, 8192, 3072), (128, 2048, 2048),
]  # fmt: skip
#: Channels, side, kernels of ResNet-50's 1x1 convolutions, batch 64.
POINTWISE = [
    (256, 56, 64), (64, 56, 256), (512, 28, 128), (128, 28, 512), (1024, 14, 256),
    (256, 14, 1024), (2048, 7, 512), (512, 7, 2048), (1024, 14, 512), (256, 56, 128),
]  # fmt: skip
#: Batch, channels, side, kernels, size of filters, padding.
FILTERS = [
    (128, 96, 27, 256, 5, 2), (64, 512, 28, 512, 3, 1), (64, 256, 28, 512, 3, 1),
    (64, 128, 28, 128, 3, 1), (128, 256, 13, 384, 3, 1), (64, 64, 28, 96, 5, 2),
]  # fmt: skip
_ROWS = 512  # whose error is taken


def gemms() -> Iterator[str]:
    """GEMMs of shared variables."""
    import symdnn
    import symdnn.tensor as T
    from symdnn.gpu.gemm import choice

    rng = np.random.default_rng(1)
    for rows, terms, columns in GEMMS:
        a = rng.standard_normal((rows, terms), dtype="f4")
        b = rng.standard_normal((terms, columns), dtype="f4")
        x, y, out = map(symdnn.shared, (a, b, np.zeros((rows, columns), "f4")))
        choice.forget()
        f = symdnn.function([], [], updates=[(out, T.dot(x, y))])
        for _ in range(3):
            f()
        (made,) = choice.chosen()
        got = np.asarray(out.get_value())[:_ROWS]
        want = a[:_ROWS].astype("f8") @ b
        error = np.linalg.norm(got - want) / np.linalg.norm(want)
        ms = [None if t is None else round(t, 4) for t in made.ms]
        yield f"{rows}x{terms}x{columns}: {ms} -> {made.algorithm}; error {error:.2e}"


def convolutions(cases: list[tuple[Any, ...]], directions: tuple[str, ...]) -> Iterator[str]:
    """Choices of ``time_once`` beside the fastest of cuDNN's."""
    from symdnn.gpu.conv.algorithm import choose
    from symdnn.gpu.conv.candidate import OWN_API
    from symdnn.gpu.conv_table import conv
    from symdnn.gpu.device.context import context

    ctx = context()
    with ctx.current():
        for n, c, side, k, r, pad in cases:
            for direction in directions:
                s = conv((n, c, side, side), (k, c, r, r), pad, direction=direction, tf32=False)
                table = choose(s, ctx.index).measured
                ours = [a for a in table if a.candidate.api == OWN_API]
                rest = [a for a in table if a.usable and a.candidate.api != OWN_API]
                best = min(rest, key=lambda a: a.ms or 0.0)
                shown = [(a.candidate.name, a.ms, a.error, a.problem) for a in ours]
                fastest = best.candidate.name, best.ms, best.error
                yield f"{n}x{c}x{side} -> {k}, {r}x{r} {direction}: cuDNN {fastest}; own {shown}"


def main() -> None:
    """The lines of all tables, or of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("gemm", "conv", "filters"))
    only = parser.parse_args().only
    from symdnn.config import config

    flags: dict[str, Any] = {"gpu.gemm.algo": "time", "dnn.conv.tuning_cache": "off"}
    pointwise = [(64, c, side, k, 1, 0) for c, side, k in POINTWISE]
    tables = {
        "gemm": gemms,
        "conv": lambda: convolutions(pointwise, ("fwd", "bwd_data", "bwd_filter")),
        "filters": lambda: convolutions(FILTERS, ("bwd_filter",)),
    }
    with config.change_flags(device="cuda", **flags):
        for name, lines in tables.items():
            if only in (None, name):
                print(f"== {name}")
                for line in lines():
                    print(line, flush=True)


if __name__ == "__main__":
    main()
