"""References of special functions: Bessel's near 0, derivatives of incomplete ones in their orders.

No library has the latter. Each is the derivative, term by term, of the series and continued
fractions by which the functions are computed (NIST's DLMF, 8.7.1, 8.9.2, 8.12.3 and 8.17.22), so it
is as exact as they are. ``incomplete.cuh`` has the same in CUDA C.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from symdnn.graph.typing import Array

_MOST_TERMS = 10_000
#: From this shape on, and for a ratio of variate and shape as near to 1, Temme's expansion is used.
_MIN_TEMME_SHAPE, _MAX_TEMME_DISTANCE = 1e4, 0.1


def _psi(x: Array) -> Array:
    import scipy.special

    return np.asarray(scipy.special.psi(x))


def gamma_draw_slope_of(a: Array, log_x: Array) -> Array:
    """The derivative in ``a`` of ``log(x)`` at a constant probability ``P(a, x)``.

    It is ``-(dP / da) / (x p(x))``, with the density ``p`` of the gamma distribution of shape ``a``
    (Figurnov, Mohamed and Mnih, "Implicit reparameterization gradients", 2018). In it the powers
    and exponentials cancel, so it neither over- nor underflows.
    """
    out = np.result_type(a, log_x)
    a, log_x = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(log_x, np.float64))
    with np.errstate(all="ignore"):
        x = np.exp(log_x)
        sound = (a > 0) & (log_x < np.inf)
        near = sound & (a > _MIN_TEMME_SHAPE) & (np.abs(x - a) < _MAX_TEMME_DISTANCE * a)
        low = sound & ~near & (x < a + 1)
        high = sound & ~near & ~low
        found = np.full(a.shape, np.nan)
        for part, slope in ((low, _by_series), (high, _by_fraction), (near, _by_temme)):
            found[part] = slope(a[part], log_x[part], x[part])
    return found.astype(out)


def _looped(step: Callable[..., tuple[Array, ...]], *state: Array) -> list[Array]:
    """Repeat ``step(n, *state) -> (done, *state)`` for each element until it is done."""
    whole = [s.copy() for s in state]
    rest, now = np.arange(len(whole[0])), [s.copy() for s in state]
    for n in range(1, _MOST_TERMS):
        if not len(rest):
            break
        done, *now = step(n, *now)
        if done.any():  # few of them end in one step
            for all_, part in zip(whole, now, strict=True):
                all_[rest] = part
            now, rest = [s[~done] for s in now], rest[~done]
    for all_, part in zip(whole, now, strict=True):
        all_[rest] = part
    return whole


def _by_series(a: Array, log_x: Array, x: Array) -> Array:
    """``P`` is ``x^a exp(-x) S / gamma(a + 1)`` with a series ``S`` of positive terms."""

    def step(
        n: int, a: Array, x: Array, term: Array, slope: Array, total: Array, slopes: Array
    ) -> tuple[Array, ...]:
        slope = (slope - term / (a + n)) * (x / (a + n))
        term = term * x / (a + n)
        total, slopes = total + term, slopes + slope
        done = (term <= 1e-17 * total) & (np.abs(slope) <= 1e-17 * np.abs(slopes))
        return done, a, x, term, slope, total, slopes

    one, none = np.ones_like(a), np.zeros_like(a)
    *_, total, slopes = _looped(step, a, x, one, none, one, none)
    return np.asarray(-(total * (log_x - _psi(a + 1)) + slopes) / a)


def _by_fraction(a: Array, log_x: Array, x: Array) -> Array:
    """``1 - P`` is ``x^a exp(-x) C / gamma(a)`` with a continued fraction ``C``."""
    tiny = 1e-300

    def step(
        n: int, a: Array, b: Array, c: Array, c1: Array, d: Array, d1: Array, h: Array, h1: Array
    ) -> tuple[Array, ...]:
        # Lentz's method; c1, d1, h1 are derivatives in a. The terms are n (a - n), b + 2 n.
        e, b = n * (a - n), b + 2
        below, above = b + e * d, b + e / c
        below1, above1 = n * d + e * d1 - 1, n / c - e * c1 / (c * c) - 1
        d = 1 / np.where(np.abs(below) < tiny, tiny, below)
        d1 = -below1 * d * d
        c, c1 = np.where(np.abs(above) < tiny, tiny, above), above1
        factor, factor1 = c * d, c1 * d + c * d1
        h, h1 = h * factor, h1 * factor + h * factor1
        done = (np.abs(factor - 1) < 1e-16) & (np.abs(h * factor1) <= 1e-16 * np.abs(h1))
        return done, a, b, c, c1, d, d1, h, h1

    b = x + 1 - a
    start = 1 / b
    far, none = np.full_like(a, 1 / tiny), np.zeros_like(a)
    *_, h, h1 = _looped(step, a, b, far, none, start, start**2, start, start**2)
    return np.asarray(h * (log_x - _psi(a)) + h1)


def _by_temme(a: Array, log_x: Array, x: Array) -> Array:
    """Temme's expansion ``P = erfc(-e sqrt(a / 2)) / 2 - R(a, e)``, solved for ``de / da``."""
    mu = np.expm1(log_x - np.log(a))
    half = _log1p_rest(mu)
    e = np.copysign(np.sqrt(2 * half), mu)
    c0 = np.array([-1 / 3, 1 / 12, -2 / 135, 1 / 864, 1 / 2835, -139 / 777600])
    c1 = np.array([-1 / 540, -1 / 288, 1 / 378, -77 / 77760])
    c2 = np.array([25 / 6048, -139 / 51840])
    value = [np.polynomial.polynomial.polyval(e, c) for c in (c0, c1, c2)]
    c = value[0] + (value[1] + value[2] / a) / a
    c_a = -(value[1] + 2 * value[2] / a) / (a * a)
    c_e = sum(
        np.polynomial.polynomial.polyval(e, np.polynomial.polynomial.polyder(t)) / a**k
        for k, t in enumerate((c0, c1, c2))
    )
    turn = -(e / 2 + (half + 0.5 / a) * c - c_a) / (a * (1 + e * c - c_e / a))
    return np.asarray(1 / a + turn * np.where(mu == 0, 1, e / np.where(mu == 0, 1, mu)))


