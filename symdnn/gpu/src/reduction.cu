// The loops of a reduction; State, Parameters, Base, base_of, take and finish are generated.

// Threads of one output merge what they hold: the result is in the first of them.
INLINE void meet(State* shared, State& mine, i32 slot, i32 lane, i32 lanes) {
  shared[slot] = mine;
  __syncthreads();
  for (i32 half = lanes / 2; half > 0; half /= 2) {
    if (lane < half) shared[slot].merge(shared[slot + half]);
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(256) reduce(const __grid_constant__ Parameters p) {
  __shared__ State shared[256];
  const i32 lane = ROWS ? threadIdx.x : threadIdx.y, lanes = ROWS ? blockDim.x : blockDim.y;
  const i32 row = ROWS ? threadIdx.y : threadIdx.x, rows = ROWS ? blockDim.y : blockDim.x;
  const i32 slot = row * lanes + lane;
  const i64 length = (p.elements + p.chunks - 1) / p.chunks;
  const i64 low = (i64)blockIdx.y * length;
  const i64 high = low + length < p.elements ? low + length : p.elements;
  for (i64 tile = (i64)blockIdx.x * rows; tile < p.outputs; tile += (i64)gridDim.x * rows) {
    const i64 output = tile + row;
    State mine;
    mine.start();
    if (output < p.outputs) {
      const Base base = base_of(p, (Count)output);
#pragma unroll 4
      for (i64 e = low + lane; e < high; e += lanes) take(p, base, (Count)e, mine);
    }
    meet(shared, mine, slot, lane, lanes);
    if (lane == 0 && output < p.outputs) {
      if (p.chunks > 1) p.partial[(i64)blockIdx.y * p.outputs + output] = shared[slot];
      else finish(p, shared[slot], output);
    }
    __syncthreads();
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
      for (i64 c = lane; c < p.chunks; c += lanes) mine.merge(p.partial[c * p.outputs + output]);
    meet(shared, mine, slot, lane, lanes);
    if (lane == 0 && output < p.outputs) finish(p, shared[slot], output);
    __syncthreads();
  }
}
