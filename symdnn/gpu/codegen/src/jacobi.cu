// Eigenvalues of Hermitian matrices, and singular values, by Jacobi's rotations in shared memory: a
// block for each matrix (G. H. Golub and C. F. Van Loan, "Matrix Computations", 2013, 8.5 and 8.6).
// T is float or double, and a complex number PARTS = 2 of them. TILE and TURNED are the most
// elements of the matrix and of the product of all rotations (VECTORS), SIDE is the most rows.

typedef NumberOf<T, PARTS> Number;

struct Parameters {
  const Number* x;
  Number* left;
  T* values;
  Number* right;
  i32* error_word;
  i64 node;
  // The error to report for a matrix without values, or 0.
  i64 code;
  // Sizes of the matrices, and whether singular vectors are square (or the lower triangle is read).
  i64 count, rows, columns, whole;
};

constexpr T ROUNDING = sizeof(T) == 4 ? (T)5.9604644775390625e-8 : (T)1.1102230246251565e-16;
// Sweeps; where the square of what the last one turned is so many times a rounding's, there
// is an error.
constexpr i32 SWEEPS = 40;
constexpr T LARGE = 1000000;
// The largest power of 2 that scales a matrix.
constexpr i32 FARTHEST = sizeof(T) == 4 ? 126 : 1022;

// The cosine of a rotation, and its sine times a phase.
struct Rotation {
  T cosine;
  Number sine;
};
// 1 / sqrt(x), to the last bits.
INLINE double over_root(double x) { return rsqrt(x); }
INLINE float over_root(float x) {
  const float y = rsqrtf(x);
  return y * (1.5f - 0.5f * x * y * y);
}
// What makes `between` of the diagonal `first`, `second` small: the angle is that of float32, whose
// error the next sweep finds, but it is a rotation to the last bits. `size2` is the square of
// between's size; what is on the diagonal is still to be multiplied by `weight`.
INLINE Rotation rotation(T first, T second, Number between, T size2, T weight) {
  const T over = PARTS == 1 ? (T)1 : over_root(size2);
  const float half = (float)(PARTS == 1 ? between.part[0] : size2 * over);
  const float ratio = (float)((second - first) * weight) / (2 * half), far = fabsf(ratio);
  const T tangent = copysignf(1 / (far > 1e8f ? 2 * far : far + sqrtf(1 + far * far)), ratio);
  Rotation found;
  found.cosine = over_root(1 + tangent * tangent);
  if (PARTS == 1) found.sine.part[0] = tangent * found.cosine;
  else found.sine = scaled(between, tangent * found.cosine * over);
  return found;
}
// Two numbers of columns p and q, turned.
INLINE void turn(const Rotation& r, Number& p, Number& q) {
  const Number old = p;
  p = difference(scaled(old, r.cosine), times<true>(r.sine, q));
  q = sum(times(r.sine, old), scaled(q, r.cosine));
}
// The pair k of a round: among an even number of players each meets each in players - 1 rounds.
INLINE void pair_of(i32 k, i32 round, i32 players, i32& p, i32& q) {
  const i32 ring = players - 1, up = round + k, down = round - k;
  const i32 a = k == 0 ? ring : up < ring ? up : up - ring, b = down < 0 ? down + ring : down;
  p = a < b ? a : b;
  q = a < b ? b : a;
}
// How many of `count` values come before value j, ascending or descending.
template <bool ASCENDING> INLINE i32 rank_of(const T* values, i32 count, i32 j) {
  i32 rank = 0;
  for (i32 i = 0; i < count; i++) {
    const bool before = ASCENDING ? values[i] < values[j] : values[i] > values[j];
    rank += before || (values[i] == values[j] && i < j);
  }
  return rank;
}
// The scale of the numbers that the threads of a block see.
struct Scale {
  T most = 0, wrong = 0;
  __device__ __forceinline__ void see(const Number& x) {
    for (i32 k = 0; k < PARTS; k++) {
      most = Larger::of(most, s_abs(x.part[k]));
      wrong += x.part[k] - x.part[k];
    }
  }
  // The power of 2 that makes the largest of all parts about 1, whose inverse is a number, too; 0
  // if all are zeros, or NaN.
  __device__ __forceinline__ T of_all() const {
    __syncthreads();
    const T largest = together<Larger, THREADS>(most);
    if (together<Added, THREADS>(wrong) != 0) return (T)NAN_d;
    i32 power = 0;
    if (largest > 0) frexp((double)largest, &power);
    power = power > FARTHEST ? FARTHEST : power < -FARTHEST ? -FARTHEST : power;
    return largest > 0 ? (T)ldexp(1.0, power) : (T)0;
  }
};

