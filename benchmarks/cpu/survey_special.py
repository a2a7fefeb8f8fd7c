"""Rows of :mod:`benchmarks.cpu.nest` of special functions and their gradients, in three dtypes.

python -m benchmarks.cpu.survey_special --check
python -m benchmarks.cpu.survey_special --avx2 --window-ms 3 --peers ../peers/bin/python
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.cpu.family_rows import row_of
from benchmarks.cpu.nest import Nest, main, np
from benchmarks.cpu.survey_wide import graded

#: Texts of ours, PyTorch's and JAX's; from where to where the arguments are.
_ONE: dict[str, tuple[str, str | None, str | None, float, float]] = {
    "i0": ("T.i0(x)", "torch.special.i0(x)", "jax.scipy.special.i0(x)", -8, 8),
    "i1": ("T.i1(x)", "torch.special.i1(x)", "jax.scipy.special.i1(x)", -8, 8),
    "i0e": ("T.i0e(x)", "torch.special.i0e(x)", "jax.scipy.special.i0e(x)", -12, 12),
    "j0": ("T.j0(x)", "torch.special.bessel_j0(x)", None, -20, 20),
    "j1": ("T.j1(x)", "torch.special.bessel_j1(x)", None, -20, 20),
    "erfcx": ("T.erfcx(x)", "torch.special.erfcx(x)", None, -3, 5),
    "log_ndtr": (
        "T.log_ndtr(x)",
        "torch.special.log_ndtr(x)",
        "jax.scipy.special.log_ndtr(x)",
        -5,
        3,
    ),
    "ndtri": ("T.ndtri(x)", "torch.special.ndtri(x)", "jax.scipy.special.ndtri(x)", 0, 1),
    "erfinv": ("T.erfinv(x)", "torch.special.erfinv(x)", "jax.scipy.special.erfinv(x)", -1, 1),
    "erfcinv": (
        "T.erfcinv(x)",
        "torch.special.erfinv(1 - x)",
        "jax.scipy.special.erfinv(1 - x)",
        0,
        2,
    ),
    "gamma": ("T.gamma(x)", "torch.special.gammaln(x).exp()", "jax.scipy.special.gamma(x)", 0.1, 9),
    "gammaln": (
        "T.gammaln(x)",
        "torch.special.gammaln(x)",
        "jax.scipy.special.gammaln(x)",
        0.1,
        20,
    ),
    "psi": ("T.psi(x)", "torch.special.digamma(x)", "jax.scipy.special.digamma(x)", 0.1, 20),
    "psi of both signs": (
        "T.psi(x)",
        "torch.special.digamma(x)",
        "jax.scipy.special.digamma(x)",
        -9,
        9,
    ),
    "tri_gamma": (
        "T.tri_gamma(x)",
        "torch.special.polygamma(1, x)",
        "jax.scipy.special.polygamma(1, x)",
        0.1,
        20,
    ),
    "polygamma 3": (
        "T.polygamma(3, x)",
        "torch.special.polygamma(3, x)",
        "jax.scipy.special.polygamma(3, x)",
        0.1,
        20,
    ),
    "zeta": ("T.zeta(x, 1)", "torch.special.zeta(x, 1)", "jax.scipy.special.zeta(x, 1)", 1.1, 20),
    "logit": ("T.logit(x)", "torch.logit(x)", "jax.scipy.special.logit(x)", 0, 1),
    "ndtr": ("T.ndtr(x)", "torch.special.ndtr(x)", "jax.scipy.special.ndtr(x)", -4, 4),
    "erf": ("T.erf(x)", "torch.erf(x)", "jax.scipy.special.erf(x)", -4, 4),
    "gelu": ("T.nnet.gelu(x)", "F.gelu(x)", "jax.nn.gelu(x, approximate=False)", -4, 4),
    "log1p": ("T.log1p(x)", "torch.log1p(x)", "jnp.log1p(x)", 0, 9),
    "sinh": ("T.sinh(x)", "torch.sinh(x)", "jnp.sinh(x)", -4, 4),
}
_TWO: dict[str, tuple[str, str | None, str | None, float, float]] = {
    "betaln": (
        "T.betaln(x, y)",
        "x.lgamma() + y.lgamma() - (x + y).lgamma()",
        "jax.scipy.special.betaln(x, y)",
        0.1,
        9,
    ),
    "pow": ("x**y", "x**y", "x**y", 0.1, 3),
    "arctan2": ("T.arctan2(x, y)", "torch.arctan2(x, y)", "jnp.arctan2(x, y)", -3, 3),
    "xlogy": ("T.xlogy(x, y)", "torch.xlogy(x, y)", "jax.scipy.special.xlogy(x, y)", 0.1, 9),
    "logaddexp": ("T.logaddexp(x, y)", "torch.logaddexp(x, y)", "jnp.logaddexp(x, y)", -9, 9),
}


def _between(low: float, high: float, dtype: str, seed: int) -> Callable[[], Any]:
    def make() -> Any:
        import ml_dtypes  # noqa: F401 (its import names bfloat16 for NumPy)

        numbers = np.random.default_rng(seed).uniform(low, high, 65536).astype(np.dtype(dtype))
        inside = (numbers > low) & (numbers < high)
        return np.where(inside, numbers, (low + high) / 2 + 0.1).astype(numbers.dtype)

    return make


def rows() -> Iterator[Nest]:
    """All rows."""
    for dtype in ("float32", "float64", "bfloat16"):
        for count, table in ((1, _ONE), (2, _TWO)):
            for name, (ours, torch_, jax_, low, high) in table.items():
                arrays = tuple(_between(low, high, dtype, seed) for seed in range(count))
                row = row_of(f"{name} {dtype}", arrays, ours, torch_, jax_, None)
                yield row
                if dtype != "bfloat16":
                    yield graded(row)


if __name__ == "__main__":
    sys.exit(main(module="benchmarks.cpu.survey_special"))
