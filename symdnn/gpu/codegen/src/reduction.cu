// The loops of a reduction; State, Parameters, Base, base_of, take, begin and finish are generated.
// A thread computes STATES neighbouring outputs at a time; loops then count vectors of elements and
// of outputs.
//
// Loops run from the end of memory to its start: so data that the kernel before wrote last, and
// data that the next kernel reads first, are in the cache. Code that runs once in a block is
// unrolled only as far as latencies overlap, since fetching longer code takes longer than running
// it.

// The number of states that are merged at a time, limited by shared memory.
#define HELD_AT_A_TIME(n) (STATES >= n && n * THREADS * (i32)sizeof(State) <= 32768)
constexpr i32 TOGETHER = HELD_AT_A_TIME(8) ? 8 : HELD_AT_A_TIME(4) ? 4 : HELD_AT_A_TIME(2) ? 2 : 1;

// The slot of a thread's state in shared memory: neighbouring threads have neighbouring slots.
INLINE i32 slot_of(i32 lane, i32 row, i32 lanes, i32 rows) {
  return ROWS ? row * lanes + lane : lane * rows + row;
}

// The first output of a group: with LOOSE vectors the last group of a line ends with it.
INLINE i64 first_of(const Parameters& p, i64 group) {
#if LOOSE && STATES > 1
  const i64 each = (p.run + STATES - 1) / STATES, line = group / each, own = (group - line * each) * STATES;
  return line * p.run + (own < p.run - STATES ? own : p.run - STATES);
#else
  return group * STATES;
#endif
}

// The threads of one output merge their states; the result is in the first of them. States of
// several outputs are read before any is written, so that reads need not wait for writes.
constexpr i32 AT_ONCE = TOGETHER < 4 ? TOGETHER : 4;
INLINE void meet(State (&shared)[TOGETHER][THREADS], i32 slot, bool first, i32 distance) {
  if (ROWS && distance < 32) __syncwarp();  // threads of one warp wrote what is read
  else __syncthreads();
  if (!first) return;
#pragma unroll 1
  for (i32 some = 0; some < TOGETHER; some += AT_ONCE) {
    State mine[AT_ONCE], other[AT_ONCE];
#pragma unroll
    for (i32 k = 0; k < AT_ONCE; k++) {
      mine[k] = shared[some + k][slot];
      other[k] = shared[some + k][slot + distance];
    }
#pragma unroll
    for (i32 k = 0; k < AT_ONCE; k++) {
      mine[k].merge(other[k]);
      shared[some + k][slot] = mine[k];
    }
  }
}

// The reduction of one thread: the elements from `low` to `high`, of which it takes every one that is
// `lanes` behind its first. The first and the last vector of a row with EDGES are read early and
// merged in the end, by two lanes, so that the loop looks at no single elements.
INLINE void sweep(
    const Parameters& p, const Base& base, Count low, Count high, Count lane, Count lanes, State* mine) {
#if EDGES
  const bool at_start = lane == 0 && low == 0, at_end = lane == 1 && low <= base.last && base.last < high;
  const Count edge = at_start ? 0 : base.last;
  Loaded outer;
  if (at_start || at_end) outer = fetch(p, base, edge);
  if (low == 0) low = 1;
  if (high > base.last) high = base.last;
#endif
  low += lane;
#if BATCH > 1
#pragma unroll 1
  for (Count e = low; e < high; e += BATCH * lanes) {
    Loaded loaded[BATCH];
#pragma unroll
    for (i32 i = 0; i < BATCH; i++)
      loaded[i] = fetch(p, base, e + i * lanes < high ? e + i * lanes : e);
#if BEGINS
    if (e == low) begin(base, loaded[0], (u32)(high - e + lanes - 1) / (u32)lanes * TAKEN, mine);
#endif
#if TAKES_ALL
    if (e + (BATCH - 1) * lanes < (TAIL ? high - 1 : high)) {
      use_all(base, loaded, mine);
      continue;
    }
#endif
#pragma unroll
    for (i32 i = 0; i < BATCH; i++)
      if (i == 0 || e + i * lanes < high) use(base, loaded[i], e + i * lanes, mine);
  }
#else
#if BEGINS
  if (low < high) begin(p, base, low, (u32)(high - low + lanes - 1) / (u32)lanes * TAKEN, mine);
#endif
#pragma unroll UNROLL
  for (Count e = low; e < high; e += lanes) take(p, base, e, mine);
#endif
#if EDGES
  if (at_start || at_end) {
    State other;
    other.start();
    use_edge(base, outer, edge, &other);
    mine->merge(other);
  }
#endif
}

// Whether this block is the last one of its outputs' chunks to finish: it reads the states of all.
// The counts of finished blocks are zero before and after.
INLINE bool is_last(u32* come, i64 chunks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x + threadIdx.y == 0) {
    last = atomicAdd(come, 1u) == (u32)chunks - 1;
    if (last) *come = 0;
    __threadfence();
  }
  __syncthreads();
  return last;
}

