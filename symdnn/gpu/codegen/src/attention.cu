// Attention and its gradient (Dao et al. 2022): a block has SIDE rows of scores, and goes over the
// columns tile by tile. A thread has 4 x 4 scores of a tile, and of 4 rows every 16th feature of the
// result. Products are float32 FMAs.
//
// ROLE says what is computed, for rows of queries (OUT, OF_QUERY) or of keys (OF_KEY, OF_VALUE). For
// keys, the columns are the queries of all heads that share them, in order: no sum is atomic.

#define SIDE 64
#define STEP 16
#define PITCH (SIDE + 4)
#define LANES_OF_ROWS 16
#define THREADS 256
#define OUT 0
#define OF_QUERY 1
#define OF_KEY 2
#define OF_VALUE 3
#define ROWS_ARE_KEYS (ROLE >= OF_KEY)
#define NEEDS_SLOPES (ROLE == OF_QUERY || ROLE == OF_KEY)
#define WIDTH (ROLE == OUT || ROLE == OF_VALUE ? E : D)
#define COLUMNS ((WIDTH + LANES_OF_ROWS - 1) / LANES_OF_ROWS)

struct Parameters {
  const float *q, *k, *v, *dout, *out;
  const float *lse, *dlse;
  float* delta;
  float* result;
  float* new_lse;
  const M* mask;
  const KL* key_lengths;
  const QL* query_lengths;
  const u64* state;
  const float* rate;
  u64* next_state;
  i64 batch, heads, groups, queries, keys, left, right;
  double scale, cap;
  i64 q_step[3], k_step[3], v_step[3], dout_step[3], out_step[3], result_step[3], mask_step[4];
};

// A line of a tile in shared memory, from which 4 numbers are read at once.
struct alignas(16) Line { float v[PITCH]; };

INLINE i64 lesser(i64 a, i64 b) { return a < b ? a : b; }

struct Rows {
  const float* at;
  i64 step, first, count;
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
    float (&s)[4][4], const Rows& a, const Rows& b, Line* left, Line* right) {
  const i32 tx = threadIdx.x % LANES_OF_ROWS * 4, ty = threadIdx.x / LANES_OF_ROWS * 4;
#pragma unroll
  for (i32 r = 0; r < 4; r++)
    for (i32 c = 0; c < 4; c++) s[r][c] = 0.0f;
  for (i32 f = 0; f < F; f += STEP) {
    __syncthreads();
    loaded(left, a, f, F);
    loaded(right, b, f, F);
    __syncthreads();
#pragma unroll
    for (i32 k = 0; k < STEP; k++) {
      const Vec<float, 4> x = load<4>(&left[k].v[ty]), y = load<4>(&right[k].v[tx]);
#pragma unroll
      for (i32 r = 0; r < 4; r++)
#pragma unroll
        for (i32 c = 0; c < 4; c++) s[r][c] += x.v[r] * y.v[c];
    }
  }
}

template <class How> INLINE float of_row(float x) {
#pragma unroll
  for (i32 half = LANES_OF_ROWS / 2; half > 0; half /= 2)
    x = How::of(x, __shfl_xor_sync(0xffffffffu, x, half));
  return x;
}

