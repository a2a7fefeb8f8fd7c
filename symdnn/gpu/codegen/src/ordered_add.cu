// x[row] += the sum of the rows of y with this target, in an order that depends on the indices
// alone. `ranks` is sorted: the offset of the row in x (high 32 bits) and the number of the row of y
// (low 32 bits); all ones: no row. The ranks are cut into segments of SEGMENT. A block adds the runs
// of equal targets within a segment. What belongs to a run that begins in an earlier segment, or
// goes on in a later one, is kept in `parts`, and the second kernel adds it up. A thread has V
// neighbouring columns; offsets of columns count vectors. A GUARDED kernel writes nothing once the
// error word is set.

struct Parameters {
  T* x;
  const T* y;
  const u64* ranks;
  A* parts;  // two rows for each segment: of the run from before, and of the run that goes on
  i64 rows, columns;
  i64 row_size[R], y_row[R];
  i64 column_size[C], x_column[C], y_column[C];
#if GUARDED
  const i32* error_word;
#endif
};

#if GUARDED
#define FAILED(p) (*(p).error_word != 0)
#else
#define FAILED(p) false
#endif

#define NO_TARGET 0xffffffffull

INLINE u64 target_of(const Parameters& p, i64 k) { return k < p.rows ? p.ranks[k] >> 32 : NO_TARGET; }

INLINE void add_to(T* x, const Vec<A, V>& sum) {
  Vec<T, V> old = load<V>(x);
#pragma unroll
  for (i32 e = 0; e < V; e++) old.v[e] = convert<T>(s_add(convert<A>(old.v[e]), sum.v[e]));
  store(x, old);
}

// The sums of one column of a segment.
INLINE void add_runs(const Parameters& p, const u64* ranks, const i32 count, const u64 before,
                     const u64 after, const i64 column) {
  const T* y = p.y + place((u64)column, p.column_size, p.y_column) * V;
  T* x = p.x + place((u64)column, p.column_size, p.x_column) * V;
  A* parts = p.parts + (2 * (i64)blockIdx.x * p.columns + column) * V;
  Vec<A, V> sum = {};
  for (i32 low = 0; low < count; low += AHEAD) {
    Vec<T, V> read[AHEAD];
#pragma unroll
    for (i32 b = 0; b < AHEAD; b++) {
      const u64 rank = ranks[low + b < count ? low + b : low];
      if (rank >> 32 != NO_TARGET)
        read[b] = load<V>(y + place((u64)(u32)rank, p.row_size, p.y_row));
    }
#pragma unroll
    for (i32 b = 0; b < AHEAD; b++) {
      const i32 k = low + b;
      if (k >= count || ranks[k] >> 32 == NO_TARGET) break;
      const u64 target = ranks[k] >> 32;
#pragma unroll
      for (i32 e = 0; e < V; e++) sum.v[e] = s_add(sum.v[e], convert<A>(read[b].v[e]));
      if (k + 1 < count && ranks[k + 1] >> 32 == target) continue;
      // The run ends here, or goes on in the next segment; it began here, or before.
      const bool on = k + 1 == count && after == target;
      if (ranks[0] >> 32 == target && before == target) store(parts, sum);
      else if (on) store(parts + p.columns * V, sum);
      else add_to(x + (i64)target, sum);
      sum = Vec<A, V>{};
    }
  }
}

extern "C" __global__ void __launch_bounds__(256) segment_sums(
    const __grid_constant__ Parameters p) {
  if (FAILED(p)) return;
  __shared__ u64 ranks[SEGMENT];
  const i64 first = (i64)blockIdx.x * SEGMENT;
  const i32 count = p.rows - first < SEGMENT ? (i32)(p.rows - first) : SEGMENT;
  for (i32 k = threadIdx.x; k < count; k += blockDim.x) ranks[k] = p.ranks[first + k];
  __syncthreads();
  const u64 before = first > 0 ? target_of(p, first - 1) : NO_TARGET;
  const u64 after = target_of(p, first + count);
  for (i64 column = (i64)blockIdx.y * blockDim.x + threadIdx.x; column < p.columns;
       column += (i64)gridDim.y * blockDim.x)
    add_runs(p, ranks, count, before, after, column);
}

// The runs that go on after the segment in which they begin.
extern "C" __global__ void __launch_bounds__(256) joined_runs(
    const __grid_constant__ Parameters p) {
  if (FAILED(p)) return;
  const i64 last = (i64)blockIdx.x * SEGMENT + SEGMENT - 1;
  const u64 target = target_of(p, last);
  if (target == NO_TARGET || target_of(p, last + 1) != target) return;
  const i64 first = last - (SEGMENT - 1);
  if (first > 0 && target_of(p, first) == target && target_of(p, first - 1) == target) return;
  for (i64 column = (i64)blockIdx.y * blockDim.x + threadIdx.x; column < p.columns;
       column += (i64)gridDim.y * blockDim.x) {
    const A* parts = p.parts + (2 * (i64)blockIdx.x * p.columns + column) * V;
    Vec<A, V> sum = load<V>(parts + p.columns * V);
    for (i64 k = last + 1; target_of(p, k) == target; k += SEGMENT) {
      parts += 2 * p.columns * V;
      const Vec<A, V> next = load<V>(parts);
#pragma unroll
      for (i32 e = 0; e < V; e++) sum.v[e] = s_add(sum.v[e], next.v[e]);
    }
    add_to(p.x + (i64)target + place((u64)column, p.column_size, p.x_column) * V, sum);
  }
}
