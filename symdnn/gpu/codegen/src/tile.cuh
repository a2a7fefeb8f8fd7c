// Tiles of V A rows by V B columns, in which operands that lie along the rows are turned. A thread
// reads a block of V by V, turns it in registers and puts it into shared memory; then it has V
// elements of V rows. V, A and B are powers of two.
//
// WHOLE operands have aligned vectors, each of which one thread reads. Elements of others are read
// one by one, so neighbouring threads read neighbouring ones: a thread's are A rows apart. Where
// results are such, their elements are B columns apart (SPREAD).

// The position of a group of V columns in shared memory depends on the row, which avoids bank
// conflicts.
template <int V, int B, bool WHOLE> INLINE i32 tile_slot(i32 row, i32 group) {
  return row * B + (group ^ ((WHOLE ? row / V : row) & (B - 1)));
}

// Elements APART along a line with so many left; WHOLE: all of them, or none. What lies beyond
// is 1: it is computed with the rest, and an iteration (of zeta) might never end for any bits.
template <bool WHOLE, int APART, int V, class T>
INLINE void tile_load(Vec<T, V>& held, const T* line, i64 left) {
  if (WHOLE && APART == 1 && left > 0) {
    held = load<V>(line);
  } else {
#pragma unroll
    for (i32 k = 0; k < V; k++)
      held.v[k] = k * APART < left ? line[k * APART] : convert<T>(1.0f);
  }
}

template <bool WHOLE, int APART, int V, class T>
INLINE void tile_store(T* line, const Vec<T, V>& held, i64 left) {
  if (WHOLE && APART == 1) {
    if (left > 0) store(line, held);
  } else {
#pragma unroll
    for (i32 k = 0; k < V; k++)
      if (k * APART < left) line[k * APART] = held.v[k];
  }
}

// A thread's block of an operand that lies along the rows, `step` from one column to the next.
template <bool WHOLE, int A, int V, class T>
INLINE void tile_fetch(Vec<T, V> (&block)[V], const T* first, i64 step, i64 rows, i64 columns) {
#pragma unroll
  for (i32 j = 0; j < V; j++)
    tile_load<WHOLE, WHOLE ? 1 : A>(block[j], first + j * step, j < columns ? rows : 0);
}

template <bool WHOLE, int A, int B, int V, class T>
INLINE void tile_turn(Vec<T, V>* tile, const Vec<T, V> (&block)[V], i32 a, i32 b) {
#pragma unroll
  for (i32 k = 0; k < V; k++) {
    Vec<T, V> turned;
#pragma unroll
    for (i32 j = 0; j < V; j++) turned.v[j] = block[j].v[k];
    tile[tile_slot<V, B, WHOLE>(WHOLE ? V * a + k : a + k * A, b)] = turned;
  }
}

template <bool WHOLE, bool SPREAD, int B, int V, class T>
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
