"""The regularised incomplete gamma and beta functions, on the lanes of a vector.

``gammainc``: a series below a + 1, a continued fraction above (NIST's DLMF 8.7.1, 8.9.2); of a
large a near x Temme's uniform expansion (8.12.3), of a below 1 what 8.7.1's first term lacks to 1
is by itself. ``betainc``: a continued fraction whose terms are two of 8.17.22's each (Didonato and
Morris 1992); of orders that are both large the uniform expansion (8.18.9). Fractions are quotients
of two sums that go on without a division; both are scaled by a power of two where they grow. Each
is exact where its result is small, so the other tail is 1 less it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi

from symdnn.cpu.math.gamma_ir import distance_to_log, log_gamma_of_next, stirling_rest
from symdnn.cpu.math.lanes_ir import Lane, Lanes

#: How near the last value and the one before are, of full precision and for results of float32.
_NEAR = {False: 1e-16, True: 1e-9}
#: From this shape on, and for a ratio of variate and shape as near to 1, Temme's expansion is used.
_MIN_TEMME_SHAPE, _MAX_TEMME_DISTANCE = 1e4, 0.1
_LARGE, _SMALLER = 2.0**300, 2.0**-300
#: Smaller shapes give the same.
_LEAST_SHAPE = 1e-300
#: Coefficients of Temme's expansion: of powers of 1 / a, and in these of e.
_TEMME = (
    (-1 / 3, 1 / 12, -2 / 135, 1 / 864, 1 / 2835, -139 / 777600),
    (-1 / 540, -1 / 288, 1 / 378, -77 / 77760),
    (25 / 6048, -139 / 51840),
)
#: From these orders on, of both, the beta function's fraction would take too many terms; and what
#: is as good as the mean, in deviations.
_MIN_LARGE_ORDER, _MEAN = 1e8, 3e-4
#: From these orders on powers are by Stirling's formula.
_MIN_STIRLING = 10.0

Terms = Callable[[Lane], tuple[Lane, Lane]]


def fraction(k: Lanes, first: Lane, terms: Terms, wanted: Lane) -> Lane:
    """``b0 + a1 / (b1 + a2 / (b2 + ...))`` where it is wanted; ``terms(n)`` are ``a`` and ``b``."""
    near = _NEAR[k.short]

    def step(
        n: Lane, over: Lane, under: Lane, over_before: Lane, under_before: Lane
    ) -> tuple[Lane, Sequence[Lane]]:
        a, b = terms(n)
        over_next, under_next = b * over + a * over_before, b * under + a * under_before
        one, other = over_next * under, over * under_next
        more = wanted & (k.abs(one - other) > k.abs(one) * near)
        large = k.most(k.abs(over_next), k.abs(under_next)) > _LARGE
        scale = large.where(_SMALLER, 1.0)
        return more, [v * scale for v in (over_next, under_next, over, under)]

    over, under, *_ = k.loop(step, first, 1.0, 1.0, 0.0)
    return over / under


# -- gamma ----------------------------------------------------------------------------------------


def gamma_share(k: Lanes, a: Lane, x: Lane, upper: bool) -> Lane:
    """``P(a, x)``, or ``1 - P(a, x)``."""
    inf, nan = float("inf"), float("nan")
    sound = (a > 0.0) & (x > 0.0) & (a < inf) & (x < inf)
    shape, at = sound.where(k.most(a, _LEAST_SHAPE), 1.0), sound.where(x, 1.0)
    temme = (shape > _MIN_TEMME_SHAPE) & (k.abs(at - shape) < shape * _MAX_TEMME_DISTANCE)
    low = (at < shape + 1.0) & ~temme
    alone = low & (shape < 1.0)  # where the upper share may be small, too
    summed = low & ~alone if upper else low
    factor = _gamma_factor(k, shape, at)
    value = factor

    def series() -> Lane:
        def step(n: Lane, term: Lane, total: Lane) -> tuple[Lane, Sequence[Lane]]:
            term = term * (at / (shape + n))
            total = total + term
            return summed & (term > total * _NEAR[k.short]), [term, total]

        _, total = k.loop(step, 1.0, 1.0)
        found = total * factor / shape
        return 1.0 - found if upper else found

    def by_fraction() -> Lane:
        b = at + 1.0 - shape
        found = fraction(k, b, lambda n: (n * (shape - n), b + (n + n)), ~low & ~temme)
        return factor / found if upper else 1.0 - factor / found

    value = k.where_any(summed, series, value)
    if upper:
        value = k.where_any(alone, lambda: _of_small_shape(k, shape, at, alone), value)
    value = k.where_any(~low & ~temme, by_fraction, value)
    value = k.where_any(temme, lambda: _by_temme(k, shape, at, upper), value)
    none, whole = (1.0, 0.0) if upper else (0.0, 1.0)
    ends = (x.equals(0.0) & (a > 0.0) | a.equals(inf)).where(none, whole)
    neither = (a.equals(0.0) & x.equals(0.0)) | (a.equals(inf) & x.equals(inf))
    allowed = (a >= 0.0) & (x >= 0.0) & ~neither
    return sound.where(value, allowed.where(ends, nan))


def _gamma_factor(k: Lanes, a: Lane, x: Lane) -> Lane:
    """``x^a exp(-x) / gamma(a)``."""
    log_gamma = k.call("z_lgamma" + "_short" * k.short, a)
    small = a * k.log(x) - x - log_gamma
    large = -(a * distance_to_log(k, (x - a) / a, x / a)) - stirling_rest(
        k, k.most(a, _MIN_STIRLING)
    )
    far, less = a >= _MIN_STIRLING, a < 1.0
    small = less.where(a * k.log(x) - x - log_gamma_of_next(k, a), small)
    size = k.exp(far.where(large, small))
    return far.where(size * k.intrinsic("sqrt", a * (0.5 / pi)), less.where(size * a, size))


def _of_small_shape(k: Lanes, a: Lane, x: Lane, wanted: Lane) -> Lane:
    """``1 - P(a, x)`` for ``a < 1`` and ``x < a + 1``."""

    def step(n: Lane, term: Lane, total: Lane) -> tuple[Lane, Sequence[Lane]]:
        term = -term * (x / n)
        part = term / (a + n)
        total = total + part
        return wanted & (k.abs(part) > k.abs(total) * _NEAR[k.short]), [term, total]

    _, total = k.loop(step, 1.0, 0.0)
    size = a * k.log(x) - log_gamma_of_next(k, a)
    return -k.expm1(size) - k.exp(size) * (a * total)


def _by_temme(k: Lanes, a: Lane, x: Lane, upper: bool) -> Lane:
    mu = (x - a) / a
    half = distance_to_log(k, mu, x / a)
    e = k.intrinsic("copysign", k.intrinsic("sqrt", half + half), mu)
    c0, c1, c2 = (k.polynomial(c, e) for c in _TEMME)
    rest = k.exp(-(a * half)) / k.intrinsic("sqrt", a * (2 * pi)) * (c0 + (c1 + c2 / a) / a)
    middle = e * k.intrinsic("sqrt", a * 0.5)
    if upper:
        return k.call("f_erfc", middle) * 0.5 + rest
    return k.call("f_erfc", -middle) * 0.5 - rest


# -- beta -----------------------------------------------------------------------------------------


def beta_share(k: Lanes, a: Lane, b: Lane, x: Lane, upper: bool) -> Lane:
    """``I_x(a, b)``, or ``1 - I_x(a, b)``."""
    inf, nan = float("inf"), float("nan")
    sound = (a > 0.0) & (b > 0.0) & (a < inf) & (b < inf) & (x > 0.0) & (x < 1.0)
    p, q, s = (sound.where(v, one) for v, one in ((a, 1.0), (b, 1.0), (x, 0.5)))
    high = s > (p + 1.0) / (p + q + 2.0)
    logs, rest = (k.log(s), k.log1p(-s)), 1.0 - s
    p, q = high.where(q, p), high.where(p, q)
    s, rest = high.where(rest, s), high.where(s, rest)
    log_s, log_rest = high.where(logs[1], logs[0]), high.where(logs[0], logs[1])
    large = (p >= _MIN_LARGE_ORDER) & (q >= _MIN_LARGE_ORDER)
    factor = _beta_factor(k, p, q, (s, rest), (log_s, log_rest))
    first = p * (p * rest - q * s + 1.0) / (p + 1.0)

    def terms(m: Lane) -> tuple[Lane, Lane]:
        lead = p + (m + m)
        before, after = 1.0 / (lead - 1.0), 1.0 / (lead + 1.0)
        u = m * (q - m) * s * before
        over = u * ((p + m - 1.0) * (p + q + m - 1.0) * s * before)
        return over, m + u + (p + m) * (p * rest - q * s + 1.0 + m * (2.0 - s)) * after

    found = factor / fraction(k, first, terms, sound & ~large)
    found = k.where_any(large, lambda: _of_large_orders(k, p, q, s, rest), found)
    value = high.where(found, 1.0 - found) if upper else high.where(1.0 - found, found)
    # Where an order is 0 or infinite, all of the probability is at one end.
    none, whole = (1.0, 0.0) if upper else (0.0, 1.0)
    ends = (x.equals(1.0) | ~x.equals(0.0) & (a.equals(0.0) | b.equals(inf))).where(whole, none)
    neither = (a.equals(0.0) & b.equals(0.0)) | (a.equals(inf) & b.equals(inf))
    allowed = (a >= 0.0) & (b >= 0.0) & (x >= 0.0) & (x <= 1.0) & ~neither
    return sound.where(value, allowed.where(ends, nan))


def _beta_factor(
    k: Lanes, a: Lane, b: Lane, at: tuple[Lane, Lane], logs: tuple[Lane, Lane]
) -> Lane:
    """``x^a y^b / B(a, b)`` for ``y = 1 - x``."""
    (x, y), (log_x, log_y) = at, logs
    small = k.exp(a * log_x + b * log_y - k.call("z_betaln" + "_short" * k.short, a, b))

    def by_stirling() -> Lane:
        rest = stirling_rest(k, k.most(a, _MIN_STIRLING))
        rest = rest + stirling_rest(k, k.most(b, _MIN_STIRLING))
        rest = rest - stirling_rest(k, k.most(a + b, _MIN_STIRLING))
        _, away = _from_mean(k, a, b, x, y)
        return k.intrinsic("sqrt", a * (b / (a + b)) * (0.5 / pi)) * k.exp(-away - rest)

    return k.where_any((a >= _MIN_STIRLING) & (b >= _MIN_STIRLING), by_stirling, small)


def _from_mean(k: Lanes, a: Lane, b: Lane, x: Lane, y: Lane) -> tuple[Lane, Lane]:
    """How far ``x`` is from ``a / (a + b)``; the logarithm of the density there less that here."""
    both = a + b
    low, high = a / both, b / both
    off = (x <= y).where(x - low, high - y)
    away = a * distance_to_log(k, off / low, x / low)
    return off, away + b * distance_to_log(k, -off / high, y / high)


def _of_large_orders(k: Lanes, a: Lane, b: Lane, x: Lane, y: Lane) -> Lane:
    """``I_x(a, b)`` by the error function and one term more."""
    both = a + b
    low, high = a / both, b / both
    off, away = _from_mean(k, a, b, x, y)
    e = k.intrinsic("copysign", k.intrinsic("sqrt", away + away), off)
    deviation = k.intrinsic("sqrt", low * high / both)
    skew = (high - low) / (k.intrinsic("sqrt", a * high) * 3.0)
    skew = (k.abs(e) < _MEAN).where(skew, 1.0 / e - deviation / off)
    return k.call("f_erfc", e * -(0.5**0.5)) * 0.5 + k.exp(-away) * skew * (2 * pi) ** -0.5
