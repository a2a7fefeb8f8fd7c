// A recursive filter along an axis: NB coefficients of x and NA of y. A thread has a chunk of a line.
//
// With HELD the last numbers are in registers; lines may be cut into chunks then. `ends` filters each
// chunk as if only zeros were before it, and finds what it makes of a 1 that was before it, `starts`
// makes of both what is before each chunk, and then `linear_filter` makes the results. Else a thread
// reads the last numbers from memory, and `totals` has those of y.

struct Parameters {
  const X *x, *b, *a;
  X* y;
  double *states, *of_ones, *totals;
  i64 lines, length, chunks, part, nb, na, x_step, b_step, a_step, y_step;
  i64 size[D], x_line[D], y_line[D];
};

#if HELD
// The last numbers of x and y, the newest first.
struct Last {
  double x[NB + 1], y[NA + 1];
};

struct Coefficients {
  double b[NB + 1], a[NA + 1];
};

INLINE Coefficients coefficients(const Parameters& p) {
  Coefficients c;
  for (int k = 0; k < NB; k++) c.b[k] = convert<double>(p.b[k * p.b_step]);
  for (int k = 0; k < NA; k++) c.a[k] = convert<double>(p.a[k * p.a_step]);
  return c;
}

// Before element i of a line.
INLINE Last before(const Parameters& p, const X* x, i64 i) {
  Last s;
  for (int k = 0; k < NB; k++) s.x[k] = i > k ? convert<double>(x[(i - 1 - k) * p.x_step]) : 0;
  for (int k = 0; k < NA; k++) s.y[k] = 0;
  return s;
}

INLINE double filtered(const Coefficients& c, Last& s, double x) {
#pragma unroll
  for (int k = NB - 1; k > 0; k--) s.x[k] = s.x[k - 1];
  s.x[0] = x;
  double total = 0;
#pragma unroll
  for (int k = 0; k < NB; k++) total += c.b[k] * s.x[k];
  // The newest result comes last, so that the next one waits for one product alone.
#pragma unroll
  for (int k = NA - 1; k >= 0; k--) total -= c.a[k] * s.y[k];
#pragma unroll
  for (int k = NA - 1; k > 0; k--) s.y[k] = s.y[k - 1];
  s.y[0] = total;
  return total;
}

// The last NA threads filter zeros behind a 1 at one of the NA last places.
extern "C" __global__ void __launch_bounds__(THREADS) ends(const __grid_constant__ Parameters p) {
  const Coefficients c = coefficients(p);
  const i64 all = p.lines * p.chunks;
  for (i64 n = global_thread(); n < all + NA; n += thread_count()) {
    if (n >= all) {
      Last s = before(p, p.x, 0);
      for (int k = 0; k < NA; k++) s.y[k] = k == n - all;
      for (i64 i = 0; i < p.part; i++) filtered(c, s, 0);
      for (int k = 0; k < NA; k++) p.of_ones[k * NA + (n - all)] = s.y[k];
      continue;
    }
    const i64 low = n % p.chunks * p.part;
    const i64 high = low + p.part < p.length ? low + p.part : p.length;
    const X* x = p.x + place((COUNT)(n / p.chunks), p.size, p.x_line);
    Last s = before(p, x, low);
    for (i64 i = low; i < high; i++) filtered(c, s, convert<double>(x[i * p.x_step]));
    for (int k = 0; k < NA; k++) p.states[n * NA + k] = s.y[k];
  }
}

// A block for each line.
extern "C" __global__ void __launch_bounds__(THREADS) starts(const __grid_constant__ Parameters p) {
  constexpr int HERE = 128;
  __shared__ double tile[HERE * (NA + 1)], matrix[NA * NA + 1];
  for (int k = threadIdx.x; k < NA * NA; k += THREADS) matrix[k] = p.of_ones[k];
  for (i64 n = blockIdx.x; n < p.lines; n += gridDim.x) {
    double* const states = p.states + n * p.chunks * NA;
    double last[NA + 1] = {};
    for (i64 c = 0; c < p.chunks; c += HERE) {
      const int count = (int)(p.chunks - c < HERE ? p.chunks - c : HERE) * NA;
      for (int k = threadIdx.x; k < count; k += THREADS) tile[k] = states[c * NA + k];
      __syncthreads();
      for (int at = 0; at < count && threadIdx.x == 0; at += NA) {
        double next[NA + 1];
        for (int k = 0; k < NA; k++) {
          next[k] = tile[at + k];
          for (int j = 0; j < NA; j++)
            if (last[j] != 0) next[k] += matrix[k * NA + j] * last[j];
        }
        for (int k = 0; k < NA; k++) {
          tile[at + k] = last[k];
          last[k] = next[k];
        }
      }
      __syncthreads();
      for (int k = threadIdx.x; k < count; k += THREADS) states[c * NA + k] = tile[k];
      __syncthreads();
    }
  }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) linear_filter(
    const __grid_constant__ Parameters p) {
#if HELD
  const Coefficients c = coefficients(p);
#endif
  for (i64 n = global_thread(); n < p.lines * p.chunks; n += thread_count()) {
    const i64 low = n % p.chunks * p.part;
    const i64 high = low + p.part < p.length ? low + p.part : p.length;
    const X* x = p.x + place((COUNT)(n / p.chunks), p.size, p.x_line);
    X* y = p.y + place((COUNT)(n / p.chunks), p.size, p.y_line);
#if HELD
    Last s = before(p, x, low);
    if (p.chunks > 1)
      for (int k = 0; k < NA; k++) s.y[k] = p.states[n * NA + k];
    for (i64 i = low; i < high; i++)
      y[i * p.y_step] = convert<X>(filtered(c, s, convert<double>(x[i * p.x_step])));
#else
    double* const totals = p.totals + n / p.chunks * p.length;
    for (i64 i = low; i < high; i++) {
      double total = 0;
      for (i64 k = 0; k < p.nb && k <= i; k++)
        total += convert<double>(p.b[k * p.b_step]) * convert<double>(x[(i - k) * p.x_step]);
      for (i64 k = p.na < i ? p.na : i; k > 0; k--)
        total -= convert<double>(p.a[(k - 1) * p.a_step]) * totals[i - k];
      if (p.na > 0) totals[i] = total;
      y[i * p.y_step] = convert<X>(total);
    }
#endif
  }
}
