// The instructions of symdnn.ops.core.scalar, as overloads for the dtypes of computation.
// Integers wrap around, divide and shift as in NumPy.

template <class T> struct Unsigned { typedef T type; };
template <> struct Unsigned<i8> { typedef u32 type; };
template <> struct Unsigned<u8> { typedef u32 type; };
template <> struct Unsigned<i16> { typedef u32 type; };
template <> struct Unsigned<u16> { typedef u32 type; };
template <> struct Unsigned<i32> { typedef u32 type; };
template <> struct Unsigned<i64> { typedef u64 type; };
template <class T> struct IsSigned { static constexpr bool value = (T)-1 < (T)0; };
template <> struct IsSigned<bool> { static constexpr bool value = false; };

#define WRAPPING(name, op)                                       \
  template <class T> INLINE T s_##name(T a, T b) {               \
    typedef typename Unsigned<T>::type U;                        \
    return (T)((U)a op (U)b);                                    \
  }                                                              \
  INLINE float s_##name(float a, float b) { return a op b; }     \
  INLINE double s_##name(double a, double b) { return a op b; }
WRAPPING(add, +)
WRAPPING(sub, -)
WRAPPING(mul, *)

#define COMPARISON(name, op) \
  template <class T> INLINE bool s_##name(T a, T b) { return a op b; }
COMPARISON(lt, <)
COMPARISON(le, <=)
COMPARISON(eq, ==)
COMPARISON(ne, !=)

#define BITWISE(name, op) \
  template <class T> INLINE T s_##name(T a, T b) { return (T)(a op b); }
BITWISE(and, &)
BITWISE(or, |)
BITWISE(xor, ^)

template <class T> INLINE T s_not(T a) { return (T)~a; }
INLINE bool s_not(bool a) { return !a; }
template <class T> INLINE T s_shl(T a, T b) {
  typedef typename Unsigned<T>::type U;
  return (u64)b < sizeof(T) * 8 ? (T)((U)a << b) : (T)0;
}
template <class T> INLINE T s_shr(T a, T b) {
  return (u64)b < sizeof(T) * 8 ? (T)(a >> b) : (IsSigned<T>::value && a < (T)0 ? (T)-1 : (T)0);
}

template <class T> INLINE T s_neg(T a) {
  typedef typename Unsigned<T>::type U;
  return (T)((U)0 - (U)a);
}
INLINE float s_neg(float a) { return -a; }
INLINE double s_neg(double a) { return -a; }
template <class T> INLINE T s_abs(T a) { return IsSigned<T>::value && a < (T)0 ? s_neg(a) : a; }
INLINE float s_abs(float a) { return fabsf(a); }
INLINE double s_abs(double a) { return fabs(a); }

template <class T> INLINE T s_max(T a, T b) { return a > b || a != a ? a : b; }
template <class T> INLINE T s_min(T a, T b) { return a < b || a != a ? a : b; }
#if !defined(SYMDNN_HOST) && __CUDA_ARCH__ >= 800
// One instruction each, which gives NaN where one of them is.
INLINE float s_max(float a, float b) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}
INLINE float s_min(float a, float b) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}
#endif
template <class T> INLINE T s_select(bool c, T a, T b) { return c ? a : b; }

INLINE float s_div(float a, float b) { return a / b; }
INLINE double s_div(double a, double b) { return a / b; }

template <class T> INLINE T s_floor_div(T a, T b) {
  if (b == (T)0) return (T)0;
  if (IsSigned<T>::value && b == (T)-1) return s_neg(a);
  T q = (T)(a / b);
  return (T)(q * b) != a && (a < (T)0) != (b < (T)0) ? (T)(q - 1) : q;
}
template <class T> INLINE T s_mod(T a, T b) {
  if (b == (T)0 || (IsSigned<T>::value && b == (T)-1)) return (T)0;
  T r = (T)(a % b);
  return r != (T)0 && (r < (T)0) != (b < (T)0) ? (T)(r + b) : r;
}
// The quotient is computed from the remainder, so that (a // b) * b + a % b equals a.
#define FLOAT_DIVISION(T, fmod_, floor_, copysign_)             \
  INLINE T s_mod(T a, T b) {                                    \
    T r = fmod_(a, b);                                          \
    if (r == 0) return copysign_((T)0, b);                      \
    return (r < 0) != (b < 0) ? r + b : r;                      \
  }                                                             \
  INLINE T s_floor_div(T a, T b) {                              \
    if (b == 0) return a / b;                                   \
    T r = fmod_(a, b);                                          \
    T q = (a - r) / b;                                          \
    if (r != 0 && (r < 0) != (b < 0)) q -= 1;                   \
    if (q == 0) return copysign_((T)0, a / b);                  \
    T down = floor_(q);                                         \
    return q - down > (T)0.5 ? down + 1 : down;                 \
  }
FLOAT_DIVISION(float, fmodf, floorf, copysignf)
FLOAT_DIVISION(double, fmod, floor, copysign)

template <class T> INLINE T s_pow(T a, T b) {
  if (b < (T)0) return (T)0;
  typedef typename Unsigned<T>::type U;
  U base = (U)a, result = 1;
  for (u64 e = (u64)b; e != 0; e >>= 1) {
    if (e & 1) result *= base;
    base *= base;
  }
  return (T)result;
}
INLINE float s_pow(float a, float b) { return powf(a, b); }
INLINE double s_pow(double a, double b) { return pow(a, b); }

