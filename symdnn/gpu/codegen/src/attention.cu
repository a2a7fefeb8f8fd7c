// Attention and its gradient (Dao et al. 2022): a block has SIDE rows of scores, and goes over the
// columns tile by tile. TERMS says how products are made: 0 by float32 FMAs, of 4 x 4 scores of a
// thread; else on tensor cores in TF32 (mma.cuh), of 16 rows of a warp: 1 of rounded operands, 3 as
// exact as in float32.
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
#define FEATURES_OF(f) (((f) + 7) / 8 * 2)
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

// One kernel for the gradients of keys and values, where the tiles of all features fit.
#define BOTH (TERMS && WHOLE && ROLE == OF_KEY)

#if TERMS

// Rows of features in shared memory: SPAN of them at a time, in a PITCH of which a warp's reads of
// two neighbours of 4 rows meet no bank twice, and one where its reads of a column of 8 do not.
#define SPAN_OF(f) ((f) < 64 ? ((f) + 7) / 8 * 8 : 64)
#define VALUE_PITCH (PITCH - 4)
#define TILE (SIDE * PITCH)

#ifdef SYMDNN_HOST
static bytes16 dynamic_shared[4 * TILE / 4];
#else
extern __shared__ bytes16 dynamic_shared[];
#endif

// Tiles of operands: left[0] and right[0] are those of scores, left[1] and right[1] of their slopes.
// All of a gradient are there at once (WHOLE), or the pieces of one product at a time.
struct Shared {
  float *left[2], *right[2];
  __device__ __forceinline__ Shared() {
    float* const at = (float*)dynamic_shared;
    right[0] = at, right[1] = at + TILE, left[0] = at + 2 * TILE, left[1] = at + 3 * TILE;
    if (!WHOLE) left[0] = left[1] = at, right[0] = right[1];
  }
};

// Features f to f + SPAN of SIDE rows; 0 beyond the ends. With one term they are rounded here.
template <i32 F> INLINE void staged(float* to, const Rows& x, i32 f = 0, i32 pitch = PITCH) {
  constexpr i32 SPAN = SPAN_OF(F);
#pragma unroll 4
  for (i32 e = threadIdx.x; e < SIDE * SPAN / VEC; e += THREADS) {
    const i32 k = e % (SPAN / VEC) * VEC, r = e / (SPAN / VEC);
    Vec<float, VEC> v = {};
    if (x.first + r < x.count && f + k < F) v = load<VEC>(&x.at[(x.first + r) * x.step + f + k]);
#pragma unroll
    for (i32 n = 0; n < VEC; n++) v.v[n] = TERMS == 1 ? in_tf32(v.v[n]) : v.v[n];
    store<VEC>(&to[r * pitch + k], v);
  }
}

// Of 8 features a lane has the neighbours 2 t and 2 t + 1: which two are its is free, as long as
// both operands agree.
template <i32 F> INLINE void product(
    float (&s)[ROWS][COLUMNS], const Rows& a, const Rows& b, Shared& shared, i32 which) {
  const i32 group = threadIdx.x % 32 / 4, own = threadIdx.x % 4 * 2;
#pragma unroll
  for (i32 c = 0; c < COLUMNS; c++) s[0][c] = s[1][c] = 0.0f;
  for (i32 f = 0; f < F; f += 64) {
    if (!WHOLE) {
      __syncthreads();
      staged<F>(shared.left[which], a, f);
      staged<F>(shared.right[which], b, f);
      __syncthreads();
    }
#pragma unroll 4
    for (i32 k = 0; k < SPAN_OF(F); k += 8) {
      const float* const line = &shared.left[which][row_at(0) * PITCH + k + own];
      const Vec<float, 2> x = load<2>(line), y = load<2>(line + 8 * PITCH);
      const Tiled<4, TERMS> rows({x.v[0], y.v[0], x.v[1], y.v[1]});
#pragma unroll
      for (i32 c = 0; c < COLUMNS; c += 2) {
        const Vec<float, 2> z = load<2>(&shared.right[which][(c * 4 + group) * PITCH + k + own]);
        const Tiled<2, TERMS> column({z.v[0], z.v[1]});
        multiply_add(s[0][c], s[0][c + 1], s[1][c], s[1][c + 1], rows, column);
      }
    }
  }
}

