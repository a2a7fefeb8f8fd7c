"""Rows of :mod:`benchmarks.cpu.nest` on a GPU: one process, with arrays on the device.

PyTorch and JAX are measured if they are installed. Rows for which ``seconds`` leaves no time are
counted at the end. The program prints the best peer's time over symdnn's, each row when it is
measured.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.cpu import nest
from benchmarks.cpu.nest import Nest
from benchmarks.gpu.device import Device, commit, set_flags, time_limit

__all__ = ["arguments", "main", "measure", "on_cpu", "short_first"]

_TITLES = {"torch": "PyTorch", "compiled": "torch.compile", "jax": "JAX"}
#: How far numbers may be from those in float64, as a part of the largest; a GPU has TF32.
_FAR = {True: 2e-2, False: 1e-3}
_LEFT_OUT = 0.03
#: The limit of the first call of a peer's row: a compiler may need minutes.
_FIRST_S = 20.0


def arguments(parser: argparse.ArgumentParser, seconds: float) -> None:
    """The options of a program that has such rows."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", help="rows whose names match this expression")
    parser.add_argument("--seconds-in-all", type=float, default=seconds, help="of a GPU")
    parser.add_argument("--compile-seconds", type=float, default=50, help="of torch.compile there")
    parser.add_argument("--tiny", action="store_true", help="the GPU's program on the CPU")
    parser.add_argument("--out", help="file that the table is written to")


def on_cpu(given: argparse.Namespace, only: str = "") -> list[str]:
    """The rows of :mod:`benchmarks.cpu.nest` among them."""
    return ["--only", given.only or only] + (["--out", given.out] if given.out else [])


