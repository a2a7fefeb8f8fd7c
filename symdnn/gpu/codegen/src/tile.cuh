// Tiles of V A rows by V B columns, in which operands that lie along the rows are turned. A thread
// reads a block of V by V, turns it in registers and puts it into shared memory; then it has V
// elements of V rows. V, A and B are powers of two.
//
// One thread reads each vector of operands whose vectors are aligned (WHOLE is 1) or begin anywhere
// (2). Elements of others (0) are read one by one: LANES neighbouring threads read neighbouring ones.
// Where results are such, a thread's elements of a row are B columns apart (SPREAD), or each row of a
// tile is shifted to the left by up to V - 1 columns, to where a vector of the result is aligned; then
// the tile has an edge of V columns more.

// Threads that read a part of a line of V A elements that is not WHOLE, and the parts of a line.
template <int V, int A> constexpr i32 LANES = V * A < 32 ? V * A : 32;
template <int V, int A> constexpr i32 PARTS = V * A / LANES<V, A>;

// Number `k` of the V times V lines, of part `unit % PARTS`, that a thread reads.
template <int V, int A, int B> INLINE i32 tile_unit(i32 k) {
  return threadIdx.x / LANES<V, A> + k * (A * B / LANES<V, A>);
}

// The position of a group of V columns in shared memory depends on the row, which avoids bank
// conflicts.
template <int V, int B, int WHOLE> INLINE i32 tile_slot(i32 row, i32 group) {
  return row * B + (group ^ ((WHOLE ? row / V : row) & (B - 1)));
}

// Elements APART along a line with so many left, less `skipped` ones; if aligned all of them, or none.
// What lies beyond is 1: it is computed with the rest, and an iteration (of zeta) might never end for
// any bits.
template <int WHOLE, int APART, int V, class T>
INLINE void tile_load(Vec<T, V>& held, const T* line, i64 left, i64 skipped = 0) {
  if (WHOLE == 1 && APART == 1 && left > 0) {
    held = load<V>(line);
    return;
  }
  if constexpr (WHOLE == 2) {
    if (left >= V && skipped <= 0) {
      held = load_any<V>(line);
      return;
    }
  }
#pragma unroll
  for (i32 k = 0; k < V; k++)
    held.v[k] = k * APART < left && k >= skipped ? line[k * APART] : convert<T>(1.0f);
}

template <int WHOLE, int APART, int V, class T>
INLINE void tile_store(T* line, const Vec<T, V>& held, i64 left, i64 skipped = 0) {
  if (WHOLE == 1 && APART == 1) {
    if (left > 0) store_whole(line, held);
    return;
  }
  if (WHOLE == 2 && left >= V && skipped <= 0 && (u64)line % sizeof(held) == 0) {
    store_whole(line, held);
    return;
  }
#pragma unroll
  for (i32 k = 0; k < V; k++)
    if (k * APART < left && k >= skipped) line[k * APART] = held.v[k];
}

// How many elements an address is behind the start of a vector.
template <int V, class T> INLINE i32 tile_shift(const T* at) { return (i32)((u64)at / sizeof(T) % V); }

// A thread's elements of an operand that lies along the rows, `step` from one column to the next:
// a block of V vectors from `first` on, or V times V lines of a tile that begins there.
template <int WHOLE, int A, int B, int V, class T>
INLINE void tile_fetch(Vec<T, V> (&block)[V], const T* first, i64 step, i64 rows, i64 columns) {
#pragma unroll
  for (i32 j = 0; j < V; j++) {
    if (WHOLE) {
      tile_load<WHOLE, 1>(block[j], first + j * step, j < columns ? rows : 0);
      continue;
    }
#pragma unroll
    for (i32 k = 0; k < V; k++) {
      const i32 unit = tile_unit<V, A, B>(k), column = unit / PARTS<V, A> * V + j;
      const i32 row = unit % PARTS<V, A> * LANES<V, A> + threadIdx.x % LANES<V, A>;
      block[j].v[k] = row < rows && column < columns ? first[row + column * step] : convert<T>(1.0f);
    }
  }
}

template <int WHOLE, int A, int B, int V, class T>
INLINE void tile_turn(Vec<T, V>* tile, const Vec<T, V> (&block)[V]) {
#pragma unroll
  for (i32 k = 0; k < V; k++) {
    Vec<T, V> turned;
#pragma unroll
    for (i32 j = 0; j < V; j++) turned.v[j] = block[j].v[k];
    const i32 unit = tile_unit<V, A, B>(k);
    const i32 part = unit % PARTS<V, A> * LANES<V, A> + threadIdx.x % LANES<V, A>;
    const i32 row = WHOLE ? (i32)(threadIdx.x % A) * V + k : part;
    const i32 group = WHOLE ? (i32)threadIdx.x / A : unit / PARTS<V, A>;
    tile[tile_slot<V, B, WHOLE>(row, group)] = turned;
  }
}

template <int WHOLE, bool SPREAD, int B, int V, class T>
INLINE Vec<T, V> tile_read(const Vec<T, V>* tile, i32 row, i32 group) {
  if (!SPREAD) return tile[tile_slot<V, B, WHOLE>(row, group)];
  Vec<T, V> found;
#pragma unroll
  for (i32 e = 0; e < V; e++) {
    const i32 column = group + e * B;
    found.v[e] = tile[tile_slot<V, B, WHOLE>(row, column / V)].v[column % V];
  }
  return found;
}

// The edge of a tile, V columns before it: a thread has a vector of each B-th one, if there are any
// before the tile.
template <int V, int B> constexpr i32 EDGES = (V + B - 1) / B;
template <int WHOLE, int A, int B, int V, class T>
INLINE void tile_fetch_edge(Vec<T, V> (&held)[EDGES<V, B>], const T* own, i64 step, i64 rows, i64 columns) {
#pragma unroll
  for (i32 i = 0; i < EDGES<V, B>; i++) {
    const i32 j = threadIdx.x / A + i * B;
    const i64 back = j - V - (i64)(threadIdx.x / A) * V;  // from the thread's own block of the tile
    tile_load<WHOLE, 1>(held[i], own + back * step, j < V && j < columns ? rows : 0);
  }
}
template <int A, int B, int V, class T>
INLINE void tile_turn_edge(Vec<T, V>* edge, const Vec<T, V> (&held)[EDGES<V, B>]) {
#pragma unroll
  for (i32 i = 0; i < EDGES<V, B>; i++) {
    const i32 j = threadIdx.x / A + i * B;
#pragma unroll
    for (i32 k = 0; k < V; k++)
      if (j < V) edge[threadIdx.x % A * V + k].v[j] = held[i].v[k];
  }
}
template <int B, int V, class T>
INLINE Vec<T, V> tile_read_shifted(const Vec<T, V>* tile, const Vec<T, V>* edge, i32 row, i32 group, i32 shift) {
  const Vec<T, V> own = tile[tile_slot<V, B, 1>(row, group)];
  const Vec<T, V> before = group == 0 ? edge[row] : tile[tile_slot<V, B, 1>(row, group - 1)];
  return shift == 0 ? own : joined(before, own, (u32)((V - shift) * sizeof(T)));
}
