// LU factors of small matrices, and solutions by them: a thread for each matrix, or for each column
// of its right side, has it in registers (G. H. Golub and C. F. Van Loan, "Matrix Computations", 2013, 3.4).
// A matrix has SIDE rows of T; BY_COLUMNS says that it is the transpose that is factored.

struct Parameters {
  const T* x;
  i32* pivots;
  const T* b;
  T* y;
  // Matrices or, of a solution, its columns in all; those of a matrix; whether each has its own factors.
  i64 count, columns, x_step, b_step;
  i32* error_word;
  i64 node;
  // The error to report for a singular matrix, or 0.
  i64 code;
};

INLINE T& at(T (&m)[SIDE][SIDE], int i, int j) { return BY_COLUMNS ? m[j][i] : m[i][j]; }

// a <-> b, of which b is one of v[first], ..., v[SIDE - 1].
INLINE void exchange(T (&v)[SIDE], int first, int b) {
#pragma unroll
  for (int i = first + 1; i < SIDE; i++) {
    const bool here = i == b;
    const T one = v[first], other = v[i];
    v[first] = here ? other : one;
    v[i] = here ? one : other;
  }
}

INLINE void load(T (&m)[SIDE][SIDE], const T* x) {
#pragma unroll
  for (int i = 0; i < SIDE; i++)
#pragma unroll
    for (int j = 0; j < SIDE; j++) m[i][j] = x[i * SIDE + j];
}

INLINE void factor(T (&m)[SIDE][SIDE], i32 (&pivots)[SIDE]) {
#pragma unroll
  for (int k = 0; k < SIDE; k++) {
    int best = k;
    T size = fabs(at(m, k, k));
#pragma unroll
    for (int i = k + 1; i < SIDE; i++) {
      const T s = fabs(at(m, i, k));
      if (s > size) {
        size = s;
        best = i;
      }
    }
    pivots[k] = best;
#pragma unroll
    for (int j = 0; j < SIDE; j++) {
#pragma unroll
      for (int i = k + 1; i < SIDE; i++) {
        const bool here = i == best;
        const T one = at(m, k, j), other = at(m, i, j);
        at(m, k, j) = here ? other : one;
        at(m, i, j) = here ? one : other;
      }
    }
    const T pivot = at(m, k, k);
#pragma unroll
    for (int i = k + 1; i < SIDE; i++) {
      if (pivot != 0) at(m, i, k) /= pivot;
#pragma unroll
      for (int j = k + 1; j < SIDE; j++) at(m, i, j) -= at(m, i, k) * at(m, k, j);
    }
  }
}

// v becomes the solution of the factored matrix, or of its transpose; false for a singular one.
template <bool TURNED>
INLINE bool solve(T (&m)[SIDE][SIDE], const i32 (&pivots)[SIDE], T (&v)[SIDE]) {
  bool regular = true;
#pragma unroll
  for (int k = 0; k < SIDE; k++) regular = regular && m[k][k] != 0;
  if (!TURNED) {
#pragma unroll
    for (int k = 0; k < SIDE; k++) exchange(v, k, pivots[k]);
  }
#pragma unroll
  for (int i = 0; i < SIDE; i++) {
#pragma unroll
    for (int j = 0; j < i; j++) v[i] -= (TURNED ? at(m, j, i) : at(m, i, j)) * v[j];
    if (TURNED) v[i] /= m[i][i];
  }
#pragma unroll
  for (int i = SIDE - 1; i >= 0; i--) {
#pragma unroll
    for (int j = i + 1; j < SIDE; j++) v[i] -= (TURNED ? at(m, j, i) : at(m, i, j)) * v[j];
    if (!TURNED) v[i] /= m[i][i];
  }
  if (TURNED) {
#pragma unroll
    for (int k = SIDE - 1; k >= 0; k--) exchange(v, k, pivots[k]);
  }
  return regular;
}

extern "C" __global__ void __launch_bounds__(128) small_factors(
    const __grid_constant__ Parameters p) {
  for (i64 n = global_thread(); n < p.count; n += thread_count()) {
    T m[SIDE][SIDE];
    i32 pivots[SIDE];
    load(m, p.x + n * SIDE * SIDE);
    factor(m, pivots);
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
      p.pivots[n * SIDE + i] = pivots[i];
#pragma unroll
      for (int j = 0; j < SIDE; j++) p.y[(n * SIDE + i) * SIDE + j] = m[i][j];
    }
  }
}

// With FACTORS x has factors, and b right sides; else x has matrices, and b is one.
extern "C" __global__ void __launch_bounds__(128) small_solutions(
    const __grid_constant__ Parameters p) {
  for (i64 n = global_thread(); n < p.count; n += thread_count()) {
    const i64 which = n / p.columns, column = n - which * p.columns;
    T m[SIDE][SIDE], v[SIDE];
    i32 pivots[SIDE];
    load(m, p.x + which * p.x_step * SIDE * SIDE);
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
      if (FACTORS) pivots[i] = p.pivots[which * p.x_step * SIDE + i];
      v[i] = FACTORS ? p.b[(which * p.b_step * SIDE + i) * p.columns + column] : (T)(i == column);
    }
    if (!FACTORS) factor(m, pivots);
    const bool regular = solve<TRANSPOSED != 0>(m, pivots, v);
    if (!regular && p.code && column == 0) report(p.error_word, (i32)p.code, p.node, which, 1);
#pragma unroll
    for (int i = 0; i < SIDE; i++)
      p.y[(which * SIDE + i) * p.columns + column] =
          regular ? v[i] : sizeof(T) == 8 ? (T)NAN_d : (T)NAN_f;
  }
}
