// Pooling over DIMS dimensions, the last ones, of any sizes and dtypes: one thread for each result,
// without atomics. T is the stored type, A that of the work. MODE 0: maximum, 1: mean with padding, 2:
// mean without, 3: sum, 4: the sum of v where x is the maximum y.

struct Axis { i64 n, m, window, stride, pad; };
struct Parameters { const T* x; const T* y; const T* v; T* out; i64 total; Axis axes[DIMS]; };

// The elements of a window along an axis, as its mean counts them.
INLINE i64 counted(const Axis& a, i64 at) {
  const i64 first = at * a.stride - a.pad, edge = a.n + (MODE == 1 ? a.pad : 0);
  const i64 end = first + a.window < edge ? first + a.window : edge;
  const i64 found = end - (MODE == 1 || first > 0 ? first : 0);
  return found > 1 ? found : 1;
}

// The elements of an input of the pooled dimensions.
INLINE i64 elements(const Parameters& p) {
  i64 found = 1;
#pragma unroll
  for (int d = 0; d < DIMS; d++) found *= p.axes[d].n;
  return found;
}

// The windows of an input of the pooled dimensions.
INLINE i64 results(const Parameters& p) {
  i64 found = 1;
#pragma unroll
  for (int d = 0; d < DIMS; d++) found *= p.axes[d].m;
  return found;
}

// Steps to the next place from first to last, the last axis fastest; false behind the end.
INLINE bool advance(i64* at, const i64* first, const i64* last) {
#pragma unroll
  for (int d = DIMS - 1; d >= 0; d--) {
    if (at[d] < last[d]) {
      at[d]++;
      return true;
    }
    at[d] = first[d];
  }
  return false;
}

// A result for each window, of the elements in it.
extern "C" __global__ void __launch_bounds__(256) windows(const __grid_constant__ Parameters p) {
  const i64 inputs = elements(p), outputs = results(p);
  for (i64 w = global_thread(); w < p.total; w += thread_count()) {
    i64 first[DIMS], last[DIMS], at[DIMS], rest = w % outputs, divisor = 1;
    bool any = true;
#pragma unroll
    for (int d = DIMS - 1; d >= 0; d--) {
      const Axis a = p.axes[d];
      const i64 begin = rest % a.m * a.stride - a.pad, end = begin + a.window;
      divisor *= counted(a, rest % a.m);
      rest /= a.m;
      at[d] = first[d] = begin < 0 ? 0 : begin;
      last[d] = (end < a.n ? end : a.n) - 1;
      any = any && first[d] <= last[d];
    }
    const i64 base = w / outputs * inputs;
    A found = MODE == 0 ? (A)LOWEST : (A)0;
    while (any) {
      i64 e = 0;
#pragma unroll
      for (int d = 0; d < DIMS; d++) e = e * p.axes[d].n + at[d];
      const A x = (A)widen(p.x[base + e]);
      if (MODE == 0) found = x > found || x != x ? x : found;
      else if (MODE < 4) found += x;
      else if (x == (A)widen(p.y[w])) found += (A)widen(p.v[base + e]);
      any = advance(at, first, last);
    }
    p.out[w] = convert<T>(MODE == 1 || MODE == 2 ? (A)(found / (A)divisor) : found);
  }
}

// A result for each element, of the windows that contain it: x are the windows' gradients.
extern "C" __global__ void __launch_bounds__(256) spread(const __grid_constant__ Parameters p) {
  const i64 inputs = elements(p), outputs = results(p);
  for (i64 e = global_thread(); e < p.total; e += thread_count()) {
    i64 first[DIMS], last[DIMS], at[DIMS], rest = e % inputs;
    bool any = true;
#pragma unroll
    for (int d = DIMS - 1; d >= 0; d--) {
      const Axis a = p.axes[d];
      const i64 place = rest % a.n + a.pad;
      rest /= a.n;
      at[d] = first[d] = place < a.window ? 0 : (place - a.window) / a.stride + 1;
      last[d] = place / a.stride < a.m ? place / a.stride : a.m - 1;
      any = any && first[d] <= last[d];
    }
    const i64 base = e / inputs * outputs;
    A found = (A)0;
    while (any) {
      i64 w = 0, divisor = 1;
#pragma unroll
      for (int d = 0; d < DIMS; d++) {
        w = w * p.axes[d].m + at[d];
        divisor *= counted(p.axes[d], at[d]);
      }
      const A x = (A)widen(p.x[base + w]);
      found += MODE == 3 ? x : (A)(x / (A)divisor);
      any = advance(at, first, last);
    }
    p.out[e] = convert<T>(found);
  }
}
