"""Sorts, transposes, reductions, wide rows, copies, gathers, Fourier transforms and sparse products
beside PyTorch, JAX and NumPy (or SciPy).

    python -m benchmarks.cpu.nest --peers ../peers/bin/python --out nest-cpu.txt
    python -m benchmarks.cpu.nest --only '^sort' --rounds 9 --threads 2
    python -m benchmarks.cpu.survey_users --before TREE --window-ms 4 --draw 60 --seed 3
    python -m benchmarks.cpu.survey_users --before TREE --like RECORD

A row is one program and its peers, called in turn, with the same arrays and number of threads, each
library in a process of its own on the same cores. With one thread the time is the processor's, else
the clock's; each is the median of rounds. Printed is the best peer's time over ours: below 1 symdnn
is slower. ``--before`` adds the symdnn of another working tree, whose ratio and time come first;
``--draw`` takes so many rows at random.
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

from benchmarks.cpu.sides import ROOT, environment
from benchmarks.gpu.device import commit

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
    parser.add_argument("--out", help="file that the table is written to")
    parser.add_argument("--before", default="", help="another tree, whose symdnn is run as well")
    parser.add_argument("--window-ms", type=float, default=30, help="milliseconds of a window")
    parser.add_argument("--like", help="the rows that this record has")
    parser.add_argument("--draw", type=int, help="take so many rows at random")
    parser.add_argument("--seed", type=int, default=0, help="of --draw")
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
            sys.path.insert(0, args.before)  # before symdnn is imported, when a row is made
        own = time.process_time if args.threads == 1 else time.perf_counter
        _work(args.worker, rows, own, args.window_ms / 1000)
        return 0
    if args.check:
        return sum([_differs(row) for row in rows])
    asked = [n for n in _TITLES if getattr(args, n, True)]
    sides = {n: _Side(n, args) for n in asked if any(_has(row, n) for row in rows)}
    named = {n: s for n, s in sides.items() if n not in ("symdnn", "before")}
    versions = ", ".join(f"{_TITLES[n]} {s.ask({})}" for n, s in named.items())
    found = []
    for nest in rows:
        found.append(_measured(nest, sides, args.rounds))
        print(found[-1][1], flush=True)
    clock = "processor time" if args.threads == 1 else "time"
    facts = [
        f"{datetime.date.today()} {_processor()} ({args.threads} threads), commit {commit()}",
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
        found, true = _widened(np.asarray(mine)), np.asarray(wanted)
        part = 3e-2 if str(mine.dtype) in ("float16", "bfloat16") else 2e-4
        close = found.shape == true.shape and np.allclose(
            found, true, part, part * (abs(true).max() if true.size else 0), equal_nan=True
        )
        if not close:
            far = abs(found - true).max() if found.shape == true.shape else "shapes"
            print(f"{nest.name}: {found.shape} {true.shape}, off by {far}", flush=True)
            return True
    return False


def _widened(array: Any) -> Any:
    return array.astype(_WIDE.get(array.dtype.name, array.dtype))


# -- processes ------------------------------------------------------------------------------------


class _Side:
    """A library's process, which answers a line of JSON by one."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        others = dict.fromkeys(("torch", "compiled", "jax"), args.peers)
        python = (others | {"pytensor": args.pytensor}).get(name, sys.executable)
        command = [python, "-m", "benchmarks.cpu.nest", "--worker", name, "--module", args.module,
                   "--before", args.before, "--window-ms", str(args.window_ms)]  # fmt: skip
        cores = sorted(os.sched_getaffinity(0))[-args.threads :]
        self._process = subprocess.Popen(
            [*command, "--threads", str(args.threads)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment(args.threads),
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip

    def ask(self, order: dict[str, Any]) -> Any:
        """What an order gives; see :func:`_work`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def _work(library: str, nests: Sequence[Nest], clock: Callable[[], float], window_s: float) -> None:
    """Answer orders: the version; prepare a row and say the calls of a window; run so many."""
    found = {nest.name: nest for nest in nests}
    call: Callable[[], Any] = list
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
    f = symdnn.function(inputs, outs)
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


def rows_of(module: str) -> Iterator[Nest]:
    """All rows, or those of a module."""
    if module:
        yield from importlib.import_module(module).rows()
    else:
        yield from _nests()


def _nests() -> Iterator[Nest]:
    yield from _sorts()
    yield from _transposes()
    yield from _turned()
    yield from _reductions()
    yield from _inner_axes()
    yield from _moved()
    yield from _wide_rows()
    yield from _gathers()
    from benchmarks.cpu import fft_sparse, linalg, loops

    yield from fft_sparse.rows()
    yield from linalg.rows()
    yield from loops.rows()


def drawn(*shape: int, dtype: str = "float32", seed: int = 0) -> Callable[[], Any]:
    def make() -> Any:
        rng = np.random.default_rng(seed)
        if dtype == "int64":
            return rng.integers(-(1 << 40), 1 << 40, shape)
        return rng.normal(size=shape).astype(dtype)

    return make


def _numbers(below: int, count: int) -> Callable[[], Any]:
    return lambda: np.random.default_rng(1).integers(0, below, count)


def _sorts() -> Iterator[Nest]:

    shapes: list[tuple[tuple[int, ...], int]]
    shapes = [((16384, 16), 1), ((4096, 100), 1), ((256, 1024), 1), ((20, 10000), 1)]
    shapes += [((4, 100000), 1), ((1000, 256), 0), ((1000000,), 0)]
    for dtype in ("float32", "float64", "int64"):
        for shape, axis in shapes:
            x = drawn(*shape, dtype=dtype)
            mark = f"{dtype} {'x'.join(map(str, shape))} axis {axis}"
            yield Nest(
                f"sort {mark}", (x,), lambda v, a=axis: T.sort(v, a),
                lambda v, a=axis: torch.sort(v, a)[0], lambda v, a=axis: jnp.sort(v, a),
                lambda v, a=axis: np.sort(v, a),
            )  # fmt: skip
            yield Nest(
                f"argsort {mark}", (x,), lambda v, a=axis: T.argsort(v, a),
                lambda v, a=axis: torch.argsort(v, dim=a, stable=True),
                lambda v, a=axis: jnp.argsort(v, a),
                lambda v, a=axis: np.argsort(v, a, kind="stable"),
            )  # fmt: skip


_ORDERS = [
    ((1000, 1000), (1, 0)), ((2048, 2048), (1, 0)), ((4096, 64), (1, 0)), ((64, 4096), (1, 0)),
    ((100000, 4), (1, 0)), ((3, 300000), (1, 0)), ((64, 100, 100), (0, 2, 1)),
    ((100, 64, 80), (2, 1, 0)), ((100, 64, 80), (1, 0, 2)), ((16, 64, 56, 56), (0, 2, 3, 1)),
    ((16, 56, 56, 64), (0, 3, 1, 2)), ((32, 3, 64, 64), (0, 2, 3, 1)),
    ((8, 128, 12, 64), (0, 2, 1, 3)), ((8, 12, 128, 64), (0, 1, 3, 2)),
]  # fmt: skip


def _transposes() -> Iterator[Nest]:

    for dtype in ("float32", "float64", "float16"):
        for shape, order in _ORDERS if dtype == "float32" else _ORDERS[:10:3]:
            x = drawn(*shape, dtype=dtype)
            yield Nest(
                f"transpose {dtype} {'x'.join(map(str, shape))} to {order}", (x,),
                lambda v, o=order: _copied(v.dimshuffle(*o)),
                lambda v, o=order: v.permute(o).contiguous(),
                lambda v, o=order: jnp.transpose(v, o),
                lambda v, o=order: np.ascontiguousarray(v.transpose(o)),
            )  # fmt: skip


def _copied(v: Any) -> Any:
    """A result in C order: what a reshape reads."""
    return v.reshape((-1,))


def _turned() -> Iterator[Nest]:
    """Elementwise ops and reductions with an operand that lies otherwise in memory."""

    for shape in ((1000, 1000), (2048, 2048), (4096, 64), (64, 4096)):
        for dtype in ("float32", "float64"):
            x, y = drawn(*shape, dtype=dtype), drawn(*shape[::-1], dtype=dtype)
            mark = f"{dtype} {'x'.join(map(str, shape))}"
            yield Nest(
                f"x + y.T {mark}", (x, y), lambda a, b: a + b.T, lambda a, b: a + b.T,
                lambda a, b: a + b.T, lambda a, b: a + b.T,
            )  # fmt: skip
            yield Nest(
                f"tanh(x) * y.T {mark}", (x, y), lambda a, b: T.tanh(a) * b.T,
                lambda a, b: torch.tanh(a) * b.T, lambda a, b: jnp.tanh(a) * b.T,
            )  # fmt: skip
            yield Nest(
                f"sum(x * y.T, 1) {mark}", (x, y), lambda a, b: (a * b.T).sum(1),
                lambda a, b: (a * b.T).sum(1), lambda a, b: (a * b.T).sum(1),
                lambda a, b: (a * b.T).sum(1),
            )  # fmt: skip
            yield Nest(
                f"sum(x * y.T) {mark}", (x, y), lambda a, b: (a * b.T).sum(),
                lambda a, b: (a * b.T).sum(), lambda a, b: (a * b.T).sum(),
                lambda a, b: (a * b.T).sum(),
            )  # fmt: skip
            yield Nest(
                f"max(x.T, 0) {mark}", (x,), lambda a: a.T.max(0), lambda a: a.T.amax(0),
                lambda a: a.T.max(0), lambda a: a.T.max(0),
            )  # fmt: skip
            yield Nest(
                f"softmax(x.T, 1) {mark}", (x,), lambda a: T.nnet.softmax(a.T, axis=1),
                lambda a: torch.softmax(a.T, 1), lambda a: jax.nn.softmax(a.T, 1),
            )  # fmt: skip


def _reductions() -> Iterator[Nest]:
    """Reductions along one axis of three, and of a transposed array, with and without producers."""
    ops: dict[str, tuple[Any, Any, Any]] = {
        "sum": (lambda v, a: v.sum(a), lambda v, a: v.sum(a), lambda v, a: v.sum(a)),
        "max": (lambda v, a: v.max(a), lambda v, a: v.amax(a), lambda v, a: v.max(a)),
        "argmax": (lambda v, a: T.argmax(v, a), lambda v, a: v.argmax(a), lambda v, a: v.argmax(a)),
        "var": (lambda v, a: v.var(a), lambda v, a: v.var(a, correction=0), lambda v, a: v.var(a)),
        "norm": (
            lambda v, a: T.sqrt((v * v).sum(a)), lambda v, a: torch.linalg.vector_norm(v, dim=a),
            lambda v, a: jnp.sqrt((v * v).sum(a)),
        ),
    }  # fmt: skip
    shapes: tuple[tuple[tuple[int, ...], int], ...]
    shapes = (((64, 100, 96), 0), ((64, 100, 96), 1), ((64, 100, 96), 2), ((200000, 5), 1))
    for shape, axis in shapes:
        for dtype in ("float32", "float64"):
            x, mark = drawn(*shape, dtype=dtype), f"{dtype} {'x'.join(map(str, shape))}"
            for name, fs in ops.items():
                each = tuple(lambda v, f=f, a=axis: f(v, a) for f in fs)
                yield Nest(f"{name} axis {axis} {mark}", (x,), *each)
    for dtype in ("float32", "float64"):
        x, mark = drawn(1000, 800, dtype=dtype), f"{dtype} 800x1000"
        for name, fs in ops.items():
            for axis in (0, 1):
                each = tuple(lambda v, f=f, a=axis: f(v.T, a) for f in fs)
                yield Nest(f"{name} axis {axis} transposed {mark}", (x,), *each)


def _softmaxes(x: Any, dy: Any, mark: str) -> Iterator[Nest]:
    """Softmax and log-softmax along axis 1 with their gradients, and log-sum-exp."""
    ops: dict[str, tuple[Any, Any, Any]] = {
        "softmax": (lambda v: T.nnet.softmax(v, axis=1), lambda v: torch.softmax(v, 1),
                    lambda v: jax.nn.softmax(v, 1)),
        "log_softmax": (lambda v: T.nnet.logsoftmax(v, axis=1), lambda v: torch.log_softmax(v, 1),
                        lambda v: jax.nn.log_softmax(v, 1)),
    }  # fmt: skip
    for name, (ours, torch_, jax_) in ops.items():
        yield Nest(f"{name} {mark}", (x,), ours, torch_, jax_)
        yield Nest(
            f"{name} gradient {mark}", (x, dy),
            lambda v, d, f=ours: symdnn.Lop(f(v), v, d),
            lambda v, d, f=torch_: _torch_gradient(f, (v,), d),
            lambda v, d, f=jax_: jax.vjp(f, v)[1](d)[0],
        )  # fmt: skip
    yield Nest(
        f"logsumexp {mark}", (x,), lambda v: T.logsumexp(v, axis=1),
        lambda v: torch.logsumexp(v, 1), lambda v: jax.scipy.special.logsumexp(v, 1),
    )  # fmt: skip


def _inner_axes() -> Iterator[Nest]:
    for dtype in ("float32", "float64"):
        for shape in ((16, 21, 64, 64), (64, 1000, 32), (8, 12, 128, 128)):
            x, mark = drawn(*shape, dtype=dtype), f"{dtype} {'x'.join(map(str, shape))} axis 1"
            dy = drawn(*shape, dtype=dtype, seed=1)
            yield from _softmaxes(x, dy, mark)


def _moved() -> Iterator[Nest]:
    """Copies whose rows are short: joins, slices, padding, repeats and tiles."""
    for dtype in ("float32", "float64"):
        for rows, n in ((100000, 5), (20000, 17), (4096, 200)):
            x, y = drawn(rows, n, dtype=dtype), drawn(rows, n, dtype=dtype, seed=1)
            mark = f"{dtype} {rows}x{n}"
            yield Nest(
                f"joined along rows {mark}", (x, y), lambda a, b: T.concatenate([a, b], axis=1),
                lambda a, b: torch.cat([a, b], 1), lambda a, b: jnp.concatenate([a, b], 1),
                lambda a, b: np.concatenate([a, b], 1),
            )  # fmt: skip
            yield Nest(
                f"sliced {mark}", (x,), lambda a: _copied(a[:, 1:-1]),
                lambda a: a[:, 1:-1].contiguous(), lambda a: a[:, 1:-1],
                lambda a: np.ascontiguousarray(a[:, 1:-1]),
            )  # fmt: skip
            yield Nest(
                f"padded {mark}", (x,), lambda a: T.pad(a, [(1, 1), (2, 2)]),
                lambda a: F.pad(a, (2, 2, 1, 1)), lambda a: jnp.pad(a, [(1, 1), (2, 2)]),
                lambda a: np.pad(a, [(1, 1), (2, 2)]),
            )  # fmt: skip
            yield Nest(
                f"tiled {mark}", (x,), lambda a: T.tile(a, (1, 3)), lambda a: a.repeat(1, 3),
                lambda a: jnp.tile(a, (1, 3)), lambda a: np.tile(a, (1, 3)),
            )  # fmt: skip
            yield Nest(
                f"repeated {mark}", (x,), lambda a: T.repeat(a, 3, axis=1),
                lambda a: a.repeat_interleave(3, 1), lambda a: jnp.repeat(a, 3, 1),
                lambda a: np.repeat(a, 3, 1),
            )  # fmt: skip


_WIDTHS = ((16384, 64), (4096, 100), (4096, 512), (1024, 1000), (1024, 4096), (100, 10000)) + (
    (64, 50257), (8, 128000),
)  # fmt: skip


def _wide_rows() -> Iterator[Nest]:
    for rows, n in _WIDTHS:
        for dtype in ("float32", "float64"):
            yield from _rows(rows, n, dtype)


def _rows(rows: int, n: int, dtype: str) -> Iterator[Nest]:

    x, dy = drawn(rows, n, dtype=dtype), drawn(rows, n, dtype=dtype, seed=1)
    w, b = drawn(n, dtype=dtype), drawn(n, dtype=dtype)
    y = _numbers(n, rows)
    mark = f"{dtype} {rows}x{n}"
    yield from _softmaxes(x, dy, mark)

    def jax_loss(v: Any, labels: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(v, 1), labels[:, None], 1).mean()

    def our_loss(v: Any, labels: Any) -> Any:
        return T.nnet.softmax_crossentropy(v, labels).mean()

    yield Nest(
        f"cross-entropy {mark}", (x, y), our_loss, lambda v, t: F.cross_entropy(v, t), jax_loss
    )
    yield Nest(
        f"cross-entropy and gradient {mark}", (x, y),
        lambda v, t: [our_loss(v, t), symdnn.grad(our_loss(v, t), v)],
        lambda v, t: _torch_gradient(lambda u: F.cross_entropy(u, t), (v,), None),
        lambda v, t: jax.value_and_grad(jax_loss)(v, t),
    )  # fmt: skip

    def jax_norm(v: Any, s: Any, o: Any) -> Any:
        mean = v.mean(1, keepdims=True)
        return (v - mean) * jax.lax.rsqrt(v.var(1, keepdims=True) + 1e-5) * s + o

    def our_norm(v: Any, s: Any, o: Any) -> Any:
        return T.nnet.layer_norm(v, s, o)

    yield Nest(
        f"layer norm {mark}", (x, w, b), our_norm,
        lambda v, s, o: F.layer_norm(v, (v.shape[1],), s, o), jax_norm,
    )  # fmt: skip
    yield Nest(
        f"layer norm gradient {mark}", (x, w, b, dy),
        lambda v, s, o, d: symdnn.Lop(our_norm(v, s, o), [v, s, o], d),
        lambda v, s, o, d: _torch_gradient(
            lambda *a: F.layer_norm(a[0], (v.shape[1],), *a[1:]), (v, s, o), d
        ),
        lambda v, s, o, d: jax.vjp(jax_norm, v, s, o)[1](d),
    )  # fmt: skip


def _torch_gradient(f: Any, inputs: Any, dy: Any) -> Any:
    leaves = [v.detach().requires_grad_() for v in inputs]
    return torch.autograd.grad(f(*leaves), leaves, dy)


def _gathers() -> Iterator[Nest]:
    for dtype in ("float32", "float64"):
        for words, width, count in ((50000, 64, 8192), (1000, 512, 4096), (50000, 768, 2048)):
            w, at = drawn(words, width, dtype=dtype), _numbers(words, count)
            dy = drawn(count, width, dtype=dtype)
            mark = f"{dtype} {count} of {words}x{width}"
            yield Nest(
                f"embedding {mark}", (w, at), lambda a, i: a[i], lambda a, i: F.embedding(i, a),
                lambda a, i: a[i], lambda a, i: a[i],
            )  # fmt: skip
            yield Nest(
                f"embedding gradient {mark}", (w, at, dy),
                lambda a, i, d: symdnn.Lop(a[i], a, d),
                lambda a, i, d: _torch_gradient(lambda v: F.embedding(i, v), (a,), d),
                lambda a, i, d: jax.vjp(lambda v: v[i], a)[1](d)[0],
            )  # fmt: skip
            yield Nest(
                f"rows incremented {mark}", (w, at, dy),
                lambda a, i, d: T.inc_subtensor(a[i], d),
                lambda a, i, d: a.index_add(0, i, d), lambda a, i, d: a.at[i].add(d),
            )  # fmt: skip
        for shape, axis in (((1000, 1000), 1), ((1000, 1000), 0), ((64, 50257), 1)):
            x = drawn(*shape, dtype=dtype)

            def at(x: Any = x, axis: int = axis) -> Any:
                return np.argsort(x(), axis)

            mark = f"{dtype} {shape[0]}x{shape[1]} axis {axis}"
            yield Nest(
                f"take_along_axis {mark}", (x, at),
                lambda v, i, a=axis: T.take_along_axis(v, i, a),
                lambda v, i, a=axis: torch.gather(v, a, i),
                lambda v, i, a=axis: jnp.take_along_axis(v, i, a),
                lambda v, i, a=axis: np.take_along_axis(v, i, a),
            )  # fmt: skip
            yield Nest(
                f"take_along_axis gradient {mark}", (x, at, x),
                lambda v, i, d, a=axis: symdnn.Lop(T.take_along_axis(v, i, a), v, d),
                lambda v, i, d, a=axis: torch.zeros_like(v).scatter_add(a, i, d),
                lambda v, i, d, a=axis: jax.vjp(lambda u: jnp.take_along_axis(u, i, a), v)[1](d)[0],
            )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
