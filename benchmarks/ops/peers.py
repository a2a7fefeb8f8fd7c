"""Large rows of the op table beside JAX and PyTorch: ``python -m benchmarks.ops.peers``.

A record's NumPy formula is the peers' program: JAX runs it with ``jax.numpy`` for ``np`` and
compiles it, PyTorch runs it eagerly with ``torch._numpy``. A formula that a peer cannot run (it
writes into an array, or has a size that depends on values) leaves the row without that peer.

Some processes compile the rows and look at their numbers; then one after the other measures its
own, while the others wait (:mod:`benchmarks.ops.in_turn`). A row's bytes are those of operands and
results; a copy of as many is measured beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import re
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.cpu.nest import Nest
from benchmarks.gpu import rows as gpu_rows
from benchmarks.gpu.device import Device, commit, set_flags, time_limit
from benchmarks.ops import in_turn
from benchmarks.ops.program import NotThere, operands, outputs
from benchmarks.ops.rows import Row, huge_rows, large_rows
from benchmarks.workloads import pcommon

__all__ = ["main", "nest_row", "report", "retold"]

#: Seconds that a row may take: its arrays, its numbers in float64, what is compiled.
_ROW_S = 20.0
#: Seconds of a peer's first call, and of one with arrays of middle size.
_FIRST_S, _SMALL_S = 6.0, 0.5
#: Seconds of a call that is timed once.
_LONG_CALL_S = 0.1
#: About how many numbers of a result are compared.
_LOOKED_AT = 1 << 17
#: Seconds of a side's calls that are timed, and of those before.
_TIMED_S, _WARM_S = 0.03, 0.01


def main(argv: list[str] | None = None) -> int:
    """Time rows of a rotation of the op table, of each op in turn another."""
    given = _arguments(argv)
    if given.worker:
        _Worker(given).run()
        return 0
    passed = list(sys.argv[1:] if argv is None else argv)
    until = time.time() + given.prepare_seconds
    command = [sys.executable, "-m", "benchmarks.ops.peers", *passed, "--worker"]
    commands = [[*command, f"{k}/{given.processes}/{until}"] for k in range(given.processes)]
    found, notes = in_turn.children(commands, given.prepare_seconds, given.measure_seconds)
    lines = [f"commit {commit()}, {len(found)} rows", *notes, *report(found, given.worst)]
    print("\n".join(lines))
    if given.out:
        text = "".join(json.dumps(r) + "\n" for r in found)
        Path(given.out).write_text(text, encoding="utf-8")
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ops.peers", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", default="", help="rows whose names match this expression")
    parser.add_argument("--seed", type=int, default=1, help="which rotation of the rows")
    parser.add_argument("--count", type=int, default=200, help="how many rows of 16 MB")
    parser.add_argument("--huge", type=int, default=0, help="how many rows of 256 MB")
    parser.add_argument("--dtypes", default="float32", help="of the rows, with commas")
    parser.add_argument("--processes", type=int, default=6, help="that compile side by side")
    parser.add_argument("--prepare-seconds", type=float, default=60, help="for compiling, in all")
    parser.add_argument("--measure-seconds", type=float, default=60, help="for measuring, in all")
    parser.add_argument("--worst", type=int, default=50, help="lines of the slowest rows")
    parser.add_argument("--out", help="file of records that is written")
    parser.add_argument(
        "--worker", help="which of how many processes it is, until when it prepares"
    )
    return parser.parse_args(argv)


# -- one process ----------------------------------------------------------------------------------


def _mixed(rows: list[Row], others: list[Row]) -> list[Row]:
    """All rows, the others at equal distances."""
    places = [(i / len(some), r) for some in (rows, others) for i, r in enumerate(some)]
    return [r for _, r in sorted(places, key=lambda place: place[0])]


class _Worker:
    """Prepares each nth row, and measures these in its turn."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, on_gpu = given, given.device == "cuda"
        set_flags(on_gpu)
        if on_gpu:  # the host's work is compiling and tracing, of as many processes as it has cores
            os.environ.setdefault("OMP_NUM_THREADS", "1")
            os.environ.setdefault("XLA_FLAGS", "--xla_gpu_force_compilation_parallelism=1")
        self.begin = time.perf_counter()
        self.run_of = gpu_rows.Run(
            Device(on_gpu), True, 0.0, waits=False, first_s=_FIRST_S, alone=False,
            looked_at=_LOOKED_AT,
        )  # fmt: skip
        self.device = self.run_of.device

    def run(self) -> None:
        """Do the work."""
        given, (k, n, until) = self.given, map(float, self.given.worker.split("/"))
        rows = _mixed(
            large_rows(given.seed, given.count, given.dtypes.split(",")),
            huge_rows(given.seed, given.huge),
        )
        rows = [r for r in rows if re.search(given.only, r.id)][int(k) :: int(n)]
        started, left = time.perf_counter() - self.begin, until - time.time()
        print(f"process {k:.0f}: {started:.0f} s to start, {left:.0f} s for {len(rows)} rows")
        in_turn.work(rows, self.prepared, self.measured, left)

    def prepared(self, row: Row, seconds: float) -> tuple[Row, Any, str]:
        """The row, its calls, and why there are none."""
        self.run_of.compare = row.size != "huge"
        limit, began = min(seconds, _ROW_S), time.perf_counter()
        try:
            with time_limit(limit, NotThere(f"it takes longer than {limit:.0f} s")):
                nest = nest_row(row, sided=True)
                made = time.perf_counter() - began
                ready = self.run_of.prepared(nest)
                ready.seconds.insert(0, made)
                self.run_of.found.clear()
                ready.row = replace(ready.row, arrays=())  # the host has enough of them
                return row, ready, ""
        except NotThere as reason:
            return row, None, str(reason).splitlines()[0][:90]
        except Exception as error:
            return row, None, f"{type(error).__name__}: {error}"[:200]

    def measured(self, made: tuple[Row, Any, str]) -> dict[str, Any]:
        """The record: ``ms`` of each side and of a copy, ``nbytes``, ``notes``."""
        row, ready, why = made
        record: dict[str, Any] = {"row": row.id, "op": row.op, "notes": [why] if why else []}
        if ready is None:
            return record
        record["notes"] += ready.notes
        record["prepare_s"] = [round(s, 2) for s in ready.seconds]
        for side, (call, _) in ready.calls.items():
            try:
                record[side] = self._ms(call)
                if side == "symdnn":
                    record["copy"] = self._ms(self._copy(record, ready))
            except Exception as error:
                record["notes"].append(f"{side}: {type(error).__name__}: {error}"[:120])
        ready.calls.clear()
        return record

    def _ms(self, call: Any) -> float:
        self.run_of.sync()
        begin = time.perf_counter()
        call()
        self.run_of.sync()
        once = time.perf_counter() - begin
        if once > _LONG_CALL_S:
            return 1e3 * once
        return float(
            pcommon.time_loop(call, self.run_of.sync, min_t=_TIMED_S, warm_t=_WARM_S)["ms"]
        )

    def _copy(self, record: dict[str, Any], ready: Any) -> Any:
        """The call of a copy that reads and writes as many bytes as operands and results have."""
        results = ready.calls["symdnn"][0]()
        record["nbytes"] = ready.nbytes + sum(int(r.nbytes) for r in results)
        half = max(record["nbytes"] // 2, 8)
        a, b = (self.device.put(np.ones(half, np.uint8)) for _ in range(2))
        if not self.device.on_gpu:
            return lambda: np.copyto(b, a)
        return lambda: self.device.copy(b, a, half)


# -- what was found -------------------------------------------------------------------------------


def report(found: Iterable[dict[str, Any]], worst: int) -> list[str]:
    """Lines: how many rows a peer is ahead in, what failed, the worst rows first."""
    rows = list(found)
    failed = [r for r in rows if "symdnn" not in r]
    beside = sorted(
        ((min(r[p] for p in _PEERS if p in r) / r["symdnn"], r) for r in rows
         if "symdnn" in r and any(p in r for p in _PEERS)), key=lambda pair: pair[0],
    )  # fmt: skip
    ratios = [ratio for ratio, _ in beside]
    lines = [
        f"{len(beside)} beside a peer: {sum(r >= 1 for r in ratios)} at 1.0 or more, "
        f"{sum(0.9 <= r < 1 for r in ratios)} at 0.9 to 1, {sum(r < 0.9 for r in ratios)} below"
    ]
    huge = [r for r in rows if "/huge/" in r["row"] and "symdnn" in r]
    slow = [r for r in huge if r.get("copy", 0) < 0.85 * r["symdnn"]]
    lines.append(
        f"{len(huge)} rows of 256 MB, {len(slow)} of them slower than 0.85 of a copy's rate"
    )
    body = [("best peer", "copy", "ms", "torch", "jax", "row")]
    body += [(_ratio(ratio), *_columns(r)) for ratio, r in beside[:worst]]
    body += [("", *_columns(r)) for r in slow]
    lines += records.table(body)
    return lines + [f"FAILED {r['row']}: {'; '.join(r['notes'])}"[:200] for r in failed]


_PEERS = ("torch", "jax")


def _columns(r: dict[str, Any]) -> tuple[str, ...]:
    numbers = [r.get("copy", 0) / r["symdnn"], r["symdnn"], r.get("torch"), r.get("jax")]
    return (*(_ratio(n) if n is not None else "-" for n in numbers), r["row"])


def _ratio(value: float) -> str:
    return records.number(value, 3)


# -- rows as programs -----------------------------------------------------------------------------


def nest_row(row: Row, sided: bool = False) -> Nest:
    """The row for :mod:`benchmarks.cpu.nest`; raises :class:`NotThere` where there is none.

    With ``sided`` there is none that no peer runs. That is tried with smaller arrays.
    """
    sides = _sides(row) if sided else {"torch", "jax"}
    if not sides:
        raise NotThere("no peer runs it")
    given = operands(row, functools.partial(_shapes, row))
    wrt = _floats(given.record)
    arrays = tuple((lambda a=a: a) for a in given.arrays)
    count, turned = len(given.record), given.turned

    def ours(*xs: Any) -> Any:
        from symdnn.autodiff import Lop

        own = [x.T if t else x for x, t in zip(xs, turned)]
        outs = outputs(row, own)
        if row.direction == "forward":
            return outs
        return Lop(outs, [own[i] for i in wrt], xs[count:], disconnected_inputs="ignore")

    return Nest(
        row.id, arrays, ours, static=True,
        torch=_torch(row, turned, wrt) if "torch" in sides else None,
        jax=_jax(row, turned, wrt) if "jax" in sides else None,
    )  # fmt: skip


def _floats(arrays: Iterable[Any]) -> list[int]:
    """The numbers of the operands that have gradients."""
    return [i for i, a in enumerate(arrays) if a.dtype.kind in "fV"]


def _sides(row: Row) -> set[str]:
    """Which peers run the row's formula: JAX traces it, PyTorch runs it, in float64.

    A formula with a loop for each number takes too long for both.
    """
    given = operands(replace(row, size="middle"))
    wide = [a.astype("float64") if i in _floats(given.arrays) else a
            for i, a in enumerate(given.arrays)]  # fmt: skip
    wrt, found = _floats(given.record), set()
    if (traced := _jax(row, given.turned, wrt)) is not None:
        import jax

        with contextlib.suppress(Exception), time_limit(_SMALL_S, TimeoutError()):
            jax.eval_shape(traced, *wide)
            found.add("jax")
    if (run := _torch(row, given.turned, wrt)) is not None:
        import torch

        with contextlib.suppress(Exception), time_limit(_SMALL_S, TimeoutError()):
            run(*map(torch.from_numpy, wide))
            found.add("torch")
    return found


def _shapes(row: Row, arrays: list[Any]) -> list[tuple[int, ...]] | None:
    """Of the results that have gradients, by tracing JAX's formula; None where it has none."""
    forward = _jax(replace(row, direction="forward"), [False] * len(arrays), [])
    if forward is None:
        return None
    import jax

    with contextlib.suppress(Exception), time_limit(_SMALL_S, TimeoutError()):
        found = _listed(jax.eval_shape(forward, *arrays))
        return [y.shape for y in found if y.dtype.kind in "fV"]
    return None


def _jax(row: Row, turned: list[bool], wrt: list[int]) -> Callable[..., Any] | None:
    try:
        import jax
        import jax.numpy
        import jax.scipy.special
    except ImportError:
        return None
    spaces = {"numpy": jax.numpy, "scipy": jax.scipy, "scipy.special": jax.scipy.special}
    formula = retold(row.case.expected, spaces)

    def program(*xs: Any) -> Any:
        own = [x.T if t else x for x, t in zip(xs, turned)]
        if row.direction == "forward":
            return formula(*own)

        def of_floats(*floats: Any) -> Any:
            given = list(own)
            for i, x in zip(wrt, floats):
                given[i] = x
            return [y for y in _listed(formula(*given)) if y.dtype.kind in "fV"]

        _, slopes = jax.vjp(of_floats, *(own[i] for i in wrt))
        return slopes(list(xs[len(own) :]))

    return program


def _torch(row: Row, turned: list[bool], wrt: list[int]) -> Callable[..., Any] | None:
    try:
        import torch
        import torch._numpy
    except ImportError:
        return None
    spaces = {"numpy": torch._numpy, "scipy.special": torch.special}
    formula = retold(row.case.expected, spaces)

    def plain(y: Any) -> Any:
        return y.tensor if isinstance(y, torch._numpy.ndarray) else torch.as_tensor(y)

    def program(*xs: Any) -> Any:
        torch.set_default_device(xs[0].device if xs else None)
        own = [x.permute(*reversed(range(x.ndim))) if t else x for x, t in zip(xs, turned)]
        if row.direction == "gradient":
            own = [x.detach().requires_grad_() if i in wrt else x for i, x in enumerate(own)]
        found = [plain(y) for y in _listed(formula(*map(torch._numpy.ndarray, own)))]
        if row.direction == "forward":
            return found
        found = [y for y in found if y.is_floating_point()]
        slopes = torch.autograd.grad(
            found, [own[i] for i in wrt], xs[len(own) :], allow_unused=True
        )
        return [torch.zeros_like(own[i]) if s is None else s for i, s in zip(wrt, slopes)]

    return program


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, list | tuple) else [found]


