// Attention and its gradient (Dao et al. 2022): a block has SIDE rows of scores, and goes over the
// columns tile by tile. TERMS says how products are made: 0 by float32 FMAs, of 4 x 4 scores of a
// thread; else on tensor cores in float16 (mma.cuh), of 16 rows of a warp: 1 of rounded operands, 3
// as exact as in float32.
//
// ROLE says what is computed, for rows of queries (OUT, OF_QUERY) or of keys (OF_KEY, OF_VALUE). For
// keys, the columns are the queries of all heads that share them, in order: no sum is atomic.

#define SIDE 64
#define OUT 0
#define OF_QUERY 1
#define OF_KEY 2
#define OF_VALUE 3
#define ROWS_ARE_KEYS (ROLE >= OF_KEY)
#define NEEDS_SLOPES (ROLE == OF_QUERY || ROLE == OF_KEY)
#define WIDTH (ROLE == OUT || ROLE == OF_VALUE ? E : D)

// What a thread has: ROWS x COLUMNS scores of a tile, and FEATURES of the result of each row.
#if TERMS
#define THREADS 128
#define ROWS 2
#define COLUMNS 16
#define LANES_OF_ROWS 4
#define FEATURES_OF(f) (((f) + 15) / 16 * 4)
INLINE i32 row_at(i32 r) { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * r; }
INLINE i32 column_at(i32 c) { return c / 2 * 8 + threadIdx.x % 4 * 2 + c % 2; }
INLINE i32 feature_at(i32 n) { return column_at(n); }
#else
#define THREADS 256
#define ROWS 4
#define COLUMNS 4
#define LANES_OF_ROWS 16
#define FEATURES_OF(f) (((f) + LANES_OF_ROWS - 1) / LANES_OF_ROWS)
INLINE i32 row_at(i32 r) { return threadIdx.x / LANES_OF_ROWS * 4 + r; }
INLINE i32 column_at(i32 c) { return threadIdx.x % LANES_OF_ROWS * 4 + c; }
INLINE i32 feature_at(i32 n) { return threadIdx.x % LANES_OF_ROWS + LANES_OF_ROWS * n; }
#endif
#define FEATURES FEATURES_OF(WIDTH)

struct Parameters {
  const float *q, *k, *v, *dout, *out;
  const float *lse, *dlse;
  float* delta;
  float *result, *values;
  float* new_lse;
  const M* mask;
  const KL* key_lengths;
  const QL* query_lengths;
  const u64* state;
  const float* rate;
  u64* next_state;
  i64 batch, heads, groups, queries, keys, left, right;
  double scale, cap;
  i64 q_step[3], k_step[3], v_step[3], dout_step[3], out_step[3], result_step[3], values_step[3];
  i64 mask_step[4];
};

INLINE i64 lesser(i64 a, i64 b) { return a < b ? a : b; }

struct Rows {
  const float* at;
  i64 step, first, count;
};

template <class How> INLINE float of_row(float x) {
#pragma unroll
  for (i32 half = LANES_OF_ROWS / 2; half > 0; half /= 2)
    x = How::of(x, __shfl_xor_sync(0xffffffffu, x, half));
  return x;
}

// One kernel for the gradients of keys and values, where the tiles of all features fit.
#define BOTH (TERMS && WHOLE && ROLE == OF_KEY)

#if TERMS

// Features of a tile, from the f-th on. PITCH is one of which eight rows meet no bank twice.
#define SPAN_OF(all, f) ((all) - (f) < 64 ? ((all) - (f) + 15) / 16 * 16 : 64)
#define PIECES_OF(f) (((f) + 63) / 64)
#define LANES 8
#define PASSES (SIDE * LANES / THREADS)

// SIDE rows of features as their parts in float16; each row is divided by its factor.
struct Tile {
  u16 high[SIDE * PITCH], low[TERMS == 3 ? SIDE * PITCH : 8];
  float factors[SIDE];
};

#ifdef SYMDNN_HOST
static bytes16 dynamic_shared[(TILES * sizeof(Tile) + SIDE * 8) / 16];
#else
extern __shared__ bytes16 dynamic_shared[];
#endif

// Tiles of operands: left[0] and right[0] are those of scores, left[1] and right[1] of their slopes.
// Those of the rows are there once (KEPT) if they fit, of the columns all of a step (WHOLE), or the
// pieces of one product at a time.
struct Shared {
  Tile *left[2], *right[2];
  float *lse, *delta;
  __device__ __forceinline__ Shared() {
    Tile* const at = (Tile*)dynamic_shared;
    right[0] = at, right[1] = at + WHOLE;
    left[0] = right[1] + 1, left[1] = KEPT ? left[0] + PIECES_OF(D) : left[0];
    lse = (float*)(at + TILES), delta = lse + SIDE;
  }
};

