"""Time and memory of training steps that compute values again, beside PyTorch and JAX.

    python -m benchmarks.transforms.checkpoint [--device cpu|cuda] [--rounds 5] [--peers PYTHON]

Two programs: a network of 48 layers (a product, a norm of rows, gelu, a sum), and a recurrence of
1000 steps. Each runs plainly, in checkpoints by hand, and within a bound. ``--peers``
is a Python that has torch and jax. A row has the memory of values and results of a call beside its
arguments (symdnn: the plan's; torch and jax: growth of the process's largest resident memory, on a
card their own counts) and the median of the processor's seconds of a call, on a
card of those that pass, both in proportion to the same program without checkpoints.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["main"]

LAYERS, WIDE, PART = 48, 384, 6
#: Rows of a batch: on a GPU so many that the workspaces of products are a small part.
BATCH = {"cpu": 512, "cuda": 8192}
STEPS, FEATURES, STATE, SEQUENCES, EVERY = 1000, 16, 256, 64, 32
#: The loop within a quarter of the memory: this many segments of so many steps keep their states.
KEPT_EVERY, KEPT = 25, {"cpu": 14, "cuda": 23}
#: The bound on the loop's memory, in proportion to that of the plain one.
QUARTER = 0.25
#: Calls on a GPU that are not timed: graphs are captured, and kernels of loops made.
_CAPTURING_CALLS = 6
Run = Callable[[], Any]


def data(device: str) -> dict[str, Any]:
    """Parameters and inputs of both programs, float32."""
    rng = np.random.default_rng(0)

    def normal(*shape: int, scale: float = 1.0) -> Any:
        return (rng.standard_normal(shape) * scale).astype("float32")

    return {
        "ws": [normal(WIDE, WIDE, scale=WIDE**-0.5) for _ in range(LAYERS)],
        "x": normal(BATCH[device], WIDE),
        "u": normal(FEATURES, STATE, scale=STATE**-0.5),
        "w": normal(STATE, STATE, scale=STATE**-0.5),
        "steps": normal(STEPS, SEQUENCES, FEATURES),
        "h0": np.zeros((SEQUENCES, STATE), "float32"),
    }


# -- symdnn ----------------------------------------------------------------------------------------


def symdnn_runs(
    device: str, only: str = "", tf32: bool = True
) -> dict[str, tuple[Run, Callable[[], float]]]:
    """(a step, the bytes that it needs) of each variant whose name matches ``only``."""
    import symdnn
    import symdnn.tensor as T

    given = data(device)
    mode = symdnn.Mode(target=device)
    symdnn.config.dnn.conv.allow_tf32 = tf32 and device != "cpu"  # as the peers

    def network(part: int | None = None, **words: Any) -> Any:
        ws = [symdnn.shared(w) for w in given["ws"]]

        def layers(h: Any, some: Any) -> Any:
            for w in some:
                z = T.dot(h, w)
                mean, spread = z.mean(axis=1, keepdims=True), z.var(axis=1, keepdims=True)
                h = h + 0.3 * T.nnet.gelu((z - mean) / T.sqrt(spread + 1e-5))
            return h

        x = h = T.fmatrix("x")
        for i in range(0, LAYERS, part or LAYERS):
            some = ws[i : i + (part or LAYERS)]
            run = layers if part is None else symdnn.checkpoint(layers)
            h = run(h, some)
        cost = (h**2).mean()
        return compiled([x], [cost, *symdnn.grad(cost, ws)], **words)

    def loop(every: Any = None, budget: int | None = None, **more: Any) -> Any:
        u, w = symdnn.shared(given["u"]), symdnn.shared(given["w"])
        steps, h0 = T.ftensor3("steps"), T.fmatrix("h0")

        def step(v: Any, h: Any) -> Any:
            return T.tanh(T.dot(v, u) + T.dot(h, w))

        if every is None:
            h, _ = symdnn.scan(step, steps, h0)
        else:
            h, _ = symdnn.scan_checkpoints(step, steps, h0, save_every_N=every, **more)
        cost = (h[-1] ** 2).sum()
        return compiled([steps, h0], [cost, *symdnn.grad(cost, [u, w])], memory_budget=budget)

    def compiled(inputs: Any, outs: Any, **words: Any) -> Any:
        own = [symdnn.Out(v, borrow=device != "cpu") for v in outs]  # on the card, as the peers'
        return symdnn.function(inputs, own, mode=mode, **words)

    def entry(f: Any, *args: Any) -> tuple[Run, Callable[[], float]]:
        return lambda: float(f(*args)[0]), lambda: float(f.memory_report().peak)

    def quarter() -> Any:
        plain, results = network(), sum(w.nbytes for w in given["ws"])
        plain(given["x"])
        bound = results + (plain.memory_report().peak - results) // 4
        return network(memory_budget=bound)

    def loop_within() -> Any:
        plain = loop()
        plain(*arguments["loop"])
        return loop(budget=int(plain.memory_report().peak * QUARTER))

    made: dict[str, Callable[[], Any]] = {
        "network/plain": network,
        f"network/parts of {PART}": lambda: network(PART),
        "network/a quarter": quarter,
        "loop/plain": loop,
        f"loop/every {EVERY}": lambda: loop(EVERY),
        f"loop/a quarter, every {KEPT_EVERY}": lambda: loop(
            KEPT_EVERY, keep_last=KEPT[device], padding=False
        ),
        "loop/memory_budget a quarter": loop_within,
        "loop/levels 10, 10": lambda: loop((10, 10)),
        "loop/10 states, by 10": lambda: loop(10, snapshots=10),
        "loop/30 states, by 1": lambda: loop(1, snapshots=30),
    }
    arguments = {"network": (given["x"],), "loop": (given["steps"], given["h0"])}
    return {
        name: entry(make(), *arguments[name.split("/")[0]])
        for name, make in made.items()
        if re.search(only, name)
    }


# -- peers: each variant in a process of its own, for its resident memory ------------------------


def torch_run(variant: str, device: str) -> Run:
    import torch
    from torch.utils.checkpoint import checkpoint

    given = data(device)
    put = lambda a: torch.tensor(a, device=device)  # noqa: E731
    torch.backends.cuda.matmul.allow_tf32 = True  # JAX has it, too

    def done(found: Any) -> Any:
        if device != "cpu":
            torch.cuda.synchronize()
        return found

    if variant.startswith("network"):
        ws = [put(w).requires_grad_() for w in given["ws"]]
        x = put(given["x"])

        def layers(h: Any, some: Any) -> Any:
            for w in some:
                z = h @ w
                normed = torch.nn.functional.layer_norm(z, (WIDE,), eps=1e-5)
                h = h + 0.3 * torch.nn.functional.gelu(normed)
            return h

        def run() -> Any:
            h = x
            if variant.endswith("plain"):
                h = layers(h, ws)
            else:
                for i in range(0, LAYERS, PART):
                    h = checkpoint(layers, h, ws[i : i + PART], use_reentrant=False)
            return done(torch.autograd.grad((h**2).mean(), ws))

        return run
    u, w = (put(given[k]).requires_grad_() for k in "uw")
    steps, h0 = put(given["steps"]), put(given["h0"])

    def some_steps(h: Any, part: Any) -> Any:
        for v in part:
            h = torch.tanh(v @ u + h @ w)
        return h

    def loop() -> Any:
        h = h0
        if variant.endswith("plain"):
            h = some_steps(h, steps)
        else:
            for part in steps.split(EVERY):
                h = checkpoint(some_steps, h, part, use_reentrant=False)
        return done(torch.autograd.grad((h**2).sum(), [u, w]))

    return loop


def jax_run(variant: str, device: str) -> Run:
    os.environ["JAX_PLATFORMS"] = device
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy as jnp

    given = data(device)
    plain = variant.endswith("plain")
    if variant.startswith("network"):

        def layers(h: Any, some: Any) -> Any:
            for w in some:
                z = h @ w
                mean, spread = z.mean(1, keepdims=True), z.var(1, keepdims=True)
                h = h + 0.3 * jax.nn.gelu((z - mean) / jnp.sqrt(spread + 1e-5), approximate=False)
            return h

        def cost(ws: Any, x: Any) -> Any:
            for i in range(0, LAYERS, PART):
                x = (layers if plain else jax.checkpoint(layers))(x, ws[i : i + PART])
            return (x**2).mean()

        f = jax.jit(jax.grad(cost))
        arguments = [given["ws"], given["x"]]
    else:

        def step(h: Any, v: Any, params: Any) -> Any:
            return jnp.tanh(v @ params[0] + h @ params[1]), None

        def loop(params: Any, steps: Any, h: Any) -> Any:
            def inner(h: Any, part: Any) -> Any:
                return jax.lax.scan(lambda a, v: step(a, v, params), h, part)

            if plain:
                h, _ = inner(h, steps)
            else:
                parts = steps.reshape(STEPS // 40, 40, *steps.shape[1:])
                h, _ = jax.lax.scan(jax.checkpoint(inner), h, parts)
            return (h**2).sum()

        f = jax.jit(jax.grad(loop))
        arguments = [[given["u"], given["w"]], given["steps"], given["h0"]]
    arguments = jax.device_put(arguments)
    return lambda: jax.block_until_ready(f(*arguments))


def peer(who: str, variant: str, device: str, rounds: int) -> dict[str, float]:
    """Seconds and bytes of one peer's variant, in this process."""
    run = {"torch": torch_run, "jax": jax_run}[who](variant, device)
    held, most = _counts(who, device)
    before = held()
    run()
    grown = float(most() - before)
    return {"seconds": _timed({"it": run}, rounds, device)["it"], "bytes": grown}


