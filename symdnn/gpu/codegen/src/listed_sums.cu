// Sums of listed elements: each element of the result adds those of x that the tables of AXES axes
// name, in their order. A row of a table has `terms` places along its axis of x, -1 behind the last.
// Offsets count vectors of V elements.

struct Parameters {
  const T* x;
  T* y;
  i64 count;
  const i32* table[AXES];
  i64 terms[AXES], term_step[AXES], jump[AXES];
  i64 size[D], x_step[D], y_step[D];
  i64 row_step[AXES][D];
};

extern "C" __global__ void __launch_bounds__(256) listed_sums(
    const __grid_constant__ Parameters p) {
  for (COUNT n = (COUNT)global_thread(); n < (COUNT)p.count; n += (COUNT)thread_count()) {
    const i64 base = place(n, p.size, p.x_step);
    const i32* row[AXES];
    i32 found[AXES], all = 1;
#pragma unroll
    for (int a = 0; a < AXES; a++) {
      row[a] = p.table[a] + place(n, p.size, p.row_step[a]);
      found[a] = 0;
      while (found[a] < (i32)p.terms[a] && row[a][found[a] * p.term_step[a]] >= 0) found[a]++;
      all *= found[a];
    }
    Vec<A, V> sum;
#pragma unroll
    for (int k = 0; k < V; k++) sum.v[k] = (A)0;
    for (i32 c = 0; c < all; c++) {
      i64 at = base;
      i32 rest = c;
#pragma unroll
      for (int a = AXES - 1; a >= 0; a--) {
        at += row[a][rest % found[a] * p.term_step[a]] * p.jump[a];
        rest /= found[a];
      }
      const Vec<T, V> x = load<V>(p.x + at * V);
#pragma unroll
      for (int k = 0; k < V; k++) sum.v[k] += convert<A>(x.v[k]);
    }
    Vec<T, V> y;
#pragma unroll
    for (int k = 0; k < V; k++) y.v[k] = convert<T>(sum.v[k]);
    store<V>(p.y + place(n, p.size, p.y_step) * V, y);
  }
}