#if SINGULAR
// -- rotations of columns until all are orthogonal ------------------------------------------------
// The matrix has at least as many rows as columns here; a wide one is its own adjoint.

constexpr i32 LANES = 8;

// Vectors beside those whose column is not negligible: unit vectors, made orthogonal to the others
// twice. The one that is farthest from their space is taken.
INLINE void complete(Number* g, i32 rows, i32 count, bool* known, T* rest, Number* dot) {
  for (i32 t = 0; t < count; t++) {
    if (known[t]) continue;
    for (i32 i = threadIdx.x; i < rows; i += blockDim.x) {
      rest[i] = 1;
      for (i32 j = 0; j < count; j++)
        if (known[j]) rest[i] -= squared_size(g[j * rows + i]);
    }
    __syncthreads();
    i32 best = 0;
    for (i32 i = 1; i < rows; i++)
      if (rest[i] > rest[best]) best = i;
    for (i32 i = threadIdx.x; i < rows; i += blockDim.x) {
      Number v = {};
      v.part[0] = i == best;
      for (i32 j = 0; j < count; j++)
        if (known[j]) v = difference(v, times<true>(g[j * rows + best], g[j * rows + i]));
      g[t * rows + i] = v;
    }
    __syncthreads();
    for (i32 j = threadIdx.x; j < count; j += blockDim.x) {
      dot[j] = {};
      for (i32 i = 0; i < rows && known[j]; i++)
        dot[j] = sum(dot[j], times<true>(g[j * rows + i], g[t * rows + i]));
    }
    __syncthreads();
    for (i32 i = threadIdx.x; i < rows; i += blockDim.x)
      for (i32 j = 0; j < count; j++)
        if (known[j])
          g[t * rows + i] = difference(g[t * rows + i], times(g[j * rows + i], dot[j]));
    __syncthreads();
    T norm = 0;
    for (i32 i = 0; i < rows; i++) norm += squared_size(g[t * rows + i]);
    __syncthreads();
    for (i32 i = threadIdx.x; i < rows; i += blockDim.x)
      g[t * rows + i] = scaled(g[t * rows + i], 1 / s_sqrt(norm));
    if (threadIdx.x == 0) known[t] = true;
    __syncthreads();
  }
}

// A sweep over all pairs of columns; 1 where a column turned, 2 where it turned far. Columns whose
// squares are up to `least` are left, and pairs whose product's square is a part `close` of both.
INLINE i32 sweep(Number* g, Number* v, i32 rows, i32 columns, T least, T close) {
  const i32 lane = threadIdx.x % LANES, group = threadIdx.x / LANES, groups = THREADS / LANES;
  const i32 players = columns + columns % 2, pairs = players / 2;
  i32 moved = 0;
  for (i32 round = 0; round < players - 1; round++) {
    for (i32 base = 0; base < pairs; base += groups) {
      i32 p, q;
      pair_of(base + group < pairs ? base + group : 0, round, players, p, q);
      const bool live = base + group < pairs && q < columns;
      T first = 0, second = 0;
      Number between = {};
      for (i32 i = lane; live && i < rows; i += LANES) {
        const Number a = g[p * rows + i], b = g[q * rows + i];
        first += squared_size(a);
        second += squared_size(b);
        between = sum(between, times<true>(a, b));
      }
      first = together<Added, LANES>(first);
      second = together<Added, LANES>(second);
      for (i32 k = 0; k < PARTS; k++) between.part[k] = together<Added, LANES>(between.part[k]);
      if (!live || first <= least || second <= least) continue;
      const T weight = over_root(first * second), size2 = squared_size(scaled(between, weight));
      if (!(size2 > close)) continue;
      moved |= size2 > LARGE * close ? 3 : 1;
      const Rotation r = rotation(first, second, scaled(between, weight), size2, weight);
      for (i32 i = lane; i < rows; i += LANES) turn(r, g[p * rows + i], g[q * rows + i]);
      for (i32 i = lane; VECTORS && i < columns; i += LANES)
        turn(r, v[p * columns + i], v[q * columns + i]);
    }
    __syncthreads();
  }
  return moved;
}

