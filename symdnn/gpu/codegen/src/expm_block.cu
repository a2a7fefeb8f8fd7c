// The exponential of matrices that fit into shared memory, five times: a block for each, by Pade
// approximation (of degree 13 with HIGH, else 7) with scaling and squaring, as expm.cu does for
// larger ones. T is float or double, and a complex number PARTS = 2 of them. TILE and SIDE are the
// most elements and rows.

typedef NumberOf<T, PARTS> Number;

struct Parameters {
  const Number* x;
  Number* y;
  i64 count, n;
  // The largest norm that is not scaled, and the factors of all powers.
  double bound, factors[14];
};

constexpr i32 OWN = (TILE + THREADS - 1) / THREADS;

// out = a @ b, plus factors of the identity and three matrices; out may be a or b.
INLINE void product(Number* out, const Number* a, const Number* b, i32 n, const Number* second,
                    const Number* fourth, const Number* sixth, const double* factor) {
  Number sums[OWN];
#pragma unroll
  for (i32 m = 0; m < OWN; m++) {
    const i32 e = threadIdx.x + m * THREADS, i = e / n, j = e % n;
    sums[m] = {};
    if (e >= n * n) continue;
    for (i32 k = 0; k < n; k++) sums[m] = sum(sums[m], times(a[i * n + k], b[k * n + j]));
    if (factor == 0) continue;
    sums[m].part[0] += i == j ? (T)factor[0] : (T)0;
    sums[m] = sum(sums[m], scaled(second[e], (T)factor[2]));
    sums[m] = sum(sums[m], scaled(fourth[e], (T)factor[4]));
    sums[m] = sum(sums[m], scaled(sixth[e], (T)factor[6]));
  }
  __syncthreads();
#pragma unroll
  for (i32 m = 0; m < OWN; m++)
    if ((i32)threadIdx.x + m * THREADS < n * n) out[threadIdx.x + m * THREADS] = sums[m];
  __syncthreads();
}

// p becomes anything, q the solution of p y = q: elimination with the largest pivots.
INLINE void solve(Number* p, Number* q, i32 n, Number* top, Number* kept, Number* column) {
  for (i32 k = 0; k < n; k++) {
    i32 pivot = k;
    T most = -1;
    for (i32 i = k; i < n; i++) {
      const T size = squared_size(p[i * n + k]);
      if (size > most) {
        most = size;
        pivot = i;
      }
    }
    const Number over = scaled(conjugate(p[pivot * n + k]), 1 / most);
    for (i32 e = threadIdx.x; e < 2 * n; e += THREADS) {
      Number* half = e < n ? p : q;
      const i32 j = e < n ? e : e - n;
      top[e] = times(half[pivot * n + j], over);
      kept[e] = half[k * n + j];
    }
    for (i32 i = threadIdx.x; i < n; i += THREADS) column[i] = p[(i == pivot ? k : i) * n + k];
    __syncthreads();
    for (i32 e = threadIdx.x; e < 2 * n * n; e += THREADS) {
      Number* half = e < n * n ? p : q;
      const i32 at = e < n * n ? e : e - n * n, i = at / n, j = at % n, beside = e < n * n ? j : n + j;
      const Number old = i == pivot ? kept[beside] : half[at];
      half[at] = i == k ? top[beside] : difference(old, times(column[i], top[beside]));
    }
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
expm_block(const __grid_constant__ Parameters p) {
  __shared__ Number a[TILE], second[TILE], fourth[TILE], sixth[TILE], odd[TILE];
  __shared__ Number top[2 * SIDE], kept[2 * SIDE], column[SIDE];
  __shared__ T norms[SIDE];
  const i32 n = (i32)p.n, size = n * n;
  const double* f = p.factors;
  for (i64 b = blockIdx.x; b < p.count; b += gridDim.x) {
    __syncthreads();
    for (i32 e = threadIdx.x; e < size; e += THREADS) a[e] = p.x[b * size + e];
    __syncthreads();
    for (i32 j = threadIdx.x; j < n; j += THREADS) {
      norms[j] = 0;
      for (i32 i = 0; i < n; i++) norms[j] += size_of(a[i * n + j]);
    }
    __syncthreads();
    T most = 0;
    for (i32 j = 0; j < n; j++)
      if (!(norms[j] <= most)) most = norms[j];  // a NaN stays, or is in a later sum
    bool finite = true;
    for (i32 j = 0; j < n; j++) finite = finite && norms[j] - norms[j] == 0;
    i32 squarings = 0;
    if (finite && most > 0) frexp((double)most / p.bound, &squarings);
    if (squarings < 0) squarings = 0;
    for (i32 e = threadIdx.x; e < size; e += THREADS)
      a[e] = finite ? scaled(a[e], (T)ldexp(1.0, -squarings)) : Number{};
    __syncthreads();
    product(second, a, a, n, 0, 0, 0, 0);
    product(fourth, second, second, n, 0, 0, 0, 0);
    product(sixth, second, fourth, n, 0, 0, 0, 0);
    // The sums of odd powers but one, and of even ones.
    for (i32 e = threadIdx.x; e < size; e += THREADS) {
      const i32 from = HIGH ? 8 : 0;
      Number low = scaled(second[e], (T)f[from + 1 + (HIGH ? 0 : 2)]);
      low = sum(low, scaled(fourth[e], (T)f[from + 3 + (HIGH ? 0 : 2)]));
      low = sum(low, scaled(sixth[e], (T)f[from + 5 + (HIGH ? 0 : 2)]));
      if (!HIGH && e / n == e % n) low.part[0] += (T)f[1];
      odd[e] = low;
    }
    __syncthreads();
    if (HIGH) product(odd, sixth, odd, n, second, fourth, sixth, f + 1);
    product(odd, a, odd, n, 0, 0, 0, 0);
    for (i32 e = threadIdx.x; e < size; e += THREADS) {
      const i32 from = HIGH ? 8 : 2;
      Number even = scaled(second[e], (T)f[from]);
      even = sum(even, scaled(fourth[e], (T)f[from + 2]));
      even = sum(even, scaled(sixth[e], (T)f[from + 4]));
      if (!HIGH && e / n == e % n) even.part[0] += (T)f[0];
      a[e] = even;
    }
    __syncthreads();
    if (HIGH) product(a, sixth, a, n, second, fourth, sixth, f);
    for (i32 e = threadIdx.x; e < size; e += THREADS) {
      second[e] = difference(a[e], odd[e]);
      fourth[e] = sum(a[e], odd[e]);
    }
    __syncthreads();
    solve(second, fourth, n, top, kept, column);
    for (i32 k = 0; k < squarings; k++) product(fourth, fourth, fourth, n, 0, 0, 0, 0);
    for (i32 e = threadIdx.x; e < size; e += THREADS) {
      Number y = fourth[e];
      for (i32 k = 0; !finite && k < PARTS; k++) y.part[k] = (T)NAN_d;
      p.y[b * size + e] = y;
    }
  }
}
