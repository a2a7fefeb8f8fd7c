// The K best of each line in order, for lines that are much longer than K. T is the elements' type,
// KEY an unsigned type that holds their order, I the type of the indices that leave; LARGEST says
// which are best. Of equal ones the lower index comes first; NaN is larger than all numbers.
//
// A block streams over a line, or a chunk of one, and keeps what may be among the best in shared
// memory. A bound lets through few: at first the K-th of each thread's best, then that of a sort of
// what is kept, whenever that has become much. The candidates of all chunks meet in `second`.

struct Parameters {
  const T* x;
  T* values;   // or null
  I* indices;  // or null
  KEY* keys;   // lines times chunks times kept each, in the workspace
  u32* order;
  i64 lines, length, kept, chunks, part, x_step, values_step, indices_step;
  i64 size[D], x_line[D], values_line[D], indices_line[D];
};

constexpr u32 NOWHERE = 0xffffffffu;
// Elements that all threads bring at a time; what is kept at most, and when it is sorted in between.
constexpr i32 AT_A_TIME = THREADS * VEC, ROOM = 2 * AT_A_TIME > 1024 ? 2 * AT_A_TIME : 1024, MANY = 512;

// Both zeros are one number.
INLINE u32 ordered(float x) {
  union { float number; u32 bits; } u;
  u.number = x == 0.0f ? 0.0f : x;
  if (x != x) return 0xffffffffu;
  return u.bits >> 31 ? ~u.bits : u.bits | 0x80000000u;
}
INLINE u64 ordered(double x) {
  union { double number; u64 bits; } u;
  u.number = x == 0.0 ? 0.0 : x;
  if (x != x) return ~0ull;
  return u.bits >> 63 ? ~u.bits : u.bits | 0x8000000000000000ull;
}
INLINE u32 ordered(f16 x) { return ordered(widen(x)); }
INLINE u32 ordered(bf16 x) { return ordered(widen(x)); }
INLINE u64 ordered(i64 x) { return (u64)x ^ 0x8000000000000000ull; }
INLINE u64 ordered(u64 x) { return x; }
INLINE u32 ordered(i32 x) { return (u32)x ^ 0x80000000u; }
INLINE u32 ordered(i16 x) { return ordered((i32)x); }
INLINE u32 ordered(i8 x) { return ordered((i32)x); }
INLINE u32 ordered(u32 x) { return x; }
INLINE u32 ordered(u16 x) { return x; }
INLINE u32 ordered(u8 x) { return x; }
INLINE u32 ordered(bool x) { return x; }

INLINE bool before(KEY a, u32 i, KEY b, u32 j) { return a > b || (a == b && i < j); }

// What is kept: one of the block, so that functions that are not inlined know where it is.
__shared__ struct Kept {
  KEY keys[ROOM];
  u32 order[ROOM];
  i32 count;
} s;

// The first `n` kept in order, by all threads.
static __device__ __noinline__ void sort(i32 n) {
  i32 whole = 2;
  while (whole < n) whole *= 2;
  for (i32 i = n + threadIdx.x; i < whole; i += THREADS) s.keys[i] = 0, s.order[i] = NOWHERE;
  __syncthreads();
  for (i32 length = 2; length <= whole; length *= 2)
    for (i32 distance = length / 2; distance > 0; distance /= 2) {
      for (i32 pair = threadIdx.x; pair < whole / 2; pair += THREADS) {
        const i32 a = 2 * pair - (pair & (distance - 1)), b = a + distance;
        const KEY x = s.keys[a], y = s.keys[b];
        const u32 i = s.order[a], j = s.order[b];
        if ((a & length) == 0 ? before(y, j, x, i) : before(x, i, y, j)) {
          s.keys[a] = y, s.order[a] = j;
          s.keys[b] = x, s.order[b] = i;
        }
      }
      __syncthreads();
    }
}