# -- a formula in another library ----------------------------------------------------------------


def retold(f: Any, spaces: dict[str, Any]) -> Any:
    """``f`` with other modules in the place of those that ``spaces`` names, and so what it calls.

    Functions are made again with other globals, closures and defaults; nothing is changed in place.
    """
    return _Retold(spaces).of(f)


class _Retold:
    def __init__(self, spaces: dict[str, Any]) -> None:
        self.spaces = spaces
        self.made: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        if isinstance(value, types.ModuleType):
            return self.spaces.get(value.__name__, value)
        if isinstance(value, functools.partial):
            return functools.partial(self.of(value.func), *value.args, **value.keywords)
        if isinstance(value, list | tuple) and any(callable(v) for v in value):
            return type(value)(self.of(v) for v in value)
        if not callable(value) or isinstance(value, type):
            return value
        if isinstance(value, types.FunctionType) and not _is_numpys(value):
            return self.made.get(id(value)) or self._function(value)
        return self._named(value)

    def _named(self, f: Any) -> Any:
        """The function of that name in the other library, or ``f``."""
        name = getattr(f, "__name__", "")
        for own, space in self.spaces.items():
            module = _module(own)
            if getattr(module, name, None) is f and hasattr(space, name):
                return getattr(space, name)
        parts = str(getattr(f, "__module__", "")).split(".")
        inner = getattr(self.spaces.get("numpy"), parts[-1], None) if len(parts) > 1 else None
        return getattr(inner, name, f)

    def _function(self, f: types.FunctionType) -> Any:
        names = set(_names(f.__code__))
        space = dict(f.__globals__)
        made = types.FunctionType(f.__code__, space, f.__name__, None, _cells(f))
        self.made[id(f)] = made
        space.update({n: self.of(space[n]) for n in names if n in space})
        made.__defaults__ = tuple(map(self.of, f.__defaults__)) if f.__defaults__ else None
        made.__kwdefaults__ = f.__kwdefaults__
        for cell, own in zip(made.__closure__ or (), f.__closure__ or ()):
            cell.cell_contents = self.of(own.cell_contents)
        return made


def _cells(f: types.FunctionType) -> tuple[types.CellType, ...] | None:
    return tuple(types.CellType() for _ in f.__closure__) if f.__closure__ else None


def _is_numpys(f: Any) -> bool:
    return str(f.__module__).partition(".")[0] in ("numpy", "scipy")


def _module(name: str) -> Any:
    import importlib

    return importlib.import_module(name)


def _names(code: types.CodeType) -> Iterator[str]:
    """Names that a function and the functions inside of it use."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


if __name__ == "__main__":
    raise SystemExit(main())