def main(
    argv: list[str] | None, module: str, seconds: float, rows: Iterable[Nest],
    wide: Iterable[Nest] = (),
) -> int:  # fmt: skip
    """Time the rows of a module: on a CPU by :func:`nest.main`, on a GPU ``wide`` ones as well."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", add_help=False)
    arguments(parser, seconds)
    given, rest = parser.parse_known_args(argv)
    if given.device == "cpu" and not given.tiny:
        return nest.main(on_cpu(given) + rest, module=module)
    found = [*rows, *([] if given.tiny else wide)]
    chosen = [r for r in found if re.search(given.only or "", r.name)]
    return measure(given, chosen, compare=True)


def measure(given: argparse.Namespace, rows: Sequence[Nest], compare: bool) -> int:
    """Time the rows and print them; with ``compare`` their numbers are looked at first."""
    set_flags(not given.tiny)
    run = _Run(Device(not given.tiny, 0.05, warm_time=0.02), compare, given.compile_seconds)
    lines = [
        f"{run.named}, commit {commit()}, flags {os.environ['SYMDNN_FLAGS']}",
        "best peer / symdnn, milliseconds of a call",
    ]
    print("\n".join(lines), flush=True)
    begin, found, left = time.perf_counter(), [], 0
    for row in rows:
        if time.perf_counter() - begin > given.seconds_in_all:
            left += 1
            continue
        found.append(run.row(row))
        print(found[-1][1], flush=True)  # limited by what an outer time limit leaves
        run.device.cleanup()
    slower = sum(ratio < 1 for ratio, _ in found)
    taken = time.perf_counter() - begin
    last = f"{len(found)} rows, {left} left out, in {slower} a peer is faster; {taken:.0f} s"
    print(last)
    if given.out:
        with open(given.out, "w", encoding="utf-8") as file:
            file.write("\n".join([*lines, *(line for _, line in found), last]) + "\n")
    return 0


def short_first(rows: Sequence[Nest]) -> list[Nest]:
    """A row of each kind, then the second of each, and so on: a cut leaves some of each."""
    kinds: dict[str, list[Nest]] = {}
    for row in rows:
        kind = re.split(r" (float|complex|\d)", row.name)[0]
        kinds.setdefault(kind, []).append(row)
    most = max(map(len, kinds.values()), default=0)
    return [own[i] for i in range(most) for own in kinds.values() if i < len(own)]


@dataclass
class _Run:
    """The device, the peers, and the times of the peers' functions: two rows may share one."""

    device: Device
    compare: bool
    compile_seconds: float
    peers: dict[str, _Peer] = field(default_factory=dict)
    times: dict[tuple[str, Any], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, make in (("torch", _Torch), ("jax", _Jax)):
            try:
                self.peers[name] = make(self.device.on_gpu)
            except Exception as error:  # not installed, or without this device
                print(f"without {name}: {_short(error)}")
        if "torch" in self.peers and self.compile_seconds > 0:
            self.peers["compiled"] = self.peers["torch"]

    @property
    def named(self) -> str:
        """The device, and the peers' versions."""
        first = "CPU"
        if self.device.on_gpu:
            from symdnn.gpu.binding.libcuda import driver

            first = driver().devices[0].name
        return ", ".join([first, *(f"{n} {p.version}" for n, p in self.peers.items())])

    def row(self, row: Nest) -> tuple[float, str]:
        """The ratio to the best peer, and the line."""
        arrays = [make() for make in row.arrays]
        notes: list[str] = []
        wanted = self._wanted(row, arrays) if self.compare else None
        try:
            call = _symdnn(self.device, row, arrays)
            for _ in range(row.warm):
                call()
            ours = self._time(call, self.device.get, wanted, notes)
        except Exception as error:  # one row must not hide the others
            return 0.0, f"  FAIL  {row.name:52} {_short(error)}"
        found = {}
        for name, peer in self.peers.items():
            f = getattr(row, name)
            if f is None or (name == "compiled" and self.compile_seconds <= 0):
                continue
            key = name, f, *((a.shape, a.dtype.name) for a in arrays)
            if key not in self.times:
                begin = time.perf_counter()
                try:
                    own = peer.call(f, arrays, compiled=name == "compiled")
                    self.times[key] = self._time(own, peer.host, wanted, notes, _TITLES[name])
                except Exception as error:
                    self.times[key] = np.inf
                    notes.append(f"{_TITLES[name]}: {_short(error)}")
                if name == "compiled":
                    self.compile_seconds -= time.perf_counter() - begin
            found[name] = self.times[key]
        best = min(found.values(), default=np.nan) / ours
        text = ", ".join(f"{_TITLES[n]} {t / ours:.2f}" for n, t in found.items())
        line = f"{best:6.2f}  {row.name:64} {ours:9.3f} ms  {text}"
        return best, "\n        ".join([line, *notes])

    def _wanted(self, row: Nest, arrays: list[Any]) -> list[Any] | None:
        """The numbers in float64, of a peer."""
        wide = [a.astype("float64") if a.dtype.kind == "f" else a for a in arrays]
        for name, peer in self.peers.items():
            f = getattr(row, name)
            if name == "compiled" or f is None:
                continue
            try:
                with _within(_FIRST_S):
                    return [peer.host(v) for v in _as_list(peer.call(f, wide)())]
            except Exception as error:
                print(f"{row.name}: {name} in float64: {_short(error)}")
        return None

    def _time(
        self, call: Any, host: Any, wanted: list[Any] | None, notes: list[str], who: str = "symdnn"
    ) -> float:
        """Milliseconds of a call; wrong numbers are an error, and have no time."""
        with _within(_FIRST_S if who != "symdnn" else 100.0):
            results = _as_list(call())
            far = 0.0
            for found, true in zip(results, wanted or (), strict=wanted is not None):
                own = host(found)
                if own.shape != true.shape:
                    raise ValueError(f"wrong shape: {own.shape}, not {true.shape}")
                if true.size:  # NaN counts as wrong
                    far = float(np.maximum(far, _distance(own, true, self.device.on_gpu)))
        if not far <= _FAR[self.device.on_gpu]:
            raise ValueError(f"wrong by {far:.1e} of the largest number")
        if far > 1e-3:
            notes.append(f"{who}: off by {far:.1e} of the largest number")
        del results
        return float(self.device.time(call)["ms"])


def _distance(own: np.ndarray, true: np.ndarray, rounds: bool) -> Any:
    """The largest difference as a part of the largest number.

    A GPU rounds products to TF32, so that in one of many examples another pixel may be the largest
    of its window. With ``rounds`` some entries of a long first axis are left out for this.
    """
    entries = np.abs(own - true).reshape(len(true) if true.ndim else 1, -1).max(1)
    left_out = int(len(entries) * _LEFT_OUT) if rounds else 0
    return np.sort(entries)[len(entries) - 1 - left_out] / (np.abs(true).max() or 1)


class _Peer:
    """A peer: how to call a function, and how to copy a result to the host."""

    version = ""

    def call(self, f: Any, arrays: list[Any], compiled: bool = False) -> Callable[[], Any]:
        """The call of a function with arrays on the device."""
        raise NotImplementedError

    def host(self, value: Any) -> np.ndarray:
        """A result in float64."""
        raise NotImplementedError


class _Torch(_Peer):
    def __init__(self, on_gpu: bool) -> None:
        import torch

        self.torch, self.where, self.version = torch, "cuda" if on_gpu else "cpu", torch.__version__
        torch.zeros(1, device=self.where)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True

    def call(self, f: Any, arrays: list[Any], compiled: bool = False) -> Callable[[], Any]:
        tensors = [self.torch.from_numpy(a).to(self.where) for a in arrays]
        if compiled:
            self.torch._dynamo.reset()
            f = self.torch.compile(f)
        return lambda: f(*tensors)

    def host(self, value: Any) -> np.ndarray:
        return np.asarray(value.detach().cpu().numpy(), np.float64)


class _Jax(_Peer):
    def __init__(self, on_gpu: bool) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax

        self.jax, self.version = jax, jax.__version__
        jax.config.update("jax_enable_x64", True)
        self.device = jax.devices("gpu" if on_gpu else "cpu")[0]

    def call(self, f: Any, arrays: list[Any], compiled: bool = False) -> Callable[[], Any]:
        jitted, own = self.jax.jit(f), [self.jax.device_put(a, self.device) for a in arrays]
        return lambda: self.jax.block_until_ready(jitted(*own))

    def host(self, value: Any) -> np.ndarray:
        return np.asarray(value, np.float64)


def _symdnn(device: Device, row: Nest, arrays: list[Any]) -> Callable[[], Any]:
    import symdnn
    import symdnn.tensor as T

    shapes = [a.shape if row.static else (None,) * a.ndim for a in arrays]
    inputs = [T.TensorType(a.dtype.name, shape)() for a, shape in zip(arrays, shapes)]
    outs = [symdnn.Out(v, borrow=True) for v in _as_list(row.symdnn(*inputs))]
    f = symdnn.function(inputs, outs)
    own = [device.put(a) for a in arrays]
    return lambda: f(*own)


def _as_list(found: Any) -> list[Any]:
    """All results, of a nest of tuples."""
    if isinstance(found, list | tuple):
        return [leaf for part in found for leaf in _as_list(part)]
    return [found]


def _within(seconds: float) -> AbstractContextManager[None]:
    return time_limit(seconds, TimeoutError(f"longer than {seconds:.0f} s"))


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
