// Softmax and log-softmax of values in registers. KIND 0: softmax, 1: log-softmax, 2: gradient of
// 0, 3: gradient of 1. T is the type of elements, W the type of computation.
#define GRADIENT (KIND >= 2)
// The number of partial sums of a thread, so that an addition need not wait for the one before.
#define SUMS 4

// The elements of one row in a thread; JOIN reduces over the lanes of the row.
template <class JOIN, int HELD, int OTHER>
INLINE void softmax_of(W (&x)[HELD], const W (&dy)[OTHER], i32 count) {
#if KIND < 2
  W top = -(W)INF_f;
#pragma unroll
  for (i32 k = 0; k < HELD; k++)
    if (k < count) top = Larger::of(top, x[k]);
  top = JOIN::largest(top);
  W totals[SUMS] = {};
#pragma unroll
  for (i32 k = 0; k < HELD; k++) {
    if (k < count) {
      x[k] -= top;
      const W e = Exponential<T>::of(x[k]);
      totals[k % SUMS] += e;
      if (KIND == 0) x[k] = e;
    }
  }
  const W total = JOIN::sum((totals[0] + totals[1]) + (totals[2] + totals[3]));
  const W scale = KIND == 0 ? (W)1 / total : s_log(total);
#pragma unroll
  for (i32 k = 0; k < HELD; k++) x[k] = KIND == 0 ? x[k] * scale : x[k] - scale;
#else
  W totals[SUMS] = {};
#pragma unroll
  for (i32 k = 0; k < HELD; k++)
    if (k < count) totals[k % SUMS] += KIND == 2 ? x[k] * dy[k] : dy[k];
  const W total = JOIN::sum((totals[0] + totals[1]) + (totals[2] + totals[3]));
#pragma unroll
  for (i32 k = 0; k < HELD; k++)
    x[k] = KIND == 2 ? x[k] * (dy[k] - total) : dy[k] - Exponential<T>::of(x[k]) * total;
#endif
}

struct Alone {
  static __device__ __forceinline__ W largest(W x) { return x; }
  static __device__ __forceinline__ W sum(W x) { return x; }
};
