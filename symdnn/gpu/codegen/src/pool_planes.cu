// Pooling of planes (NCHW): a thread computes ROWS by STRIP neighbouring results. It reads each
// line of their windows once, in vectors of V elements: V is STRIP times SW, or both are 1.

struct Parameters { const T* x; T* y; i64 total; Sizes in, out; };

// Elements OFFSET, ... of a strip that begins at column a; elements outside of the line do not
// count.
template <i32 OFFSET>
INLINE void read(const T* line, bool there, i32 a, i64 width, A (&row)[SPAN]) {
  if constexpr (OFFSET < SPAN - PW) {
    if constexpr (V > 1 && OFFSET % V == 0 && OFFSET + V <= SPAN - PW) {
      // The first vector of the strip is completely inside.
      const bool inside = (OFFSET == 0 || within(a + OFFSET, width)) && there;
      Vec<T, V> x;
      if (inside) x = load<V>(line + a + OFFSET);
#pragma unroll
      for (i32 k = 0; k < V; k++) row[OFFSET + PW + k] = inside ? convert<A>(x.v[k]) : start_of();
      read<OFFSET + V>(line, there, a, width, row);
    } else {
      const bool inside = within(a + OFFSET, width) && there;
      row[OFFSET + PW] = inside ? convert<A>(line[a + OFFSET]) : start_of();
      read<OFFSET + 1>(line, there, a, width, row);
    }
  }
}

// Joins a line into the results whose windows contain it.
INLINE void join_line(const A (&row)[SPAN], i32 number, A (&held)[ROWS][STRIP]) {
#pragma unroll
  for (i32 k = 0; k < STRIP; k++) {
    A along = row[k * SW];
#pragma unroll
    for (i32 c = 1; c < WW; c++) along = joined(along, row[k * SW + c]);
#pragma unroll
    for (i32 j = 0; j < ROWS; j++)
      if (number >= j * SH && number < j * SH + WH) held[j][k] = joined(held[j][k], along);
  }
}

extern "C" __global__ void __launch_bounds__(256) pool_planes(
    const __grid_constant__ Parameters p) {
  const u32 strips = (u32)p.out.w / STRIP, bands = ((u32)p.out.h + ROWS - 1) / ROWS;
  for (i64 i = global_thread(); i < p.total; i += thread_count()) {
    u32 rest = (u32)i;
    const i32 w = rest % strips * STRIP; rest /= strips;
    const i32 h = rest % bands * ROWS; rest /= bands;
    const i32 d = rest % (u32)p.out.d;
    const i64 plane = rest / (u32)p.out.d;
    A held[ROWS][STRIP];
#pragma unroll
    for (i32 k = 0; k < ROWS * STRIP; k++) held[k / STRIP][k % STRIP] = start_of();
#pragma unroll
    for (i32 a = 0; a < WD; a++) {
      const i32 xd = PLACE(d * SD - PD + a, p.in.d);
#pragma unroll
      for (i32 b = 0; b < LINES; b++) {
        const i32 xh = PLACE(h * SH - PH + b, p.in.h);
        const bool there = CLAMPED || (within(xd, p.in.d) && within(xh, p.in.h));
        A row[SPAN];
        read<-PW>(p.x + ((plane * p.in.d + xd) * p.in.h + xh) * p.in.w, there, w * SW, p.in.w, row);
        join_line(row, b, held);
      }
    }
#pragma unroll
    for (i32 j = 0; j < ROWS; j++) {
      if (h + j >= (i32)p.out.h) continue;
      Vec<T, STRIP> y;
#pragma unroll
      for (i32 k = 0; k < STRIP; k++) {
        const A divisor = elements_of(p.in, d, h + j, w + k);
        y.v[k] = convert<T>(MODE == 0 ? held[j][k] : held[j][k] / divisor);
      }
      store(p.y + ((plane * p.out.d + d) * p.out.h + h + j) * p.out.w + w, y);
    }
  }
}
