"""Fourier transforms of random sizes, axes, norms, layouts against NumPy, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn.errors import SymdnnError
from tests.fuzz.areas import Area, Context, Failure, error_text

SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 13)
REAL = ("rfft", "rfftn", "ihfft")
NAMES = ("fft", "ifft", "fftn", "ifftn", "irfft", "irfftn", "hfft", *REAL)


def check(ctx: Context) -> list[Failure]:
    """One transform, by symbolic and static sizes, and its gradient along a direction."""
    rng = ctx.rng
    name, ndim = str(rng.choice(NAMES)), int(rng.integers(1, 4))
    shape = tuple(int(n) for n in rng.choice(SIZES, ndim))
    norm = rng.choice([None, "backward", "ortho", "forward"])
    several = name.endswith("n")
    count = int(rng.integers(1, ndim + 1)) if several else 1
    axes = [int(a) - ndim * int(rng.integers(0, 2)) for a in rng.permutation(ndim)[:count]]
    sizes = [int(n) for n in rng.choice(SIZES, count)]
    if rng.random() < 0.3 and "i" not in name[:2]:
        sizes = [shape[a] for a in axes]
    x = rng.standard_normal(shape)
    if name not in REAL and rng.random() < 0.8:
        x = x + 1j * rng.standard_normal(shape)
    if rng.random() < 0.3:
        x = np.asfortranarray(x)[..., ::-1]
    symbolic, static = rng.random() < 0.5, rng.random() < 0.5
    what = f"{name} of {x.dtype}{shape}, axes={axes}, sizes={sizes}, norm={norm}"

    def numpys(a: Any) -> Any:
        function = getattr(np.fft, name)
        return function(a, sizes, axes, norm) if several else function(a, sizes[0], axes[0], norm)

    wanted = numpys(x)
    weights = rng.standard_normal(wanted.shape)
    if np.iscomplexobj(wanted):
        weights = weights + 1j * rng.standard_normal(wanted.shape)
    try:
        v = T.TensorType(x.dtype.name, shape if static else (None,) * ndim)("v")
        ns = [T.lscalar() for _ in sizes] if symbolic else []
        given = ns or sizes
        words = (given, axes, norm) if several else (given[0], axes[0], norm)
        y = getattr(T.fft, name)(v, *words)
        cost = T.real(T.conj(weights) * y).sum()
        f = symdnn.function([v, *ns], [y, symdnn.grad(cost, v)])
        found, slope = f(x, *(sizes if symbolic else ()))
    except SymdnnError as error:
        return [ctx.fail(f"{what}: {error_text(error)}")]
    ctx.count("transforms")
    if found.dtype != wanted.dtype or not np.allclose(found, wanted, 1e-10, 1e-10):
        return [ctx.fail(f"{what}: the value differs")]
    turn = rng.standard_normal(shape)
    if np.iscomplexobj(x):
        turn = turn + 1j * rng.standard_normal(shape)
    # The transform is linear, its gradient the adjoint: Re <weights, F turn> = Re <slope, turn>.
    left, right = np.vdot(weights, numpys(turn)).real, np.vdot(slope, turn).real
    if not np.isclose(left, right, 1e-9, 1e-9 * (1 + np.abs(weights).sum())):
        return [ctx.fail(f"{what}: the gradient is not the adjoint: {right}, not {left}")]
    return []


AREA = Area("transforms", "transforms", check, in_tests=60)
