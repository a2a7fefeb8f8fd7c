// Where a mask of bools holds. A block has a part of PART elements, a thread 16 of them at a time.

struct Parameters {
  const u8* mask;
  i64* counts;  // of each part, behind a 0; for places those before each part
  i64* y;
  i64 size, count;
};

constexpr int WARPS = THREADS / 32, EACH = PART / THREADS;

// The mask of a thread's elements as bits.
INLINE u32 chosen(const Parameters& p, i64 first) {
  u32 bits = 0;
  if (WIDE && first + EACH <= p.size) {
    const Vec<u8, EACH> x = load<EACH>(p.mask + first);
#pragma unroll
    for (int k = 0; k < EACH; k++) bits |= (u32)(x.v[k] != 0) << k;
  } else {
#pragma unroll
    for (int k = 0; k < EACH; k++)
      if (first + k < p.size) bits |= (u32)(p.mask[first + k] != 0) << k;
  }
  return bits;
}

// How many elements threads before this one have, and the whole block.
struct Place {
  u32 before, all;
};

INLINE Place placed(u32 own) {
  __shared__ u32 sums[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u32 sum = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const u32 other = __shfl_up_sync(0xffffffffu, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  Place found = {sum - own, 0};
#pragma unroll
  for (int w = 0; w < WARPS; w++) {
    if (w < warp) found.before += sums[w];
    found.all += sums[w];
  }
  return found;
}

extern "C" __global__ void __launch_bounds__(THREADS) counts(const __grid_constant__ Parameters p) {
  const i64 first = (i64)blockIdx.x * PART + (i64)threadIdx.x * EACH;
  const Place found = placed(__popc(chosen(p, first)));
  if (threadIdx.x == 0) {
    if (blockIdx.x == 0) p.counts[0] = 0;
    if ((i64)blockIdx.x * PART < p.size) p.counts[blockIdx.x + 1] = found.all;
  }
}

// Numbers are collected first, so that neighbours write to neighbours.
extern "C" __global__ void __launch_bounds__(THREADS) places(const __grid_constant__ Parameters p) {
  __shared__ u16 held[PART];
  const int own = (int)threadIdx.x * EACH;
  const i64 part = (i64)blockIdx.x * PART;
  u32 bits = chosen(p, part + own);
  const Place found = placed(__popc(bits));
  u32 to = found.before;
#pragma unroll
  for (int k = 0; k < EACH; k++)
    if (bits >> k & 1) held[to++] = (u16)(own + k);
  __syncthreads();
  const i64 before = p.counts[blockIdx.x];
  for (u32 i = threadIdx.x; i < found.all; i += THREADS)
    if (before + i < p.count) p.y[before + i] = part + held[i];
}
