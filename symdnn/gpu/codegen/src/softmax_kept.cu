// Softmax along columns that a cluster of blocks keeps in shared memory, so that memory is read
// once. A block has SHARE lines of COLUMNS neighbouring columns; GX threads have V columns of a line
// each, and a thread has every TY-th line of its block's. What a thread keeps no other one reads.
// The gradient of log-softmax (KIND 3) keeps dy alone, and reads x when the sums are known.

struct Parameters {
  const T* x;
  const T* dy;
  T* y;
  i64 length, columns, tiles;
  i64 lead[3], line[3];  // elements from one group of columns, and one line, to the next
};

#define GRADIENT (KIND >= 2)
#define GROUPS 4
constexpr i32 TY = THREADS / GX, COLUMNS = GX * V, WARPS = THREADS / 32;
constexpr i32 PER = (SHARE + TY - 1) / TY, PER_GROUP = (PER + GROUPS - 1) / GROUPS;
// Elements that are too narrow for asynchronous copies are read so many at a time.
constexpr i32 AT_A_TIME = 16;
// Lines whose elements are taken together.
constexpr i32 LINES = 4;

#if GRADIENT
typedef Sum<W> State;
INLINE State shuffled(const State& s, i32 mask) {
  return {__shfl_xor_sync(0xffffffffu, s.total, mask)};
}
#else
typedef LogSumExp<W> State;
INLINE State shuffled(const State& s, i32 mask) {
  return {__shfl_xor_sync(0xffffffffu, s.top, mask), __shfl_xor_sync(0xffffffffu, s.total, mask)};
}
#endif
struct alignas(16) Told { State of[COLUMNS]; };

INLINE void keep(Vec<T, V>* to, const T* from, i64 step, i32 count) {
  if constexpr (V * sizeof(T) >= 4) {
#pragma unroll 4
    for (i32 i = 0; i < count; i++) copy_kept<V>(to + i * THREADS, from + i * step);
  } else {
#pragma unroll 1
    for (i32 i = 0; i < count; i += AT_A_TIME) {
      Vec<T, V> some[AT_A_TIME];
#pragma unroll
      for (i32 k = 0; k < AT_A_TIME; k++)
        if (i + k < count) some[k] = load<V>(from + (i + k) * step);
#pragma unroll
      for (i32 k = 0; k < AT_A_TIME; k++)
        if (i + k < count) to[(i + k) * THREADS] = some[k];
    }
  }
}

