// Softmax across so many planes that a block cannot hold their pixels. X neighbours along a plane
// have V pixels each, which is a panel. A panel is cut into chunks of planes: a task sums one of a
// panel, and another one makes its results. Panels are in groups, some of which the L2 cache holds:
// the results of a group come behind the sums of the next LEAD ones, so each operand is read from
// memory once.
//
// A block has one task, in the order in which blocks begin. What results wait for was begun before
// them, and sums wait for nothing. The sums of a panel's chunks are added in order, by the last one.

#if KIND >= 2
typedef Sum<W> State;
#else
typedef LogSumExp<W> State;
#endif

struct Parameters {
  const T *x, *dy;
  T* y;
  State *parts, *totals;
  u32 *done, *ticket;  // chunks of each panel that are summed, and one more where they are added
  i64 length, vectors, panels, total_panels, chunks, part, group;
};

constexpr i32 LINES = BLOCK / X, COLUMNS = X * V;

INLINE State merged(const State (&states)[LINES][COLUMNS], i32 column) {
  State sum = states[0][column];
  for (i32 line = 1; line < LINES; line++) sum.merge(states[line][column]);
  return sum;
}

// The first plane of a thread and the one behind its last, and the offset of its pixels.
struct Place {
  i64 first, end, at, plane;
  bool live;
};
INLINE Place place_of(const Parameters& p, i64 panel, i64 chunk) {
  Place found;
  const i64 column = panel % p.panels * X + threadIdx.x % X;
  found.live = column < p.vectors;
  found.plane = p.vectors * V;
  found.at = panel / p.panels * p.length * found.plane + column * V;
  found.first = chunk * p.part + threadIdx.x / X;
  found.end = (chunk + 1) * p.part < p.length ? (chunk + 1) * p.part : p.length;
  if (!found.live) found.end = 0;
  return found;
}

INLINE void sum(const Parameters& p, i64 panel, i64 chunk) {
  __shared__ State states[LINES][COLUMNS];
  __shared__ bool last;
  const i32 line = threadIdx.x / X, near = threadIdx.x % X * V;
  const Place own = place_of(p, panel, chunk);
  State state[V];
#pragma unroll
  for (i32 v = 0; v < V; v++) state[v].start();
  for (i64 k = own.first; k < own.end; k += AHEAD * LINES) {
    Vec<T, V> x[AHEAD], dy[KIND == 2 ? AHEAD : 1];
#pragma unroll
    for (i32 a = 0; a < AHEAD; a++) {
      const i64 plane = k + a * LINES;
      if (plane >= own.end) continue;
      x[a] = load<V>((KIND == 3 ? p.dy : p.x) + own.at + plane * own.plane);
      if (KIND == 2) dy[a] = load<V>(p.dy + own.at + plane * own.plane);
    }
#pragma unroll
    for (i32 a = 0; a < AHEAD; a++) {
      if (k + a * LINES >= own.end) continue;
#pragma unroll
      for (i32 v = 0; v < V; v++) {
        const W value = convert<W>(x[a].v[v]);
        state[v].take(KIND == 2 ? value * convert<W>(dy[KIND == 2 ? a : 0].v[v]) : value, 0);
      }
    }
  }
#pragma unroll
  for (i32 v = 0; v < V; v++) states[line][near + v] = state[v];
  __syncthreads();
  State* const parts = p.parts + panel * p.chunks * COLUMNS;
  if (threadIdx.x < COLUMNS) parts[chunk * COLUMNS + threadIdx.x] = merged(states, threadIdx.x);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&p.done[panel], 1u) == (u32)p.chunks - 1;
  __syncthreads();
  if (!last) return;
  // All threads add the chunks, each of LINES in order.
  __threadfence();
  for (i32 t = threadIdx.x; t < LINES * COLUMNS; t += BLOCK) {
    const i64 each = (p.chunks + LINES - 1) / LINES, first = t / COLUMNS * each;
    State all;
    all.start();
    for (i64 c = first; c < first + each && c < p.chunks; c++)
      all.merge(parts[c * COLUMNS + t % COLUMNS]);
    states[t / COLUMNS][t % COLUMNS] = all;
  }
  __syncthreads();
  if (threadIdx.x < COLUMNS)
    p.totals[panel * COLUMNS + threadIdx.x] = merged(states, threadIdx.x);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(&p.done[panel], 1u);
}

INLINE W result_of(W x, W dy, const State& all) {
#if KIND == 0
  return Exponential<T>::of(x - all.top) / all.total;
#elif KIND == 1
  return x - all.top - s_log(all.total);
#elif KIND == 2
  return x * (dy - all.total);
#else
  return dy - Exponential<T>::of(x) * all.total;
#endif
}

INLINE void results(const Parameters& p, i64 panel, i64 chunk) {
  const Place own = place_of(p, panel, chunk);
  if (threadIdx.x == 0) {
    while (*(volatile u32*)&p.done[panel] <= (u32)p.chunks) {}
    __threadfence();
  }
  __syncthreads();
  State all[V];
#pragma unroll
  for (i32 v = 0; v < V; v++) all[v] = p.totals[panel * COLUMNS + threadIdx.x % X * V + v];
  for (i64 k = own.first; k < own.end; k += AHEAD * LINES) {
    Vec<T, V> x[AHEAD], dy[KIND >= 2 ? AHEAD : 1];
#pragma unroll
    for (i32 a = 0; a < AHEAD; a++) {
      const i64 plane = k + a * LINES;
      if (plane >= own.end) continue;
      x[a] = load<V>(p.x + own.at + plane * own.plane);
      if (KIND >= 2) dy[a] = load<V>(p.dy + own.at + plane * own.plane);
    }
#pragma unroll
    for (i32 a = 0; a < AHEAD; a++) {
      const i64 plane = k + a * LINES;
      if (plane >= own.end) continue;
#pragma unroll
      for (i32 v = 0; v < V; v++) {
        const W slope = KIND >= 2 ? convert<W>(dy[KIND >= 2 ? a : 0].v[v]) : (W)0;
        x[a].v[v] = convert<T>(result_of(convert<W>(x[a].v[v]), slope, all[v]));
      }
      store(p.y + own.at + plane * own.plane, x[a]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK) softmax_columns(
    const __grid_constant__ Parameters p) {
  __shared__ u32 ticket;
  if (threadIdx.x == 0) ticket = atomicAdd(p.ticket, 1u);
  __syncthreads();
  // Tasks in turns: sums of LEAD groups, then those of the next group and results of the first one
  // that has none. So results seldom wait.
  const i64 groups = (p.total_panels + p.group - 1) / p.group, tasks = p.group * p.chunks;
  const i64 turn = ticket / tasks, task = ticket % tasks;
  const i64 lead = groups < LEAD ? groups : LEAD, both = 2 * (groups - lead), later = turn - lead;
  const bool sums = later < 0 || (later < both && later % 2 == 0);
  const i64 group = later < 0 ? turn
                  : later >= both ? later - both / 2
                  : sums ? lead + later / 2 : later / 2;
  // Neighbouring panels of a chunk are neighbouring tasks.
  const i64 panel = group * p.group + task % p.group, chunk = task / p.group;
  if (panel >= p.total_panels) return;
  if (sums) sum(p, panel, chunk);
  else results(p, panel, chunk);
}
