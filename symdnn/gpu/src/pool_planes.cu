// Pooling of planes: a thread makes STRIP neighbouring results from a strip of each line, which it
// reads in vectors of V elements. V is STRIP times SW, or both are 1.

struct Parameters { const T* x; T* y; i64 total; Sizes in, out; };

#define SPAN ((STRIP - 1) * SW + WW)

// Elements OFFSET, ... of a strip that begins at column a: those beyond the border do not count.
template <i32 OFFSET> INLINE void read(const T* line, i32 a, i64 width, A (&row)[SPAN]) {
  if constexpr (OFFSET < SPAN - PW) {
    if constexpr (V > 1 && OFFSET % V == 0 && OFFSET + V <= SPAN - PW) {
      const bool there = within(a + OFFSET, width);
      Vec<T, V> x;
      if (there) x = load<V>(line + a + OFFSET);
#pragma unroll
      for (i32 k = 0; k < V; k++) row[OFFSET + PW + k] = there ? convert<A>(x.v[k]) : start_of();
      read<OFFSET + V>(line, a, width, row);
    } else {
      row[OFFSET + PW] = within(a + OFFSET, width) ? convert<A>(line[a + OFFSET]) : start_of();
      read<OFFSET + 1>(line, a, width, row);
    }
  }
}

extern "C" __global__ void __launch_bounds__(256) pool_planes(
    const __grid_constant__ Parameters p) {
  const u32 strips = (u32)p.out.w / STRIP;
  for (i64 i = global_thread(); i < p.total; i += thread_count()) {
    u32 rest = (u32)i;
    const i32 w = rest % strips * STRIP; rest /= strips;
    const i32 h = rest % (u32)p.out.h; rest /= (u32)p.out.h;
    const i32 d = rest % (u32)p.out.d;
    const i64 plane = rest / (u32)p.out.d;
    A held[STRIP];
#pragma unroll
    for (i32 k = 0; k < STRIP; k++) held[k] = start_of();
#pragma unroll
    for (i32 a = 0; a < WD; a++)
#pragma unroll
      for (i32 b = 0; b < WH; b++) {
        const i32 xd = d * SD - PD + a, xh = h * SH - PH + b;
        if (!within(xd, p.in.d) || !within(xh, p.in.h)) continue;
        A row[SPAN];
        read<-PW>(p.x + ((plane * p.in.d + xd) * p.in.h + xh) * p.in.w, w * SW, p.in.w, row);
#pragma unroll
        for (i32 k = 0; k < STRIP; k++)
#pragma unroll
          for (i32 c = 0; c < WW; c++) held[k] = joined(held[k], row[k * SW + c]);
      }
    Vec<T, STRIP> y;
#pragma unroll
    for (i32 k = 0; k < STRIP; k++) {
      const A divisor = elements_of(p.in, d, h, w + k);
      y.v[k] = convert<T>(MODE == 0 ? held[k] : held[k] / divisor);
    }
    store(p.y + i * STRIP, y);
  }
}
