// Stable merge sort of lines: tiles of 1024 elements in shared memory, then runs of twice the
// length in each pass. T is the type of the elements, K the type in which they are compared, I the
// type of the resulting indices. With LARGEST the largest elements are first; of equal ones the
// lower index is always first. NaN is larger than all numbers.

struct Parameters {
  const T* x;
  T* values;        // or null
  I* indices;       // or null
  K *keys, *keys2;  // lines times length each, in the workspace
  u32 *order, *order2;
  i64 lines, length, kept, run, x_step, values_step, indices_step;
  i64 size[D], x_line[D], values_line[D], indices_line[D];
};

INLINE bool before(K a, u32 i, K b, u32 j) {
  const bool a_nan = a != a, b_nan = b != b;
  if (a_nan != b_nan) return LARGEST ? a_nan : b_nan;
  if (a_nan || a == b) return i < j;
  return LARGEST ? a > b : a < b;
}

#define OUTSIDE 0xffffffffu  // an index that is sorted after all others
#define EACH 4               // elements of a thread, one behind the other
#define WARP (32 * EACH)

// The first of two elements, or the second one.
INLINE void keep(K &key, u32 &index, K other, u32 j, bool first) {
  const bool is_first = index != OUTSIDE && (j == OUTSIDE || before(key, index, other, j));
  if (is_first != first) key = other, index = j;
}

// Whether the element in a slot is to be the first of two, in runs of a length that a bitonic
// network sorts up and down in turn.
INLINE bool is_first(i32 slot, i32 distance, i32 length) {
  return !(slot & distance) == !(slot % TILE & length);
}

template <i32 DISTANCE>
INLINE void exchange_own(K *key, u32 *index, i32 slot, i32 length) {
#pragma unroll
  for (i32 r = 0; r < EACH; r++) {
    if (r & DISTANCE) continue;
    const K a = key[r], b = key[r + DISTANCE];
    const u32 i = index[r], j = index[r + DISTANCE];
    const bool first = is_first(slot + r, DISTANCE, length);
    keep(key[r], index[r], b, j, first);
    keep(key[r + DISTANCE], index[r + DISTANCE], a, i, !first);
  }
}

// TILE elements, a power of two, are one piece of a line; a block sorts 1024 / TILE pieces. A
// thread exchanges elements with itself, with its warp, and through shared memory.
extern "C" __global__ void __launch_bounds__(256) sort_tiles(
    const __grid_constant__ Parameters p) {
  __shared__ K keys[1024];
  __shared__ u32 order[1024];
  const i64 tiles = (p.length + TILE - 1) / TILE;
  const i64 pieces = p.lines * tiles;
  const i32 slot = EACH * threadIdx.x;
  K key[EACH];
  u32 index[EACH];
#pragma unroll
  for (i32 r = 0; r < EACH; r++) {
    const i64 piece = (i64)blockIdx.x * (1024 / TILE) + (slot + r) / TILE;
    const i64 k = piece % tiles * TILE + (slot + r) % TILE;
    index[r] = OUTSIDE;
    key[r] = (K)0;
    if (piece < pieces && k < p.length) {
      const i64 line = place((COUNT)(piece / tiles), p.size, p.x_line);
      key[r] = convert<K>(p.x[line + k * p.x_step]);
      index[r] = (u32)k;
    }
  }
  for (i32 length = 2; length <= TILE; length *= 2) {
    i32 distance = length / 2;
    for (; distance >= WARP; distance /= 2) {
#pragma unroll
      for (i32 r = 0; r < EACH; r++) {
        keys[r * 256 + threadIdx.x] = key[r];
        order[r * 256 + threadIdx.x] = index[r];
      }
      __syncthreads();
#pragma unroll
      for (i32 r = 0; r < EACH; r++) {
        const i32 other = r * 256 + (threadIdx.x ^ distance / EACH);
        keep(key[r], index[r], keys[other], order[other], is_first(slot + r, distance, length));
      }
      __syncthreads();
    }
    for (; distance >= EACH; distance /= 2)
#pragma unroll
      for (i32 r = 0; r < EACH; r++) {
        const K other = (K)__shfl_xor_sync(0xffffffffu, key[r], distance / EACH);
        const u32 j = __shfl_xor_sync(0xffffffffu, index[r], distance / EACH);
        keep(key[r], index[r], other, j, is_first(slot + r, distance, length));
      }
    if (length > 2) exchange_own<2>(key, index, slot, length);
    exchange_own<1>(key, index, slot, length);
  }
#pragma unroll
  for (i32 r = 0; r < EACH; r++) {
    const i64 piece = (i64)blockIdx.x * (1024 / TILE) + (slot + r) / TILE;
    const i64 k = piece % tiles * TILE + (slot + r) % TILE;
    if (piece < pieces && k < p.length) {
      const i64 at = piece / tiles * p.length + k;
      p.keys[at] = key[r];
      p.order[at] = index[r];
    }
  }
}

// Each element finds its position among those of the neighbouring run.
extern "C" __global__ void __launch_bounds__(256) merge_runs(
    const __grid_constant__ Parameters p) {
  const i64 total = p.lines * p.length;
  for (i64 at = global_thread(); at < total; at += thread_count()) {
    const i64 line = at / p.length * p.length, k = at - line;
    const i64 run = k / p.run, twin = run ^ 1;
    const K key = p.keys[at];
    const u32 index = p.order[at];
    i64 low = twin * p.run < p.length ? twin * p.run : p.length;
    const i64 first = low;
    i64 high = low + p.run < p.length ? low + p.run : p.length;
    while (low < high) {
      const i64 middle = (low + high) / 2;
      if (before(p.keys[line + middle], p.order[line + middle], key, index)) low = middle + 1;
      else high = middle;
    }
    const i64 to = line + (run & ~1ll) * p.run + (k - run * p.run) + (low - first);
    p.keys2[to] = key;
    p.order2[to] = index;
  }
}

// Writes the first elements of each line to the results.
extern "C" __global__ void __launch_bounds__(256) leave(const __grid_constant__ Parameters p) {
  const i64 total = p.lines * p.kept;
  for (i64 n = global_thread(); n < total; n += thread_count()) {
    const i64 line = n / p.kept, k = n - line * p.kept;
    const i64 from = line * p.length + k;
    if (p.values)
      p.values[place((COUNT)line, p.size, p.values_line) + k * p.values_step] =
          convert<T>(p.keys[from]);
    if (p.indices)
      p.indices[place((COUNT)line, p.size, p.indices_line) + k * p.indices_step] =
          convert<I>((i64)p.order[from]);
  }
}
