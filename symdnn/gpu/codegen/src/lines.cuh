// Offsets of elements by their numbers in C order; u32 numbers divide faster than u64 ones.

template <class Count, int N>
INLINE i64 place(Count number, const i64 (&size)[N], const i64 (&step)[N]) {
  i64 at = 0;
#pragma unroll
  for (int d = N - 1; d > 0; d--) {
    const Count rest = number / (Count)size[d];
    at += (i64)(number - rest * (Count)size[d]) * step[d];
    number = rest;
  }
  return at + (i64)number * step[0];
}
