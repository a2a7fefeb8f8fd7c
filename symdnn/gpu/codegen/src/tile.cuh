// Tiles of V A rows by V B columns, in which operands that lie along the rows are turned. A thread
// reads a block of V by V, turns it in registers and puts it into shared memory; then it has V
// elements of V rows. V, A and B are powers of two.
//
// WHOLE operands have aligned vectors, each of which one thread reads. Elements of others are read
// one by one: LANES neighbouring threads read neighbouring ones. Where results are such, a thread's
// elements of a row are B columns apart (SPREAD). In SHIFTED tiles, of elements of up to two bytes,
// vectors of operands begin anywhere, and those of a row's results begin where they are aligned: a
// few elements before and behind them, the ends of the row's part, are written one by one.

// V elements as a thread holds them: WORDS, if they are smaller and neighbours, of which the compiler
// would else take single elements apart.
template <class T, int V, bool PACKED = (WORDS && sizeof(T) < 4 && sizeof(T) * V >= 4)>
struct TileHeld {
  typedef Vec<T, V> type;
};
template <class T, int V> struct TileHeld<T, V, true> { typedef Vec<u32, sizeof(T) * V / 4> type; };
template <class T, int V> using Held = typename TileHeld<T, V>::type;
template <class T, int V> INLINE Held<T, V> packed(const Vec<T, V>& x) {
  return *(const Held<T, V>*)&x;
}
template <class T, int V> INLINE Vec<T, V> unpacked(const Held<T, V>& x) {
  return *(const Vec<T, V>*)&x;
}

// Threads that read a part of a line of V A elements that is not WHOLE, and the parts of a line.
template <int V, int A> constexpr i32 LANES = V * A < 32 ? V * A : 32;
template <int V, int A> constexpr i32 PARTS = V * A / LANES<V, A>;

// Number `k` of the V times V lines, of part `unit % PARTS`, that a thread reads.
template <int V, int A, int B> INLINE i32 tile_unit(i32 k) {
  return threadIdx.x / LANES<V, A> + k * (A * B / LANES<V, A>);
}

// The position of a group of V columns in shared memory depends on the row, which avoids bank
// conflicts.
template <int V, int B, bool WHOLE> INLINE i32 tile_slot(i32 row, i32 group) {
  return row * B + (group ^ ((WHOLE ? row / V : row) & (B - 1)));
}

// Elements APART along a line with so many left; WHOLE: all of them, or none. What lies beyond
// is 1: it is computed with the rest, and an iteration (of zeta) might never end for any bits.
template <int V, bool WHOLE, int APART, class T>
INLINE Held<T, V> tile_load(const T* line, i64 left) {
  if (WHOLE && APART == 1 && left > 0) return *(const Held<T, V>*)line;
  Vec<T, V> found;
#pragma unroll
  for (i32 k = 0; k < V; k++) found.v[k] = k * APART < left ? line[k * APART] : convert<T>(1.0f);
  return packed<T, V>(found);
}

template <int V, bool WHOLE, int APART, class T>
INLINE void tile_store(T* line, const Held<T, V>& held, i64 left) {
  if (WHOLE && APART == 1) {
    if (left > 0) store_whole(line, held);
  } else {
    const Vec<T, V> x = unpacked<T, V>(held);
#pragma unroll
    for (i32 k = 0; k < V; k++)
      if (k * APART < left) line[k * APART] = x.v[k];
  }
}

