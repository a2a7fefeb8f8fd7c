// Philox4x32-10, with the same words as symdnn.ops.random.rng_philox: a draw of K words per element
// reads the words K e .. K e + K - 1 of the stream, e = counter + element, from blocks with the tag
// K.

struct Words { u32 v[4]; };

INLINE Words philox(u64 block, u32 tag, u64 key, u32 number = 0) {
  u32 c0 = (u32)block, c1 = (u32)(block >> 32), c2 = tag, c3 = number;
  u32 k0 = (u32)key, k1 = (u32)(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const u64 a = 0xD2511F53ull * c0, b = 0xCD9E8D57ull * c2;
    const u32 n0 = (u32)(b >> 32) ^ c1 ^ k0, n2 = (u32)(a >> 32) ^ c3 ^ k1;
    c1 = (u32)b, c3 = (u32)a, c0 = n0, c2 = n2;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// The block and the first word of element i of a draw of K (1, 2 or 4) words.
template <int K> INLINE u64 block_of(u64 counter, u64 i, i32* lane) {
  const u64 per_block = 4 / K;
  const u64 inside = counter % per_block + i;
  *lane = (i32)(inside % per_block) * K;
  return counter / per_block + inside / per_block;
}
INLINE u32 word_of(u64 key, u64 counter, u64 i) {
  i32 lane;
  const u64 block = block_of<1>(counter, i, &lane);
  return philox(block, 1, key).v[lane];
}
INLINE u64 word64_of(u64 key, u64 counter, u64 i) {
  i32 lane;
  const u64 block = block_of<2>(counter, i, &lane);
  const Words w = philox(block, 2, key);
  return (u64)w.v[lane] | (u64)w.v[lane + 1] << 32;
}

// The midpoints of 2^bits equal cells of (0, 1): exact, and neither 0 nor 1.
INLINE double open52(u64 word) { return ((double)(word >> 12) * 2.0 + 1.0) * 0x1p-53; }
INLINE float open_cells(u32 word, int bits) {
  return ((float)(word >> (32 - bits)) * 2.0f + 1.0f) * float_of_bits((u32)(127 - bits - 1) << 23);
}
// With a finer grid, rounded to float, for Box and Muller.
INLINE float fine_uniform(u32 word) { return (float)word * 0x1p-32f + 0x1p-33f; }