// A lane's scores of a row are those of columns 2 t and 2 t + 1 of each 8, in the order of product.
template <i32 F> INLINE void add_product(
    float (&sum)[ROWS][FEATURES_OF(F)], const float (&s)[ROWS][COLUMNS], const Rows& x,
    Shared& shared, i32 which) {
  const i32 group = threadIdx.x % 32 / 4, own = threadIdx.x % 4 * 2;
  const i32 pitch = WHOLE ? PITCH : VALUE_PITCH;
#pragma unroll
  for (i32 f = 0; f < F; f += 64) {
    if (!WHOLE) {
      __syncthreads();
      staged<F>(shared.right[which], x, f, pitch);
      __syncthreads();
    }
#pragma unroll
    for (i32 c = 0; c < COLUMNS; c += 2) {
      const Tiled<4, TERMS> rows({s[0][c], s[1][c], s[0][c + 1], s[1][c + 1]}, true);
      const float* const line = &shared.right[which][(c * 4 + own) * pitch + group];
#pragma unroll
      for (i32 n = 0; n < SPAN_OF(F) && f + n < (F + 7) / 8 * 8; n += 8) {
        const i32 to = (f + n) / 4;
        const Tiled<2, TERMS> column({line[n], line[pitch + n]});
        multiply_add(sum[0][to], sum[0][to + 1], sum[1][to], sum[1][to + 1], rows, column);
      }
    }
  }
}

INLINE float exponential(float x) { return TERMS == 1 ? fast_exp2(x * 1.442695041f) : expf(x); }

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
template <class How> INLINE float of_row(float x) {
#pragma unroll
  for (i32 half = LANES_OF_ROWS / 2; half > 0; half /= 2)
    x = How::of(x, __shfl_xor_sync(0xffffffffu, x, half));
  return x;
}

