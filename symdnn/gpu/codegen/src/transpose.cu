// A copy between layouts whose contiguous dimensions (stride 1) differ. A thread transposes a block
// of 4 by 4 in registers. Tiles of 4 A rows by 4 B columns pass through shared memory, so that
// source and target are accessed in rows, four elements at a time if they are aligned (READ,
// WRITE). The position of a group of columns in shared memory depends on the row, which avoids bank
// conflicts.

struct Parameters {
  const T* x;
  T* y;
  const i32* guard;
  i64 rows, columns, batches;   // y is dense along columns, x along rows
  i64 x_column, y_row;
  i64 size[D], x_batch[D], y_batch[D];
};

INLINE i32 at(i32 row, i32 group) {
  return row * B + (group ^ ((row >> 2) & (B - 1)));
}

extern "C" __global__ void __launch_bounds__(256) transpose(
    const __grid_constant__ Parameters p) {
  __shared__ Vec<T, 4> tile[4 * A * B];
  if (GUARDED && *p.guard != 0) return;
  const i64 across = (p.columns + 4 * B - 1) / (4 * B), down = (p.rows + 4 * A - 1) / (4 * A);
  const i64 tiles = across * down * p.batches;
  const i32 a = threadIdx.x % A, b = threadIdx.x / A;  // which block this thread reads
  const i32 group = threadIdx.x % B, first = threadIdx.x / B;  // what it writes
  for (i64 n = blockIdx.x; n < tiles; n += gridDim.x) {
    const i64 batch = n / (across * down), in_batch = n - batch * (across * down);
    const i64 row = in_batch / across * (4 * A), column = in_batch % across * (4 * B);
    const T* x = p.x + place((u64)batch, p.size, p.x_batch);
    T* y = p.y + place((u64)batch, p.size, p.y_batch);
    const i64 r = row + 4 * a, c = column + 4 * b;
    Vec<T, 4> read[4];
#pragma unroll
    for (i32 j = 0; j < 4; j++) {
      if (READ) {
        if (r < p.rows && c + j < p.columns) read[j] = load<4>(x + (c + j) * p.x_column + r);
      } else {
#pragma unroll
        for (i32 k = 0; k < 4; k++)
          if (r + k < p.rows && c + j < p.columns) read[j].v[k] = x[(c + j) * p.x_column + r + k];
      }
    }
    __syncthreads();  // the tile before has been written
#pragma unroll
    for (i32 k = 0; k < 4; k++) {
      Vec<T, 4> turned;
#pragma unroll
      for (i32 j = 0; j < 4; j++) turned.v[j] = read[j].v[k];
      tile[at(4 * a + k, b)] = turned;
    }
    __syncthreads();
    const i64 to = column + 4 * group;
#pragma unroll
    for (i32 k = 0; k < 4; k++) {
      const i32 own = first + k * (256 / B);
      const Vec<T, 4> out = tile[at(own, group)];
      if (row + own >= p.rows) continue;
      T* line = y + (row + own) * p.y_row;
      if (WRITE) {
        if (to < p.columns) store(line + to, out);
      } else {
#pragma unroll
        for (i32 j = 0; j < 4; j++)
          if (to + j < p.columns) line[to + j] = out.v[j];
      }
    }
  }
}