// Features f to f + SPAN of SIDE rows in registers; 0 beyond the ends.
template <i32 F> struct Loaded {
  static constexpr i32 EACH = 64 / (LANES * VEC);
  Vec<float, VEC> v[PASSES][EACH];
  __device__ __forceinline__ Loaded(const Rows& x, i32 f = 0) {
    const i32 own = threadIdx.x % LANES * VEC;
#pragma unroll
    for (i32 n = 0; n < PASSES; n++) {
      const i64 row = x.first + threadIdx.x / LANES + n * (THREADS / LANES);
#pragma unroll
      for (i32 e = 0; e < EACH; e++) {
        const i32 k = own + e * LANES * VEC;
        v[n][e] = {};
        if (row < x.count && f + k < F) v[n][e] = load<VEC>(&x.at[row * x.step + f + k]);
      }
    }
  }
  __device__ __forceinline__ void put(Tile& to, i32 f = 0) const {
    const i32 own = threadIdx.x % LANES * VEC, span = SPAN_OF(F, f);
#pragma unroll
    for (i32 n = 0; n < PASSES; n++) {
      const i32 row = threadIdx.x / LANES + n * (THREADS / LANES);
      float most = 0.0f;
#pragma unroll
      for (i32 e = 0; e < EACH; e++)
#pragma unroll
        for (i32 i = 0; i < VEC; i++) most = fmaxf(most, fabsf(v[n][e].v[i]));
#pragma unroll
      for (i32 half = LANES / 2; half > 0; half /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, half));
      const Scale scale(most);
      if (threadIdx.x % LANES == 0) to.factors[row] = scale.down;
#pragma unroll
      for (i32 e = 0; e < EACH; e++) {
        const i32 k = own + e * LANES * VEC;
        if (k >= span) continue;
        Vec<u32, (VEC + 1) / 2> high, low;
#pragma unroll
        for (i32 i = 0; i < VEC; i += 2)
          split<TERMS>(high.v[i / 2], low.v[i / 2], v[n][e].v[i] * scale.up,
                       i + 1 < VEC ? v[n][e].v[i + 1] * scale.up : 0.0f);
        store<VEC>(&to.high[row * PITCH + k], (const Vec<u16, VEC>&)high);
        if (TERMS == 3) store<VEC>(&to.low[row * PITCH + k], (const Vec<u16, VEC>&)low);
      }
    }
  }
};
template <i32 F> INLINE void staged(Tile* to, const Rows& x) {
#pragma unroll
  for (i32 f = 0; f < F; f += 64) Loaded<F>(x, f).put(to[f / 64], f);
}

template <bool OF_COLUMN> INLINE void load_parts(Parts& to, const Tile& x, i32 row, i32 k) {
  load_matrices<OF_COLUMN>(to.high, &x.high[row * PITCH + k]);
  if (TERMS == 3) load_matrices<OF_COLUMN>(to.low, &x.low[row * PITCH + k]);
}

template <i32 F> INLINE void product(
    float (&s)[ROWS][COLUMNS], const Rows& a, const Rows& b, Shared& shared, i32 which) {
  const i32 lane = threadIdx.x % 32;
#pragma unroll
  for (i32 f = 0; f < F; f += 64) {
    Tile &left = shared.left[which][KEPT ? f / 64 : 0], &right = *shared.right[which];
    if (!WHOLE) {
      __syncthreads();
      if (!KEPT) Loaded<F>(a, f).put(left, f);
      Loaded<F>(b, f).put(right, f);
      __syncthreads();
    }
    float sums[COLUMNS / 2][4] = {};
#pragma unroll
    for (i32 k = 0; k < SPAN_OF(F, f); k += 16) {
      Parts rows, columns;
      load_parts<false>(rows, left, threadIdx.x / 32 * 16 + lane % 16, k + lane / 16 * 8);
#pragma unroll
      for (i32 n = 0; n < COLUMNS / 2; n += 2) {
        load_parts<false>(columns, right, n * 8 + lane % 8 + lane / 16 * 8, k + lane / 8 % 2 * 8);
        multiply_add<TERMS>(sums[n], sums[n + 1], rows, columns);
      }
    }
#pragma unroll
    for (i32 c = 0; c < COLUMNS; c++)
#pragma unroll
      for (i32 r = 0; r < ROWS; r++) {
        const float x = sums[c / 2][2 * r + c % 2] * left.factors[row_at(r)];
        s[r][c] = fmaf(x, right.factors[column_at(c)], f ? s[r][c] : 0.0f);
      }
  }
}

