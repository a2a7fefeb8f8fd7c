// y = `alpha` times the sum of `parts` matrices, plus `beta` times z. A matrix has `columns` of `stack`
// times `rows` numbers; y and z are stacks of matrices with columns of `rows` numbers.
//
// Of a block's threads GROUPS add parts of one element, in an order that never varies.

#define WIDE (256 / GROUPS)

struct Parameters {
  const float* x;
  float* y;
  const float* z;
  i64 parts, rows, stack, columns, step, stacked, z_step, z_stacked;
  double alpha, beta;
};

extern "C" __global__ void __launch_bounds__(256) add_parts(const __grid_constant__ Parameters p) {
  __shared__ float held[GROUPS][WIDE];
  const u32 rows = (u32)p.rows, line = rows * (u32)p.stack, size = line * (u32)p.columns;
  const u32 lane = threadIdx.x % WIDE, group = threadIdx.x / WIDE;
  for (u32 first = blockIdx.x * WIDE; first < size; first += gridDim.x * WIDE) {
    const u32 i = first + lane;
    float sum = 0;
    if (i < size)
#pragma unroll 8
      for (i64 j = group; j < p.parts; j += GROUPS) sum += p.x[j * size + i];
    if (GROUPS > 1) {
      held[group][lane] = sum;
      __syncthreads();
      if (group == 0)
#pragma unroll
        for (u32 g = 1; g < GROUPS; g++) sum += held[g][lane];
      __syncthreads();
    }
    if (group > 0 || i >= size) continue;
    const u32 column = i / line, at = i - column * line, image = at / rows;
    sum *= (float)p.alpha;
    const i64 row = at - image * rows;
    if (p.beta != 0.)
      sum += (float)p.beta * p.z[image * p.z_stacked + column * p.z_step + row];
    p.y[image * p.stacked + column * p.step + row] = sum;
  }
}
