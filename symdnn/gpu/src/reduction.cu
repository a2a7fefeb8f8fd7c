// The loops of a reduction; State, Parameters, Base, base_of, take and finish are generated.
// STATES outputs that are neighbours are worked on by a thread at a time; then elements and
// outputs that a loop counts are vectors.
//
// Everything goes from the end of memory to its start: what was written last, and what is read
// from the start by the kernel that follows, is found in the cache.

// Threads of one output merge what they hold: the result is in the first of them.
INLINE void meet(State* shared, const State& mine, i32 slot, i32 lane, i32 lanes) {
  shared[slot] = mine;
  __syncthreads();
  for (i32 half = lanes / 2; half > 0; half /= 2) {
    if (lane < half) shared[slot].merge(shared[slot + half]);
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(256, RESIDENT) reduce(const __grid_constant__ Parameters p) {
  __shared__ State shared[256];
  const i32 lane = ROWS ? threadIdx.x : threadIdx.y, lanes = ROWS ? blockDim.x : blockDim.y;
  const i32 row = ROWS ? threadIdx.y : threadIdx.x, rows = ROWS ? blockDim.y : blockDim.x;
  const i32 slot = row * lanes + lane;
  const i64 length = (p.elements + p.chunks - 1) / p.chunks, chunk = p.chunks - 1 - blockIdx.y;
  const i64 low = chunk * length, groups = p.outputs / STATES;
  const i64 high = low + length < p.elements ? low + length : p.elements;
  const i64 block = gridDim.x - 1 - blockIdx.x;
  for (i64 tile = block * rows; tile < groups; tile += (i64)gridDim.x * rows) {
    const i64 group = tile + row;
    State mine[STATES];
#pragma unroll
    for (i32 k = 0; k < STATES; k++) mine[k].start();
    if (group < groups) {
      const Base base = base_of(p, (Count)(group * STATES));
      i64 e = low + lane;
#if BEGINS
      if (e < high)
        begin(p, base, (Count)e, (u32)((high - e + lanes - 1) / lanes) * TAKEN, mine);
#endif
#if BATCH > 1
      for (; e + (BATCH - 1) * lanes < high; e += BATCH * lanes) {
        Loaded loaded[BATCH];
#pragma unroll
        for (i32 i = 0; i < BATCH; i++) loaded[i] = fetch(p, base, (Count)(e + i * lanes));
#pragma unroll
        for (i32 i = 0; i < BATCH; i++) use(base, loaded[i], (Count)(e + i * lanes), mine);
      }
#pragma unroll 1
#else
#pragma unroll 4
#endif
      for (; e < high; e += lanes) take(p, base, (Count)e, mine);
    }
#pragma unroll
    for (i32 k = 0; k < STATES; k++) {
      const i64 output = group * STATES + k;
      mine[k].settle();
      meet(shared, mine[k], slot, lane, lanes);
      if (lane == 0 && group < groups) {
        if (p.chunks > 1) p.partial[output * p.chunks + chunk] = shared[slot];
        else finish(p, shared[slot], output);
      }
      __syncthreads();
    }
  }
}

// Blocks of (lanes, rows): the chunks of an output meet.
extern "C" __global__ void __launch_bounds__(256) combine(const __grid_constant__ Parameters p) {
  __shared__ State shared[256];
  const i32 lane = threadIdx.x, lanes = blockDim.x, row = threadIdx.y, rows = blockDim.y;
  const i32 slot = row * lanes + lane;
  for (i64 tile = (i64)blockIdx.x * rows; tile < p.outputs; tile += (i64)gridDim.x * rows) {
    const i64 output = tile + row;
    State mine;
    mine.start();
    if (output < p.outputs)
      for (i64 c = lane; c < p.chunks; c += lanes) mine.merge(p.partial[output * p.chunks + c]);
    mine.settle();
    meet(shared, mine, slot, lane, lanes);
    if (lane == 0 && output < p.outputs) finish(p, shared[slot], output);
    __syncthreads();
  }
}
