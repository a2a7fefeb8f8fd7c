"""Distributions with parameters and values of every kind against SciPy, and their gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

import symdnn
import symdnn.tensor as T
from symdnn import distributions as D
from symdnn.errors import SymdnnError
from tests.fuzz.areas import Area, Context, Failure, error_text

_REAL, _POSITIVE, _SHARE = "real", "positive", "share"


@dataclass(frozen=True)
class Family:
    """Kinds of parameters, and SciPy's distribution of them."""

    kinds: tuple[str, ...]
    scipys: Callable[..., Any]
    discrete: bool = False


#: By the names of :mod:`symdnn.distributions`.
FAMILIES = {
    "Normal": Family((_REAL, _POSITIVE), stats.norm),
    "Laplace": Family((_REAL, _POSITIVE), stats.laplace),
    "Cauchy": Family((_REAL, _POSITIVE), stats.cauchy),
    "Gumbel": Family((_REAL, _POSITIVE), stats.gumbel_r),
    "Logistic": Family((_REAL, _POSITIVE), stats.logistic),
    "StudentT": Family((_POSITIVE, _REAL, _POSITIVE), stats.t),
    "LogNormal": Family((_REAL, _POSITIVE), lambda m, s: stats.lognorm(s, scale=np.exp(m))),
    "HalfNormal": Family((_POSITIVE,), lambda s: stats.halfnorm(0, s)),
    "HalfCauchy": Family((_POSITIVE,), lambda s: stats.halfcauchy(0, s)),
    "Exponential": Family((_POSITIVE,), lambda r: stats.expon(0, 1 / r)),
    "Gamma": Family((_POSITIVE, _POSITIVE), lambda a, r: stats.gamma(a, 0, 1 / r)),
    "InverseGamma": Family((_POSITIVE, _POSITIVE), lambda a, r: stats.invgamma(a, 0, r)),
    "Chi2": Family((_POSITIVE,), stats.chi2),
    "Weibull": Family((_POSITIVE, _POSITIVE), lambda s, k: stats.weibull_min(k, 0, s)),
    "Pareto": Family((_POSITIVE, _POSITIVE), lambda s, a: stats.pareto(a, 0, s)),
    "FisherSnedecor": Family((_POSITIVE, _POSITIVE), stats.f),
    "Beta": Family((_POSITIVE, _POSITIVE), stats.beta),
    "Uniform": Family((_REAL, _POSITIVE), lambda low, high: stats.uniform(low, high - low)),
    "Bernoulli": Family((_SHARE,), stats.bernoulli, True),
    "Binomial": Family(("count", _SHARE), stats.binom, True),
    "NegativeBinomial": Family((_POSITIVE, _SHARE), lambda n, p: stats.nbinom(n, 1 - p), True),
    "Geometric": Family((_SHARE,), lambda p: stats.geom(p, -1), True),
    "Poisson": Family((_POSITIVE,), stats.poisson, True),
}


def _drawn(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Any:
    if kind == _REAL:
        return rng.normal(size=shape) * 3
    if kind == _POSITIVE:
        return np.exp(rng.normal(size=shape))
    if kind == "count":
        return rng.integers(1, 20, shape).astype(float)
    return rng.uniform(0.05, 0.95, shape)


def check(ctx: Context) -> list[Failure]:
    """Log density and probability; the gradient along a direction of what is symbolic."""
    rng = ctx.rng
    name = str(rng.choice(list(FAMILIES)))
    family, shape = FAMILIES[name], (int(rng.integers(1, 5)),)
    arrays = [_drawn(rng, kind, shape) for kind in family.kinds]
    if name == "Uniform":
        arrays[1] = arrays[0] + arrays[1]
    chances = rng.uniform(0.02, 0.98, shape) ** rng.choice([1, 1, 8])
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = np.asarray(family.scipys(*arrays).ppf(chances), float)
    known = [bool(rng.random() < 0.4) for _ in (*arrays, x)]  # constants of the program
    checked = [None, True, False][int(rng.integers(3))]
    what = f"{name}{[a.tolist() for a in arrays]} at {x.tolist()}, constants {known}, {checked}"
    vs = [T.dvector() for _ in known]
    given = [T.constant(a) if k else v for a, v, k in zip((*arrays, x), vs, known)]
    try:
        d = getattr(D, name)(*given[:-1], validate_args=checked)
        log = d.log_prob(given[-1])
        outs = [log] if family.discrete else [log, d.cdf(given[-1])]
        free = [i for i, k in enumerate(known) if not k and family.kinds[i:][:1] != ("count",)]
        if family.discrete:
            free = [i for i in free if i < len(arrays)]
        weights = rng.normal(size=shape)
        slopes = symdnn.grad((log * weights).sum(), [vs[i] for i in free]) if free else []
        inputs = [v for v, k in zip(vs, known) if not k]
        f = symdnn.function(inputs, [*outs, *slopes], on_unused_input="ignore")
        found = f(*[a for a, k in zip((*arrays, x), known) if not k])
    except SymdnnError as error:
        return [ctx.fail(f"{what}: {error_text(error)}")]
    ctx.count("distributions")
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy's, far out
        return _compare(ctx, family, what, (*arrays, x), found, free, weights)


def _compare(
    ctx: Context, family: Family, what: str, arrays: Any, found: Any, free: list[int], weights: Any
) -> list[Failure]:
    def log_at(*values: Any) -> Any:
        own = family.scipys(*values[:-1])
        return (own.logpmf if family.discrete else own.logpdf)(values[-1])

    wanted = [log_at(*arrays)]
    if not family.discrete:
        wanted.append(family.scipys(*arrays[:-1]).cdf(arrays[-1]))
    for word, a, b in zip(("log density", "probability"), found, wanted):
        if not np.allclose(a, b, 1e-9, 1e-9):
            return [ctx.fail(f"{what}: the {word} is {a}, SciPy's is {b}")]
    turns = {i: ctx.rng.normal(size=arrays[i].shape) * (1e-2 + np.abs(arrays[i])) for i in free}

    def cost_at(step: float) -> float:
        moved = [a + step * turns[i] if i in turns else a for i, a in enumerate(arrays)]
        return float((log_at(*moved) * weights).sum())

    def difference(step: float) -> float:
        return (cost_at(step) - cost_at(-step)) / (2 * step)

    numeric = (4 * difference(5e-4) - difference(1e-3)) / 3
    rough = abs(difference(5e-4) - difference(1e-3))
    parts = [g * turns[i] for i, g in zip(free, found[len(wanted) :])]
    slope, size = sum(float(p.sum()) for p in parts), sum(float(np.abs(p).sum()) for p in parts)
    if np.isfinite(numeric) and abs(slope - numeric) > 1e-6 * max(size, 1.0) + rough:
        return [ctx.fail(f"{what}: the slope is {slope}, differences say {numeric}")]
    return []


AREA = Area("densities", "distributions", check, in_tests=60)
