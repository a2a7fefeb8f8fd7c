// Softmax of contiguous rows that are too long for registers: a block of LANES threads reads a row
// twice, in vectors of V elements. The second pass goes backwards, so that it finds in the caches
// what was read last. The elements before a row's first whole vector, and after the last one, are
// read one by one.

struct Parameters { const T* x; const T* dy; T* y; i64 rows, length; };

struct Join {
  static __device__ __forceinline__ W largest(W x) { return together<Larger, LANES>(x); }
  static __device__ __forceinline__ W sum(W x) { return together<Added, LANES>(x); }
};

// A row's result from its first pass.
struct Row { W top, total; };

#if KIND < 2
// The sum of exponentials is relative to the largest element so far.
template <int N> INLINE void take(Row& row, const Vec<T, N>& x, const Vec<T, N>&) {
  W top = convert<W>(x.v[0]);
#pragma unroll
  for (i32 k = 1; k < N; k++) top = Larger::of(top, convert<W>(x.v[k]));
  if (top > row.top) {
    row.total *= Exponential<T>::of(row.top - top);
    row.top = top;
  }
  const W shift = row.top == -(W)INF_f ? (W)0 : row.top;
#pragma unroll
  for (i32 k = 0; k < N; k++) row.total += Exponential<T>::of(convert<W>(x.v[k]) - shift);
}
INLINE Row joined(const Row& row) {
  const W top = Join::largest(row.top);
  const W part = row.top == top ? row.total : row.total * Exponential<T>::of(row.top - top);
  const W total = Join::sum(part);
  return {top, KIND == 0 ? (W)1 / total : s_log(total)};
}
#else
template <int N> INLINE void take(Row& row, const Vec<T, N>& x, const Vec<T, N>& dy) {
#pragma unroll
  for (i32 k = 0; k < N; k++)
    row.total += KIND == 2 ? convert<W>(x.v[k]) * convert<W>(dy.v[k]) : convert<W>(dy.v[k]);
}
INLINE Row joined(const Row& row) { return {(W)0, Join::sum(row.total)}; }
#endif

template <int N>
INLINE Vec<T, N> result(const Row& row, const Vec<T, N>& x, const Vec<T, N>& dy) {
  Vec<T, N> y;
#pragma unroll
  for (i32 k = 0; k < N; k++) {
    const W v = convert<W>(x.v[k]), d = GRADIENT ? convert<W>(dy.v[k]) : (W)0;
    y.v[k] = convert<T>(KIND == 0   ? Exponential<T>::of(v - row.top) * row.total
                        : KIND == 1 ? v - row.top - row.total
                        : KIND == 2 ? v * (d - row.total)
                                    : d - Exponential<T>::of(v) * row.total);
  }
  return y;
}

extern "C" __global__ void __launch_bounds__(LANES) softmax_long(
    const __grid_constant__ Parameters p) {
  const i32 lane = threadIdx.x;
  for (i64 number = blockIdx.x; number < p.rows; number += gridDim.x) {
    const i64 begin = number * p.length;
    const i32 whole = (i32)(-begin & (V - 1)), head = whole < p.length ? whole : (i32)p.length;
    const i32 vectors = (i32)((p.length - head) / V), edge = (i32)p.length - vectors * V;
    const T* x = p.x + begin;
    const T* dy = p.dy + begin;
    T* y = p.y + begin;
    // The elements outside of whole vectors, by their lanes.
    const i32 own = lane < head ? lane : head + vectors * V + lane - head;
    Row row = {-(W)INF_f, (W)0};
    if (lane < edge) take(row, load<1>(x + own), load<1>((GRADIENT ? dy : x) + own));
    for (i32 i = lane; i < vectors; i += BATCH * LANES) {
      Vec<T, V> raw[BATCH], draw[BATCH];
#pragma unroll
      for (i32 b = 0; b < BATCH; b++) {
        const i32 at = i + b * LANES < vectors ? i + b * LANES : i;
        raw[b] = load<V>(x + head + at * V);
        if (GRADIENT) draw[b] = load<V>(dy + head + at * V);
      }
#pragma unroll
      for (i32 b = 0; b < BATCH; b++)
        if (b == 0 || i + b * LANES < vectors) take(row, raw[b], draw[b]);
    }
    row = joined(row);
    for (i32 i = vectors - 1 - lane; i >= 0; i -= BATCH * LANES) {
      Vec<T, V> raw[BATCH], draw[BATCH];
#pragma unroll
      for (i32 b = 0; b < BATCH; b++) {
        const i32 at = i >= b * LANES ? i - b * LANES : i;
        raw[b] = load<V>(x + head + at * V);
        if (GRADIENT) draw[b] = load<V>(dy + head + at * V);
      }
#pragma unroll
      for (i32 b = 0; b < BATCH; b++)
        if (i >= b * LANES) store(y + head + (i - b * LANES) * V, result(row, raw[b], draw[b]));
    }
    if (lane < edge)
      store(y + own, result(row, load<1>(x + own), load<1>((GRADIENT ? dy : x) + own)));
  }
}
