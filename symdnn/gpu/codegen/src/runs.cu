// How many equal elements end at each element of a line; a thread for each line.

struct Parameters {
  const X* x;
  i64* y;
  i64 lines, length, x_step, y_step;
  i64 size[D], x_line[D], y_line[D];
};

extern "C" __global__ void __launch_bounds__(256) run_length(
    const __grid_constant__ Parameters p) {
  for (i64 n = global_thread(); n < p.lines; n += thread_count()) {
    const X* x = p.x + place((COUNT)n, p.size, p.x_line);
    i64* y = p.y + place((COUNT)n, p.size, p.y_line);
    i64 count = 0;
    for (i64 k = 0; k < p.length; k++) {
      count = k > 0 && x[k * p.x_step] == x[(k - 1) * p.x_step] ? count + 1 : 1;
      y[k * p.y_step] = count;
    }
  }
}
