// Attention and its gradient (Dao et al. 2022): a block has SIDE rows of scores, and goes over the
// columns, ACROSS at a time. TERMS says how products are made: 0 by float32 FMAs, of 4 x 4 scores of
// a thread; else on tensor cores in float16 (mma.cuh), of 16 or 32 rows of a warp: 1 of rounded
// operands, 3 as exact as in float32.
//
// ROLE says what is computed, for rows of queries (OUT, OF_QUERY) or of keys (OF_KEY, OF_VALUE). For
// keys, the columns are the queries of all heads that share them, in order: no sum is atomic.

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
#define STACK (SIDE / 64) // of 16 rows of a warp
#define ROWS (2 * STACK)
#define COLUMNS (ACROSS / 4)
#define LANES_OF_ROWS 4
#define FEATURES_OF(f) (((f) + 15) / 16 * 4)
INLINE i32 row_at(i32 r) { return threadIdx.x / 32 * 16 * STACK + threadIdx.x % 32 / 4 + 8 * r; }
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

template <class How, i32 LANES_OF> INLINE float of_lanes(float x) {
#pragma unroll
  for (i32 half = LANES_OF / 2; half > 0; half /= 2)
    x = How::of(x, __shfl_xor_sync(0xffffffffu, x, half));
  return x;
}
template <class How> INLINE float of_row(float x) { return of_lanes<How, LANES_OF_ROWS>(x); }

// One kernel for the gradients of keys and values, where the tiles of all features fit.
#define BOTH (TERMS && WHOLE && ROLE == OF_KEY)

#if TERMS

// Features of a tile, from the f-th on. PITCH is one of which eight rows meet no bank twice.
#define SPAN_OF(all, f) ((all) - (f) < 64 ? ((all) - (f) + 15) / 16 * 16 : 64)
#define PIECES_OF(f) (((f) + 63) / 64)

// R rows of features as their parts in float16; each row is divided by its factor.
template <i32 R> struct Tile {
  u16 high[R * PITCH], low[TERMS == 3 ? R * PITCH : 8];
  float factors[R];
};
typedef Tile<SIDE> Left;
typedef Tile<ACROSS> Right;

#ifdef SYMDNN_HOST
static bytes16 dynamic_shared[(LEFTS * sizeof(Left) + RIGHTS * sizeof(Right) + ACROSS * 8) / 16];
#else
extern __shared__ bytes16 dynamic_shared[];
#endif

// Tiles of operands: left[0] and right[0] are those of scores, left[1] and right[1] of their slopes.
// Those of the rows are there once (KEPT) if they fit, of the columns all of a step (WHOLE), or the
// pieces of one product at a time.
struct Shared {
  Left* left[2];
  Right* right[2];
  float *lse, *delta;
  __device__ __forceinline__ Shared() {
    right[0] = (Right*)dynamic_shared, right[1] = right[0] + (WHOLE ? PIECES_OF(D) : 0);
    left[0] = (Left*)(right[0] + RIGHTS), left[1] = left[0] + (KEPT ? PIECES_OF(D) : 0);
    lse = (float*)(left[0] + LEFTS), delta = lse + ACROSS;
  }
};