def _log1p_rest(mu: Array) -> Array:
    """``mu - log(1 + mu)`` for small ``mu``, without cancellation."""
    total, power = np.zeros_like(mu), mu * mu
    for k in range(2, 24):
        total, power = total + power / k, -power * mu
    return total


def _stirling_rest(x: Array) -> Array:
    """The rest of Stirling's formula for ``log(gamma(x))``, from 10 on (NIST's DLMF, 5.11.1)."""
    u, total = 1 / (x * x), np.zeros_like(x)
    for c in (1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12):
        total = c + u * total
    return total / x


def betaln_of(a: Array, b: Array) -> Array:
    """``log |B(a, b)|``; by Stirling's formula where the logarithms of gamma functions cancel."""
    from scipy.special import gammaln

    out = np.result_type(a, b)
    a, b = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(b, np.float64))
    with np.errstate(all="ignore"):
        p, q = np.minimum(a, b), np.maximum(a, b)
        both, high, low = p + q, np.maximum(q, 10.0), np.maximum(p, 10.0)
        ratio = np.log1p(p / q)
        rest = _stirling_rest(high) - _stirling_rest(np.maximum(both, 10.0))
        one = gammaln(p) - (q - 0.5) * ratio - p * (np.log(both) - 1) + rest
        two = 0.5 * np.log(2 * np.pi / q) + (p - 0.5) * np.log(p / both) - q * ratio
        two = two + _stirling_rest(low) + rest
        plain = gammaln(a) + gammaln(b) - gammaln(a + b)
        small = ~(p > 0) | (q < 10)
        found = np.where(small, plain, np.where(p < 10, one, two))
        found = np.where(small & (np.isinf(gammaln(a)) | np.isinf(gammaln(b))), np.inf, found)
        return np.where(np.isnan(a + b), np.nan, found).astype(out)


