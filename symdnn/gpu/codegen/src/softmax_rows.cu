// Softmax of contiguous rows: LANES threads have a row in registers, each PER vectors of V
// elements. FULL: all of these vectors exist, in all blocks.

struct Parameters { const T* x; const T* dy; T* y; i64 rows, vectors; };

struct Join {
  static __device__ __forceinline__ W largest(W x) { return together<Larger, LANES>(x); }
  static __device__ __forceinline__ W sum(W x) { return together<Added, LANES>(x); }
};

extern "C" __global__ void __launch_bounds__(BLOCK) softmax_rows(
    const __grid_constant__ Parameters p) {
  const i32 lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
  const i64 rows = BLOCK / LANES, length = p.vectors * V;
  for (i64 tile = (i64)blockIdx.x * rows; tile < p.rows; tile += (i64)gridDim.x * rows) {
    const i64 number = tile + row;
    const i32 left = number < p.rows ? (i32)p.vectors - lane : 0;
    const i32 held = FULL ? PER : (left + LANES - 1) / LANES;
    Vec<T, V> raw[PER], draw[GRADIENT ? PER : 1];
#pragma unroll
    for (i32 i = 0; i < PER; i++) {
      const i64 at = number * length + (i64)(i * LANES + lane) * V;
      if (i < held) raw[i] = load<V>(p.x + at);
      if (GRADIENT && i < held) draw[i] = load<V>(p.dy + at);
    }
    W x[PER * V], dy[GRADIENT ? PER * V : 1];
#pragma unroll
    for (i32 i = 0; i < PER; i++) {
#pragma unroll
      for (i32 k = 0; k < V; k++) {
        x[i * V + k] = i < held ? convert<W>(raw[i].v[k]) : (W)0;
        if (GRADIENT) dy[i * V + k] = i < held ? convert<W>(draw[i].v[k]) : (W)0;
      }
    }
    softmax_of<Join>(x, dy, held * V);
#pragma unroll
    for (i32 i = 0; i < PER; i++) {
      if (i < held) {
        Vec<T, V> y;
#pragma unroll
        for (i32 k = 0; k < V; k++) y.v[k] = convert<T>(x[i * V + k]);
        store(p.y + number * length + (i64)(i * LANES + lane) * V, y);
      }
    }
  }
}
