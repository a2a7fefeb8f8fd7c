// Rows that are read once: LANES threads keep the values of a row in registers, PER vectors of V
// elements each, while they compute sums over it; with PER 0 they read it again for each sum, from
// shared memory if the row is STAGED there: each thread finds what it has put there itself.
// FULL: all of these vectors exist, in all blocks. The first and the last vector of a LOOSE row have
// elements of others, which are not `inside`. Printed before this text are the operands' access,
// and `staged`, which computes all sums of a row.

#define TILE (BLOCK / LANES)

#if STAGED || (SUMS && COLUMNS == 1)
#ifdef SYMDNN_HOST
static bytes16 dynamic_shared[256 * 1024 / 16];
#else
extern __shared__ bytes16 dynamic_shared[];
#endif
#endif

// Combines what the lanes of a row have, as HOW says for each of N; each lane gets the results.
template <class HOW, int N> INLINE void meet(W (&sums)[N]) {
#pragma unroll
  for (i32 half = (LANES < 32 ? LANES : 32) / 2; half > 0; half /= 2)
#pragma unroll
    for (i32 n = 0; n < N; n++)
      sums[n] = HOW::of(n, sums[n], __shfl_xor_sync(0xffffffffu, sums[n], half));
  if (LANES > 32) {
    constexpr i32 WARPS = LANES > 32 ? LANES / 32 : 1;
    __shared__ W all[N][32];
    const i32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();
    if (lane == 0)
#pragma unroll
      for (i32 n = 0; n < N; n++) all[n][warp] = sums[n];
    __syncthreads();
#pragma unroll
    for (i32 n = 0; n < N; n++) {
      sums[n] = all[n][warp / WARPS * WARPS + lane % WARPS];
#pragma unroll
      for (i32 half = WARPS / 2; half > 0; half /= 2)
        sums[n] = HOW::of(n, sums[n], __shfl_xor_sync(0xffffffffu, sums[n], half));
    }
  }
}

// The part of a row that a thread has: `count` vectors, every LANES-th.
struct Mine {
  Base base;
  i32 lane, count;
#if PER
  Values held[PER];
#endif
  __device__ __forceinline__ void begin(const Parameters& p) {
#if PER
    Early raw[PER];
#pragma unroll
    for (i32 i = 0; i < PER; i++)
      if (FULL || i < count) raw[i] = early(p, base, i * LANES + lane);
#pragma unroll
    for (i32 i = 0; i < PER; i++)
      if (FULL || i < count) held[i] = values_of(base, raw[i]);
#elif STAGED
    for (i32 first = 0; first < count; first += STAGED) {
      Early raw[STAGED];
#pragma unroll
      for (i32 i = 0; i < STAGED; i++)
        if (first + i < count) raw[i] = early(p, base, (first + i) * LANES + lane);
#pragma unroll
      for (i32 i = 0; i < STAGED; i++)
        if (first + i < count) ((Early*)dynamic_shared)[(first + i) * BLOCK + threadIdx.x] = raw[i];
    }
#endif
  }
  // Visits the vectors: number, place in the row, values.
  template <class What> __device__ __forceinline__ void each(const Parameters& p, const What& what) {
#if PER
#pragma unroll
    for (i32 i = 0; i < PER; i++)
      if (FULL || i < count) what(i, i * LANES + lane, held[i]);
#else
    for (i32 i = 0; i < count; i++) {
      const i32 at = i * LANES + lane;
#if STAGED
      what(i, at, values_of(base, ((Early*)dynamic_shared)[i * BLOCK + threadIdx.x]));
#else
      what(i, at, values_of(base, early(p, base, at)));
#endif
    }
#endif
  }
};

