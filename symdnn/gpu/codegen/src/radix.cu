// Radix sort of lines by the keys of keys.cu, 8 bits in each pass. I is the type of the resulting
// indices. With PAIRS an element's number goes with its key, else the results are made from keys.
//
// One kernel counts the digits of all passes. Then each pass is a kernel whose tiles find out what
// tiles before them have by looking at what these have published so far (decoupled look-back:
// D. Merrill and M. Garland, 2016). Sums of whole numbers are the same in any order. ITEMS are a
// thread's elements of a tile, AHEAD the tiles before it that a tile looks at together.

#define THREADS 256
#define WARPS (THREADS / 32)
#define TILE (THREADS * ITEMS)
#define PASSES ((i32)sizeof(U))
// Tables of counts that lanes of a warp share, since equal digits are added one after the other.
#define TABLES 4

struct Parameters {
  const T* x;
  T* values;   // or null
  I* indices;  // or null
  U *keys, *keys2;  // lines times length each, in the workspace
  u32 *order, *order2;
  u64* states;   // of each line, tile and digit
  u32* digits;   // of each line and pass: how many elements have each digit
  u32* tickets;  // of each pass: how many tiles have begun
  i64 lines, length, kept, tiles, groups, pass, x_step, values_step, indices_step;
  i64 size[D], x_line[D], values_line[D], indices_line[D];
};

INLINE u32 digit_of(U key, i32 pass) { return (u32)(key >> (8 * pass)) & 255u; }

INLINE U first_key(const Parameters& p, i64 line, i64 k) {
  return key_of(p.x[place((COUNT)line, p.size, p.x_line) + k * p.x_step]);
}

// Adds the digits of some tiles of a line to the line's.
extern "C" __global__ void __launch_bounds__(THREADS) count_digits(
    const __grid_constant__ Parameters p) {
  __shared__ u32 counts[PASSES][TABLES][THREADS];
  const i64 line = blockIdx.x / p.groups;
  const i32 t = threadIdx.x, table = t % TABLES;
#pragma unroll
  for (i32 n = 0; n < PASSES * TABLES; n++) counts[n / TABLES][n % TABLES][t] = 0;
  __syncthreads();
  for (i64 tile = blockIdx.x - line * p.groups; tile < p.tiles; tile += p.groups) {
    U key[ITEMS];
#pragma unroll
    for (i32 i = 0; i < ITEMS; i++) {
      const i64 k = tile * TILE + i * THREADS + t;
      if (k < p.length) key[i] = first_key(p, line, k);
    }
#pragma unroll
    for (i32 i = 0; i < ITEMS; i++) {
      if (tile * TILE + i * THREADS + t >= p.length) continue;
#pragma unroll
      for (i32 pass = 0; pass < PASSES; pass++)
        atomicAdd(&counts[pass][table][digit_of(key[i], pass)], 1u);
    }
  }
  __syncthreads();
#pragma unroll
  for (i32 pass = 0; pass < PASSES; pass++) {
    u32 sum = 0;
#pragma unroll
    for (i32 n = 0; n < TABLES; n++) sum += counts[pass][n][t];
    if (sum > 0) atomicAdd(&p.digits[(line * PASSES + pass) * 256 + t], sum);
  }
}

// The sum of a value over the threads before this one.
INLINE u32 sum_before(u32 value) {
  __shared__ u32 sums[WARPS];
  const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u32 sum = value;
#pragma unroll
  for (i32 distance = 1; distance < 32; distance *= 2) {
    const u32 other = __shfl_up_sync(0xffffffffu, sum, distance);
    if (lane >= distance) sum += other;
  }
  __syncthreads();
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  u32 before = 0;
#pragma unroll
  for (i32 w = 0; w < WARPS; w++)
    if (w < warp) before += sums[w];
  return before + sum - value;
}

// The lanes of the warp whose keys have the same digit.
INLINE u32 lanes_like(u32 digit) {
  u32 lanes = 0xffffffffu;
#pragma unroll
  for (i32 bit = 0; bit < 8; bit++) {
    const bool on = digit >> bit & 1;
    const u32 with = __ballot_sync(0xffffffffu, on);
    lanes &= on ? with : ~with;
  }
  return lanes;
}

// A state is a count below a tag: of the tile's own elements, or of all up to it. Tags are other
// ones in each pass, so the states of the pass before are none.
INLINE void publish(u64* state, i32 pass, bool all, u32 count) {
  *(volatile u64*)state = (u64)(2 * pass + 1 + all) << 56 | count;
}
INLINE u64 look(const u64* state) { return *(const volatile u64*)state; }

// How many elements of a digit tiles before this one have, of a line.
INLINE u32 count_before(const u64* own, i64 tile, i32 pass) {
  const u64 all = (u64)(2 * pass + 2);
  u32 sum = 0;
  for (i64 last = tile - 1; last >= 0; last -= AHEAD) {
    u64 seen[AHEAD];
#pragma unroll
    for (i32 a = 0; a < AHEAD; a++) seen[a] = last >= a ? look(own - (tile - last + a) * 256) : 0;
#pragma unroll
    for (i32 a = 0; a < AHEAD; a++) {
      if (last < a) return sum;
      while (seen[a] >> 56 < all - 1) seen[a] = look(own - (tile - last + a) * 256);
      sum += (u32)seen[a];
      if (seen[a] >> 56 == all) return sum;
    }
  }
  return sum;
}

