// What pooling kernels share. Windows of WD by WH by WW elements (images have WD = 1), strides SD,
// SH, SW, padding PD, PH, PW. MODE 0: maximum, 1: mean with padding, 2: mean without. T is the
// stored type, A that of the work.

struct Sizes { i64 d, h, w; };

// The larger of two; a NaN stays.
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

INLINE A start_of() { return MODE == 0 ? -(A)INF_f : (A)0; }
INLINE A joined(A held, A x) { return MODE == 0 ? larger(held, x) : held + x; }

INLINE i32 inside(i32 first, i32 window, i64 size) {
  const i32 low = first < 0 ? 0 : first;
  const i32 high = first + window < (i32)size ? first + window : (i32)size;
  return high - low;
}
// How many elements the window at (d, h, w) divides by.
INLINE A elements_of(const Sizes& size, i32 d, i32 h, i32 w) {
  if (MODE != 2) return (A)(WD * WH * WW);
  return (A)(inside(d * SD - PD, WD, size.d) * inside(h * SH - PH, WH, size.h) *
             inside(w * SW - PW, WW, size.w));
}
INLINE bool within(i32 at, i64 size) { return (u32)at < (u32)size; }

// The windows over an element: (place + padding) / stride and the DEEP - 1 before it.
#define DEEP_D ((WD + SD - 1) / SD)
#define DEEP_H ((WH + SH - 1) / SH)
#define DEEP_W ((WW + SW - 1) / SW)
