// Numbers of P = 1 or 2 parts of type R: real or complex ones.

template <class R, i32 P> struct NumberOf { R part[P]; };

// a * b, or the conjugate of a times b.
template <bool CONJUGATE = false, class R, i32 P>
INLINE NumberOf<R, P> times(NumberOf<R, P> a, NumberOf<R, P> b) {
  NumberOf<R, P> y;
  if (P == 1) {
    y.part[0] = a.part[0] * b.part[0];
  } else {
    const R im = CONJUGATE ? -a.part[P - 1] : a.part[P - 1];
    y.part[0] = a.part[0] * b.part[0] - im * b.part[P - 1];
    y.part[P - 1] = a.part[0] * b.part[P - 1] + im * b.part[0];
  }
  return y;
}
template <class R, i32 P> INLINE NumberOf<R, P> conjugate(NumberOf<R, P> a) {
  if (P == 2) a.part[P - 1] = -a.part[P - 1];
  return a;
}
template <class R, i32 P> INLINE NumberOf<R, P> scaled(NumberOf<R, P> a, R by) {
  for (i32 k = 0; k < P; k++) a.part[k] *= by;
  return a;
}
template <class R, i32 P> INLINE NumberOf<R, P> sum(NumberOf<R, P> a, NumberOf<R, P> b) {
  for (i32 k = 0; k < P; k++) a.part[k] += b.part[k];
  return a;
}
template <class R, i32 P> INLINE NumberOf<R, P> difference(NumberOf<R, P> a, NumberOf<R, P> b) {
  for (i32 k = 0; k < P; k++) a.part[k] -= b.part[k];
  return a;
}
template <class R, i32 P> INLINE R squared_size(NumberOf<R, P> a) {
  R found = 0;
  for (i32 k = 0; k < P; k++) found += a.part[k] * a.part[k];
  return found;
}

INLINE float length(float a, float b) { return hypotf(a, b); }
INLINE double length(double a, double b) { return hypot(a, b); }
template <class R, i32 P> INLINE R size_of(NumberOf<R, P> a) {
  return P == 1 ? s_abs(a.part[0]) : length(a.part[0], a.part[P - 1]);
}
