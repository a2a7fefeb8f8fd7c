"""Large rows of the op table beside JAX and PyTorch: ``python -m benchmarks.ops.peers``.

A record's NumPy formula is the peers' program: JAX runs it with ``jax.numpy`` for ``np`` and
compiles it, PyTorch runs it eagerly with ``torch._numpy``. A formula that a peer cannot run (it
writes into an array, or has a size that depends on values) leaves the row without that peer.
"""

from __future__ import annotations

import argparse
import functools
import re
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from benchmarks.cpu.nest import Nest
from benchmarks.gpu import rows as gpu_rows
from benchmarks.ops.program import NotThere, operands, outputs
from benchmarks.ops.rows import Row, large_rows

__all__ = ["main", "nest_row", "retold"]


def main(argv: list[str] | None = None) -> int:
    """Time rows of a rotation of the op table, of each op in turn another."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ops.peers", description=__doc__)
    gpu_rows.arguments(parser, 110)
    parser.add_argument("--seed", type=int, default=1, help="which rotation of the rows")
    parser.add_argument("--count", type=int, default=200, help="how many rows")
    parser.add_argument("--part", default="0/1", help="K/N: each Nth row from the Kth on")
    given = parser.parse_args(argv)
    k, n = map(int, given.part.split("/"))
    rows = large_rows(given.seed, given.count)[k::n]
    rows = [r for r in rows if re.search(given.only or "", r.id)]
    return gpu_rows.measure(given, list(_nest_rows(rows)), compare=True)


def _nest_rows(rows: Iterable[Row]) -> Iterator[Nest]:
    for row in rows:
        try:
            yield nest_row(row)
        except NotThere as reason:
            print(f"        {row.id}: {str(reason).splitlines()[0][:90]}", flush=True)


def nest_row(row: Row) -> Nest:
    """The row for :mod:`benchmarks.cpu.nest`; raises :class:`NotThere` where there is none."""
    given = operands(row)
    wrt = [i for i, a in enumerate(given.record) if a.dtype.kind in "fV"]
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
        row.id, arrays, ours, torch=_torch(row, turned, wrt), jax=_jax(row, turned, wrt),
        static=True,
    )  # fmt: skip


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
