"""The Bessel functions J and I of real order, on the lanes of a vector.

Of the orders 0 and 1: J is a polynomial in x^2 / 32 - 1 up to 8, beyond that amplitude and phase
are polynomials in 128 / x^2 - 1 (NIST's DLMF 10.17.3); I follows from the scaled function
(:mod:`symdnn.cpu.math.math_bessel_ir`). Of other orders: a power series where its terms cancel
little (10.2.2, 10.25.2), the asymptotic series far out (10.17.3, 10.40.1), and between them
Miller's recurrence down the orders (10.23.15). I of large orders: Debye's expansion (10.41.3), and
below 0 that of K as well (10.41.4, 10.27.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import pi, sqrt

from symdnn.cpu.math.gamma_ir import power, sine_of_turns
from symdnn.cpu.math.lanes_ir import Lane, Lanes, Number
from symdnn.cpu.math.math_bessel_ir import scaled

__all__ = ["bessel", "modified_bessel"]

#: J0(x) and J1(x) / x in x^2 / 32 - 1; P and Q x / 8 of J = sqrt(2 / (pi x)) (P cos(c) - Q sin(c))
#: in 128 / x^2 - 1. Interpolated at Chebyshev's points.
_NEAR_0 = [
    0.04582966485981377, 0.9303012472958572, -0.6484692830871837, -0.808088807669687,
    1.0383794611437211, -0.507468045847102, 0.14598884856759273, -0.028472718610869578,
    0.00405807898914049, -0.0004435459224727048, 3.847319785739127e-05, -2.7177491450676137e-06,
    1.5956108859013866e-07, -7.915407670549364e-09, 3.3634718625333373e-10,
    -1.2384699153073492e-11, 3.990811966391986e-13, -1.1351277410243094e-14,
    2.8780700417086955e-16, -6.5151500571157116e-18,
]  # fmt: skip
_P_0 = [
    0.9994572757882519, -0.0005363673192130046, 6.13741608016085e-06, -2.0527448156495066e-07,
    1.2803760619529231e-08, -1.2121181917899886e-09, 1.5501058085561605e-10,
    -2.488275527812745e-11, 4.772925905800956e-12, -1.0635980595216018e-12,
    2.659486692682967e-13, -6.423863317028666e-14, 1.839323047121498e-14,
    -1.1778137922744418e-14, 4.285344320644563e-15,
]  # fmt: skip
_Q_0 = [
    -0.015555113879513518, 6.833149099344075e-05, -1.4771388326473744e-06,
    7.106214852432276e-08, -5.668716091144362e-09, 6.432789309241135e-10,
    -9.470386229469955e-11, 1.702943915933753e-11, -3.5891751531936186e-12,
    8.68860563656614e-13, -2.330636917551769e-13, 5.765391531338497e-14,
    -1.7256018173230505e-14, 1.2703337763959492e-14, -4.832460403369333e-15,
]  # fmt: skip
_NEAR_1 = [
    -0.05814382795599107, 0.08105866038589796, 0.15151665143806634, -0.2595948652859303,
    0.15858376432721938, -0.054745818212847276, 0.01245681439225544, -0.0020290394945702453,
    0.0002494945813908964, -2.4045748660869218e-05, 1.8684525372339904e-06,
    -1.1967081644348947e-07, 6.43126873231046e-09, -2.943037865185982e-10,
    1.1610655467503379e-11, -3.9908260820706373e-13, 1.2060725733399566e-14,
    -3.230355718639617e-16, 7.738273635981454e-18, -1.660698366324882e-19,
]  # fmt: skip
_P_1 = [
    1.0009070262780821, 0.0008988049416705578, -7.959694698492521e-06, 2.453676622286961e-07,
    -1.4708512124130545e-08, 1.3603057890123779e-09, -1.713159495740877e-10,
    2.7204123552148816e-11, -5.176302123326507e-12, 1.1461306026400314e-12,
    -2.851410619022524e-13, 6.871916868892792e-14, -1.961627571558179e-14,
    1.2466964342989236e-14, -4.5247520559705565e-15,
]  # fmt: skip
_Q_1 = [
    0.04677687402744898, -9.621458822054624e-05, 1.8212018512285427e-06, -8.291960701565042e-08,
    6.4201325429831086e-09, -7.151113407635711e-10, 1.0395068460328534e-10,
    -1.8520806488547767e-11, 3.876268151236579e-12, -9.33020006505065e-13,
    2.4914316871937574e-13, -6.154174237314398e-14, 1.8370749899635615e-14,
    -1.3419652685122838e-14, 5.093381730784018e-15,
]  # fmt: skip
_NEAR_SHORT_0 = [
    0.04582966485981377, 0.9303012473211072, -0.6484692830882552, -0.8080888083766512,
    1.0383794611737254, -0.5074680401921778, 0.14598884832758302, -0.02847273799413583,
    0.004058079811868427, -0.0004435136325819396, 3.847182714506406e-05, -2.743554838227825e-06,
    1.6065681395474083e-07,
]  # fmt: skip
_P_SHORT_0 = [
    0.99945727578821, -0.0005363673192034384, 6.137417420036622e-06, -2.0527478699533707e-07,
    1.2797127373827266e-08, -1.2106094669911453e-09, 1.6536280256389795e-10,
    -2.7224886585285653e-11,
]  # fmt: skip
_Q_SHORT_0 = [
    -0.015555113879513518, 6.833149303947834e-05, -1.4771392752236661e-06,
    7.104588932893899e-08, -5.665205430861676e-09, 6.751514211395574e-10,
    -1.0154829244924968e-10,
]  # fmt: skip
_NEAR_SHORT_1 = [
    -0.05814382795599107, 0.08105866038683615, 0.15151665143802934, -0.2595948653121984,
    0.15858376432825463, -0.05474581800272764, 0.012456814383974162, -0.0020290402148178885,
    0.0002494946097789437, -2.4044548749157285e-05, 1.8684052389563645e-06,
    -1.2062990113547834e-07, 6.469081837460791e-09,
]  # fmt: skip
_P_SHORT_1 = [
    1.0009070262781277, 0.000898804941660262, -7.95969614966971e-06, 2.453679909602863e-07,
    -1.4701327061280622e-08, 1.3586817885205128e-09, -1.825325287137717e-10,
    2.972588010402764e-11,
]  # fmt: skip
_Q_SHORT_1 = [
    0.04677687402744898, -9.621459044310136e-05, 1.8212023286187192e-06, -8.29019436129605e-08,
    6.416345406086593e-09, -7.497452100628899e-10, 1.1133603292897759e-10,
]  # fmt: skip
_TABLES = {
    False: ((_NEAR_0, _P_0, _Q_0), (_NEAR_1, _P_1, _Q_1)),
    True: ((_NEAR_SHORT_0, _P_SHORT_0, _Q_SHORT_0), (_NEAR_SHORT_1, _P_SHORT_1, _Q_SHORT_1)),
}
#: From these orders on, up and down, I is Debye's expansion of so many terms.
_LARGE_ORDER, _LARGE_BELOW_0, _DEBYE_TERMS = 100.0, -25.0, 12
#: Steps of a recurrence; of an order and an argument that need more the result is NaN.
_MOST = 10_000_000
#: Sizes of logarithms up to which a power is computed as such.
_INSIDE = 600.0
#: From this size on the numbers of a recurrence are scaled.
_LARGE, _SMALLER = 2.0**660, 2.0**-660


def bessel(k: Lanes, n: Lane, x: Lane) -> Lane:
    """The Bessel function of the first kind; NaN at infinity, as SciPy's."""
    whole, v, a, sign = _folded(k, n, x, -1.0)
    quick = whole & (v <= 1.0)
    sound = (whole | ~(x < 0.0)) & (a < float("inf")) & (v.equals(v))
    value = sign * k.where_any(v.equals(1.0), lambda: _of_order(k, 1, a), _of_order(k, 0, a))

    def general() -> Lane:
        wanted = sound & ~quick & ~a.equals(0.0)
        order, at = wanted.where(v, 2.5), wanted.where(a, 1.0)
        near = at * at < (k.abs(order) + 1.0) * 10.0
        far = ~near & (at > 25.0) & (at + at > order * order)
        found = k.where_any(near, lambda: _series(k, order, at, -1.0, near), at)
        found = k.where_any(far, lambda: _far_j(k, order, at, far), found)
        between = ~near & ~far
        found = k.where_any(between, lambda: _between(k, order, at, between), found)
        return _at_0(k, v, a, sign * found)

    value = k.where_any(~quick, general, value)
    return sound.where(value, float("nan"))


