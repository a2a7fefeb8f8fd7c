// The gradient of pooling of planes (NCHW). A thread has V neighbouring elements of a line (a
// multiple of SW, or 1) and sums the gradients of their windows: for a maximum, of those whose
// maximum an element is (every tie).

struct Parameters { const T* x; const T* y; const T* dy; T* dx; i64 total; Sizes in, out; };

#if V % SW == 0
#define FIRST (PW / SW - (DEEP_W - 1))
#define COLUMNS ((V - 1 + PW) / SW - FIRST + 1)
#else
#define FIRST (1 - DEEP_W)
#define COLUMNS DEEP_W
#endif

extern "C" __global__ void __launch_bounds__(256) pool_grad_planes(
    const __grid_constant__ Parameters p) {
  const u32 vectors = (u32)p.in.w / V;
  for (i64 i = global_thread(); i < p.total; i += thread_count()) {
    u32 rest = (u32)i;
    const i32 w = rest % vectors * V; rest /= vectors;
    const i32 h = rest % (u32)p.in.h; rest /= (u32)p.in.h;
    const i32 d = rest % (u32)p.in.d;
    const i64 plane = rest / (u32)p.in.d;
    // Windows are counted from the first one whose distance is known when the code is compiled.
    const i32 base = V % SW == 0 ? w / SW : (w + PW) / SW;
    const i32 ahead = V % SW == 0 ? PW : (w + PW) % SW;
    A sum[V];
    Vec<T, V> x;
    if (MODE == 0) x = load<V>(p.x + i * V);
#pragma unroll
    for (i32 k = 0; k < V; k++) sum[k] = (A)0;
#pragma unroll
    for (i32 a = 0; a < DEEP_D; a++)
#pragma unroll
      for (i32 b = 0; b < DEEP_H; b++) {
        const i32 od = (d + PD) / SD - a, oh = (h + PH) / SH - b;
        if (!within(od, p.out.d) || !within(oh, p.out.h)) continue;
        if (d + PD - od * SD >= WD || h + PH - oh * SH >= WH) continue;
        const i64 line = ((plane * p.out.d + od) * p.out.h + oh) * p.out.w;
#pragma unroll
        for (i32 c = 0; c < COLUMNS; c++) {
          const i32 ow = base + FIRST + c;
          if (!within(ow, p.out.w)) continue;
          const A dy = convert<A>(p.dy[line + ow]) / (MODE == 0 ? (A)1 : elements_of(p.in, od, oh, ow));
          const A y = MODE == 0 ? convert<A>(p.y[line + ow]) : (A)0;
#pragma unroll
          for (i32 k = 0; k < V; k++) {
            const i32 in = k + ahead - (FIRST + c) * SW;
            if (in >= 0 && in < WW && (MODE != 0 || y == convert<A>(x.v[k]))) sum[k] += dy;
          }
        }
      }
    Vec<T, V> dx;
#pragma unroll
    for (i32 k = 0; k < V; k++) dx.v[k] = convert<T>(sum[k]);
    store(p.dx + i * V, dx);
  }
}
