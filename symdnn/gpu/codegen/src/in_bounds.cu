// Copies an index array; an index that is out of range for an axis of p.limit is reported.

struct Parameters { const T* x; T* y; i64 count, limit; i32* error_word; i64 node; };

extern "C" __global__ void __launch_bounds__(256) in_bounds(const __grid_constant__ Parameters p) {
  for (i64 n = global_thread(); n < p.count; n += thread_count()) {
    const T value = p.x[n];
    const bool large = value > 0 && (u64)value > 0x7fffffffffffffffull;
    const i64 k = large ? 0x7fffffffffffffffll : (i64)value;
    if (k < -p.limit || k >= p.limit) report(p.error_word, INDEX_ERROR, p.node, k, p.limit);
    p.y[n] = value;
  }
}
