// Complex numbers as {real part, imaginary part}, with NumPy's results of all instructions.

template <class T> struct alignas(2 * sizeof(T)) cplx { T re, im; };
typedef cplx<float> c64;
typedef cplx<double> c128;

template <class T> struct Narrow<cplx<T>> {
  template <class U> static __device__ __forceinline__ cplx<T> of(cplx<U> z) {
    return {(T)z.re, (T)z.im};
  }
  template <class U> static __device__ __forceinline__ cplx<T> of(U x) { return {(T)x, (T)0}; }
};

INLINE float c_hypot(float a, float b) { return hypotf(a, b); }
INLINE double c_hypot(double a, double b) { return hypot(a, b); }

// -- parts ---------------------------------------------------------------------------------------

template <class T> INLINE cplx<T> s_c_make(T re, T im) { return {re, im}; }
template <class T> INLINE T s_c_real(cplx<T> z) { return z.re; }
template <class T> INLINE T s_c_imag(cplx<T> z) { return z.im; }
template <class T> INLINE T s_c_abs(cplx<T> z) { return c_hypot(z.re, z.im); }
template <class T> INLINE T s_c_angle(cplx<T> z) { return s_atan2(z.im, z.re); }
template <class T> INLINE cplx<T> s_c_conj(cplx<T> z) { return {z.re, -z.im}; }
template <class T> INLINE bool s_c_isnan(cplx<T> z) { return s_isnan(z.re) || s_isnan(z.im); }
template <class T> INLINE bool s_c_isinf(cplx<T> z) { return s_isinf(z.re) || s_isinf(z.im); }
template <class T> INLINE bool s_c_isfinite(cplx<T> z) {
  return s_isfinite(z.re) && s_isfinite(z.im);
}

// -- arithmetic ----------------------------------------------------------------------------------

