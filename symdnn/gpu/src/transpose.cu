// A copy that exchanges the dense dimension: source and target each have step 1 along another one.
// Tiles of 32 by 32 pass through shared memory, so that both are read and written in rows.

struct Parameters {
  const T* x;
  T* y;
  const i32* guard;
  i64 rows, columns, batches;   // y is dense along columns, x along rows
  i64 x_column, y_row;
  i64 size[D], x_batch[D], y_batch[D];
};

extern "C" __global__ void __launch_bounds__(256) transpose(
    const __grid_constant__ Parameters p) {
  __shared__ T tile[32][33];
  if (GUARDED && *p.guard != 0) return;
  const i64 across = (p.columns + 31) / 32, down = (p.rows + 31) / 32;
  const i64 tiles = across * down * p.batches;
  const i32 lane = threadIdx.x, part = threadIdx.y;
  for (i64 n = blockIdx.x; n < tiles; n += gridDim.x) {
    const i64 batch = n / (across * down), in_batch = n - batch * (across * down);
    const i64 row = in_batch / across * 32, column = in_batch % across * 32;
    const T* x = p.x + place((u64)batch, p.size, p.x_batch);
    T* y = p.y + place((u64)batch, p.size, p.y_batch);
    for (i32 k = part; k < 32; k += 8)
      if (row + lane < p.rows && column + k < p.columns)
        tile[k][lane] = x[(column + k) * p.x_column + row + lane];
    __syncthreads();
    for (i32 k = part; k < 32; k += 8)
      if (row + k < p.rows && column + lane < p.columns)
        y[(row + k) * p.y_row + column + lane] = tile[lane][k];
    __syncthreads();
  }
}
