"""Rows of :mod:`benchmarks.cpu.nest` on a GPU: one process, with arrays on the device.

PyTorch and JAX are measured if they are installed. Rows for which ``seconds`` leaves no time are
counted at the end. The program prints the best peer's time and memory over symdnn's, each row when
it is measured. Memory is the bytes that a call needs on the device beside its arguments: symdnn's
arena, what it keeps there with the function, and the most that a call takes from its pool;
PyTorch's most allocated bytes; the temporary and result bytes of JAX's compiled program, which no
other program of its process changes.

Processes with one ``--lock`` may run side by side: all compile their rows first, then each measures
its rows alone.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import importlib
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
from benchmarks.gpu.device import Device, commit, set_flags, time_limit, wide
from benchmarks.gpu.distance import FAR, farthest, staying

__all__ = ["Peer", "Ready", "Run", "arguments", "main", "measure", "on_cpu", "short_first"]

_TITLES = {"torch": "PyTorch", "compiled": "torch.compile", "jax": "JAX", "numpy": "NumPy"}
#: The limit of the first call of a peer's row: a compiler may need minutes.
_FIRST_S = 20.0
#: The limit of our calls that are not timed, and how many: kernels of loops are made meanwhile.
_WARM_S, _WARM_CALLS = 5.0, 300
#: How much longer than the time for compiling a process waits for others that compile.
_WAIT_S = 20.0


def arguments(parser: argparse.ArgumentParser, seconds: float) -> None:
    """The options of a program that has such rows."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", help="rows whose names match this expression")
    parser.add_argument("--seconds-in-all", type=float, default=seconds, help="of a GPU")
    parser.add_argument("--compile-seconds", type=float, default=50, help="of torch.compile there")
    parser.add_argument("--lock", help="a file; who measures rows locks it")
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
    run = Run(Device(not given.tiny, 0.05, warm_time=0.02), compare, given.compile_seconds)
    lines = [
        f"{run.named}, commit {commit()}, flags {os.environ['SYMDNN_FLAGS']}",
        "best peer / symdnn in time, in memory, milliseconds and KiB of a call; peers: time memory",
    ]
    print("\n".join(lines), flush=True)
    begin, found, left = time.perf_counter(), [], list[str]()
    with _Turns(given.lock) as turns:
        ready = []
        for row in rows:
            if time.perf_counter() - begin > given.seconds_in_all:
                left.append(row.name)
                continue
            ready.append(run.prepared(row))
            if not given.lock:
                found.append(run.row(ready.pop()))
                print(found[-1][1], flush=True)  # limited by what an outer time limit leaves
        turns.begin(begin + given.seconds_in_all + _WAIT_S)
        for each in ready:
            found.append(run.row(each))
            print(found[-1][1], flush=True)
    slower = sum(ratio < 1 for ratio, _ in found)
    taken = time.perf_counter() - begin
    last = f"{len(found)} rows, {len(left)} left out, in {slower} a peer is faster; {taken:.0f} s"
    last = "\n".join([last, *(f"left out: {name}" for name in left)])
    print(last)
    if given.out:
        with open(given.out, "w", encoding="utf-8") as file:
            file.write("\n".join([*lines, *(line for _, line in found), last]) + "\n")
    return 0


