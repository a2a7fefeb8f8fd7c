"""Sorts, transposes, reductions, wide rows, copies, gathers, Fourier transforms and sparse products
beside PyTorch, JAX and NumPy (or SciPy).

    python -m benchmarks.cpu.nest --peers ../peers/bin/python --out nest-cpu.txt
    python -m benchmarks.cpu.nest --only '^sort' --rounds 9 --threads 2
    python -m benchmarks.cpu.survey_users --before TREE --window-ms 4 --draw 60 --seed 3
    python -m benchmarks.cpu.survey_users --before TREE --like RECORD
    python -m benchmarks.transforms.vmap --peers ../peers/bin/python --memory

A row is one program and its peers, called in turn, with the same arrays and number of threads, each
library in a process of its own on the same cores. With one thread the time is the processor's, else
the clock's; each is the median of rounds. Printed is the best peer's time over ours: below 1 symdnn
is slower. ``--before`` adds the symdnn of another working tree, whose ratio and time come first;
``--draw`` takes so many rows at random. ``--memory`` adds the bytes that a call needs beside its
arguments (:mod:`benchmarks.cpu.allocations`), of each row and library in a fresh process.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.cpu import allocations
from benchmarks.cpu.sides import AVX2, ROOT, environment
from benchmarks.gpu.device import commit
from tests.cpu import older_processor

__all__ = [
    "F", "Nest", "T", "drawn", "jax", "jnp", "LazyModule", "main", "nn", "pytensor",
    "rows_of", "symdnn", "torch",
]  # fmt: skip


class LazyModule:
    """A module that is imported when it is first used: a process has one library only."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


symdnn, T, nn = (LazyModule(f"symdnn{part}") for part in ("", ".tensor", ".nn"))
jax, jnp = LazyModule("jax"), LazyModule("jax.numpy")
torch, F = LazyModule("torch"), LazyModule("torch.nn.functional")
pytensor = LazyModule("pytensor")


@dataclass(frozen=True)
class Nest:
    """A row: what makes its arrays, our program of variables, the peers' functions of arrays."""

    name: str
    arrays: tuple[Callable[[], Any], ...]
    symdnn: Callable[..., Any]
    torch: Callable[..., Any] | None = None
    jax: Callable[..., Any] | None = None
    numpy: Callable[..., Any] | None = None
    pytensor: Callable[..., Any] | None = None
    #: A function for ``torch.compile``.
    compiled: Callable[..., Any] | None = None
    #: Whether our inputs are declared with their sizes.
    static: bool = False
    #: Calls that are made first; a loop is compiled after a thousand steps.
    warm: int = 0


_TITLES = {
    "symdnn": "symdnn", "before": "before", "torch": "PyTorch", "jax": "JAX", "numpy": "NumPy",
    "pytensor": "PyTensor", "compiled": "torch.compile",
}  # fmt: skip
#: Calls shorter than this are made so many times first: plans of NumPy's kernels are compiled then.
_SHORT_S, _WARM_CALLS = 2e-4, 1100


