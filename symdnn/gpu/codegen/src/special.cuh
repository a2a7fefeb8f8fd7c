// Special functions that CUDA lacks, in double for both float dtypes.

#define PI 3.14159265358979323846

// By the recurrence up to 12, then the asymptotic series (Bernoulli numbers over 2k).
static __device__ double digamma(double x) {
  double result = 0;
  if (x <= 0) {
    if (x == floor(x)) return x == 0 ? copysign(INF_d, -x) : NAN_d;
    result = -PI / tan(PI * (x - rint(x)));  // exact, also near a pole
    x = 1 - x;
  }
  // The sum of 1 / x is above / below: one quotient.
  double above = 0, below = 1;
  for (; x < 12; x += 1) {
    above = above * x + below;
    below *= x;
  }
  result -= above / below;
  double u = 1 / (x * x);
  double tail = u * (1.0 / 12 - u * (1.0 / 120 - u * (1.0 / 252 - u * (1.0 / 240
              - u * (1.0 / 132 - u * (691.0 / 32760 - u / 12))))));
  return result + log(x) - 0.5 / x - tail;
}

// q^-s, by products for small integers s.
static __device__ double inverse_power(double q, double s) {
  if (!(s == floor(s) && s >= 1 && s <= 8)) return pow(q, -s);
  const double inverse = 1 / q;
  double power = inverse;
  for (int k = (int)s; k > 1; k--) power *= inverse;
  return power;
}

// Hurwitz' zeta, the sum of (q + k)^-s, by the formula of Euler and Maclaurin from q + n >= 12 + s.
static __device__ double hurwitz(double s, double q) {
  const double bernoulli[8] = {  // B(2j) / (2j)!
      1.0 / 12, -1.0 / 720, 1.0 / 30240, -1.0 / 1209600, 1.0 / 47900160,
      -691.0 / 1307674368000.0, 1.0 / 74724249600.0, -3617.0 / 10670622842880000.0};
  if (q <= 0 && q == floor(q)) return INF_d;
  if (q == INF_d) return 0;
  if (s == INF_d) return q > 1 ? 0 : q == 1 ? 1 : INF_d;
  if (q < -1e6) return NAN_d;  // the sum would never end
  double sum = 0;
  for (; q < 12 + s; q += 1) {
    const double term = inverse_power(q, s);
    sum += term;
    if (q > 0 && term < 1e-18 * fabs(sum)) return sum;
  }
  double power = inverse_power(q, s);
  sum += power * q / (s - 1) + 0.5 * power;
  double factor = s * power / q;
  for (int j = 0; j < 8; j++) {
    sum += bernoulli[j] * factor;
    factor *= (s + 2 * j + 1) * (s + 2 * j + 2) / (q * q);
  }
  return sum;
}

static __device__ double zeta(double s, double q) {
  if (s == 1) return INF_d;
  if (!(s > 1) || q != q) return NAN_d;
  return q > 0 || q == floor(q) || s == floor(s) ? hurwitz(s, q) : NAN_d;
}

INLINE double s_zeta(double s, double q) { return zeta(s, q); }

// In float by as few powers as it needs: from q >= 8 on five terms of the series are exact to 1e-8
// for s up to 10. Elsewhere in double, since the powers underflow or take as many digits as s has.
INLINE float s_zeta(float s, float q) {
  if (!(s > 1 && s <= 10 && q > 0 && q <= 1000)) return (float)zeta((double)s, (double)q);
  const float bernoulli[5] = {1.0f / 12, -1.0f / 720, 1.0f / 30240, -1.0f / 1209600,
                              1.0f / 47900160};  // B(2j) / (2j)!
  float sum = 0;
  for (; q < 8; q += 1) sum += powf(q, -s);
  const float inverse = 1 / q;
  float tail = 0.5f, factor = s * inverse;
#pragma unroll
  for (int j = 0; j < 5; j++) {
    tail += bernoulli[j] * factor;
    factor *= (s + (2 * j + 1)) * (s + (2 * j + 2)) * (inverse * inverse);
  }
  return sum + powf(q, -s) * (q / (s - 1) + tail);
}

