// Rows that are read once: LANES threads keep the values of a row in registers, PER vectors of V
// elements each, while they compute sums over it; with PER 0 they read it again for each sum, from
// shared memory if the row is STAGED there: each thread finds what it has put there itself.
// FULL: all of these vectors exist, in all blocks. A LOOSE row begins anywhere: its vectors are the
// aligned ones that are whole, and the elements before and behind them, its ends, are shared by the
// lanes. TILED: a block copies its rows, of so many elements, through shared memory, so that memory is
// read and written in vectors. AHEAD: a block has so many rows, and copies its next one to
// shared memory while it computes one; those behind the early blocks have one row, so that all end
// at about the same time. The blocks of a CLUSTER share one STAGED row. Printed before this text are
// the operands' access, and `staged`, which computes all sums of a row.

#define TILE (BLOCK / LANES)
// Threads of a row, in all of its blocks.
#define ALL_LANES (LANES * CLUSTER)
// Elements of a row's ends that a thread has at most.
#define ENDS ((2 * V - 2 + ALL_LANES - 1) / ALL_LANES)

// Combines what the blocks of a cluster have, in their order. A cluster has one row, so each call has
// memory of its own: none waits until that has been read.
#if CLUSTER > 1
template <class HOW, int N> INLINE void meet_in_cluster(W (&sums)[N]) {
  __shared__ W told[CLUSTER][N];
  if (threadIdx.x < CLUSTER) {
    const u32 to = address_at(shared_address(told[cluster_rank()]), threadIdx.x);
#pragma unroll
    for (i32 i = 0; i < (i32)(sizeof(sums) / 4); i++)
      asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(to + 4 * i), "r"(((const u32*)sums)[i])
                   : "memory");
  }
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#pragma unroll
  for (i32 n = 0; n < N; n++) {
    sums[n] = told[0][n];
#pragma unroll
    for (i32 c = 1; c < CLUSTER; c++) sums[n] = HOW::of(n, sums[n], told[c][n]);
  }
}
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
    constexpr i32 MEET = WARPS > 16 ? 32 : WARPS > 8 ? 16 : WARPS > 4 ? 8 : WARPS > 2 ? 4 : 2;
    __shared__ W all[N][32];
    const i32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();
    if (lane == 0)
#pragma unroll
      for (i32 n = 0; n < N; n++) all[n][warp] = sums[n];
    __syncthreads();
#pragma unroll
    for (i32 n = 0; n < N; n++) {
      const i32 other = lane % MEET;
      sums[n] = other < WARPS ? all[n][warp / WARPS * WARPS + other] : HOW::none(n);
#pragma unroll
      for (i32 half = MEET / 2; half > 0; half /= 2)
        sums[n] = HOW::of(n, sums[n], __shfl_xor_sync(0xffffffffu, sums[n], half));
    }
  }
#if CLUSTER > 1
  meet_in_cluster<HOW>(sums);
#endif
}

// The part of a row that a thread has: `count` vectors, every ALL_LANES-th, and some of the `ends`
// elements outside of vectors, of which `head` are before them. What does not exist is read from
// where something is, and does not count.
struct Mine {
  Base base;
  i32 lane, count, vectors, head, ends;
  bool back;  // a row that is read again is read in turn from either end, which the caches have
#if PER
  Values<V> held[PER];
#if LOOSE
  Values<1> held_ends[ENDS];
#endif
#endif
  // Only the last vector of a lane may be missing.
  __device__ __forceinline__ bool has(i32 i) const {
    return FULL || i < PER - 1 || i * ALL_LANES + lane < vectors;
  }
  __device__ __forceinline__ bool has_end(i32 i) const { return i * ALL_LANES + lane < ends; }
  // Where a vector is: its number, or the place of its first element in a row that begins anywhere.
  __device__ __forceinline__ i32 place(i32 i) const {
    const i32 number = has(i) ? i * ALL_LANES + lane : vectors - 1;
    return LOOSE ? head + number * V : number;
  }
  __device__ __forceinline__ i32 end(i32 i) const {
    const i32 number = has_end(i) ? i * ALL_LANES + lane : 0;
    return number < head ? number : number + vectors * V;
  }