def modified_bessel(k: Lanes, n: Lane, x: Lane) -> Lane:
    """The modified Bessel function of the first kind."""
    whole, v, a, sign = _folded(k, n, x, 1.0)
    quick = whole & (v <= 1.0)
    sound = (whole | ~(x < 0.0)) & v.equals(v) & x.equals(x)
    zero, half = scaled(k, 0, a), k.exp(a * 0.5)
    found = k.where_any(v.equals(1.0), lambda: scaled(k, 1, a), zero)
    value = sign * (half * found * half)

    def general() -> Lane:
        wanted = sound & ~quick & ~a.equals(0.0) & (a < float("inf"))
        order, at = wanted.where(v, 2.5), wanted.where(a, 1.0)
        near = (at <= 30.0) | (at < order * order)
        large = near & ((order >= _LARGE_ORDER) | (order < _LARGE_BELOW_0))
        small = near & ~large
        found = k.where_any(small, lambda: _series(k, order, at, 1.0, small), at)
        found = k.where_any(large, lambda: _of_large_order(k, order, at), found)
        found = k.where_any(~near, lambda: _far_i(k, order, at, ~near), found)
        return _at_0(k, v, a, sign * found)

    value = k.where_any(~quick, general, value)
    return (sound & (a < float("inf"))).where(value, float("nan"))


