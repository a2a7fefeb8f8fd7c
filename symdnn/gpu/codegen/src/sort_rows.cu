// Sort of lines that threads of a block hold, by a bitonic network of the keys of keys.cu. I is the
// type of the resulting indices. With PAIRS a WORD is a key, then the element's number, so that equal
// elements keep their order. A thread has EACH words of a line of up to TILE, a power of two.

struct Parameters {
  const T* x;
  T* values;   // or null
  I* indices;  // or null
  i64 lines, length, kept, x_step, values_step, indices_step;
  i64 size[D], x_line[D], values_line[D], indices_line[D];
};

#define WARP (32 * EACH)
constexpr i32 LANES = TILE / EACH, LINES = THREADS / LANES;

// One of two words stays first, the other is behind it.
INLINE void exchange(WORD& a, WORD& b, bool up) {
  const bool swap = (a > b) == up;
  const WORD first = swap ? b : a;
  b = swap ? a : b;
  a = first;
}
template <i32 DISTANCE> INLINE void exchange_own(WORD (&word)[EACH], i32 slot, i32 length) {
#pragma unroll
  for (i32 r = 0; r < EACH; r++)
    if (!(r & DISTANCE)) exchange(word[r], word[r + DISTANCE], !((slot + r) & length));
}
INLINE WORD of_two(WORD a, WORD b, bool smaller) { return (a < b) == smaller ? a : b; }

extern "C" __global__ void __launch_bounds__(THREADS) sort_rows(
    const __grid_constant__ Parameters p) {
  // Threads that read neighbours of a line meet in different banks.
  __shared__ WORD held[EACH][THREADS + 4];
  const i32 t = threadIdx.x, lane = t % LANES, slot = EACH * lane;
  const i64 line = (i64)blockIdx.x * LINES + t / LANES;
  const bool some = line < p.lines;
  const T* x = p.x + (some ? place((COUNT)line, p.size, p.x_line) : 0);
  WORD word[EACH];
#pragma unroll
  for (i32 r = 0; r < EACH; r++) {
    const i32 k = r * LANES + lane;
    word[r] = ~(WORD)0;
    if (!some || k >= p.length) continue;
    const U key = key_of(x[k * p.x_step]);
    word[r] = PAIRS ? (WORD)((u64)key << 32 | (u32)k) : (WORD)key;
  }
#pragma unroll
  for (i32 length = 2; length <= TILE; length *= 2) {
    const bool up = !(slot & length % TILE);
#pragma unroll
    for (i32 distance = length / 2; distance >= EACH; distance /= 2) {
      const bool smaller = !(slot & distance) == up;
      if (distance >= WARP) {
        __syncthreads();
#pragma unroll
        for (i32 r = 0; r < EACH; r++) held[r][t] = word[r];
        __syncthreads();
      }
#pragma unroll
      for (i32 r = 0; r < EACH; r++) {
        const WORD other = distance >= WARP
            ? held[r][t ^ distance / EACH]
            : (WORD)__shfl_xor_sync(0xffffffffu, word[r], distance / EACH % 32);
        word[r] = of_two(word[r], other, smaller);
      }
    }
    if (length > 4) exchange_own<4>(word, slot, length % TILE);
    if (length > 2) exchange_own<2>(word, slot, length % TILE);
    exchange_own<1>(word, slot, length % TILE);
  }
  __syncthreads();
#pragma unroll
  for (i32 r = 0; r < EACH; r++) held[r][t] = word[r];
  __syncthreads();
  if (!some) return;
  T* values = p.values + (p.values ? place((COUNT)line, p.size, p.values_line) : 0);
  I* indices = p.indices + (p.indices ? place((COUNT)line, p.size, p.indices_line) : 0);
#pragma unroll
  for (i32 r = 0; r < EACH; r++) {
    const i32 k = r * LANES + lane;
    if (k >= p.kept) continue;
    const WORD found = held[k % EACH][t / LANES * LANES + k / EACH];
    const u32 from = (u32)found;
    if (p.values) values[k * p.values_step] = PAIRS ? x[from * p.x_step] : element_of((U)found);
    if (p.indices) indices[k * p.indices_step] = convert<I>((i64)from);
  }
}
