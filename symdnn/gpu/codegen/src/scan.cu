// Running sums, products, extremes and linear recurrences along one axis, in either direction (a
// reversed line comes with a negative step). X is the input's type, Y the result's, W that of the
// work. KIND 0: sum, 1: product, 2: s = a s + b, 3: largest, 4: smallest. EXCLUSIVE leaves each
// element out of its own result.

struct Parameters {
  const X* x;   // b of a recurrence
  const X* a;
  Y* y;
  W* totals;    // of the chunks: of a recurrence pairs
  i64 lines, length, chunks, x_step, a_step, y_step;
  i64 size[D], x_line[D], a_line[D], y_line[D];
};

// A stretch of a line: what it does to what comes before.
struct Run {
#if KIND == 2
  W a, b;
  __device__ void start() { a = (W)1, b = (W)0; }
  __device__ void then(const Run& next) { b = s_add(s_mul(next.a, b), next.b), a = s_mul(a, next.a); }
  __device__ W value() const { return b; }
#elif KIND >= 3
  W best;
  bool some;  // not every type has a number that is smaller than all others
  __device__ void start() { best = (W)0, some = false; }
  __device__ void then(const Run& next) {
    if (next.some) best = !some ? next.best : KIND == 3 ? s_max(best, next.best) : s_min(best, next.best);
    some = some || next.some;
  }
  __device__ W value() const { return best; }
#elif KIND == 1
  W total;
  __device__ void start() { total = (W)1; }
  __device__ void then(const Run& next) { total = s_mul(total, next.total); }
  __device__ W value() const { return total; }
#else
  W total;
  __device__ void start() { total = (W)0; }
  __device__ void then(const Run& next) { total = s_add(total, next.total); }
  __device__ W value() const { return total; }
#endif
};

struct Line {
  const X *x, *a;
  Y* y;
};
INLINE Line line_at(const Parameters& p, i64 line) {
  const COUNT n = (COUNT)line;
  return {p.x + place(n, p.size, p.x_line), p.a + (KIND == 2 ? place(n, p.size, p.a_line) : 0),
          p.y + place(n, p.size, p.y_line)};
}
INLINE Run element(const Parameters& p, const Line& line, i64 k) {
#if KIND == 2
  return {convert<W>(line.a[k * p.a_step]), convert<W>(line.x[k * p.x_step])};
#elif KIND >= 3
  return {convert<W>(line.x[k * p.x_step]), true};
#else
  return {convert<W>(line.x[k * p.x_step])};
#endif
}
INLINE void step(const Parameters& p, const Line& line, i64 k, Run& sofar) {
  const Run next = element(p, line, k);
  if (EXCLUSIVE) line.y[k * p.y_step] = convert<Y>(sofar.value());
  sofar.then(next);
  if (!EXCLUSIVE) line.y[k * p.y_step] = convert<Y>(sofar.value());
}

// A thread for each line: for many lines.
extern "C" __global__ void __launch_bounds__(256) serial(const __grid_constant__ Parameters p) {
  for (i64 n = global_thread(); n < p.lines; n += thread_count()) {
    const Line line = line_at(p, n);
    Run sofar;
    sofar.start();
    for (i64 k = 0; k < p.length; k++) step(p, line, k, sofar);
  }
}

// What each thread's run comes after, given in shared memory; afterwards shared[255] is all.
INLINE Run before_me(Run* shared, const Run& mine) {
  const i32 t = threadIdx.x;
  shared[t] = mine;
  __syncthreads();
  for (i32 distance = 1; distance < 256; distance *= 2) {
    Run sum = shared[t];
    if (t >= distance) {
      sum = shared[t - distance];
      sum.then(shared[t]);
    }
    __syncthreads();
    shared[t] = sum;
    __syncthreads();
  }
  Run before;
  before.start();
  return t > 0 ? shared[t - 1] : before;
}

#define PER_THREAD 4

// A block for each chunk of each line: its total alone, or its results from what comes before.
template <bool TOTALS> INLINE void chunk(const Parameters& p) {
  __shared__ Run shared[256];
  const i64 n = blockIdx.x / p.chunks, c = blockIdx.x % p.chunks;
  const i64 part = (p.length + p.chunks - 1) / p.chunks;
  const i64 low = c * part, high = low + part < p.length ? low + part : p.length;
  const Line line = line_at(p, n);
  Run* totals = (Run*)p.totals;
  Run carried;
  carried.start();
  if (!TOTALS && p.chunks > 1) carried = totals[blockIdx.x];
  for (i64 tile = low; tile < high; tile += 256 * PER_THREAD) {
    const i64 first = tile + threadIdx.x * PER_THREAD;
    Run mine;
    mine.start();
    for (i32 j = 0; j < PER_THREAD; j++)
      if (first + j < high) mine.then(element(p, line, first + j));
    const Run before = before_me(shared, mine);
    const Run all = shared[255];
    __syncthreads();
    if (!TOTALS) {
      Run sofar = carried;
      sofar.then(before);
      for (i32 j = 0; j < PER_THREAD; j++)
        if (first + j < high) step(p, line, first + j, sofar);
    }
    carried.then(all);
  }
  if (TOTALS && threadIdx.x == 0) totals[blockIdx.x] = carried;
}

extern "C" __global__ void __launch_bounds__(256) chunk_totals(
    const __grid_constant__ Parameters p) {
  chunk<true>(p);
}

// The totals of a line's chunks become what each chunk comes after.
extern "C" __global__ void __launch_bounds__(256) chunk_starts(
    const __grid_constant__ Parameters p) {
  Run* totals = (Run*)p.totals;
  for (i64 n = global_thread(); n < p.lines; n += thread_count()) {
    Run sofar;
    sofar.start();
    for (i64 c = 0; c < p.chunks; c++) {
      const Run next = totals[n * p.chunks + c];
      totals[n * p.chunks + c] = sofar;
      sofar.then(next);
    }
  }
}

extern "C" __global__ void __launch_bounds__(256) chunk_results(
    const __grid_constant__ Parameters p) {
  chunk<false>(p);
}
