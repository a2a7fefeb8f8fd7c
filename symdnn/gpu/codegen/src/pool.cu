// What pooling kernels share. Windows of WD by WH by WW elements (images have WD = 1), strides SD,
// SH, SW, padding PD, PH, PW. MODE 0: maximum, 1: mean with padding, 2: mean without, 3: sum. T is the
// stored type, A that of the work.

struct Sizes { i64 d, h, w; };

// The larger of two, or NaN if one is.
INLINE double larger(double a, double b) { return b > a || b != b ? b : a; }
INLINE float larger(float a, float b) {
#if !defined(SYMDNN_HOST) && __CUDA_ARCH__ >= 800
  float x;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
  return x;
#else
  return b > a || b != b ? b : a;
#endif
}

// The same for 16-bit floats, two at a time if possible, without rounding.
INLINE f16 larger(f16 a, f16 b) { return convert<f16>(larger(float_of(a), float_of(b))); }
INLINE bf16 larger(bf16 a, bf16 b) { return convert<bf16>(larger(float_of(a), float_of(b))); }
#if !defined(SYMDNN_HOST) && __CUDA_ARCH__ >= 800
INLINE u32 larger_pair(u32 a, u32 b, f16) {
  u32 x;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(x) : "r"(a), "r"(b));
  return x;
}
INLINE u32 larger_pair(u32 a, u32 b, bf16) {
  u32 x;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(x) : "r"(a), "r"(b));
  return x;
}
#define IN_PAIRS(E, N) (sizeof(E) == 2 && N % 2 == 0)
#else
template <class E> INLINE u32 larger_pair(u32 a, u32 b, E) { return 0; }
#define IN_PAIRS(E, N) false
#endif
template <class E, int N> INLINE Vec<E, N> larger(const Vec<E, N>& a, const Vec<E, N>& b) {
  Vec<E, N> x;
  if constexpr (IN_PAIRS(E, N)) {
#pragma unroll
    for (i32 k = 0; k < N / 2; k++)
      ((u32*)&x)[k] = larger_pair(((const u32*)&a)[k], ((const u32*)&b)[k], E());
  } else {
#pragma unroll
    for (i32 k = 0; k < N; k++) x.v[k] = larger(a.v[k], b.v[k]);
  }
  return x;
}

INLINE A start_of() { return MODE == 0 ? -(A)INF_f : (A)0; }
INLINE A joined(A held, A x) { return MODE == 0 ? larger(held, x) : held + x; }

INLINE i32 inside(i32 first, i32 window, i64 size) {
  const i32 low = first < 0 ? 0 : first;
  const i32 high = first + window < (i32)size ? first + window : (i32)size;
  return high - low;
}
// The divisor of the window at (d, h, w).
INLINE A elements_of(const Sizes& size, i32 d, i32 h, i32 w) {
  if (MODE == 3) return (A)1;
  if (MODE != 2) return (A)(WD * WH * WW);
  return (A)(inside(d * SD - PD, WD, size.d) * inside(h * SH - PH, WH, size.h) *
             inside(w * SW - PW, WW, size.w));
}
INLINE bool within(i32 at, i64 size) { return (u32)at < (u32)size; }

// The windows over an element: (position + padding) / stride and the DEEP - 1 before it.
#define DEEP_D ((WD + SD - 1) / SD)
#define DEEP_H ((WH + SH - 1) / SH)
#define DEEP_W ((WW + SW - 1) / SW)

// The columns and lines of the windows of the ROWS by STRIP results that a thread computes.
#define SPAN ((STRIP - 1) * SW + WW)
#define LINES ((ROWS - 1) * SH + WH)
// The depth, line or column that is read for `at`. CLAMPED: for a maximum, elements outside are
// replaced by the nearest one inside. Every window has one inside, so this keeps the maximum.
INLINE i32 clamped(i32 at, i64 size) { return at < 0 ? 0 : at < (i32)size ? at : (i32)size - 1; }
#define PLACE(AT, SIZE) (CLAMPED ? clamped(AT, SIZE) : (AT))