extern "C" __global__ void __launch_bounds__(THREADS)
jacobi(const __grid_constant__ Parameters parameters) {
  __shared__ Number g[TILE], v[TURNED], dot[SIDE];
  __shared__ T values[SIDE], rest[SIDE];
  __shared__ i32 rank[SIDE], state;
  __shared__ bool known[SIDE];
  const Parameters& p = parameters;
  const bool wide = p.rows < p.columns;
  const i32 rows = (i32)(wide ? p.columns : p.rows), columns = (i32)(wide ? p.rows : p.columns);
  const i32 made = VECTORS && p.whole ? rows : columns;
  for (i64 b = blockIdx.x; b < p.count; b += gridDim.x) {
    const Number* x = p.x + b * rows * columns;
    Scale seen;
    for (i32 e = threadIdx.x; e < rows * columns; e += THREADS) seen.see(x[e]);
    const T scale = seen.of_all();
    T squares = 0;
    for (i32 e = threadIdx.x; e < rows * columns; e += THREADS) {
      const i32 i = e / (i32)p.columns, j = e % (i32)p.columns;
      const Number one = scale > 0 ? scaled(x[e], 1 / scale) : Number{};
      g[wide ? i * rows + j : j * rows + i] = wide ? conjugate(one) : one;
      squares += squared_size(one);
    }
    for (i32 e = threadIdx.x; VECTORS && e < columns * columns; e += THREADS) {
      v[e] = {};
      v[e].part[0] = e / columns == e % columns;
    }
    squares = together<Added, THREADS>(squares);
    const T least = ROUNDING * ROUNDING * squares, close = 4 * ROUNDING * ROUNDING * rows;
    i32 turning = scale > 0;
    for (i32 n = 0; n < SWEEPS && turning; n++) {
      if (threadIdx.x == 0) state = 0;
      __syncthreads();
      const i32 moved = sweep(g, v, rows, columns, least, close);
      if (moved) atomicMax(&state, moved);
      __syncthreads();
      turning = state;
      __syncthreads();
    }
    const bool failed = scale != scale || turning > 1;
    for (i32 j = threadIdx.x; j < columns; j += THREADS) {
      T found = 0;
      for (i32 i = 0; i < rows; i++) found += squared_size(g[j * rows + i]);
      values[j] = s_sqrt(found);
    }
    for (i32 j = threadIdx.x; j < made; j += THREADS) known[j] = false;
    __syncthreads();
    for (i32 j = threadIdx.x; j < made; j += THREADS) {
      rank[j] = j < columns ? rank_of<false>(values, columns, j) : j;
      if (j < columns) {
        known[j] = values[j] * values[j] > least;
        p.values[b * columns + rank[j]] = failed ? (T)NAN_d : values[j] * scale;
      }
    }
    if (threadIdx.x == 0 && failed && p.code) report(p.error_word, (i32)p.code, p.node, b, 1);
    __syncthreads();
    if (!VECTORS) continue;
    for (i32 e = threadIdx.x; e < columns * rows; e += THREADS)
      if (known[e / rows]) g[e] = scaled(g[e], 1 / values[e / rows]);
    __syncthreads();
    if (!failed) complete(g, rows, made, known, rest, dot);
    Number none;
    for (i32 k = 0; k < PARTS; k++) none.part[k] = (T)NAN_d;
    // Of a wide matrix the columns are right vectors, of a tall one left ones.
    const i32 step = (i32)p.rows < made ? (i32)p.rows : made;
    Number* left = p.left + b * p.rows * step;
    Number* right = p.right + b * p.columns * (wide ? made : columns);
    for (i32 e = threadIdx.x; e < made * rows; e += THREADS) {
      const i32 j = e / rows, i = e % rows;
      if (wide) right[rank[j] * rows + i] = failed ? none : conjugate(g[e]);
      else left[i * step + rank[j]] = failed ? none : g[e];
    }
    for (i32 e = threadIdx.x; e < columns * columns; e += THREADS) {
      const i32 j = e / columns, i = e % columns;
      if (wide) left[i * step + rank[j]] = failed ? none : v[e];
      else right[rank[j] * columns + i] = failed ? none : conjugate(v[e]);
    }
  }
}

#else
// -- rotations of rows and columns until what is beside the diagonal is 0 -------------------------

constexpr i32 HALF = SIDE / 2;

