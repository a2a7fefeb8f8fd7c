"""Slopes of programs by JAX or PyTorch, where one is installed and has all of the functions.

They judge where differences are too rough. A function that has the name but another value there is
seen by its value, and the program left alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from symdnn.tensor import elementwise, reductions
from tests.fuzz.program import Input, Program, pick

#: Functions whose arguments all three packages write alike.
ALIKE = frozenset([*elementwise.__all__, *reductions.__all__])


@cache
def _places(package: str) -> tuple[Any, ...]:
    """Modules of the package, in the order in which a name is looked up."""
    if find_spec(package) is None:
        return ()
    if package == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
        return (jax.numpy, jax.scipy.special, jax.nn)
    import torch

    return (torch, torch.special, torch.nn.functional)


def _function(package: str, path: str) -> Callable[..., Any] | None:
    first, _, name = path.rpartition(".")
    if first == "operator":
        return getattr(operator, name)  # type: ignore[no-any-return]
    if not first.startswith("T") or name not in ALIKE:
        return None
    return next((getattr(p, name) for p in _places(package) if hasattr(p, name)), None)


def _evaluated(package: str, program: Program, arrays: Sequence[Any], weights: Any) -> Any:
    results: list[Any] = []
    given = iter(arrays)
    for item in program.items:
        if isinstance(item, Input):
            results.append(next(given))
        else:
            f = _function(package, item.path)
            assert f is not None
            s = item.mapped(lambda r: pick(results, r))
            results.append(f(*s.args, **s.kwargs))
    return (pick(results, program.outputs[0]) * weights).sum()


def _by_jax(program: Program, wrt: Sequence[int], weights: Any) -> tuple[float, list[Any]]:
    import jax

    arrays = [jax.numpy.asarray(a) for a in program.arrays()]

    def cost(moved: list[Any]) -> Any:
        given = [moved[wrt.index(k)] if k in wrt else a for k, a in enumerate(arrays)]
        return _evaluated("jax", program, given, weights)

    value, grads = jax.value_and_grad(cost)([arrays[k] for k in wrt])
    return float(value), [np.asarray(g) for g in grads]


def _by_torch(program: Program, wrt: Sequence[int], weights: Any) -> tuple[float, list[Any]]:
    import torch

    arrays = [torch.tensor(np.ascontiguousarray(a)) for a in program.arrays()]
    for k in wrt:
        arrays[k].requires_grad_()
    cost = _evaluated("torch", program, arrays, torch.tensor(weights))
    grads = torch.autograd.grad(cost, [arrays[k] for k in wrt], allow_unused=True)
    found = [np.zeros(arrays[k].shape) if g is None else g.numpy() for k, g in zip(wrt, grads)]
    return float(cost.detach()), found


_BY = {"jax": _by_jax, "torch": _by_torch}


def slopes(
    program: Program, wrt: Sequence[int], weights: Any, along: Sequence[Any], cost: float
) -> dict[str, tuple[float, float]]:
    """Package to the slope along the direction, and the sum of its terms' sizes."""
    found = {}
    steps = [i for i in program.items if not isinstance(i, Input)]
    for package, by in _BY.items():
        if not _places(package) or any(_function(package, s.path) is None for s in steps):
            continue
        try:
            value, grads = by(program, list(wrt), weights)
        except Exception:
            continue  # it does not take these arguments
        if abs(value - cost) <= 1e-9 * (1 + abs(cost)):
            terms = [np.sum(g * d) for g, d in zip(grads, along)]
            size = sum(float(np.abs(g * d).sum()) for g, d in zip(grads, along))
            found[package] = (float(sum(terms)), size)
    return found
