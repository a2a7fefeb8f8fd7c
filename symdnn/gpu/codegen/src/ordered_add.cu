// x[row] += the sum of the rows of y with this target, in their order. `ranks` is sorted: the
// offset of the row in x (high 32 bits) and the number of the row of y (low 32 bits); all ones: no
// row.

struct Parameters {
  T* x;
  const T* y;
  const u64* ranks;
  i64 rows, columns;
  i64 row_size[R], y_row[R];
  i64 column_size[C], x_column[C], y_column[C];
};

extern "C" __global__ void __launch_bounds__(256) ordered_add(
    const __grid_constant__ Parameters p) {
  const i64 total = p.rows * p.columns;
  for (i64 n = global_thread(); n < total; n += thread_count()) {
    const i64 first = n / p.columns, column = n - first * p.columns;
    const u64 rank = p.ranks[first];
    const u64 target = rank >> 32;
    if (rank == ~0ull || (first > 0 && p.ranks[first - 1] >> 32 == target)) continue;
    const i64 y_at = place((u64)column, p.column_size, p.y_column);
    A sum = (A)0;
    for (i64 k = first; k < p.rows; k++) {
      const u64 next = p.ranks[k];
      if (next >> 32 != target || next == ~0ull) break;
      sum = s_add(sum, convert<A>(p.y[y_at + place((u64)(u32)next, p.row_size, p.y_row)]));
    }
    T* x = p.x + (i64)target + place((u64)column, p.column_size, p.x_column);
    *x = convert<T>(s_add(convert<A>(*x), sum));
  }
}
