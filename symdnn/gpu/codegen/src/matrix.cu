// The small work around cuSOLVER's routines: arrays of pointers, transposes, triangles, statuses.
// T is float or double; a complex number is PARTS = 2 of them. Matrices of x have x_ld columns and
// lie x_step elements apart, those of y alike.

struct Parameters {
  T* x;
  T* y;
  i32* info;
  i64 count, rows, columns, x_step, y_step, x_ld, y_ld, value;
  i32* error_word;
  i64 node;
};

#define EACH(n, total) for (i64 n = global_thread(); n < (total); n += thread_count())

// y[i] is the address of the matrix i of x.
extern "C" __global__ void __launch_bounds__(256) pointers(
    const __grid_constant__ Parameters p) {
  EACH(n, p.count) ((T**)p.y)[n] = p.x + n * p.x_step * PARTS;
}

// y = x.T, or its conjugate where value is 1; x has `columns` rows and `rows` columns.
extern "C" __global__ void __launch_bounds__(256) turn(
    const __grid_constant__ Parameters p) {
  EACH(n, p.count * p.rows * p.columns) {
    const i64 j = n % p.columns, i = n / p.columns % p.rows, b = n / (p.columns * p.rows);
    const T* x = p.x + (b * p.x_step + j * p.x_ld + i) * PARTS;
    T* y = p.y + (b * p.y_step + i * p.y_ld + j) * PARTS;
    y[0] = x[0];
    if (PARTS == 2) y[1] = p.value ? -x[1] : x[1];
  }
}

// y = x, or its conjugate where value is 1.
extern "C" __global__ void __launch_bounds__(256) take(
    const __grid_constant__ Parameters p) {
  EACH(n, p.count * p.rows * p.columns) {
    const i64 j = n % p.columns, i = n / p.columns % p.rows, b = n / (p.columns * p.rows);
    const T* x = p.x + (b * p.x_step + i * p.x_ld + j) * PARTS;
    T* y = p.y + (b * p.y_step + i * p.y_ld + j) * PARTS;
    y[0] = x[0];
    if (PARTS == 2) y[1] = p.value ? -x[1] : x[1];
  }
}

// Zeros above (value 1) or below (value 0) the diagonal of y.
extern "C" __global__ void __launch_bounds__(256) triangle(
    const __grid_constant__ Parameters p) {
  EACH(n, p.count * p.rows * p.columns) {
    const i64 j = n % p.columns, i = n / p.columns % p.rows, b = n / (p.columns * p.rows);
    if (p.value ? j <= i : j >= i) continue;
    for (int k = 0; k < PARTS; k++) p.y[(b * p.y_step + i * p.y_ld + j) * PARTS + k] = 0;
  }
}

// Identity matrices.
extern "C" __global__ void __launch_bounds__(256) identity(
    const __grid_constant__ Parameters p) {
  EACH(n, p.count * p.rows * p.columns) {
    const i64 j = n % p.columns, i = n / p.columns % p.rows, b = n / (p.columns * p.rows);
    for (int k = 0; k < PARTS; k++)
      p.y[(b * p.y_step + i * p.y_ld + j) * PARTS + k] = i == j && k == 0;
  }
}

// info[i] is 1 where the diagonal of the matrix i of x has a 0; it was 0 before.
extern "C" __global__ void __launch_bounds__(256) zeros(
    const __grid_constant__ Parameters p) {
  EACH(n, p.count * p.rows) {
    const T* x = p.x + (n / p.rows * p.x_step + n % p.rows * (p.x_ld + 1)) * PARTS;
    bool zero = x[0] == 0;
    if (PARTS == 2) zero = zero && x[1] == 0;
    if (zero) p.info[n / p.rows] = 1;
  }
}

// A status for each matrix of x with a NaN on its diagonal.
extern "C" __global__ void __launch_bounds__(256) not_numbers(
    const __grid_constant__ Parameters p) {
  EACH(n, p.count * p.rows) {
    const T value = p.x[(n / p.rows * p.x_step + n % p.rows * (p.x_ld + 1)) * PARTS];
    if (value != value) p.info[n / p.rows] = 1;
  }
}

// A status for each matrix of x that is not finite: the upper triangle (value 0), the lower one (1)
// or all of it (2).
extern "C" __global__ void __launch_bounds__(256) not_finite(
    const __grid_constant__ Parameters p) {
  EACH(n, p.count * p.rows * p.columns) {
    const i64 j = n % p.columns, i = n / p.columns % p.rows, b = n / (p.columns * p.rows);
    if (p.value == 0 && j < i || p.value == 1 && j > i) continue;
    for (int k = 0; k < PARTS; k++) {
      const T value = p.x[(b * p.x_step + i * p.x_ld + j) * PARTS + k];
      if (value - value != 0) p.info[b] = 1;
    }
  }
}

// The matrices of y with another status than 0 become NaN: `columns` elements each, of which
// those of matrix i have the status info[i * x_step]. `value` is the error to report, or 0.
extern "C" __global__ void __launch_bounds__(256) settle(
    const __grid_constant__ Parameters p) {
  EACH(n, p.count * p.columns) {
    const i64 b = n / p.columns, e = n % p.columns;
    const i32 status = p.info[b * p.x_step];
    if (status == 0) continue;
    for (int k = 0; k < PARTS; k++) p.y[n * PARTS + k] = sizeof(T) == 8 ? (T)NAN_d : (T)NAN_f;
    if (e == 0 && p.value) report(p.error_word, (i32)p.value, p.node, b, status);
  }
}

// Integers: y = x + value.
extern "C" __global__ void __launch_bounds__(256) shift(
    const __grid_constant__ Parameters p) {
  EACH(n, p.count * p.columns) ((i32*)p.y)[n] = ((const i32*)p.x)[n] + (i32)p.value;
}

// y: the order of `rows` rows after the exchanges of `columns` pivots.
extern "C" __global__ void __launch_bounds__(256) permutation(
    const __grid_constant__ Parameters p) {
  EACH(n, p.count) {
    const i32* pivots = (const i32*)p.x + n * p.columns;
    i32* order = (i32*)p.y + n * p.rows;
    for (i64 i = 0; i < p.rows; i++) order[i] = (i32)i;
    for (i64 i = 0; i < p.columns; i++) {
      const i32 other = pivots[i], kept = order[i];
      if (other < 0 || other >= p.rows) continue;
      order[i] = order[other];
      order[other] = kept;
    }
  }
}