// The sums over a block's rows, of a thread's part of each row. They are in registers (COLUMNS 0),
// or in shared memory (1) or in the block's part of `partial` (2), where a row takes the whole block.
struct Columns {
#if SUMS && COLUMNS == 0
  W own[SUMS][PER * V];
#endif
  __device__ __forceinline__ W* stored(const Parameters& p, i32 s, i32 at) {
    W* to = p.partial + ((i64)s * gridDim.x + blockIdx.x) * (p.vectors * V);
#if SUMS && COLUMNS == 1
    to = (W*)dynamic_shared + s * (p.vectors * V);
#endif
    return to + (i64)at * V;
  }
  __device__ __forceinline__ void begin(const Parameters& p, i32 lane) {
#if SUMS && COLUMNS == 0
#pragma unroll
    for (i32 s = 0; s < SUMS; s++)
#pragma unroll
      for (i32 k = 0; k < PER * V; k++) own[s][k] = (W)0;
#elif SUMS
    for (i32 s = 0; s < SUMS; s++)
      for (i32 at = lane; at < p.vectors; at += LANES)
        for (i32 k = 0; k < V; k++) stored(p, s, at)[k] = (W)0;
#endif
  }
  __device__ __forceinline__ void add(const Parameters& p, i32 i, i32 at, i32 k, const W* terms) {
#pragma unroll
    for (i32 s = 0; s < SUMS; s++) {
#if COLUMNS == 0 && SUMS
      own[s][i * V + k] += terms[s];
#else
      stored(p, s, at)[k] += terms[s];
#endif
    }
  }
};

// Writes the sums of the block's slots, added in order, to the block's place.
INLINE void leave(const Parameters& p, Columns& columns, i32 lane, i32 slot) {
#if SUMS && COLUMNS == 0
#if TILE > 1
  __shared__ W shared[SUMS][PER * V][LANES];
  for (i32 turn = 0; turn < TILE; turn++) {
    if (slot == turn)
#pragma unroll
      for (i32 s = 0; s < SUMS; s++)
#pragma unroll
        for (i32 k = 0; k < PER * V; k++) {
          if (turn > 0) columns.own[s][k] += shared[s][k][lane];
          shared[s][k][lane] = columns.own[s][k];
        }
    __syncthreads();
  }
  if (slot != TILE - 1) return;
#endif
#pragma unroll
  for (i32 i = 0; i < PER; i++)
#pragma unroll
    for (i32 s = 0; s < SUMS; s++)
      if (i * LANES + lane < p.vectors)
#pragma unroll
        for (i32 k = 0; k < V; k++)
          columns.stored(p, s, i * LANES + lane)[k] = columns.own[s][i * V + k];
#elif SUMS && COLUMNS == 1
  const i64 length = p.vectors * V;
  for (i32 s = 0; s < SUMS; s++)
    for (i32 at = lane; at < p.vectors; at += LANES)
      for (i32 k = 0; k < V; k++)
        p.partial[((i64)s * gridDim.x + blockIdx.x) * length + (i64)at * V + k] =
            columns.stored(p, s, at)[k];
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) fused_rows(
    const __grid_constant__ Parameters p) {
  const i32 lane = threadIdx.x % LANES, slot = threadIdx.x / LANES;
  Columns columns;
  columns.begin(p, lane);
  for (i64 tile = (i64)blockIdx.x * TILE; tile < p.rows; tile += (i64)gridDim.x * TILE) {
    const i64 row = tile + slot;
    const bool exists = row < p.rows;
    Mine mine;
    mine.base = base_of(p, exists ? (Count)row : 0);
    mine.lane = lane;
    const i32 vectors = LOOSE ? (mine.base.skip + mine.base.run - 1) / V + 1 : (i32)p.vectors;
    mine.count = exists ? (vectors - lane + LANES - 1) / LANES : 0;
    mine.begin(p);
    const Row r = staged(p, mine);
    mine.each(p, [&](i32 i, i32 at, const Values& v) {
      const Late l = late(p, mine.base, at);
      Results y;
#pragma unroll
      for (i32 k = 0; k < V; k++) {
        result_of(mine.base, v, r, l, k, y);
#if SUMS
        W terms[SUMS];
        columns_of(mine.base, v, r, l, k, terms);
        columns.add(p, i, at, k, terms);
#endif
      }
      write(p, mine.base, at, y);
    });
    if (lane == 0 && exists) keep(p, r, row);
  }
  leave(p, columns, lane, slot);
}
