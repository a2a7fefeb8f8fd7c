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

// TILE elements, a power of two, are one piece of a line; a block sorts 1024 / TILE pieces.
extern "C" __global__ void __launch_bounds__(256) sort_tiles(
    const __grid_constant__ Parameters p) {
  __shared__ K keys[1024];
  __shared__ u32 order[1024];
  const i64 tiles = (p.length + TILE - 1) / TILE;
  const i64 pieces = p.lines * tiles;
  const u32 outside = 0xffffffffu;  // an index that is sorted after all others
  for (i32 slot = threadIdx.x; slot < 1024; slot += 256) {
    const i64 piece = (i64)blockIdx.x * (1024 / TILE) + slot / TILE;
    const i64 k = piece % tiles * TILE + slot % TILE;
    order[slot] = outside;
    keys[slot] = (K)0;
    if (piece < pieces && k < p.length) {
      const i64 line = place((COUNT)(piece / tiles), p.size, p.x_line);
      keys[slot] = convert<K>(p.x[line + k * p.x_step]);
      order[slot] = (u32)k;
    }
  }
  __syncthreads();
  for (i32 length = 2; length <= TILE; length *= 2)
    for (i32 distance = length / 2; distance > 0; distance /= 2) {
      for (i32 pair = threadIdx.x; pair < 512; pair += 256) {
        const i32 low = pair & (distance - 1);  // a distance is a power of two
        const i32 a = 2 * (pair - low) + low, b = a + distance;
        const bool up = (a % TILE & length) == 0;
        const i32 first = up ? b : a, second = up ? a : b;
        const u32 i = order[first], j = order[second];
        if (i != outside && (j == outside || before(keys[first], i, keys[second], j))) {
          const K key = keys[a];
          keys[a] = keys[b], keys[b] = key;
          order[first] = j, order[second] = i;
        }
      }
      __syncthreads();
    }
  for (i32 slot = threadIdx.x; slot < 1024; slot += 256) {
    const i64 piece = (i64)blockIdx.x * (1024 / TILE) + slot / TILE;
    const i64 k = piece % tiles * TILE + slot % TILE;
    if (piece < pieces && k < p.length) {
      const i64 at = piece / tiles * p.length + k;
      p.keys[at] = keys[slot];
      p.order[at] = order[slot];
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
