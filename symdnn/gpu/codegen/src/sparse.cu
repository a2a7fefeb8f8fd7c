// Products of a matrix in compressed rows with dense ones. T is the elements' type, A that of sums,
// I that of indices. LANES threads (a power of two up to a warp) are side by side on the columns of
// a dense matrix; the other threads of the warp take other elements of the row, and their sums are
// added in a fixed order. Places that no matrix has are reported, and not read.

struct Parameters {
  const T* data;
  const I* indices;
  const I* indptr;
  const T* u;  // of samples: the rows. Of a product: the dense operand
  const T* v;  // of samples: the columns
  T* y;
  i64 rows, count, minor, width, node;
  i32* error_word;
};

#define GROUPS (32 / LANES)

INLINE A of_warp(A total) {
#pragma unroll
  for (i32 step = LANES; step < 32; step *= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
  return total;
}

INLINE A of_lanes(A total) {
#pragma unroll
  for (i32 step = 1; step < LANES; step *= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
  return total;
}

INLINE bool has_column(const Parameters& p, i64 column) {
  if (column >= 0 && column < p.minor) return true;
  report(p.error_word, INDEX_ERROR, p.node, column, p.minor);
  return false;
}

// A warp for each row and LANES columns of the result.
extern "C" __global__ void __launch_bounds__(256) sparse_dot(
    const __grid_constant__ Parameters p) {
  const i32 lane = threadIdx.x % 32;
  const i64 warps = thread_count() / 32, rounds = (p.rows + warps - 1) / warps;
  const i64 parts = (p.width + LANES - 1) / LANES, turns = (parts + gridDim.y - 1) / gridDim.y;
  // Threads of a block stay together, though some of them have no row or column.
  for (i64 n = 0; n < rounds * turns; n++) {
    const i64 row = global_thread() / 32 + n / turns * warps;
    const i64 column = (n % turns * gridDim.y + blockIdx.y) * LANES + lane % LANES;
    i64 begin = 0, end = 0;
    if (row < p.rows) begin = (i64)p.indptr[row], end = (i64)p.indptr[row + 1];
    if (begin < 0 || begin > end || end > p.count) {
      if (lane == 0) report(p.error_word, INDEX_ERROR, p.node, end, p.count);
      begin = end = 0;
    }
    A total = (A)0;
    for (i64 k = begin + lane / LANES; k < end; k += GROUPS) {
      const i64 at = (i64)p.indices[k];
      if (has_column(p, at) && column < p.width)
        total += convert<A>(p.data[k]) * convert<A>(p.u[at * p.width + column]);
    }
    total = of_warp(total);
    if (row < p.rows && lane < LANES && column < p.width) p.y[row * p.width + column] = convert<T>(total);
  }
}

// LANES threads for each element, which find its row by binary search.
extern "C" __global__ void __launch_bounds__(256) sampled_dot(
    const __grid_constant__ Parameters p) {
  const i32 lane = threadIdx.x % LANES;
  const i64 groups = thread_count() / LANES;
  // Threads of a block stay together, though some of them have no element.
  const i64 rounds = (p.count + groups - 1) / groups;
  for (i64 n = 0; n < rounds; n++) {
    const i64 k = global_thread() / LANES + n * groups;
    A total = (A)0;
    if (k < p.count) {
      i64 low = 0, high = p.rows;  // the last row that begins at k or before
      while (low + 1 < high) {
        const i64 middle = (low + high) / 2;
        if ((i64)p.indptr[middle] <= k) low = middle;
        else high = middle;
      }
      const i64 column = (i64)p.indices[k];
      if (has_column(p, column))
        for (i64 e = lane; e < p.width; e += LANES)
          total += convert<A>(p.u[low * p.width + e]) * convert<A>(p.v[column * p.width + e]);
    }
    total = of_lanes(total);
    if (k < p.count && lane == 0) p.y[k] = convert<T>(total);
  }
}
