"""What the programs of the table are, by mpmath, and how far rounding may lead them astray."""

from __future__ import annotations

import json
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np

from tests.stable.dialects import Dialect, reduced
from tests.stable.forms import POINTS

#: Digits: what 1 - sigmoid(900), 1 - erf(40), 1 - softmax(X) and a difference lose, and some more.
#: Above 750 a logarithm costs mpmath seven times as much.
DIGITS = {
    "wide": 540, "positive": 540, "small": 240, "tail": 840, "near_tail": 420, "unit": 340,
    "rows": 745, "data": 200, "sizes": 200, "matrices": 200,
}  # fmt: skip
UNITS = {"float32": mp.mpf(2) ** -24, "float64": mp.mpf(2) ** -53}
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
#: How many times what half a unit of rounding changes is excused.
EXCUSED = 8


def each(function: Any) -> Any:
    ufunc = np.frompyfunc(function, 1, 1)
    return lambda v: ufunc(v)


def ndtri(p: Any) -> Any:
    """The quantile of the standard normal distribution, by Newton's steps on logarithms."""
    if p > mp.mpf(1) / 2:
        return -ndtri(1 - p)
    x = -mp.sqrt(-2 * mp.log(p)) if p < mp.mpf("0.1") else mp.mpf(0)
    for _ in range(60):
        below = mp.erfc(-x / mp.sqrt(2)) / 2
        slope = mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)
        step = below * mp.log(below / p) / slope
        x -= step
        if abs(step) < mp.eps * 1000:
            break
    return x


class Mp(Dialect):
    """mpmath on arrays of objects."""

    def __init__(self) -> None:
        self.np = np
        for name in ("exp", "log", "log1p", "expm1", "tanh", "cosh", "erf", "sqrt"):
            setattr(self, name, each(getattr(mp, name)))
        self.erfc = each(mp.erfc)
        self.log1p, self.expm1 = (lambda v: self.log(1 + v)), (lambda v: self.exp(v) - 1)
        self.sigmoid = lambda v: 1 / (1 + self.exp(-v))
        self.softplus = lambda v: self.log(1 + self.exp(v))
        self.log_sigmoid = lambda v: -self.softplus(-v)
        self.log_ndtr = lambda v: self.log(self.erfc(-v / mp.sqrt(2)) / 2)
        self.logit = lambda v: self.log(v / (1 - v))
        self.i0e = each(lambda v: mp.exp(-abs(v)) * mp.besseli(0, v))
        self.betainc_2_3 = lambda v: v**2 * (6 - 8 * v + 3 * v**2)
        self._add_special()
        self._add_distributions()
        self._add_arrays()
        self.logaddexp = lambda a, b: self.log(self.exp(a) + self.exp(b))
        self.softmax = lambda v: self.exp(v) / self.rowsum(self.exp(v))
        self.log_softmax = lambda v: self.log(self.softmax(v))
        self.logsumexp = lambda v: self.log(self.rowsum(self.exp(v)))
        self.cross_entropy = lambda v: -self.pick(self.log_softmax(v))

    def _add_special(self) -> None:
        self.i1e = each(lambda v: mp.exp(-abs(v)) * mp.besseli(1, v))
        self.gammaln, self.digamma = each(mp.loggamma), each(mp.digamma)
        self.ndtri = each(ndtri)

    def _add_distributions(self) -> None:
        """Logarithms of densities by their definitions."""
        log, exp = self.log, self.exp
        self.bernoulli_of_logits = self.log_sigmoid
        self.logistic = lambda v: -v - 2 * log(1 + exp(-v))
        self.gumbel = lambda v: -v - exp(-v)
        self.student_3 = lambda v: mp.log(2 / (mp.pi * mp.sqrt(3))) - 2 * log(1 + v**2 / 3)
        self.gamma_2_3 = lambda v: 2 * mp.log(3) + log(v) - 3 * v
        self.beta_2_3 = lambda v: mp.log(12) + log(v) + 2 * log(1 - v)
        self.normal_cdf = lambda v: self.erfc(-v / mp.sqrt(2)) / 2
        self.exponential_cdf = lambda v: 1 - exp(-v)
        self.categorical = lambda v: self.pick(self.log_softmax(v))

    def _add_arrays(self) -> None:
        """Of matrices of 4 rows and columns; all elements of the sparse ones are there."""
        self.det = lambda v: np.array([mp.det(mp.matrix(m.tolist())) for m in v])
        self.inv = lambda v: np.array(mp.inverse(mp.matrix(v.tolist())).tolist())
        self.slogdet = lambda v: self.log(abs(self.det(v)))
        self.dot = self.sparse_dot = np.matmul
        self.sparse = self.dense = lambda v: v
        self.structured = lambda f, v: f(v)
        self.rfft = lambda v: np.stack(
            [v.sum(1), v[:, 0] - v[:, 2], v[:, 3] - v[:, 1], v @ np.array([1, -1, 1, -1])], 1
        )
        self.irfft = lambda z: np.stack(
            [(z[:, 0] + 2 * a * z[:, 1] - 2 * b * z[:, 2] + s * z[:, 3]) / 4
             for a, b, s in ((1, 0, 1), (0, 1, -1), (-1, 0, 1), (0, -1, -1))], 1
        )  # fmt: skip
        self.power = lambda z: np.stack(
            [z[:, 0] ** 2, z[:, 1] ** 2 + z[:, 2] ** 2, z[:, 3] ** 2], 1
        )

    def xlogy(self, a: Any, b: Any) -> Any:
        return a * self.log(b)

    def binary_crossentropy(self, p: Any, t: float) -> Any:
        return -t * self.log(p) - (1 - t) * self.log(1 - p)

    def to_cast(self, v: Any) -> Any:
        return v

    def var(self, v: Any) -> Any:
        return self.rowmean((v - self.rowmean(v)) ** 2)


