"""Rows of the op table as programs of symdnn, PyTorch, JAX and NumPy.

A record's NumPy formula is the peers' program: JAX runs it with ``jax.numpy`` for ``np`` and
compiles it, PyTorch runs it eagerly with ``torch._numpy``; helpers that loop over elements are told
as the library has them (:mod:`benchmarks.ops.natural`). A formula that a peer cannot run (it writes
into an array, or has a size that depends on values) leaves the row without that peer.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.cpu.nest import Nest
from benchmarks.gpu.device import time_limit
from benchmarks.ops import natural
from benchmarks.ops.program import NotThere, Operands, operands, outputs, seen
from benchmarks.ops.retold import retold
from benchmarks.ops.rows import OTHER_DTYPES, Row
from symdnn.graph.evaluate import evaluate

__all__ = ["nest_row", "sides"]

#: Seconds of a peer's call by the size of the arrays. A loop for each number takes too long there,
#: which arrays of middle size show.
_CALL_S = {"small": 3.0, "middle": 0.5}


def nest_row(row: Row, tried: str = "") -> Nest:
    """The row for :mod:`benchmarks.cpu.nest`; raises :class:`NotThere` where there is none.

    With ``tried`` there is none that no peer runs with arrays of that size.
    """
    if tried and not (found := sides(row, tried)):
        raise NotThere("no peer runs it")
    given = operands(row, functools.partial(_shapes, row))
    wrt = _floats(given.record)
    made = {n: f(row, given.views, wrt) for n, f in _PROGRAMS.items() if not tried or n in found}
    arrays = tuple((lambda a=a: a) for a in given.arrays)
    count, views = len(given.record), given.views

    def ours(*xs: Any) -> Any:
        from symdnn.autodiff import Lop

        own = list(map(seen, xs, views))
        outs = outputs(row, own)
        if row.direction == "forward":
            return outs
        return Lop(outs, [own[i] for i in wrt], xs[count:], disconnected_inputs="ignore")

    return Nest(row.id, arrays, ours, static=True, **made)


def _floats(arrays: Iterable[Any]) -> list[int]:
    """The numbers of the operands that have gradients."""
    return [i for i, a in enumerate(arrays) if a.dtype.kind in "fV"]


def sides(row: Row, size: str = "small") -> set[str]:
    """Which peers run the row's formula on arrays of that size, with floats in float64.

    Of other dtypes, whose promotion differs, results must be those of symdnn's references.
    """
    given = operands(replace(row, size=size))
    wide = [a.astype("float64") if i in _floats(given.arrays) else a
            for i, a in enumerate(given.arrays)]  # fmt: skip
    wanted = _references(row, given) if row.dtype in OTHER_DTYPES[1:] else None
    found = set[str]()
    for name, make in _PROGRAMS.items():
        program = make(row, given.views, _floats(given.record))
        with contextlib.suppress(Exception), time_limit(_CALL_S[size], TimeoutError()):
            if program and _agrees(_RUNS[name](program, wide, wanted is not None), wanted):
                found.add(name)
    return found


def _shapes(row: Row, arrays: list[Any]) -> list[tuple[int, ...]] | None:
    """Of the results that have gradients, by tracing JAX's formula; None where it has none."""
    forward = _jax(replace(row, direction="forward"), [""] * len(arrays), [])
    if forward is None:
        return None
    import jax

    with contextlib.suppress(Exception), time_limit(_CALL_S["middle"], TimeoutError()):
        found = _listed(jax.eval_shape(forward, *arrays))
        return [y.shape for y in found if y.dtype.kind in "fV"]
    return None


def _references(row: Row, given: Operands) -> list[Any]:
    variables = given.variables[: len(given.record)]
    values = dict(zip(given.variables, map(seen, given.arrays, given.views)))
    with np.errstate(all="ignore"):
        return [np.asarray(v) for v in evaluate(outputs(row, variables), values)]


def _agrees(found: list[Any], wanted: list[Any] | None) -> bool:
    if wanted is None:
        return True
    return all(
        a.dtype == b.dtype and np.allclose(a, b, 1e-3, 1e-3, equal_nan=True)
        for a, b in zip(map(np.asarray, found), wanted, strict=True)
    )


