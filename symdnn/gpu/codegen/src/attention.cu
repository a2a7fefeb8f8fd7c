// Kernels of attention in the tiles of attention_tiles.cu.

INLINE i32 within(i64 x) { return x < 0 ? 0 : x > ACROSS ? ACROSS : (i32)x; }
// Of a row without scores it is not infinite, so that they may be subtracted from it.
INLINE float in_unit(float lse) { return lse == -INF_f ? 0.0f : lse * PER_NATURAL; }

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attention(
    const __grid_constant__ Parameters p) {
#if TERMS
  Shared shared;
#else
  __shared__ Shared shared;
#endif
  const i64 rows = ROWS_ARE_KEYS ? p.keys : p.queries, columns = ROWS_ARE_KEYS ? p.queries : p.keys;
  const i64 tiles = (rows + SIDE - 1) / SIDE, share = p.heads / p.groups;
  const i64 own_heads = ROWS_ARE_KEYS ? p.groups : p.heads;
  // Of causal scores the long rows come first.
  const i64 tile = blockIdx.x % tiles, first = (ROWS_ARE_KEYS ? tile : tiles - 1 - tile) * SIDE;
  const i64 own = blockIdx.x / tiles % own_heads;
  const i64 b = blockIdx.x / tiles / own_heads;
  const i64 keys = HAS_KEY_LENGTHS ? (i64)p.key_lengths[b] : p.keys;
  const i64 queries = HAS_QUERY_LENGTHS ? (i64)p.query_lengths[b] : p.queries;
  const i64 shift = FROM_LAST ? keys - queries : 0;
  const float scale = (float)p.scale, cap = (float)p.cap * PER_NATURAL;
  const u64 key = DROPS ? p.state[0] : 0, counter = DROPS ? p.state[1] : 0;
  const double threshold = DROPS ? (1.0 - (double)p.rate[0]) * 4294967296.0 : 0.0;
  const float keep = DROPS && p.rate[0] < 1.0f ? 1.0f - p.rate[0] : 1.0f;
  const i64 before = ROWS_ARE_KEYS ? -shift - p.right : shift - p.left;
  const i64 behind = ROWS_ARE_KEYS ? -shift + p.left : shift + p.right;
  const i64 row_end = ROWS_ARE_KEYS ? lesser(keys, p.keys) : lesser(queries, p.queries);
  const i64 end = ROWS_ARE_KEYS ? lesser(queries, p.queries) : lesser(keys, p.keys);
  const i64 high = first < row_end ? lesser(first + SIDE + behind, end) : 0;
  const i64 low = first + before > 0 ? (first + before) / ACROSS * ACROSS : 0;

  float sum[ROWS][FEATURES], value_sum[ROWS][FEATURES_OF(E)], top[ROWS], total[ROWS];
#pragma unroll
  for (i32 r = 0; r < ROWS; r++) {
    top[r] = -INF_f, total[r] = 0.0f;
#pragma unroll
    for (i32 n = 0; n < FEATURES; n++) sum[r][n] = 0.0f;
#pragma unroll
    for (i32 n = 0; n < FEATURES_OF(E); n++) value_sum[r][n] = 0.0f;
  }
#if ROLE == OF_QUERY
  // What each row of the scores' gradient subtracts: dout . out, less the log-sum-exp's cotangent.
  // The gradients of keys and values, which follow, read it, too.
  __shared__ float deltas[SIDE];
  float row_lse[ROWS], row_delta[ROWS];
  const i64 lines = (b * p.heads + own) * p.queries;
  for (i32 e = threadIdx.x; e < SIDE * 8; e += THREADS) {
    const i64 row = first + e / 8;
    const float* const out = p.out + b * p.out_step[0] + own * p.out_step[1] + row * p.out_step[2];
    const float* const dout =
        p.dout + b * p.dout_step[0] + own * p.dout_step[1] + row * p.dout_step[2];
    float found = 0.0f;
    for (i32 n = e % 8 * VEC; n < E && row < p.queries; n += 8 * VEC) {
      const Vec<float, VEC> x = load<VEC>(&out[n]), y = load<VEC>(&dout[n]);
#pragma unroll
      for (i32 i = 0; i < VEC; i++) found += x.v[i] * y.v[i];
    }
    found = of_lanes<Added, 8>(found);
    if (e % 8 == 0 && row < p.queries) {
      deltas[e / 8] = found - (OF_LSE ? p.dlse[lines + row] : 0.0f);
      p.delta[lines + row] = deltas[e / 8];
    }
  }
  __syncthreads();
#pragma unroll
  for (i32 r = 0; r < ROWS; r++) {
    const bool inside = first + row_at(r) < p.queries;
    row_lse[r] = inside ? in_unit(p.lse[lines + first + row_at(r)]) : 0.0f;
    row_delta[r] = inside ? deltas[row_at(r)] : 0.0f;
  }
#endif
  const i64 first_head = ROWS_ARE_KEYS ? own * share : own;
  const i64 past = ROWS_ARE_KEYS ? first_head + share : own + 1;
  for (i64 head = first_head; head < past; head++) {
    const i64 group = head / share, row_of_lse = (b * p.heads + head) * p.queries;
    const float* q = p.q + b * p.q_step[0] + head * p.q_step[1];
    const float* k = p.k + b * p.k_step[0] + group * p.k_step[1];
    const float* v = p.v + b * p.v_step[0] + group * p.v_step[1];
    const float* dout = ROLE == OUT ? q : p.dout + b * p.dout_step[0] + head * p.dout_step[1];
    for (i64 at = low; at < high; at += ACROSS) {
      const i64 query = ROWS_ARE_KEYS ? at : first, from = ROWS_ARE_KEYS ? first : at;
      const Rows of_q = {q, p.q_step[2], query, p.queries}, of_k = {k, p.k_step[2], from, p.keys};
      const Rows of_v = {v, p.v_step[2], from, p.keys};
      const Rows of_dout = {dout, p.dout_step[2], query, p.queries};
      const Rows left = ROWS_ARE_KEYS ? of_k : of_q, right = ROWS_ARE_KEYS ? of_q : of_k;
      const Rows left_slope = ROWS_ARE_KEYS ? of_v : of_dout;
      const Rows other = ROWS_ARE_KEYS ? of_dout : of_v;
#if TERMS
      if (WHOLE || KEPT || ROWS_ARE_KEYS) {
        __syncthreads();
        if (KEPT && head == first_head && at == low) {
#pragma unroll
          for (i32 f = 0; f < D; f += 64) staged<D>(shared.left[0][f / 64], left, f);
#pragma unroll
          for (i32 f = 0; f < (NEEDS_SLOPES ? E : 0); f += 64)
            staged<E>(shared.left[1][f / 64], left_slope, f);
        }
        if (ROLE != OUT && ROWS_ARE_KEYS && threadIdx.x < ACROSS) {
          const i64 i = row_of_lse + at + threadIdx.x;
          const bool inside = at + threadIdx.x < p.queries;
          shared.lse[threadIdx.x] = inside ? in_unit(p.lse[i]) : 0.0f;
          shared.delta[threadIdx.x] = inside ? p.delta[i] : 0.0f;
        }
        if (WHOLE) {
          const AllLoaded<D, ACROSS> one(right);
          const AllLoaded<E, ACROSS> two(other);
          one.put(shared.right[0]);
          two.put(shared.right[1]);
        }
        __syncthreads();
      }
#endif
      float s[ROWS][COLUMNS], dp[ROWS][COLUMNS];
      product<D>(s, left, right, shared, 0, scale * PER_NATURAL);
      if (NEEDS_SLOPES) product<E>(dp, left_slope, other, shared, 1, 1.0f);
      // Whether all rows see all columns of this tile.
      const bool inside = first + SIDE <= row_end && at + ACROSS <= end &&
                          first + SIDE - 1 + before <= at && at + ACROSS - 1 <= first + behind;
#pragma unroll
      for (i32 r = 0; r < ROWS; r++) {
        const i64 row = first + row_at(r);
        // The columns of this tile that the row sees.
        const i32 low_column = within(row + before - at);
        const i32 high_column = row < row_end ? within(lesser(row + behind + 1, end) - at) : 0;
        float kept[COLUMNS], slopes[COLUMNS], masks[COLUMNS];
        const i64 step = p.mask_step[2 + !ROWS_ARE_KEYS];
        const M* const line = p.mask + b * p.mask_step[0] + head * p.mask_step[1] +
                              row * p.mask_step[3 - !ROWS_ARE_KEYS] + at * step;
#pragma unroll
        for (i32 c = 0; c < COLUMNS && MASK; c++) {  // without branches: all loads run at once
          const i32 column = column_at(c);
          const bool seen = column >= low_column && column < high_column;
          masks[c] = convert<float>(*(seen ? line + column * step : p.mask));
        }
#pragma unroll
        for (i32 c = 0; c < COLUMNS; c++) {
          const i32 column = column_at(c);
          const bool seen = column >= low_column && column < high_column;
          const i64 i = ROWS_ARE_KEYS ? at + column : row, j = ROWS_ARE_KEYS ? row : at + column;
          kept[c] = 1.0f, slopes[c] = scale;
          if (CAPPED) {
            const float bounded = tanhf(s[r][c] / cap);
            s[r][c] = bounded * cap, slopes[c] *= 1.0f - bounded * bounded;
          }
          if (MASK == 1) s[r][c] = masks[c] != 0.0f ? s[r][c] : -INF_f;
          if (MASK == 2)
            s[r][c] = masks[c] > -INF_f ? fmaf(masks[c], PER_NATURAL, s[r][c]) : -INF_f;
          if (DROPS && seen) {
            const u64 e = (u64)((row_of_lse + i) * p.keys + j);
            kept[c] = (double)word_of(key, counter, e) < threshold ? 1.0f / keep : 0.0f;
          }
        }
        if (!inside) {
#pragma unroll
          for (i32 c = 0; c < COLUMNS; c++)
            if (column_at(c) < low_column || column_at(c) >= high_column)
              s[r][c] = -INF_f, dp[r][c] = 0.0f;
        }
#pragma unroll
        for (i32 c = 0; c < COLUMNS && ROLE != OUT; c++) {
          const i32 column = column_at(c);
#if ROLE == OF_QUERY
          const float lse = row_lse[r], delta = row_delta[r];
#elif TERMS
          const float lse = shared.lse[column], delta = shared.delta[column];
#else
          const bool there = at + column < p.queries;
          const float lse = there ? in_unit(p.lse[row_of_lse + at + column]) : 0.0f;
          const float delta = there ? p.delta[row_of_lse + at + column] : 0.0f;
#endif
          const float probability = exponential(s[r][c] - lse);
          if (ROLE == OF_VALUE) s[r][c] = probability * kept[c];
          else s[r][c] = probability * slopes[c] * (dp[r][c] * kept[c] - delta);
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
          total[r] > 0.0f ? top[r] / PER_NATURAL + logf(total[r]) : -INF_f;
  }
  if (ROLE == OUT && DROPS && blockIdx.x == 0 && threadIdx.x == 0) {
    p.next_state[0] = key;
    p.next_state[1] = counter + (u64)(p.batch * p.heads * p.queries * p.keys);
  }
}
