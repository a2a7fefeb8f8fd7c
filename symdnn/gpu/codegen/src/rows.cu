// Softmax, log-softmax and their gradients along one axis: a first pass over a row reduces it for
// the second one. With ROWS neighbouring threads of a block are lanes of one row, else of different
// rows. KIND 0: softmax, 1: log-softmax, 2: gradient of 0, 3: gradient of 1, 4: log-softmax with
// the loss of integer labels. T is the type of elements, W the type of computation, L that of
// labels.

struct Parameters {
  const T* x;    // logits; for gradients the forward result
  const T* dy;
  T* y;
  T* loss;
  const L* labels;
  i64 rows, length, x_step, dy_step, y_step;
  i32* error_word;
  i64 node;
  i64 size[D], x_row[D], dy_row[D], y_row[D], label_row[D];
};

#if KIND == 2 || KIND == 3
typedef Sum<W> State;
#else
typedef LogSumExp<W> State;
#endif

extern "C" __global__ void __launch_bounds__(256) rows(const __grid_constant__ Parameters p) {
  __shared__ State shared[256];
  const i32 lane = ROWS ? threadIdx.x : threadIdx.y, lanes = ROWS ? blockDim.x : blockDim.y;
  const i32 row = ROWS ? threadIdx.y : threadIdx.x, rows = ROWS ? blockDim.y : blockDim.x;
  const i32 slot = row * lanes + lane;
  for (i64 tile = (i64)blockIdx.x * rows; tile < p.rows; tile += (i64)gridDim.x * rows) {
    const bool mine = tile + row < p.rows;
    const COUNT n = mine ? (COUNT)(tile + row) : 0;
    const T* x = p.x + place(n, p.size, p.x_row);
    const T* dy = KIND == 2 || KIND == 3 ? p.dy + place(n, p.size, p.dy_row) : 0;
    T* y = p.y + place(n, p.size, p.y_row);
    State state;
    state.start();
    for (i64 k = lane; mine && k < p.length; k += lanes) {
#if KIND == 2
      state.take(s_mul(convert<W>(x[k * p.x_step]), convert<W>(dy[k * p.dy_step])), k);
#elif KIND == 3
      state.take(dy[k * p.dy_step], k);
#else
      state.take(x[k * p.x_step], k);
#endif
    }
    shared[slot] = state;
    __syncthreads();
    for (i32 half = lanes / 2; half > 0; half /= 2) {
      if (lane < half) shared[slot].merge(shared[slot + half]);
      __syncthreads();
    }
    const State all = shared[row * lanes];
#if KIND == 4
    i64 label = -1;
    if (mine) {
      label = (i64)p.labels[place(n, p.size, p.label_row)];
      if (label < 0 || label >= p.length) {
        if (lane == 0) report(p.error_word, LABEL_ERROR, p.node, label, p.length);
        label = -1;
        if (lane == 0) p.loss[n] = convert<T>((W)0);
      }
    }
#endif
    for (i64 k = lane; mine && k < p.length; k += lanes) {
      const W v = convert<W>(x[k * p.x_step]);
#if KIND == 0
      y[k * p.y_step] = convert<T>(s_div(s_exp(v - all.top), all.total));
#elif KIND == 2
      y[k * p.y_step] = convert<T>(v * (convert<W>(dy[k * p.dy_step]) - all.result()));
#elif KIND == 3
      y[k * p.y_step] = convert<T>(convert<W>(dy[k * p.dy_step]) - s_exp(v) * all.result());
#else
      const W log_p = v - all.top - s_log(all.total);
      y[k * p.y_step] = convert<T>(log_p);
#if KIND == 4
      if (k == label) p.loss[n] = convert<T>(-log_p);
#endif
#endif
    }
    __syncthreads();
  }
}
