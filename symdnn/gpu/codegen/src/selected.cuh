// Elements that index arrays select, and additions to them by several threads.

INLINE i64 index_number(i64 value) { return value; }
INLINE i64 index_number(u64 value) {
  return value > 0x7fffffffffffffffull ? 0x7fffffffffffffffll : (i64)value;
}
INLINE i64 index_number(i32 value) { return value; }
INLINE i64 index_number(u32 value) { return value; }
INLINE i64 index_number(i16 value) { return value; }
INLINE i64 index_number(u16 value) { return value; }
INLINE i64 index_number(i8 value) { return value; }
INLINE i64 index_number(u8 value) { return value; }

// Moves an offset by `jump` for each number below an index, which counts from the end if it is
// negative. One out of range moves nothing: it is reported, if there is a word for that, and false.
template <class Offset, class Index>
INLINE bool selected(Index value, i64 limit, i64 jump, i32* error_word, i64 node, Offset& at) {
  const i64 k = index_number(value);
  if (k < -limit || k >= limit) {
    report(error_word, INDEX_ERROR, node, k, limit);
    return false;
  }
  at += (Offset)(k < 0 ? k + limit : k) * (Offset)jump;
  return true;
}

#ifndef SYMDNN_HOST
// Numbers of two's complement add up alike.
INLINE void atomicAdd(i64* at, i64 value) { ::atomicAdd((u64*)at, (u64)value); }
#endif

// Adds neighbours; four floats in one instruction where there is one.
template <class A, int V> INLINE void added(A* sums, const Vec<A, V>& values) {
#pragma unroll
  for (int k = 0; k < V; k++) atomicAdd(sums + k, values.v[k]);
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
INLINE void added(float* sums, const Vec<float, 4>& values) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(sums), "f"(values.v[0]),
               "f"(values.v[1]), "f"(values.v[2]), "f"(values.v[3])
               : "memory");
}
#endif
