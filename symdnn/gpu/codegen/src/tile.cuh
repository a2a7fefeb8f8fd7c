// Tiles of V A rows by V B columns, in which operands that lie along the rows are turned. A thread
// reads a block of V by V, turns it in registers and puts it into shared memory; then it has V
// elements along the columns in each of V rows. The position of a group of V columns in shared
// memory depends on the row, which avoids bank conflicts. V, A and B are powers of two.

template <int V, int B> INLINE i32 tile_slot(i32 row, i32 group) {
  return row * B + (group ^ ((row / V) & (B - 1)));
}

// A vector along a line with so many elements left; WHOLE: all of them, or none. What lies beyond
// is 1: it is computed with the rest, and an iteration (of zeta) might never end for any bits.
template <bool WHOLE, int V, class T>
INLINE void tile_load(Vec<T, V>& held, const T* line, i64 left) {
  if (WHOLE && left > 0) {
    held = load<V>(line);
  } else {
#pragma unroll
    for (i32 k = 0; k < V; k++) held.v[k] = !WHOLE && k < left ? line[k] : convert<T>(1.0f);
  }
}

template <bool WHOLE, int V, class T>
INLINE void tile_store(T* line, const Vec<T, V>& held, i64 left) {
  if (WHOLE) {
    if (left > 0) store(line, held);
  } else {
#pragma unroll
    for (i32 k = 0; k < V; k++)
      if (k < left) line[k] = held.v[k];
  }
}

// A thread's block of an operand that lies along the rows, `step` from one column to the next.
template <bool WHOLE, int V, class T>
INLINE void tile_fetch(Vec<T, V> (&block)[V], const T* first, i64 step, i64 rows, i64 columns) {
#pragma unroll
  for (i32 j = 0; j < V; j++)
    tile_load<WHOLE, V>(block[j], first + j * step, j < columns ? rows : 0);
}

template <int B, int V, class T>
INLINE void tile_turn(Vec<T, V>* tile, const Vec<T, V> (&block)[V], i32 a, i32 b) {
#pragma unroll
  for (i32 k = 0; k < V; k++) {
    Vec<T, V> turned;
#pragma unroll
    for (i32 j = 0; j < V; j++) turned.v[j] = block[j].v[k];
    tile[tile_slot<V, B>(V * a + k, b)] = turned;
  }
}
