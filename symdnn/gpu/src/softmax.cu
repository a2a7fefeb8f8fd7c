// Softmax and its kin on values in registers. KIND 0: softmax, 1: log-softmax, 2: gradient of 0,
// 3: gradient of 1. T is the type of elements, W that of the work.
#define GRADIENT (KIND >= 2)

// Elements of one row that a thread holds; the lanes of the row meet in JOIN.
template <class JOIN, int HELD, int OTHER>
INLINE void softmax_of(W (&x)[HELD], const W (&dy)[OTHER], i32 count) {
#if KIND < 2
  W top = -(W)INF_f;
#pragma unroll
  for (i32 k = 0; k < HELD; k++)
    if (k < count) top = x[k] > top ? x[k] : top;
  top = JOIN::largest(top);
  W total = 0;
#pragma unroll
  for (i32 k = 0; k < HELD; k++) {
    if (k < count) {
      x[k] -= top;
      const W e = Exponential<T>::of(x[k]);
      total += e;
      if (KIND == 0) x[k] = e;
    }
  }
  total = JOIN::sum(total);
  const W scale = KIND == 0 ? (W)1 / total : s_log(total);
#pragma unroll
  for (i32 k = 0; k < HELD; k++) x[k] = KIND == 0 ? x[k] * scale : x[k] - scale;
#else
  W total = 0;
#pragma unroll
  for (i32 k = 0; k < HELD; k++)
    if (k < count) total += KIND == 2 ? x[k] * dy[k] : dy[k];
  total = JOIN::sum(total);
#pragma unroll
  for (i32 k = 0; k < HELD; k++)
    x[k] = KIND == 2 ? x[k] * (dy[k] - total) : dy[k] - Exponential<T>::of(x[k]) * total;
#endif
}

struct Alone {
  static __device__ __forceinline__ W largest(W x) { return x; }
  static __device__ __forceinline__ W sum(W x) { return x; }
};