class _Turns:
    """Locks of a file: processes share one while they compile, and have one alone to measure."""

    def __init__(self, path: str | None) -> None:
        names = (path, f"{path}.turn") if path else ()
        self._files = [os.open(name, os.O_CREAT | os.O_RDWR) for name in names]

    def __enter__(self) -> _Turns:
        for file in self._files[:1]:
            fcntl.flock(file, fcntl.LOCK_SH)
        return self

    def begin(self, until: float) -> None:
        """Wait until nobody measures and, not longer than until that time, nobody compiles."""
        for compiles, measures in zip(self._files[::2], self._files[1::2]):
            fcntl.flock(compiles, fcntl.LOCK_UN)
            while time.perf_counter() < until and not _locked(compiles):
                time.sleep(0.1)
            fcntl.flock(compiles, fcntl.LOCK_UN)
            fcntl.flock(measures, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            os.close(file)


def _locked(file: int) -> bool:
    """Whether a lock was to be had at once."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def short_first(rows: Sequence[Nest]) -> list[Nest]:
    """A row of each kind, then the second of each, and so on: a cut leaves some of each."""
    kinds: dict[str, list[Nest]] = {}
    for row in rows:
        kind = re.split(r" (float|complex|\d)", row.name)[0]
        kinds.setdefault(kind, []).append(row)
    most = max(map(len, kinds.values()), default=0)
    return [own[i] for i in range(most) for own in kinds.values() if i < len(own)]


@dataclass
class Ready:
    """A row whose programs have been called: each side's call, and what its bytes are."""

    row: Nest
    calls: dict[str, tuple[Callable[[], Any], Callable[[], int]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    #: Of its arguments.
    nbytes: int = 0
    #: Of its preparation, from its start: after the numbers in float64, symdnn, each peer.
    seconds: list[float] = field(default_factory=list)


@dataclass
class Run:
    """The device, the peers, and the calls of the peers' functions: two rows may share one.

    Calls of JAX do not wait unless ``waits``; :meth:`sync` does.
    """

    device: Device
    compare: bool
    compile_seconds: float
    waits: bool = True
    first_s: float = _FIRST_S  #: the limit of the first call of a peer's row
    alone: bool = True  #: whether rows are measured that no peer runs
    looked_at: int = 1 << 62  #: about how many numbers of a result are
    peers: dict[str, Peer] = field(default_factory=dict)
    found: dict[tuple[str, Any], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, make in (("torch", _Torch), ("jax", _Jax)):
            try:
                self.peers[name] = make(self.device.on_gpu)
                self.peers[name].waits = self.waits
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

    def sync(self) -> None:
        """Wait for all work, also what JAX has not enqueued yet."""
        for peer in self.peers.values():
            peer.wait()
        self.device.sync()

    def prepared(self, row: Nest) -> Ready:
        """A row whose programs are compiled and whose numbers are right."""
        arrays = [make() for make in row.arrays]
        ready = Ready(row, nbytes=sum(a.nbytes for a in arrays))
        began = time.perf_counter()
        wanted = self._wanted(row, arrays) if self.compare else None
        stays = functools.cache(lambda: staying(lambda xs: self._wanted(row, xs), arrays))
        ready.seconds.append(time.perf_counter() - began)
        if self.compare and wanted is None and not self.alone:
            ready.notes.append("no peer runs it")
            return ready
        try:
            ours = _Symdnn(self.device, row, arrays)
            shapes = self._look(ours.call, self.device.get, wanted, ready.notes, stays)
            ours.warm(row.warm)
            ready.calls["symdnn"] = ours.call, ours.nbytes
            ready.seconds.append(time.perf_counter() - began)
        except Exception as error:  # one row must not hide the others
            ready.notes.append(_short(error))
            return ready
        for name, peer in self.peers.items():
            f = getattr(row, name)
            if f is None or (name == "compiled" and self.compile_seconds <= 0):
                continue
            key = _key(name, f, arrays)
            if key not in self.found:
                begin = time.perf_counter()
                try:
                    found = peer.call(f, arrays, compiled=name == "compiled")
                    own = self._look(found[0], peer.host, wanted, ready.notes, stays, _TITLES[name])
                    if own != shapes:  # a formula for the record's own numbers alone
                        raise ValueError(f"results of shapes {own}, not {shapes}")
                    self.found[key] = found
                except Exception as error:
                    self.found[key] = None
                    ready.notes.append(f"{_TITLES[name]}: {_short(error)}")
                if name == "compiled":
                    self.compile_seconds -= time.perf_counter() - begin
            ready.calls[name] = self.found[key] or (_fails, _fails)
            ready.seconds.append(time.perf_counter() - began)
        return ready

    def row(self, ready: Ready) -> tuple[float, str]:
        """The ratio to the best peer, and the line."""
        name = ready.row.name
        if "symdnn" not in ready.calls:
            return 0.0, f"  FAIL  {name:52} {'; '.join(ready.notes)}"
        times, nbytes = dict[str, float](), dict[str, float]()
        for side, (call, counted) in ready.calls.items():
            try:
                times[side] = float(self.device.time(call)["ms"])
                nbytes[side] = counted()
            except Exception as error:
                times.setdefault(side, np.inf)
                nbytes[side] = np.inf
                ready.notes += [f"{side}: {_short(error)}"] * (call is not _fails)
        if times.get("symdnn", np.inf) == np.inf or nbytes["symdnn"] == np.inf:
            return 0.0, f"  FAIL  {name:52} {'; '.join(ready.notes)}"
        ours, own = times.pop("symdnn"), max(nbytes.pop("symdnn"), 1)
        best = min(times.values(), default=np.nan) / ours
        least = min(nbytes.values(), default=np.nan) / own
        ratios = (f"{_TITLES[n]} {t / ours:.2f} {nbytes[n] / own:.2f}" for n, t in times.items())
        text = ", ".join(ratios)
        line = f"{best:6.2f} {least:6.2f}  {name:60} {ours:9.3f} ms {own / 1024:9.1f} KiB  {text}"
        ready.calls.clear()
        self.device.cleanup()
        return best, "\n        ".join([line, *ready.notes])

    def _wanted(self, row: Nest, arrays: list[Any]) -> list[Any] | None:
        """The numbers in float64, of a peer; in rows that only JAX runs besides us, as it is timed,
        unless rows are measured alone."""
        floats = ("bfloat16", "float16", "float32")
        given = [a.astype("float64") if a.dtype.name in floats else a for a in arrays]
        for name, peer in self.peers.items():
            f = getattr(row, name)
            if name == "compiled" or f is None:
                continue
            try:
                with _within(self.first_s):
                    if name == "jax" and not self.alone:
                        found = self.found[_key(name, f, arrays)] = peer.call(f, arrays)
                        return [peer.host(v) for v in _as_list(found[0]())]
                    return [peer.host(v) for v in _as_list(peer.once(f, given))]
            except Exception as error:
                print(f"{row.name}: {name} in float64: {_short(error)}")
        return None

    def _look(
        self, call: Any, host: Any, wanted: list[Any] | None, notes: list[str], stays: Any,
        who: str = "symdnn",
    ) -> list[tuple[int, ...]]:  # fmt: skip
        """The shapes of the first call's results; wrong numbers are an error, ties are none."""
        with _within(self.first_s if who != "symdnn" else 100.0):
            results = _as_list(call())
            narrow = any("float16" in str(getattr(found, "dtype", "")) for found in results)
            limit, far = FAR[narrow or self.device.on_gpu], 0.0
            how = self.device.on_gpu, self.looked_at
            if wanted is not None:
                far = farthest(map(host, results), wanted, *how)
            if not far <= limit and (sure := stays()):
                far = farthest(map(host, results), wanted or (), *how, sure)
                notes.append(f"{who}: compared without ties")
        if not far <= limit:
            raise ValueError(f"wrong by {far:.1e} of the largest number")
        if far > 1e-3:
            notes.append(f"{who}: off by {far:.1e} of the largest number")
        return [np.shape(r) for r in results]


def _key(name: str, f: Any, arrays: Sequence[Any]) -> Any:
    return name, f, *((a.shape, a.dtype.name) for a in arrays)


class Peer:
    """A peer: how to call a function, and how to copy a result to the host."""

    version = ""
    #: Whether a call waits for its results.
    waits = True

    def wait(self) -> None:
        """Wait until its calls are enqueued."""

    def call(self, f: Any, arrays: list[Any], compiled: bool = False) -> Any:
        """The call of a function with arrays on the device, and what gives the bytes it needs."""
        raise NotImplementedError

    def once(self, f: Any, arrays: list[Any]) -> Any:
        """What a function gives."""
        return self.call(f, arrays)[0]()

    def host(self, value: Any) -> np.ndarray:
        """A result in float64."""
        raise NotImplementedError


class _Torch(Peer):
    def __init__(self, on_gpu: bool) -> None:
        import torch

        self.torch, self.where, self.version = torch, "cuda" if on_gpu else "cpu", torch.__version__
        torch.zeros(1, device=self.where)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True

    def call(self, f: Any, arrays: list[Any], compiled: bool = False) -> Any:
        tensors = [self._tensor(a).to(self.where) for a in arrays]
        if compiled:
            importlib.import_module("torch._dynamo").config.cache_size_limit = 64  # takes long
            f = self.torch.compile(f)

        def nbytes() -> int:
            if self.where == "cpu":
                return 0
            cuda = self.torch.cuda
            cuda.synchronize()
            cuda.reset_peak_memory_stats()
            before = cuda.memory_allocated()
            results = f(*tensors)
            cuda.synchronize()
            del results
            return int(cuda.max_memory_allocated()) - int(before)

        return lambda: f(*tensors), nbytes

    def _tensor(self, a: Any) -> Any:
        if a.dtype.name == "bfloat16":
            return self.torch.from_numpy(a.view("int16")).view(self.torch.bfloat16)
        return self.torch.from_numpy(a)

    def host(self, value: Any) -> np.ndarray:
        found = value.detach().cpu()
        found = found.float() if found.dtype == self.torch.bfloat16 else found
        return wide(found.numpy())


class _Jax(Peer):
    def __init__(self, on_gpu: bool) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax

        self.jax, self.version = jax, jax.__version__
        self._last: Any = ()
        jax.config.update("jax_enable_x64", True)
        self.device = jax.devices("gpu" if on_gpu else "cpu")[0]

    def call(self, f: Any, arrays: list[Any], compiled: bool = False) -> Any:
        own = [self.jax.device_put(a, self.device) for a in arrays]
        made = self.jax.jit(f).lower(*own).compile()
        plan = made.memory_analysis()
        needed = plan.temp_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes

        def run() -> Any:
            found = made(*own)
            if self.waits:
                return self.jax.block_until_ready(found)
            self._last = found
            return found

        return run, lambda: int(needed)

    def wait(self) -> None:
        self.jax.block_until_ready(self._last)
        self._last = ()

    def once(self, f: Any, arrays: list[Any]) -> Any:
        with self.jax.default_device(self.jax.devices("cpu")[0]):  # compiles faster
            return self.jax.jit(f)(*arrays)

    def host(self, value: Any) -> np.ndarray:
        return wide(value)


class _Symdnn:
    """Our function of a row, with arrays on the device."""

    def __init__(self, device: Device, row: Nest, arrays: list[Any]) -> None:
        import symdnn
        import symdnn.tensor as T

        self._device = device
        shapes = [a.shape if row.static else (None,) * a.ndim for a in arrays]
        inputs = [T.TensorType(a.dtype.name, shape)() for a, shape in zip(arrays, shapes)]
        outs = [symdnn.Out(v, borrow=True) for v in _as_list(row.symdnn(*inputs))]
        self._own = [device.put(a) for a in arrays]
        self._kept = -self._live()
        self._f = symdnn.function(inputs, outs, on_unused_input="ignore")

    def call(self) -> Any:
        """Its results."""
        return self._f(*self._own)

    def warm(self, calls: int) -> None:
        """Calls after which loops are compiled, and what the function keeps on the device then."""
        until = time.perf_counter() + _WARM_S
        for _ in range(max(calls, _WARM_CALLS) if calls else 0):
            self.call()
            if time.perf_counter() > until:
                break
        self._device.cleanup()
        self._kept += self._live()

    def nbytes(self) -> int:
        """What a call needs beside its arguments: its arena, kept memory, the most of the pool."""
        arena = self._f.memory_report().arena
        if not self._device.on_gpu:
            return int(self._f.memory_report().peak)
        self._device.cleanup()
        budget, before = self._device.runtime.memory.budget, self._live()
        budget.peak = 0
        results = self.call()
        self._device.sync()
        grown = max(budget.peak - budget.arena_bytes, before) - before
        del results
        return int(arena + self._kept + grown)

    def _live(self) -> int:
        """Bytes of the pool in use."""
        return int(self._device.runtime.memory.budget.use().live) if self._device.on_gpu else 0


def _as_list(found: Any) -> list[Any]:
    """All results, of a nest of tuples."""
    if isinstance(found, list | tuple):
        return [leaf for part in found for leaf in _as_list(part)]
    return [found]


def _within(seconds: float) -> AbstractContextManager[None]:
    return time_limit(seconds, TimeoutError(f"longer than {seconds:.0f} s"))


def _fails() -> Any:
    raise ValueError("failed when it was looked at")


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