// A lane's scores of a row are those of columns 2 t and 2 t + 1 of each 8, as the first operand has
// them.
template <i32 F> INLINE void add_product(
    float (&sum)[ROWS][FEATURES_OF(F)], const float (&s)[ROWS][COLUMNS], const Rows& x,
    Shared& shared, i32 which) {
  const i32 lane = threadIdx.x % 32;
#pragma unroll
  for (i32 f = 0; f < F; f += 64) {
    Tile& right = *shared.right[which];
    if (!WHOLE) {
      __syncthreads();
      Loaded<F>(x, f).put(right, f);
      __syncthreads();
    }
    float weights[ROWS][COLUMNS], most[ROWS] = {};
#pragma unroll
    for (i32 c = 0; c < COLUMNS; c++)
#pragma unroll
      for (i32 r = 0; r < ROWS; r++) {
        weights[r][c] = s[r][c] * right.factors[column_at(c)];
        most[r] = fmaxf(most[r], fabsf(weights[r][c]));
      }
    const Scale scales[ROWS] = {of_row<Larger>(most[0]), of_row<Larger>(most[1])};
    float sums[8][4] = {};
#pragma unroll
    for (i32 c = 0; c < COLUMNS; c += 4) {
      Parts rows, columns;
#pragma unroll
      for (i32 i = 0; i < 4; i++)
        split<TERMS>(rows.high[i], rows.low[i], weights[i % 2][c + i / 2 * 2] * scales[i % 2].up,
                     weights[i % 2][c + i / 2 * 2 + 1] * scales[i % 2].up);
#pragma unroll
      for (i32 n = 0; n < SPAN_OF(F, f); n += 16) {
        load_parts<true>(columns, right, c * 4 + lane % 16, n + lane / 16 * 8);
        multiply_add<TERMS>(sums[n / 8], sums[n / 8 + 1], rows, columns);
      }
    }
#pragma unroll
    for (i32 n = 0; n < SPAN_OF(F, f) / 4; n++)
#pragma unroll
      for (i32 r = 0; r < ROWS; r++) {
        float& to = sum[r][f / 4 + n];
        to = fmaf(sums[n / 2][2 * r + n % 2], scales[r].down, to);
      }
  }
}

INLINE float exponential(float x) { return fast_exp2(x * 1.442695041f); }

#else

#define STEP 16

// A line of a tile in shared memory, from which 4 numbers are read at once.
struct alignas(16) Line { float v[PITCH]; };
struct Shared {
  Line left[STEP], right[STEP], tile[SIDE];
  float values[STEP][FEATURES * LANES_OF_ROWS];
};

// to[k].v[r] is feature f + k of row r; 0 beyond the ends.
INLINE void loaded(Line* to, const Rows& x, i32 f, i32 features) {
  for (i32 e = threadIdx.x; e < SIDE * STEP; e += THREADS) {
    const i32 k = e % STEP, r = e / STEP;
    const bool inside = x.first + r < x.count && f + k < features;
    to[k].v[r] = inside ? x.at[(x.first + r) * x.step + f + k] : 0.0f;
  }
}

template <i32 F> INLINE void product(
    float (&s)[4][4], const Rows& a, const Rows& b, Shared& shared, i32) {
  const i32 tx = threadIdx.x % LANES_OF_ROWS * 4, ty = threadIdx.x / LANES_OF_ROWS * 4;
#pragma unroll
  for (i32 r = 0; r < 4; r++)
    for (i32 c = 0; c < 4; c++) s[r][c] = 0.0f;
  for (i32 f = 0; f < F; f += STEP) {
    __syncthreads();
    loaded(shared.left, a, f, F);
    loaded(shared.right, b, f, F);
    __syncthreads();
#pragma unroll
    for (i32 k = 0; k < STEP; k++) {
      const Vec<float, 4> x = load<4>(&shared.left[k].v[ty]), y = load<4>(&shared.right[k].v[tx]);
#pragma unroll
      for (i32 r = 0; r < 4; r++)
#pragma unroll
        for (i32 c = 0; c < 4; c++) s[r][c] += x.v[r] * y.v[c];
    }
  }
}

template <i32> INLINE void add_product(
    float (&sum)[ROWS][FEATURES], const float (&s)[ROWS][COLUMNS], const Rows& x, Shared& shared,
    i32) {
  const i32 tx = threadIdx.x % LANES_OF_ROWS, ty = threadIdx.x / LANES_OF_ROWS;
  for (i32 r = 0; r < 4; r++)
    for (i32 c = 0; c < 4; c++) shared.tile[tx * 4 + c].v[ty * 4 + r] = s[r][c];
  for (i32 start = 0; start < SIDE; start += STEP) {
    __syncthreads();
    for (i32 e = threadIdx.x; e < STEP * FEATURES * LANES_OF_ROWS; e += THREADS) {
      const i32 n = e % (FEATURES * LANES_OF_ROWS), c = e / (FEATURES * LANES_OF_ROWS);
      const i64 row = x.first + start + c;
      const bool inside = n < WIDTH && row < x.count;
      shared.values[c][n] = inside ? x.at[row * x.step + n] : 0.0f;
    }
    __syncthreads();
#pragma unroll 4
    for (i32 c = 0; c < STEP; c++) {
      const Vec<float, 4> weights = load<4>(&shared.tile[start + c].v[ty * 4]);
#pragma unroll
      for (i32 n = 0; n < FEATURES; n++) {
        const float value = shared.values[c][tx + LANES_OF_ROWS * n];
#pragma unroll
        for (i32 r = 0; r < 4; r++) sum[r][n] += weights.v[r] * value;
      }
    }
  }
}

INLINE float exponential(float x) { return expf(x); }

#endif