// A thread's elements of an operand that lies along the rows, `step` from one column to the next:
// a block of V vectors from `first` on, or V times V lines of a tile that begins there.
template <int V, bool WHOLE, bool SHIFTED, int A, int B, class T>
INLINE void tile_fetch(
    Held<T, V> (&block)[V], const T* first, i64 step, i64 rows, i64 columns) {
  if constexpr (SHIFTED && !WHOLE)
    if (rows >= V && columns >= V) {
      AnyWords<sizeof(block[0]) / 4> lines[V];
#pragma unroll
      for (i32 j = 0; j < V; j++) lines[j] = any_words<V>(first + j * step);
#pragma unroll
      for (i32 j = 0; j < V; j++) block[j] = lines[j].words();
      return;
    }
#pragma unroll(SHIFTED && !WHOLE ? 1 : V)
  for (i32 j = 0; j < V; j++) {
    if (WHOLE || SHIFTED) {
      block[j] = tile_load<V, WHOLE, 1>(first + j * step, j < columns ? rows : 0);
      continue;
    }
    Vec<T, V> line;
#pragma unroll
    for (i32 k = 0; k < V; k++) {
      const i32 unit = tile_unit<V, A, B>(k), column = unit / PARTS<V, A> * V + j;
      const i32 row = unit % PARTS<V, A> * LANES<V, A> + threadIdx.x % LANES<V, A>;
      line.v[k] = row < rows && column < columns ? first[row + column * step] : convert<T>(1.0f);
    }
    block[j] = packed<T, V>(line);
  }
}

// Element `k` of each of V vectors.
template <class T, int V> INLINE Held<T, V> tile_line(const Held<T, V> (&block)[V], i32 k) {
  Held<T, V> line;
  if constexpr (WORDS && sizeof(T) == 1 && V % 4 == 0) {
    const u32 low = k % 4 < 2 ? 0x5140 : 0x7362, pair = k % 2 ? 0x7632 : 0x5410;
#pragma unroll
    for (i32 j = 0; j < V; j += 4)
      line.v[j / 4] = __byte_perm(
          __byte_perm(block[j].v[k / 4], block[j + 1].v[k / 4], low),
          __byte_perm(block[j + 2].v[k / 4], block[j + 3].v[k / 4], low), pair);
  } else if constexpr (WORDS && sizeof(T) == 2 && V % 2 == 0) {
#pragma unroll
    for (i32 j = 0; j < V; j += 2)
      line.v[j / 2] =
          __byte_perm(block[j].v[k / 2], block[j + 1].v[k / 2], k % 2 ? 0x7632 : 0x5410);
  } else {
#pragma unroll
    for (i32 j = 0; j < V; j++) line.v[j] = block[j].v[k];
  }
  return line;
}

template <class T, int V, bool WHOLE, int A, int B>
INLINE void tile_turn(Held<T, V>* tile, const Held<T, V> (&block)[V]) {
#pragma unroll
  for (i32 k = 0; k < V; k++) {
    const i32 unit = tile_unit<V, A, B>(k);
    const i32 part = unit % PARTS<V, A> * LANES<V, A> + threadIdx.x % LANES<V, A>;
    const i32 row = WHOLE ? (i32)(threadIdx.x % A) * V + k : part;
    const i32 group = WHOLE ? (i32)threadIdx.x / A : unit / PARTS<V, A>;
    tile[tile_slot<V, B, WHOLE>(row, group)] = tile_line<T, V>(block, k);
  }
}

template <class T, int V, int B, bool WHOLE>
INLINE T tile_one(const Held<T, V>* tile, i32 row, i32 column) {
  return ((const T*)(tile + tile_slot<V, B, WHOLE>(row, column / V)))[column % V];
}

template <class T, int V, bool WHOLE, bool SPREAD, int B>
INLINE Held<T, V> tile_read(const Held<T, V>* tile, i32 row, i32 group) {
  if (!SPREAD) return tile[tile_slot<V, B, WHOLE>(row, group)];
  Vec<T, V> found;
#pragma unroll
  for (i32 e = 0; e < V; e++) found.v[e] = tile_one<T, V, B, WHOLE>(tile, row, group + e * B);
  return packed<T, V>(found);
}

// V elements of a row of a SHIFTED tile from `column` on, out of the one or two vectors there.
template <class T, int V, int B>
INLINE Held<T, V> tile_read_any(const Held<T, V>* tile, i32 row, i32 column) {
  const i32 group = column / V, over = column % V * (i32)sizeof(T);
  const Held<T, V> low = tile[tile_slot<V, B, true>(row, group)];
  const Held<T, V> high = tile[tile_slot<V, B, true>(row, group + (over > 0))];
  return from_words(low, high, (u32)over);
}
