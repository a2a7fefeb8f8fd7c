// The incomplete beta function, and derivatives of incomplete gamma and beta functions in their
// orders, as symdnn.ops.core.incomplete_values has them; Owen's T function; von Mises' variates. After special.cuh.

#define MOST_TERMS 10000
#define TINY 1e-300

INLINE double not_tiny(double x) { return fabs(x) < TINY ? TINY : x; }

// A value of a continued fraction by the method of Lentz, with its derivative in an order: one step
// with the numerator e and the denominator b, whose derivatives are e1 and b1.
struct Fraction {
  double c, c1, d, d1, h, h1;
  // Whether neither changes any more.
  __device__ __forceinline__ bool turn(double e, double e1, double b, double b1) {
    const double below = b + e * d, below1 = b1 + e1 * d + e * d1;
    const double above = b + e / c, above1 = b1 + e1 / c - e * c1 / (c * c);
    d = 1 / not_tiny(below);
    d1 = -below1 * d * d;
    c = not_tiny(above);
    c1 = above1;
    const double factor = c * d, change = h * (c1 * d + c * d1);
    h1 = h1 * factor + change;
    h *= factor;
    return fabs(factor - 1) < 1e-16 && fabs(change) <= 1e-16 * fabs(h1);
  }
};

// -- gamma: d log(x) / da at a constant P(a, x) ---------------------------------------------------

static __device__ double draw_slope_series(double a, double log_x, double x) {
  double term = 1, slope = 0, sum = 1, slopes = 0;
  for (int n = 1; n < MOST_TERMS; n++) {
    slope = (slope - term / (a + n)) * (x / (a + n));
    term *= x / (a + n);
    sum += term;
    slopes += slope;
    if (term <= 1e-17 * sum && fabs(slope) <= 1e-17 * fabs(slopes)) break;
  }
  return -(sum * (log_x - digamma(a + 1)) + slopes) / a;
}
static __device__ double draw_slope_fraction(double a, double log_x, double x) {
  const double b = x + 1 - a, start = 1 / b;
  Fraction f = {1 / TINY, 0, start, start * start, start, start * start};
  for (int n = 1; n < MOST_TERMS; n++)
    if (f.turn(n * (a - n), n, b + 2 * n, -1)) break;
  return f.h * (log_x - digamma(a)) + f.h1;
}
// Temme's expansion, as in gamma_temme, solved for the derivative of e.
static __device__ double draw_slope_temme(double a, double log_x) {
  const double mu = expm1(log_x - log(a)), half = log1p_rest(mu), e = copysign(sqrt(2 * half), mu);
  const double p0 = -1.0 / 3 + e * (1.0 / 12 + e * (-2.0 / 135 + e * (1.0 / 864
                  + e * (1.0 / 2835 + e * (-139.0 / 777600)))));
  const double p1 = -1.0 / 540 + e * (-1.0 / 288 + e * (1.0 / 378 + e * (-77.0 / 77760)));
  const double p2 = 25.0 / 6048 + e * (-139.0 / 51840);
  const double d0 = 1.0 / 12 + e * (-4.0 / 135 + e * (3.0 / 864 + e * (4.0 / 2835
                  + e * (-695.0 / 777600))));
  const double d1 = -1.0 / 288 + e * (2.0 / 378 + e * (-231.0 / 77760));
  const double d2 = -139.0 / 51840;
  const double c = p0 + (p1 + p2 / a) / a, c_e = d0 + (d1 + d2 / a) / a;
  const double c_a = -(p1 + 2 * p2 / a) / (a * a);
  const double turn = -(e / 2 + (half + 0.5 / a) * c - c_a) / (a * (1 + e * c - c_e / a));
  return 1 / a + turn * (mu == 0 ? 1 : e / mu);
}
static __device__ double gamma_draw_slope(double a, double log_x) {
  if (!(a > 0) || !(log_x < INF_d)) return NAN_d;
  const double x = exp(log_x);
  if (a > GAMMA_LARGE && fabs(x - a) < GAMMA_NEAR * a) return draw_slope_temme(a, log_x);
  return x < a + 1 ? draw_slope_series(a, log_x, x) : draw_slope_fraction(a, log_x, x);
}

// -- beta -----------------------------------------------------------------------------------------

