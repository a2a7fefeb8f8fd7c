"""The training programs of :mod:`benchmarks.gpu.program_texts` on symdnn and on PyTorch.

    python -m benchmarks.gpu.programs [NAME ...] [--peers compile,graph] [--small] [--out FILE]

Both run the same text with the same weights, in float32 with TF32, and a step of Adam. ``compile``
is ``torch.compile`` with the fused optimiser; ``graph`` is the same step captured by hand into a
CUDA graph. The first three losses of both are compared. ``--small`` checks the programs, also
without a GPU; ``--warm`` only fills the cache of ``torch.compile``.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.device import Device, facts, set_flags
from benchmarks.gpu.program_texts import PROGRAMS, Program

__all__ = ["main", "symdnn_step", "torch_step"]

RATE = 1e-3
STEPS_COMPARED = 3


def symdnn_step(program: Program, train: bool = True) -> Callable[[], Any]:
    """A step of training on shared variables, which returns the loss before it, or the loss."""
    import symdnn
    import symdnn.nn.functional as F
    import symdnn.tensor as T
    from symdnn import nn

    def shared(name: str, value: Any) -> Any:
        return symdnn.shared(value, name, broadcastable=[n == 1 for n in value.shape])

    p = {k: shared(k, v) for k, v in program.parameters.items()}
    d = {k: T.as_tensor_variable(shared(k, v)) for k, v in program.data.items()}
    loss = program.loss(T, F, p, d)
    updates = nn.optim.adam(loss, list(p.values()), lr=RATE) if train else None
    step: Callable[[], Any] = symdnn.function([], symdnn.Out(loss, borrow=True), updates=updates)
    return step


def torch_step(program: Program, kind: str, how: str, train: bool = True) -> Callable[[], Any]:
    """As :func:`symdnn_step`; ``how`` is ``eager``, ``compile`` or ``graph``."""
    import torch
    import torch.nn.functional as F

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    p = {k: torch.tensor(v, device=kind).requires_grad_() for k, v in program.parameters.items()}
    d = {k: torch.tensor(v, device=kind) for k, v in program.data.items()}

    def loss_of() -> Any:
        return program.loss(torch, F, p, d)

    run = loss_of if how == "eager" else torch.compile(loss_of)
    if not train:
        forward: Callable[[], Any] = torch.no_grad()(run)
        return forward
    optimiser = torch.optim.Adam(p.values(), lr=RATE, fused=True, capturable=kind == "cuda")

    def step() -> Any:
        optimiser.zero_grad(set_to_none=True)
        loss = run()
        loss.backward()
        optimiser.step()
        return loss.detach()

    return _captured(step) if how == "graph" else step


def _captured(step: Callable[[], Any]) -> Callable[[], Any]:
    """The step as one graph; its first three calls are those before the capture."""
    import torch

    side, first = torch.cuda.Stream(), []
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        first += [step().clone() for _ in range(STEPS_COMPARED)]
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def call() -> Any:
        if first:
            return first.pop(0)
        graph.replay()
        return loss

    return call


def measured(
    make: Callable[[], Any], device: Device, get: Callable[[Any], Any], timed: bool
) -> dict[str, Any]:
    """The first losses, the seconds to them, and the time of a step."""
    start = time.perf_counter()
    step = make()
    losses = [float(get(step())) for _ in range(STEPS_COMPARED)]
    record: dict[str, Any] = {"first_s": round(time.perf_counter() - start, 2), "losses": losses}
    if timed:
        record["ms"] = float(device.time(step)["ms"])
    return record


def one(name: str, peers: list[str], device: Device, options: Any) -> dict[str, Any]:
    """The records of a program, symdnn's first."""
    program = PROGRAMS[name]("test" if options.small else "gpu")
    kind = "cuda" if device.on_gpu else "cpu"
    found: dict[str, Any] = {"program": name}
    for who in [*(() if options.warm else ("symdnn",)), *peers]:
        own = who == "symdnn"

        def make(who: str = who, own: bool = own) -> Callable[[], Any]:
            return symdnn_step(program) if own else torch_step(program, kind, who)

        get = device.host if own else operator.methodcaller("item")
        try:
            found[who] = measured(make, device, get, not options.warm)
        except Exception as error:
            found[who] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        device.cleanup()
    return found


def shown(found: dict[str, Any]) -> str:
    """A line: milliseconds of each, first calls, and how far the losses are apart."""
    own, words = found.get("symdnn", {}), [found["program"].ljust(14)]
    for peer in [k for k in found if k != "program"]:
        r = found[peer]
        words.append(
            r["error"] if "error" in r else f"{peer} {r.get('ms', 0):.3f} ms ({r['first_s']} s)"
        )
        if peer != "symdnn" and "losses" in r and "losses" in own:
            a, b = np.array(own["losses"]), np.array(r["losses"])
            words.append(f"off {np.abs(a / b - 1).max():.1e}")
    return "  ".join(words)


def main() -> None:
    """Run the programs that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="programs")
    parser.add_argument("--peers", default="compile,graph")
    parser.add_argument("--small", action="store_true", help="small sizes, any machine")
    parser.add_argument("--warm", action="store_true", help="fill the peers' caches, time nothing")
    parser.add_argument("--out", type=Path, help="a file of JSON lines")
    options = parser.parse_args()
    on_gpu = not options.small or "device=cuda" in os.environ.get("SYMDNN_FLAGS", "")
    set_flags(on_gpu)
    device = Device(on_gpu)
    rows = [] if options.warm else [facts(device)]
    for name in options.names or PROGRAMS:
        rows.append(one(name, [p for p in options.peers.split(",") if p], device, options))
        print(shown(rows[-1]), flush=True)
    if options.out:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
