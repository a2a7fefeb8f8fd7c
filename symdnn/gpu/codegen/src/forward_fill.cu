// Gaps along an axis filled by the last number before, a thread for each line.

struct Parameters {
  const X* x;
  X* y;
  i64 lines, length, x_step, y_step;
  i64 size[D], x_line[D], y_line[D];
};

extern "C" __global__ void __launch_bounds__(THREADS) forward_fill(
    const __grid_constant__ Parameters p) {
  for (i64 n = global_thread(); n < p.lines; n += thread_count()) {
    const X* x = p.x + place((COUNT)n, p.size, p.x_line);
    X* y = p.y + place((COUNT)n, p.size, p.y_line);
    X last = x[0];
    for (i64 k = 0; k < p.length; k++) {
      X value = x[k * p.x_step];
      if (!s_isnan(convert<float>(value))) last = value;  // 16-bit types have no operators
      y[k * p.y_step] = last;
    }
  }
}