// Where an element of the last pass is written to, and what.
INLINE void leave(const Parameters& p, i64 line, i64 k, U key, u32 number) {
  if (k >= p.kept) return;
  if (p.values) {
    T* const to = p.values + place((COUNT)line, p.size, p.values_line) + k * p.values_step;
    *to = PAIRS ? p.x[place((COUNT)line, p.size, p.x_line) + (i64)number * p.x_step]
                : element_of(key);
  }
  if (PAIRS && p.indices)
    p.indices[place((COUNT)line, p.size, p.indices_line) + k * p.indices_step] =
        convert<I>((i64)number);
}

INLINE void move(const Parameters& p, i64 line, i32 pass, u32 to, U key, u32 number) {
  if (pass == PASSES - 1) {
    leave(p, line, to, key, number);
    return;
  }
  p.keys2[line * p.length + to] = key;
  if (PAIRS) p.order2[line * p.length + to] = number;
}

extern "C" __global__ void __launch_bounds__(THREADS) scatter(
    const __grid_constant__ Parameters p) {
  __shared__ u64 slots[TILE * (PAIRS && sizeof(U) < 4 ? 4 : sizeof(U)) / 8];
  __shared__ u32 counts[WARPS][256], base[256], ticket;
  __shared__ bool alike;
  U* const keys = (U*)slots;
  const i32 t = threadIdx.x, lane = t % 32, warp = t / 32, pass = (i32)p.pass;
  // Tiles in the order in which blocks begin: those before this one do not wait for it.
  if (t == 0) ticket = atomicAdd(&p.tickets[pass], 1u), alike = false;
#pragma unroll
  for (i32 w = 0; w < WARPS; w++) counts[w][t] = 0;
  __syncthreads();
  const i64 line = ticket / p.tiles, tile = ticket - line * p.tiles, start = line * p.length;
  const i64 left = p.length - tile * TILE;
  const i32 count = left < TILE ? (i32)left : TILE, first = warp * 32 * ITEMS + lane;
  U key[ITEMS];
  u32 rank[ITEMS];
#pragma unroll
  for (i32 i = 0; i < ITEMS; i++) {
    const i32 k = first + i * 32;
    key[i] = (U)~(U)0;  // what is beyond the line stays last
    if (k < count)
      key[i] = pass > 0 ? p.keys[start + tile * TILE + k] : first_key(p, line, tile * TILE + k);
  }
  const u32 of_digit = p.digits[(line * PASSES + pass) * 256 + t];
  if (of_digit == (u32)p.length) alike = true;
  __syncthreads();
  if (alike) {  // this digit moves nothing
    for (i64 k = tile * TILE + t; k < tile * TILE + count; k += THREADS) {
      const u32 number = pass > 0 && PAIRS ? p.order[start + k] : (u32)k;
      move(p, line, pass, (u32)k, pass > 0 ? p.keys[start + k] : first_key(p, line, k), number);
    }
    return;
  }
#pragma unroll
  for (i32 i = 0; i < ITEMS; i++) {
    const u32 digit = digit_of(key[i], pass), lanes = lanes_like(digit);
    const u32 earlier = __popc(lanes & ((1u << lane) - 1)), sofar = counts[warp][digit];
    __syncwarp();
    if (earlier == 0) counts[warp][digit] = sofar + __popc(lanes);
    __syncwarp();
    rank[i] = sofar + earlier;
  }
  __syncthreads();
  u32 own = 0;
#pragma unroll
  for (i32 w = 0; w < WARPS; w++) {
    const u32 n = counts[w][t];
    counts[w][t] = own;
    own += n;
  }
  u64* const state = p.states + (line * p.tiles + tile) * 256 + t;
  publish(state, pass, tile == 0, own);
  const u32 lower = sum_before(own);
  const u32 begin = sum_before(of_digit);
#pragma unroll
  for (i32 w = 0; w < WARPS; w++) counts[w][t] += lower;
  __syncthreads();
#pragma unroll
  for (i32 i = 0; i < ITEMS; i++) {
    rank[i] += counts[warp][digit_of(key[i], pass)];
    keys[rank[i]] = key[i];
  }
  const u32 before = count_before(state, tile, pass);
  if (tile > 0) publish(state, pass, true, before + own);
  base[t] = begin + before - lower;
  __syncthreads();
  u32 to[ITEMS];
#pragma unroll
  for (i32 i = 0; i < ITEMS; i++) {
    key[i] = keys[i * THREADS + t];
    to[i] = base[digit_of(key[i], pass)] + (i * THREADS + t);
  }
#if PAIRS
  __syncthreads();
#pragma unroll
  for (i32 i = 0; i < ITEMS; i++) {
    const i64 k = tile * TILE + first + i * 32;
    const bool there = first + i * 32 < count;
    ((u32*)slots)[rank[i]] = pass == 0 ? (u32)k : there ? p.order[start + k] : 0;
  }
  __syncthreads();
#endif
#pragma unroll
  for (i32 i = 0; i < ITEMS; i++) {
    const i32 k = i * THREADS + t;
    if (k >= count) continue;
    move(p, line, pass, to[i], key[i], PAIRS ? ((u32*)slots)[k] : 0);
  }
}