// The rest of Stirling's formula for log(gamma(x)), x >= 10.
static __device__ double stirling_rest(double x) {
  const double u = 1 / (x * x);
  return (1.0 / 12 - u * (1.0 / 360 - u * (1.0 / 1260 - u * (1.0 / 1680 - u * (1.0 / 1188
        - u * (691.0 / 360360 - u / 156)))))) / x;
}
static __device__ double betaln(double a, double b) {
  const double p = fmin(a, b), q = fmax(a, b), both = p + q;
  if (a != a || b != b) return NAN_d;
  if (p <= 0 || q < 10) {
    const double sum = lgamma(a) + lgamma(b);
    return sum == INF_d ? sum : sum - lgamma(both);
  }
  const double ratio = log1p(p / q), rest = stirling_rest(q) - stirling_rest(both);
  if (p < 10) return lgamma(p) - (q - 0.5) * ratio - p * (log(both) - 1) + rest;
  return 0.918938533204672742 - 0.5 * log(q) + (p - 0.5) * log(p / both) - q * ratio
       + stirling_rest(p) + rest;
}
// x^a y^b / B(a, b), y = 1 - x; by Stirling's formula where the factors differ much in size.
static __device__ double beta_factor(double a, double b, double x, double y) {
  if (fmin(a, b) < 10) return exp(a * log(x) + b * log(y) - betaln(a, b));
  const double both = a + b, low = a / both, high = b / both;
  const double off = x <= y ? x - low : high - y;
  const double rest = stirling_rest(a) + stirling_rest(b) - stirling_rest(both);
  return sqrt(a * high / (2 * PI))
       * exp(-a * log1p_rest(off / low) - b * log1p_rest(-off / high) - rest);
}
// The continued fraction of betainc; its derivative in a (which 0) or b (1).
static __device__ Fraction beta_fraction(double a, double b, double x, int which) {
  const double to_a = 1 - which, to_b = which;
  Fraction f = {1, 0, 0, 0, 1, 0};
  const double first = -(a + b) * x / (a + 1), first1 = first * (1 / (a + b) - to_a / (a + 1));
  f.d = 1 / not_tiny(1 + first);
  f.d1 = -first1 * f.d * f.d;
  f.h = f.d;
  f.h1 = f.d1;
  for (int m = 1; m < MOST_TERMS; m++) {
    const double lead = a + 2 * m;
    const double even = m * (b - m) * x / ((lead - 1) * lead);
    const double even1 = to_b * m * x / ((lead - 1) * lead) - to_a * even * (1 / (lead - 1) + 1 / lead);
    f.turn(even, even1, 1, 0);
    const double odd = -(a + m) * (a + b + m) * x / (lead * (lead + 1));
    const double odd1 = odd * (1 / (a + b + m) + to_a * (1 / (a + m) - 1 / lead - 1 / (lead + 1)));
    if (f.turn(odd, odd1, 1, 0)) break;
  }
  return f;
}
INLINE bool beta_sound(double a, double b, double x) { return a > 0 && b > 0 && x >= 0 && x <= 1; }
static __device__ double beta_part(double a, double b, double x, double y, bool upper) {
  if (x > (a + 1) / (a + b + 2)) {
    const double other = beta_factor(b, a, y, x) * beta_fraction(b, a, y, 0).h / b;
    return upper ? other : 1 - other;
  }
  const double part = beta_factor(a, b, x, y) * beta_fraction(a, b, x, 0).h / a;
  return upper ? 1 - part : part;
}
// Where an order is 0 or infinite, all of the probability is at one end.
static __device__ double beta_any(double a, double b, double x, bool upper) {
  if (!(a >= 0 && b >= 0 && x >= 0 && x <= 1)) return NAN_d;
  if ((a == 0 && b == 0) || (a == INF_d && b == INF_d)) return NAN_d;
  if (x == 0 || x == 1) return (x == 1) != upper;
  if (a == 0 || b == INF_d) return !upper;
  if (b == 0 || a == INF_d) return upper;
  return beta_part(a, b, x, 1 - x, upper);
}
static __device__ double betainc(double a, double b, double x) { return beta_any(a, b, x, false); }
static __device__ double betaincc(double a, double b, double x) { return beta_any(a, b, x, true); }

static __device__ double beta_slope(double a, double b, double x, double y, int which) {
  const Fraction f = beta_fraction(a, b, x, which);
  const double both = digamma(a + b);
  const double slope = which ? log(y) - digamma(b) + both : log(x) - digamma(a) + both - 1 / a;
  return beta_factor(a, b, x, y) / a * (f.h * slope + f.h1);
}
static __device__ double beta_slope_any(double a, double b, double x, int which) {
  if (!beta_sound(a, b, x)) return NAN_d;
  if (x == 0 || x == 1) return 0;
  const double y = 1 - x;
  if (x <= (a + 1) / (a + b + 2)) return beta_slope(a, b, x, y, which);
  return -beta_slope(b, a, y, x, 1 - which);
}
static __device__ double betainc_slope_a(double a, double b, double x) {
  return beta_slope_any(a, b, x, 0);
}
static __device__ double betainc_slope_b(double a, double b, double x) {
  return beta_slope_any(a, b, x, 1);
}

