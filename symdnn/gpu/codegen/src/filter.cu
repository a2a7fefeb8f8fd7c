// A recursive filter along an axis, a thread for each line: NB coefficients of x and NA of y, the
// last of which are in registers.

struct Parameters {
  const X *x, *b, *a;
  X* y;
  i64 lines, length, x_step, b_step, a_step, y_step;
  i64 size[D], x_line[D], y_line[D];
};

extern "C" __global__ void __launch_bounds__(THREADS) linear_filter(
    const __grid_constant__ Parameters p) {
  double b[NB], a[NA + 1];
  for (int k = 0; k < NB; k++) b[k] = convert<double>(p.b[k * p.b_step]);
  for (int k = 0; k < NA; k++) a[k] = convert<double>(p.a[k * p.a_step]);
  for (i64 n = global_thread(); n < p.lines; n += thread_count()) {
    const X* x = p.x + place((COUNT)n, p.size, p.x_line);
    X* y = p.y + place((COUNT)n, p.size, p.y_line);
    double xs[NB] = {}, ys[NA + 1] = {};
    for (i64 i = 0; i < p.length; i++) {
#pragma unroll
      for (int k = NB - 1; k > 0; k--) xs[k] = xs[k - 1];
      xs[0] = convert<double>(x[i * p.x_step]);
      double total = 0;
#pragma unroll
      for (int k = 0; k < NB; k++) total += b[k] * xs[k];
      // The newest result comes last, so that the next one waits for one product alone.
#pragma unroll
      for (int k = NA - 1; k >= 0; k--) total -= a[k] * ys[k];
#pragma unroll
      for (int k = NA - 1; k > 0; k--) ys[k] = ys[k - 1];
      ys[0] = total;
      y[i * p.y_step] = convert<X>(total);
    }
  }
}
