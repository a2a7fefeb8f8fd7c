// The elements at the labels in the gradient of the softmax loss: those at all other classes are
// exp(x - total) * d. G is the type of d, T of the logits x, Y of the gradient, W of computation, L
// of labels.

struct Parameters {
  const G* d;
  const W* total;
  const T* x;
  const L* labels;
  Y* y;
  i64 rows, classes, x_step, y_step;
  i32* error_word;
  i64 node;
  i64 size[D], d_row[D], total_row[D], x_row[D], label_row[D], y_row[D];
};

extern "C" __global__ void __launch_bounds__(256) at_labels(const __grid_constant__ Parameters p) {
  for (i64 n = global_thread(); n < p.rows; n += thread_count()) {
    const COUNT row = (COUNT)n;
    const i64 label = (i64)p.labels[place(row, p.size, p.label_row)];
    if (label < 0 || label >= p.classes) {
      report(p.error_word, LABEL_ERROR, p.node, label, p.classes);
      continue;
    }
    const W x = convert<W>(p.x[place(row, p.size, p.x_row) + label * p.x_step]);
    const W total = p.total[place(row, p.size, p.total_row)];
    const W d = convert<W>(p.d[place(row, p.size, p.d_row)]);
    p.y[place(row, p.size, p.y_row) + label * p.y_step] =
        convert<Y>(s_exp(x - total) * d - d);
  }
}
