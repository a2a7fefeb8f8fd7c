// Pooling of (N, sizes, C): a thread works on V neighbouring channels.

struct Parameters { const T* x; T* y; i64 total; i64 groups; Sizes in, out; };

extern "C" __global__ void __launch_bounds__(256) pool_channels(
    const __grid_constant__ Parameters p) {
  for (i64 i = global_thread(); i < p.total; i += thread_count()) {
    u32 rest = (u32)i;
    const u32 group = rest % (u32)p.groups; rest /= (u32)p.groups;
    const i32 w = rest % (u32)p.out.w; rest /= (u32)p.out.w;
    const i32 h = rest % (u32)p.out.h; rest /= (u32)p.out.h;
    const i32 d = rest % (u32)p.out.d;
    const i64 image = rest / (u32)p.out.d;
    A held[V];
#pragma unroll
    for (i32 k = 0; k < V; k++) held[k] = start_of();
#pragma unroll
    for (i32 a = 0; a < WD; a++)
#pragma unroll
      for (i32 b = 0; b < WH; b++)
#pragma unroll
        for (i32 c = 0; c < WW; c++) {
          const i32 xd = d * SD - PD + a, xh = h * SH - PH + b, xw = w * SW - PW + c;
          if (!within(xd, p.in.d) || !within(xh, p.in.h) || !within(xw, p.in.w)) continue;
          const i64 at = ((image * p.in.d + xd) * p.in.h + xh) * p.in.w + xw;
          const Vec<T, V> x = load<V>(p.x + (at * p.groups + group) * V);
#pragma unroll
          for (i32 k = 0; k < V; k++) held[k] = joined(held[k], convert<A>(x.v[k]));
        }
    const A divisor = elements_of(p.in, d, h, w);
    Vec<T, V> y;
#pragma unroll
    for (i32 k = 0; k < V; k++) y.v[k] = convert<T>(MODE == 0 ? held[k] : held[k] / divisor);
    store(p.y + i * V, y);
  }
}