def main(argv: list[str] | None = None, module: str = "") -> int:
    """Time the rows (of this module, or ``rows()`` of another) and print them, slowest first."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu.nest", description=__doc__)
    parser.add_argument("--only", default="", help="rows whose names match this expression")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peers", default=sys.executable, help="interpreter that has the peers")
    parser.add_argument("--pytensor", help="interpreter that has PyTensor; without it, left out")
    parser.add_argument("--no-compile", dest="compiled", action="store_false")
    parser.add_argument("--out", help="file that the table is written to")
    parser.add_argument("--before", default="", help="another tree, whose symdnn is run as well")
    parser.add_argument("--window-ms", type=float, default=30, help="milliseconds of a window")
    parser.add_argument("--like", help="the rows that this record has")
    parser.add_argument("--draw", type=int, help="take so many rows at random")
    parser.add_argument("--seed", type=int, default=0, help="of --draw")
    parser.add_argument("--avx2", action="store_true", help="as a processor without AVX-512")
    parser.add_argument("--memory", action="store_true", help="count what a call allocates, too")
    parser.add_argument("--check", action="store_true", help="compare numbers instead of times")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--module", default=module, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    rows = [n for n in rows_of(args.module) if args.worker or re.search(args.only, n.name)]
    if args.like and not args.worker:
        with open(args.like, encoding="utf-8") as file:
            before = file.read()
        shown = r" +[\d.]+ (->|us)"
        rows = [n for n in rows if re.search(rf"  {re.escape(n.name)}{shown}", before)]
    if args.draw and not args.worker:
        rows = random.Random(args.seed).sample(rows, min(args.draw, len(rows)))
    if args.worker:
        if args.worker == "before":
            sys.path.insert(0, args.before)  # before symdnn is imported
        if args.avx2 and args.worker in ("symdnn", "before"):
            older_processor.pretend()
        own = time.process_time if args.threads == 1 else time.perf_counter
        _work(args.worker, rows, own, args.window_ms / 1000)
        return 0
    if args.check:
        return sum([_differs(row) for row in rows])
    asked = [n for n in _TITLES if getattr(args, n, True)]
    sides = {n: _Side(n, args) for n in asked if any(_has(row, n) for row in rows)}
    named = {n: s for n, s in sides.items() if n not in ("symdnn", "before")}
    versions = ", ".join(f"{_TITLES[n]} {s.ask({})}" for n, s in named.items())
    found, counted = [], _Counted(args)
    for nest in rows:
        found.append(_measured(nest, sides, args.rounds))
        if args.memory:
            found[-1] = found[-1][0], f"{found[-1][1]}\n{_memory(nest, list(sides), counted)}"
        print(found[-1][1], flush=True)
    clock = "processor time" if args.threads == 1 else "time"
    processor = _processor() + " as with AVX2" * args.avx2
    facts = [
        f"{datetime.date.today()} {processor} ({args.threads} threads), commit {commit()}",
        f"Python {platform.python_version()}, {versions}",
        f"best peer's {clock} / symdnn's, medians of alternated rounds, a process for each library",
    ] + [f"before and after; python -m {args.module} {' '.join(argv or sys.argv[1:])}"] * bool(
        args.before
    )
    text = "\n".join([*facts, "", *(line for _, line in sorted(found))])
    print(text)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    return 0


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.partition(": ")[2].strip() for line in file if "model name" in line), "")


def _has(nest: Nest, side: str) -> bool:
    """Whether a row has a program for a side."""
    return side == "before" or getattr(nest, side) is not None


def _measured(nest: Nest, sides: dict[str, _Side], rounds: int) -> tuple[float, str]:
    calls = {n: 0 for n in sides if _has(nest, n)}
    for name in calls:
        calls[name] = sides[name].ask({"prepare": nest.name})
    calls = {name: count for name, count in calls.items() if count}  # the others have no such row
    if "symdnn" not in calls or not calls.keys() - {"symdnn", "before"}:
        return 0.0, f"  none  {nest.name}"
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, count in calls.items():
            times[name].append(sides[name].ask({"run": count}))
    medians = {name: statistics.median(t) for name, t in times.items()}
    ours, before = medians.pop("symdnn"), medians.pop("before", 0.0)
    best = min(medians.values()) / ours
    if "before" in sides:
        first = min(medians.values()) / before if before else 0.0
        peers = " ".join(f"{_TITLES[name]} {t * 1e6:.1f}" for name, t in medians.items())
        change = f"{before * 1e6:9.1f} -> {ours * 1e6:9.1f} us"
        return best, f"{first:6.2f} {best:6.2f}  {nest.name:56} {change}   {peers}"
    ratios = ", ".join(f"{_TITLES[name]} {t / ours:.2f}" for name, t in medians.items())
    return best, f"{best:6.2f}  {nest.name:48} {ours * 1e6:9.1f} us  {ratios}"


def _memory(nest: Nest, names: Sequence[str], counted: _Counted) -> str:
    """A line of the bytes that a call needs beside its arguments."""
    found = {n: counted.nbytes(nest, n) for n in names if _has(nest, n)}
    ours = found.pop("symdnn", 0)
    found = {name: nbytes for name, nbytes in found.items() if nbytes}
    if not ours or not found:
        return "  none    memory"
    ratios = ", ".join(f"{_TITLES[name]} {n / ours:.2f}" for name, n in found.items())
    return f"{min(found.values()) / ours:6.2f}    memory{'':40} {ours / 1024:9.1f} KiB {ratios}"


# -- numbers --------------------------------------------------------------------------------------

_WIDE = {"float16": "float64", "float32": "float64", "bfloat16": "float64"}


def _differs(nest: Nest) -> bool:
    """Whether our results are not a peer's on the same numbers in float64; says so, and how far."""
    wide = tuple(lambda make=make: _widened(make()) for make in nest.arrays)
    other = dataclasses.replace(nest, arrays=wide)
    try:
        ours = _as_list(_symdnn_call(nest)())
        name = next(n for n in ("numpy", "torch", "jax") if getattr(nest, n))
        theirs = _as_list(_CALLS[name](other)())
    except Exception as error:
        print(f"{nest.name}: {type(error).__name__} {str(error).strip()[:300]}", flush=True)
        return True
    for mine, wanted in zip(ours, theirs, strict=True):
        found, true = _widened(np.asarray(mine)), _array(wanted)
        part = 3e-2 if str(mine.dtype) in ("float16", "bfloat16") else 2e-4
        close = found.shape == true.shape and np.allclose(
            found, true, part, part * (abs(true).max() if true.size else 0), equal_nan=True
        )
        if not close:
            far = abs(found - true).max() if found.shape == true.shape else "shapes"
            print(f"{nest.name}: {found.shape} {true.shape}, off by {far}", flush=True)
            return True
    return False


