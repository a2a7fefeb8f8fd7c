// Softmax across planes that are too many for a thread: TY threads share the N planes, GX
// neighbours along a plane have V pixels each, which is a group. A block has some groups, or one.

struct Parameters { const T* x; const T* dy; T* y; i64 groups, vectors; };

constexpr i32 GROUP = GX * TY;

template <class How> INLINE W across(W value) {
#pragma unroll
  for (i32 mask = GX; mask < 32 && mask < GROUP; mask *= 2)
    value = How::of(value, __shfl_xor_sync(0xffffffffu, value, mask));
  if (GROUP > 32) {
    __shared__ W all[BLOCK / 32][GX];
    const i32 lane = threadIdx.x % 32, first = threadIdx.x / GROUP * (GROUP / 32);
    __syncthreads();
    if (lane < GX) all[threadIdx.x / 32][lane] = value;
    __syncthreads();
    value = all[first][lane % GX];
#pragma unroll
    for (i32 warp = 1; warp < GROUP / 32; warp++) value = How::of(value, all[first + warp][lane % GX]);
  }
  return value;
}
struct Join {
  static __device__ __forceinline__ W largest(W x) { return across<Larger>(x); }
  static __device__ __forceinline__ W sum(W x) { return across<Added>(x); }
};

extern "C" __global__ void __launch_bounds__(BLOCK) softmax_across(
    const __grid_constant__ Parameters p) {
  const i32 first = threadIdx.x % GX, line = threadIdx.x / GX % TY, own = threadIdx.x / GROUP;
  const i64 tiles = (p.vectors + GX - 1) / GX, plane = p.vectors * V;
  for (i64 base = (i64)blockIdx.x * (BLOCK / GROUP); base < p.groups;
       base += (i64)gridDim.x * (BLOCK / GROUP)) {
    const i64 group = base + own, column = group % tiles * GX + first;
    const bool live = group < p.groups && column < p.vectors;
    const i64 start = group / tiles * N * plane + column * V;
    const i32 held = live && line < N ? (N - line + TY - 1) / TY : 0;
    Vec<T, V> raw[PER], draw[GRADIENT ? PER : 1];
#pragma unroll
    for (i32 i = 0; i < PER; i++) {
      const i64 at = start + (line + i * TY) * plane;
      if (i < held) raw[i] = load<V>(p.x + at);
      if (GRADIENT && i < held) draw[i] = load<V>(p.dy + at);
    }
#pragma unroll
    for (i32 k = 0; k < V; k++) {
      W x[PER], dy[GRADIENT ? PER : 1];
#pragma unroll
      for (i32 i = 0; i < PER; i++) {
        x[i] = i < held ? convert<W>(raw[i].v[k]) : (W)0;
        if (GRADIENT) dy[i] = i < held ? convert<W>(draw[i].v[k]) : (W)0;
      }
      softmax_of<Join>(x, dy, held);
#pragma unroll
      for (i32 i = 0; i < PER; i++) raw[i].v[k] = convert<T>(x[i]);
    }
#pragma unroll
    for (i32 i = 0; i < PER; i++)
      if (i < held) store(p.y + start + (line + i * TY) * plane, raw[i]);
  }
}
