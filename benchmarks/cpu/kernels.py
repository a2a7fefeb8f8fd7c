"""Generated kernels of the CPU beside NumPy, JAX and PyTorch: milliseconds, median / best block.

    python -m benchmarks.cpu.kernels [--torch PYTHON] [--jax PYTHON] [--rounds 7] [CASE ...]

Peers may live in other environments: the options name their Pythons (default: this one; a peer that
does not import is left out). Each side is a process of its own; they take turns, one block of calls
each, so the machine's moods fall on all alike. Every result is first compared with NumPy's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Case = tuple[tuple[tuple[int, ...], ...], Callable[[Any, Any], Any]]
_BLOCK_S = 0.15


def _chain(m: Any, v: Any) -> Any:
    x, y = v
    return m.tanh(x * y + 1) * m.exp(-x * x) + y / (1 + m.exp(-y))


def _pool(m: Any, v: Any, size: int, stride: int, pad: int) -> Any:
    return m.max_pool(v[0], size, stride, pad)


#: Shapes of the operands, and what is computed of them by a module's functions.
CASES: dict[str, Case] = {
    "x + 1, 10": (((10,),), lambda m, v: v[0] + 1),
    "chain, 4M": (((1 << 22,), (1 << 22,)), _chain),
    "chain, 64k": (((1 << 16,), (1 << 16,)), _chain),
    "sum of squares, 4M": (((1 << 22,),), lambda m, v: (v[0] * v[0]).sum()),
    "sum, rows of 4096x1024": (((4096, 1024),), lambda m, v: v[0].sum(axis=1)),
    "sum, columns of 4096x1024": (((4096, 1024),), lambda m, v: v[0].sum(axis=0)),
    "max, channels of 64x20x24x24": (((64, 20, 24, 24),), lambda m, v: m.amax(v[0], (0, 2, 3))),
    "softmax, 4096x1024": (((4096, 1024),), lambda m, v: m.softmax(v[0])),
    "softmax, 128x10": (((128, 10),), lambda m, v: m.softmax(v[0])),
    "max pool 2, 64x20x24x24": (((64, 20, 24, 24),), lambda m, v: _pool(m, v, 2, 2, 0)),
    "max pool 3/2, 16x64x56x56": (((16, 64, 56, 56),), lambda m, v: _pool(m, v, 3, 2, 1)),
}


def operands(case: str) -> list[Any]:
    """The same numbers in every process."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=s).astype("float32") for s in CASES[case][0]]


# -- sides -----------------------------------------------------------------------------------------


