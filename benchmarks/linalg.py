"""Linear algebra, Fourier transforms and ``scan`` beside their peers, on a CPU or a GPU.

    python -m benchmarks.linalg --peers PYTHON --pytensor PYTHON --out linalg-cpu.txt
    python -m benchmarks.linalg --device cuda

On a CPU this is :mod:`benchmarks.cpu.nest` for these rows: a process for each library, one thread.
On a GPU it is one process, with arrays on the device; PyTorch and JAX are asked where they are
installed. Rows that ``--seconds-in-all`` leaves no time for are counted at the end. Printed is the
best peer's time over symdnn's; on a CPU the worst rows first, on a GPU each when it is measured.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cpu import nest
from benchmarks.gpu.device import Device, set_flags

__all__ = ["main"]

_ROWS = "^(linalg|fft|scan)"
#: Rows that leave time for the others: a CPU has no use for a device's time at these sizes.
_ON_GPU = "^(linalg|fft|scan (RNN|LSTM|logistic))"


def main(argv: list[str] | None = None) -> int:
    """Time the rows on a device and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linalg", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", help="rows whose names match this expression")
    parser.add_argument("--seconds-in-all", type=float, default=55, help="of a GPU")
    parser.add_argument("--tiny", action="store_true", help="the GPU's program on the CPU")
    given, rest = parser.parse_known_args(argv)
    if given.device == "cpu" and not given.tiny:
        return nest.main(["--only", given.only or _ROWS, *rest])
    return _on_gpu(given)


def _on_gpu(given: Any) -> int:
    begin = time.perf_counter()
    set_flags(not given.tiny)
    device = Device(not given.tiny, 0.01, warm_time=0.005)
    peers = _peers(not given.tiny)
    rows = [r for r in nest.rows_of("") if re.search(given.only or _ON_GPU, r.name)]
    print("best peer / symdnn, milliseconds of a call", flush=True)
    found, left = [], 0
    for row in _short_first(rows):
        if time.perf_counter() - begin > given.seconds_in_all:
            left += 1
            continue
        found.append(_measured(device, row, peers))
        print(found[-1][1], flush=True)  # what a time limit outside leaves of it counts
        device.cleanup()
    slower = sum(ratio < 1 for ratio, _ in found)
    taken = time.perf_counter() - begin
    print(f"{len(found)} rows, {left} left out, in {slower} a peer is faster; {taken:.0f} s")
    return 0


def _short_first(rows: list[nest.Nest]) -> list[nest.Nest]:
    """A row of each kind, then the second of each, and so on: a cut leaves some of each."""
    kinds: dict[str, list[nest.Nest]] = {}
    for row in rows:
        kind = re.split(r" (float|complex|\d)", row.name)[0]
        kinds.setdefault(kind, []).append(row)
    most = max(map(len, kinds.values()), default=0)
    return [own[i] for i in range(most) for own in kinds.values() if i < len(own)]


def _peers(on_gpu: bool) -> dict[str, Any]:
    """How each installed peer makes a call of a row, and waits for all."""
    found: dict[str, Any] = {}
    for name, make in (("torch", _torch), ("jax", _jax)):
        try:
            found[name] = make(on_gpu)
        except Exception as error:  # not installed, or without this device
            print(f"without {name}: {type(error).__name__}: {str(error)[:80]}")
    return found


def _torch(on_gpu: bool) -> Any:
    import torch

    where = "cuda" if on_gpu else "cpu"
    torch.zeros(1, device=where)

    def call(row: nest.Nest, arrays: list[Any]) -> Callable[[], Any]:
        tensors, f = [torch.from_numpy(a).to(where) for a in arrays], row.torch
        assert f is not None
        return lambda: f(*tensors)

    return call


def _jax(on_gpu: bool) -> Any:
    import jax

    jax.config.update("jax_enable_x64", True)
    device = jax.devices("gpu" if on_gpu else "cpu")[0]

    def call(row: nest.Nest, arrays: list[Any]) -> Callable[[], Any]:
        f, own = jax.jit(row.jax), [jax.device_put(a, device) for a in arrays]
        return lambda: jax.block_until_ready(f(*own))

    return call


def _ours(device: Device, row: nest.Nest, arrays: list[Any]) -> Callable[[], Any]:
    import symdnn
    import symdnn.tensor as T

    inputs = [T.TensorType(a.dtype.name, (None,) * a.ndim)() for a in arrays]
    outs = row.symdnn(*inputs)
    outs = list(outs) if isinstance(outs, list | tuple) else [outs]
    f = symdnn.function(inputs, [symdnn.Out(v, borrow=True) for v in outs])
    own = [device.put(a) for a in arrays]
    return lambda: f(*own)


def _measured(device: Device, row: nest.Nest, peers: dict[str, Any]) -> tuple[float, str]:
    arrays = [make() for make in row.arrays]
    try:
        ours = float(device.time(_ours(device, row, arrays))["ms"])
    except Exception as error:  # one row must not hide the others
        return 0.0, f"  FAIL  {row.name:52} {type(error).__name__}: {str(error)[:100]}"
    times = {}
    for name, make in peers.items():
        if getattr(row, name) is None:
            continue
        try:
            call = make(row, arrays)
            call()
            times[name] = float(device.time(call)["ms"])
        except Exception as error:
            times[name] = np.inf
            print(f"{row.name}: {name}: {type(error).__name__}: {str(error)[:100]}")
    best = min(times.values(), default=np.nan) / ours
    text = ", ".join(f"{name} {t / ours:.2f}" for name, t in times.items())
    return best, f"{best:6.2f}  {row.name:52} {ours:9.3f} ms  {text}"


if __name__ == "__main__":
    raise SystemExit(main())