extern "C" __global__ void __launch_bounds__(THREADS) attention(
    const __grid_constant__ Parameters p) {
#if TERMS
  Shared shared;
#else
  __shared__ Shared shared;
#endif
  const i64 rows = ROWS_ARE_KEYS ? p.keys : p.queries, columns = ROWS_ARE_KEYS ? p.queries : p.keys;
  const i64 tiles = (rows + SIDE - 1) / SIDE, share = p.heads / p.groups;
  const i64 own_heads = ROWS_ARE_KEYS ? p.groups : p.heads;
  const i64 first = blockIdx.x % tiles * SIDE, own = blockIdx.x / tiles % own_heads;
  const i64 b = blockIdx.x / tiles / own_heads;
  const i64 keys = HAS_KEY_LENGTHS ? (i64)p.key_lengths[b] : p.keys;
  const i64 queries = HAS_QUERY_LENGTHS ? (i64)p.query_lengths[b] : p.queries;
  const i64 shift = FROM_LAST ? keys - queries : 0;
  const float scale = (float)p.scale, cap = (float)p.cap;
  const u64 key = DROPS ? p.state[0] : 0, counter = DROPS ? p.state[1] : 0;
  const double threshold = DROPS ? (1.0 - (double)p.rate[0]) * 4294967296.0 : 0.0;
  const float keep = DROPS && p.rate[0] < 1.0f ? 1.0f - p.rate[0] : 1.0f;
  const i64 before = ROWS_ARE_KEYS ? -shift - p.right : shift - p.left;
  const i64 behind = ROWS_ARE_KEYS ? -shift + p.left : shift + p.right;
  const i64 last = first + SIDE + behind, end = ROWS_ARE_KEYS ? queries : keys;
  const i64 high = lesser(lesser(last, end), columns);
  const i64 low = first + before > 0 ? (first + before) / SIDE * SIDE : 0;

  float sum[ROWS][FEATURES], value_sum[ROWS][FEATURES_OF(E)], top[ROWS], total[ROWS];
#pragma unroll
  for (i32 r = 0; r < ROWS; r++) {
    top[r] = -INF_f, total[r] = 0.0f;
#pragma unroll
    for (i32 n = 0; n < FEATURES; n++) sum[r][n] = 0.0f;
#pragma unroll
    for (i32 n = 0; n < FEATURES_OF(E); n++) value_sum[r][n] = 0.0f;
  }
  const i64 first_head = ROWS_ARE_KEYS ? own * share : own;
  const i64 past = ROWS_ARE_KEYS ? first_head + share : own + 1;
  for (i64 head = first_head; head < past; head++) {
    const i64 group = head / share, row_of_lse = (b * p.heads + head) * p.queries;
    const float* q = p.q + b * p.q_step[0] + head * p.q_step[1];
    const float* k = p.k + b * p.k_step[0] + group * p.k_step[1];
    const float* v = p.v + b * p.v_step[0] + group * p.v_step[1];
    const float* dout = ROLE == OUT ? q : p.dout + b * p.dout_step[0] + head * p.dout_step[1];
    for (i64 at = low; at < high; at += SIDE) {
      const i64 query = ROWS_ARE_KEYS ? at : first, from = ROWS_ARE_KEYS ? first : at;
      const Rows of_q = {q, p.q_step[2], query, p.queries}, of_k = {k, p.k_step[2], from, p.keys};
      const Rows of_v = {v, p.v_step[2], from, p.keys};
      const Rows of_dout = {dout, p.dout_step[2], query, p.queries};
      const Rows left = ROWS_ARE_KEYS ? of_k : of_q, right = ROWS_ARE_KEYS ? of_q : of_k;
      const Rows left_slope = ROWS_ARE_KEYS ? of_v : of_dout;
      const Rows other = ROWS_ARE_KEYS ? of_dout : of_v;
#if TERMS
      if (WHOLE) {
        __syncthreads();
        if (head == first_head && at == low) {
          staged<D>(shared.left[0], left);
          staged<E>(shared.left[1], left_slope);
        }
        staged<D>(shared.right[0], right);
        staged<E>(shared.right[1], other);
        __syncthreads();
      }
#endif
      float s[ROWS][COLUMNS], dp[ROWS][COLUMNS];
      product<D>(s, left, right, shared, 0);
      if (NEEDS_SLOPES) product<E>(dp, left_slope, other, shared, 1);
#pragma unroll
      for (i32 r = 0; r < ROWS; r++) {
        float kept[COLUMNS];
#pragma unroll
        for (i32 c = 0; c < COLUMNS; c++) {
          const i64 row = first + row_at(r), column = at + column_at(c);
          const i64 i = ROWS_ARE_KEYS ? column : row, j = ROWS_ARE_KEYS ? row : column;
          bool seen = i < lesser(queries, p.queries) && j < lesser(keys, p.keys);
          seen = seen && j <= i + shift + p.right && j >= i + shift - p.left;
          float x = s[r][c] * scale, slope = scale;
          if (CAPPED) {
            const float bounded = tanhf(x / cap);
            x = bounded * cap, slope *= 1.0f - bounded * bounded;
          }
          if (MASK && seen) {
            const M m = p.mask[b * p.mask_step[0] + head * p.mask_step[1] + i * p.mask_step[2] +
                               j * p.mask_step[3]];
            if (MASK == 1) seen = convert<float>(m) != 0.0f;
            else x += convert<float>(m), seen = convert<float>(m) > -INF_f;
          }
          kept[c] = 1.0f;
          if (DROPS && seen) {
            const u64 e = (u64)((row_of_lse + i) * p.keys + j);
            kept[c] = (double)word_of(key, counter, e) < threshold ? 1.0f / keep : 0.0f;
          }
          if (ROLE == OUT) {
            s[r][c] = seen ? x : -INF_f;
            continue;
          }
          const float probability = seen ? exponential(x - p.lse[row_of_lse + i]) : 0.0f;
          if (ROLE == OF_VALUE) s[r][c] = probability * kept[c];
          else s[r][c] = seen ? probability * slope * (dp[r][c] * kept[c] - p.delta[row_of_lse + i])
                              : 0.0f;
          dp[r][c] = probability * kept[c];
        }
        if (ROLE != OUT) continue;
        float most = s[r][0], added = 0.0f;
#pragma unroll
        for (i32 c = 1; c < COLUMNS; c++) most = fmaxf(most, s[r][c]);
        most = fmaxf(top[r], of_row<Larger>(most));
        const float base = most == -INF_f ? 0.0f : most, factor = exponential(top[r] - base);
#pragma unroll
        for (i32 c = 0; c < COLUMNS; c++) {
          s[r][c] = exponential(s[r][c] - base);
          added += s[r][c];
          s[r][c] *= kept[c];
        }
        top[r] = most, total[r] = total[r] * factor + of_row<Added>(added);
#pragma unroll
        for (i32 n = 0; n < FEATURES; n++) sum[r][n] *= factor;
      }
      add_product<WIDTH>(sum, s, NEEDS_SLOPES ? right : other, shared, NEEDS_SLOPES ? 0 : 1);
#if BOTH
      add_product<E>(value_sum, dp, other, shared, 1);
#endif
    }
  }
  float* const to = p.result + b * p.result_step[0] + own * p.result_step[1];
#pragma unroll
  for (i32 r = 0; r < ROWS; r++) {
    const i64 row = first + row_at(r);
    if (row >= rows) continue;
    const float by = ROLE == OUT ? (total[r] > 0.0f ? 1.0f / total[r] : 0.0f) : 1.0f;
#pragma unroll
    for (i32 n = 0; n < FEATURES; n++)
      if (feature_at(n) < WIDTH) to[row * p.result_step[2] + feature_at(n)] = sum[r][n] * by;
    if (BOTH) {
      float* const line = p.values + b * p.values_step[0] + own * p.values_step[1];
#pragma unroll
      for (i32 n = 0; n < FEATURES_OF(E); n++)
        if (feature_at(n) < E) line[row * p.values_step[2] + feature_at(n)] = value_sum[r][n];
    }
    if (ROLE == OUT && threadIdx.x % LANES_OF_ROWS == 0)
      p.new_lse[(b * p.heads + own) * p.queries + row] =
          total[r] > 0.0f ? top[r] + logf(total[r]) : -INF_f;
  }
  if (ROLE == OUT && DROPS && blockIdx.x == 0 && threadIdx.x == 0) {
    p.next_state[0] = key;
    p.next_state[1] = counter + (u64)(p.batch * p.heads * p.queries * p.keys);
  }
}

// What each row of the scores' gradient subtracts: dout . out, less the log-sum-exp's cotangent.
extern "C" __global__ void __launch_bounds__(256) attention_delta(
    const __grid_constant__ Parameters p) {
  const i32 lane = threadIdx.x % 32;
  const i64 row = (i64)blockIdx.x * 8 + threadIdx.x / 32;
  const i64 count = p.batch * p.heads * p.queries, mine = row < count ? row : count - 1;
  const i64 i = mine % p.queries, h = mine / p.queries % p.heads, b = mine / p.queries / p.heads;
  const float* out = p.out + b * p.out_step[0] + h * p.out_step[1] + i * p.out_step[2];
  const float* dout = p.dout + b * p.dout_step[0] + h * p.dout_step[1] + i * p.dout_step[2];
  float total = 0.0f;
  for (i32 n = lane; n < E; n += 32) total += out[n] * dout[n];
#pragma unroll
  for (i32 half = 16; half > 0; half /= 2) total += __shfl_xor_sync(0xffffffffu, total, half);
  if (lane == 0 && row < count) p.delta[row] = total - (OF_LSE ? p.dlse[row] : 0.0f);
}
