// Copies an index array; an index that is out of range for an axis of p.limit is reported. VEC
// indices are one access. Without WRITES the copy is made already, and is only looked at.

struct Parameters { const T* x; T* y; i64 count, limit; i32* error_word; i64 node; };

INLINE void check(const Parameters& p, T value) {
  const bool large = value > 0 && (u64)value > 0x7fffffffffffffffull;
  const i64 k = large ? 0x7fffffffffffffffll : (i64)value;
  if (k < -p.limit || k >= p.limit) report(p.error_word, INDEX_ERROR, p.node, k, p.limit);
}

extern "C" __global__ void __launch_bounds__(256) in_bounds(const __grid_constant__ Parameters p) {
  const i64 vectors = p.count / VEC;
  for (i64 n = global_thread(); n < vectors; n += thread_count()) {
    const Vec<T, VEC> values = load<VEC>(p.x + n * VEC);
#pragma unroll
    for (i32 v = 0; v < VEC; v++) check(p, values.v[v]);
    if (WRITES) store(p.y + n * VEC, values);
  }
  for (i64 n = vectors * VEC + global_thread(); n < p.count; n += thread_count()) {
    check(p, p.x[n]);
    if (WRITES) p.y[n] = p.x[n];
  }
}