// Features f to f + SPAN of R rows in registers; 0 beyond the ends.
template <i32 F, i32 R> struct Loaded {
  static constexpr i32 FEW = F <= 16 ? 2 : F <= 32 ? 4 : 8, LEAST = THREADS / R;
  static constexpr i32 LANES = FEW > LEAST ? FEW : LEAST, PASSES = R * LANES / THREADS;
  float v[PASSES][8];
  __device__ __forceinline__ void load_from(const Rows& x, i32 f) {
    const i32 k = f + threadIdx.x % LANES * 8;
#pragma unroll
    for (i32 n = 0; n < PASSES; n++) {
      const i64 row = x.first + threadIdx.x / LANES + n * (THREADS / LANES);
#pragma unroll
      for (i32 e = 0; e < 8; e += VEC) {
        Vec<float, VEC> found = {};
        if (row < x.count && k + e < F) found = load<VEC>(&x.at[row * x.step + k + e]);
#pragma unroll
        for (i32 i = 0; i < VEC; i++) v[n][e + i] = found.v[i];
      }
    }
  }
  __device__ __forceinline__ void enlarge(float (&most)[PASSES]) const {
#pragma unroll
    for (i32 n = 0; n < PASSES; n++)
#pragma unroll
      for (i32 e = 0; e < 8; e++) most[n] = fmaxf(most[n], fabsf(v[n][e]));
  }
  // `most` is of the lane's own numbers.
  __device__ __forceinline__ void put(Tile<R>& to, i32 f, const float (&most)[PASSES]) const {
    const i32 k = threadIdx.x % LANES * 8;
#pragma unroll
    for (i32 n = 0; n < PASSES; n++) {
      const i32 row = threadIdx.x / LANES + n * (THREADS / LANES);
      const Scale scale(of_lanes<Larger, LANES>(most[n]));
      if (threadIdx.x % LANES == 0) to.factors[row] = scale.down;
      if (k >= SPAN_OF(F, f)) continue;
      Vec<u32, 4> high, low;
#pragma unroll
      for (i32 e = 0; e < 8; e += 2)
        split<TERMS>(high.v[e / 2], low.v[e / 2], v[n][e] * scale.up, v[n][e + 1] * scale.up);
      store<4>((u32*)&to.high[row * PITCH + k], high);
      if (TERMS == 3) store<4>((u32*)&to.low[row * PITCH + k], low);
    }
  }
};
// All features; the factors of a row's pieces are the same.
template <i32 F, i32 R> struct AllLoaded {
  Loaded<F, R> pieces[PIECES_OF(F)];
  __device__ __forceinline__ AllLoaded(const Rows& x) {
#pragma unroll
    for (i32 f = 0; f < F; f += 64) pieces[f / 64].load_from(x, f);
  }
  __device__ __forceinline__ void put(Tile<R>* to) const {
    float most[Loaded<F, R>::PASSES] = {};
#pragma unroll
    for (i32 f = 0; f < F; f += 64) pieces[f / 64].enlarge(most);
#pragma unroll
    for (i32 f = 0; f < F; f += 64) pieces[f / 64].put(to[f / 64], f, most);
  }
};
template <i32 F, i32 R> INLINE void staged(Tile<R>& to, const Rows& x, i32 f) {
  Loaded<F, R> piece;
  float most[Loaded<F, R>::PASSES] = {};
  piece.load_from(x, f);
  piece.enlarge(most);
  piece.put(to, f, most);
}

template <bool OF_COLUMN, i32 R>
INLINE void load_parts(Parts& to, const Tile<R>& x, i32 row, i32 k) {
  load_matrices<OF_COLUMN>(to.high, &x.high[row * PITCH + k]);
  if (TERMS == 3) load_matrices<OF_COLUMN>(to.low, &x.low[row * PITCH + k]);
}

template <i32 F> INLINE void product(
    float (&s)[ROWS][COLUMNS], const Rows& a, const Rows& b, Shared& shared, i32 which, float by) {
  const i32 lane = threadIdx.x % 32;
#pragma unroll
  for (i32 f = 0; f < F; f += 64) {
    Left& left = shared.left[which][KEPT ? f / 64 : 0];
    Right& right = shared.right[which][WHOLE ? f / 64 : 0];
    if (!WHOLE) {
      __syncthreads();
      if (!KEPT) staged<F>(left, a, f);
      staged<F>(right, b, f);
      __syncthreads();
    }
    float sums[STACK][COLUMNS / 2][4] = {};
#pragma unroll
    for (i32 k = 0; k < SPAN_OF(F, f); k += 16) {
      Parts rows[STACK], columns;
#pragma unroll
      for (i32 m = 0; m < STACK; m++)
        load_parts<false>(rows[m], left, threadIdx.x / 32 * 16 * STACK + 16 * m + lane % 16,
                          k + lane / 16 * 8);
#pragma unroll
      for (i32 n = 0; n < COLUMNS / 2; n += 2) {
        load_parts<false>(columns, right, n * 8 + lane % 8 + lane / 16 * 8, k + lane / 8 % 2 * 8);
#pragma unroll
        for (i32 m = 0; m < STACK; m++)
          multiply_add<TERMS>(sums[m][n], sums[m][n + 1], rows[m], columns);
      }
    }
    float factors[ROWS];
#pragma unroll
    for (i32 r = 0; r < ROWS; r++) factors[r] = left.factors[row_at(r)] * by;
#pragma unroll
    for (i32 c = 0; c < COLUMNS; c++)
#pragma unroll
      for (i32 r = 0; r < ROWS; r++) {
        const float x = sums[r / 2][c / 2][r % 2 * 2 + c % 2] * factors[r];
        s[r][c] = fmaf(x, right.factors[column_at(c)], f ? s[r][c] : 0.0f);
      }
  }
}