def beta_inc_of(name: str, a: Array, b: Array, x: Array) -> Array:
    """SciPy's incomplete beta function or inverse of this name, in float64: its own loops of
    float32 (1.17, by Boost) have one digit at ``betaincinv(1e3, 1e6, 1e-3)``."""
    import scipy.special

    found = getattr(scipy.special, name)(*(np.asarray(v, np.float64) for v in (a, b, x)))
    return np.asarray(found).astype(np.result_type(a, b, x))


def beta_inc_slope_of(which: int, a: Array, b: Array, x: Array) -> Array:
    """The derivative of ``betainc(a, b, x)`` in ``a`` (``which`` 0) or ``b`` (1)."""
    out = np.result_type(a, b, x)
    a, b, x = np.broadcast_arrays(*(np.asarray(v, np.float64) for v in (a, b, x)))
    with np.errstate(all="ignore"):
        sound = (a > 0) & (b > 0) & (x >= 0) & (x <= 1)
        found = np.where(sound, 0.0, np.nan)
        inside = sound & (x > 0) & (x < 1)
        low = inside & (x <= (a + 1) / (a + b + 2))
        high = inside & ~low
        found[low] = _beta_fraction(which, a[low], b[low], x[low], 1 - x[low])
        found[high] = -_beta_fraction(1 - which, b[high], a[high], 1 - x[high], x[high])
    return found.astype(out)


def _beta_fraction(which: int, a: Array, b: Array, x: Array, rest: Array) -> Array:
    """``x^a (1 - x)^b h / (a B(a, b))``, and its derivative; ``rest`` is ``1 - x``."""
    tiny = 1e-300
    to_a, to_b = 1.0 - which, float(which)

    def turned(
        e: Array, e1: Array, c: Array, c1: Array, d: Array, d1: Array, h: Array, h1: Array
    ) -> tuple[Array, ...]:
        below, above = 1 + e * d, 1 + e / c
        below1, above1 = e1 * d + e * d1, e1 / c - e * c1 / (c * c)
        d = 1 / np.where(np.abs(below) < tiny, tiny, below)
        d1 = -below1 * d * d
        c, c1 = np.where(np.abs(above) < tiny, tiny, above), above1
        factor, factor1 = c * d, c1 * d + c * d1
        return c, c1, d, d1, h * factor, h1 * factor + h * factor1, factor, h * factor1

    def step(m: int, a: Array, b: Array, x: Array, *state: Array) -> tuple[Array, ...]:
        lead = a + 2 * m
        even = m * (b - m) * x / ((lead - 1) * lead)
        even1 = to_b * m * x / ((lead - 1) * lead) - to_a * even * (1 / (lead - 1) + 1 / lead)
        *found, _, _ = turned(even, even1, *state)
        odd = -(a + m) * (a + b + m) * x / (lead * (lead + 1))
        odd1 = odd * (1 / (a + b + m) + to_a * (1 / (a + m) - 1 / lead - 1 / (lead + 1)))
        *found, factor, change = turned(odd, odd1, *found)
        h1 = found[-1]
        done = (np.abs(factor - 1) < 1e-16) & (np.abs(change) <= 1e-16 * np.abs(h1))
        return done, a, b, x, *found

    first = -(a + b) * x / (a + 1)
    first1 = first / (a + b) - to_a * first / (a + 1)
    d = 1 / np.where(np.abs(1 + first) < tiny, tiny, 1 + first)
    d1 = -first1 * d * d
    one, none = np.ones_like(a), np.zeros_like(a)
    *_, h, h1 = _looped(step, a, b, x, one, none, d, d1, d, d1)
    psi_both = _psi(a + b)
    log_slope = to_a * (np.log(x) - _psi(a) + psi_both - 1 / a)
    log_slope = log_slope + to_b * (np.log(rest) - _psi(b) + psi_both)
    size = np.exp(a * np.log(x) + b * np.log(rest) - betaln_of(a, b)) / a
    return np.asarray(size * (h * log_slope + h1))


