// y = the sum of `parts` matrices, plus `beta` times y. A matrix has `columns` of `stack` times `rows`
// numbers; y is a stack of matrices with columns of `rows` numbers.

struct Parameters {
  const float* x;
  float* y;
  i64 parts, rows, stack, columns, step, stacked;
  double beta;
};

extern "C" __global__ void __launch_bounds__(256) add_parts(const __grid_constant__ Parameters p) {
  const u32 rows = (u32)p.rows, line = rows * (u32)p.stack, size = line * (u32)p.columns;
  for (u32 i = (u32)global_thread(); i < size; i += (u32)thread_count()) {
    float sum = 0.f;
    for (i64 j = 0; j < p.parts; j++) sum += p.x[j * size + i];
    const u32 column = i / line, at = i - column * line, image = at / rows;
    float* y = p.y + image * p.stacked + column * p.step + (at - image * rows);
    *y = p.beta == 0. ? sum : sum + (float)p.beta * *y;
  }
}