// A lane's scores of a row are those of columns 2 t and 2 t + 1 of each 8, as the first operand has
// them. FAR features at a time bound the registers.
template <i32 F> INLINE void add_product(
    float (&sum)[ROWS][FEATURES_OF(F)], const float (&s)[ROWS][COLUMNS], const Rows& x,
    Shared& shared, i32 which) {
  constexpr i32 FAR = 64 / STACK;
  const i32 lane = threadIdx.x % 32;
  Parts rows[STACK][COLUMNS / 4];
  float down[ROWS];
#pragma unroll
  for (i32 f = 0; f < F; f += 64) {
    Right& right = shared.right[which][WHOLE ? f / 64 : 0];
    if (!WHOLE) {
      __syncthreads();
      staged<F>(right, x, f);
      __syncthreads();
    }
#pragma unroll
    for (i32 m = 0; m < (WHOLE && f ? 0 : STACK); m++) {
      float weights[2][COLUMNS], most[2] = {};
#pragma unroll
      for (i32 c = 0; c < COLUMNS; c++)
#pragma unroll
        for (i32 r = 0; r < 2; r++) {
          weights[r][c] = s[2 * m + r][c] * right.factors[column_at(c)];
          most[r] = fmaxf(most[r], fabsf(weights[r][c]));
        }
      const Scale scales[2] = {of_row<Larger>(most[0]), of_row<Larger>(most[1])};
#pragma unroll
      for (i32 i = 0; i < COLUMNS; i++) {
        const i32 r = i % 2, c = i / 2 * 2;
        Parts& to = rows[m][c / 4];
        split<TERMS>(to.high[i % 4], to.low[i % 4], weights[r][c] * scales[r].up,
                     weights[r][c + 1] * scales[r].up);
      }
      down[2 * m] = scales[0].down, down[2 * m + 1] = scales[1].down;
    }
#pragma unroll
    for (i32 g = 0; g < SPAN_OF(F, f); g += FAR) {
      float sums[STACK][FAR / 8][4] = {};
#pragma unroll
      for (i32 c = 0; c < COLUMNS; c += 4)
#pragma unroll
        for (i32 n = 0; n < FAR && g + n < SPAN_OF(F, f); n += 16) {
          Parts columns;
          load_parts<true>(columns, right, c * 4 + lane % 16, g + n + lane / 16 * 8);
#pragma unroll
          for (i32 m = 0; m < STACK; m++)
            multiply_add<TERMS>(sums[m][n / 8], sums[m][n / 8 + 1], rows[m][c / 4], columns);
        }
#pragma unroll
      for (i32 n = 0; n < FAR / 4 && 4 * n + g < SPAN_OF(F, f); n++)
#pragma unroll
        for (i32 r = 0; r < ROWS; r++) {
          float& to = sum[r][(f + g) / 4 + n];
          to = fmaf(sums[r / 2][n / 2][r % 2 * 2 + n % 2], down[r], to);
        }
    }
  }
}

// Scores are logarithms to the base 2.
#define PER_NATURAL 1.442695041f
INLINE float exponential(float x) { return fast_exp2(x); }

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
    float (&s)[4][4], const Rows& a, const Rows& b, Shared& shared, i32, float by) {
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
#pragma unroll
  for (i32 r = 0; r < 4; r++)
    for (i32 c = 0; c < 4; c++) s[r][c] *= by;
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

#define PER_NATURAL 1.0f
INLINE float exponential(float x) { return expf(x); }

#endif