template <class T> INLINE bool s_isnan(T a) { return a != a; }
template <class T> INLINE bool s_isinf(T a) { return false; }
INLINE bool s_isinf(float a) { return fabsf(a) == INF_f; }
INLINE bool s_isinf(double a) { return fabs(a) == INF_d; }
template <class T> INLINE bool s_isfinite(T a) { return !s_isnan(a) && !s_isinf(a); }

// Approximations of the hardware, with at most 2 ulp; results below 2^-126 become 0.
#ifdef SYMDNN_HOST
INLINE float fast_exp2(float x) { return exp2f(x); }
INLINE float fast_reciprocal(float x) { return 1.0f / x; }
#else
INLINE float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
INLINE float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

// The exponential of what is rounded to 16 bits in the end; its error is a few ulp for each unit of x.
INLINE float s_short_exp(float x) { return fast_exp2(x * 1.442695041f); }

// a / b for b from 1 to 2 and a from 0 to 1, without special cases. The error is at most 1 ulp.
INLINE double s_share(double a, double b) { return a / b; }
INLINE float s_share(float a, float b) {
  const float r = fast_reciprocal(b), q = a * r;
  return fmaf(fmaf(-b, q, a), r, q);
}

#define UNARY(name, function)                                     \
  INLINE float s_##name(float x) { return function##f(x); }       \
  INLINE double s_##name(double x) { return function(x); }
#define BINARY(name, function)                                                \
  INLINE float s_##name(float x, float y) { return function##f(x, y); }       \
  INLINE double s_##name(double x, double y) { return function(x, y); }
UNARY(floor, floor)
UNARY(ceil, ceil)
UNARY(trunc, trunc)
UNARY(rint, rint)
UNARY(sqrt, sqrt)
UNARY(exp, exp)
UNARY(exp2, exp2)
UNARY(expm1, expm1)
UNARY(log, log)
UNARY(log2, log2)
UNARY(log10, log10)
UNARY(log1p, log1p)
UNARY(sin, sin)
UNARY(cos, cos)
UNARY(tan, tan)
UNARY(asin, asin)
UNARY(acos, acos)
UNARY(atan, atan)
UNARY(sinh, sinh)
UNARY(cosh, cosh)
INLINE double s_tanh(double x) { return tanh(x); }
// Without branches, with at most 3 ulp: 1 - 2 / (exp(2 x) + 1), and a polynomial near 0.
INLINE float s_tanh(float x) {
  const float a = fabsf(x), square = x * x;
  const float far = fmaf(-2.0f, fast_reciprocal(fast_exp2(a * 2.885390082f) + 1.0f), 1.0f);
  float p = -0.00619716f;
  p = fmaf(p, square, 0.02101913f);
  p = fmaf(p, square, -0.05384005f);
  p = fmaf(p, square, 0.13332474f);
  p = fmaf(p, square, -0.33333314f);
  return a < 0.55f ? fmaf(x, square * p, x) : copysignf(far, x);
}
UNARY(asinh, asinh)
UNARY(acosh, acosh)
UNARY(atanh, atanh)
UNARY(erf, erf)
UNARY(erfc, erfc)
UNARY(erfcx, erfcx)
UNARY(erfinv, erfinv)
UNARY(erfcinv, erfcinv)
INLINE float s_ndtri(float x) { return (float)normcdfinv((double)x); }
INLINE double s_ndtri(double x) { return normcdfinv(x); }
// exp(-x * x / 2); the square's rounding, which exp would magnify, is made good.
INLINE float normal_decay(float x) {
  const float square = x * x, low = fmaf(x, x, -square), y = square * -0.72134751f;
  const float rest = fmaf(square, -0.72134751f, -y) - fmaf(square, 9.62981e-9f, low * 0.72134751f);
  return fast_exp2(y) * fmaf(rest, 0.69314718f, 1.0f);
}
// The normal distribution's value at -50 <= x <= 50, without branches, with at most 8 ulp: beside
// the decay its tail is smooth in 1 / (1 + 0.35 |x|).
INLINE float normal_cdf(float x, float decay) {
  const float t = fast_reciprocal(fmaf(0.35f, fabsf(x), 1.0f));
  float p = -0.0291579980f;
  p = fmaf(p, t, 0.144031480f);
  p = fmaf(p, t, -0.255840153f);
  p = fmaf(p, t, 0.159320995f);
  p = fmaf(p, t, -0.0232132431f);
  p = fmaf(p, t, 0.105552875f);
  p = fmaf(p, t, 0.119821198f);
  p = fmaf(p, t, 0.139863521f);
  p = fmaf(p, t, 0.139621302f);
  const float tail = decay * (p * t);
  return x < 0.0f ? tail : 1.0f - tail;
}
// x times the normal distribution's value at x, and the slope of that; limits at infinity.
INLINE float s_gelu(float x) {
  const float z = fminf(fmaxf(x, -50.0f), 50.0f);
  return (x < -50.0f ? z : x) * normal_cdf(z, normal_decay(z));
}
INLINE double s_gelu(double x) { return fmax(x, -50.0) * normcdf(x); }
INLINE float s_gelu_slope(float x) {
  const float z = fminf(fmaxf(x, -50.0f), 50.0f), decay = normal_decay(z);
  return x != x ? x : fmaf(z * 0.3989422804f, decay, normal_cdf(z, decay));
}
INLINE double s_gelu_slope(double x) {
  const double z = fmin(fmax(x, -50.0), 50.0);
  return fma(z * 0.3989422804014327, exp(-0.5 * z * z), normcdf(x));
}
UNARY(lgamma, lgamma)
UNARY(tgamma, tgamma)
BINARY(atan2, atan2)
BINARY(copysign, copysign)