def _folded(k: Lanes, n: Lane, x: Lane, turned: float) -> tuple[Lane, Lane, Lane, Lane]:
    """Whether the order is whole, then its size; the argument's; and the sign of the result."""
    whole = k.intrinsic("floor", n).equals(n)
    half = n * 0.5
    odd = whole & ~k.intrinsic("floor", half).equals(half)
    sign = (odd & (x < 0.0)).where(-1.0, 1.0)
    sign = (odd & (n < 0.0)).where(sign * turned, sign)
    return whole, whole.where(k.abs(n), n), k.abs(x), sign


def _at_0(k: Lanes, v: Lane, a: Lane, found: Lane) -> Lane:
    """The result, at 0 that of the leading term."""
    pole = k.intrinsic("copysign", 1.0 / a, k.call("z_tgamma" + "_short" * k.short, v + 1.0))
    ends = (v > 0.0).where(0.0, v.equals(0.0).where(1.0, pole))
    return a.equals(0.0).where(ends, found)


def _of_order(k: Lanes, order: int, a: Lane) -> Lane:
    """J of order 0 or 1 of a finite number that is not negative."""
    near, p, q = _TABLES[k.short][order]
    inner = (a < 8.0).where(a, 8.0)
    value = k.polynomial(near, k.multiply_add(inner * inner, 1 / 32, -1.0))
    value = value * a if order else value

    def outer() -> Lane:
        at = ((a > 8.0) & (a < float("inf"))).where(a, 8.0)
        z = 8.0 / at
        t = k.multiply_add(z * z, 2.0, -1.0)
        sine, cosine = k.call("f_sin", at), k.call("f_cos", at)
        both, apart = cosine + sine, sine - cosine
        c, s = (apart, -both) if order else (both, apart)
        size = k.polynomial(p, t) * c - z * k.polynomial(q, t) * s
        return size * 0.5 / k.intrinsic("sqrt", at * (pi / 4))

    return k.where_any(a > 8.0, outer, value)