// The slope of digamma: the same recurrence, the derivative of its series, and of its reflection.
static __device__ double trigamma(double x) {
  const bool reflected = x <= 0;
  if (reflected && x == floor(x)) return INF_d;
  const double pole = reflected ? PI / sin(PI * (x - rint(x))) : 0;
  if (reflected) x = 1 - x;
  double sum = 0;
  double above = 0, below = 1;
  for (; x < 12; x += 1) {
    above = above * (x * x) + below;
    below *= x * x;
  }
  sum += above / below;
  const double w = 1 / x, u = w * w;
  const double tail = u * (1.0 / 6 - u * (1.0 / 30 - u * (1.0 / 42 - u * (1.0 / 30
                    - u * (5.0 / 66 - u * (691.0 / 2730 - u * (7.0 / 6)))))));
  sum += w * (1 + 0.5 * w + tail);
  return reflected ? pole * pole - sum : sum;
}

static __device__ double polygamma(double n, double x) {
  if (n == 0) return digamma(x);
  if (n == 1) return trigamma(x);
  if (n < 0 || n != floor(n)) return NAN_d;
  double size = tgamma(n + 1) * hurwitz(n + 1, x);
  return fmod(n, 2) == 0 ? -size : size;
}

// The regularised incomplete gamma functions: a series below a + 1, a continued fraction (the
// method of Lentz) above; each is exact where it is small. For large a near x neither converges:
// Temme's uniform expansion is used there (DLMF 8.12.3 and 8.12.4, with mu = x / a - 1).
#define GAMMA_LARGE 1e4
#define GAMMA_NEAR 0.1

// mu - log(1 + mu), without cancellation near 0.
static __device__ double log1p_rest(double mu) {
  if (fabs(mu) > 0.25) return mu - log1p(mu);
  double power = mu * mu, sum = 0;
  for (int k = 2; k < 40; k++, power *= -mu) {
    sum += power / k;
    if (fabs(power) < 1e-18 * sum) break;
  }
  return sum;
}
// x^a exp(-x) / gamma(a); by Stirling's series where the factors differ much in size.
static __device__ double gamma_factor(double a, double x) {
  if (a < 100) return exp(a * log(x) - x - lgamma(a));
  const double u = 1 / a;
  const double stirling = 1 + u * (1.0 / 12 + u * (1.0 / 288 + u * (-139.0 / 51840
                        + u * (-571.0 / 2488320))));
  return sqrt(a / (2 * PI)) * exp(-a * log1p_rest((x - a) / a)) / stirling;
}
// Q(a, x), or P(a, x) with `upper` false.
static __device__ double gamma_temme(double a, double x, bool upper) {
  const double mu = (x - a) / a, half = log1p_rest(mu), e = copysign(sqrt(2 * half), mu);
  const double c0 = -1.0 / 3 + e * (1.0 / 12 + e * (-2.0 / 135 + e * (1.0 / 864
                  + e * (1.0 / 2835 + e * (-139.0 / 777600)))));
  const double c1 = -1.0 / 540 + e * (-1.0 / 288 + e * (1.0 / 378 + e * (-77.0 / 77760)));
  const double c2 = 25.0 / 6048 + e * (-139.0 / 51840);
  const double rest = exp(-a * half) / sqrt(2 * PI * a) * (c0 + (c1 + c2 / a) / a);
  const double middle = e * sqrt(a / 2);
  return upper ? 0.5 * erfc(middle) + rest : 0.5 * erfc(-middle) - rest;
}
static __device__ double gamma_series(double a, double x) {
  double term = 1 / a, sum = term;
  for (int n = 1; n < 10000; n++) {
    term *= x / (a + n);
    sum += term;
    if (fabs(term) < fabs(sum) * 1e-17) break;
  }
  return sum * gamma_factor(a, x);
}
static __device__ double gamma_fraction(double a, double x) {
  const double tiny = 1e-300;
  double b = x + 1 - a, c = 1 / tiny, d = 1 / b, h = d;
  for (int n = 1; n < 10000; n++) {
    double an = -n * (n - a);
    b += 2;
    d = an * d + b;
    c = b + an / c;
    if (fabs(d) < tiny) d = tiny;
    if (fabs(c) < tiny) c = tiny;
    d = 1 / d;
    h *= d * c;
    if (fabs(d * c - 1) < 1e-16) break;
  }
  return h * gamma_factor(a, x);
}
static __device__ double gammainc(double a, double x) {
  if (!(a >= 0) || !(x >= 0) || (a == 0 && x == 0)) return NAN_d;
  if (a == 0 || x == INF_d) return 1;
  if (x == 0) return 0;
  if (a > GAMMA_LARGE && fabs(x - a) < GAMMA_NEAR * a) return gamma_temme(a, x, false);
  return x < a + 1 ? gamma_series(a, x) : 1 - gamma_fraction(a, x);
}
static __device__ double gammaincc(double a, double x) {
  if (!(a >= 0) || !(x >= 0) || (a == 0 && x == 0)) return NAN_d;
  if (a == 0 || x == INF_d) return 0;
  if (x == 0) return 1;
  if (a > GAMMA_LARGE && fabs(x - a) < GAMMA_NEAR * a) return gamma_temme(a, x, true);
  return x < a + 1 ? 1 - gamma_series(a, x) : gamma_fraction(a, x);
}

