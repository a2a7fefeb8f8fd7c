// Insertion indices in a sorted vector: before equal elements, or with RIGHT after them. NaN is
// last.

struct Parameters {
  const T* sorted;
  const T* x;
  i64* y;
  i64 length, sorted_step, count;
  i64 size[D], x_step[D];
};

INLINE bool below(K a, K b) { return a < b || (b != b && a == a); }

extern "C" __global__ void __launch_bounds__(256) search(const __grid_constant__ Parameters p) {
  for (i64 n = global_thread(); n < p.count; n += thread_count()) {
    const K v = convert<K>(p.x[place((COUNT)n, p.size, p.x_step)]);
    i64 low = 0, high = p.length;
    while (low < high) {
      const i64 middle = (low + high) / 2;
      const K at = convert<K>(p.sorted[middle * p.sorted_step]);
      if (RIGHT ? !below(v, at) : below(at, v)) low = middle + 1;
      else high = middle;
    }
    p.y[n] = low;
  }
}
