"""Times ``jit``, loops and ``associative_scan`` beside JAX: see the README.

    python -m benchmarks.transforms.functions --jax ../peers/bin/python
    python -m benchmarks.transforms.functions --rows --peers ../peers/bin/python --memory

With ``--rows`` the loops and prefixes are rows as those of :mod:`benchmarks.transforms.loops`. Else
each side runs in a process of its own, the two in turn; a row has the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import numpy as np

from benchmarks.cpu.nest import Nest
from benchmarks.gpu import rows as gpu_rows
from benchmarks.gpu.device import Device
from benchmarks.transforms.loops import row

__all__ = ["CASES", "main", "rows", "timed"]

#: Calls before those that are timed: kernels of whole loops are made after many steps.
_SETTLING_CALLS = 20
#: Name -> (what one call does, its number of steps if the time is that of a step).
CASES: dict[str, tuple[str, int]] = {
    "dispatch": ("x + 2 y of 8 numbers", 1),
    "dispatch_tree": ("p - lr x of a dict of 12 arrays", 1),
    "fori_scalar": ("a step of v <- 0.999 v + 1", 1000),
    "fori_vector": ("a step of v <- tanh(w v) of 64 numbers", 1000),
    "while_vector": ("the same step, while a sum is small", 1000),
    "scan_rnn": ("a step of h <- tanh(x + h w), 16 rows of 64", 200),
    "scan_rnn_grad": ("the same with the gradient", 200),
    "recurrence_columns": ("h = a h + b along axis 1 of (8, 1024, 512)", 1),
    "recurrence_rows": ("h = a h + b along axis 1 of (512, 8192)", 1),
    "recurrence_grad": ("its gradients along axis 1 of (8, 1024, 512)", 1),
    "matrices": ("prefixes of 1024 products of 4 by 4 matrices", 1),
    "copy": ("a * b of (8, 1024, 512): the bytes of a recurrence", 1),
}


def decay(x: Any, y: Any) -> Any:
    """Two stretches of a linear recurrence as one."""
    return x[0] * y[0], y[0] * x[1] + y[1]


def built(name: str, lib: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The compiled function of a case, and its arguments; ``lib`` has the functions."""
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> Any:
        return rng.uniform(0.1, 0.9, shape).astype("float32")

    wide, rows = (8, 1024, 512), (512, 8192)
    if name == "dispatch":
        return lib.jit(lambda x, y: x + 2 * y), (floats(8), floats(8))
    if name == "dispatch_tree":
        params = {f"w{i}": floats(8) for i in range(12)}
        return lib.jit(lambda p, x: {k: v - 0.1 * x for k, v in p.items()}), (params, floats(8))
    if name == "fori_scalar":
        return lib.jit(lambda v: lib.fori_loop(0, 1000, lambda i, v: v * 0.999 + 1, v)), (
            floats(1)[0],
        )
    if name == "fori_vector":
        f = lambda w, v: lib.fori_loop(0, 1000, lambda i, v: lib.tanh(lib.dot(w, v)), v)  # noqa: E731
        return lib.jit(f), (floats(64, 64), floats(64))
    if name == "while_vector":

        def loop(w: Any, v: Any) -> Any:
            more = lambda s: s[1] < 1000  # noqa: E731
            return lib.while_loop(more, lambda s: (lib.tanh(lib.dot(w, s[0])), s[1] + 1), (v, 0))

        return lib.jit(loop), (floats(64, 64), floats(64))
    if name.startswith("scan_rnn"):

        def net(x: Any, h: Any, w: Any) -> Any:
            step = lambda h, x: (lib.tanh(x + lib.dot(h, w)),) * 2  # noqa: E731
            return (lib.scan(step, h, x)[1] ** 2).sum()

        f = lib.jit(lib.grad(net, 2) if name.endswith("grad") else net)
        return f, (floats(200, 16, 64), floats(16, 64), floats(64, 64) / 64)
    if name == "matrices":
        fn = lambda x, y: lib.matmul(y, x)  # noqa: E731
        return lib.jit(lambda m: lib.associative_scan(fn, m)), (floats(1024, 4, 4) / 2,)
    if name == "copy":
        return lib.jit(lambda a, b: a * b), (floats(*wide), floats(*wide))
    shape = rows if name == "recurrence_rows" else wide

    def states(a: Any, b: Any) -> Any:
        return lib.associative_scan(decay, (a, b), axis=1)[1]

    if name == "recurrence_grad":
        f = lib.jit(lib.grad(lambda a, b: (states(a, b) ** 2).sum(), (0, 1)))
        return f, (floats(*shape), floats(*shape))
    return lib.jit(states), (floats(*shape), floats(*shape))


def timed(names: list[str], lib: Any) -> str:
    """The numbers of the cases as JSON; one that fails says so, and has none."""
    found = {}
    for name in names:
        try:
            found[name] = measured(name, lib)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            found[name] = float("nan")
    return json.dumps(found)


