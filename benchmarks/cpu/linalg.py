"""Rows of :mod:`benchmarks.cpu.nest`: linear algebra beside its peers.

    python -m benchmarks.linalg --peers ../peers/bin/python

Small matrices, stacks, and large ones; then gradients. The column of NumPy is SciPy's for single
matrices and ``numpy.linalg`` for stacks, which is the faster of the two there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.cpu.nest import LazyModule, Nest, T, jax, jnp, symdnn, torch

__all__ = ["rows"]

scipy_linalg, jax_linalg = LazyModule("scipy.linalg"), LazyModule("jax.scipy.linalg")

_SMALL = ((4, 4), (16, 16), (32, 32))
_STACKS = ((1000, 8, 8), (64, 64, 64))
_LARGE = {"eigh": (512, 512), "svd": (512, 512), "expm": (512, 512)}
_QUICK = {"check_finite": False}


def rows() -> Iterator[Nest]:
    """All rows."""
    for name, each in _OPS.items():
        large = _LARGE.get(name, (1024, 1024))
        for dtype in ("float64", "float32"):
            shapes = (*_SMALL, *_STACKS, large) if dtype == "float64" else (_STACKS[0], large)
            for shape in shapes:
                yield _row(name, each, shape, dtype)
    yield from _gradients()


def _mark(shape: tuple[int, ...], dtype: str) -> str:
    return f"{dtype} {'x'.join(map(str, shape))}"


def regular(*shape: int, dtype: str = "float64") -> Callable[[], Any]:
    """Symmetric positive definite matrices of small condition."""

    def make() -> Any:
        x = np.random.default_rng(0).standard_normal(shape)
        n = shape[-1]
        return (x @ np.swapaxes(x, -1, -2) / n + np.eye(n)).astype(dtype)

    return make


def _right(*shape: int, dtype: str = "float64") -> Callable[[], Any]:
    """Right sides, 8 for each matrix."""
    return lambda: np.random.default_rng(1).standard_normal((*shape[:-1], 8)).astype(dtype)


def _first_or_stack(single: Callable[..., Any], stack: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, *rest: (single if a.ndim == 2 else stack)(a, *rest)


#: symdnn's, PyTorch's, JAX's and SciPy's function, and whether there are right sides.
_OPS: dict[str, tuple[Any, Any, Any, Any, bool]] = {
    "cholesky": (
        lambda a: T.linalg.cholesky(a), lambda a: torch.linalg.cholesky(a),
        lambda a: jnp.linalg.cholesky(a),
        _first_or_stack(
            lambda a: scipy_linalg.cholesky(a, lower=True, **_QUICK), np.linalg.cholesky
        ), False,
    ),
    "solve": (
        lambda a, b: T.linalg.solve(a, b), lambda a, b: torch.linalg.solve(a, b),
        lambda a, b: jnp.linalg.solve(a, b), np.linalg.solve, True,
    ),
    "solve pos": (
        lambda a, b: T.linalg.solve(a, b, "pos"),
        lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(a)),
        lambda a, b: jax_linalg.cho_solve((jnp.linalg.cholesky(a), True), b),
        _first_or_stack(
            lambda a, b: scipy_linalg.cho_solve(scipy_linalg.cho_factor(a, **_QUICK), b, **_QUICK),
            np.linalg.solve,
        ), True,
    ),
    "solve triangular": (
        lambda a, b: T.linalg.solve_triangular(a, b, lower=True),
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
        lambda a, b: jax_linalg.solve_triangular(a, b, lower=True),
        lambda a, b: scipy_linalg.solve_triangular(a, b, lower=True, **_QUICK), True,
    ),
    "inv": (
        lambda a: T.linalg.inv(a), lambda a: torch.linalg.inv(a), lambda a: jnp.linalg.inv(a),
        np.linalg.inv, False,
    ),
    "slogdet": (
        lambda a: list(T.linalg.slogdet(a)), lambda a: torch.linalg.slogdet(a),
        lambda a: jnp.linalg.slogdet(a), np.linalg.slogdet, False,
    ),
    "eigh": (
        lambda a: list(T.linalg.eigh(a)), lambda a: torch.linalg.eigh(a),
        lambda a: jnp.linalg.eigh(a), np.linalg.eigh, False,
    ),
    "svd": (
        lambda a: list(T.linalg.svd(a, full_matrices=False)),
        lambda a: torch.linalg.svd(a, full_matrices=False),
        lambda a: jnp.linalg.svd(a, full_matrices=False),
        lambda a: np.linalg.svd(a, full_matrices=False), False,
    ),
    "qr": (
        lambda a: list(T.linalg.qr(a)), lambda a: torch.linalg.qr(a), lambda a: jnp.linalg.qr(a),
        np.linalg.qr, False,
    ),
    "expm": (
        lambda a: T.linalg.expm(a), lambda a: torch.linalg.matrix_exp(a),
        lambda a: jax_linalg.expm(a), lambda a: scipy_linalg.expm(a), False,
    ),
}  # fmt: skip


def _row(name: str, each: Any, shape: tuple[int, ...], dtype: str) -> Nest:
    *functions, right = each
    arrays = [regular(*shape, dtype=dtype)] + [_right(*shape, dtype=dtype)] * right
    return Nest(f"linalg {name} {_mark(shape, dtype)}", tuple(arrays), *functions)


# -- gradients ------------------------------------------------------------------------------------


def _our_likelihood(k: Any, y: Any) -> Any:
    solved = T.linalg.solve(k, y, "pos", lower=True)
    return 0.5 * ((y * solved).sum() + T.linalg.slogdet(k, "pos")[1].sum())


def _torch_likelihood(k: Any, y: Any) -> Any:
    factor = torch.linalg.cholesky(k)
    solved = torch.cholesky_solve(y, factor)
    half = factor.diagonal(dim1=-2, dim2=-1).log().sum()
    return 0.5 * (y * solved).sum() + half


def _jax_likelihood(k: Any, y: Any) -> Any:
    factor = jnp.linalg.cholesky(k)
    solved = jax_linalg.cho_solve((factor, True), y)
    return 0.5 * (y * solved).sum() + jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)).sum()


def _of_spectrum(values: Any, vectors: Any) -> Any:
    return (values**2).sum() + (vectors**4).sum()


#: A cost in symdnn, PyTorch and JAX, whether of right sides too, and shapes.
_COSTS: dict[str, tuple[Any, Any, Any, bool, tuple[tuple[int, ...], ...]]] = {
    "likelihood": (
        _our_likelihood, _torch_likelihood, _jax_likelihood, True,
        ((16, 16), (256, 256), (1024, 1024), (64, 32, 32)),
    ),
    "solve": (
        lambda a, b: (T.linalg.solve(a, b) ** 2).sum(),
        lambda a, b: (torch.linalg.solve(a, b) ** 2).sum(),
        lambda a, b: (jnp.linalg.solve(a, b) ** 2).sum(), True,
        ((16, 16), (1000, 8, 8), (512, 512)),
    ),
    "eigh": (
        lambda a: _of_spectrum(*T.linalg.eigh(a)), lambda a: _of_spectrum(*torch.linalg.eigh(a)),
        lambda a: _of_spectrum(*jnp.linalg.eigh(a)), False,
        ((16, 16), (1000, 8, 8), (256, 256)),
    ),
    "svd": (
        lambda a: (T.linalg.svd(a, full_matrices=False)[1] ** 3).sum(),
        lambda a: (torch.linalg.svd(a, full_matrices=False)[1] ** 3).sum(),
        lambda a: (jnp.linalg.svd(a, full_matrices=False)[1] ** 3).sum(), False,
        ((16, 16), (1000, 8, 8), (256, 256)),
    ),
}  # fmt: skip


def _gradients() -> Iterator[Nest]:
    for name, (ours, torchs, jaxs, right, shapes) in _COSTS.items():
        for shape in shapes:
            arrays = [regular(*shape)] + [_right(*shape)] * right

            def of_torch(*given: Any, f: Any = torchs) -> Any:
                leaves = [v.detach().requires_grad_() for v in given]
                cost = f(*leaves)
                return cost, *torch.autograd.grad(cost, leaves)

            yield Nest(
                f"linalg {name} and gradient {_mark(shape, 'float64')}", tuple(arrays),
                lambda *v, f=ours: [f(*v), *symdnn.grad(f(*v), list(v))], of_torch,
                lambda *v, f=jaxs: jax.value_and_grad(f, tuple(range(len(v))))(*v),
            )  # fmt: skip