extern "C" __global__ void __launch_bounds__(THREADS)
jacobi(const __grid_constant__ Parameters parameters) {
  __shared__ Number a[TILE], v[TURNED];
  __shared__ Rotation turns[HALF];
  __shared__ i32 first[HALF], second[HALF], rank[SIDE], state;
  __shared__ bool turned[HALF];
  __shared__ T values[SIDE];
  const Parameters& p = parameters;
  const i32 n = (i32)p.rows, players = n + n % 2, pairs = players / 2;
  // The pair whose columns a thread has, and the first one whose rows it has.
  const i32 l = threadIdx.x % HALF, line = threadIdx.x / HALF;
  for (i64 b = blockIdx.x; b < p.count; b += gridDim.x) {
    const Number* x = p.x + b * n * n;
    Scale seen;
    for (i32 e = threadIdx.x; e < n * n; e += THREADS) {
      const i32 i = e / n, j = e % n;
      if (p.whole ? j <= i : j >= i) seen.see(x[e]);
    }
    const T scale = seen.of_all();
    T squares = 0;
    for (i32 e = threadIdx.x; e < n * n; e += THREADS) {
      const i32 i = e / n, j = e % n;
      const bool own = p.whole ? j <= i : j >= i;
      Number one = scale > 0 ? scaled(x[own ? e : j * n + i], 1 / scale) : Number{};
      if (!own) one = conjugate(one);
      if (PARTS == 2 && i == j) one.part[PARTS - 1] = 0;
      a[e] = one;
      squares += squared_size(one);
      if (VECTORS) {
        v[e] = {};
        v[e].part[0] = i == j;
      }
    }
    const T close = ROUNDING * ROUNDING / 16 * together<Added, THREADS>(squares);
    i32 turning = scale > 0;
    for (i32 sweep = 0; sweep < SWEEPS && turning; sweep++) {
      if (threadIdx.x == 0) state = 0;
      i32 moved = 0;
      for (i32 round = 0; round < players - 1; round++) {
        __syncthreads();
        for (i32 k = threadIdx.x; k < pairs; k += THREADS) {
          i32 r, s;
          pair_of(k, round, players, r, s);
          first[k] = r;
          second[k] = s;
          const Number between = s < n ? a[r * n + s] : Number{};
          const T size2 = squared_size(between);
          turned[k] = size2 > close;
          if (!turned[k]) continue;
          moved |= size2 > LARGE * close ? 3 : 1;
          turns[k] = rotation(a[r * n + r].part[0], a[s * n + s].part[0], between, size2, 1);
        }
        __syncthreads();
        if (l >= pairs) continue;
        const i32 r = first[l], s = second[l];
        const bool beside = s < n, own = turned[l];
        const Rotation turn_l = turns[l];
        for (i32 k = line; k < pairs; k += THREADS / HALF) {
          if (!turned[k] && !own) continue;
          const i32 i = first[k] * n, j = second[k] * n;
          const bool below = second[k] < n;
          Number corner[2][2] = {};
          corner[0][0] = a[i + r];
          if (beside) corner[0][1] = a[i + s];
          if (below) corner[1][0] = a[j + r];
          if (below && beside) corner[1][1] = a[j + s];
          if (own) {
            turn(turn_l, corner[0][0], corner[0][1]);
            turn(turn_l, corner[1][0], corner[1][1]);
          }
          if (turned[k]) {
            Rotation adjoint = turns[k];
            adjoint.sine = conjugate(adjoint.sine);
            turn(adjoint, corner[0][0], corner[1][0]);
            turn(adjoint, corner[0][1], corner[1][1]);
          }
          if (PARTS == 2 && k == l) corner[0][0].part[PARTS - 1] = corner[1][1].part[PARTS - 1] = 0;
          a[i + r] = corner[0][0];
          if (beside) a[i + s] = corner[0][1];
          if (below) a[j + r] = corner[1][0];
          if (below && beside) a[j + s] = corner[1][1];
        }
        for (i32 i = line; VECTORS && own && i < n; i += THREADS / HALF)
          turn(turn_l, v[i * n + r], v[i * n + s]);
      }
      if (moved) atomicMax(&state, moved);
      __syncthreads();
      turning = state;
      __syncthreads();
    }
    const bool failed = scale != scale || turning > 1;
    for (i32 j = threadIdx.x; j < n; j += THREADS) values[j] = a[j * n + j].part[0];
    __syncthreads();
    for (i32 j = threadIdx.x; j < n; j += THREADS) {
      rank[j] = rank_of<true>(values, n, j);
      p.values[b * n + rank[j]] = failed ? (T)NAN_d : values[j] * scale;
    }
    if (threadIdx.x == 0 && failed && p.code) report(p.error_word, (i32)p.code, p.node, b, 1);
    __syncthreads();
    for (i32 e = threadIdx.x; VECTORS && e < n * n; e += THREADS) {
      Number y = v[e];
      for (i32 k = 0; failed && k < PARTS; k++) y.part[k] = (T)NAN_d;
      p.left[b * n * n + e / n * n + rank[e % n]] = y;
    }
  }
}
#endif