DIALECT = Mp()


@lru_cache(None)
def leaves(points: str, dtype: str) -> Any:
    """The points, as numbers of the dtype."""
    return np.array(POINTS[points][dtype]).astype(dtype)


def exact(array: Any) -> Any:
    return np.frompyfunc(lambda v: mp.mpf(float(v)), 1, 1)(array)


def evaluated(text: str, x: Any, move: str) -> Any:
    DIALECT.move = move
    return DIALECT.evaluate(text, x)


#: What :func:`truth` says of the programs of ``lab.short``: mpmath takes half a minute for them.
#: Made by ``python -m tests.stable --truths``; a slow test makes them again.
KEPT = Path(__file__).parent / "truths.json"


@cache
def kept() -> dict[str, Any]:
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


def known_truth(*key: Any) -> tuple[Any, Any]:
    """:func:`truth`, to the digits of float64 where it is kept."""
    found = kept().get(" | ".join(map(str, key)))
    return truth(*key) if found is None else (np.array(found[0]), np.array(found[1]))


def to_keep(keys: Any) -> str:
    """The text of the file, a line for each program."""
    lines = []
    for key in dict.fromkeys(keys):
        numbers = [np.vectorize(float)(a).tolist() for a in truth(*key)]
        lines.append(f"{json.dumps(' | '.join(map(str, key)))}: {json.dumps(numbers)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


@lru_cache(None)
def truth(text: str, points: str, dtype: str, move: str, pick: bool) -> tuple[Any, Any]:
    """(values, gradient of their sum or of the one that is picked), as numbers of mpmath."""
    with mp.workdps(DIGITS[points]):
        x = exact(leaves(points, dtype))
        return evaluated(text, x, move), slopes(text, x, move, "pick" if pick else "sum")


def slopes(text: str, x: Any, move: str, how: str) -> Any:
    """By differences that are so small that they are exact."""
    found = np.empty(x.shape, object)
    alone = x.ndim == 1 and how == "sum"  # element by element: all at once
    for where in [...] if alone else np.ndindex(x.shape):
        step = np.frompyfunc(abs, 1, 1)(x[where]) * mp.mpf(10) ** -60
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[where] = moved[where] + sign * step
            y = evaluated(text, moved, move if how == "pick" else "none")
            ends.append(y if alone else reduced(y, how, 1))
        found[where] = (ends[0] - ends[1]) / (2 * step)
    return found


@lru_cache(None)
def noise(text: str, points: str, dtype: str, move: str, pick: bool) -> tuple[Any, Any]:
    """What half a unit of rounding in each leaf changes of values and gradient."""
    unit = UNITS[dtype]
    with mp.workdps(DIGITS[points]):
        x = exact(leaves(points, dtype))
        y, g = truth(text, points, dtype, move, pick)
        dy, dg = np.zeros_like(y) * 0, np.zeros_like(g) * 0
        for k in [...] if x.ndim == 1 and not pick else range(x.size if x.ndim == 1 else 4):
            near = x.copy()
            at = k if x.ndim == 1 else (slice(None), k)
            near[at] = near[at] * (1 + unit)
            dy = dy + abs(evaluated(text, near, move) - y)
            dg = dg + abs(slopes(text, near, move, "pick" if pick else "sum") - g)
        return dy, dg


def excess(found: Any, right: Any, factor: Any, dtype: str, rounding: Any) -> list[int]:
    """Places (flat) of elements that are wrong; ``rounding()`` is asked where it matters."""
    got, want = np.ravel(found), np.ravel(right * factor)
    assert got.shape == want.shape, (got.shape, want.shape)
    tiny, huge = np.finfo(dtype).tiny, np.finfo(dtype).max
    wrong = []
    for i, (a, b) in enumerate(zip(got, want)):
        if tiny <= abs(b) <= huge:
            off = abs(mp.mpf(float(a)) - b) if np.isfinite(a) else mp.inf
            if not off <= TOLERANCE[dtype] * abs(b):
                allowed = EXCUSED * abs(np.ravel(rounding())[i] * factor)
                if not (np.isfinite(a) and off <= allowed):
                    wrong.append(i)
    return wrong
