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

template <class T> INLINE cplx<T> s_c_exp(cplx<T> z) {
  const T size = s_exp(z.re);
  if (z.im == 0) return {size, z.im};
  return {size * s_cos(z.im), size * s_sin(z.im)};
}
template <class T> INLINE cplx<T> s_c_log(cplx<T> z) {
  return {s_log(c_hypot(z.re, z.im)), s_atan2(z.im, z.re)};
}
template <class T> INLINE cplx<T> s_c_sqrt(cplx<T> z) {
  if (z.re == 0 && z.im == 0) return {(T)0, z.im};
  const T root = s_sqrt((s_abs(z.re) + c_hypot(z.re, z.im)) * (T)0.5);
  const T other = z.im / (2 * root);
  if (z.re >= 0) return {root, other};
  return {s_abs(other), s_copysign(root, z.im)};
}
template <class T> INLINE cplx<T> s_c_sin(cplx<T> z) {
  return {s_sin(z.re) * s_cosh(z.im), s_cos(z.re) * s_sinh(z.im)};
}
template <class T> INLINE cplx<T> s_c_cos(cplx<T> z) {
  return {s_cos(z.re) * s_cosh(z.im), -(s_sin(z.re) * s_sinh(z.im))};
}
template <class T> INLINE cplx<T> s_c_sinh(cplx<T> z) {
  return {s_sinh(z.re) * s_cos(z.im), s_cosh(z.re) * s_sin(z.im)};
}
template <class T> INLINE cplx<T> s_c_cosh(cplx<T> z) {
  return {s_cosh(z.re) * s_cos(z.im), s_sinh(z.re) * s_sin(z.im)};
}
template <class T> INLINE cplx<T> s_c_pow(cplx<T> a, cplx<T> b) {
  if (b.re == 0 && b.im == 0) return {(T)1, (T)0};
  if (a.re == 0 && a.im == 0) {
    const T nan = (T)NAN_d;
    return b.re > 0 ? cplx<T>{0, 0} : cplx<T>{nan, nan};
  }
  return s_c_exp(s_c_mul(b, s_c_log(a)));
}
