// Ops on integer labels, one for each row of scores; the classes are along one axis. A label that
// is no class is reported, and its row becomes 0.
// KIND 0: pick, 1: -log(pick), 2: place a value, 3: place -value / score, 4: gradient of the
// softmax loss, 5: one-hot. T is the type of scores, W the type of computation, L that of labels.

struct Parameters {
  const T* scores;  // the input of KIND 0 and 1; the probabilities of 3, the log-softmax of 4
  const T* values;  // one for each row
  const L* labels;
  T* y;
  i64 rows, classes, score_step, y_step;
  i32* error_word;
  i64 node;
  i64 size[D], score_row[D], value_row[D], label_row[D], y_row[D];
};

INLINE i64 label_of(const Parameters& p, COUNT row) {
  const i64 label = (i64)p.labels[place(row, p.size, p.label_row)];
  if (label >= 0 && label < p.classes) return label;
  report(p.error_word, LABEL_ERROR, p.node, label, p.classes);
  return -1;
}

extern "C" __global__ void __launch_bounds__(256) pick(const __grid_constant__ Parameters p) {
  for (i64 n = global_thread(); n < p.rows; n += thread_count()) {
    const i64 label = label_of(p, (COUNT)n);
    T* y = p.y + place((COUNT)n, p.size, p.y_row);
    if (label < 0) {
      *y = convert<T>((W)0);
      continue;
    }
    const T score = p.scores[place((COUNT)n, p.size, p.score_row) + label * p.score_step];
#if KIND == 1
    *y = convert<T>(-s_log(convert<W>(score)));
#else
    *y = score;
#endif
  }
}

extern "C" __global__ void __launch_bounds__(256) spread(const __grid_constant__ Parameters p) {
  const i64 total = p.rows * p.classes;
  for (i64 n = global_thread(); n < total; n += thread_count()) {
    // Coalesced writes: neighbouring threads take neighbours along the last axis, classes or rows.
    const COUNT row = (COUNT)(p.y_step == 1 ? (COUNT)n / (COUNT)p.classes : (COUNT)n % (COUNT)p.rows);
    const i64 c = p.y_step == 1 ? n - (i64)row * p.classes : (COUNT)n / (COUNT)p.rows;
    const i64 label = label_of(p, row);
    const bool here = c == label;
    W result = (W)0;
#if KIND == 5
    result = here ? (W)1 : (W)0;
#else
    const W value = convert<W>(p.values[place(row, p.size, p.value_row)]);
#if KIND == 2
    if (here) result = value;
#else
    const i64 at = place(row, p.size, p.score_row) + c * p.score_step;
#if KIND == 3
    if (here) result = s_div(-value, convert<W>(p.scores[at]));
#else
    if (label >= 0)
      result = s_exp(convert<W>(p.scores[at])) * value - (here ? value : (W)0);
#endif
#endif
#endif
    p.y[place(row, p.size, p.y_row) + c * p.y_step] = convert<T>(result);
  }
}