  __device__ __forceinline__ void locate(const Parameters& p, i64 row, i32 first) {
    base = base_of(p, (Count)(FULL || row < p.rows ? row : p.rows - 1));
    lane = first, back = false;
    head = base.head;
    vectors = LOOSE ? ((i32)p.run - head) / V : TILED ? TILED : (i32)p.vectors;
    ends = LOOSE ? (i32)p.run - vectors * V : 0;
#if TILED
    in_tile(base, FULL || row < p.rows ? threadIdx.x / LANES : 0);
#endif
    count = (vectors - lane + ALL_LANES - 1) / ALL_LANES;
  }
  __device__ __forceinline__ void begin(const Parameters& p, i64 row, i32 first) {
    locate(p, row, first);
#if PER
    Early<V> raw[PER];
#pragma unroll
    for (i32 i = 0; i < PER; i++) raw[i] = early<V>(p, base, place(i));
#if LOOSE
    Early<1> raw_ends[ENDS];
    read_ends(p, raw_ends);
    hold_ends(raw_ends);
#endif
#pragma unroll
    for (i32 i = 0; i < PER; i++) held[i] = values_of(base, raw[i]);
#elif STAGED
    for (i32 i = 0; i < count; i++)
      stage(p, base, place(i), (Early<V>*)dynamic_shared + i * BLOCK + threadIdx.x);
    group_copies();
    settled<0>();
#if CLUSTER > 1
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");  // all blocks have begun
#endif
#endif
  }
#if PER && LOOSE
  __device__ __forceinline__ void read_ends(const Parameters& p, Early<1> (&raw)[ENDS]) const {
#pragma unroll
    for (i32 i = 0; i < ENDS; i++) raw[i] = early<1>(p, base, ends ? end(i) : 0);
  }
  __device__ __forceinline__ void hold_ends(const Early<1> (&raw)[ENDS]) {
#pragma unroll
    for (i32 i = 0; i < ENDS; i++) held_ends[i] = values_of(base, raw[i]);
  }
#endif
#if AHEAD
  // Copies a thread's part of a row to where that thread alone reads it, once `settled`.
  __device__ __forceinline__ void copy(const Parameters& p) const {
#pragma unroll
    for (i32 i = 0; i < PER; i++)
      stage(p, base, place(i), (Early<V>*)dynamic_shared + i * BLOCK + threadIdx.x);
    group_copies();
  }
  __device__ __forceinline__ void hold() {
#pragma unroll
    for (i32 i = 0; i < PER; i++)
      held[i] = values_of(base, ((const Early<V>*)dynamic_shared)[i * BLOCK + threadIdx.x]);
  }
#endif
  // Visits the vectors, then the ends: number, place in the row, values, whether it counts.
  template <class What, class Ends>
  __device__ __forceinline__ void each(const Parameters& p, const What& what, const Ends& of_end) {
#if PER
#pragma unroll
    for (i32 i = 0; i < PER; i++) what(i, place(i), held[i], has(i));
#if LOOSE
#pragma unroll
    for (i32 i = 0; i < ENDS; i++) of_end(i, end(i), held_ends[i], has_end(i));
#endif
#else
#pragma unroll 4
    for (i32 n = 0; n < count; n++) {
      const i32 i = !STAGED && back ? count - 1 - n : n;
#if STAGED
      Values<V> own = values_of(base, ((Early<V>*)dynamic_shared)[i * BLOCK + threadIdx.x]);
#else
      Values<V> own = values_of(base, early<V>(p, base, place(i)));
#endif
      what(i, place(i), own, true);
    }
#if LOOSE
    for (i32 i = 0; i < ENDS; i++)
      if (has_end(i)) {
        Values<1> own = values_of(base, early<1>(p, base, end(i)));
        of_end(0, end(i), own, true);
      }
#endif
    back = !back;
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

// Computes the results of some neighbours, and adds their terms of sums over rows.
template <i32 N> INLINE void finish(
    const Parameters& p, const Base& base, Columns& columns, const Row& r, i32 i, i32 at,
    const Values<N>& v) {
  const Late<N> l = late<N>(p, base, at);
  Results<N> y;
#pragma unroll
  for (i32 k = 0; k < N; k++) {
    result_of(base, v, r, l, k, y);
#if SUMS
    W terms[SUMS];
    columns_of(base, v, r, l, k, terms);
    columns.add(p, i, at, k, terms);
#endif
  }
  write<N>(p, base, at, y);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) IN_CLUSTER fused_rows(
    const __grid_constant__ Parameters p) {
#if CLUSTER > 1
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  const i32 lane = cluster_rank() * LANES + threadIdx.x, slot = 0;
#else
  const i32 lane = threadIdx.x % LANES, slot = threadIdx.x / LANES;
#endif
  Columns columns;
  columns.begin(p, lane);
#if AHEAD
  const i64 block = blockIdx.x, late = block < p.early ? 0 : block - p.early;
  const i64 first = ((block - late) * AHEAD + late) * TILE, step = TILE;
  const i64 reach = first + (block < p.early ? AHEAD : 1) * TILE;
  const i64 last = reach < p.rows ? reach : p.rows;
#else
  const i64 first = (i64)(blockIdx.x / CLUSTER) * TILE, step = (i64)(gridDim.x / CLUSTER) * TILE;
  const i64 last = p.rows;
#endif
#if AHEAD
  Mine next;
  next.locate(p, first + slot, lane);
  next.copy(p);
#if LOOSE
  Early<1> next_ends[ENDS];
  next.read_ends(p, next_ends);
#endif
#endif
  for (i64 tile = first; tile < last; tile += step) {
    const i64 row = tile + slot;
    const bool exists = FULL || row < p.rows;
#if TILED
    const i32 rows = p.rows - tile < TILE ? (i32)(p.rows - tile) : TILE;
    fill(p, tile, rows);
    group_copies();
    settled<0>();
    __syncthreads();
#endif
#if AHEAD
    Mine mine = next;  // with what a row has one element of
    settled<0>();
    mine.hold();
#if LOOSE
    mine.hold_ends(next_ends);
#endif
    if (tile + step < last) {
      next.locate(p, row + step, lane);
      next.copy(p);
#if LOOSE
      next.read_ends(p, next_ends);
#endif
    }
#else
    Mine mine;
    mine.begin(p, row, lane);
#endif
    const Row r = staged(p, mine);
    mine.each(p, VISIT(if (counts && exists) finish(p, mine.base, columns, r, i, at, v)));
    if (lane == 0 && exists) keep(p, r, row);
#if TILED
    __syncthreads();
    drain(p, tile, rows);
    __syncthreads();
#endif
  }
  leave(p, columns, lane, slot);
}