def _run_jax(program: Any, arrays: list[Any], runs: bool) -> list[Any]:
    import jax

    return list(jax.jit(program)(*arrays)) if runs else [jax.eval_shape(program, *arrays)]


def _run_torch(program: Any, arrays: list[Any], _: bool) -> list[Any]:
    import torch

    return list(program(*map(torch.from_numpy, arrays)))


_RUNS: dict[str, Callable[..., list[Any]]] = {
    "jax": _run_jax, "torch": _run_torch, "numpy": lambda f, xs, _: f(*xs),
}  # fmt: skip


def _numpy(row: Row, views: list[str], wrt: list[int]) -> Callable[..., Any] | None:
    if row.direction == "gradient":
        return None
    formula = _formula(row, "numpy", {})

    def program(*xs: Any) -> Any:
        with np.errstate(all="ignore"):
            found = _listed(formula(*map(seen, xs, views)))
        # A view of an operand is not all of the work.
        shared = [any(np.may_share_memory(y, x) for x in xs) for y in found]
        return [np.array(y) if v else np.ascontiguousarray(y) for v, y in zip(shared, found)]

    return program


def _jax(row: Row, views: list[str], wrt: list[int]) -> Callable[..., Any] | None:
    try:
        import jax
        import jax.numpy
        import jax.scipy.signal
        import jax.scipy.special
        import jax.scipy.stats
    except ImportError:
        return None
    special = natural.SpecialFunctions("jax", jax.scipy.special)
    inner = {n: getattr(jax.scipy, n) for n in ("signal", "linalg", "stats")}
    scipy = SimpleNamespace(special=special, **inner)
    spaces = {
        "numpy": jax.numpy, "scipy": scipy, "scipy.special": special,
        "scipy.signal": jax.scipy.signal, "scipy.linalg": jax.scipy.linalg,
    }  # fmt: skip
    formula = _formula(row, "jax", spaces)

    def program(*xs: Any) -> Any:
        own = list(map(seen, xs, views))
        if row.direction == "forward":
            return _listed(formula(*own))

        def of_floats(*floats: Any) -> Any:
            given = list(own)
            for i, x in zip(wrt, floats):
                given[i] = x
            return [y for y in _listed(formula(*given)) if y.dtype.kind in "fV"]

        _, slopes = jax.vjp(of_floats, *(own[i] for i in wrt))
        return slopes(list(xs[len(views) :]))

    return program


def _torch(row: Row, views: list[str], wrt: list[int]) -> Callable[..., Any] | None:
    try:
        import torch
        import torch._numpy
    except ImportError:
        return None
    special = natural.SpecialFunctions("torch", torch.special)
    spaces = {
        "numpy": torch._numpy, "scipy": SimpleNamespace(special=special), "scipy.special": special
    }  # fmt: skip
    formula = _formula(row, "torch", spaces)

    def plain(y: Any) -> Any:
        return y.tensor if isinstance(y, torch._numpy.ndarray) else torch.as_tensor(y)

    def program(*xs: Any) -> Any:
        torch.set_default_device(xs[0].device if xs else None)
        own = list(map(seen, xs, views))
        if row.direction == "gradient":
            own = [x.detach().requires_grad_() if i in wrt else x for i, x in enumerate(own)]
        found = [plain(y) for y in _listed(formula(*map(torch._numpy.ndarray, own)))]
        if row.direction == "forward":
            passed = {x.untyped_storage().data_ptr() for x in xs}
            owned = [y.untyped_storage().data_ptr() not in passed for y in found]
            return [y.contiguous() if o else y.clone() for o, y in zip(owned, found)]
        found = [y for y in found if y.is_floating_point()]
        slopes = torch.autograd.grad(
            found, [own[i] for i in wrt], xs[len(own) :], allow_unused=True
        )
        return [torch.zeros_like(own[i]) if s is None else s for i, s in zip(wrt, slopes)]

    return program


def _formula(row: Row, library: str, spaces: dict[str, Any]) -> Callable[..., Any]:
    whole: Callable[..., Any] | None = natural.of_record(library, row.case.id)
    return whole or retold(row.case.expected, spaces, natural.of(library))


_PROGRAMS: dict[str, Callable[..., Any]] = {"torch": _torch, "jax": _jax, "numpy": _numpy}


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, list | tuple) else [found]
