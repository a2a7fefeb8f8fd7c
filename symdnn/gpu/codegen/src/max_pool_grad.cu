// The gradient of max pooling: every element that equals a window's maximum gets the window's
// gradient. One thread for each element of x sums over the windows that contain it, without
// atomics, so the result is deterministic. There are DIMS pooled dimensions, the last one
// contiguous.
//
// T is the stored type, A the type of sums.

struct Axis { i64 n, m, window, stride, pad; };
struct Parameters { const T* x; const T* y; const T* dy; T* dx; i64 total; Axis axes[DIMS]; };

extern "C" __global__ void max_pool_grad(const Parameters p) {
  i64 inputs = 1, windows = 1;
#pragma unroll
  for (int d = 0; d < DIMS; ++d) {
    inputs *= p.axes[d].n;
    windows *= p.axes[d].m;
  }
  for (i64 e = global_thread(); e < p.total; e += thread_count()) {
    i64 first[DIMS], last[DIMS], at[DIMS];
    i64 rest = e % inputs;
    bool any = true;
#pragma unroll
    for (int d = DIMS - 1; d >= 0; --d) {
      const Axis a = p.axes[d];
      const i64 place = rest % a.n + a.pad;
      rest /= a.n;
      first[d] = place < a.window ? 0 : (place - a.window) / a.stride + 1;
      last[d] = place / a.stride < a.m ? place / a.stride : a.m - 1;
      at[d] = first[d];
      any = any && first[d] <= last[d];
    }
    const auto value = widen(p.x[e]);
    const i64 base = e / inputs * windows;
    A sum = 0;
    while (any) {
      i64 w = 0;
#pragma unroll
      for (int d = 0; d < DIMS; ++d) w = w * p.axes[d].m + at[d];
      if (widen(p.y[base + w]) == value) sum += (A)widen(p.dy[base + w]);
      any = false;
#pragma unroll
      for (int d = DIMS - 1; d >= 0; --d) {
        if (at[d] < last[d]) {
          ++at[d];
          any = true;
          break;
        }
        at[d] = first[d];
      }
    }
    p.dx[e] = Narrow<T>::of(sum);
  }
}