// exp(-|x|) times the modified Bessel function of order 0 or 1: by the power series, whose terms are
// positive (DLMF 10.25.2), below LIMIT, and by the asymptotic one (10.40.1) above. The numbers of
// terms are those that T's digits need; all quotients of whole numbers are constants.
template <typename T, int ORDER, int LIMIT, int TERMS, int FAR_TERMS>
static __device__ T bessel_scaled(T x) {
  const T size = fabs(x);
  T sum = 1;
  if (size < LIMIT) {
    const T square = (T)0.25 * size * size;
#pragma unroll
    for (int k = TERMS; k > 0; k--) sum = 1 + square * sum * (T)(1.0 / (k * (k + ORDER)));
    return (ORDER ? (T)0.5 * x : 1) * sum * exp(-size);
  }
  const T inverse = 1 / size;
#pragma unroll
  for (int k = FAR_TERMS; k > 0; k--)
    sum = 1 + inverse * sum * (T)(((2 * k - 1) * (2 * k - 1) - 4 * ORDER) / (8.0 * k));
  sum /= sqrt((T)(2 * PI) * size);
  return ORDER ? copysign(sum, x) : sum;
}
static __device__ double i0e(double x) { return bessel_scaled<double, 0, 25, 46, 24>(x); }
static __device__ double i1e(double x) { return bessel_scaled<double, 1, 25, 46, 24>(x); }
INLINE double s_i0e(double x) { return i0e(x); }
INLINE double s_i1e(double x) { return i1e(x); }
INLINE float s_i0e(float x) { return bessel_scaled<float, 0, 9, 18, 12>(x); }
INLINE float s_i1e(float x) { return bessel_scaled<float, 1, 9, 18, 12>(x); }

#define IN_DOUBLE1(name)                                                   \
  INLINE float s_##name(float x) { return (float)name((double)x); }        \
  INLINE double s_##name(double x) { return name(x); }
#define IN_DOUBLE2(name)                                                                     \
  INLINE float s_##name(float x, float y) { return (float)name((double)x, (double)y); }      \
  INLINE double s_##name(double x, double y) { return name(x, y); }
IN_DOUBLE1(digamma)
IN_DOUBLE1(trigamma)
IN_DOUBLE2(polygamma)
IN_DOUBLE2(gammainc)
IN_DOUBLE2(gammaincc)
