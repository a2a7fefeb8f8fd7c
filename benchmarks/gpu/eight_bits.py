"""Products in int8 and float8 beside bfloat16: results against references, and times.

``python -m benchmarks.gpu.eight_bits --size 4096 --torch`` on a GPU; ``--device cpu`` tries the
program without one. Times are of calls in a row, without copies to the host.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.tensor.nnet import dequantize, quantize, relu

RNG = np.random.default_rng(0)
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
ROUNDS, CALLS = 3, 30


def fake(x: Any, scale: Any, zero: Any = None, dtype: str = "int8", out: str = "float32") -> Any:
    """``x`` rounded to the numbers of a dtype."""
    codes = quantize(x, scale, zero, dtype)
    return dequantize(codes, scale, zero, dtype, out=out)


def cases() -> dict[str, tuple[Any, Any, float]]:
    """By name: input, result, tolerance of the result against the reference."""
    x, stack = T.fmatrix("x"), T.ftensor3("x")
    w = T.constant(RNG.integers(-127, 128, (32, 64)).astype("int8"))
    scales = RNG.uniform(0.001, 0.01, 32).astype("float32")
    bias = RNG.standard_normal(32).astype("float32")
    y = T.dot(fake(x, 0.05, 3), dequantize(w, scales, axis=0).T) + bias
    many = T.constant(RNG.integers(-127, 128, (3, 64, 32)).astype("int8"))
    floats = T.constant(RNG.standard_normal((64, 32)).astype("float32"))
    found = {
        "int8 to floats": (x, y, 1e-3),
        "int8 to int8": (x, quantize(relu(y), 0.02), 1.0),
        "int8, a stack": (stack, T.batched_dot(fake(stack, 0.05), dequantize(many, 0.01)), 1e-3),
    }
    for a, b, out in ((E4M3, E4M3, "bfloat16"), (E5M2, E4M3, "bfloat16"), (E4M3, E4M3, "float32")):
        product = T.dot(fake(x, 0.01, dtype=a, out=out), fake(floats, 0.01, dtype=b, out=out))
        limit = 0.3 if out == "bfloat16" else 0.02
        found[f"{a[7:]} x {b[7:]} to {out}"] = (x, product.astype("float32"), limit)
    for kind in ("int8", "uint8", E4M3, E5M2):
        found[f"rounding to {kind}"] = (x, fake(x, 0.02, dtype=kind), 0.0)
    return found


def check(name: str, x: Any, y: Any, limit: float) -> None:
    """Print the largest error of a result."""
    value = RNG.standard_normal((48, 64) if x.ndim == 2 else (3, 48, 64)).astype("float32")
    with config.change_flags(device="cpu"):
        want = symdnn.function([x], y, mode=symdnn.Mode(optimizer=None))(value).astype("float64")
    f = symdnn.function([x], y)
    error = float(np.abs(np.asarray(f(value)).astype("float64") - want).max())
    names = [type(n.op).__name__ for n in f.fgraph.toposort()]
    how = next((n for n in names if "Quantized" in n), "no product in 8 bits")
    word = "ok" if error <= limit else "WRONG"
    print(f"{name:32s} error {error:.3g} of {np.abs(want).max():.3g} {word} ({how})", flush=True)


def milliseconds(run: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """The best mean of some rounds of calls in a row."""
    found = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        for _ in range(CALLS):
            run()
        wait()
        found.append((time.perf_counter() - start) / CALLS * 1e3)
    return min(found[1:])


def told(name: str, n: int, ms: float) -> None:
    """Print a time."""
    print(f"{name:32s} {n}^3 {ms:.4f} ms {2 * n**3 / ms / 1e9:.0f} T/s", flush=True)


def products(n: int) -> dict[str, Any]:
    """Products of n x n matrices of parameters."""

    def shared(a: Any) -> Any:
        return symdnn.shared(a, shape=a.shape)

    codes = [shared(RNG.integers(-127, 128, (n, n)).astype("int8")) for _ in range(2)]
    bits = [shared(RNG.integers(0, 120, (n, n)).astype("uint8")) for _ in range(2)]
    halves = [shared(RNG.standard_normal((n, n)).astype(ml_dtypes.bfloat16)) for _ in range(2)]
    columns = np.full(n, 0.01, "float32")
    ints = T.dot(dequantize(codes[0], 0.01), dequantize(codes[1], columns, axis=0).T)
    x, w = (dequantize(b, 0.01, dtype=E4M3, out="bfloat16") for b in bits)
    return {
        "int8 to int8": quantize(relu(ints), 1.0), "int8 to bfloat16": ints.astype("bfloat16"),
        "e4m3 to bfloat16": T.dot(x, w.T), "bfloat16": T.dot(halves[0], halves[1].T),
    }  # fmt: skip


def times(n: int) -> None:
    """Print the times of products."""
    for name, product in products(n).items():
        result = symdnn.shared(np.zeros((1, 1), product.type.numpy), shape=(None, None))
        run = symdnn.function([], updates=[(result, product)])
        wait = symdnn.function([], result[0, 0].astype("float32"))
        told(name, n, milliseconds(run, wait))


def torch_times(n: int) -> None:
    """Print PyTorch's times."""
    import torch

    a = torch.randint(-127, 127, (n, n), dtype=torch.int8, device="cuda")
    b = torch.randn(n, n, device="cuda").bfloat16()
    e, one = b.to(torch.float8_e4m3fn), torch.ones((), device="cuda")
    wait = torch.cuda.synchronize
    told("torch int8 to int32", n, milliseconds(lambda: torch._int_mm(a, a.t()), wait))
    told("torch bfloat16", n, milliseconds(lambda: b @ b.t(), wait))
    scaled = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16}
    told("torch e4m3", n, milliseconds(lambda: torch._scaled_mm(e, e.t(), **scaled), wait))


def main() -> None:
    """Checks, then times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--torch", action="store_true", help="PyTorch's times, too")
    given = parser.parse_args()
    with config.change_flags(device=given.device):
        for name, (x, y, limit) in cases().items():
            try:
                check(name, x, y, limit)
            except Exception as error:
                print(f"{name:32s} failed: {error!r:.400}", flush=True)
        times(given.size)
    if given.torch:
        torch_times(given.size)


if __name__ == "__main__":
    main()
