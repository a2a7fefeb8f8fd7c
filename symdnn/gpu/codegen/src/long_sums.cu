// Parts of the long sums of a product of matrices with few results: a block has a tile of the
// results, and a part of the terms. add_parts.cu adds what the blocks write. With SUMMED blocks of the
// first tiles add up the operand `a` (1) or `b` (2) along the terms as well.
//
// The steps of a part are staged in shared memory, where a step has the tile's rows (columns) of one
// term side by side. Bits of the term turn the places of four neighbours, so that neither turning
// rows into columns nor reading them meets in a bank. Groups of threads have different terms.

#define THREADS 256
#define SIDE 8 // of the results of a thread
#define LANES ((TILE_ROWS / SIDE) * (TILE_COLUMNS / SIDE))
#define GROUPS (THREADS / LANES)
#define OWN (TERMS / GROUPS) // terms of a group in a stage
#define QUADS (SIDE / 4)
#define STAGE ((TILE_ROWS + TILE_COLUMNS) * TERMS)
#define HALF (GROUPS > 1 ? THREADS / 2 * SIDE * SIDE : 0)

struct Parameters {
  const float *a, *b; // the elements of a row of `a`, a column of `b`: in steps of 1, or of a_step
  float *y, *totals;   // (parts, columns, stack, rows), and (parts, rows or columns)
  i64 rows, columns, terms, a_step, b_step, a_stacked, b_stacked, length, stack;
};

typedef Vec<float, 4> Quad;

template <i32 EXTENT> INLINE i32 place(const i32 line, const i32 term) {
  return term * EXTENT + (line ^ (term / 4 % (EXTENT < 32 ? EXTENT / 4 : 8) * 4));
}

// Four neighbours of an operand: `lines` of them end at `last`. What is outside is 0.
template <bool WHOLE> INLINE Quad neighbours(const float* x, const i64 first, const i64 last) {
  Quad found;
  if (WHOLE && first + 4 <= last) return load<4>(x);
#pragma unroll
  for (i32 i = 0; i < 4; i++) found.v[i] = first + i < last ? x[i] : 0.f;
  return found;
}

// A thread's part of a stage of one operand, on its way from memory to shared memory.
template <i32 EXTENT, bool ALONG, bool WHOLE> struct Staged {
  static constexpr i32 ALL = EXTENT * TERMS / 4, EACH = (ALL + THREADS - 1) / THREADS;
  // Sums of a thread along the terms, and threads that have some of a line.
  static constexpr i32 TOTALS = ALONG ? EACH : 4;
  static constexpr i32 SHARES = ALONG ? TERMS / 4 : (ALL < THREADS ? ALL : THREADS) / (EXTENT / 4);
  Quad quads[EACH];
  float totals[TOTALS];

  static __device__ __forceinline__ i32 line(const i32 i) {
    return ALONG ? i / (TERMS / 4) : i % (EXTENT / 4) * 4;
  }
  static __device__ __forceinline__ i32 term(const i32 i) {
    return ALONG ? i % (TERMS / 4) * 4 : i / (EXTENT / 4);
  }
  __device__ __forceinline__ void read(
      const float* x, const i64 step, const i64 first_line, const i64 lines, const i64 first,
      const i64 last) {
#pragma unroll
    for (i32 k = 0; k < EACH; k++) {
      const i32 i = (i32)threadIdx.x + k * THREADS;
      if (ALL % THREADS != 0 && i >= ALL) break;
      const i64 l = first_line + line(i), t = first + term(i);
      const bool inside = ALONG ? l < lines : t < last;
      if (inside)
        quads[k] = ALONG ? neighbours<WHOLE>(x + l * step + t, t, last)
                         : neighbours<WHOLE>(x + t * step + l, l, lines);
      else
        quads[k] = {{0, 0, 0, 0}};
    }
  }
  __device__ __forceinline__ void write(float* stage) const {
#pragma unroll
    for (i32 k = 0; k < EACH; k++) {
      const i32 i = (i32)threadIdx.x + k * THREADS;
      if (ALL % THREADS != 0 && i >= ALL) break;
      if (ALONG) {
#pragma unroll
        for (i32 j = 0; j < 4; j++) stage[place<EXTENT>(line(i), term(i) + j)] = quads[k].v[j];
      } else {
        store(stage + place<EXTENT>(line(i), term(i)), quads[k]);
      }
    }
  }

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (i32 i = 0; i < TOTALS; i++) totals[i] = 0;
  }
  __device__ __forceinline__ void add() {
#pragma unroll
    for (i32 k = 0; k < EACH; k++) {
      if (ALL % THREADS != 0 && (i32)threadIdx.x + k * THREADS >= ALL) break;
#pragma unroll
      for (i32 j = 0; j < 4; j++) totals[ALONG ? k : j] += quads[k].v[j];
    }
  }
  __device__ __forceinline__ void finish(float* memory, float* to, const i64 lines) const {
    __syncthreads();
#pragma unroll
    for (i32 k = 0; k < TOTALS; k++) {
      const i32 i = (i32)threadIdx.x + (ALONG ? k * THREADS : 0);
      if (ALL % THREADS != 0 && i >= ALL) break;
      memory[(line(i) + (ALONG ? 0 : k)) * SHARES + (ALONG ? term(i) / 4 : term(i))] = totals[k];
    }
    __syncthreads();
    if (threadIdx.x < EXTENT && threadIdx.x < lines) {
      float sum = 0;
      for (i32 i = 0; i < SHARES; i++) sum += memory[threadIdx.x * SHARES + i];
      to[threadIdx.x] = sum;
    }
  }
};