class NumpySide:
    """The functions by NumPy."""

    def __init__(self) -> None:
        self.tanh, self.exp, self.amax = np.tanh, np.exp, np.max

    def softmax(self, x: Any) -> Any:
        """Of the rows."""
        e = np.exp(x - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    def max_pool(self, x: Any, size: int, stride: int, pad: int) -> Any:
        """A view of all windows, and its maximum."""
        sides = [(0, 0), (0, 0), (pad, pad), (pad, pad)]
        wide = np.pad(x, sides, constant_values=-np.inf)
        view = np.lib.stride_tricks.sliding_window_view(wide, (size, size), (2, 3))
        return view[:, :, ::stride, ::stride].max((4, 5))

    def ready(self, case: str) -> Callable[[], Any]:
        """What runs the case once."""
        given, compute = operands(case), CASES[case][1]
        return lambda: compute(self, given)


class SymdnnSide:
    """The functions by symdnn, compiled for the CPU."""

    def __init__(self) -> None:
        import symdnn
        import symdnn.tensor as T

        self.symdnn, self.T, self.tanh, self.exp, self.amax = symdnn, T, T.tanh, T.exp, T.max

    def softmax(self, x: Any) -> Any:
        """Of the rows."""
        return self.T.nnet.softmax(x)

    def max_pool(self, x: Any, size: int, stride: int, pad: int) -> Any:
        """Whole windows."""
        pool = self.T.signal.pool.pool_2d
        return pool(x, (size,) * 2, stride=(stride,) * 2, pad=(pad,) * 2, ignore_border=True)

    def ready(self, case: str) -> Callable[[], Any]:
        """A function of the operands, which it may keep."""
        given, compute = operands(case), CASES[case][1]
        vs = [self.T.TensorType("float32", (None,) * a.ndim)() for a in given]
        f = self.symdnn.function(vs, compute(self, vs), mode=self.symdnn.Mode(target="cpu"))
        return lambda: f(*given)


class TorchSide:
    """The functions by PyTorch, eager."""

    def __init__(self) -> None:
        import torch

        self.torch, self.tanh, self.exp, self.amax = torch, torch.tanh, torch.exp, torch.amax

    def softmax(self, x: Any) -> Any:
        """Of the rows."""
        return self.torch.softmax(x, 1)

    def max_pool(self, x: Any, size: int, stride: int, pad: int) -> Any:
        """Whole windows."""
        return self.torch.nn.functional.max_pool2d(x, size, stride, pad)

    def ready(self, case: str) -> Callable[[], Any]:
        """On tensors that share NumPy's memory."""
        given, compute = [self.torch.from_numpy(a) for a in operands(case)], CASES[case][1]
        return lambda: compute(self, given)


class JaxSide:
    """The functions by JAX, jitted."""

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        self.jax, self.tanh, self.exp, self.amax = jax, jnp.tanh, jnp.exp, jnp.max

    def softmax(self, x: Any) -> Any:
        """Of the rows."""
        return self.jax.nn.softmax(x, 1)

    def max_pool(self, x: Any, size: int, stride: int, pad: int) -> Any:
        """Whole windows."""
        sides = ((0, 0), (0, 0), (pad, pad), (pad, pad))
        window, steps = (1, 1, size, size), (1, 1, stride, stride)
        return self.jax.lax.reduce_window(x, -np.inf, self.jax.lax.max, window, steps, sides)

    def ready(self, case: str) -> Callable[[], Any]:
        """Jitted, on arrays of its own, waited for."""
        given, compute = [self.jax.numpy.asarray(a) for a in operands(case)], CASES[case][1]
        f = self.jax.jit(lambda *v: compute(self, v))
        return lambda: f(*given).block_until_ready()


SIDES: dict[str, Any] = {
    "symdnn": SymdnnSide, "numpy": NumpySide, "torch": TorchSide, "jax": JaxSide,
}  # fmt: skip


def serve(name: str) -> None:
    """Run as a side: a line with a case asks for one block; the answer is a line of JSON."""
    try:
        side: Any = SIDES[name]()
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), flush=True)
        return
    print(json.dumps({"ready": True}), flush=True)
    ready: dict[str, Callable[[], Any]] = {}
    for line in sys.stdin:
        case = line.rstrip("\n")
        answer: dict[str, Any] = {}
        if case not in ready:
            ready[case] = side.ready(case)
            answer["error"] = _error(case, ready[case]())
        times: list[float] = []
        run, end = ready[case], time.perf_counter() + _BLOCK_S
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        print(json.dumps({**answer, "ms": statistics.median(times) * 1e3}), flush=True)


def _error(case: str, result: Any) -> float:
    """The largest difference from NumPy's result, beside its largest value."""
    wanted = np.asarray(NumpySide().ready(case)())
    return float(np.max(np.abs(np.asarray(result) - wanted)) / np.max(np.abs(wanted)))


class Worker:
    """A side in a process of its own."""

    def __init__(self, name: str, python: str) -> None:
        root = str(Path(__file__).parents[2])
        command = [python, "-m", "benchmarks.cpu.kernels", "--serve", name]
        self.name = name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
        )
        self.there = "ready" in self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"missing": "it ended"}

    def block(self, case: str) -> Any:
        """One block of calls."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{case}\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    """Print one row for each case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--torch", default=sys.executable)
    parser.add_argument("--jax", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES])
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    pythons = {"torch": args.torch, "jax": args.jax}
    workers = [Worker(n, pythons.get(n, sys.executable)) for n in SIDES]
    workers = [w for w in workers if w.there]
    print(f"{'case':32}" + "".join(f"{w.name:>22}" for w in workers))
    for case in args.cases or CASES:
        rounds = [[w.block(case) for w in workers] for _ in range(args.rounds)]
        wrong = [w.name for w, r in zip(workers, rounds[0]) if not r["error"] < 1e-4]
        times = [[r[i]["ms"] for r in rounds] for i in range(len(workers))]
        cells = [f"{statistics.median(t):.4f} / {min(t):.4f}" for t in times]
        note = f"   wrong: {', '.join(wrong)}" if wrong else ""
        print(f"{case:32}" + "".join(f"{c:>22}" for c in cells) + note, flush=True)
    for w in workers:
        w.close()


if __name__ == "__main__":
    main()
