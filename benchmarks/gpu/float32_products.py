"""float32 on tensor cores: GEMMs, 1x1 convolutions and gradients of filters, beside libraries' own.

    python -m benchmarks.gpu.float32_products [--only gemm|conv|filters|few]

Each line has what a measurement chose, with the times of all candidates. Errors are relative in the
2-norm: of a GEMM against float64, of a convolution against a trusted algorithm.

``few`` are products with few results and long sums, with the flags' defaults, beside PyTorch's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
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
#: Rows, terms, columns, and whether each operand is in memory as its transpose.
FEW = [
    (64, 65536, 64, "NN"), (64, 65536, 64, "NT"), (64, 262144, 32, "TN"), (64, 8192, 64, "NN"),
    (784, 60000, 128, "TN"), (128, 60000, 10, "TN"), (256, 32768, 256, "TN"), (16, 16384, 16, "NN"),
    (512, 16384, 512, "NN"), (3, 100000, 3, "TN"), (128, 4096, 128, "NN"), (1024, 4096, 64, "NN"),
]  # fmt: skip
_ROWS = 512  # whose error is taken
#: Operands in turn have so many bytes in all, more than a card's cache.
_TURN_BYTES, _MOST_TURNS = 160 << 20, 16


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


def few_results() -> Iterator[str]:
    """Products of operands in turn, which are a graph on both sides."""
    import torch

    import symdnn
    import symdnn.tensor as T

    rng = np.random.default_rng(1)
    for rows, terms, columns, form in FEW:
        turns = min(_MOST_TURNS, 2 + _TURN_BYTES // (4 * terms * (rows + columns)))
        sides = [(rows, terms), (terms, columns)]
        sides = [s[::-1] if f == "T" else s for s, f in zip(sides, form, strict=True)]
        given = [[rng.standard_normal(s, dtype="f4") for s in sides] for _ in range(turns)]
        ours = [[symdnn.shared(a) for a in pair] for pair in given]
        made = [symdnn.shared(np.zeros((rows, columns), "f4")) for _ in given]
        products = [T.dot(*(v.T if f == "T" else v for v, f in zip(p, form))) for p in ours]
        f = symdnn.function([], [], updates=[*zip(made, products)])
        theirs = [[torch.from_numpy(a).cuda() for a in pair] for pair in given]
        outs = [torch.empty((rows, columns), device="cuda") for _ in given]
        turned = [[v.T if t == "T" else v for v, t in zip(p, form)] for p in theirs]
        calls = [f, _captured(partial(_multiply, turned, outs))]
        us = [1e6 * t / turns for t in _in_turn(calls, torch.cuda.synchronize)]
        a, b = (v.T if t == "T" else v for v, t in zip(given[0], form, strict=True))
        want = a.astype("f8") @ b
        found = np.asarray(made[0].get_value()), outs[0].cpu().numpy()
        errors = [np.linalg.norm(v - want) / np.linalg.norm(want) for v in found]
        yield (
            f"{rows}x{terms}x{columns} {form}: {us[0]:.1f} us, error {errors[0]:.1e}; "
            f"PyTorch {us[1]:.1f}, {errors[1]:.1e}"
        )


def _multiply(pairs: list[Any], outs: list[Any]) -> None:
    import torch

    for pair, out in zip(pairs, outs, strict=True):
        torch.matmul(*pair, out=out)


def _captured(run: Callable[[], object]) -> Callable[[], object]:
    """PyTorch's work as a CUDA graph."""
    import torch

    with torch.cuda.stream(torch.cuda.Stream()):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _in_turn(calls: list[Callable[[], object]], wait: Callable[[], None]) -> list[float]:
    """Seconds of each call: medians of rounds of a few, in turn."""
    rounds: list[list[float]] = []
    for _ in range(9):
        rounds.append([])
        for call in calls:
            call()
            wait()
            begin = time.perf_counter()
            for _ in range(10):
                call()
            wait()
            rounds[-1].append((time.perf_counter() - begin) / 10)
    return [statistics.median(own) for own in zip(*rounds[2:], strict=True)]


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
    parser.add_argument("--only", choices=("gemm", "conv", "filters", "few"))
    only = parser.parse_args().only
    os.environ["SYMDNN_FLAGS"] = f"device=cuda,{os.environ.get('SYMDNN_FLAGS', '')}"
    if only in (None, "few"):
        print("== few")
        for line in few_results():
            print(line, flush=True)
    from symdnn.config import config

    flags: dict[str, Any] = {"gpu.gemm.algo": "time", "dnn.conv.tuning_cache": "off"}
    pointwise = [(64, c, side, k, 1, 0) for c, side, k in POINTWISE]
    tables = {
        "gemm": gemms,
        "conv": lambda: convolutions(pointwise, ("fwd", "bwd_data", "bwd_filter")),
        "filters": lambda: convolutions(FILTERS, ("bwd_filter",)),
    }
    with config.change_flags(**flags):
        for name, lines in tables.items():
            if only in (None, name):
                print(f"== {name}")
                for line in lines():
                    print(line, flush=True)


if __name__ == "__main__":
    main()
