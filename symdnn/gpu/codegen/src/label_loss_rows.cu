// The softmax loss of labels, and its gradient, of rows of logits that are read once: LANES threads
// keep a row in shared memory if STAGED, and else read it again. G is the type of d, T of the logits
// x, Y of the gradient, W of computation and of losses, L of labels. The classes lie side by side if
// vectors have V > 1 elements: those before a row's first whole vector and after the last one are
// read one by one. A thread writes what it has read, so that the gradient may overwrite the logits.

#define TILE (BLOCK / LANES)
#define BATCH 4

#if STAGED
#ifdef SYMDNN_HOST
static bytes16 dynamic_shared[256 * 1024 / 16];
#else
extern __shared__ bytes16 dynamic_shared[];
#endif
#endif

struct Parameters {
  const G* d;
  const T* x;
  const L* labels;
  W* loss;
  Y* y;
  i64 rows, classes, x_step, y_step;
  i32* error_word;
  i64 node;
  i64 size[D], d_row[D], x_row[D], label_row[D], loss_row[D], y_row[D];
};

// The largest logit so far, and the sum of exponentials relative to it.
struct Total { W top, sum; };

INLINE W shift_of(W top) { return top == (W)INF_f || top == -(W)INF_f ? (W)0 : top; }

template <int N> INLINE void take(Total& t, const Vec<T, N>& x) {
  W top = convert<W>(x.v[0]);
#pragma unroll
  for (i32 k = 1; k < N; k++) top = Larger::of(top, convert<W>(x.v[k]));
  if (top > t.top) {
    t.sum *= Exponential<T>::of(t.top - top);
    t.top = top;
  }
  const W shift = shift_of(t.top);
#pragma unroll
  for (i32 k = 0; k < N; k++) t.sum += Exponential<T>::of(convert<W>(x.v[k]) - shift);
}

// A row: its label, or -1 for one that is no class, and what the gradient needs.
struct Row { i64 label; W total, d; W* loss; };

// The gradient at the classes from `first` on. The label's thread writes the loss.
template <int N> INLINE Vec<Y, N> gradient(const Row& r, i64 first, const Vec<T, N>& x) {
  Vec<Y, N> y;
#pragma unroll
  for (i32 k = 0; k < N; k++) {
    const W v = convert<W>(x.v[k]);
    W g = Exponential<T>::of(v - r.total) * r.d;
    if (first + k == r.label) {
      g -= r.d;
      *r.loss = r.total - v;
    }
    y.v[k] = convert<Y>(g);
  }
  return y;
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) label_loss_rows(
    const __grid_constant__ Parameters p) {
  const i32 lane = threadIdx.x % LANES, slot = threadIdx.x / LANES;
  const i64 x_step = V > 1 ? 1 : p.x_step, y_step = V > 1 ? 1 : p.y_step;
  for (i64 tile = (i64)blockIdx.x * TILE; tile < p.rows; tile += (i64)gridDim.x * TILE) {
    const bool exists = tile + slot < p.rows;
    const COUNT row = exists ? (COUNT)(tile + slot) : (COUNT)0;
    const i32 classes = exists ? (i32)p.classes : 0;
    const T* x = p.x + place(row, p.size, p.x_row);
    Y* y = p.y + place(row, p.size, p.y_row);
    const i32 whole = (i32)(-(i64)((u64)x / sizeof(T)) & (V - 1));
    const i32 head = whole < classes ? whole : classes;
    const i32 vectors = (classes - head) / V, edge = classes - vectors * V;
    Total t = {-(W)INF_f, (W)0};
    for (i32 e = lane; e < edge; e += LANES)
      take(t, load<1>(x + (e < head ? e : vectors * V + e) * x_step));
    for (i32 i = lane; i < vectors; i += BATCH * LANES) {
      Vec<T, V> raw[BATCH];
#pragma unroll
      for (i32 b = 0; b < BATCH; b++)
        raw[b] = load<V>(x + (head + (i + b * LANES < vectors ? i + b * LANES : i) * V) * x_step);
#pragma unroll
      for (i32 b = 0; b < BATCH; b++)
        if (i + b * LANES < vectors) {
          take(t, raw[b]);
#if STAGED
          ((Vec<T, V>*)dynamic_shared)[(i / LANES + b) * BLOCK + threadIdx.x] = raw[b];
#endif
        }
    }
    const W top = together<Larger, LANES>(t.top);
    const W part = t.top == top ? t.sum : t.sum * Exponential<T>::of(t.top - top);
    const W sum = together<Added, LANES>(part);
    if (!exists) continue;
    Row r = {(i64)p.labels[place(row, p.size, p.label_row)], shift_of(top) + s_log(sum),
             convert<W>(p.d[place(row, p.size, p.d_row)]), p.loss + place(row, p.size, p.loss_row)};
    if (r.label < 0 || r.label >= p.classes) {
      if (lane == 0) {
        report(p.error_word, LABEL_ERROR, p.node, r.label, p.classes);
        *r.loss = (W)0;
      }
      r.label = -1;
    }
    for (i32 i = lane; i < vectors; i += LANES) {
      const i32 first = head + i * V;
#if STAGED
      const Vec<T, V> raw = ((Vec<T, V>*)dynamic_shared)[i / LANES * BLOCK + threadIdx.x];
#else
      const Vec<T, V> raw = load<V>(x + first * x_step);
#endif
      store(y + first * y_step, gradient(r, first, raw));
    }
    for (i32 e = lane; e < edge; e += LANES) {
      const i32 at = e < head ? e : vectors * V + e;
      store(y + at * y_step, gradient(r, at, load<1>(x + at * x_step)));
    }
  }
}