// Numbers of a term: SIDE of EXTENT, of which four are neighbours.
template <i32 EXTENT> INLINE void numbers(float* to, const float* stage, const i32 lane, const i32 term) {
#pragma unroll
  for (i32 q = 0; q < QUADS; q++) {
    const Quad read = load<4>(stage + place<EXTENT>(lane * 4 + q * (EXTENT / QUADS), term));
#pragma unroll
    for (i32 i = 0; i < 4; i++) to[q * 4 + i] = read.v[i];
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
long_sums(const __grid_constant__ Parameters p) {
  __shared__ Quad quads[(2 * STAGE > HALF ? 2 * STAGE : HALF) / 4];
  float* const memory = quads[0].v;
  const i32 thread = threadIdx.x, group = thread / LANES, lane = thread % LANES;
  const i32 row_lane = lane % (TILE_ROWS / SIDE), column_lane = lane / (TILE_ROWS / SIDE);
  const i64 tiles = (p.rows + TILE_ROWS - 1) / TILE_ROWS, across = blockIdx.y / tiles;
  const i64 row = (blockIdx.y - across * tiles) * TILE_ROWS, column = across * TILE_COLUMNS;
  const i64 first = blockIdx.x * p.length, end = first + p.length;
  const i64 last = end < p.terms ? end : p.terms;
  const float *a = p.a + blockIdx.z * p.a_stacked, *b = p.b + blockIdx.z * p.b_stacked;
  Staged<TILE_ROWS, A_ALONG, A_WHOLE> left;
  Staged<TILE_COLUMNS, B_ALONG, B_WHOLE> right;
  float sums[SIDE][SIDE]; // by columns
#pragma unroll
  for (i32 i = 0; i < SIDE; i++)
#pragma unroll
    for (i32 j = 0; j < SIDE; j++) sums[i][j] = 0;
  left.read(a, p.a_step, row, p.rows, first, last);
  right.read(b, p.b_step, column, p.columns, first, last);
  left.begin();
  right.begin();
  const bool adds = SUMMED == 1 ? column == 0 : SUMMED == 2 && row == 0;
  i32 at = 0;
  for (i64 from = first; from < last; from += TERMS) {
    float *lefts = memory + at, *rights = lefts + TILE_ROWS * TERMS;
    left.write(lefts);
    right.write(rights);
    if (adds && SUMMED == 1) left.add();
    if (adds && SUMMED == 2) right.add();
    __syncthreads();
    if (from + TERMS < last) {
      left.read(a, p.a_step, row, p.rows, from + TERMS, last);
      right.read(b, p.b_step, column, p.columns, from + TERMS, last);
    }
#pragma unroll 2
    for (i32 i = 0; i < OWN; i++) {
      float x[SIDE], y[SIDE];
      numbers<TILE_ROWS>(x, lefts, row_lane, group * OWN + i);
      numbers<TILE_COLUMNS>(y, rights, column_lane, group * OWN + i);
#pragma unroll
      for (i32 c = 0; c < SIDE; c++)
#pragma unroll
        for (i32 r = 0; r < SIDE; r++) sums[c][r] = fmaf(x[r], y[c], sums[c][r]);
    }
    at = STAGE - at;
  }
  if (adds && SUMMED == 1)
    left.finish(memory, p.totals + blockIdx.x * p.rows + row, p.rows - row);
  if (adds && SUMMED == 2)
    right.finish(memory, p.totals + blockIdx.x * p.columns + column, p.columns - column);
  // Half of the groups that are left give their sums to the others.
#pragma unroll
  for (i32 half = GROUPS / 2; half > 0; half /= 2) {
    __syncthreads();
    float* held = memory + thread % (half * LANES);
    if (group >= half && group < 2 * half)
#pragma unroll
      for (i32 i = 0; i < SIDE * SIDE; i++) held[i * half * LANES] = sums[i / SIDE][i % SIDE];
    __syncthreads();
    if (group < half)
#pragma unroll
      for (i32 i = 0; i < SIDE * SIDE; i++) sums[i / SIDE][i % SIDE] += held[i * half * LANES];
  }
  if (group > 0) return;
  float* y = p.y + (blockIdx.x * p.columns * p.stack + blockIdx.z) * p.rows;
#pragma unroll
  for (i32 c = 0; c < SIDE; c++)
#pragma unroll
    for (i32 r = 0; r < SIDE; r++) {
      const i64 to = row + row_lane * 4 + r / 4 * (TILE_ROWS / QUADS) + r % 4;
      const i64 beside = column + column_lane * 4 + c / 4 * (TILE_COLUMNS / QUADS) + c % 4;
      if (to < p.rows && beside < p.columns) y[beside * p.stack * p.rows + to] = sums[c][r];
    }
}