template <class T> INLINE cplx<T> s_c_add(cplx<T> a, cplx<T> b) {
  return {a.re + b.re, a.im + b.im};
}
template <class T> INLINE cplx<T> s_c_sub(cplx<T> a, cplx<T> b) {
  return {a.re - b.re, a.im - b.im};
}
template <class T> INLINE cplx<T> s_c_mul(cplx<T> a, cplx<T> b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
// Smith's algorithm: no avoidable overflow of an intermediate result.
template <class T> INLINE cplx<T> s_c_div(cplx<T> a, cplx<T> b) {
  const T size_re = s_abs(b.re), size_im = s_abs(b.im);
  if (size_re >= size_im) {
    if (size_re == 0 && size_im == 0) return {a.re / size_re, a.im / size_re};
    const T ratio = b.im / b.re, scale = (T)1 / (b.re + b.im * ratio);
    return {(a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale};
  }
  const T ratio = b.re / b.im, scale = (T)1 / (b.im + b.re * ratio);
  return {(a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale};
}
template <class T> INLINE cplx<T> s_c_neg(cplx<T> z) { return {-z.re, -z.im}; }
template <class T> INLINE cplx<T> s_c_sqr(cplx<T> z) { return s_c_mul(z, z); }
template <class T> INLINE cplx<T> s_c_inv(cplx<T> z) { return s_c_div(cplx<T>{1, 0}, z); }
template <class T> INLINE bool s_c_eq(cplx<T> a, cplx<T> b) {
  return a.re == b.re && a.im == b.im;
}
template <class T> INLINE bool s_c_ne(cplx<T> a, cplx<T> b) { return !s_c_eq(a, b); }

// -- functions -----------------------------------------------------------------------------------

// Two functions of one number, which share most of the work.
template <class T> struct Pair { T sin, cos; };
INLINE Pair<float> c_turn(float x) {
  Pair<float> found;
  sincosf(x, &found.sin, &found.cos);
  return found;
}
INLINE Pair<double> c_turn(double x) {
  Pair<double> found;
  sincos(x, &found.sin, &found.cos);
  return found;
}
INLINE Pair<double> c_turn_hyperbolic(double x) { return {sinh(x), cosh(x)}; }
// One exponential: exp(x - 64) where exp(x) may overflow, and a polynomial near 0.
INLINE Pair<float> c_turn_hyperbolic(float x) {
  const float a = fabsf(x), square = x * x;
  const bool far = a > 80.0f;
  const float half = expf(far ? a - 64.0f : a) * (far ? 3.117574653e27f : 0.5f);
  const float low = 0.25f * fast_reciprocal(half);
  float p = 2.7557319e-6f;
  p = fmaf(p, square, 1.9841270e-4f);
  p = fmaf(p, square, 8.3333333e-3f);
  p = fmaf(p, square, 0.16666667f);
  return {a < 1.0f ? fmaf(x * square, p, x) : copysignf(half - low, x), half + low};
}

// log |z|; the sum of squares of most numbers neither overflows nor loses digits.
template <class T> INLINE T c_log_size(T re, T im) {
  const T square = re * re + im * im;
  if (square > (T)1e-30f && square < (T)1e30f) return s_log(square) / 2;
  return s_log(c_hypot(re, im));
}

template <class T> INLINE cplx<T> s_c_exp(cplx<T> z) {
  const T size = s_exp(z.re);
  if (z.im == 0) return {size, z.im};
  const Pair<T> turn = c_turn(z.im);
  return {size * turn.cos, size * turn.sin};
}
template <class T> INLINE cplx<T> s_c_log(cplx<T> z) {
  return {c_log_size(z.re, z.im), s_atan2(z.im, z.re)};
}
template <class T> INLINE cplx<T> s_c_sqrt(cplx<T> z) {
  if (z.re == 0 && z.im == 0) return {(T)0, z.im};
  if (s_abs(z.im) == (T)INF_f) return {(T)INF_f, z.im};
  const T root = s_sqrt((s_abs(z.re) + c_hypot(z.re, z.im)) * (T)0.5);
  const T other = z.im / (2 * root);
  if (z.re >= 0) return {root, other};
  return {s_abs(other), s_copysign(root, z.im)};
}
template <class T> INLINE cplx<T> s_c_sin(cplx<T> z) {
  const Pair<T> turn = c_turn(z.re), wide = c_turn_hyperbolic(z.im);
  return {turn.sin * wide.cos, turn.cos * wide.sin};
}
template <class T> INLINE cplx<T> s_c_cos(cplx<T> z) {
  const Pair<T> turn = c_turn(z.re), wide = c_turn_hyperbolic(z.im);
  return {turn.cos * wide.cos, -(turn.sin * wide.sin)};
}
template <class T> INLINE cplx<T> s_c_sinh(cplx<T> z) {
  const Pair<T> turn = c_turn(z.im), wide = c_turn_hyperbolic(z.re);
  return {wide.sin * turn.cos, wide.cos * turn.sin};
}
template <class T> INLINE cplx<T> s_c_cosh(cplx<T> z) {
  const Pair<T> turn = c_turn(z.im), wide = c_turn_hyperbolic(z.re);
  return {wide.cos * turn.cos, wide.sin * turn.sin};
}
template <class T> INLINE cplx<T> c_scaled(cplx<T> z, T factor) {
  return {z.re * factor, z.im * factor};
}
template <class T> INLINE cplx<T> s_c_log2(cplx<T> z) {
  return c_scaled(s_c_log(z), (T)1.4426950408889634);
}
template <class T> INLINE cplx<T> s_c_log10(cplx<T> z) {
  return c_scaled(s_c_log(z), (T)0.4342944819032518);
}
template <class T> INLINE cplx<T> s_c_log1p(cplx<T> z) {
  return {c_log_size(z.re + 1, z.im), s_atan2(z.im, z.re + 1)};
}
template <class T> INLINE cplx<T> s_c_expm1(cplx<T> z) {
  const T half = s_sin(z.im / 2);
  const Pair<T> turn = c_turn(z.im);
  return {s_expm1(z.re) * turn.cos - 2 * half * half, s_exp(z.re) * turn.sin};
}
// With t = tan(im) and s = sinh(re): (s (1 + t^2) cosh(re) + i t) / (1 + s^2 (1 + t^2)).
template <class T> INLINE cplx<T> s_c_tanh(cplx<T> z) {
  if (s_abs(z.re) > (sizeof(T) == 8 ? 22 : 11)) {
    const T far = s_exp(-2 * s_abs(z.re));
    const Pair<T> turn = c_turn(z.im);
    return {s_copysign((T)1, z.re), 4 * turn.sin * turn.cos * far};
  }
  const Pair<T> wide = c_turn_hyperbolic(z.re);
  const T t = s_tan(z.im), b = 1 + t * t, share = 1 / (1 + b * wide.sin * wide.sin);
  return {b * wide.cos * wide.sin * share, t * share};
}
template <class T> INLINE cplx<T> s_c_tan(cplx<T> z) {
  const cplx<T> w = s_c_tanh(cplx<T>{-z.im, z.re});
  return {w.im, -w.re};
}

// -- inverse functions: cuts and signs of zeros as in Kahan, Branch cuts (1987) ------------------

template <class T> INLINE cplx<T> s_c_arcsin(cplx<T> z) {
  const cplx<T> a = s_c_sqrt(cplx<T>{1 - z.re, -z.im}), b = s_c_sqrt(cplx<T>{1 + z.re, z.im});
  return {s_atan2(z.re, a.re * b.re - a.im * b.im), s_asinh(a.re * b.im - a.im * b.re)};
}
template <class T> INLINE cplx<T> s_c_arccos(cplx<T> z) {
  const cplx<T> a = s_c_sqrt(cplx<T>{1 - z.re, -z.im}), b = s_c_sqrt(cplx<T>{1 + z.re, z.im});
  return {2 * s_atan2(a.re, b.re), s_asinh(b.re * a.im - b.im * a.re)};
}
template <class T> INLINE cplx<T> s_c_arccosh(cplx<T> z) {
  const cplx<T> a = s_c_sqrt(cplx<T>{z.re - 1, z.im}), b = s_c_sqrt(cplx<T>{z.re + 1, z.im});
  return {s_asinh(a.re * b.re + a.im * b.im), 2 * s_atan2(a.im, b.re)};
}
template <class T> INLINE cplx<T> s_c_arcsinh(cplx<T> z) {
  const cplx<T> w = s_c_arcsin(cplx<T>{-z.im, z.re});
  return {w.im, -w.re};
}
template <class T> INLINE cplx<T> s_c_arctanh(cplx<T> z) {
  const T x = s_abs(z.re), y = z.im;
  const T part = s_log1p(4 * x / ((1 - x) * (1 - x) + y * y)) / 4;
  return {s_copysign(part, z.re), s_atan2(2 * y, (1 - x) * (1 + x) - y * y) / 2};
}
template <class T> INLINE cplx<T> s_c_arctan(cplx<T> z) {
  const cplx<T> w = s_c_arctanh(cplx<T>{-z.im, z.re});
  return {w.im, -w.re};
}
template <class T> INLINE cplx<T> s_c_pow(cplx<T> a, cplx<T> b) {
  if (b.re == 0 && b.im == 0) return {(T)1, (T)0};
  if (a.re == 0 && a.im == 0) {
    const T nan = (T)NAN_d;
    return b.re > 0 ? cplx<T>{0, 0} : cplx<T>{nan, nan};
  }
  return s_c_exp(s_c_mul(b, s_c_log(a)));
}
