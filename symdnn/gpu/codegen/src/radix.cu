// Stable radix sort of lines, 8 bits in each pass. T is the type of the elements, U the unsigned
// type of their size, I the type of the resulting indices. Elements are ordered by keys: NaN is
// larger than all numbers, zeros are equal; with LARGEST the largest come first. A pass counts the
// digits of tiles, adds up the counts, and moves each tile's elements, which it sorts first, to
// their places. ITEMS are a thread's elements of a tile; one block adds up the counts of GROUP
// tiles.

#define THREADS 256
#define TILE (THREADS * ITEMS)
// Elements in shared memory, so that neighbouring runs of 16 do not begin in one bank.
#define SLOT(k) ((k) + ((k) >> 4))

struct Parameters {
  const T* x;
  T* values;   // or null
  I* indices;  // or null
  U *keys, *keys2;  // lines times length each, in the workspace
  u32 *order, *order2;
  u32 *counts, *totals;  // of each digit, by line and tile, and by line and group of tiles
  i64 lines, length, kept, tiles, groups, shift, x_step, values_step, indices_step;
  i64 size[D], x_line[D], values_line[D], indices_line[D];
};

#define SIGN ((U)1 << (8 * sizeof(U) - 1))

INLINE U raw_of(f16 x) { return (U)x.bits; }
INLINE U raw_of(bf16 x) { return (U)x.bits; }
template <class X> INLINE U raw_of(X x) {
  union { X x; U bits; } same;
  same.x = x;
  return same.bits;
}

INLINE U key_of(T x) {
  U key = raw_of(x);
#if FLOATING
  const auto v = widen(x);
  if (v == 0) key = 0;
  key = v != v ? (U)~(U)0 : key & SIGN ? (U)~key : (U)(key | SIGN);
#elif SIGNED
  key ^= SIGN;
#endif
  return LARGEST ? (U)~key : key;
}

INLINE u32 digit_of(U key, i64 shift) { return (u32)(key >> shift) & 255u; }

// The element of a line that this pass reads.
INLINE U read(const Parameters& p, i64 line, i64 k) {
  if (p.shift > 0) return p.keys[line * p.length + k];
  return key_of(p.x[place((COUNT)line, p.size, p.x_line) + k * p.x_step]);
}

extern "C" __global__ void __launch_bounds__(THREADS) histogram(
    const __grid_constant__ Parameters p) {
  __shared__ u32 counts[256];
  const i64 line = blockIdx.x / p.tiles, tile = blockIdx.x - line * p.tiles;
  counts[threadIdx.x] = 0;
  __syncthreads();
#pragma unroll
  for (i32 i = 0; i < ITEMS; i++) {
    const i64 k = tile * TILE + i * THREADS + threadIdx.x;
    if (k < p.length) atomicAdd(&counts[digit_of(read(p, line, k), p.shift)], 1u);
  }
  __syncthreads();
  p.counts[(line * p.tiles + tile) * 256 + threadIdx.x] = counts[threadIdx.x];
}

// The sum of a value over the threads before this one; `total` is that of all.
INLINE u32 sum_before(u32 value, u32& total) {
  __shared__ u32 sums[2][THREADS];
  const i32 t = threadIdx.x;
  i32 at = 0;
  __syncthreads();
  sums[0][t] = value;
  __syncthreads();
#pragma unroll
  for (i32 distance = 1; distance < THREADS; distance *= 2) {
    sums[at ^ 1][t] = sums[at][t] + (t >= distance ? sums[at][t - distance] : 0);
    at ^= 1;
    __syncthreads();
  }
  total = sums[at][THREADS - 1];
  return sums[at][t] - value;
}

// The counts of a digit's tiles become sums over the tiles before each in its group.
extern "C" __global__ void __launch_bounds__(THREADS) add_up(
    const __grid_constant__ Parameters p) {
  const i64 line = blockIdx.x / p.groups, group = blockIdx.x - line * p.groups;
  const i64 first = group * GROUP;
  const i32 count = p.tiles - first < GROUP ? (i32)(p.tiles - first) : GROUP;
  u32* counts = p.counts + (line * p.tiles + first) * 256 + threadIdx.x;
  u32 sum = 0;
#pragma unroll 8
  for (i32 tile = 0; tile < count; tile++) {
    const u32 own = counts[tile * 256];
    counts[tile * 256] = sum;
    sum += own;
  }
  p.totals[(i64)blockIdx.x * 256 + threadIdx.x] = sum;
}