#: Gauss and Legendre's rule on (0, 1) by this many panels of 16 points.
_PANELS = 4


def von_mises_draw_slope_of(k: Array, x: Array) -> Array:
    """The derivative in ``k`` of an angle ``x``, in (-pi, pi), of constant probability.

    It is ``-(dF / dk) / p`` by an integral of ``dp / dk``, whose sign changes at the angle of the
    mean resultant length: from 0 to ``x`` inside of that, from ``x`` to pi outside, so that
    nothing cancels.
    """
    out = np.result_type(k, x)
    k, x = np.broadcast_arrays(np.asarray(k, np.float64), np.asarray(x, np.float64))
    with np.errstate(all="ignore"):
        size, spread = np.abs(x), _one_minus_resultant(k)
        inside = 2 * np.sin(size / 2) ** 2 < spread
        reach = np.minimum(2.0, 2 * np.sin(size / 2) ** 2 + 40 / k)
        end = np.where(inside, 0.0, 2 * np.arcsin(np.sqrt(reach / 2)))
        points, weights = np.polynomial.legendre.leggauss(16)
        total, width = np.zeros_like(size), (end - size) / _PANELS
        for panel in range(_PANELS):
            for p, w in zip(points, weights, strict=True):
                t = size + width * (panel + 0.5 + p / 2)
                decay = np.exp(-2 * k * np.sin((t + size) / 2) * np.sin((t - size) / 2))
                total += w * decay * (spread - 2 * np.sin(t / 2) ** 2)
        found = np.copysign(1.0, x) * total * width / 2
        return np.where((k >= 0) & (size <= 4), found, np.nan).astype(out)


def bessel_of(n: Array, x: Array) -> Array:
    """The Bessel function of the first kind."""
    from scipy.special import jv

    return _with_leading_term(jv, -1.0, n, x)


def modified_bessel_of(n: Array, x: Array) -> Array:
    """The modified Bessel function of the first kind."""
    from scipy.special import iv

    return _with_leading_term(iv, 1.0, n, x)


def _with_leading_term(function: Callable[..., Array], sign: float, n: Array, x: Array) -> Array:
    """A Bessel function, near 0 its leading term, where SciPy has 0 or NaN.

    At ``-n`` it is that at ``n`` times ``sign ** n``, for whole ``n``.
    """
    from scipy.special import rgamma

    tiny = (x != 0) & (np.abs(x) < 1e-30)
    if not np.any(tiny):
        return np.asarray(function(n, x))
    whole = n == np.floor(n)
    order = np.where(whole, np.abs(n), n)
    with np.errstate(all="ignore"):
        value = np.abs(x) ** order * (2.0**-order * rgamma(order + 1))
        turned = np.where(x < 0, np.where(whole, (-1.0) ** order, np.nan), 1.0)
        turned = turned * np.where(n < 0, np.where(whole, sign**order, 1.0), 1.0)
        return np.where(tiny, value * turned, function(n, np.where(tiny, 0, x)))


def _one_minus_resultant(k: Array) -> Array:
    """``1 - I1(k) / I0(k)``; its asymptotic series (NIST's DLMF, 10.40.1) where these cancel."""
    from scipy.special import i0e, i1e

    u, far = 1 / np.maximum(k, 300.0), np.zeros_like(k)
    for c in (1073 / 1024, 13 / 32, 25 / 128, 1 / 8, 1 / 8, 1 / 2):
        far = (far + c) * u
    return np.where(k < 300, 1 - i1e(k) / i0e(k), far)
