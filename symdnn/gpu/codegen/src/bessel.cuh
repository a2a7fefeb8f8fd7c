// Bessel functions J and I of real order, in double for both float dtypes.
//
// A power series where its terms cancel little, Hankel's asymptotic series far out, and between them
// Miller's recurrence down the orders (it needs special.cuh; NIST's DLMF 10.2.2, 10.17.3, 10.23.15, 10.25.2, 10.40.1).

// (x / 2)^v / gamma(v + 1); 0 where v is a negative integer.
static __device__ double bessel_first(double v, double x) {
  const double power = v * log(x / 2);
  if (v < 0 && v == floor(v)) return 0;
  if (v > 100) return exp(power - lgamma(v + 1));
  if (v < -100) return (fmod(floor(v), 2) != 0 ? 1 : -1) * exp(power - lgamma(v + 1));
  return fabs(power) < 600 ? pow(x / 2, v) / tgamma(v + 1) : exp(power) / tgamma(v + 1);
}

// The sum of (sign x^2 / 4)^k / (k! (v + 1) ... (v + k)), times the first term: each of them if it is
// small, since the sum may be above the largest number then.
static __device__ double bessel_series(double v, double x, double sign) {
  const double q = sign * x * x / 4;
  const double first = bessel_first(v, x), start = fabs(first) < 1 ? first : 1;
  double term = start, sum = start;
  for (int k = 1; k < 2000; k++) {
    term *= q / (k * (v + k));
    sum += term;
    if (k > -v && fabs(term) <= 1e-17 * fabs(sum)) break;
  }
  return start == first ? sum : first * sum;
}

// Sums of every second term of the asymptotic series, each times `sign` as often as it is one further.
static __device__ void bessel_far(double v, double x, double sign, double& even, double& odd) {
  double term = 1, last = INF_d;
  even = odd = 0;
  for (int k = 0; k < 200; k++) {
    if (fabs(term) > last && k > fabs(v)) break;
    last = fabs(term);
    const double factor = sign < 0 && k / 2 % 2 ? -1 : 1;
    (k % 2 ? odd : even) += factor * term;
    if (last < 1e-18) break;
    const double m = 2 * k + 1;
    term *= (4 * v * v - m * m) / (8 * (k + 1) * x);
  }
}

// By orders mu = v - floor(v) and mu + 1, then up or down from them: |v| is at most about sqrt(2 x).
static __device__ double bessel_between(double v, double x) {
  const double whole = floor(v), mu = v - whole;
  const double most = x > fabs(v) ? x : fabs(v);
  const int top = 2 * (int)((most + 16 * cbrt(most) + 30) / 2);
  double weight = tgamma(1 + mu);  // gamma(mu + k) / k! of the even number 2 k
  for (int k = 1; k < top / 2; k++) weight *= (mu + k) / (k + 1);
  double above = 0, here = 1e-280, sum = 0, first = 0, second = 0, wanted = 0;
  for (int n = top; n >= 0; n--) {
    if (n % 2 == 0) {
      const int k = n / 2;
      sum += (k ? (mu + n) * weight : tgamma(1 + mu)) * here;
      if (k > 1) weight *= k / (mu + k - 1);
    }
    if (n == (int)whole) wanted = here;
    if (n == 1) second = here;
    if (n == 0) first = here;
    const double below = 2 * (mu + n) / x * here - above;
    above = here;
    here = below;
    if (fabs(here) > 1e200) {
      above *= 1e-200;
      here *= 1e-200;
      sum *= 1e-200;
      wanted *= 1e-200;
      second *= 1e-200;
    }
  }
  const double scale = pow(x / 2, mu) / sum;
  if (whole >= 0) return wanted * scale;
  // Below order mu the numbers grow, so they are found from both.
  for (double order = mu; order > v; order -= 1) {
    const double below = 2 * order / x * first - second;
    second = first;
    first = below;
  }
  return first * scale;
}

static __device__ double bessel_j(double v, double x) {
  if (v != v || x != x) return NAN_d;
  double sign = 1;
  if (v == floor(v)) {
    const bool odd = fmod(v, 2) != 0;
    if (v < 0 && odd) sign = -sign;
    if (x < 0 && odd) sign = -sign;
    v = fabs(v);
    x = fabs(x);
  } else if (x < 0) {
    return NAN_d;
  }
  if (x == 0) return v == 0 ? 1 : v > 0 ? 0 : copysign(INF_d, tgamma(v + 1));
  if (x == INF_d) return NAN_d;  // as SciPy's
  if (x * x < 10 * (fabs(v) + 1)) return sign * bessel_series(v, x, -1);
  if (x > 25 && 2 * x > v * v) {
    double even, odd;
    bessel_far(v, x, -1, even, odd);
    // x - (v / 2 + 1 / 4) pi, whose multiples of pi are taken off before.
    const double turn = PI * fmod(v / 2 + 0.25, 2), c = cos(turn), s = sin(turn);
    const double cos_x = cos(x), sin_x = sin(x);
    const double near = cos_x * c + sin_x * s, far = sin_x * c - cos_x * s;
    return sign * sqrt(2 / (PI * x)) * (near * even - far * odd);
  }
  return sign * bessel_between(v, x);
}

static __device__ double bessel_i(double v, double x) {
  if (v != v || x != x) return NAN_d;
  double sign = 1;
  if (v == floor(v)) {
    if (x < 0 && fmod(v, 2) != 0) sign = -1;
    v = fabs(v);
    x = fabs(x);
  } else if (x < 0) {
    return NAN_d;
  }
  if (x == 0) return v == 0 ? 1 : v > 0 ? 0 : INF_d;
  if (x == INF_d) return NAN_d;  // as SciPy's
  if (x <= 30 || x < v * v) return sign * bessel_series(v, x, 1);
  double even, odd;
  bessel_far(v, x, 1, even, odd);
  const double half = exp(x / 2);  // twice, for results near the largest number
  return sign * half * ((even - odd) / sqrt(2 * PI * x)) * half;
}

INLINE double s_jv(double v, double x) { return bessel_j(v, x); }
INLINE float s_jv(float v, float x) { return (float)bessel_j(v, x); }
INLINE double s_iv(double v, double x) { return bessel_i(v, x); }
INLINE float s_iv(float v, float x) { return (float)bessel_i(v, x); }