// The states of this thread's columns in all threads of the cluster, with the same bits in each.
INLINE void all_together(State (&mine)[V], Exchange<Told>& exchange) {
  __shared__ State warps[WARPS][COLUMNS];
  __shared__ Told own;
  const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = lane % GX;
#pragma unroll
  for (i32 k = 0; k < V; k++) {
#pragma unroll
    for (i32 mask = GX; mask < 32; mask *= 2) mine[k].merge(shuffled(mine[k], mask));
    if (lane < GX) warps[warp][first * V + k] = mine[k];
  }
  __syncthreads();
  if (threadIdx.x < COLUMNS) {
    State all = warps[0][threadIdx.x];
#pragma unroll 1
    for (i32 w = 1; w < WARPS; w++) all.merge(warps[w][threadIdx.x]);
    own.of[threadIdx.x] = all;
  }
  __syncthreads();
  if (CLUSTER > 1 && warp == 0) exchange.tell(own);
#pragma unroll 1
  for (u32 rank = 0; rank < CLUSTER; rank++) {
    const Told& there = CLUSTER == 1 ? own : exchange.heard(rank);
#pragma unroll
    for (i32 k = 0; k < V; k++) {
      if (rank == 0) mine[k] = there.of[first * V + k];
      else mine[k].merge(there.of[first * V + k]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) IN_CLUSTER softmax_kept(
    const __grid_constant__ Parameters p) {
  __shared__ Exchange<Told> exchange;
  exchange.start();
  const i64 group = blockIdx.x / CLUSTER, lead = group / p.tiles;
  const i32 line = threadIdx.x / GX;
  const i64 column = ((group - lead * p.tiles) * GX + threadIdx.x % GX) * V;
  const i64 low = (i64)cluster_rank() * SHARE, left = p.length - low;
  const i32 lines = left < SHARE ? (i32)left : SHARE;
  const i32 count = column < p.columns && line < lines ? (lines - line + TY - 1) / TY : 0;
  const T* const x = p.x + lead * p.lead[0] + (low + line) * p.line[0] + column;
  const T* const dy = p.dy + lead * p.lead[1] + (low + line) * p.line[1] + column;
  T* const y = p.y + lead * p.lead[2] + (low + line) * p.line[2] + column;
  const i64 x_step = TY * p.line[0], dy_step = TY * p.line[1], y_step = TY * p.line[2];
  Vec<T, V>* const held = (Vec<T, V>*)kept + threadIdx.x;
  Vec<T, V>* const other = held + PER * THREADS;

#pragma unroll 1
  for (i32 g = 0; g < GROUPS; g++) {
    const i32 i = g * PER_GROUP, some = count - i < PER_GROUP ? count - i : PER_GROUP;
    if (GRADIENT) keep(held + i * THREADS, dy + i * dy_step, dy_step, some);
    else keep(held + i * THREADS, x + i * x_step, x_step, some);
    if (KIND == 2) keep(other + i * THREADS, x + i * x_step, x_step, some);
    group_copies();
  }

  State mine[V];
#pragma unroll
  for (i32 k = 0; k < V; k++) mine[k].start();
#pragma unroll 1
  for (i32 g = 0; g < GROUPS; g++) {
    if (g == 0) settled<3>();
    else if (g == 1) settled<2>();
    else if (g == 2) settled<1>();
    else settled<0>();
    const i32 end = (g + 1) * PER_GROUP < count ? (g + 1) * PER_GROUP : count;
    i32 i = g * PER_GROUP;
#if !GRADIENT
#pragma unroll 1
    for (; i + LINES <= end; i += LINES) {
      Vec<T, V> some[LINES];
#pragma unroll
      for (i32 j = 0; j < LINES; j++) some[j] = held[(i + j) * THREADS];
#pragma unroll
      for (i32 k = 0; k < V; k++) {
        W x[LINES];
#pragma unroll
        for (i32 j = 0; j < LINES; j++) x[j] = convert<W>(some[j].v[k]);
        mine[k].take_all(x);
      }
    }
#endif
#pragma unroll 4
    for (; i < end; i++) {
      const Vec<T, V> one = held[i * THREADS];
#if KIND == 2
      const Vec<T, V> two = other[i * THREADS];
#endif
#pragma unroll
      for (i32 k = 0; k < V; k++) {
#if KIND == 2
        mine[k].take(convert<W>(one.v[k]) * convert<W>(two.v[k]), 0);
#else
        mine[k].take(convert<W>(one.v[k]), 0);
#endif
      }
    }
  }
  exchange.started();
  all_together(mine, exchange);
  W scale[V];
#pragma unroll
  for (i32 k = 0; k < V; k++) {
#if GRADIENT
    scale[k] = mine[k].total;
#else
    const W total = mine[k].top == (W)INF_f ? (W)NAN_f : mine[k].total;
    scale[k] = KIND == 0 ? (W)1 / total : s_log(total);
#endif
  }
#pragma unroll 4
  for (i32 i = 0; i < count; i++) {
    const Vec<T, V> one = held[i * THREADS];
#if KIND == 2
    const Vec<T, V> two = other[i * THREADS];
#elif KIND == 3
    const Vec<T, V> two = load<V>(x + i * x_step);
#endif
    Vec<T, V> found;
#pragma unroll
    for (i32 k = 0; k < V; k++) {
      const W a = convert<W>(one.v[k]);
#if KIND == 0
      found.v[k] = convert<T>(Exponential<T>::of(a - mine[k].top) * scale[k]);
#elif KIND == 1
      found.v[k] = convert<T>(a - mine[k].top - scale[k]);
#elif KIND == 2
      found.v[k] = convert<T>(convert<W>(two.v[k]) * (a - scale[k]));
#else
      found.v[k] = convert<T>(a - Exponential<T>::of(convert<W>(two.v[k])) * scale[k]);
#endif
    }
    store_whole(y + i * y_step, found);
  }
}