def _array(v: Any) -> Any:
    """A peer's result for NumPy, which has none of PyTorch's bfloat16."""
    return np.asarray(v.float() if str(v.dtype) == "torch.bfloat16" else v)


def _widened(array: Any) -> Any:
    return array.astype(_WIDE.get(array.dtype.name, array.dtype))


# -- processes ------------------------------------------------------------------------------------


class _Side:
    """A library's process, which answers a line of JSON by one."""

    def __init__(self, name: str, args: argparse.Namespace, **more: str) -> None:
        others = dict.fromkeys(("torch", "compiled", "jax"), args.peers)
        python = (others | {"pytensor": args.pytensor}).get(name, sys.executable)
        command = [python, "-m", "benchmarks.cpu.nest", "--worker", name, "--module", args.module,
                   "--before", args.before, "--window-ms", str(args.window_ms),
                   *["--avx2"] * args.avx2]  # fmt: skip
        cores = sorted(os.sched_getaffinity(0))[-args.threads :]
        self._process = subprocess.Popen(
            [*command, "--threads", str(args.threads)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env=environment(args.threads, **(AVX2 if args.avx2 else {}), **more),
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip

    def ask(self, order: dict[str, Any]) -> Any:
        """What an order gives; see :func:`_work`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        """End the process."""
        self._process.communicate()


class _Counted:
    """Processes that count what they allocate: one for each peer, for symdnn one for each row."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args, self._sides = args, dict[str, _Side]()

    def nbytes(self, nest: Nest, name: str) -> int:
        """Bytes of a call; 0 where there is no such row."""
        side = self._sides.pop(name, None) or _Side(name, self._args, **allocations.counting())
        ready = side.ask({"prepare": nest.name})
        found: int = side.ask({"memory": nest.name}) if ready else 0
        if name in ("symdnn", "before"):
            side.end()
        else:
            self._sides[name] = side
        return found


def _work(library: str, nests: Sequence[Nest], clock: Callable[[], float], window_s: float) -> None:
    """Answer orders: the version; prepare a row and say the calls of a window; run so many."""
    found = {nest.name: nest for nest in nests}
    call: Callable[[], Any] = list
    kept = allocations.Kept() if library == "symdnn" and allocations.is_counted() else None
    for line in sys.stdin:
        order, answer = json.loads(line), None
        if "prepare" in order:
            try:
                call = _CALLS[library](found[order["prepare"]])
                for _ in range(found[order["prepare"]].warm):
                    call()
                answer = _repeats(call, window_s)
            except Exception as error:
                print(library, order["prepare"], error, file=sys.stderr, flush=True)
                answer = 0
        elif "memory" in order:
            given = sum(make().nbytes for make in found[order["memory"]].arrays)
            own = kept.nbytes() - given if kept else 0
            answer = own + allocations.grown(call)
        elif "run" in order:
            call()
            began = clock()
            for _ in range(order["run"]):
                call()
            answer = (clock() - began) / order["run"]
        else:
            answer = importlib.import_module(_MODULES.get(library, library)).__version__
        print(json.dumps(answer), flush=True)


def _repeats(call: Callable[[], Any], window_s: float) -> int:
    call(), call()
    took = []
    for _ in range(3):  # the least: beside other work a short call may look long
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    if min(took) < _SHORT_S:
        for _ in range(_WARM_CALLS):
            call()
    began = time.perf_counter()
    call()
    return max(1, int(window_s / (time.perf_counter() - began)))


def _as_list(found: Any) -> list[Any]:
    return list(found) if isinstance(found, list | tuple) else [found]


def _symdnn_call(nest: Nest) -> Callable[[], Any]:
    arrays = [make() for make in nest.arrays]
    shapes = [a.shape if nest.static else (None,) * a.ndim for a in arrays]
    inputs = [T.tensor(a.dtype.name, shape) for a, shape in zip(arrays, shapes)]
    outs = [symdnn.Out(o, borrow=True) for o in _as_list(nest.symdnn(*inputs))]
    f = symdnn.function(inputs, outs, on_unused_input="ignore")
    return lambda: f(*arrays)


def _torch_call(nest: Nest) -> Callable[[], Any]:
    tensors, f = [_tensor(make()) for make in nest.arrays], nest.torch
    assert f is not None
    return lambda: f(*tensors)


def _tensor(array: Any) -> Any:
    """A tensor of PyTorch, which has a bfloat16 of its own."""
    if array.dtype.name != "bfloat16":
        return torch.from_numpy(array)
    return torch.from_numpy(array.view("int16")).view(torch.bfloat16)


def _compiled_call(nest: Nest) -> Callable[[], Any]:
    torch._dynamo.config.cache_size_limit = 64
    tensors, f = [torch.from_numpy(make()) for make in nest.arrays], torch.compile(nest.compiled)
    return lambda: f(*tensors)


def _jax_call(nest: Nest) -> Callable[[], Any]:
    jax.config.update("jax_enable_x64", True)
    f, own = jax.jit(nest.jax), [jnp.asarray(make()) for make in nest.arrays]
    return lambda: jax.block_until_ready(f(*own))


def _numpy_call(nest: Nest) -> Callable[[], Any]:
    arrays, f = [make() for make in nest.arrays], nest.numpy
    assert f is not None
    return lambda: f(*arrays)


def _pytensor_call(nest: Nest) -> Callable[[], Any]:
    arrays, f = [make() for make in nest.arrays], nest.pytensor
    assert f is not None
    pytensor.config.floatX = "float32"  # of Python's numbers
    inputs = [pytensor.tensor.TensorType(a.dtype.name, (None,) * a.ndim)() for a in arrays]
    outs = [pytensor.Out(v, borrow=True) for v in _as_list(f(*inputs))]
    compiled = pytensor.function(inputs, outs)
    return lambda: compiled(*arrays)


_CALLS = {
    "symdnn": _symdnn_call, "before": _symdnn_call, "torch": _torch_call, "jax": _jax_call,
    "numpy": _numpy_call, "pytensor": _pytensor_call, "compiled": _compiled_call,
}  # fmt: skip
_MODULES = {"compiled": "torch", "before": "symdnn"}


# -- rows -----------------------------------------------------------------------------------------


#: Modules with the rows of this program.
_FAMILIES = ("nest_rows", "fft_sparse", "linalg", "loops")


def rows_of(module: str) -> Iterator[Nest]:
    """All rows, or those of a module."""
    if module:
        yield from importlib.import_module(module).rows()
    else:
        for each in _FAMILIES:
            yield from importlib.import_module(f"benchmarks.cpu.{each}").rows()


def drawn(*shape: int, dtype: str = "float32", seed: int = 0) -> Callable[[], Any]:
    def make() -> Any:
        rng = np.random.default_rng(seed)
        if dtype == "int64":
            return rng.integers(-(1 << 40), 1 << 40, shape)
        return rng.normal(size=shape).astype(dtype)

    return make


if __name__ == "__main__":
    raise SystemExit(main())
