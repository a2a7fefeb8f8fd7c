"""What a call costs beside its work: functions of tiny arrays by symdnn, JAX and eager PyTorch.

    python -m benchmarks.start.calls [--sides symdnn,jax,torch] [--peers PYTHON] [--rounds 5]

A row is a function of 0, 1, 10 or 100 arguments (their sum), of numbers of Python, with updates of
10 shared variables (JAX: donated arguments; PyTorch: in place), or with 10 and 100 results.
Printed are processor microseconds of a call with one thread: the least of windows, of fresh
processes in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cpu.sides import environment

Calls = dict[str, Callable[[], Any]]
_COUNTS = (0, 1, 10, 100)


def _sum(values: list[Any], zero: Any) -> Any:
    for v in values:
        zero = zero + v
    return zero


def _arrays(n: int) -> list[Any]:
    return [np.full(10, i, "float32") for i in range(n)]


def symdnn_calls() -> Calls:
    """A compiled function each."""
    import symdnn
    import symdnn.tensor as T

    found: Calls = {}
    for n in _COUNTS:
        xs = [T.vector(f"x{i}", dtype="float32") for i in range(n)]
        one = symdnn.shared(np.ones(10, "float32"))
        f, given = symdnn.function(xs, _sum(xs, one + 1)), _arrays(n)
        found[f"{n} arrays"] = lambda f=f, given=given: f(*given)
    for n in (1, 10):
        xs = [T.scalar(f"x{i}", dtype="float32") for i in range(n)]
        f = symdnn.function(xs, _sum(xs, 1.0), allow_input_downcast=True)
        found[f"{n} numbers"] = lambda f=f, n=n: f(*[1.5] * n)
    x = T.vector("x", dtype="float32")
    ws = [symdnn.shared(v) for v in _arrays(10)]
    f, given = symdnn.function([x], updates=[(w, w * 0.5 + x) for w in ws]), _arrays(1)
    found["10 updates"] = lambda f=f, given=given: f(*given)
    for n in (10, 100):
        f = symdnn.function([x], [x + float(i) for i in range(n)])
        found[f"{n} results"] = lambda f=f, given=given: f(*given)
    return found


def jax_calls() -> Calls:
    """A jitted function each; arrays are JAX's."""
    import jax
    import jax.numpy as jnp

    found: Calls = {}
    for n in _COUNTS:
        f = jax.jit(lambda *xs: _sum(list(xs), jnp.ones(10)))
        given = [jnp.asarray(v) for v in _arrays(n)]
        found[f"{n} arrays"] = lambda f=f, given=given: f(*given).block_until_ready()
    for n in (1, 10):
        f = jax.jit(lambda *xs: _sum(list(xs), 1.0))
        found[f"{n} numbers"] = lambda f=f, n=n: f(*[1.5] * n).block_until_ready()
    step = jax.jit(lambda ws, x: [w * 0.5 + x for w in ws], donate_argnums=0)
    state = [[jnp.asarray(v) for v in _arrays(10)]]

    x = jnp.ones(10)

    def update() -> None:
        state[0] = jax.block_until_ready(step(state[0], x))

    found["10 updates"] = update
    for n in (10, 100):
        f = jax.jit(lambda x, n=n: [x + float(i) for i in range(n)])
        found[f"{n} results"] = lambda f=f, x=x: jax.block_until_ready(f(x))
    return found


def torch_calls() -> Calls:
    """The same op by op."""
    import torch

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    found: Calls = {}
    for n in _COUNTS:
        one, given = torch.ones(10), [torch.tensor(v) for v in _arrays(n)]
        found[f"{n} arrays"] = lambda one=one, given=given: _sum(given, one + 1)
    for n in (1, 10):
        found[f"{n} numbers"] = lambda n=n: _sum([torch.tensor(1.5)] * n, torch.tensor(1.0))
    ws, x = [torch.tensor(v) for v in _arrays(10)], torch.ones(10)

    def update() -> None:
        for w in ws:
            w.mul_(0.5).add_(x)

    found["10 updates"] = update
    for n in (10, 100):
        found[f"{n} results"] = lambda n=n: [x + float(i) for i in range(n)]
    return found


def child(side: str) -> dict[str, float]:
    """Microseconds of each call."""
    calls = {"symdnn": symdnn_calls, "jax": jax_calls, "torch": torch_calls}[side]()
    found = {}
    for name, call in calls.items():
        for _ in range(1500):  # plans are hot after a thousand
            call()
        windows = []
        for _ in range(15):
            began = time.process_time()
            for _ in range(300):
                call()
            windows.append((time.process_time() - began) / 300 * 1e6)
        found[name] = min(windows)
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sides", default="symdnn,jax,torch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", default=os.environ.get("SYMDNN_PEERS", sys.executable))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.child)))
        return
    sides, least = args.sides.split(","), dict[str, dict[str, float]]()
    for _ in range(args.rounds):
        for side in sides:
            python = sys.executable if side == "symdnn" else args.peers
            command = [python, "-m", "benchmarks.start.calls", "--child", side]
            done = subprocess.run(
                command, env=environment(1), stdout=subprocess.PIPE, text=True, check=True
            )
            for name, us in json.loads(done.stdout.splitlines()[-1]).items():
                row = least.setdefault(name, {})
                row[side] = min(us, row.get(side, us))
    print(f"{'us a call':12}" + "".join(f"{side:>9}" for side in sides))
    for name, row in least.items():
        print(f"{name:12}" + "".join(f"{row[side]:9.2f}" for side in sides), flush=True)


if __name__ == "__main__":
    main()
