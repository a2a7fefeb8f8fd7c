// Softmax across planes (NCHW): a thread has V neighbouring pixels of all N planes in registers.

struct Parameters { const T* x; const T* dy; T* y; i64 total, vectors; };

extern "C" __global__ void __launch_bounds__(128) softmax_pixels(
    const __grid_constant__ Parameters p) {
  const i64 plane = p.vectors * V;
  for (i64 i = global_thread(); i < p.total; i += thread_count()) {
    const COUNT image = (COUNT)i / (COUNT)p.vectors;
    const i64 first = (i64)image * N * plane + (i64)((COUNT)i - image * (COUNT)p.vectors) * V;
    Vec<T, V> raw[N], draw[GRADIENT ? N : 1];
#pragma unroll
    for (i32 n = 0; n < N; n++) {
      raw[n] = load<V>(p.x + first + n * plane);
      if (GRADIENT) draw[n] = load<V>(p.dy + first + n * plane);
    }
#pragma unroll
    for (i32 k = 0; k < V; k++) {
      W x[N], dy[GRADIENT ? N : 1];
#pragma unroll
      for (i32 n = 0; n < N; n++) {
        x[n] = convert<W>(raw[n].v[k]);
        if (GRADIENT) dy[n] = convert<W>(draw[n].v[k]);
      }
      softmax_of<Alone>(x, dy, N);
#pragma unroll
      for (i32 n = 0; n < N; n++) raw[n].v[k] = convert<T>(x[n]);
    }
#pragma unroll
    for (i32 n = 0; n < N; n++) store(p.y + first + n * plane, raw[n]);
  }
}