def _first(k: Lanes, v: Lane, x: Lane) -> Lane:
    """``(x / 2)^v / gamma(v + 1)``; 0 where v is a negative integer."""
    half = x * 0.5
    size = v * k.log(half)
    usual = (k.abs(v) < 100.0) & (k.abs(size) < _INSIDE)
    end = "_short" * k.short
    gamma = k.call("z_tgamma" + end, v + 1.0)
    found = power(k, half, usual.where(v, 0.0)) / gamma

    def by_logarithms() -> Lane:
        value = k.exp(size - k.call("z_lgamma" + end, v + 1.0))
        turns = k.intrinsic("floor", v) * 0.5
        odd = ~k.intrinsic("floor", turns).equals(turns)
        return ((v < -1.0) & odd).where(value, (v < -1.0).where(-value, value))

    return k.where_any(~usual, by_logarithms, found)


def _series(k: Lanes, v: Lane, x: Lane, sign: float, wanted: Lane) -> Lane:
    """The sum of ``(sign x^2 / 4)^n / (n! (v + 1) ... (v + n))``, times the first term.

    Terms are times the first if that is small: their sum may be above the largest number.
    """
    first = _first(k, v, x)
    small = k.abs(first) < 1.0
    q = x * x * (0.25 * sign)

    def step(n: Lane, term: Lane, total: Lane) -> tuple[Lane, Sequence[Lane]]:
        term = term * (q / (n * (v + n)))
        total = total + term
        more = (n <= -v) | (k.abs(term) > k.abs(total) * 1e-17)
        return wanted & more, [term, total]

    start = small.where(first, 1.0)
    _, total = k.loop(step, start, start, most=2000)
    return small.where(total, total * first)


def _far(k: Lanes, v: Lane, x: Lane, sign: float, wanted: Lane) -> tuple[Lane, Lane]:
    """Sums of the asymptotic series' even and odd terms, each times ``sign`` in turn."""
    four, inverse, size = v * v * 4.0, 0.125 / x, k.abs(v)

    def step(n: Lane, term: Lane, even: Lane, odd: Lane, turn: Lane) -> tuple[Lane, Sequence[Lane]]:
        m = n * 4.0 - 3.0  # of the second term of a pair, and then of the next pair's first
        after = term * ((four - m * m) * inverse / (n * 2.0 - 1.0))
        m = m + 2.0
        next_one = after * ((four - m * m) * inverse / (n * 2.0))
        even, odd = even + turn * term, odd + turn * after
        smaller = (k.abs(next_one) < k.abs(term)) | (n * 2.0 <= size)
        more = wanted & smaller & (k.abs(next_one) > 1e-18)
        return more, [next_one, even, odd, turn * sign]

    _, even, odd, _ = k.loop(step, 1.0, 0.0, 0.0, 1.0, most=100)
    return even, odd


def _far_j(k: Lanes, v: Lane, x: Lane, wanted: Lane) -> Lane:
    even, odd = _far(k, v, x, -1.0, wanted)
    # x less (v / 2 + 1 / 4) pi, of which multiples of 2 pi are taken off before.
    turn = v * 0.25 + 0.125
    turn = (turn - k.intrinsic("floor", turn)) * (2 * pi)
    c, s = k.call("f_cos", turn), k.call("f_sin", turn)
    cos_x, sin_x = k.call("f_cos", x), k.call("f_sin", x)
    near, far = cos_x * c + sin_x * s, sin_x * c - cos_x * s
    return k.intrinsic("sqrt", (2 / pi) / x) * (near * even - far * odd)


def _far_i(k: Lanes, v: Lane, x: Lane, wanted: Lane) -> Lane:
    even, odd = _far(k, v, x, 1.0, wanted)
    half = k.exp(x * 0.5)  # twice, for results near the largest number
    return half * ((even - odd) / k.intrinsic("sqrt", x) * (1 / sqrt(2 * pi))) * half


def _debye() -> list[list[Fraction]]:
    """Of each term U_n(p) / p^n, the coefficients in p^2 (10.41.9)."""
    terms = [[Fraction(1)]]
    for n in range(_DEBYE_TERMS):
        after = [Fraction(0)] * (n + 2)
        for i, c in enumerate(terms[n]):
            d = n + 2 * i  # c p^d
            after[i] += c * (Fraction(d, 2) + Fraction(1, 8 * (d + 1)))
            after[i + 1] -= c * (Fraction(d, 2) + Fraction(5, 8 * (d + 3)))
        terms.append(after)
    return terms