// The totals of groups become the places where their elements begin.
extern "C" __global__ void __launch_bounds__(THREADS) add_groups(
    const __grid_constant__ Parameters p) {
  u32* totals = p.totals + (i64)blockIdx.x * p.groups * 256 + threadIdx.x;
  u32 all = 0, total;
#pragma unroll 8
  for (i64 group = 0; group < p.groups; group++) all += totals[group * 256];
  u32 sum = sum_before(all, total);
#pragma unroll 8
  for (i64 group = 0; group < p.groups; group++) {
    const u32 own = totals[group * 256];
    totals[group * 256] = sum;
    sum += own;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) scatter(
    const __grid_constant__ Parameters p) {
  __shared__ U keys[SLOT(TILE)];
  __shared__ u32 order[SLOT(TILE)];
  __shared__ unsigned short ranks[16 * THREADS];
  __shared__ u32 start[256], base[256];
  const i64 line = blockIdx.x / p.tiles, tile = blockIdx.x - line * p.tiles;
  const i32 t = threadIdx.x;
  const i64 left = p.length - tile * TILE;
  const i32 count = left < TILE ? (i32)left : TILE;
  u32 total;
  base[t] = p.totals[(line * p.groups + tile / GROUP) * 256 + t] +
            p.counts[(line * p.tiles + tile) * 256 + t];
#pragma unroll
  for (i32 i = 0; i < ITEMS; i++) {
    const i32 k = i * THREADS + t;
    const i64 at = tile * TILE + k;
    keys[SLOT(k)] = k < count ? read(p, line, at) : (U)~(U)0;
    order[SLOT(k)] = k >= count ? 0 : p.shift > 0 ? p.order[line * p.length + at] : (u32)at;
  }
  // The tile is sorted by this digit, four bits at a time. What is beyond the line stays last.
#pragma unroll
  for (i32 half = 0; half < 8; half += 4) {
    U key[ITEMS];
    u32 number[ITEMS], rank[ITEMS];
#pragma unroll
    for (i32 d = 0; d < 16; d++) ranks[d * THREADS + t] = 0;
    __syncthreads();
#pragma unroll
    for (i32 i = 0; i < ITEMS; i++) {
      key[i] = keys[SLOT(t * ITEMS + i)];
      number[i] = order[SLOT(t * ITEMS + i)];
      rank[i] = ranks[(digit_of(key[i], p.shift) >> half & 15) * THREADS + t]++;
    }
    __syncthreads();
    u32 own = 0;
#pragma unroll
    for (i32 d = 0; d < 16; d++) own += ranks[t * 16 + d];
    u32 before = sum_before(own, total);
#pragma unroll
    for (i32 d = 0; d < 16; d++) {
      const u32 n = ranks[t * 16 + d];
      ranks[t * 16 + d] = (unsigned short)before;
      before += n;
    }
    __syncthreads();
#pragma unroll
    for (i32 i = 0; i < ITEMS; i++) {
      const u32 to = rank[i] + ranks[(digit_of(key[i], p.shift) >> half & 15) * THREADS + t];
      keys[SLOT(to)] = key[i];
      order[SLOT(to)] = number[i];
    }
    __syncthreads();
  }
#pragma unroll
  for (i32 i = 0; i < ITEMS; i++) {
    const i32 k = i * THREADS + t;
    const u32 d = digit_of(keys[SLOT(k)], p.shift);
    if (k == 0 || digit_of(keys[SLOT(k - 1)], p.shift) != d) start[d] = k;
  }
  __syncthreads();
#pragma unroll
  for (i32 i = 0; i < ITEMS; i++) {
    const i32 k = i * THREADS + t;
    if (k >= count) continue;
    const u32 d = digit_of(keys[SLOT(k)], p.shift);
    const i64 to = line * p.length + base[d] + (k - start[d]);
    p.keys2[to] = keys[SLOT(k)];
    p.order2[to] = order[SLOT(k)];
  }
}

// Writes the first elements of each line to the results.
extern "C" __global__ void __launch_bounds__(THREADS) leave(
    const __grid_constant__ Parameters p) {
  const i64 total = p.lines * p.kept;
  for (i64 n = global_thread(); n < total; n += thread_count()) {
    const i64 line = n / p.kept, k = n - line * p.kept;
    const u32 from = p.order[line * p.length + k];
    if (p.values)
      p.values[place((COUNT)line, p.size, p.values_line) + k * p.values_step] =
          p.x[place((COUNT)line, p.size, p.x_line) + (i64)from * p.x_step];
    if (p.indices)
      p.indices[place((COUNT)line, p.size, p.indices_line) + k * p.indices_step] =
          convert<I>((i64)from);
  }
}