def measured(name: str, lib: Any, seconds: float = 0.4) -> float:
    """Microseconds of a call, or of a step; the least of some repetitions."""
    f, args = built(name, lib)
    given = lib.placed(args)
    for _ in range(_SETTLING_CALLS):
        lib.wait(f(*given))
    began = time.perf_counter()
    lib.wait(f(*given))
    count = max(1, int(0.02 / (time.perf_counter() - began)))
    best, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        for _ in range(count):
            found = f(*given)
        lib.wait(found)
        best = min(best, (time.perf_counter() - began) / count)
    return best * 1e6 / CASES[name][1]


class _Plain:
    """The functions of a case, in a function that is compiled as a whole."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)

    def jit(self, f: Any) -> Any:
        """The function itself."""
        return f


def rows() -> Iterator[Nest]:
    """The loops and prefixes as rows; of prefixes of small matrices also a long one."""
    for name, (_, steps) in CASES.items():
        if not name.startswith("dispatch"):
            text = CASES[name][0].removeprefix("a step of ")
            times = f", {steps} steps" if steps > 1 else ""
            made = row(f"{name}: {text}{times}", _case(name), *_arrays(name))
            yield made
            if name == "matrices":  # written out, where the length is known
                yield replace(made, name=f"{made.name}, sizes declared", static=True)
    many = lambda: np.random.default_rng(0).normal(size=(100_000, 2, 2)).astype("float32") / 2  # noqa: E731
    yield row("prefixes of 100 000 products of 2 by 2 matrices", _products, many)
    yield row("prefixes of 100 000 products, gradient", _products_gradient, many)


def _case(name: str) -> Callable[..., Any]:
    return lambda m, *v: built(name, _Plain(m))[0](*v)


def _arrays(name: str) -> list[Callable[[], Any]]:
    made = lambda: built(name, MagicMock())[1]  # noqa: E731
    return [lambda i=i: np.asarray(made()[i]) for i in range(len(made()))]


def _products(m: Any, v: Any) -> Any:
    return m.associative_scan(lambda x, y: m.matmul(y, x), v)


def _products_gradient(m: Any, v: Any) -> Any:
    return m.grad(lambda v: (_products(m, v) ** 2).sum())(v)


class Symdnn:
    """The functions of a case, of symdnn."""

    def __init__(self, device: str) -> None:
        import symdnn
        import symdnn.tensor as T
        from symdnn import control

        symdnn.config.device = device
        self.jit, self.grad = symdnn.jit, symdnn.grad
        self.fori_loop, self.while_loop, self.scan = (
            control.fori_loop, control.while_loop, control.scan,
        )  # fmt: skip
        self.associative_scan = control.associative_scan
        self.tanh, self.dot, self.matmul = T.tanh, T.dot, T.batched_dot
        self.device = device

    def placed(self, args: Any) -> Any:
        """The arguments where a program would have them."""
        if self.device == "cpu":
            return args
        return self.jit(lambda a: a)(args)

    def wait(self, found: Any) -> None:
        """Until the result is there, on the device."""
        if self.device != "cpu":
            Device(on_gpu=True).sync()


def main(argv: list[str] | None = None) -> int:
    """Run the sides in turn and print the table."""
    arguments = sys.argv[1:] if argv is None else argv
    if "--rows" in arguments:
        rest = [a for a in arguments if a != "--rows"]
        return gpu_rows.main(rest, "benchmarks.transforms.functions", 90, rows())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--jax", help="the Python that has JAX; without it symdnn runs alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", action="append", help="only this case")
    parser.add_argument("--side", help="run one side and print its numbers")
    parser.add_argument("--out", help="file that the table is written to")
    options = parser.parse_args(argv)
    names = options.case or list(CASES)
    if options.side == "symdnn":
        print(timed(names, Symdnn(options.device)))
        return 0
    cases = [f"--case={n}" for n in names]
    own = [sys.executable, "-m", "benchmarks.transforms.functions", "--side=symdnn", *cases]
    sides = {"symdnn": [*own, f"--device={options.device}"]}
    if options.jax:
        sides["jax"] = [options.jax, "-m", "benchmarks.transforms.side_jax",
                        f"--device={options.device}", *cases]  # fmt: skip
    found: dict[str, dict[str, list[float]]] = {s: {n: [] for n in names} for s in sides}
    for _ in range(options.rounds):
        for side, command in sides.items():
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            for n, t in json.loads(done.stdout.splitlines()[-1]).items():
                found[side][n].append(t)
    lines = [f"{'case':20}{'symdnn us':>12}{'jax us':>12}{'ratio':>8}  what"]
    for n in names:
        ours = statistics.median(found["symdnn"][n])
        text = f"{n:20}{ours:12.2f}"
        if options.jax:
            theirs = statistics.median(found["jax"][n])
            text += f"{theirs:12.2f}{ours / theirs:8.2f}"
        lines.append(f"{text}  {CASES[n][0]}")
    print("\n".join(lines))
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
