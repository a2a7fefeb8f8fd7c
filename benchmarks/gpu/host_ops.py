"""Ops that ran on the host once: as they are now on a GPU, and by the reference behind transfers.

    python -m benchmarks.gpu.host_ops [--only TEXT]

A line has milliseconds of a call, the median of several: operands are shared variables on the card,
and one number is read. ``host`` is the same function with the op's kernel or rewrite left out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.gpu.device import set_flags

rng = np.random.default_rng(0)


def cases() -> dict[str, tuple[Callable[..., Any], list[Any], tuple[str, ...]]]:
    """For each name the expression, its operands, and what to leave out: rules or kernels."""
    import symdnn.tensor as T
    from symdnn.ops.array.boxes import non_max_suppression
    from symdnn.ops.array.filters import LinearFilter
    from symdnn.ops.nn.ctc import CTCLoss
    from symdnn.ops.nn.lrn import LRN
    from symdnn.ops.nn.pool import MaxPoolGradGrad, Pool

    def normal(*shape: int, dtype: Any = np.float32) -> Any:
        return rng.standard_normal(shape).astype(dtype)

    window = ((2, 2), (2, 2), (0, 0))
    corners = rng.uniform(0, 1000, (8, 1000, 4)).astype(np.float32)
    labels, lengths = rng.integers(1, 50, (32, 40)), np.full(32, 300)
    poles = np.poly(rng.uniform(-0.8, 0.8, 4))[1:].astype(np.float32)
    return {
        "lrn, channels last, (64, 56, 56, 64)": (
            lambda x: LRN(5, axis=3)(x), [normal(64, 56, 56, 64)], ("write_out_lrn",)),
        "non-maximum suppression, (8, 20, 1000)": (
            lambda b, s: non_max_suppression(b, s, 100, 0.5, 0.3), [corners, normal(8, 20, 1000)],
            ("write_out_non_max_suppression",)),
        "repeat of (10000, 64) by a vector": (
            lambda x, n: T.repeat(x, n, axis=0), [normal(10000, 64), rng.integers(0, 9, 10000)],
            ("write_out_repeat_index",)),
        "CTC loss, bfloat16, (300, 32, 50)": (
            lambda a: CTCLoss()(T.cast(a, "bfloat16"), labels, lengths)[0].astype("float32"),
            [normal(300, 32, 50)], ("write_out_ctc",)),
        "CTC loss, float64, (300, 32, 50)": (
            lambda a: CTCLoss()(a, labels, lengths)[0], [normal(300, 32, 50, dtype="f8")],
            ("write_out_ctc",)),
        "power of int64, 4 million": (
            lambda x, y: x**y, [rng.integers(0, 9, 1 << 22), rng.integers(0, 9, 1 << 22)],
            ("write_out_integer_power",)),
        "gradient's gradient of max pooling, (32, 64, 56, 56)": (
            lambda x: MaxPoolGradGrad(*window)(x, Pool(*window)(x), x), [normal(32, 64, 56, 56)],
            ("WindowsKernel",)),
        "max pooling of int8, (32, 64, 56, 56)": (
            lambda x: Pool(*window)(x), [rng.integers(-9, 9, (32, 64, 56, 56)).astype("i1")],
            ("WindowsKernel",)),
        "filter of 1000000, 5 and 4 coefficients": (
            lambda x, b, a: LinearFilter(0)(x, b, a), [normal(1000000), normal(5), poles],
            ("LinearFilterKernel",)),
        "filter of (64, 16000), 5 and 4 coefficients": (
            lambda x, b, a: LinearFilter(1)(x, b, a), [normal(64, 16000), normal(5), poles],
            ("LinearFilterKernel",)),
        "running product of complex64, 1000000": (
            lambda x: T.cumprod(T.exp(1j * x).astype("complex64"), axis=0).real,
            [normal(1000000)], ("ScanKernel",)),
        "jv(2.5, x), 1000000": (lambda x: T.jv(2.5, x), [10 * abs(normal(1000000))], ("_jv",)),
    }  # fmt: skip


def kernel_off(name: str) -> Any:
    """A context in which kernels of this class refuse all calls."""
    from symdnn.gpu.codegen import cuda_source
    from symdnn.gpu.kernels import scan, windows

    if name == "_jv":
        return patch.object(cuda_source, "_BESSEL", frozenset())
    kind = getattr(scan, name, None) or getattr(windows, name)
    return patch.object(kind, "refuses", lambda self, call: "left out")


def timed(build: Any, arrays: list[Any], left_out: tuple[str, ...]) -> float:
    """Milliseconds of a call."""
    import contextlib

    import symdnn

    shared = [symdnn.shared(a) for a in arrays]
    rules = [name for name in left_out if name.startswith("write_out")]
    with contextlib.ExitStack() as stack:
        for name in set(left_out) - set(rules):
            stack.enter_context(kernel_off(name))
        y = build(*shared)
        f = symdnn.function([], y.sum(), mode=symdnn.Mode().excluding(*rules))
        for _ in range(3):
            np.asarray(f())
        times, end = [], time.perf_counter() + 0.3
        while len(times) < 3 or (time.perf_counter() < end and len(times) < 50):
            start = time.perf_counter()
            np.asarray(f())
            times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    only = parser.parse_args().only
    set_flags(True)
    print(f"{'':54}{'host':>10}{'now':>10}")
    for name, (build, arrays, left_out) in cases().items():
        if only in name:
            before, now = (timed(build, arrays, out) for out in (left_out, ()))
            print(f"{name:54}{before:10.3f}{now:10.3f}", flush=True)


if __name__ == "__main__":
    main()
