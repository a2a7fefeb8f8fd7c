// QR factors of matrices that fit into shared memory, by Householder reflections: a block each.
// T is float or double, and a complex number PARTS = 2 of them. TILE and REFLECTIONS are the most
// elements of a matrix (or of its Q) and the most columns. Signs are LAPACK's (geqrf, orgqr).

typedef NumberOf<T, PARTS> Number;

struct Parameters {
  const Number* x;
  Number* q;
  Number* r;
  // Sizes of the matrices, columns of Q, which may be none, and rows of R.
  i64 count, rows, columns, made, kept;
};

// v y for columns `first` to `columns` of the tile: y -= factor * v * (v^H y), with v 1 at row
// `at`, and below it what column `at` holds. A warp takes a column.
INLINE void reflect(Number* tile, i64 rows, i64 first, i64 columns, i64 at, Number factor) {
  const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const Number* v = tile + at * rows;
  Number one = {};
  one.part[0] = 1;
  for (i64 base = first; base < columns; base += warps) {
    const bool live = base + warp < columns;
    Number* y = tile + (live ? base + warp : at) * rows;
    Number dot = {};
    for (i64 i = at + lane; live && i < rows; i += 32) {
      const Number more = times<true>(i == at ? one : v[i], y[i]);
      for (i32 k = 0; k < PARTS; k++) dot.part[k] += more.part[k];
    }
    for (i32 k = 0; k < PARTS; k++) dot.part[k] = together<Added, 32>(dot.part[k]);
    const Number by = times(factor, dot);
    for (i64 i = at + lane; live && i < rows; i += 32) {
      const Number less = times(i == at ? one : v[i], by);
      for (i32 k = 0; k < PARTS; k++) y[i].part[k] -= less.part[k];
    }
  }
}

extern "C" __global__ void __launch_bounds__(256) qr(const __grid_constant__ Parameters p) {
  __shared__ Number tile[TILE];
  __shared__ Number factors[REFLECTIONS];
  const i64 rows = p.rows, columns = p.columns;
  const i64 steps = rows < columns ? rows : columns;
  const i32 lane = threadIdx.x % 32;
  for (i64 b = blockIdx.x; b < p.count; b += gridDim.x) {
    __syncthreads();
    for (i64 n = threadIdx.x; n < rows * columns; n += blockDim.x)
      tile[n % columns * rows + n / columns] = p.x[b * rows * columns + n];
    __syncthreads();
    for (i64 j = 0; j < steps; j++) {
      Number* a = tile + j * rows;
      // The norm of the part below the diagonal, and of the whole, without overflow.
      T most = 0, sum = 0;
      for (i64 i = j + 1 + lane; i < rows; i += 32)
        for (i32 k = 0; k < PARTS; k++) most = Larger::of(most, s_abs(a[i].part[k]));
      most = together<Larger, 32>(most);
      for (i64 i = j + 1 + lane; i < rows && most > 0; i += 32)
        for (i32 k = 0; k < PARTS; k++) {
          const T x = a[i].part[k] / most;
          sum += x * x;
        }
      const T below = most * s_sqrt(together<Added, 32>(sum));
      const Number alpha = a[j];
      const bool none = below == 0 && (PARTS == 1 || alpha.part[PARTS - 1] == 0);
      T norm = below;
      for (i32 k = 0; k < PARTS; k++) norm = length(norm, alpha.part[k]);
      const T beta = alpha.part[0] < 0 ? norm : -norm;
      Number factor = {}, scale = {}, back = {};
      if (!none) {
        // 1 / (alpha - beta); alpha and beta have opposite signs.
        const T re = alpha.part[0] - beta, im = PARTS == 1 ? 0 : alpha.part[PARTS - 1];
        const T ratio = im / re, size = re + im * ratio;
        factor.part[0] = -re / beta;
        scale.part[0] = 1 / size;
        if (PARTS == 2) {
          factor.part[PARTS - 1] = -im / beta;
          scale.part[PARTS - 1] = -ratio / size;
        }
      }
      back = factor;
      if (PARTS == 2) back.part[PARTS - 1] = -factor.part[PARTS - 1];
      __syncthreads();
      if (threadIdx.x < 32 && !none) {
        for (i64 i = j + 1 + lane; i < rows; i += 32) a[i] = times(a[i], scale);
        if (lane == 0) {
          for (i32 k = 0; k < PARTS; k++) a[j].part[k] = k == 0 ? beta : 0;
        }
      }
      if (threadIdx.x == 0) factors[j] = factor;
      __syncthreads();
      reflect(tile, rows, j + 1, columns, j, back);
      __syncthreads();
    }
    Number zero = {}, one = {};
    one.part[0] = 1;
    for (i64 n = threadIdx.x; n < p.kept * columns; n += blockDim.x) {
      const i64 i = n / columns, j = n % columns;
      p.r[b * p.kept * columns + n] = i <= j ? tile[j * rows + i] : zero;
    }
    if (p.made == 0) continue;
    __syncthreads();
    for (i64 n = steps * rows + threadIdx.x; n < p.made * rows; n += blockDim.x)
      tile[n] = n / rows == n % rows ? one : zero;
    __syncthreads();
    for (i64 j = steps - 1; j >= 0; j--) {
      reflect(tile, rows, j + 1, p.made, j, factors[j]);
      __syncthreads();
      for (i64 i = threadIdx.x; i < rows; i += blockDim.x) {
        Number y = i < j ? zero : times(factors[j], i == j ? one : tile[j * rows + i]);
        for (i32 k = 0; k < PARTS; k++) y.part[k] = (i == j && k == 0) - y.part[k];
        tile[j * rows + i] = y;
      }
      __syncthreads();
    }
    for (i64 n = threadIdx.x; n < rows * p.made; n += blockDim.x)
      p.q[b * rows * p.made + n] = tile[n % p.made * rows + n / p.made];
  }
}