def _counts(who: str, device: str) -> tuple[Callable[[], int], Callable[[], int]]:
    """What counts the bytes that are held, and the most that were."""
    if device == "cpu":
        grown = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # noqa: E731
        return grown, grown
    if who == "torch":
        import torch

        return torch.cuda.memory_allocated, torch.cuda.max_memory_allocated
    import jax

    stats = jax.local_devices()[0].memory_stats
    return lambda: stats()["bytes_in_use"], lambda: stats()["peak_bytes_in_use"]


def _timed(runs: dict[str, Run], rounds: int, device: str) -> dict[str, float]:
    """The median of the seconds of each, in turn: the processor's, or on a card those that pass."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    found: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        for _ in range(1 if device == "cpu" else _CAPTURING_CALLS):
            run()
    for _ in range(rounds):
        for name, run in runs.items():
            start = clock()
            run()
            found[name].append(clock() - start)
    return {name: statistics.median(times) for name, times in found.items()}


def _row(who: str, name: str, seconds: float, nbytes: float, plain: tuple[float, float]) -> str:
    return (
        f"{who:7} {name:22} {seconds * 1e3:9.1f} ms  {nbytes / 2**20:8.1f} MiB"
        f"   time x {seconds / plain[0]:5.2f}   memory x {nbytes / (plain[1] or np.inf):5.2f}"
    )


def main() -> None:
    """Print a row for each side and variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="of symdnn's variants: names that match")
    parser.add_argument("--float32", action="store_true", help="symdnn's products not in TF32")
    parser.add_argument("--peers", help="a Python that has torch and jax")
    parser.add_argument("--one", nargs=2, metavar=("WHO", "VARIANT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        sys.stdout.write(json.dumps(peer(*args.one, args.device, args.rounds)) + "\n")
        return
    entries = symdnn_runs(args.device, args.only, not args.float32)
    seconds = _timed({n: run for n, (run, _) in entries.items()}, args.rounds, args.device)
    rows = {n: (seconds[n], size()) for n, (_, size) in entries.items()}
    for name, (took, size) in rows.items():
        print(_row("symdnn", name, took, size, rows[f"{name.split('/')[0]}/plain"]))
    for who in ("torch", "jax") if args.peers else ():
        plain = {}
        for name in ("network/plain", f"network/parts of {PART}", "loop/plain", "loop/parts"):
            command = [args.peers, "-m", __spec__.name, "--device", args.device, "--rounds",
                       str(args.rounds), "--one", who, name]  # fmt: skip
            found = subprocess.run(command, capture_output=True, text=True, check=False)
            if found.returncode:
                print(f"{who:7} {name:22} {found.stderr.strip().splitlines()[-1:]}")
                continue
            got = json.loads(found.stdout.splitlines()[-1])
            plain.setdefault(name.split("/")[0], (got["seconds"], got["bytes"]))
            print(_row(who, name, got["seconds"], got["bytes"], plain[name.split("/")[0]]))


if __name__ == "__main__":
    main()