struct Held {
  KEY key[VEC];
  u32 at[VEC];  // NOWHERE where there is no element
};
template <bool SECOND> INLINE void fetch(const Parameters& p, const T* x, i64 from, i64 k, i64 high, Held& e) {
  if (SECOND) {
    const bool some = k < high;
    e.key[0] = some ? p.keys[from + k] : (KEY)0;
    e.at[0] = some ? p.order[from + k] : NOWHERE;
    return;
  }
  Vec<T, VEC> found;
  if (k < high) found = load<VEC>(x + k * p.x_step);
#pragma unroll
  for (i32 v = 0; v < VEC; v++) {
    const KEY key = k < high ? (KEY)ordered(found.v[v]) : (KEY)0;
    e.key[v] = k >= high ? (KEY)0 : LARGEST ? key : (KEY)~key;
    e.at[v] = k < high ? (u32)(k + v) : NOWHERE;
  }
}

template <bool SECOND> INLINE void best(const Parameters& p) {
  constexpr i32 WIDTH = SECOND ? 1 : VEC;
  const i64 n = SECOND ? blockIdx.x : blockIdx.x / p.chunks, c = SECOND ? 0 : blockIdx.x % p.chunks;
  const i64 low = c * p.part, end = SECOND ? p.chunks * p.kept : p.length;
  const i64 high = !SECOND && low + p.part < end ? low + p.part : end, from = n * p.chunks * p.kept;
  const T* const x = p.x + place((COUNT)n, p.size, p.x_line);
  const i32 kept = (i32)p.kept;
  KEY bound = 0;
  u32 bound_at = NOWHERE;
  if (threadIdx.x == 0) s.count = 0;
  for (i64 tile = low; tile < high; tile += THREADS * WIDTH * DEEP) {
    Held e[DEEP];
#pragma unroll
    for (i32 j = 0; j < DEEP; j++)
      fetch<SECOND>(p, x, from, tile + (j * THREADS + threadIdx.x) * WIDTH, high, e[j]);
    if (tile == low) {
      KEY mine = 0;
      u32 at = NOWHERE;
#pragma unroll
      for (i32 j = 0; j < DEEP; j++)
#pragma unroll
        for (i32 v = 0; v < WIDTH; v++)
          if (before(e[j].key[v], e[j].at[v], mine, at)) mine = e[j].key[v], at = e[j].at[v];
      s.keys[threadIdx.x] = mine, s.order[threadIdx.x] = at;
      sort(THREADS);
      bound = s.keys[kept - 1], bound_at = s.order[kept - 1];
      __syncthreads();
    }
#pragma unroll
    for (i32 j = 0; j < DEEP; j++) {
      const i32 count = s.count;
      __syncthreads();
      if (count > MANY + kept || count > ROOM - AT_A_TIME) {
        sort(count);
        if (count >= kept) bound = s.keys[kept - 1], bound_at = s.order[kept - 1];
        if (threadIdx.x == 0) s.count = count < kept ? count : kept;
        __syncthreads();
      }
#pragma unroll
      for (i32 v = 0; v < WIDTH; v++)
        if (e[j].at[v] != NOWHERE && !before(bound, bound_at, e[j].key[v], e[j].at[v])) {
          const i32 to = atomicAdd(&s.count, 1);
          s.keys[to] = e[j].key[v], s.order[to] = e[j].at[v];
        }
      __syncthreads();
    }
  }
  const i32 count = s.count;
  sort(count);
  for (i32 k = threadIdx.x; k < kept; k += THREADS) {
    if (!SECOND && p.chunks > 1) {
      const bool some = k < count;  // a chunk may be shorter
      p.keys[from + c * p.kept + k] = some ? s.keys[k] : (KEY)0;
      p.order[from + c * p.kept + k] = some ? s.order[k] : NOWHERE;
      continue;
    }
    const u32 at = s.order[k];
    if (p.values)
      p.values[place((COUNT)n, p.size, p.values_line) + k * p.values_step] = x[(i64)at * p.x_step];
    if (p.indices)
      p.indices[place((COUNT)n, p.size, p.indices_line) + k * p.indices_step] = (I)at;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) top_k(const __grid_constant__ Parameters p) {
  best<false>(p);
}

extern "C" __global__ void __launch_bounds__(THREADS) second(const __grid_constant__ Parameters p) {
  best<true>(p);
}
