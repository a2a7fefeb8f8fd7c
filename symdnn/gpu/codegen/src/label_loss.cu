// The elements at the labels in the gradient of the softmax loss: those at all other classes are
// exp(x - total) * d. G is the type of d, T of the logits x, Y of the gradient, W of computation, L
// of labels. `at_labels` writes them. Where the gradient overwrites the logits, `keep_labels` computes
// them first, and `put_labels` writes them behind the others; a label out of range is at no element.

struct Parameters {
  const G* d;
  const W* total;
  const T* x;
  const L* labels;
  Y* y;
  Y* kept;
  i64 rows, classes, x_step, y_step;
  i32* error_word;
  i64 node;
  i64 size[D], d_row[D], total_row[D], x_row[D], label_row[D], y_row[D];
};

// The label of a row; -1, and an error, for one out of range.
INLINE i64 label_of(const Parameters& p, COUNT row, bool reports) {
  const i64 label = (i64)p.labels[place(row, p.size, p.label_row)];
  if (label >= 0 && label < p.classes) return label;
  if (reports) report(p.error_word, LABEL_ERROR, p.node, label, p.classes);
  return -1;
}

INLINE Y at_label(const Parameters& p, COUNT row, i64 label) {
  const W x = convert<W>(p.x[place(row, p.size, p.x_row) + label * p.x_step]);
  const W total = p.total[place(row, p.size, p.total_row)];
  const W d = convert<W>(p.d[place(row, p.size, p.d_row)]);
  return convert<Y>(s_exp(x - total) * d - d);
}

#define EACH_ROW(row) \
  for (COUNT row = (COUNT)global_thread(); row < (COUNT)p.rows; row += (COUNT)thread_count())

extern "C" __global__ void __launch_bounds__(256) at_labels(const __grid_constant__ Parameters p) {
  EACH_ROW(row) {
    const i64 label = label_of(p, row, true);
    if (label >= 0)
      p.y[place(row, p.size, p.y_row) + label * p.y_step] = at_label(p, row, label);
  }
}

extern "C" __global__ void __launch_bounds__(256) keep_labels(const __grid_constant__ Parameters p) {
  EACH_ROW(row) {
    const i64 label = label_of(p, row, true);
    if (label >= 0) p.kept[row] = at_label(p, row, label);
  }
}

extern "C" __global__ void __launch_bounds__(256) put_labels(const __grid_constant__ Parameters p) {
  EACH_ROW(row) {
    const i64 label = label_of(p, row, false);
    if (label >= 0) p.y[place(row, p.size, p.y_row) + label * p.y_step] = p.kept[row];
  }
}