// Merges the chunks of `width` outputs of groups from `tile` on, by all threads of a block.
INLINE void combine(
    const Parameters& p, State* shared, const State* partial, i64 tile, i64 groups, i32 width) {
  const i32 thread = threadIdx.y * blockDim.x + threadIdx.x;
  const i32 parts = width < THREADS ? THREADS / width : 1;
#pragma unroll 1
  for (i32 j = thread % width; j < width; j += THREADS) {
    State mine;
    mine.start();
#pragma unroll 8
    for (i32 c = thread / width; c < (i32)p.chunks; c += parts) mine.merge(partial[c * width + j]);
    mine.settle();
    if (parts == 1) {
      if (tile + j / STATES < groups) finish(p, mine, first_of(p, tile + j / STATES) + j % STATES);
      continue;
    }
    shared[thread] = mine;
  }
#pragma unroll 1
  for (i32 half = parts / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half * width) shared[thread].merge(shared[thread + half * width]);
  }
  if (parts > 1 && thread < width && tile + thread / STATES < groups)
    finish(p, shared[thread], first_of(p, tile + thread / STATES) + thread % STATES);
}

#if WARPS
// The state of the thread `distance` lanes away.
INLINE State of_lane(const State& own, i32 distance) {
  constexpr i32 WORDS = (sizeof(State) + 3) / 4;
  union Words { State state; u32 w[WORDS]; } from, to;
  from.state = own;
#pragma unroll
  for (i32 i = 0; i < WORDS; i++) to.w[i] = __shfl_xor_sync(0xffffffffu, from.w[i], distance);
  return to.state;
}

// The lanes of a row are neighbours in a warp, and no warp waits for another.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) reduce(const __grid_constant__ Parameters p) {
  const i32 lane = threadIdx.x, lanes = blockDim.x, rows = blockDim.y;
  const i64 block = gridDim.x - 1 - blockIdx.x;
  for (i64 tile = block * rows; tile < p.outputs; tile += (i64)gridDim.x * rows) {
    const i64 row = tile + threadIdx.y;
    State mine;
    mine.start();
    if (row < p.outputs)
      sweep(p, base_of(p, (Count)row), 0, (Count)p.elements, lane, lanes, &mine);
#if BEGINS
    mine.settle();
#endif
#pragma unroll 1
    for (i32 half = lanes / 2; half > 0; half /= 2) {
      const State other = of_lane(mine, half);
      if (lane < half) mine.merge(other);
    }
    if (lane == 0 && row < p.outputs) finish(p, mine, row);
  }
}
#else
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) reduce(const __grid_constant__ Parameters p) {
  __shared__ State shared[TOGETHER][THREADS];
  const i32 lane = ROWS ? threadIdx.x : threadIdx.y, lanes = ROWS ? blockDim.x : blockDim.y;
  const i32 row = ROWS ? threadIdx.y : threadIdx.x, rows = ROWS ? blockDim.y : blockDim.x;
  const i32 slot = slot_of(lane, row, lanes, rows), thread = threadIdx.y * blockDim.x + threadIdx.x;
  const i64 length = ((Count)p.elements + (Count)p.chunks - 1) / (Count)p.chunks;
  const i64 chunk = p.chunks - 1 - blockIdx.y, low = chunk * length;
#if LOOSE && STATES > 1
  const i64 groups = p.outputs / p.run * ((p.run + STATES - 1) / STATES);
#else
  const i64 groups = p.outputs / STATES;
#endif
  const i64 high = low + length < p.elements ? low + length : p.elements;
  const i64 block = gridDim.x - 1 - blockIdx.x;
  for (i64 tile = block * rows; tile < groups; tile += (i64)gridDim.x * rows) {
    const i64 group = tile + row;
    State* const partial = p.partial + tile * STATES * p.chunks;
    const i32 width = rows * STATES;
    State mine[STATES];
#pragma unroll
    for (i32 k = 0; k < STATES; k++) mine[k].start();
    if (group < groups)
      sweep(p, base_of(p, (Count)first_of(p, group)), (Count)low, (Count)high, lane, lanes, mine);
#pragma unroll
    for (i32 some = 0; some < STATES; some += TOGETHER) {
#pragma unroll
      for (i32 k = 0; k < TOGETHER; k++) shared[k][slot] = mine[some + k];
#if BEGINS
#pragma unroll 4
      for (i32 k = 0; k < TOGETHER; k++) shared[k][slot].settle();
#endif
#pragma unroll 1
      for (i32 half = lanes / 2; half > 0; half /= 2)
        meet(shared, slot, lane < half, ROWS ? half : half * rows);
      __syncthreads();
#pragma unroll 1
      for (i32 j = thread; j < rows * TOGETHER; j += THREADS) {
        const i32 own = j / TOGETHER, k = j % TOGETHER, at = own * STATES + some + k;
        const State& found = shared[k][slot_of(0, own, lanes, rows)];
        if (tile + own >= groups) continue;
        if (p.chunks > 1) partial[chunk * width + at] = found;
        else finish(p, found, first_of(p, tile + own) + some + k);
      }
      __syncthreads();
    }
    if (p.chunks > 1 && is_last((u32*)p.come + block, p.chunks))
      combine(p, &shared[0][0], partial, tile, groups, width);
  }
}
#endif
