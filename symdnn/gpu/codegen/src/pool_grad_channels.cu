// The gradient of pooling of (N, sizes, C). A thread has V neighbouring channels of an element and
// sums the gradients of its windows: for a maximum, of those whose maximum it is (every tie).

struct Parameters { const T* x; const T* y; const T* dy; T* dx; i64 total, groups; Sizes in, out; };

extern "C" __global__ void __launch_bounds__(256) pool_grad_channels(
    const __grid_constant__ Parameters p) {
  for (i64 i = global_thread(); i < p.total; i += thread_count()) {
    u32 rest = (u32)i;
    const u32 group = rest % (u32)p.groups; rest /= (u32)p.groups;
    const i32 w = rest % (u32)p.in.w; rest /= (u32)p.in.w;
    const i32 h = rest % (u32)p.in.h; rest /= (u32)p.in.h;
    const i32 d = rest % (u32)p.in.d;
    const i64 image = rest / (u32)p.in.d;
    A sum[V];
    Vec<T, V> x;
    if (MODE == 0) x = load<V>(p.x + i * V);
#pragma unroll
    for (i32 k = 0; k < V; k++) sum[k] = (A)0;
#pragma unroll
    for (i32 a = 0; a < DEEP_D; a++)
#pragma unroll
      for (i32 b = 0; b < DEEP_H; b++)
#pragma unroll
        for (i32 c = 0; c < DEEP_W; c++) {
          const i32 od = (d + PD) / SD - a, oh = (h + PH) / SH - b, ow = (w + PW) / SW - c;
          if (!within(od, p.out.d) || !within(oh, p.out.h) || !within(ow, p.out.w)) continue;
          if (d + PD - od * SD >= WD || h + PH - oh * SH >= WH || w + PW - ow * SW >= WW) continue;
          const i64 at = ((image * p.out.d + od) * p.out.h + oh) * p.out.w + ow;
          const i64 place = (at * p.groups + group) * V;
          const Vec<T, V> dy = load<V>(p.dy + place);
          if (MODE == 0) {
            const Vec<T, V> y = load<V>(p.y + place);
#pragma unroll
            for (i32 k = 0; k < V; k++)
              if (convert<A>(y.v[k]) == convert<A>(x.v[k])) sum[k] += convert<A>(dy.v[k]);
          } else {
            const A divisor = elements_of(p.in, od, oh, ow);
#pragma unroll
            for (i32 k = 0; k < V; k++) sum[k] += convert<A>(dy.v[k]) / divisor;
          }
        }
    Vec<T, V> dx;
#pragma unroll
    for (i32 k = 0; k < V; k++) dx.v[k] = convert<T>(sum[k]);
    store(p.dx + i * V, dx);
  }
}