extern "C" __global__ void __launch_bounds__(THREADS) attention(
    const __grid_constant__ Parameters p) {
  __shared__ Line left[STEP], right[STEP], tile[SIDE];
  __shared__ float values[STEP][COLUMNS * LANES_OF_ROWS];
  const i32 tx = threadIdx.x % LANES_OF_ROWS, ty = threadIdx.x / LANES_OF_ROWS;
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

  float sum[4][COLUMNS], top[4], total[4];
#pragma unroll
  for (i32 r = 0; r < 4; r++) {
    top[r] = -INF_f, total[r] = 0.0f;
    for (i32 n = 0; n < COLUMNS; n++) sum[r][n] = 0.0f;
  }
  const i64 past = ROWS_ARE_KEYS ? (own + 1) * share : own + 1;
  for (i64 head = ROWS_ARE_KEYS ? own * share : own; head < past; head++) {
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
      float s[4][4], dp[4][4];
      product<D>(s, ROWS_ARE_KEYS ? of_k : of_q, ROWS_ARE_KEYS ? of_q : of_k, left, right);
      if (NEEDS_SLOPES)
        product<E>(dp, ROWS_ARE_KEYS ? of_v : of_dout, ROWS_ARE_KEYS ? of_dout : of_v, left, right);
#pragma unroll
      for (i32 r = 0; r < 4; r++) {
        float kept[4];
#pragma unroll
        for (i32 c = 0; c < 4; c++) {
          const i64 row = first + ty * 4 + r, column = at + tx * 4 + c;
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
          const float probability = seen ? expf(x - p.lse[row_of_lse + i]) : 0.0f;
          if (ROLE == OF_VALUE) s[r][c] = probability * kept[c];
          else s[r][c] = seen ? probability * slope * (dp[r][c] * kept[c] - p.delta[row_of_lse + i])
                              : 0.0f;
        }
        if (ROLE != OUT) continue;
        float most = fmaxf(fmaxf(s[r][0], s[r][1]), fmaxf(s[r][2], s[r][3])), added = 0.0f;
        most = fmaxf(top[r], of_row<Larger>(most));
        const float base = most == -INF_f ? 0.0f : most, factor = expf(top[r] - base);
#pragma unroll
        for (i32 c = 0; c < 4; c++) {
          s[r][c] = expf(s[r][c] - base);
          added += s[r][c];
          s[r][c] *= kept[c];
        }
        top[r] = most, total[r] = total[r] * factor + of_row<Added>(added);
#pragma unroll
        for (i32 n = 0; n < COLUMNS; n++) sum[r][n] *= factor;
      }
      for (i32 r = 0; r < 4; r++)
        for (i32 c = 0; c < 4; c++) tile[tx * 4 + c].v[ty * 4 + r] = s[r][c];
      const Rows& x = ROLE == OUT ? of_v : ROLE == OF_QUERY ? of_k : ROLE == OF_KEY ? of_q : of_dout;
      for (i32 start = 0; start < SIDE; start += STEP) {
        __syncthreads();
        for (i32 e = threadIdx.x; e < STEP * COLUMNS * LANES_OF_ROWS; e += THREADS) {
          const i32 n = e % (COLUMNS * LANES_OF_ROWS), c = e / (COLUMNS * LANES_OF_ROWS);
          const i64 row = x.first + start + c;
          const bool inside = n < WIDTH && row < x.count;
          values[c][n] = inside ? x.at[row * x.step + n] : 0.0f;
        }
        __syncthreads();
#pragma unroll 4
        for (i32 c = 0; c < STEP; c++) {
          const Vec<float, 4> weights = load<4>(&tile[start + c].v[ty * 4]);
#pragma unroll
          for (i32 n = 0; n < COLUMNS; n++) {
            const float value = values[c][tx + LANES_OF_ROWS * n];
#pragma unroll
            for (i32 r = 0; r < 4; r++) sum[r][n] += weights.v[r] * value;
          }
        }
      }
    }
  }
  float* to = p.result + b * p.result_step[0] + own * p.result_step[1];
#pragma unroll
  for (i32 r = 0; r < 4; r++) {
    const i64 row = first + ty * 4 + r;
    if (row >= rows) continue;
    const float by = ROLE == OUT ? (total[r] > 0.0f ? 1.0f / total[r] : 0.0f) : 1.0f;
#pragma unroll
    for (i32 n = 0; n < COLUMNS; n++) {
      const i32 feature = tx + LANES_OF_ROWS * n;
      if (feature < WIDTH) to[row * p.result_step[2] + feature] = sum[r][n] * by;
    }
    if (ROLE == OUT && tx == 0)
      p.new_lse[(b * p.heads + own) * p.queries + row] =
          total[r] > 0.0f ? top[r] + logf(total[r]) : -INF_f;
  }
  if (ROLE == OUT && DROPS && blockIdx.x == 0 && threadIdx.x == 0) {
    p.next_state[0] = key;
    p.next_state[1] = counter + (u64)(p.batch * p.heads * p.queries * p.keys);
  }
}

// What each row of the scores' gradient subtracts: dout . out, less the log-sum-exp's cotangent.
extern "C" __global__ void __launch_bounds__(THREADS) attention_delta(
    const __grid_constant__ Parameters p) {
  const i32 lane = threadIdx.x % 32;
  const i64 row = (i64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
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