// -- integrals ------------------------------------------------------------------------------------

// Gauss and Legendre's rule of 16 points on (-1, 1): the positive ones.
#define GAUSS_POINTS {                                                                       \
    0.0950125098376374402, 0.281603550779258913, 0.458016777657227386, 0.617876244402643748,  \
    0.755404408355003034, 0.865631202387831744, 0.944575023073232576, 0.989400934991649933}
#define GAUSS_WEIGHTS {                                                                      \
    0.189450610455068496, 0.182603415044923589, 0.169156519395002538, 0.149595988816576732,  \
    0.124628971255533872, 0.0951585116824927848, 0.0622535239386478929, 0.0271524594117540949}
#define PANELS 4

// For |a| <= 1 by its integral, as far as the integrand reaches; else by that of (a h, 1 / a).
static __device__ double owens_integral(double h, double a) {
  const double points[8] = GAUSS_POINTS, weights[8] = GAUSS_WEIGHTS;
  const double end = h * a > 9 ? 9 / h : a, half = end / (2 * PANELS);
  double sum = 0;
  for (int k = 0; k < 2 * 8 * PANELS; k++) {
    const int i = k % 8;
    const double sign = k % 16 < 8 ? 1 : -1;
    const double t = half * (2 * (k / 16) + 1 + sign * points[i]), width = 1 + t * t;
    sum += weights[i] * exp(-0.5 * h * h * width) / width;
  }
  return sum * half / (2 * PI);
}
static __device__ double owens_t(double h, double a) {
  if (h != h || a != a) return NAN_d;
  const double x = fabs(h), size = fabs(a);
  if (x == INF_d || a == 0) return copysign(0.0, a);
  double found;
  const double q1 = 0.5 * erfc(x * 0.70710678118654752440);
  if (size == INF_d) found = 0.5 * q1;
  else if (size <= 1) found = owens_integral(x, size);
  else {
    const double q2 = 0.5 * erfc(size * x * 0.70710678118654752440);
    found = 0.5 * (q1 + q2) - q1 * q2 - owens_integral(size * x, 1 / size);
  }
  return copysign(found, a);
}

// 1 - I1(k) / I0(k); its asymptotic series where these cancel.
static __device__ double one_minus_resultant(double k) {
  if (k < 300) return 1 - i1e(k) / i0e(k);
  const double u = 1 / k;
  return u * (1.0 / 2 + u * (1.0 / 8 + u * (1.0 / 8 + u * (25.0 / 128 + u * (13.0 / 32
       + u * (1073.0 / 1024))))));
}
// From 0 to x where dp / dk is positive there, else from x to pi: see the reference.
static __device__ double von_mises_draw_slope(double k, double x) {
  const double points[8] = GAUSS_POINTS, weights[8] = GAUSS_WEIGHTS;
  const double size = fabs(x), spread = one_minus_resultant(k);
  if (!(k >= 0) || !(size <= 4)) return NAN_d;
  const double sine = sin(size / 2), off = 2 * sine * sine;
  const double end = off < spread ? 0 : 2 * asin(sqrt(fmin(2.0, off + 40 / k) / 2));
  const double width = (end - size) / PANELS;
  double sum = 0;
  for (int i = 0; i < 16 * PANELS; i++) {
    const double p = i % 16 < 8 ? points[i % 8] : -points[i % 8];
    const double t = size + width * (i / 16 + 0.5 + p / 2), high = sin(t / 2);
    const double decay = exp(-2 * k * sin((t + size) / 2) * sin((t - size) / 2));
    sum += weights[i % 8] * decay * (spread - 2 * high * high);
  }
  return copysign(1.0, x) * sum * width / 2;
}

#define IN_DOUBLE3(name)                                                                       \
  INLINE float s_##name(float x, float y, float z) {                                           \
    return (float)name((double)x, (double)y, (double)z);                                       \
  }                                                                                            \
  INLINE double s_##name(double x, double y, double z) { return name(x, y, z); }
IN_DOUBLE2(gamma_draw_slope)
IN_DOUBLE2(betaln)
IN_DOUBLE2(owens_t)
IN_DOUBLE2(von_mises_draw_slope)
IN_DOUBLE3(betainc)
IN_DOUBLE3(betaincc)
IN_DOUBLE3(betainc_slope_a)
IN_DOUBLE3(betainc_slope_b)