def _of_large_order(k: Lanes, v: Lane, x: Lane) -> Lane:
    """I of an order whose size is large; v is negative only where it is not whole."""
    size = k.abs(v)
    z = x / size
    root = k.intrinsic("sqrt", k.multiply_add(z, z, 1.0))
    p = 1.0 / root
    exponent = size * (root + k.log(z / (root + 1.0))) * 0.5  # twice, for results near the ends
    square, w = p * p, p / size
    terms = [k.polynomial(c, square) for c in _debye()[1:]]
    odd, even = terms[-2], terms[-1]
    for one, other in zip(terms[-4::-2], terms[-3::-2]):
        odd, even = k.multiply_add(odd, w * w, one), k.multiply_add(even, w * w, other)
    odd, even = odd * w, k.multiply_add(even, w * w, 1.0)
    half, scale = k.exp(exponent), k.intrinsic("sqrt", w * (1 / (2 * pi)))
    found = half * ((even + odd) * scale) * half

    def below() -> Lane:
        whole = k.intrinsic("rint", size)
        away, pair = size - whole, whole * 0.5
        sine = k.intrinsic("copysign", sine_of_turns(k, k.abs(away)), away)
        sign = k.intrinsic("floor", pair).equals(pair).where(2.0, -2.0)
        other = k.exp(-exponent)  # K is pi times scale and the other sum
        return found + other * ((even - odd) * scale * sine * sign) * other

    return k.where_any(v < 0.0, below, found)


def _between(k: Lanes, v: Lane, x: Lane, wanted: Lane) -> Lane:
    """By the recurrence from an order far above down to mu = v - floor(v), or to v below it."""
    whole = k.intrinsic("floor", v)
    mu = v - whole
    most = k.most(x, k.abs(v))
    half = k.intrinsic("floor", (most + k.exp(k.log(most) * (1 / 3)) * 16.0 + 30.0) * 0.5)
    top, gamma = half + half, k.call("z_tgamma" + "_short" * k.short, mu + 1.0)

    def weigh(n: Lane, weight: Lane) -> tuple[Lane, Sequence[Lane]]:
        used = n < half
        return wanted & used, [used.where(weight * ((mu + n) / (n + 1.0)), weight)]

    (weight,) = k.loop(weigh, gamma, most=_MOST)  # gamma(mu + n) / n! of the even number 2 n

    def down(
        i: Lane, above: Lane, here: Lane, total: Lane, last: Lane, *found: Lane
    ) -> tuple[Lane, Sequence[Lane]]:
        n = top - (i - 1.0)
        pair = n * 0.5
        even = k.intrinsic("floor", pair).equals(pair)
        share = n.equals(0.0).where(gamma, (mu + n) * last)
        total = even.where(total + share * here, total)
        last = (even & (pair > 1.0)).where(last * (pair / (mu + pair - 1.0)), last)
        places: tuple[Number, ...] = (0.0, 1.0, whole)
        kept = [n.equals(at).where(here, f) for f, at in zip(found, places)]
        below = (mu + n) * 2.0 / x * here - above
        scale = ((k.abs(below) > _LARGE) & (n > 0.0)).where(_SMALLER, 1.0)
        here, below, total = here * scale, below * scale, total * scale
        return wanted & (n > 0.0), [here, below, total, last, *(f * scale for f in kept)]

    loop = k.loop(down, 0.0, 1e-280, 0.0, weight, 0.0, 0.0, 0.0, most=_MOST)
    total, (first, second, found) = loop[2], loop[4:]
    below = whole < 0.0

    def lower(n: Lane, here: Lane, above: Lane) -> tuple[Lane, Sequence[Lane]]:
        """Below order mu numbers grow, so they follow from those of mu and mu + 1."""
        next_one = (mu - n + 1.0) * 2.0 / x * here - above
        return wanted & (n < -whole), [next_one, here]

    found = k.where_any(below, lambda: k.loop(lower, first, second, most=_MOST)[0], found)
    value = found * (power(k, x * 0.5, mu) / total)
    return (top < float(_MOST)).where(value, float("nan"))
